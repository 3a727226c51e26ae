//! Data types by their names in files, and their properties.

use tch::Kind;

use crate::error::TorchError;

/// Returns libtorch's name of a data type.
///
/// # Errors
/// When there is no such type.
pub fn kind(dtype: &str) -> Result<Kind, TorchError> {
    Ok(match dtype {
        "float64" => Kind::Double,
        "float32" => Kind::Float,
        "float16" => Kind::Half,
        "bfloat16" => Kind::BFloat16,
        "int64" => Kind::Int64,
        "int32" => Kind::Int,
        "int16" => Kind::Int16,
        "int8" => Kind::Int8,
        "uint8" => Kind::Uint8,
        "bool" => Kind::Bool,
        "complex64" => Kind::ComplexFloat,
        "complex128" => Kind::ComplexDouble,
        other => return Err(TorchError(format!("inputs of type {other} cannot be made"))),
    })
}

/// Returns the name of a data type in files; `None` for those that inputs cannot have.
pub fn dtype(kind: Kind) -> Option<&'static str> {
    const NAMES: [&str; 12] = [
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
        "bool",
        "complex64",
        "complex128",
    ];
    NAMES.into_iter().find(|name| self::kind(name).is_ok_and(|known| known == kind))
}

/// Returns whether this type is a floating-point one.
pub(super) fn is_float(kind: Kind) -> bool {
    matches!(kind, Kind::Float | Kind::Double | Kind::Half | Kind::BFloat16)
}

/// Returns whether this type is complex.
pub(super) fn is_complex(kind: Kind) -> bool {
    matches!(kind, Kind::ComplexFloat | Kind::ComplexDouble)
}

/// Returns whether tensors of this type can require a gradient.
pub(super) fn carries_gradient(kind: Kind) -> bool {
    is_float(kind) || is_complex(kind)
}
