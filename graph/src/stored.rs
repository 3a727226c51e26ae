//! Parameters, buffers and constants, and the storages that they share.

use std::collections::HashMap;

use indexmap::IndexMap;
use tracer::{Program, Role, TensorId};

use crate::{
    fact::{Shape, StorageId},
    infer::contiguous_strides,
    model::{ModelGraph, Origin, Storage, StoredTensor},
    sizes::sizes,
};

/// Lists stored tensors and groups those that share memory.
pub fn place_tensors(program: &Program, graph: &mut ModelGraph) {
    let mut by_record: HashMap<&str, (TensorId, StorageId)> = HashMap::new();
    let mut by_place: IndexMap<(&str, u64, &[u64]), Vec<TensorId>> = IndexMap::new();
    let derived = sizes(program);
    for (index, (tensor, derived)) in program.tensors.iter().zip(derived).enumerate() {
        let id = TensorId(index as u32);
        let is_written =
            tensor.storage.is_some() || !tensor.shape.is_empty() || tensor.role == Role::Constant;
        let derived = derived.filter(|_| !is_written);
        let has_shape = is_written || derived.is_some();
        let (shape, strides) = match derived {
            Some(sizes) => {
                let known: Shape = sizes.iter().map(|size| Some(*size)).collect();
                (sizes.to_vec(), contiguous_strides(&known).unwrap_or_default().to_vec())
            }
            None => (tensor.shape.clone(), tensor.strides.clone()),
        };
        let elements = shape.iter().fold(1_u64, |product, size| product.saturating_mul(*size));
        let bytes = if has_shape { elements.saturating_mul(tensor.dtype.bytes()) } else { 0 };
        let record = tensor.storage.as_ref().map(|storage| storage.record.as_str());
        let known = record.and_then(|record| by_record.get(record).copied());
        let (_, storage) = known.unwrap_or_else(|| {
            let bytes = tensor.storage.as_ref().map_or(bytes, |storage| storage.bytes);
            graph.storages.push(Storage { origin: Origin::Stored(id), bytes: Some(bytes) });
            let storage = StorageId((graph.storages.len() - 1) as u32);
            if let Some(record) = record {
                by_record.insert(record, (id, storage));
            }
            (id, storage)
        });
        let mut first = id;
        if let Some(place) = &tensor.storage {
            let group = by_place.entry((&place.record, place.offset, &tensor.shape)).or_default();
            group.push(id);
            first = group[0];
        }
        graph.tensors.push(StoredTensor {
            id,
            path: tensor.path.clone(),
            role: tensor.role,
            dtype: tensor.dtype,
            shape,
            has_shape,
            strides,
            bytes,
            requires_grad: tensor.requires_grad && tensor.role == Role::Parameter,
            storage,
            first,
            consumers: Vec::new(),
        });
    }
    graph.tied = by_place.into_values().filter(|group| group.len() > 1).collect();
}
