//! Errors of a trace or its inputs.

use tracer::{DType, SizeFault, Span};

use crate::OperatorId;

/// Every problem found; at least one.
#[derive(Clone, Debug, PartialEq)]
pub struct BuildErrors(pub Vec<BuildError>);

/// One problem.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BuildError {
    /// Inputs without sizes.
    #[error("the shape of {} is unknown", inputs_named(missing))]
    NoShape {
        /// Inputs that need one.
        missing: Vec<String>,
        /// All inputs in order.
        inputs: Vec<String>,
        /// Their dtypes, as far as declared.
        dtypes: Vec<Option<DType>>,
    },
    /// A shape for an unknown input.
    #[error("the model has no input `{name}`; its inputs are {}", list(inputs))]
    NoSuchInput {
        /// The name.
        name: String,
        /// All inputs in order.
        inputs: Vec<String>,
    },
    /// Two shapes for one input.
    #[error("input `{name}` is given twice")]
    InputTwice {
        /// The name.
        name: String,
    },
    /// More shapes than inputs.
    #[error("{}", too_many(*n_given, inputs, others))]
    TooManyInputs {
        /// The number of given shapes.
        n_given: usize,
        /// Inputs that take a tensor, in order.
        inputs: Vec<String>,
        /// Inputs other than tensors, with their types.
        others: Vec<(String, &'static str)>,
    },
    /// A shape for an input that is not a tensor.
    #[error("input `{name}` has no shape: it is {kind}")]
    NoTensor {
        /// Its name.
        name: String,
        /// Its type.
        kind: &'static str,
    },
    /// Sizes that an exported program does not support.
    #[error("{fault}")]
    Size {
        /// The size, and the supported ones.
        fault: SizeFault,
    },
    /// An operator rejects its operands.
    #[error("`{name}` in {} rejects its inputs: {reason} (given {})", place(path), shapes.join(", "))]
    Rejected {
        /// The operator.
        operator: OperatorId,
        /// Its name.
        name: String,
        /// Path of its block.
        path: String,
        /// Types of its tensors.
        shapes: Vec<String>,
        /// Why.
        reason: String,
        /// Its source location.
        span: Span,
    },
    /// The trace contradicts itself.
    #[error("the trace contradicts itself: {fault}")]
    Program {
        /// The mismatch.
        fault: String,
    },
}

impl std::fmt::Display for BuildErrors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (position, error) in self.0.iter().enumerate() {
            if position > 0 {
                f.write_str("; ")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for BuildErrors {}

fn inputs_named(names: &[String]) -> String {
    match names {
        [one] => format!("input `{one}`"),
        names => format!("inputs {}", list(names)),
    }
}

fn too_many(n_given: usize, inputs: &[String], others: &[(String, &'static str)]) -> String {
    let given =
        if n_given == 1 { "1 shape is given".to_string() } else { format!("{n_given} shapes are given") };
    let others: Vec<String> = others.iter().map(|(name, kind)| format!("`{name}` is {kind}")).collect();
    match (inputs, others.as_slice()) {
        ([], []) => format!("{given}, but the model has no inputs"),
        ([], others) => format!("{given}, but no input has one: {}", others.join(", ")),
        (inputs, []) => format!("{given}, the model takes {}: {}", inputs.len(), list(inputs)),
        (inputs, others) => {
            format!("{given}, the model takes {}: {}; {}", inputs.len(), list(inputs), others.join(", "))
        }
    }
}

fn list(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}

fn place(path: &str) -> String {
    match path {
        "" => "the root".to_string(),
        path => format!("`{path}`"),
    }
}
