//! torch.export's numbers for types, layouts and memory formats, and TorchScript's, which are others.

use crate::program::DType;

/// The layout of dense tensors.
pub(super) const STRIDED: u32 = 7;

/// Returns the type that a number stands for; `None` for unsupported ones.
pub(super) fn dtype(code: u32) -> Option<DType> {
    Some(match code {
        1 => DType::UInt8,
        2 => DType::Int8,
        3 => DType::Int16,
        4 => DType::Int32,
        5 => DType::Int64,
        6 => DType::Float16,
        7 => DType::Float32,
        8 => DType::Float64,
        10 => DType::Complex64,
        11 => DType::Complex128,
        12 => DType::Bool,
        13 => DType::BFloat16,
        28 => DType::UInt16,
        29 => DType::Float8E4M3,
        30 => DType::Float8E5M2,
        34 => DType::UInt32,
        35 => DType::UInt64,
        _ => return None,
    })
}

/// Returns TorchScript's number for a type.
pub(super) fn scalar_type(code: u32) -> Option<i64> {
    Some(match code {
        1..=12 => i64::from(code) - 1,
        13 => 15,
        28 => 27,
        29 => 24,
        30 => 23,
        31 => 26,
        32 => 25,
        34 => 28,
        35 => 29,
        _ => return None,
    })
}

/// Returns TorchScript's number for a layout.
pub(super) fn layout(code: u32) -> Option<i64> {
    Some(match code {
        STRIDED => 0,
        1..=2 => i64::from(code),
        6 => 3,
        3 => 4,
        4..=5 => i64::from(code) + 1,
        _ => return None,
    })
}

/// Returns TorchScript's number for a memory format.
pub(super) fn memory_format(code: u32) -> Option<i64> {
    Some(match code {
        1 => 0,
        2 => 2,
        3 => 3,
        4 => 1,
        _ => return None,
    })
}
