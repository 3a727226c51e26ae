//! Stored tensors: type, sizes and place of the elements, checked against the record; never their values.

use std::collections::HashMap;

use super::{
    pickle::{Object, ObjectId, Pickle},
    zip::{Extent, Records},
};
use crate::{
    error::{PickleFault, TraceError},
    program::{DType, Role, Storage, Tensor},
};

impl DType {
    /// Returns torch's name: `float32`.
    pub fn name(self) -> &'static str {
        match self {
            DType::Float64 => "float64",
            DType::Float32 => "float32",
            DType::Float16 => "float16",
            DType::BFloat16 => "bfloat16",
            DType::Int64 => "int64",
            DType::Int32 => "int32",
            DType::Int16 => "int16",
            DType::Int8 => "int8",
            DType::UInt8 => "uint8",
            DType::UInt16 => "uint16",
            DType::UInt32 => "uint32",
            DType::UInt64 => "uint64",
            DType::Bool => "bool",
            DType::Complex64 => "complex64",
            DType::Complex128 => "complex128",
            DType::Float8E4M3 => "float8_e4m3fn",
            DType::Float8E5M2 => "float8_e5m2",
        }
    }

    /// Returns the size of one element in bytes.
    pub fn bytes(self) -> u64 {
        match self {
            DType::Complex128 => 16,
            DType::Float64 | DType::Int64 | DType::UInt64 | DType::Complex64 => 8,
            DType::Float32 | DType::Int32 | DType::UInt32 => 4,
            DType::Float16 | DType::BFloat16 | DType::Int16 | DType::UInt16 => 2,
            DType::Int8 | DType::UInt8 | DType::Bool | DType::Float8E4M3 | DType::Float8E5M2 => 1,
        }
    }

    /// Tells whether it is a floating-point one.
    pub fn is_float(self) -> bool {
        use DType::{BFloat16, Float8E4M3, Float8E5M2, Float16, Float32, Float64};
        matches!(self, Float64 | Float32 | Float16 | BFloat16 | Float8E4M3 | Float8E5M2)
    }

    /// Tells whether it is a complex one.
    pub fn is_complex(self) -> bool {
        matches!(self, DType::Complex64 | DType::Complex128)
    }
}

/// Reads the name of a storage class.
pub(super) fn dtype(storage: &str) -> Option<DType> {
    Some(match storage {
        "DoubleStorage" => DType::Float64,
        "FloatStorage" => DType::Float32,
        "HalfStorage" => DType::Float16,
        "BFloat16Storage" => DType::BFloat16,
        "LongStorage" => DType::Int64,
        "IntStorage" => DType::Int32,
        "ShortStorage" => DType::Int16,
        "CharStorage" => DType::Int8,
        "ByteStorage" => DType::UInt8,
        "UInt16Storage" => DType::UInt16,
        "UInt32Storage" => DType::UInt32,
        "UInt64Storage" => DType::UInt64,
        "BoolStorage" => DType::Bool,
        "ComplexFloatStorage" => DType::Complex64,
        "ComplexDoubleStorage" => DType::Complex128,
        "Float8_e4m3fnStorage" => DType::Float8E4M3,
        "Float8_e5m2Storage" => DType::Float8E5M2,
        _ => return None,
    })
}

/// Remembers where records lie: a storage shared by many tensors is looked up once.
#[derive(Default)]
pub(crate) struct Extents {
    known: HashMap<String, Extent>,
}

impl Extents {
    fn find(&mut self, record: &str, records: &mut Records<'_>) -> Result<Extent, TraceError> {
        if let Some(extent) = self.known.get(record) {
            return Ok(*extent);
        }
        let extent = records.extent(record)?;
        self.known.insert(record.to_owned(), extent);
        Ok(extent)
    }
}

/// Reads a tensor object; `None` when it is something else. `folder` is `data` or `constants`.
pub(crate) fn tensor(
    pickle: &Pickle<'_>,
    id: ObjectId,
    (folder, path, role): (&str, &str, Role),
    extents: &mut Extents,
    records: &mut Records<'_>,
) -> Result<Option<Tensor>, TraceError> {
    let Object::Tensor { storage, offset, shape, strides, requires_grad } = pickle.get(id) else {
        return Ok(None);
    };
    let Object::Storage { dtype: class, key, device, elements } = pickle.get(*storage) else {
        return Ok(None);
    };
    let wrong = |reason: String| TraceError::Object { path: path.to_owned(), reason };
    let dtype =
        dtype(class).ok_or_else(|| wrong(PickleFault::UnknownDType(format!("torch.{class}")).to_string()))?;
    let record = format!("{folder}/{key}");
    let extent = extents.find(&record, records)?;
    if elements.checked_mul(dtype.bytes()).is_none_or(|bytes| bytes > extent.bytes) {
        return Err(wrong(format!("{elements} elements of {dtype:?} in a record of {} bytes", extent.bytes)));
    }
    if end(*offset, shape, strides).is_none_or(|end| end > *elements) {
        return Err(wrong(format!(
            "sizes {shape:?} with strides {strides:?} from {offset} reach past the {elements} stored elements"
        )));
    }
    Ok(Some(Tensor {
        path: path.to_owned(),
        dtype,
        shape: shape.clone(),
        strides: strides.clone(),
        storage: Some(Storage {
            record,
            offset: *offset,
            elements: *elements,
            position: Some(extent.position),
            bytes: extent.bytes,
            checksum: extent.checksum,
        }),
        requires_grad: *requires_grad,
        role,
        device: (*device).to_owned(),
    }))
}

/// Returns one past the last element that the tensor reaches; `None` when the numbers overflow.
pub(crate) fn end(offset: u64, shape: &[u64], strides: &[u64]) -> Option<u64> {
    // The count itself must fit too: with stride 0 a tiny storage can claim any size.
    let count = shape.iter().try_fold(1_u64, |count, size| count.checked_mul(*size));
    if count? == 0 {
        return Some(offset);
    }
    let mut last = offset;
    for (size, stride) in shape.iter().zip(strides) {
        last = last.checked_add(stride.checked_mul(size - 1)?)?;
    }
    last.checked_add(1)
}
