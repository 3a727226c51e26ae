//! What Python calls an operator's arguments.

use tracer::{Argument, Constant, Operand};

/// Arguments of `aten::tensor` that Python takes by name alone.
const TENSOR: [Option<&str>; 4] = [None, Some("dtype"), Some("device"), Some("requires_grad")];

/// Returns the name that Python is given for an argument: the trace's own, or that of an argument without a place in Python.
pub(crate) fn keyword<'n>(name: &str, index: usize, argument: &'n Argument) -> Option<&'n str> {
    let is_format = || matches!(argument.operand, Operand::Constant(Constant::Int(_) | Constant::None));
    let implied = match name {
        "tensor" => TENSOR.get(index).copied().flatten(),
        "to" if index >= 4 && is_format() => Some("memory_format"),
        _ => None,
    };
    argument.name.as_deref().or(implied)
}
