//! Words of TorchScript in archives, which is Python with types, and the corresponding operators.

/// Returns the qualified operator of a built-in function: `int` is `aten::Int`.
pub fn built_in(function: &str) -> Option<&'static str> {
    Some(match function {
        "int" => "aten::Int",
        "float" => "aten::Float",
        "bool" => "aten::Bool",
        "complex" => "aten::Complex",
        "str" => "aten::str",
        "sorted" => "aten::sorted",
        "len" => "aten::len",
        "print" => "prim::Print",
        "isinstance" => "prim::isinstance",
        "uninitialized" => "prim::Uninitialized",
        "fork" => "prim::fork",
        "range" => "aten::__range_length",
        _ => return None,
    })
}

/// Returns the qualified operator that converts a tensor to a number for an annotation.
pub fn implicit_conversion(type_: &str) -> Option<&'static str> {
    Some(match type_ {
        "int" => "aten::IntImplicit",
        "float" => "aten::FloatImplicit",
        "complex" => "aten::ComplexImplicit",
        "number" | "Scalar" => "aten::ScalarImplicit",
        _ => return None,
    })
}

/// Tells whether an operator, by its name without name space, changes the list or dictionary that is its first operand.
pub fn changes_container(name: &str) -> bool {
    matches!(
        name,
        "append"
            | "extend"
            | "insert"
            | "pop"
            | "_set_item"
            | "clear"
            | "reverse"
            | "sort"
            | "remove"
            | "Delete"
            | "update"
            | "setdefault"
            | "popitem"
    )
}

/// Tells whether the result of an operator, by its name without name space, may be `None` although code declares a
/// tensor.
pub fn may_give_none(name: &str) -> bool {
    matches!(name, "__getitem__" | "get" | "pop" | "popitem" | "setdefault" | "grad")
}
