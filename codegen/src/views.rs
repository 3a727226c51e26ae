//! Which operators return views.
//!
//! For unknown operators of other name spaces the worst is assumed: their results may alias all operands.

use operators::{Mark, Memory, OperatorClass, ShapeRule, find, has};
use tracer::{Node, Operand};

use crate::nodes::{is_in_place, rule_of, split};

/// Tells whether the result of an operator of this name may share memory with its first argument.
pub fn may_share(name: &str) -> bool {
    find(name).is_some_and(|row| row.memory != Memory::Fresh)
}

/// Tells whether the results may share memory with what is read.
pub fn is_view(node: &Node) -> bool {
    let (space, name) = split(&node.operator);
    match space {
        // Two tensors or more are multiplied.
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
        "shard" => {
            !find(name).is_some_and(|row| matches!(row.class, OperatorClass::Norm | OperatorClass::Embedding))
        }
        _ => true,
    }
}

/// Tells whether all that is read may be aliased, not the first argument alone.
pub fn is_wide_view(node: &Node) -> bool {
    let (space, name) = split(&node.operator);
    match space {
        "aten" => has(name, Mark::AliasesAll),
        "torchvision" | "shard" => false,
        _ => is_view(node),
    }
}

/// Tells whether it depends on layout and type if an operator returns a view of its first argument or a copy.
pub fn may_copy(node: &Node) -> bool {
    let (space, name) = split(&node.operator);
    space == "aten" && find(name).is_some_and(|row| row.memory == Memory::MayView)
}
