//! `TraceError`: everything that can be wrong with a trace, with its place.
//!
//! Kind and place are separate: a fault in code carries the text it stands in, because the program that
//! would have held the text is never built.

use std::ops::Range;

use thiserror::Error;

use crate::program::Source;

/// Why a trace could not be read.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum TraceError {
    /// Nothing in the file.
    #[error("the file is empty")]
    Empty,
    /// A file of another kind.
    #[error("expected a TorchScript archive, found {found}")]
    NotArchive {
        /// The kind of file that it is.
        found: &'static str,
        /// Advice.
        advice: &'static str,
    },
    /// A zip directory that cannot be followed.
    #[error("the zip archive is damaged: {reason}")]
    Zip {
        /// The fault.
        reason: String,
    },
    /// A record that cannot be read.
    #[error("record `{record}`: {reason}")]
    Record {
        /// Its name.
        record: String,
        /// The fault.
        reason: String,
    },
    /// A record that something refers to is absent.
    #[error("record `{record}` is missing from the archive")]
    MissingRecord {
        /// Its name.
        record: String,
    },
    /// A record, or all of them, beyond what a trace can need.
    #[error("record `{record}` unpacks to {size} bytes, more than the limit of {limit}")]
    TooLarge {
        /// Its name.
        record: String,
        /// Its size, declared or found.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// A format version that we do not know.
    #[error("archive format version {found} is not supported, the newest known is {newest}")]
    Version {
        /// The value in the archive.
        found: String,
        /// The newest known.
        newest: u32,
    },
    /// A pickle that is damaged or wants more than data.
    #[error("pickle `{record}` at byte {offset}: {fault}")]
    Pickle {
        /// Record name.
        record: String,
        /// The position in the record.
        offset: usize,
        /// The fault.
        fault: PickleFault,
    },
    /// A stored object that is not what a module needs.
    #[error("{}: {reason}", if path.is_empty() { "the root module".to_owned() } else { format!("`{path}`") })]
    Object {
        /// Path of the attribute from the root.
        path: String,
        /// The fault.
        reason: String,
    },
    /// A module that was traced by other methods.
    #[error("the model has no method `forward`, only {methods}")]
    NoForward {
        /// The methods it has.
        methods: String,
    },
    /// A program of torch.export that says what is not known, or not read.
    #[error("the exported program cannot be read: {reason}")]
    Export {
        /// The fault.
        reason: String,
    },
    /// Code that does not parse.
    #[error("expected {expected}, found {found}")]
    Syntax {
        /// Where.
        place: SourceRange,
        /// The expectation of the grammar.
        expected: &'static str,
        /// The text that was found.
        found: String,
    },
    /// Code that parses but cannot be followed.
    #[error("{reason}")]
    Code {
        /// Where.
        place: SourceRange,
        /// The fault.
        reason: String,
    },
    /// Code that is nested deeper than it is followed.
    #[error("{what} are nested more than {limit} deep")]
    TooDeep {
        /// Where.
        place: SourceRange,
        /// The nested construct.
        what: &'static str,
        /// The limit of depth.
        limit: usize,
    },
    /// More of something than any trace has.
    #[error("{what} exceed the limit of {limit}")]
    Limit {
        /// The limited quantity.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
}

/// A fault of a pickle.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum PickleFault {
    #[error("foreign class `{0}` is refused")]
    ForeignClass(String),
    #[error("it holds a {kind} tensor, and those cannot be read")]
    TensorKind { kind: &'static str },
    #[error("opcode {name} (0x{code:02x}) is refused")]
    ForeignOpcode { name: &'static str, code: u8 },
    #[error("unknown element type `{0}`")]
    UnknownDType(String),
    #[error("the record ends inside an instruction")]
    Truncated,
    #[error("{0}")]
    Malformed(String),
}

/// A range of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceRange {
    /// The text, whole.
    pub source: Box<Source>,
    /// Bytes of it.
    pub range: Range<usize>,
}

impl SourceRange {
    /// Returns line and column, both from 1; the column counts characters.
    pub fn line_and_column(&self) -> (usize, usize) {
        let before = self.source.text.get(..self.range.start).unwrap_or(&self.source.text);
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        (self.source.line(self.range.start), column)
    }
}

impl TraceError {
    /// Returns the text and range that a fault in code points at.
    pub fn place(&self) -> Option<&SourceRange> {
        match self {
            TraceError::Syntax { place, .. }
            | TraceError::Code { place, .. }
            | TraceError::TooDeep { place, .. } => Some(place),
            _ => None,
        }
    }

    /// Returns what the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            TraceError::Export { .. } => Some(
                "programs of torch.export.save are read, of torch 2.6 to 2.15; `model-analyze trace` reads the model itself",
            ),
            TraceError::Empty => Some("the file may not have been written to the end; save the trace again"),
            TraceError::NotArchive { advice, .. } => Some(advice),
            TraceError::Zip { .. } | TraceError::MissingRecord { .. } | TraceError::Record { .. } => {
                Some("the file may be cut off or changed; save the trace again with torch.jit.save")
            }
            TraceError::Pickle {
                fault: PickleFault::ForeignClass(_) | PickleFault::ForeignOpcode { .. },
                ..
            } => Some("pickles are read, never executed; only what torch.jit.save writes is accepted"),
            TraceError::Pickle { fault: PickleFault::TensorKind { kind: "quantized" }, .. } => {
                Some("trace the model before it is quantized")
            }
            TraceError::Pickle { fault: PickleFault::TensorKind { .. }, .. } => {
                Some("make its parameters and buffers dense before tracing, with to_dense()")
            }
            TraceError::Pickle { .. } => {
                Some("the file may be cut off or changed; save the trace again with torch.jit.save")
            }
            TraceError::TooLarge { .. } | TraceError::Limit { .. } => Some(
                "no trace needs as much, so the file was not read further; trace the model itself, in parts if it is that large",
            ),
            TraceError::TooDeep { .. } => {
                Some("real models stay far below; trace a part of the model, or one that is less nested")
            }
            TraceError::Version { .. } => Some("save the trace again with a torch that this program knows"),
            TraceError::NoForward { .. } => Some(
                "trace the module itself, or name \"forward\" among the methods given to torch.jit.trace_module",
            ),
            TraceError::Object { .. } => Some(
                "torch.jit.save writes modules as a tree with tensors of known kinds; save the trace again with it",
            ),
            TraceError::Syntax { .. } | TraceError::Code { .. } => {
                Some("torch.jit.save writes code that can be followed; was the archive changed since?")
            }
        }
    }
}
