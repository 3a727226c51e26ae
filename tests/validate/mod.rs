//! Holds answers and files against the committed JSON Schemas.

use std::path::Path;

use serde_json::Value;

/// Holds a value against a committed schema.
#[track_caller]
pub fn validate(name: &str, value: &Value) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("schema/json/{name}.json"));
    let text = std::fs::read(path).expect("a committed schema");
    let schema: Value = serde_json::from_slice(&text).expect("a schema is JSON");
    let validator = jsonschema::validator_for(&schema).expect("a schema that can be held to");
    let errors: Vec<String> =
        validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path)).collect();
    assert!(errors.is_empty(), "{name}: {errors:#?}");
}
