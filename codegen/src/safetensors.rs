//! `.safetensors`: a JSON header followed by the tensors' bytes.
//!
//! The header is laid out by the `safetensors` crate's own types; the bytes are ranges of the archive, which that crate
//! does not support. Complex tensors are stored as pairs of floats, since Python's reader has no double complex.

use safetensors::{
    Dtype,
    tensor::{Metadata, TensorInfo},
};
use tracer::{DType, Program, TensorId};

use crate::{
    content::{Content, Piece, dense},
    error::CutError,
};

/// Returns a file that holds tensors under names.
///
/// # Errors
/// If a tensor has no data or reaches beyond its record.
pub(crate) fn file(program: &Program, tensors: &[(String, TensorId)]) -> Result<Content, CutError> {
    let mut infos = Vec::with_capacity(tensors.len());
    let mut pieces = vec![Piece::Bytes(Vec::new())];
    let mut at = 0_usize;
    for (name, id) in tensors {
        let tensor = &program.tensors[id.index()];
        let piece = dense(program, *id)?;
        let (dtype, is_pair) = dtype(tensor.dtype);
        let mut shape: Vec<usize> = tensor.shape.iter().map(|size| *size as usize).collect();
        if is_pair {
            shape.push(2);
        }
        let end = at + piece.len() as usize;
        infos.push((name.clone(), TensorInfo { dtype, shape, data_offsets: (at, end) }));
        pieces.push(piece);
        at = end;
    }
    let about = std::collections::HashMap::from([("format".to_string(), "pt".to_string())]);
    let fault = |reason: String| CutError::Tensor { tensor: tensors[0].0.clone(), reason };
    let metadata = Metadata::new(Some(about), infos).map_err(|error| fault(error.to_string()))?;
    let mut header = serde_json::to_vec(&metadata).map_err(|error| fault(error.to_string()))?;
    // The data begins at a multiple of eight.
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut start = (header.len() as u64).to_le_bytes().to_vec();
    start.append(&mut header);
    pieces[0] = Piece::Bytes(start);
    Ok(Content::Plain(pieces))
}

/// Returns the format's type, and whether an element is stored as a pair.
fn dtype(dtype: DType) -> (Dtype, bool) {
    match dtype {
        DType::Float64 => (Dtype::F64, false),
        DType::Float32 => (Dtype::F32, false),
        DType::Float16 => (Dtype::F16, false),
        DType::BFloat16 => (Dtype::BF16, false),
        DType::Int64 => (Dtype::I64, false),
        DType::Int32 => (Dtype::I32, false),
        DType::Int16 => (Dtype::I16, false),
        DType::Int8 => (Dtype::I8, false),
        DType::UInt8 => (Dtype::U8, false),
        DType::UInt16 => (Dtype::U16, false),
        DType::UInt32 => (Dtype::U32, false),
        DType::UInt64 => (Dtype::U64, false),
        DType::Bool => (Dtype::BOOL, false),
        DType::Complex64 => (Dtype::F32, true),
        DType::Complex128 => (Dtype::F64, true),
        DType::Float8E4M3 => (Dtype::F8_E4M3, false),
        DType::Float8E5M2 => (Dtype::F8_E5M2, false),
    }
}
