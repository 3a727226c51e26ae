//! What cutting must know of operators: which write in place, which are cheap and exact to repeat.
//!
//! Unknown operators are taken for the worst: they carry gradients and cost much.

use tracer::{Constant, Node, Operand, Program, Type, Value, ValueId};

use crate::views::may_share;

/// Splits `aten::conv2d` into name space and name.
pub fn split(operator: &str) -> (&str, &str) {
    operator.split_once("::").unwrap_or(("", operator))
}

/// Operators whose result never carries a gradient.
const CUT_GRADIENT: &[&str] = &[
    "size",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "logical_and",
    "logical_or",
    "logical_not",
    "logical_xor",
    "argmax",
    "argmin",
    "argsort",
    "arange",
    "zeros",
    "ones",
    "full",
    "empty",
    "zeros_like",
    "ones_like",
    "full_like",
    "empty_like",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_empty",
    "detach",
    "shape_as_tensor",
    "_shape_as_tensor",
    "bitwise_and",
    "bitwise_or",
    "bitwise_not",
    "bitwise_xor",
    "__and__",
    "__or__",
    "__xor__",
    "isnan",
    "isinf",
    "isfinite",
    "isin",
    "dim",
    "numel",
    "Int",
    "Bool",
    "IntImplicit",
    "ScalarImplicit",
    "FloatImplicit",
    "Float",
    "item",
    "NumToTensor",
    "any",
    "all",
    "floor_divide",
    "randperm",
    "eye",
    "linspace",
    "one_hot",
    "nonzero",
    "bincount",
    "scalar_tensor",
    "tril_indices",
    "triu_indices",
    "searchsorted",
    "bucketize",
    "is_floating_point",
    "len",
    "floordiv",
    "dtype",
    "device",
    "layout",
    "stride",
    "equal",
    "allclose",
    "count_nonzero",
];

/// Operators that are cheap, exact and without side effect: they may be repeated instead of sent.
const CHEAP: &[&str] = &[
    "add",
    "sub",
    "mul",
    "div",
    "rsub",
    "neg",
    "abs",
    "pow",
    "sqrt",
    "rsqrt",
    "exp",
    "log",
    "sin",
    "cos",
    "tanh",
    "sigmoid",
    "reciprocal",
    "square",
    "floor",
    "ceil",
    "round",
    "trunc",
    "remainder",
    "fmod",
    "clamp",
    "clamp_min",
    "clamp_max",
    "minimum",
    "maximum",
    "where",
    "masked_fill",
    "cumsum",
    "diff",
    "tril",
    "triu",
    "cat",
    "stack",
    "repeat",
    "repeat_interleave",
    "tile",
    "index",
    "index_select",
    "gather",
    "clone",
    "sum",
    "mean",
    "max",
    "min",
    "amax",
    "amin",
    "outer",
    "sign",
    "fill",
    "meshgrid",
    "broadcast_tensors",
    "log2",
    "true_divide",
    "divide",
    "multiply",
    "subtract",
    "flip",
    "roll",
    "pad",
    "constant_pad_nd",
    "ge",
    "view",
    "matmul",
    "bmm",
    "einsum",
    "mm",
    "rms_norm",
    "prod",
    "copy",
    "alias",
    "tensor",
    "polar",
    "complex",
    "ListUnpack",
    "TupleUnpack",
    "TupleIndex",
    "__getitem__",
    "atan",
    "asin",
    "acos",
    "scatter",
    "masked_select",
    "full",
];

/// Operators that draw random numbers, though their names are in the lists above under other circumstances.
const RANDOM: &[&str] = &[
    "rand",
    "randn",
    "randint",
    "rand_like",
    "randn_like",
    "randint_like",
    "randperm",
    "bernoulli",
    "normal",
    "multinomial",
    "poisson",
    "dropout",
    "feature_dropout",
    "alpha_dropout",
    "feature_alpha_dropout",
    "native_dropout",
    "rrelu",
];

/// Operators whose result holds what was in memory.
const UNSET: &[&str] = &["empty", "empty_like", "new_empty", "empty_strided"];

/// In-place operators with an out-of-place form that takes the same arguments and gives the same numbers.
const OUT_OF_PLACE: &[&str] = &[
    "relu_",
    "add_",
    "sub_",
    "mul_",
    "div_",
    "hardtanh_",
    "relu6_",
    "silu_",
    "hardswish_",
    "hardsigmoid_",
    "leaky_relu_",
    "elu_",
    "celu_",
    "selu_",
    "sigmoid_",
    "tanh_",
    "dropout_",
    "feature_dropout_",
    "masked_fill_",
    "clamp_",
    "clamp_min_",
    "clamp_max_",
    "exp_",
    "neg_",
    "sqrt_",
    "rsqrt_",
    "abs_",
    "gelu_",
    "mish_",
    "pow_",
    "squeeze_",
    "unsqueeze_",
    "transpose_",
    "t_",
    "addcmul_",
    "addcdiv_",
    "lerp_",
    "floor_",
    "ceil_",
    "round_",
    "index_put_",
    "index_fill_",
    "index_add_",
    "scatter_",
    "scatter_add_",
    "cumsum_",
    "tril_",
    "triu_",
    "threshold_",
    "alpha_dropout_",
    "feature_alpha_dropout_",
    "log_",
    "sin_",
    "cos_",
    "reciprocal_",
    "square_",
    "logical_not_",
];

