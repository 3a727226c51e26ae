//! What Python says otherwise than a trace: signs and functions that mean an operator, and arguments that it takes by name alone.

use crate::built_in;

/// The operator that a minus before an operand means.
pub const NEGATION: &str = "aten::neg";
/// The operator that bounds in brackets mean: `x[:, 2:5]`.
pub const SLICE: &str = "aten::slice";

/// Returns the qualified operator behind a function of Python: `abs` is `prim::abs`.
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

/// Returns the qualified operator that an attribute of a tensor means.
pub fn python_attribute(name: &str) -> Option<&'static str> {
    match name {
        "dtype" => Some("prim::dtype"),
        "device" => Some("prim::device"),
        "layout" => Some("prim::layout"),
        _ => None,
    }
}

/// Returns the name of an argument that Python takes by name alone, and a trace may give by position. Of `to` that is the memory
/// format, from its fourth position on: whoever asks knows whether the argument is one.
pub fn keyword_only(name: &str, position: usize) -> Option<&'static str> {
    match (name, position) {
        ("tensor", 1) => Some("dtype"),
        ("tensor", 2) => Some("device"),
        ("tensor", 3) => Some("requires_grad"),
        ("to", 4..) => Some("memory_format"),
        _ => None,
    }
}

/// Tells whether an integer that a trace gives by position is torch's number of a data type. `is_number` tells of other positions
/// whether they hold an integer.
pub fn is_dtype_position(name: &str, position: usize, is_number: impl Fn(usize) -> bool) -> bool {
    match name {
        "softmax" | "log_softmax" => position == 2,
        "to" => position == 1 || (position == 2 && !is_number(1)),
        _ => false,
    }
}
