//! The weights of an exported program: raw records since torch 2.9, a `torch.save` file inside the archive before.
//!
//! A program that was exported without its weights (fake or meta tensors) has all of them in one record without a byte.

use std::collections::HashMap;

use indexmap::IndexMap;

use super::{
    codes::{STRIDED, dtype},
    document::{MAX_DIMENSIONS, Payload, Payloads, TensorMeta},
    generation::{Generation, export},
    record::json,
};
use crate::{
    archive::{
        pickle::Pickle,
        state_dict::{MAX_DEPTH, dictionary},
        tensor::{Extents, end, tensor},
        zip::{Extent, Records},
    },
    bytes::{Bytes, Slice},
    error::TraceError,
    program::{DType, Role, Storage, Tensor, dense_strides},
};

/// A tensor's type, sizes and place.
#[derive(Clone, Debug)]
pub(super) struct StoredTensor {
    pub dtype: DType,
    pub shape: Vec<u64>,
    pub strides: Vec<u64>,
    pub storage: Storage,
}

/// The tensors of an archive by name, and what is odd about them.
#[derive(Default)]
pub(super) struct Weights {
    pub parameters: HashMap<String, StoredTensor>,
    pub constants: HashMap<String, StoredTensor>,
    /// Names of those that are stored as Python objects, which are not opened.
    pub pickled: Vec<String>,
}

impl Weights {
    /// Reads where all tensors of a model lie.
    pub(super) fn read(
        bytes: &dyn Bytes,
        records: &mut Records<'_>,
        generation: &Generation,
    ) -> Result<Self, TraceError> {
        let mut weights = Weights::default();
        match generation {
            Generation::Flat => {
                weights.parameters = saved(bytes, records, "serialized_state_dict.pt")?;
                weights.constants = saved(bytes, records, "serialized_constants.pt")?;
            }
            Generation::Folder { model } => {
                for folder in ["weights", "constants"] {
                    let config = format!("data/{folder}/{model}_{folder}_config.json");
                    let whole = format!("data/{folder}/{model}.pt");
                    let found = if records.has(&config) {
                        weights.raw(&config, &format!("data/{folder}"), records)?
                    } else if records.has(&whole) {
                        saved(bytes, records, &whole)?
                    } else {
                        HashMap::new()
                    };
                    match folder {
                        "weights" => weights.parameters = found,
                        _ => weights.constants = found,
                    }
                }
            }
        }
        Ok(weights)
    }

    /// Reads a table of raw records.
    fn raw(
        &mut self,
        config: &str,
        folder: &str,
        records: &mut Records<'_>,
    ) -> Result<HashMap<String, StoredTensor>, TraceError> {
        let payloads: Payloads = json(records, config)?;
        let mut extents = HashMap::new();
        let mut places = HashMap::new();
        for (name, Payload { path_name, use_pickle, tensor_meta }) in payloads.config {
            let meta = match tensor_meta {
                Some(meta) if !use_pickle => meta,
                _ => {
                    self.pickled.push(name);
                    continue;
                }
            };
            let record = format!("{folder}/{path_name}");
            let extent = match extents.get(&record) {
                Some(extent) => *extent,
                None => *extents.entry(record.clone()).or_insert(records.extent(&record)?),
            };
            places.insert(name.clone(), place(&name, &meta, record, extent)?);
        }
        Ok(places)
    }
}

