//! Operators with other names in graphs of torch.export than in TorchScript, or without a counterpart there.

/// Returns TorchScript's name of an operator on numbers, by its name in a graph of torch.export.
pub fn exported_number_operator(target: &str) -> Option<&'static str> {
    Some(match target {
        "_operator.add" => "aten::add",
        "_operator.sub" => "aten::sub",
        "_operator.mul" => "aten::mul",
        "_operator.floordiv" => "aten::floordiv",
        "_operator.truediv" => "aten::div",
        "_operator.mod" => "aten::remainder",
        "_operator.pow" => "aten::pow",
        "_operator.neg" => "aten::neg",
        "_operator.eq" => "aten::eq",
        "_operator.ne" => "aten::ne",
        "_operator.lt" => "aten::lt",
        "_operator.le" => "aten::le",
        "_operator.gt" => "aten::gt",
        "_operator.ge" => "aten::ge",
        "_operator.and_" => "aten::__and__",
        "_operator.or_" => "aten::__or__",
        "math.trunc" | "torch.sym_int" => "aten::Int",
        "math.floor" => "aten::floor",
        "math.ceil" => "aten::ceil",
        "torch.sym_float" => "aten::Float",
        "torch.sym_max" => "prim::max",
        "torch.sym_min" => "prim::min",
        "torch.sym_not" => "aten::__not__",
        "torch.sym_sqrt" | "torch._sym_sqrt" => "aten::sqrt",
        "torch.ops.aten.sym_size.int" => "aten::size",
        "torch.ops.aten.sym_stride.int" => "aten::stride",
        "torch.ops.aten.sym_numel.default" => "aten::numel",
        "torch.ops.aten._local_scalar_dense.default" => "aten::item",
        _ => return None,
    })
}

/// Tells whether an operator of torch.export is only a check without a result.
pub fn is_exported_check(target: &str) -> bool {
    let name = target.strip_prefix("torch.ops.aten.").and_then(|name| name.split('.').next());
    matches!(
        name,
        Some(
            "_assert_tensor_metadata"
                | "_assert_scalar"
                | "_assert_async"
                | "sym_constrain_range"
                | "sym_constrain_range_for_size"
        )
    )
}