/// Tells whether an operator draws random numbers.
pub fn draws(node: &Node) -> bool {
    let (space, name) = split(&node.operator);
    let in_evaluation = || {
        let flag = node.arguments.get(2).map(|argument| &argument.operand);
        name.ends_with("dropout") && matches!(flag, Some(Operand::Constant(Constant::Bool(false))))
    };
    space == "aten" && RANDOM.contains(&name) && !in_evaluation()
}

/// Tells whether a name is that of an operator that changes the elements of its first argument.
pub fn is_in_place(name: &str) -> bool {
    // `requires_grad_` changes none.
    (tracer::is_in_place(name) && name != "requires_grad_")
        || matches!(name, "append" | "_set_item" | "insert" | "extend")
}

/// Returns the positions of the arguments that a node writes to.
pub fn mutated_arguments(node: &Node) -> Vec<usize> {
    let (space, name) = split(&node.operator);
    if space == "prim" {
        return node.changes.iter().map(|index| *index as usize).collect();
    }
    let mut mutated = Vec::new();
    if is_in_place(name) {
        mutated.push(0);
    }
    for (index, argument) in node.arguments.iter().enumerate() {
        if argument.name.as_deref() == Some("out") {
            mutated.push(index);
        }
    }
    let is_true = |index: usize| {
        let operand = node.arguments.get(index).map(|a| &a.operand);
        operand == Some(&Operand::Constant(Constant::Bool(true)))
    };
    // (input, weight, bias, running_mean, running_var, training, …)
    if matches!(name, "batch_norm" | "instance_norm" | "native_batch_norm" | "cudnn_batch_norm") && is_true(5)
    {
        mutated.extend([3, 4]);
    }
    mutated.retain(|&index| index < node.arguments.len());
    mutated
}

/// Returns the out-of-place form of an in-place operator, where one takes the same arguments.
pub fn out_of_place(operator: &str) -> Option<String> {
    let (space, name) = split(operator);
    (space == "aten" && OUT_OF_PLACE.contains(&name)).then(|| operator.trim_end_matches('_').to_string())
}

/// Tells whether a node may be repeated in another stage instead of sending what it makes.
pub fn is_cheap(node: &Node) -> bool {
    let (space, name) = split(&node.operator);
    let known = matches!(space, "aten" | "prim")
        && (CHEAP.contains(&name) || CUT_GRADIENT.contains(&name) || may_share(name));
    known
        && !RANDOM.contains(&name)
        && !UNSET.contains(&name)
        && name != "Opaque"
        && mutated_arguments(node).is_empty()
}

/// Tells whether a node only looks at its first argument in another way, or unpacks it.
pub fn is_plumbing(node: &Node) -> bool {
    let (_, name) = split(&node.operator);
    let looks = matches!(
        name,
        "chunk" | "split" | "split_with_sizes" | "unbind" | "tensor_split" | "meshgrid" | "broadcast_tensors"
    );
    looks || name == "ScalarImplicit" || is_unpacking(node)
}

/// Tells whether a node takes a list, tuple or dictionary apart.
pub fn is_unpacking(node: &Node) -> bool {
    let (_, name) = split(&node.operator);
    matches!(name, "ListUnpack" | "TupleUnpack" | "TupleIndex" | "__getitem__" | "DictIndex" | "tolist")
}

/// Tells whether an operator only turns numbers into tensors and back, or takes lists apart: such steps come and go with a cut.
pub fn is_detour(operator: &str) -> bool {
    matches!(
        operator,
        "aten::Int"
            | "aten::Bool"
            | "aten::ScalarImplicit"
            | "aten::IntImplicit"
            | "prim::NumToTensor"
            | "prim::device"
            | "aten::tensor"
            | "prim::ListUnpack"
            | "prim::TupleUnpack"
            | "aten::clone"
    )
}

/// Tells whether the results carry no gradient whatever goes in.
pub fn cuts_gradient(node: &Node) -> bool {
    let (_, name) = split(&node.operator);
    CUT_GRADIENT.contains(&name)
}

/// What a value is, as far as sending it goes.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// A tensor: sent as it is.
    Tensor,
    /// A number: sent as a tensor without dimensions.
    Int,
    /// A number.
    Float,
    /// A truth value.
    Bool,
    /// A list of integers: sent as a tensor with one dimension.
    IntList,
    /// Cannot be sent.
    Other(String),
}

impl Kind {
    /// Tells whether a value of this kind can go from one stage to another.
    pub fn can_be_sent(&self) -> bool {
        !matches!(self, Kind::Other(_))
    }

    /// Tells whether it must be put in a tensor to be sent.
    pub fn is_boxed(&self) -> bool {
        matches!(self, Kind::Int | Kind::Float | Kind::Bool | Kind::IntList)
    }
}

