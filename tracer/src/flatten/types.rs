//! Types: those that code declares, and the few that operators are known to return.

use operators::Gives;

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
    let name = operator.strip_prefix("aten::").or_else(|| operator.strip_prefix("prim::"));
    let gives = name.and_then(operators::find).map_or(Gives::Tensor, |row| row.gives);
    match gives {
        Gives::Size if arguments.len() > 1 => Type::Int,
        Gives::Size | Gives::Integers => Type::List(Box::new(Type::Int)),
        Gives::Int => Type::Int,
        Gives::Float => Type::Float,
        Gives::Bool => Type::Bool,
        Gives::Number => Type::Number,
        Gives::Str => Type::Str,
        Gives::Device => Type::Device,
        Gives::Tensors => Type::List(Box::new(tensor())),
        Gives::Item => match arguments.first() {
            Some(Type::List(element)) => (**element).clone(),
            Some(Type::Dict(_, value)) => (**value).clone(),
            Some(Type::Str) => Type::Str,
            _ => tensor(),
        },
        Gives::Keys => match arguments.first() {
            Some(Type::Dict(key, _)) => Type::List(key.clone()),
            _ => tensor(),
        },
        Gives::SameList => match arguments.first() {
            Some(list @ Type::List(_)) => list.clone(),
            _ => tensor(),
        },
        Gives::Tensor => tensor(),
        _ if arguments.is_empty() || arguments.iter().any(is_tensor) => tensor(),
        Gives::ItemOrArithmetic => match arguments {
            [Type::List(element)] => (**element).clone(),
            _ => arithmetic(arguments),
        },
        Gives::BoolOfNumbers => Type::Bool,
        Gives::BitsOfNumbers if arguments.contains(&Type::Int) => Type::Int,
        Gives::BitsOfNumbers => Type::Bool,
        Gives::Arithmetic => arithmetic(arguments),
        Gives::IntOfNumbers => Type::Int,
        Gives::Rounded | Gives::FunctionOfNumbers if arguments.contains(&Type::Number) => Type::Number,
        Gives::Rounded => Type::Int,
        Gives::FloatOfNumbers | Gives::FunctionOfNumbers => Type::Float,
        Gives::Sum => match arguments.first() {
            Some(Type::List(element)) if **element == Type::Bool => Type::Int,
            Some(Type::List(element)) => (**element).clone(),
            _ => tensor(),
        },
        Gives::Popped => match arguments.first() {
            Some(Type::List(element)) => (**element).clone(),
            _ => tensor(),
        },
    }
}

/// Returns the type of an item of a tuple; those before the first count from its end.
pub(super) fn item(tuple: &Type, index: i64) -> Option<Type> {
    let Type::Tuple(items) = tuple else { return None };
    let from_end = if index < 0 { items.len() as i64 } else { 0 };
    items.get(usize::try_from(from_end + index).ok()?).cloned()
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
