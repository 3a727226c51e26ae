//! Which operators look at another tensor's memory.
//!
//! Unknown operators of other name spaces are taken for the worst: they may alias all they read.

use tracer::{Node, Operand};

use crate::operators::{is_in_place, split};

/// Operators whose result shares memory with their first argument.
const VIEWS: &[&str] = &[
    "view",
    "expand",
    "expand_as",
    "slice",
    "select",
    "narrow",
    "transpose",
    "t",
    "permute",
    "squeeze",
    "unsqueeze",
    "unflatten",
    "chunk",
    "split",
    "split_with_sizes",
    "unbind",
    "view_as",
    "detach",
    "alias",
    "diagonal",
    "movedim",
    "moveaxis",
    "swapaxes",
    "swapdims",
    "numpy_T",
    "mT",
    "mH",
    "T",
    "H",
    "matrix_H",
    "adjoint",
    "real",
    "imag",
    "view_as_real",
    "view_as_complex",
    "unfold",
    "as_strided",
    "tensor_split",
    "hsplit",
    "vsplit",
    "dsplit",
    "broadcast_tensors",
    "broadcast_to",
    "meshgrid",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "positive",
    "conj",
    "lift_fresh",
    "__getitem__",
    "requires_grad_",
    "align_as",
    "data",
    "_unsafe_view",
    "_reshape_alias",
    "unsafe_chunk",
    "unsafe_split",
    "unsafe_split_with_sizes",
    "linalg_diagonal",
    "slice_inverse",
    "align_to",
    "rename",
    "refine_names",
    "indices",
    "values",
    "col_indices",
    "crow_indices",
    "ccol_indices",
    "row_indices",
    "_conj",
    "_neg_view",
    "_fw_primal",
    "_unpack_dual",
    "_ncf_view",
    "_ncf_unsqueeze",
];

/// Others whose result may: views or copies, as layout, type or mode have it.
const MAY_COPY: &[&str] = &[
    "reshape",
    "reshape_as",
    "contiguous",
    "to",
    "type_as",
    "flatten",
    "ravel",
    "dropout",
    "feature_dropout",
    "alpha_dropout",
    "feature_alpha_dropout",
    "native_dropout",
    "resolve_conj",
    "resolve_neg",
    "pixel_shuffle",
    "pixel_unshuffle",
    "float",
    "half",
    "double",
    "int",
    "long",
    "bool",
    "cpu",
    "cuda",
    "as_tensor",
    "pin_memory",
    "coalesce",
    "_autocast_to_full_precision",
    "_autocast_to_reduced_precision",
    "_grad_sum_to_size",
    // torch's signatures do not say it of these: what has the wanted size or type comes back as it is.
    "conj_physical",
    "sum_to_size",
    "cartesian_prod",
    "to_dense",
    "dequantize",
];

/// Tells whether the result of an operator of this name may share memory with its first argument.
pub fn may_share(name: &str) -> bool {
    VIEWS.contains(&name) || MAY_COPY.contains(&name)
}

/// Tells whether the results may share memory with what is read.
pub fn is_view(node: &Node) -> bool {
    let (space, name) = split(&node.operator);
    match space {
        // Two tensors or more are multiplied.
        "aten" if name == "einsum" => {
            !matches!(node.arguments.get(1).map(|a| &a.operand), Some(Operand::List(items)) if items.len() > 1)
        }
        "aten" => may_share(name) || is_in_place(name),
        "prim" => !matches!(name, "NumToTensor" | "device" | "dtype" | "shape"),
        "torchvision" => false,
        _ => true,
    }
}

/// Tells whether all that is read may be aliased, not the first argument alone.
pub fn is_wide_view(node: &Node) -> bool {
    let (space, name) = split(&node.operator);
    match space {
        "aten" => matches!(name, "broadcast_tensors" | "meshgrid" | "einsum" | "atleast_1d" | "__getitem__"),
        "torchvision" => false,
        _ => is_view(node),
    }
}

/// Tells whether an operator looks at its first argument or copies it, as layout and type have it.
pub fn may_copy(node: &Node) -> bool {
    let (space, name) = split(&node.operator);
    space == "aten" && MAY_COPY.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `(Tensor(a) self) -> Tensor(a)` is how torch's own signatures say that memory may be shared.
    #[test]
    fn what_torch_calls_a_view_is_one() {
        let signatures = include_str!("../../graph/src/signatures.txt");
        let names = signatures.lines().filter_map(|line| {
            let (call, result) = line.strip_prefix("aten::")?.split_once(") -> ")?;
            let is_shared = result.contains("Tensor(") && !result.contains('!');
            is_shared.then(|| call.split(['(', '.']).next()).flatten()
        });
        let names: Vec<&str> = names.collect();
        assert!(names.len() > 80, "{names:?}");
        let unknown: Vec<_> = names.iter().filter(|name| !may_share(name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}
