//! YAML behind two functions.
//!
//! `serde_yaml` is frozen upstream; a successor is a change of this file only.

use serde::{Serialize, de::DeserializeOwned};

use crate::serde_words::in_file_words;

/// The most brackets that may be open at once: the reader takes time in proportion to their square.
const BRACKETS: usize = 1000;

/// Why a text is not the expected YAML.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct YamlError {
    /// The fault, with the path of the field if known.
    pub message: String,
    /// Line and column, counted from one, if known.
    pub place: Option<(usize, usize)>,
}

/// Reads a value.
///
/// # Errors
/// If the text is not YAML or not of this shape.
pub fn from_yaml<T: DeserializeOwned>(text: &str) -> Result<T, YamlError> {
    if let Some(place) = too_deep(text) {
        return Err(YamlError {
            message: format!("brackets are nested more than {BRACKETS} deep"),
            place: Some(place),
        });
    }
    serde_yaml::from_str(text).map_err(|error| {
        let said = error.to_string();
        let own = error.location().map(|at| (at.line(), at.column()));
        YamlError { place: place(text, &said).or(own), message: in_file_words(&said) }
    })
}

/// Returns the line and column at which too many brackets are open, wherever they stand.
fn too_deep(text: &str) -> Option<(usize, usize)> {
    let mut open = 0_usize;
    for (line, content) in text.lines().enumerate() {
        for (column, letter) in content.chars().enumerate() {
            match letter {
                '[' | '{' => open += 1,
                ']' | '}' => open = open.saturating_sub(1),
                _ => {}
            }
            if open > BRACKETS {
                return Some((line + 1, column + 1));
            }
        }
    }
    None
}

/// Returns a better place than where the reader stopped: the begin of an unclosed value, or a repeated field.
fn place(text: &str, said: &str) -> Option<(usize, usize)> {
    if let Some((_, name)) = said.split_once("duplicate field `") {
        // Fields of the file itself: those without indentation.
        let name = name.split('`').next()?;
        let is_field =
            |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with(':'));
        let mut lines = text.lines().enumerate().filter(|(_, line)| is_field(line));
        return lines.nth(1).map(|(line, _)| (line + 1, 1));
    }
    let begins = ["did not find expected ',' or", "could not find expected ':'"];
    if !begins.iter().any(|begin| said.starts_with(begin)) {
        return None;
    }
    let (line, column) = said.rsplit_once(" at line ")?.1.split_once(" column ")?;
    Some((line.parse().ok()?, column.parse().ok()?))
}

/// Writes a value.
///
/// # Panics
/// Never for the types of this crate: their keys are strings and their numbers finite or tagged.
pub fn to_yaml<T: Serialize>(value: &T) -> String {
    serde_yaml::to_string(value).expect("types of schema have string keys")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_brackets_are_refused_before_they_are_read() {
        let read = |text: &str| from_yaml::<Vec<u32>>(text).map_err(|error| (error.message, error.place));
        let deep = ("brackets are nested more than 1000 deep".to_string(), Some((2, 1001)));
        assert_eq!(read(&format!("# deep\n{}", "[".repeat(1_000_000))), Err(deep.clone()));
        assert_eq!(read(&format!("# deep\n{}", "{".repeat(1_000_000))), Err(deep));
        assert_eq!(read(&format!("[{}]", "1, ".repeat(100_000))).map(|all| all.len()), Ok(100_000));
    }
}
