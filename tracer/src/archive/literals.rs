//! The values of constant tensors with one element: the only tensor bytes that are ever looked at.

use std::collections::BTreeMap;

use crate::program::{ByteOrder, Constant, DType, Program, Role, Tensor, TensorId};

/// Reads every constant of one element whose bytes lie in the file as they are.
pub(super) fn read(bytes: &[u8], program: &Program) -> BTreeMap<TensorId, Constant> {
    let is_little = program.archive.as_ref().is_none_or(|archive| archive.byte_order == ByteOrder::Little);
    let constants = program.tensors.iter().enumerate().filter(|(_, tensor)| {
        is_little && tensor.role == Role::Constant && tensor.shape.iter().product::<u64>() == 1
    });
    constants.filter_map(|(index, tensor)| Some((TensorId(index as u32), value(bytes, tensor)?))).collect()
}

fn value(bytes: &[u8], tensor: &Tensor) -> Option<Constant> {
    let storage = tensor.storage.as_ref()?;
    let size = tensor.dtype.bytes();
    let start = storage.position.checked_add(storage.offset.checked_mul(size)?)?;
    let raw = bytes.get(usize::try_from(start).ok()?..usize::try_from(start.checked_add(size)?).ok()?)?;
    Some(match tensor.dtype {
        DType::Int64 => Constant::Int(i64::from_le_bytes(raw.try_into().ok()?)),
        DType::Int32 => Constant::Int(i32::from_le_bytes(raw.try_into().ok()?).into()),
        DType::Float32 => Constant::Float(f32::from_le_bytes(raw.try_into().ok()?).into()),
        DType::Float64 => Constant::Float(f64::from_le_bytes(raw.try_into().ok()?)),
        DType::Bool => Constant::Bool(raw[0] != 0),
        _ => return None,
    })
}
