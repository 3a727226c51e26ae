//! Reads `plan.yaml`: first only the header, to distinguish a later version from a broken file; then the body.

use serde::Deserialize;

use crate::{PLAN_VERSION, Plan, YamlError, from_yaml};

/// The first fields of every version.
#[derive(Deserialize)]
struct Header {
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    version: Option<u64>,
}

/// Why a text is not a plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanFileError {
    /// Not YAML, or not of this shape.
    #[error(transparent)]
    Yaml(#[from] YamlError),
    /// Another kind of file.
    #[error("the file is a `{0}`, not a plan")]
    Kind(String),
    /// Written for a later release.
    #[error("the plan has version {0}, the newest supported is {PLAN_VERSION}")]
    Version(u64),
    /// A field of the header is missing.
    #[error("a plan begins with `kind: plan` and `version: {PLAN_VERSION}`; `{0}` is missing")]
    Missing(&'static str),
}

/// Reads a plan.
///
/// # Errors
/// If the text is not YAML, another kind of file, of a later version, or not of this shape.
pub fn read_plan(text: &str) -> Result<Plan, PlanFileError> {
    let header: Header = from_yaml(text)?;
    match header.kind.as_deref() {
        Some("plan") => {}
        Some(kind) => return Err(PlanFileError::Kind(kind.chars().take(40).collect())),
        None => return Err(PlanFileError::Missing("kind")),
    }
    match header.version {
        Some(version) if (1..=u64::from(PLAN_VERSION)).contains(&version) => {}
        Some(version) => return Err(PlanFileError::Version(version)),
        None => return Err(PlanFileError::Missing("version")),
    }
    Ok(from_yaml(text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_read_before_the_body() {
        let check = |text: &str, expected: &str| {
            let error = read_plan(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        // Unknown fields of a later version are not an error.
        check("kind: plan\nversion: 7\nstages: {not: a list}\n", "has version 7, the newest supported is 1");
        check("kind: plan\nversion: 0\n", "has version 0, the newest supported is 1");
        check("kind: cluster\nversion: 1\n", "the file is a `cluster`, not a plan");
        check("kind: plan\n", "`version` is missing");
        check("stages: []\n", "`kind` is missing");
        check("kind: plan\nversion: 1\nwritten_by: me\n", "`model` is missing");
        check("kind: plan\nversion: one\n", "`version` is the text \"one\"; it must be");
        check("", "`kind` is missing");
        check("- 1\n", "the file holds a list");
    }
}
