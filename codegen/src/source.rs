//! What was copied, beside what the archive that it came from says of itself: checksums of records, and numbers that are none.
//!
//! A zip's directory holds the CRC-32 of each record. Most are copied whole, and their checksums were taken on their way; a record
//! of which stages hold only parts is read once more.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use tracer::{DType, Program, Role};

use crate::content::{Checksum, Copied, Piece, ReadAt, dense};

/// A record whose bytes are not those that were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// A tensor that lies in it.
    pub tensor: String,
    /// Its name in the archive.
    pub record: String,
    /// Its first byte in the source.
    pub position: u64,
}

/// Compares what was copied with the checksums of the records that it lies in; a checkpoint without checksums cannot tell.
///
/// # Errors
/// When the source cannot be read.
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

/// Lists the parameters that hold NaN or infinity. Buffers may: masks are made of it.
///
/// # Errors
/// When the source cannot be read, which happens only where something was found on the way.
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
        // What was found may be another tensor's of the same record.
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

/// Tells whether whole elements are numbers: an exponent of ones is none. Other types than floats have only numbers.
pub(crate) fn is_all_finite(dtype: DType, bytes: &[u8]) -> bool {
    // Without a branch inside, so that a processor looks at many at once.
    macro_rules! none_has {
        ($word:ty, $exponent:expr) => {
            !bytes.chunks_exact(size_of::<$word>()).fold(false, |found, element| {
                let word = <$word>::from_le_bytes(element.try_into().expect("as long as the word"));
                found | (word & $exponent == $exponent)
            })
        };
    }
    match dtype {
        DType::Float64 | DType::Complex128 => none_has!(u64, 0x7ff0_0000_0000_0000),
        DType::Float32 | DType::Complex64 => none_has!(u32, 0x7f80_0000),
        DType::Float16 => none_has!(u16, 0x7c00),
        DType::BFloat16 => none_has!(u16, 0x7f80),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_floats_without_a_number_are_found() {
        let check = |dtype: DType, element: &[u8], expected: bool| {
            let mut bytes = vec![0_u8; element.len() * 37];
            assert!(is_all_finite(dtype, &bytes), "{dtype:?} zeros");
            let at = element.len() * 19;
            bytes[at..at + element.len()].copy_from_slice(element);
            assert_eq!(is_all_finite(dtype, &bytes), expected, "{dtype:?} {element:?}");
        };
        for (value, is_finite) in
            [(f32::NAN, false), (f32::NEG_INFINITY, false), (f32::MAX, true), (-1e-40, true)]
        {
            check(DType::Float32, &value.to_le_bytes(), is_finite);
            check(DType::Int32, &value.to_le_bytes(), true);
        }
        for (value, is_finite) in
            [(f64::NAN, false), (f64::INFINITY, false), (f64::MIN, true), (5e-324, true)]
        {
            check(DType::Float64, &value.to_le_bytes(), is_finite);
        }
        for (bits, is_finite) in [(0x7c00_u16, false), (0xfe00, false), (0x7bff, true), (0x03ff, true)] {
            check(DType::Float16, &bits.to_le_bytes(), is_finite);
        }
        for (bits, is_finite) in [(0x7f80_u16, false), (0xffc0, false), (0x7f7f, true), (0x7c00, true)] {
            check(DType::BFloat16, &bits.to_le_bytes(), is_finite);
        }
    }
}
