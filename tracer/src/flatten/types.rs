//! Types: those that code declares, and the few that operators are known to return.

use crate::{
    archive::Library,
    code::ast::{Expr, ExprKind},
    program::{Constant, Operand, TensorType, Type, Value},
};

const MAX_DEPTH: usize = 16;

/// Reads a type annotation.
pub(super) fn read(expr: &Expr<'_>) -> Type {
    read_at(expr, 0)
}

fn read_at(expr: &Expr<'_>, depth: usize) -> Type {
    if depth > MAX_DEPTH {
        return Type::Class(expr.text.to_owned());
    }
    match &expr.kind {
        ExprKind::None => Type::None,
        ExprKind::Name("Tensor") => Type::Tensor(TensorType::default()),
        ExprKind::Name("int") => Type::Int,
        ExprKind::Name("float") => Type::Float,
        ExprKind::Name("bool") => Type::Bool,
        ExprKind::Name("str") => Type::Str,
        ExprKind::Name("Device") => Type::Device,
        ExprKind::Name("number" | "Scalar" | "complex") => Type::Number,
        ExprKind::Name("NoneType") => Type::None,
        ExprKind::Index(base, arguments) => {
            let mut inner = arguments.iter().map(|argument| read_at(argument, depth + 1));
            match (&base.kind, arguments.len()) {
                (ExprKind::Name("Optional"), 1) => Type::Optional(Box::new(inner.next().expect("one"))),
                (ExprKind::Name("List"), 1) => Type::List(Box::new(inner.next().expect("one"))),
                (ExprKind::Name("Tuple"), _) => match &arguments[0].kind {
                    ExprKind::Tuple(items) if items.is_empty() => Type::Tuple(Vec::new()),
                    _ => Type::Tuple(inner.collect()),
                },
                (ExprKind::Name("Dict"), 2) => {
                    let (key, value) = (inner.next().expect("two"), inner.next().expect("two"));
                    Type::Dict(Box::new(key), Box::new(value))
                }
                _ => Type::Class(expr.text.to_owned()),
            }
        }
        _ => Type::Class(crate::archive::unmangle(expr.text)),
    }
}

/// Reads a named tuple's field names from its class.
pub(super) fn fields(library: &Library<'_>, class: &str) -> Vec<String> {
    match library.class(class) {
        Ok(Some((_, class))) => class.attributes.iter().map(|(name, _)| name.clone()).collect(),
        _ => Vec::new(),
    }
}

pub(super) fn tensor() -> Type {
    Type::Tensor(TensorType::default())
}

/// Tells the type of an operand.
pub(super) fn of(operand: &Operand, values: &[Value]) -> Type {
    match operand {
        Operand::Value(value) => values[value.index()].type_.clone(),
        Operand::Tensor(_) => tensor(),
        Operand::Constant(constant) => match constant {
            Constant::None => Type::None,
            Constant::Bool(_) => Type::Bool,
            Constant::Int(_) => Type::Int,
            Constant::Float(_) => Type::Float,
            Constant::Complex(..) => Type::Number,
            Constant::Str(_) => Type::Str,
            Constant::Device(_) => Type::Device,
        },
        Operand::List(items) => {
            Type::List(Box::new(items.first().map_or_else(tensor, |item| of(item, values))))
        }
        Operand::Tuple(items) => Type::Tuple(items.iter().map(|item| of(item, values)).collect()),
        Operand::Dict(pairs) => match pairs.first() {
            Some((key, value)) => Type::Dict(Box::new(of(key, values)), Box::new(of(value, values))),
            None => Type::Dict(Box::new(Type::Str), Box::new(tensor())),
        },
    }
}