/// Returns a tensor's place in a raw record.
fn place(name: &str, meta: &TensorMeta, record: String, extent: Extent) -> Result<StoredTensor, TraceError> {
    let wrong = |reason: String| export(format!("`{name}` {reason}"));
    if meta.layout != STRIDED {
        return Err(wrong("is sparse, and only dense tensors are read".to_owned()));
    }
    let (dtype, shape, _) = described(name, meta)?;
    let mut strides =
        fixed(&meta.strides).ok_or_else(|| wrong("has strides that are not numbers".to_owned()))?;
    let offset = meta.storage_offset.as_ref().map_or(Some(0), super::document::SymInt::example);
    let offset = offset.ok_or_else(|| wrong("has an offset that is not a number".to_owned()))?;
    if strides.len() != shape.len() {
        return Err(wrong(format!("has sizes {shape:?} and strides {strides:?}")));
    }
    let reach =
        end(offset, &shape, &strides).ok_or_else(|| wrong(format!("has sizes {shape:?}, beyond measure")))?;
    let elements = extent.bytes / dtype.bytes();
    let is_empty = shape.contains(&0);
    let storage = if extent.bytes == 0 && !is_empty {
        strides = dense_strides(&shape);
        let elements = shape.iter().fold(1_u64, |product, size| product.saturating_mul(*size));
        // Nothing ties tensors whose numbers are not there.
        let record = format!("{record}@{name}");
        let bytes = elements.saturating_mul(dtype.bytes());
        Storage { record, offset: 0, elements, position: None, bytes, checksum: None }
    } else if reach > elements && !is_empty {
        return Err(wrong(format!(
            "has sizes {shape:?} with strides {strides:?} from {offset}, past the {} bytes of record `{record}`",
            extent.bytes
        )));
    } else {
        let (position, bytes, checksum) = (Some(extent.position), extent.bytes, extent.checksum);
        Storage { record, offset, elements, position, bytes, checksum }
    };
    Ok(StoredTensor { dtype, shape, strides, storage })
}

/// Returns the type, sizes and device of a stored tensor.
pub(super) fn described(name: &str, meta: &TensorMeta) -> Result<(DType, Vec<u64>, String), TraceError> {
    if meta.sizes.len() > MAX_DIMENSIONS {
        return Err(TraceError::Limit { what: "dimensions of a tensor", limit: MAX_DIMENSIONS });
    }
    let dtype = dtype(meta.dtype)
        .ok_or_else(|| export(format!("`{name}` has element type {}, which is not read", meta.dtype)))?;
    let shape =
        fixed(&meta.sizes).ok_or_else(|| export(format!("`{name}` has sizes that are not numbers")))?;
    Ok((dtype, shape, meta.device.shown()))
}

fn fixed(sizes: &[super::document::SymInt]) -> Option<Vec<u64>> {
    sizes.iter().map(super::document::SymInt::example).collect()
}

/// Reads the tensors of a `torch.save` file that is a record of the archive.
fn saved(
    bytes: &dyn Bytes,
    records: &mut Records<'_>,
    record: &str,
) -> Result<HashMap<String, StoredTensor>, TraceError> {
    if !records.has(record) {
        return Ok(HashMap::new());
    }
    let extent = records.extent(record)?;
    // An empty state dict was written as no byte at all.
    if extent.bytes == 0 {
        return Ok(HashMap::new());
    }
    let inner = Slice::new(bytes, extent.position, extent.bytes);
    let named = |error: TraceError| export(format!("record `{record}`: {error}"));
    let mut inside = Records::open(&inner).map_err(named)?;
    let data = inside.read("data.pkl").map_err(named)?;
    let pickle = Pickle::read("data.pkl", &data).map_err(named)?;
    let mut extents = Extents::default();
    let mut places: IndexMap<String, StoredTensor> = IndexMap::new();
    for (name, id) in dictionary(&pickle, pickle.root, MAX_DEPTH).unwrap_or_default() {
        let found =
            tensor(&pickle, id, ("data", name, Role::Parameter), &mut extents, &mut inside).map_err(named)?;
        let Some(Tensor { dtype, shape, strides, storage: Some(mut storage), .. }) = found else {
            continue;
        };
        storage.record = format!("{record}/{}", storage.record);
        storage.position = storage.position.and_then(|position| position.checked_add(extent.position));
        places.insert(name.to_owned(), StoredTensor { dtype, shape, strides, storage });
    }
    Ok(places.into_iter().collect())
}
