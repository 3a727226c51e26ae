//! How operators are written in Python.
//!
//! Every operator can be written `torch.ops.aten.NAME(…)` with the trace's own arguments. If there is a public function
//! with the same arguments in the same order, it is used: it reads better and is called faster. The table of operators
//! has these functions, each checked against torch 2.11.

use operators::{Python, find, plain};

use crate::{allowed::is_foreign, names::python_quoted};

/// The ways to write an operator.
pub(crate) enum Spelling {
    /// `torch.relu`.
    Torch(String),
    /// `x.view`.
    Method(String),
    /// `F.gelu`.
    Functional(String),
    /// `torch.ops.aten.name`, `_operators["fbgemm::name"]`.
    Operator(String),
}

/// Returns how to write an operator, by its name space and name.
pub(crate) fn spelling(space: &str, name: &str) -> Spelling {
    let (plain, is_in_place) = plain(name);
    let found = if is_in_place {
        find(plain).map(|row| row.in_place_python)
    } else {
        find(name).map(|row| row.python)
    };
    match found.filter(|_| space == "aten").unwrap_or(Python::Dispatcher) {
        Python::Torch => Spelling::Torch(format!("torch.{name}")),
        Python::Method => Spelling::Method(name.to_string()),
        Python::Functional => Spelling::Functional(format!("F.{name}")),
        Python::OverloadTensor => Spelling::Operator(format!("torch.ops.aten.{name}.Tensor")),
        Python::OverloadDefault => Spelling::Operator(format!("torch.ops.aten.{name}.default")),
        Python::Dispatcher => Spelling::Operator(operator(space, name)),
    }
}

/// Returns the form that every operator has.
///
/// Operators in torch's list are attributes of `torch.ops`. Of another library only the name is known: it is quoted.
pub(crate) fn operator(space: &str, name: &str) -> String {
    let qualified = format!("{space}::{name}");
    if is_foreign(&qualified) {
        format!("_operators[{}]", python_quoted(&qualified))
    } else {
        format!("torch.ops.{space}.{name}")
    }
}

/// Returns `torch.float32` for torch's code of a type.
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

/// Returns `torch.channels_last` for torch's code of a memory format.
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
