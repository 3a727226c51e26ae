//! YAML behind two functions.
//!
//! `serde_yaml` is frozen upstream; a successor is a change of this file only.

use serde::{Serialize, de::DeserializeOwned};

/// Why a text is not the YAML that was asked for.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct YamlError {
    /// What is wrong, with the path of the field where known.
    pub message: String,
    /// Line and column, counted from one, where known.
    pub place: Option<(usize, usize)>,
}

/// Reads a value.
///
/// # Errors
/// When the text is no YAML or not of this shape.
pub fn from_yaml<T: DeserializeOwned>(text: &str) -> Result<T, YamlError> {
    serde_yaml::from_str(text).map_err(|error| YamlError {
        place: error.location().map(|at| (at.line(), at.column())),
        message: error.to_string(),
    })
}

/// Writes a value.
///
/// # Panics
/// Never for the types of this crate: their keys are strings and their numbers finite or tagged.
pub fn to_yaml<T: Serialize>(value: &T) -> String {
    serde_yaml::to_string(value).expect("types of schema have string keys")
}
