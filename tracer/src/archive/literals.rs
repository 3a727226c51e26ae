//! The values of constant tensors with one element, and of whole numbers that a module keeps as buffers: sizes are
//! computed from them. They are the only tensor bytes that are ever looked at.

use std::collections::{BTreeMap, BTreeSet};

use crate::bytes::{Bytes, part};
use crate::program::{ByteOrder, Constant, DType, Operand, Program, Role, Tensor, TensorId};

/// Reads each such tensor whose bytes lie in the file as they are.
pub(crate) fn read(bytes: &dyn Bytes, program: &Program) -> BTreeMap<TensorId, Constant> {
    let is_little = program.archive.as_ref().is_none_or(|archive| archive.byte_order == ByteOrder::Little);
    let kept = numbers_kept(program);
    let constants = program.tensors.iter().enumerate().filter(|(index, tensor)| {
        let is_one = tensor.role == Role::Constant && tensor.shape.iter().product::<u64>() == 1;
        is_little && (is_one || kept.contains(&TensorId(*index as u32)))
    });
    constants.filter_map(|(index, tensor)| Some((TensorId(index as u32), value(bytes, tensor)?))).collect()
}

/// Lists the whole numbers among the buffers that operators read and none writes. Counters of batches are not read.
fn numbers_kept(program: &Program) -> BTreeSet<TensorId> {
    let is_number = |id: TensorId| {
        let tensor = &program.tensors[id.index()];
        let is_whole = matches!(tensor.dtype, DType::Int64 | DType::Int32);
        tensor.role == Role::Buffer && tensor.shape.is_empty() && is_whole
    };
    let (mut read, mut written) = (BTreeSet::new(), BTreeSet::new());
    for node in &program.nodes {
        let is_writing = operators::is_in_place(node.operator.rsplit("::").next().unwrap_or_default());
        for (position, argument) in node.arguments.iter().enumerate() {
            if let Operand::Tensor(id) = argument.operand
                && is_number(id)
            {
                if is_writing && position == 0 {
                    written.insert(id)
                } else {
                    read.insert(id)
                };
            }
        }
    }
    read.difference(&written).copied().collect()
}

fn value(bytes: &dyn Bytes, tensor: &Tensor) -> Option<Constant> {
    let size = tensor.dtype.bytes();
    let start = tensor.first_byte()?;
    let raw = &part(bytes, start, size).ok()?[..];
    Some(match tensor.dtype {
        DType::Int64 => Constant::Int(i64::from_le_bytes(raw.try_into().ok()?)),
        DType::Int32 => Constant::Int(i32::from_le_bytes(raw.try_into().ok()?).into()),
        DType::Float32 => Constant::Float(f32::from_le_bytes(raw.try_into().ok()?).into()),
        DType::Float64 => Constant::Float(f64::from_le_bytes(raw.try_into().ok()?)),
        DType::Complex128 => {
            let part = |at: usize| Some(f64::from_le_bytes(raw.get(at..at + 8)?.try_into().ok()?));
            Constant::Complex(part(0)?, part(8)?)
        }
        DType::Bool => Constant::Bool(raw[0] != 0),
        _ => return None,
    })
}
