//! The parser's own error: the furthest place reached and what was expected there.

use nom::error::{ContextError, ErrorKind, ParseError};

/// The error type for nom; [`IrError`](super::IrError) is made of it at the end.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault<'a> {
    /// The text from the fault on.
    pub rest: &'a str,
    /// The expectation; empty where only nom knows it.
    pub expected: &'static str,
}

impl<'a> Fault<'a> {
    /// Makes a fault at the beginning of `rest`.
    pub fn new(rest: &'a str, expected: &'static str) -> Self {
        Self { rest, expected }
    }
}

impl<'a> ParseError<&'a str> for Fault<'a> {
    fn from_error_kind(rest: &'a str, _: ErrorKind) -> Self {
        Self { rest, expected: "" }
    }

    fn append(_: &'a str, _: ErrorKind, other: Self) -> Self {
        other
    }

    fn or(self, other: Self) -> Self {
        if other.rest.len() < self.rest.len() { other } else { self }
    }
}

impl<'a> ContextError<&'a str> for Fault<'a> {
    fn add_context(rest: &'a str, expected: &'static str, other: Self) -> Self {
        // The innermost name wins unless the fault lies where the outer rule began.
        if other.expected.is_empty() || other.rest.len() == rest.len() {
            Self { rest: other.rest, expected }
        } else {
            other
        }
    }
}
