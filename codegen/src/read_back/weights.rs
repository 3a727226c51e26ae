//! Reads weights back: each is where its file declares it, and is the model's.
//!
//! While weights were copied, checksums were taken of the first, the last and every sixteenth 64 KiB: these windows are
//! read again from the file, but not from the source. A few elements of each tensor, located on both sides only by
//! sizes and strides, show that the pieces are the right ones.

use std::{collections::BTreeMap, io};

use safetensors::tensor::Metadata;
use schema::StageFiles;
use tracer::{Program, Role, Tensor};

use super::{Fault, in_tree};
use crate::content::{Copied, Piece, ReadAt, windows};

/// Elements per tensor that are compared with the source.
const SAMPLE: u64 = 16;

/// Reads a written file at a position.
pub(super) type Read<'r> = dyn FnMut(u64, &mut [u8]) -> io::Result<()> + 'r;

/// A tensor of the model and its position in a file.
struct HeldTensor<'p> {
    tensor: &'p Tensor,
    /// First byte in the file.
    at: u64,
    /// Strides in elements, by dimension.
    strides: Vec<u64>,
}

/// The tensors of a TorchScript stage.
pub(super) fn archive(
    by_place: &BTreeMap<String, &Tensor>,
    found: &Program,
    copied: &[Copied],
    source: &mut dyn ReadAt,
    read: &mut Read<'_>,
) -> Result<(), Fault> {
    let mut places = Vec::new();
    for held in found.tensors.iter().filter(|tensor| tensor.role != Role::Constant) {
        let tensor = by_place.get(&in_tree(&held.path)).ok_or_else(|| Fault::Tensor(held.path.clone()))?;
        if let Some(at) = held.first_byte() {
            places.push(HeldTensor { tensor, at, strides: held.strides.clone() });
        }
    }
    check(&places, copied, source, read)
}

/// The tensors of a Python stage, whose data begins at `start`.
pub(super) fn safetensors(
    by_path: &BTreeMap<&str, &Tensor>,
    stage: &StageFiles,
    metadata: &Metadata,
    start: u64,
    copied: &[Copied],
    source: &mut dyn ReadAt,
    read: &mut Read<'_>,
) -> Result<(), Fault> {
    let tensors = metadata.tensors();
    let mut places = Vec::new();
    for name in stage.parameters.iter().chain(&stage.buffers) {
        // The second name of a tied tensor has no bytes of its own.
        let (Some(tensor), Some(info)) = (by_path.get(name.as_str()), tensors.get(name)) else { continue };
        let mut strides = vec![1; tensor.shape.len()];
        for dim in (1..strides.len()).rev() {
            strides[dim - 1] = strides[dim] * tensor.shape[dim];
        }
        places.push(HeldTensor { tensor, at: start + info.data_offsets.0 as u64, strides });
    }
    check(&places, copied, source, read)
}

fn check(
    places: &[HeldTensor<'_>],
    copied: &[Copied],
    source: &mut dyn ReadAt,
    read: &mut Read<'_>,
) -> Result<(), Fault> {
    for place in places {
        let fault = || Fault::Bytes(format!("tensor `{}`", place.tensor.path));
        let (Some(first), false) = (place.tensor.first_byte(), place.tensor.shape.contains(&0)) else {
            continue;
        };
        let item = place.tensor.dtype.bytes();
        let piece = copied.partition_point(|piece| piece.at <= place.at).checked_sub(1).map(|at| &copied[at]);
        let is_copied = piece.is_some_and(|piece| match &piece.piece {
            Piece::Copy { position, length, .. } => {
                place.at < piece.at + length && position + (place.at - piece.at) == first
            }
            Piece::Gather(_) => piece.at == place.at,
            Piece::Bytes(_) => false,
        });
        if !is_copied || !is_same(place, first, item, source, read).map_err(|error| unreadable(&error))? {
            return Err(fault());
        }
    }
    let mut buffer = Vec::new();
    for piece in copied {
        let windows: Vec<(u64, u64)> = windows(piece.piece.len()).collect();
        let mut is_right = windows.len() == piece.checksums.len();
        for ((first, length), checksum) in windows.into_iter().zip(&piece.checksums) {
            buffer.resize(length as usize, 0);
            read(piece.at + first, &mut buffer).map_err(|error| unreadable(&error))?;
            is_right &= crc32fast::hash(&buffer) == *checksum;
        }
        if !is_right {
            return Err(Fault::Bytes(format!("the range at byte {}", piece.at)));
        }
    }
    Ok(())
}

fn unreadable(error: &io::Error) -> Fault {
    Fault::Unreadable(error.to_string())
}

/// Compares some elements, including the first and the last.
fn is_same(
    place: &HeldTensor<'_>,
    first: u64,
    item: u64,
    source: &mut dyn ReadAt,
    read: &mut Read<'_>,
) -> io::Result<bool> {
    let shape = &place.tensor.shape;
    let count: u64 = shape.iter().product();
    let wanted = SAMPLE.min(count);
    let (mut theirs, mut ours) = (vec![0; item as usize], vec![0; item as usize]);
    for number in 0..wanted {
        let mut rest = match wanted {
            1 => 0,
            _ => (u128::from(number) * u128::from(count - 1) / u128::from(wanted - 1)) as u64,
        };
        let (mut from, mut at) = (0, 0);
        for dim in (0..shape.len()).rev() {
            let index = rest % shape[dim];
            rest /= shape[dim];
            from += index * place.tensor.strides[dim];
            at += index * place.strides[dim];
        }
        source.read_at(first + from * item, &mut theirs)?;
        read(place.at + at * item, &mut ours)?;
        if theirs != ours {
            return Ok(false);
        }
    }
    Ok(true)
}
