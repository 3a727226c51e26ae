//! Faults of a profile graph, and their places.

use std::ops::Range;

/// Why a profile is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{place}: {fault}")]
pub struct ProfileGraphError {
    /// The fault.
    pub fault: ProfileGraphFault,
    /// Its place.
    pub place: ProfileGraphPlace,
}

/// The place of a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProfileGraphPlace {
    /// A line of text, counted from one, and the bytes within the whole text.
    Line(usize, Range<usize>),
    /// A field of a JSON document: `nodes[3].fpgaLatency`.
    Field(String),
    /// The file as a whole.
    File,
}

impl std::fmt::Display for ProfileGraphPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Line(number, _) => write!(f, "line {number}"),
            Self::Field(path) => f.write_str(path),
            Self::File => f.write_str("profile"),
        }
    }
}

/// A fault of a profile.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ProfileGraphFault {
    /// The file is empty.
    #[error("no nodes")]
    Empty,
    /// More nodes or edges than supported.
    #[error("more than {limit} {what}")]
    TooMany {
        /// `nodes` or `edges`.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// A line that is not of the expected form.
    #[error("expected {expected}, found `{found}`")]
    Syntax {
        /// The form.
        expected: &'static str,
        /// The found text.
        found: String,
    },
    /// The JSON itself, or a missing or mistyped field.
    #[error("{0}")]
    Json(String),
    /// A number that cannot be a measurement.
    #[error("`{field}` of {node} is {value}; {}", wanted(value))]
    BadNumber {
        /// Name of the field.
        field: &'static str,
        /// Node or edge.
        node: String,
        /// The number as written.
        value: String,
    },
    /// Two nodes of one name.
    #[error("node `{0}` is given twice")]
    Duplicate(String),
    /// Two edges between the same nodes.
    #[error("edge `{0}` to `{1}` is given twice")]
    DuplicateEdge(String, String),
    /// An edge to an unknown node.
    #[error("edge names node `{0}`, which is not in the profile")]
    UnknownNode(String),
    /// Not a DAG.
    #[error("the graph has a cycle: {}", .0.join(" → "))]
    Cycle(Vec<String>),
    /// Two models in one file.
    #[error("the graph is not connected: no path of edges joins `{0}` and `{1}`")]
    Disconnected(String, String),
    /// A limit out of range.
    #[error("`{field}` is {value}, which leaves nothing to plan with")]
    BadLimit {
        /// Name of the field.
        field: &'static str,
        /// The number as written.
        value: String,
    },
    /// A violated rule of the format.
    #[error("{0}")]
    Rule(String),
}

/// Shortens a piece of the input for a message.
pub(crate) fn excerpt(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_string(),
    }
}

/// Describes the requirement that a number violates by being invalid, negative, or too large.
fn wanted(value: &str) -> &'static str {
    match value.parse::<f64>() {
        Ok(number) if number >= 0.0 => "that is too large to be measured",
        _ => "it must be a number that is not negative",
    }
}
