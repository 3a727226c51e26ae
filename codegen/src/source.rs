//! Compares copied weights with their archive: checksums of its records, and values that are NaN or infinite.
//!
//! A zip's directory has the CRC-32 of each record. Most records are copied whole, and their checksums were taken while
//! copying; a record of which stages hold only parts is read once more.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use tracer::{DType, Program, Role};

use crate::{
    content::{Checksum, Copied, Piece, ReadAt, dense},
    finite::is_all_finite,
};

/// A record whose bytes do not match its checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// A tensor in it.
    pub tensor: String,
    /// Its name in the archive.
    pub record: String,
    /// Its first byte in the source.
    pub position: u64,
}

/// Compares copied pieces with the checksums of their records; a checkpoint without checksums cannot be checked.
///
/// # Errors
/// If the source cannot be read.
pub fn damaged<'c>(
    program: &Program,
    copied: impl IntoIterator<Item = &'c Copied>,
    source: &mut dyn ReadAt,
) -> io::Result<Vec<Damaged>> {
    let mut records = BTreeMap::new();
    for tensor in &program.tensors {
        let Some(storage) = &tensor.storage else { continue };
        if let (Some(position), Some(checksum)) = (storage.position, storage.checksum) {
            records.entry(position).or_insert((storage, checksum, &tensor.path));
        }
    }
    let (mut whole, mut parts) = (BTreeSet::new(), BTreeSet::new());
    let mut wrong = BTreeSet::new();
    for piece in copied {
        let Some((first, length)) = piece.piece.extent() else { continue };
        let Some((&position, (storage, checksum, _))) = records.range(..=first).next_back() else { continue };
        if length == 0 || first - position >= storage.bytes {
            continue;
        }
        let is_whole =
            matches!(piece.piece, Piece::Copy { .. }) && (first, length) == (position, storage.bytes);
        if !is_whole {
            parts.insert(position);
        } else if piece.crc32 == *checksum {
            whole.insert(position);
        } else {
            wrong.insert(position);
        }
    }
    for position in parts.difference(&whole) {
        let (storage, checksum, _) = records[position];
        let record = Piece::Copy { position: *position, length: storage.bytes, dtype: DType::UInt8 };
        let mut found = Checksum::default();
        record.write(source, &mut Vec::new(), &mut |bytes| {
            found.update(bytes);
            Ok(())
        })?;
        if found.crc32() != checksum {
            wrong.insert(*position);
        }
    }
    let named = |position: u64| {
        let (storage, _, tensor) = records[&position];
        Damaged { tensor: tensor.clone(), record: storage.record.clone(), position }
    };
    Ok(wrong.into_iter().map(named).collect())
}

/// Lists the parameters that hold NaN or infinity. Buffers may: masks consist of it.
///
/// # Errors
/// If the source cannot be read, which is needed only if copying found such values.
pub fn not_finite<'c>(
    program: &Program,
    copied: impl IntoIterator<Item = &'c Copied>,
    source: &mut dyn ReadAt,
) -> io::Result<Vec<String>> {
    let extents =
        copied.into_iter().filter(|piece| !piece.is_finite).filter_map(|piece| piece.piece.extent());
    let extents: Vec<(u64, u64)> = extents.collect();
    let mut found = Vec::new();
    for (index, tensor) in program.tensors.iter().enumerate() {
        let Some(first) = tensor.first_byte().filter(|_| tensor.role == Role::Parameter) else { continue };
        if !extents.iter().any(|(start, length)| (*start..start.saturating_add(*length)).contains(&first)) {
            continue;
        }
        // They may belong to another tensor of the same record.
        let Ok(piece) = dense(program, tracer::TensorId(index as u32)) else { continue };
        let mut is_finite = true;
        piece.write(source, &mut Vec::new(), &mut |bytes| {
            is_finite &= is_all_finite(tensor.dtype, bytes);
            Ok(())
        })?;
        if !is_finite {
            found.push(tensor.path.clone());
        }
    }
    Ok(found)
}
