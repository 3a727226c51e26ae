//! JSON Schemas of all written files and answers.
//!
//! They are derived from the types; `schema/json/` has committed copies, so that a changed format shows in the diff,
//! and other programs can check a file without running this one.

use schemars::{Schema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Value, json};

use crate::{
    COLUMNS, CompareAnswer, CostModelFile, DevicesAnswer, DiffAnswer, EmitAnswer, Executed, FitAnswer,
    FittedLinks, GraphDocument, InspectReport, LintedOrder, Manifest, ModelDiffAnswer, Plan, PlanAnswer,
    ProfileAnswer, ProfileMap, ReportData, SimulatedOrder, SimulatedPlan, SplitAnswer, Timeline, TraceAnswer,
    Verified, cluster_file::ClusterFile,
};

/// A JSON Schema with its name.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedSchema {
    /// Its name: `plan`, or `answer-plan` for the output of `plan --format json`.
    pub name: &'static str,
    /// What it describes, in one line.
    pub about: &'static str,
    /// The schema.
    pub schema: Value,
}

/// Makes a type's schema.
type Make = fn(&mut SchemaGenerator) -> Schema;

const SCHEMAS: [(&str, &str, Make); 26] = [
    ("plan", "plan.yaml: written by `plan`, `split` and `emit`", |g| root::<Plan>(g)),
    ("cluster", "cluster.yaml: devices and the links between them", |g| root::<ClusterFile>(g)),
    ("cost-model", "cost-model.yaml: written by `fit`", |g| root::<CostModelFile>(g)),
    ("profile-header", "first row of a profile.csv, as a list of its columns", |_| profile_header()),
    ("profile-map", "map.yaml: assigns the columns of another CSV, for `fit`", |g| root::<ProfileMap>(g)),
    ("timeline", "timeline.json: written by `run`, read by `report`", |g| root::<Timeline>(g)),
    ("manifest", "stages/manifest.json: emitted stages and their connections", |g| root::<Manifest>(g)),
    ("graph", "MODEL.adjacency.json: written by `graph`", |g| root::<GraphDocument>(g)),
    ("report", "the data inside a report's page", |g| root::<ReportData>(g)),
    ("answer-split", "`split --format json`", |g| root::<SplitAnswer>(g)),
    ("answer-profile", "`profile --format json`", |g| root::<ProfileAnswer>(g)),
    ("answer-trace", "`trace --format json`", |g| root::<TraceAnswer>(g)),
    ("answer-inspect", "`inspect --format json`", |g| root::<InspectReport>(g)),
    ("answer-fit", "`fit --format json`", |g| root::<FitAnswer>(g)),
    ("answer-links", "`fit --format json` of the output of nccl-tests", |g| root::<FittedLinks>(g)),
    ("answer-plan", "`plan --format json`", |g| root::<PlanAnswer>(g)),
    ("answer-compare", "`compare --format json`", |g| root::<CompareAnswer>(g)),
    ("answer-simulate", "`simulate PLAN --format json`", |g| root::<SimulatedPlan>(g)),
    ("answer-order", "`simulate --csv` and `simulate --ranks`, with `--format json`", |g| {
        root::<SimulatedOrder>(g)
    }),
    ("answer-lint", "`simulate --csv ORDER --lint --format json`", |g| root::<LintedOrder>(g)),
    ("answer-devices", "`devices --format json`", |g| root::<DevicesAnswer>(g)),
    ("answer-diff", "`diff --format json` of two plans", |g| root::<DiffAnswer>(g)),
    ("answer-model-diff", "`diff --format json` of two models", |g| root::<ModelDiffAnswer>(g)),
    ("answer-emit", "`emit --format json`", |g| root::<EmitAnswer>(g)),
    ("answer-verify", "`verify --format json`", |g| root::<Verified>(g)),
    ("answer-run", "`run --format json`", |g| root::<Executed>(g)),
];

/// Returns all schemas in the order of the work.
pub fn json_schemas() -> Vec<NamedSchema> {
    let make = |(name, about, make): &(&'static str, &'static str, Make)| {
        let mut schema = make(&mut SchemaSettings::draft2020_12().into_generator());
        schema.insert("$id".to_string(), json!(format!("model-analyze/{name}.json")));
        NamedSchema { name, about, schema: schema.to_value() }
    };
    SCHEMAS.iter().map(make).collect()
}

fn root<T: schemars::JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.root_schema_for::<T>()
}

/// A header must have these columns; others are ignored.
fn profile_header() -> Schema {
    let needed = crate::profile_csv::NEEDED;
    let mut known: Vec<&str> = COLUMNS.to_vec();
    known.push("seconds");
    schemars::json_schema!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ProfileHeader",
        "description": "Columns of a profile. Those listed as examples are read, others are ignored.",
        "type": "array",
        "items": {"type": "string", "examples": known},
        "uniqueItems": true,
        "allOf": needed.map(|column| json!({"contains": {"const": column}})),
    })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    #[test]
    fn the_committed_schemas_are_those_of_the_types() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("json");
        let renews = std::env::var_os("UPDATE_SCHEMAS").is_some();
        let mut names = BTreeSet::new();
        for NamedSchema { name, schema, .. } in json_schemas() {
            let path = folder.join(format!("{name}.json"));
            let text = format!("{schema:#}\n");
            if renews {
                fs::create_dir_all(&folder).unwrap();
                fs::write(&path, &text).unwrap();
            }
            let committed = fs::read_to_string(&path).unwrap_or_default();
            let hint = "UPDATE_SCHEMAS=1 cargo test -p model-analyze-schema renews them";
            assert!(committed == text, "schema/json/{name}.json is not that of its type; {hint}");
            assert!(names.insert(format!("{name}.json")), "{name} is there twice");
        }
        let found: BTreeSet<String> = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        assert_eq!(found, names);
    }

    #[test]
    fn every_schema_says_what_it_is() {
        for NamedSchema { name, about, schema } in json_schemas() {
            assert!(!about.is_empty() && schema["title"].is_string(), "{name}");
            assert!(schema["description"].is_string(), "{name}");
            if name.starts_with("answer-") {
                assert!(schema["properties"]["schema_version"].is_object(), "{name} has no version");
            }
        }
    }
}
