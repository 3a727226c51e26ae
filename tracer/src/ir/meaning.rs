//! What printed types and literals mean.

use super::tree::{Dim, IrTensorType, IrType, Literal};
use crate::{Constant, DType, Operand, TensorType, Type};

/// Returns the class of a module's type, unmangled.
pub fn class_name(type_: &IrType) -> Option<String> {
    let IrType::Named(name) = type_ else {
        return None;
    };
    let path = name.strip_prefix("__torch__.")?;
    let parts: Vec<&str> = path.split('.').filter(|part| !part.starts_with("___torch_mangle_")).collect();
    Some(parts.join("."))
}

/// Returns the type of a value.
pub fn lower_type(type_: &IrType) -> Type {
    match type_ {
        IrType::Tensor(tensor) => Type::Tensor(tensor_type(tensor)),
        IrType::List(element) => Type::List(Box::new(lower_type(element))),
        IrType::Optional(element) => Type::Optional(Box::new(lower_type(element))),
        IrType::Tuple { elements, .. } => {
            Type::Tuple(elements.iter().map(|(_, type_)| lower_type(type_)).collect())
        }
        IrType::Dict(key, value) => Type::Dict(Box::new(lower_type(key)), Box::new(lower_type(value))),
        IrType::Applied(..) => Type::Class(type_.to_string()),
        IrType::Named(name) => match name.as_str() {
            "int" => Type::Int,
            "float" => Type::Float,
            "bool" => Type::Bool,
            "str" => Type::Str,
            "Device" => Type::Device,
            "Scalar" | "number" => Type::Number,
            "NoneType" => Type::None,
            _ => Type::Class(class_name(type_).unwrap_or_else(|| name.clone())),
        },
    }
}

/// Returns the printed type of a tensor.
pub fn tensor_type(type_: &IrTensorType) -> TensorType {
    let sizes = |dims: &Vec<Dim>| {
        dims.iter()
            .map(|dim| match dim {
                Dim::Known(size) => Some(*size),
                Dim::Unknown | Dim::Symbol(_) => None,
            })
            .collect()
    };
    let strides = |strides: &Vec<i64>| strides.iter().map(|stride| u64::try_from(*stride).ok()).collect();
    let shape: Option<Vec<u64>> = type_.dims.as_ref().and_then(sizes);
    // A tensor without dimensions has no strides to print, yet they are known.
    let scalar = shape.as_ref().filter(|shape| shape.is_empty()).map(|_| Vec::new());
    TensorType {
        dtype: type_.dtype.as_deref().and_then(dtype),
        strides: type_.strides.as_ref().and_then(strides).or(scalar),
        shape,
        requires_grad: type_.requires_grad,
        device: type_.device.clone(),
    }
}

fn dtype(name: &str) -> Option<DType> {
    Some(match name {
        "Float" => DType::Float32,
        "Double" => DType::Float64,
        "Half" => DType::Float16,
        "BFloat16" => DType::BFloat16,
        "Long" => DType::Int64,
        "Int" => DType::Int32,
        "Short" => DType::Int16,
        "Char" => DType::Int8,
        "Byte" => DType::UInt8,
        "UInt16" => DType::UInt16,
        "UInt32" => DType::UInt32,
        "UInt64" => DType::UInt64,
        "Bool" => DType::Bool,
        "ComplexFloat" => DType::Complex64,
        "ComplexDouble" => DType::Complex128,
        "Float8_e4m3fn" => DType::Float8E4M3,
        "Float8_e5m2" => DType::Float8E5M2,
        _ => return None,
    })
}

/// Returns the operand that a literal stands for; its type tells `bool` from `int` and `Device` from `str`.
pub fn literal_operand(literal: &Literal, type_: Option<&IrType>) -> Operand {
    let is = |name: &str| matches!(type_, Some(IrType::Named(found)) if found == name);
    let element = match type_ {
        Some(IrType::List(element)) => Some(element.as_ref()),
        _ => None,
    };
    let constant = match literal {
        Literal::Number(text) if is("bool") => Constant::Bool(text != "0"),
        Literal::Number(text) => number(text),
        Literal::Str(text) if is("Device") => Constant::Device(text.clone()),
        Literal::Str(text) => Constant::Str(text.clone()),
        Literal::Word(word) => match word.as_str() {
            "None" => Constant::None,
            "True" => Constant::Bool(true),
            "False" => Constant::Bool(false),
            other => Constant::Str(other.to_owned()),
        },
        Literal::Boxed(text) | Literal::Elements(text) | Literal::Omitted(text) => {
            Constant::Str(text.clone())
        }
        Literal::List(items) => {
            return Operand::List(items.iter().map(|item| literal_operand(item, element)).collect());
        }
        Literal::Tuple(items) => {
            return Operand::Tuple(items.iter().map(|item| literal_operand(item, None)).collect());
        }
        Literal::Dict(pairs) => {
            let operand = |literal| literal_operand(literal, None);
            return Operand::Dict(pairs.iter().map(|(key, value)| (operand(key), operand(value))).collect());
        }
        Literal::Annotated(_, value) => return literal_operand(value, type_),
    };
    Operand::Constant(constant)
}

/// `3`, `1.`, `inf`, `3.+4.j`; a number that does not fit stays text.
fn number(text: &str) -> Constant {
    if let Ok(int) = text.parse::<i64>() {
        return Constant::Int(int);
    }
    if let Some(complex) = text.strip_suffix('j') {
        // The sign between the parts is the last one that belongs to no exponent.
        let split = complex.char_indices().rev().find(|(at, c)| {
            let after_exponent = complex[..*at].ends_with(['e', 'E']);
            *at > 0 && matches!(c, '+' | '-') && !after_exponent
        });
        let parts = split.map(|(at, _)| (complex[..at].parse(), complex[at..].parse()));
        if let Some((Ok(real), Ok(imaginary))) = parts {
            return Constant::Complex(real, imaginary);
        }
    }
    match text.parse::<f64>() {
        Ok(float) => Constant::Float(float),
        Err(_) => Constant::Str(text.to_owned()),
    }
}
