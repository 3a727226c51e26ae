//! How operators are spelled in Python.
//!
//! Everything can be spelled `torch.ops.aten.NAME(…)` with the trace's own arguments. What has a public spelling with the same
//! arguments in the same order gets that: it reads better and is called faster. The lists hold only names that were
//! checked against torch 2.11; `torch.einsum`, `torch.norm` and others are left out because their Python
//! wrappers may choose another way to compute.

/// `torch.NAME`, with the operator's arguments.
const TORCH: &[&str] = &[
    "abs", "acos", "adaptive_avg_pool1d", "add", "addbmm", "addcdiv", "addcmul", "addmm", "addmv", "all", "amax", "amin",
    "any", "arange", "argmax", "argmin", "argsort", "asin", "atan", "atan2", "avg_pool1d", "baddbmm", "batch_norm", "bernoulli",
    "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "bmm", "cat", "ceil", "celu", "channel_shuffle", "chunk",
    "clamp", "clamp_max", "clamp_min", "clone", "complex", "concat", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
    "conv_transpose2d", "conv_transpose3d", "cos", "cosh", "count_nonzero", "cross", "cummax", "cummin", "cumprod", "cumsum",
    "detach", "diag", "diag_embed", "diagonal", "diff", "div", "divide", "dot", "dropout", "embedding", "empty", "empty_like",
    "eq", "erf", "erfc", "exp", "exp2", "expm1", "eye", "feature_alpha_dropout", "feature_dropout", "flatten", "flip", "floor",
    "floor_divide", "fmod", "frac", "full", "full_like", "gather", "ge", "group_norm", "gru", "gt", "histc", "hstack", "imag",
    "index_add", "index_fill", "index_select", "instance_norm", "isfinite", "isinf", "isnan", "kron", "layer_norm", "le",
    "lerp", "linspace", "log", "log10", "log1p", "log2", "log_softmax", "logaddexp", "logical_and", "logical_not",
    "logical_or", "logical_xor", "logsumexp", "lstm", "lt", "masked_fill", "masked_scatter", "masked_select", "matmul", "max",
    "max_pool1d", "max_pool2d", "max_pool3d", "maximum", "mean", "median", "min", "minimum", "mm", "movedim", "mul", "multiply",
    "mv", "nan_to_num", "narrow", "native_layer_norm", "ne", "neg", "nonzero", "numel", "ones", "ones_like", "outer", "permute",
    "pixel_shuffle", "pixel_unshuffle", "polar", "pow", "prelu", "prod", "rand", "rand_like", "randint", "randn", "randn_like",
    "randperm", "real", "reciprocal", "relu", "relu_", "remainder", "repeat_interleave", "reshape", "rnn_relu", "rnn_tanh",
    "roll", "round", "rsqrt", "rsub", "scalar_tensor", "scatter", "scatter_add", "select", "selu", "sigmoid", "sign", "sin",
    "sinh", "softmax", "sort", "split_with_sizes", "sqrt", "square", "squeeze", "stack", "std", "sub", "subtract", "sum",
    "swapaxes", "t", "tan", "tanh", "threshold", "tile", "topk", "transpose", "tril", "triu", "true_divide", "trunc",
    "unbind", "unflatten", "unsqueeze", "var", "view_as_complex", "view_as_real", "vstack", "where", "zeros", "zeros_like",
];

/// `tensor.NAME`, with the operator's other arguments.
const METHODS: &[&str] = &[
    "add_", "addcdiv_", "addcmul_", "addmm_", "bitwise_and_", "bitwise_or_", "clamp_", "clamp_max_", "clamp_min_", "contiguous",
    "copy_", "cumsum_", "dim", "div_", "exp_", "expand", "expand_as", "fill_", "floor_divide_", "index_add_", "index_copy_",
    "index_fill_", "lerp_", "logical_and_", "logical_not_", "logical_or_", "masked_fill_", "masked_scatter_", "mul_", "neg_",
    "new_empty", "new_full", "new_ones", "new_zeros", "pow_", "repeat", "reshape_as", "scatter_", "scatter_add_", "sigmoid_", "split",
    "sqrt_", "squeeze_", "sub_", "t_", "tanh_", "to", "transpose_", "tril_", "triu_", "type_as", "unfold", "unsqueeze_", "view",
    "view_as", "zero_",
];

/// `F.NAME`, with the operator's arguments.
const FUNCTIONAL: &[&str] = &[
    "adaptive_avg_pool2d", "adaptive_avg_pool3d", "avg_pool2d", "avg_pool3d", "elu", "gelu", "glu", "hardsigmoid", "hardswish",
    "hardtanh", "hardtanh_", "leaky_relu", "linear", "mish", "one_hot", "pad", "scaled_dot_product_attention", "silu",
    "softplus", "softshrink",
];

/// Names that mean something else as a Python attribute of `torch.ops.aten`, or nothing.
pub(crate) enum Spelling {
    /// `torch.relu`.
    Torch(String),
    /// `x.view`.
    Method(String),
    /// `F.gelu`.
    Functional(String),
    /// `torch.ops.aten.name`.
    Operator(String),
}

/// Returns the spelling of an operator by its name space and name.
pub(crate) fn spelling(space: &str, name: &str) -> Spelling {
    match space {
        "aten" if TORCH.contains(&name) => Spelling::Torch(format!("torch.{name}")),
        "aten" if METHODS.contains(&name) => Spelling::Method(name.to_string()),
        "aten" if FUNCTIONAL.contains(&name) => Spelling::Functional(format!("F.{name}")),
        _ => Spelling::Operator(format!("torch.ops.{space}.{name}")),
    }
}

/// Returns `torch.float32` for torch's number of a type.
pub(crate) fn dtype_of_code(code: i64) -> Option<&'static str> {
    Some(match code {
        0 => "torch.uint8",
        1 => "torch.int8",
        2 => "torch.int16",
        3 => "torch.int32",
        4 => "torch.int64",
        5 => "torch.float16",
        6 => "torch.float32",
        7 => "torch.float64",
        9 => "torch.complex64",
        10 => "torch.complex128",
        11 => "torch.bool",
        15 => "torch.bfloat16",
        23 => "torch.float8_e5m2",
        24 => "torch.float8_e4m3fn",
        _ => return None,
    })
}

/// Returns `torch.channels_last` for torch's number of a memory format.
pub(crate) fn memory_format(code: i64) -> Option<&'static str> {
    Some(match code {
        0 => "torch.contiguous_format",
        1 => "torch.preserve_format",
        2 => "torch.channels_last",
        3 => "torch.channels_last_3d",
        _ => return None,
    })
}

/// Returns `torch.float32` for a stored type.
pub(crate) fn dtype(dtype: tracer::DType) -> &'static str {
    use tracer::DType;
    match dtype {
        DType::Float64 => "torch.float64",
        DType::Float32 => "torch.float32",
        DType::Float16 => "torch.float16",
        DType::BFloat16 => "torch.bfloat16",
        DType::Int64 => "torch.int64",
        DType::Int32 => "torch.int32",
        DType::Int16 => "torch.int16",
        DType::Int8 => "torch.int8",
        DType::UInt8 => "torch.uint8",
        DType::UInt16 => "torch.uint16",
        DType::UInt32 => "torch.uint32",
        DType::UInt64 => "torch.uint64",
        DType::Bool => "torch.bool",
        DType::Complex64 => "torch.complex64",
        DType::Complex128 => "torch.complex128",
        DType::Float8E4M3 => "torch.float8_e4m3fn",
        DType::Float8E5M2 => "torch.float8_e5m2",
    }
}