/// Returns what each value is.
pub fn kinds(program: &Program) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = program.values.iter().map(|value| declared(&value.type_)).collect();
    for node in &program.nodes {
        for &output in &node.outputs {
            // The declared type decides unless it is the default.
            let slot = output.index();
            if slot < kinds.len() && kinds[slot] == Kind::Tensor {
                kinds[slot] = made(node, &kinds, &program.values);
            }
        }
    }
    kinds
}

fn declared(type_: &Type) -> Kind {
    match type_ {
        Type::Tensor(_) => Kind::Tensor,
        Type::Int => Kind::Int,
        Type::Float => Kind::Float,
        Type::Bool => Kind::Bool,
        Type::List(item) if **item == Type::Int => Kind::IntList,
        Type::Optional(inner) if matches!(**inner, Type::Tensor(_)) => Kind::Tensor,
        Type::Number => Kind::Other("a number that is an integer or a float".into()),
        Type::List(_) => Kind::Other("a list".into()),
        Type::Tuple(_) => Kind::Other("a tuple".into()),
        Type::Dict(..) => Kind::Other("a dictionary".into()),
        Type::Str => Kind::Other("a string".into()),
        Type::Device => Kind::Other("a device".into()),
        Type::None => Kind::Other("None".into()),
        Type::Optional(_) => Kind::Other("an optional".into()),
        Type::Class(_) => Kind::Other("an object".into()),
    }
}

fn made(node: &Node, kinds: &[Kind], values: &[Value]) -> Kind {
    let (_, name) = split(&node.operator);
    let is_number = |operand: &Operand| match operand {
        Operand::Constant(Constant::Int(_) | Constant::Float(_) | Constant::Bool(_)) => true,
        Operand::Value(value) => {
            matches!(kinds.get(value.index()), Some(Kind::Int | Kind::Float | Kind::Bool))
        }
        _ => false,
    };
    let one = node.outputs.len() == 1;
    match name {
        "size" if node.arguments.len() == 1 && one => Kind::IntList,
        "size" | "dim" | "numel" | "len" | "Int" | "IntImplicit" | "dtype" | "layout" | "get_device" => {
            Kind::Int
        }
        "stride" if node.arguments.len() == 1 => Kind::IntList,
        "Float" | "FloatImplicit" => Kind::Float,
        "Bool" | "is_floating_point" | "__is__" | "__isnot__" | "__not__" | "equal" => Kind::Bool,
        "ScalarImplicit" | "item" => Kind::Other("a number that is an integer or a float".into()),
        "device" => Kind::Other("a device".into()),
        "chunk" | "split" | "split_with_sizes" | "unbind" | "tensor_split" | "meshgrid"
        | "broadcast_tensors" | "unsafe_chunk" | "unsafe_split" | "hsplit" | "vsplit" | "dsplit"
        | "align_tensors"
            if one =>
        {
            Kind::Other("a list".into())
        }
        "add" | "sub" | "mul" | "floordiv" | "remainder" | "neg"
            if !node.arguments.is_empty() && node.arguments.iter().all(|a| is_number(&a.operand)) =>
        {
            let is_float = |operand: &Operand| match operand {
                Operand::Constant(Constant::Float(_)) => true,
                Operand::Value(value) => kinds.get(value.index()) == Some(&Kind::Float),
                _ => false,
            };
            if node.arguments.iter().any(|a| is_float(&a.operand)) { Kind::Float } else { Kind::Int }
        }
        "ListUnpack" => match node.arguments.first().map(|a| &a.operand) {
            Some(Operand::Value(list)) if kinds.get(list.index()) == Some(&Kind::IntList) => Kind::Int,
            _ => Kind::Tensor,
        },
        "__getitem__" => match node.arguments.first().map(|a| &a.operand) {
            Some(Operand::Value(list)) if kinds.get(list.index()) == Some(&Kind::IntList) => Kind::Int,
            Some(Operand::Value(list)) => match values.get(list.index()).map(|v| &v.type_) {
                Some(Type::List(item)) => declared(item),
                Some(Type::Dict(_, item)) => declared(item),
                _ => Kind::Tensor,
            },
            _ => Kind::Tensor,
        },
        _ => Kind::Tensor,
    }
}

/// Calls `visit` for every leaf of an operand.
pub fn leaves<'p>(operand: &'p Operand, visit: &mut dyn FnMut(&'p Operand)) {
    let mut stack = vec![operand];
    while let Some(operand) = stack.pop() {
        match operand {
            Operand::List(items) | Operand::Tuple(items) => stack.extend(items.iter().rev()),
            Operand::Dict(items) => {
                for (key, value) in items.iter().rev() {
                    stack.push(value);
                    stack.push(key);
                }
            }
            leaf => visit(leaf),
        }
    }
}

/// Returns the values that an operand reads, in order, repeats included.
pub fn values_of(operand: &Operand) -> Vec<ValueId> {
    let mut values = Vec::new();
    leaves(operand, &mut |leaf| {
        if let Operand::Value(value) = leaf {
            values.push(*value);
        }
    });
    values
}
