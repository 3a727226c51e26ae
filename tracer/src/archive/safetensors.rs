//! Tensors of a `.safetensors` file by name: its header, never its data.

use ::safetensors::{Dtype, tensor::Metadata};

use super::state_dict::role_by_name;
use crate::{
    bytes::{Bytes, part, start},
    error::TraceError,
    program::{DType, Role, Storage, Tensor, dense_strides},
};

const RECORD: &str = "header";

/// Tells whether bytes begin as the format does: the length of a header that is JSON.
pub(super) fn is_safetensors(bytes: &dyn Bytes) -> bool {
    let start = start(bytes, 9);
    let length = start.first_chunk::<8>().map_or(u64::MAX, |length| u64::from_le_bytes(*length));
    start.get(8) == Some(&b'{') && length < bytes.size()
}

/// As the crate has it.
const LONGEST_HEADER: u64 = 100_000_000;

/// Reads the header; the crate checks that tensors lie one behind the other, and they must fill the file.
pub(super) fn read(bytes: &dyn Bytes) -> Result<Vec<Tensor>, TraceError> {
    let wrong = |reason: String| TraceError::Record { record: RECORD.to_owned(), reason };
    let length = start(bytes, 8).first_chunk::<8>().map_or(u64::MAX, |length| u64::from_le_bytes(*length));
    if length > LONGEST_HEADER {
        return Err(wrong("it is too long".to_owned()));
    }
    let header =
        part(bytes, 8, length).map_err(|_| wrong("it reaches past the end of the file".to_owned()))?;
    let metadata: Metadata = serde_json::from_slice(&header).map_err(|error| wrong(error.to_string()))?;
    let start = length + 8;
    let tensors = metadata.tensors();
    let end = tensors.values().map(|info| info.data_offsets.1 as u64).max().unwrap_or(0);
    if start.checked_add(end) != Some(bytes.size()) {
        let found = bytes.size() - start;
        return Err(wrong(format!("it describes {end} bytes of tensors, the file has {found}")));
    }
    let mut found = Vec::new();
    for (name, info) in tensors {
        let dtype = dtype(info.dtype).ok_or_else(|| {
            wrong(format!("`{name}` has elements of type {}, which is not known", info.dtype))
        })?;
        let (first, end) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
        let shape: Vec<u64> = info.shape.iter().map(|size| *size as u64).collect();
        let role = role_by_name(&name, dtype);
        let bytes = end - first;
        found.push(Tensor {
            dtype,
            strides: dense_strides(&shape),
            shape,
            storage: Some(Storage {
                record: name.clone(),
                offset: 0,
                elements: bytes / dtype.bytes(),
                position: Some(start + first),
                bytes,
                checksum: None,
            }),
            path: name,
            requires_grad: role == Role::Parameter,
            role,
            device: "cpu".to_owned(),
        });
    }
    // The crate keeps them in no order.
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn dtype(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::F64 => DType::Float64,
        Dtype::F32 => DType::Float32,
        Dtype::F16 => DType::Float16,
        Dtype::BF16 => DType::BFloat16,
        Dtype::I64 => DType::Int64,
        Dtype::I32 => DType::Int32,
        Dtype::I16 => DType::Int16,
        Dtype::I8 => DType::Int8,
        Dtype::U8 => DType::UInt8,
        Dtype::U16 => DType::UInt16,
        Dtype::U32 => DType::UInt32,
        Dtype::U64 => DType::UInt64,
        Dtype::BOOL => DType::Bool,
        Dtype::F8_E4M3 => DType::Float8E4M3,
        Dtype::F8_E5M2 => DType::Float8E5M2,
        _ => return None,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(data);
        bytes
    }

    const HEADER: &str = r#"{"__metadata__": {"format": "pt"},
        "b.weight": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [8, 20]},
        "a.running_mean": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}"#;

    #[test]
    fn tensors_lie_where_the_header_says() {
        let bytes = file(HEADER, &[0; 20]);
        let tensors = crate::read_tensors(&bytes).unwrap();
        let [mean, weight] = &tensors[..] else { panic!("{tensors:?}") };
        let start = 8 + HEADER.len() as u64;
        assert_eq!(
            (mean.path.as_str(), mean.role, mean.first_byte()),
            ("a.running_mean", Role::Buffer, Some(start))
        );
        assert_eq!(
            (weight.dtype, &weight.shape, &weight.strides),
            (DType::BFloat16, &vec![2, 3], &vec![3, 1])
        );
        assert_eq!((weight.role, weight.first_byte()), (Role::Parameter, Some(start + 8)));
        assert_eq!(weight.storage.as_ref().map(|storage| (storage.elements, storage.bytes)), Some((6, 12)));
    }

    #[test]
    fn what_does_not_fill_the_file_is_refused() {
        for (header, data) in [
            (HEADER, 19),
            (HEADER, 21),
            (r#"{"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}"#, 8),
            (r#"{"a": {"dtype": "F32", "shape": [18446744073709551615, 4], "data_offsets": [0, 8]}}"#, 8),
            (r#"{"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}"#, 8),
            (r#"{"a": {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}}"#, 8),
        ] {
            let error = crate::read_tensors(&file(header, &vec![0; data])).unwrap_err();
            assert!(matches!(error, TraceError::Record { .. }), "{header}: {error:?}");
        }
    }

    proptest! {
        #[test]
        fn no_header_makes_it_panic(at in 0..200_usize, byte: u8, length in 0..300_usize) {
            let mut bytes = file(HEADER, &[0; 20]);
            let index = at % bytes.len();
            bytes[index] = byte;
            bytes.truncate(length);
            let _ = crate::read_tensors(&bytes);
        }
    }
}
