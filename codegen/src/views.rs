//! Which operators return views.
//!
//! Results of unknown operators of other name spaces are assumed to alias all operands.

use operators::{Mark, Memory, OperatorClass, ShapeRule, find, has};
use tracer::{Node, Operand};

use crate::nodes::{INNER, OUTER, is_in_place, rule_of, split};

/// Tells whether the result of an operator of this name may share memory with its first argument.
pub fn may_share(name: &str) -> bool {
    find(name).is_some_and(|row| row.memory != Memory::Fresh)
}

/// Tells whether the results may share memory with the operands.
pub fn is_view(node: &Node) -> bool {
    let (space, name) = split(&node.operator);
    match space {
        // Two or more tensors are multiplied.
        "aten" if rule_of(name) == ShapeRule::Einsum => {
            !matches!(node.arguments.get(1).map(|a| &a.operand), Some(Operand::List(items)) if items.len() > 1)
        }
        "aten" => may_share(name) || is_in_place(name),
        "prim" => !matches!(
            rule_of(name),
            ShapeRule::ToTensor | ShapeRule::DeviceOf | ShapeRule::TypeOf | ShapeRule::Size
        ),
        "torchvision" => false,
        // On one device an exchange does nothing.
        INNER | OUTER => {
            !find(name).is_some_and(|row| matches!(row.class, OperatorClass::Norm | OperatorClass::Embedding))
        }
        _ => true,
    }
}

/// Tells whether all operands may be aliased, not only the first.
pub fn is_wide_view(node: &Node) -> bool {
    let (space, name) = split(&node.operator);
    match space {
        "aten" => has(name, Mark::AliasesAll),
        "torchvision" | INNER | OUTER => false,
        _ => is_view(node),
    }
}

/// Tells whether layout and type decide if an operator returns a view of its first argument or a copy.
pub fn may_copy(node: &Node) -> bool {
    let (space, name) = split(&node.operator);
    space == "aten" && find(name).is_some_and(|row| row.memory == Memory::MayView)
}
