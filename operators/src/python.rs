//! Differences between Python and a trace: symbols and functions for operators, and arguments that Python only takes by
//! name.

use crate::built_in;

/// The operator of a unary minus.
pub const NEGATION: &str = "aten::neg";
/// The operator of a slice in brackets: `x[:, 2:5]`.
pub const SLICE: &str = "aten::slice";

/// Returns the qualified operator of a Python function: `abs` is `prim::abs`.
pub fn python_function(name: &str) -> Option<&'static str> {
    match name {
        "int" | "bool" | "float" | "len" => built_in(name),
        "sum" => Some("aten::sum"),
        "any" => Some("aten::any"),
        "all" => Some("aten::all"),
        "abs" => Some("prim::abs"),
        _ => None,
    }
}

/// Returns the qualified operator of a tensor attribute.
pub fn python_attribute(name: &str) -> Option<&'static str> {
    match name {
        "dtype" => Some("prim::dtype"),
        "device" => Some("prim::device"),
        "layout" => Some("prim::layout"),
        _ => None,
    }
}

/// Returns the name of an argument that Python only takes by name, and a trace may have by position. For `to` that is
/// the memory format, from its fourth position on: the caller knows whether the argument is one.
pub fn keyword_only(name: &str, position: usize) -> Option<&'static str> {
    match (name, position) {
        ("tensor", 1) => Some("dtype"),
        ("tensor", 2) => Some("device"),
        ("tensor", 3) => Some("requires_grad"),
        ("to", 4..) => Some("memory_format"),
        _ => None,
    }
}

/// Tells whether an integer argument by position is torch's code of a data type. `is_number` tells whether other
/// positions hold an integer.
pub fn is_dtype_position(name: &str, position: usize, is_number: impl Fn(usize) -> bool) -> bool {
    match name {
        "softmax" | "log_softmax" => position == 2,
        "to" => position == 1 || (position == 2 && !is_number(1)),
        _ => false,
    }
}
