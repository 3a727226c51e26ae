//! Python's names of an operator's arguments.

use tracer::{Argument, Constant, Operand};

/// Its name in Python, and in traces.
pub(crate) const MEMORY_FORMAT: &str = "memory_format";

/// Returns the name under which Python passes an argument: the trace's own, or that of an argument without a position
/// in Python.
pub(crate) fn keyword<'n>(name: &str, index: usize, argument: &'n Argument) -> Option<&'n str> {
    let is_format = || matches!(argument.operand, Operand::Constant(Constant::Int(_) | Constant::None));
    let implied = operators::keyword_only(name, index);
    let is_possible = implied != Some(MEMORY_FORMAT) || is_format();
    argument.name.as_deref().or(implied.filter(|_| is_possible))
}
