//! Errors of an IR text.

use crate::Span;

/// Why an IR text cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IrError {
    /// The text breaks off or does not follow the grammar.
    #[error("expected {expected}, found {found}")]
    Syntax {
        /// The expectation.
        expected: String,
        /// The text that was found.
        found: String,
        /// Where.
        span: Span,
    },
    /// A value is used before anything makes it.
    #[error("value %{name} is used but nothing above makes it")]
    Undefined {
        /// The value's name.
        name: String,
        /// The use.
        span: Span,
    },
    /// A value is made twice.
    #[error("value %{name} is made twice")]
    Redefined {
        /// The value's name.
        name: String,
        /// The second definition.
        span: Span,
    },
    /// An operator has the wrong number of inputs, outputs or attributes.
    #[error("{kind} needs {expected}, found {found}")]
    Arity {
        /// The operator.
        kind: String,
        /// The required number.
        expected: String,
        /// The number that was found.
        found: String,
        /// Its location.
        span: Span,
    },
    /// The text is too long to point into.
    #[error("the text has {bytes} bytes, at most {limit} can be read")]
    TooLarge {
        /// Its length.
        bytes: usize,
        /// The largest length.
        limit: usize,
    },
    /// Module paths or lists are nested or repeated beyond reason.
    #[error("{what}: more than {limit}")]
    TooMuch {
        /// The limited quantity.
        what: String,
        /// The limit.
        limit: usize,
        /// Where.
        span: Span,
    },
}

impl IrError {
    /// Returns the place, where there is one.
    pub fn span(&self) -> Option<Span> {
        match self {
            IrError::Syntax { span, .. }
            | IrError::Undefined { span, .. }
            | IrError::Redefined { span, .. }
            | IrError::Arity { span, .. }
            | IrError::TooMuch { span, .. } => Some(*span),
            IrError::TooLarge { .. } => None,
        }
    }
}