/// Returns the type that an operator's only result has, as far as the operator and its arguments tell.
pub(super) fn result(operator: &str, arguments: &[Type]) -> Type {
    let is_tensor = |type_: &Type| match type_ {
        Type::Tensor(_) => true,
        Type::Optional(inner) => matches!(**inner, Type::Tensor(_)),
        _ => false,
    };
    let Some(name) = operator.strip_prefix("aten::") else {
        return match operator {
            "prim::dtype" | "prim::layout" => Type::Int,
            "prim::device" => Type::Device,
            "prim::min" | "prim::max" => match arguments {
                [Type::List(element)] => (**element).clone(),
                _ => arithmetic(arguments),
            },
            "prim::abs" if !arguments.iter().any(is_tensor) => arithmetic(arguments),
            "prim::is_cuda" | "prim::requires_grad" | "prim::isinstance" => Type::Bool,
            "prim::shape" => Type::List(Box::new(Type::Int)),
            _ => tensor(),
        };
    };
    match name {
        "size" if arguments.len() > 1 => Type::Int,
        "size" => Type::List(Box::new(Type::Int)),
        "stride" => Type::List(Box::new(Type::Int)),
        "len" | "dim" | "numel" | "Int" | "IntImplicit" | "ord" | "storage_offset" => Type::Int,
        "Float" | "FloatImplicit" => Type::Float,
        "Bool" | "__is__" | "__isnot__" | "__not__" | "__contains__" | "is_floating_point" | "is_complex"
        | "is_grad_enabled" | "is_scripting" => Type::Bool,
        "ScalarImplicit" | "Scalar" | "item" | "ComplexImplicit" | "Complex" => Type::Number,
        "str" | "format" | "join" | "replace" => Type::Str,
        "device" => Type::Device,
        "split"
        | "split_with_sizes"
        | "chunk"
        | "unbind"
        | "meshgrid"
        | "broadcast_tensors"
        | "tensor_split"
        | "hsplit"
        | "vsplit"
        | "dsplit"
        | "unsafe_split"
        | "unsafe_chunk"
        | "unsafe_split_with_sizes"
        | "where_list"
        | "nonzero_numpy"
        | "align_tensors"
        | "gradient" => Type::List(Box::new(tensor())),
        "__getitem__" => match arguments.first() {
            Some(Type::List(element)) => (**element).clone(),
            Some(Type::Dict(_, value)) => (**value).clone(),
            Some(Type::Str) => Type::Str,
            _ => tensor(),
        },
        "keys" => match arguments.first() {
            Some(Type::Dict(key, _)) => Type::List(key.clone()),
            _ => tensor(),
        },
        "append" | "extend" | "list" | "copy" | "sorted" | "slice"
            if matches!(arguments.first(), Some(Type::List(_))) =>
        {
            arguments[0].clone()
        }
        _ if !arguments.is_empty() && !arguments.iter().any(is_tensor) => plain(name, arguments),
        _ => tensor(),
    }
}

/// Returns the type of an item of a tuple; those before the first count from its end.
pub(super) fn item(tuple: &Type, index: i64) -> Option<Type> {
    let Type::Tuple(items) = tuple else { return None };
    let from_end = if index < 0 { items.len() as i64 } else { 0 };
    items.get(usize::try_from(from_end + index).ok()?).cloned()
}

/// Returns the type of what an operator makes of plain values, as torch's signatures have it; of lists of tensors it makes one.
fn plain(name: &str, arguments: &[Type]) -> Type {
    let is_number = arguments.contains(&Type::Number);
    match name {
        "eq" | "ne" | "lt" | "gt" | "le" | "ge" | "isnan" | "isinf" | "isfinite" | "any" | "all" => {
            Type::Bool
        }
        "__and__" | "__or__" | "__xor__" if arguments.contains(&Type::Int) => Type::Int,
        "__and__" | "__or__" | "__xor__" => Type::Bool,
        "add" | "sub" | "mul" | "neg" | "floordiv" | "remainder" | "abs" | "mod" | "floor_divide" => {
            arithmetic(arguments)
        }
        "__lshift__"
        | "__rshift__"
        | "__range_length"
        | "__derive_index"
        | "__round_to_zero_floordiv"
        | "gcd"
        | "factorial"
        | "count"
        | "index" => Type::Int,
        "floor" | "ceil" if is_number => Type::Number,
        "floor" | "ceil" => Type::Int,
        "div" | "truediv" | "pow" | "atan2" | "copysign" | "fmod" | "ldexp" | "mathremainder" => Type::Float,
        "round" | "sqrt" | "log" | "log10" | "log1p" | "exp" | "expm1" | "erf" | "erfc" | "sin" | "cos"
        | "tan" | "asin" | "acos" | "atan" | "sinh" | "cosh" | "tanh" | "asinh" | "acosh" | "atanh"
        | "degrees" | "radians" | "fabs" | "gamma" | "lgamma" => {
            if is_number {
                Type::Number
            } else {
                Type::Float
            }
        }
        "sum" => match arguments.first() {
            Some(Type::List(element)) if **element == Type::Bool => Type::Int,
            Some(Type::List(element)) => (**element).clone(),
            _ => tensor(),
        },
        "pop" => match arguments.first() {
            Some(Type::List(element)) => (**element).clone(),
            _ => tensor(),
        },
        _ => tensor(),
    }
}

/// Arithmetic on plain numbers stays a number, on lists a list.
fn arithmetic(arguments: &[Type]) -> Type {
    if let Some(list) = arguments.iter().find(|type_| matches!(type_, Type::List(_))) {
        return list.clone();
    }
    match arguments.first() {
        None => Type::Number,
        Some(Type::Int) if arguments.iter().all(|type_| matches!(type_, Type::Int | Type::Bool)) => Type::Int,
        Some(Type::Str) => Type::Str,
        _ if arguments.contains(&Type::Float) && !arguments.contains(&Type::Number) => Type::Float,
        _ => Type::Number,
    }
}
