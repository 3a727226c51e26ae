//! Tensors of a model that was traced without its weights: the archive holds stand-ins for them.
//!
//! A stand-in has the tensor's sizes over a short piece of memory that all of them share. Here each becomes a tensor that
//! fills memory of its own, densely, whose bytes lie nowhere.

use std::collections::BTreeSet;

use crate::program::{Tensor, dense_strides};

/// Removes the numbers of the tensors at these paths. Paths that shared one tensor still do.
pub(super) fn forget(tensors: &mut [Tensor], paths: &BTreeSet<String>) {
    for tensor in tensors.iter_mut().filter(|tensor| paths.contains(&tensor.path)) {
        let Some(storage) = &mut tensor.storage else { continue };
        tensor.strides = dense_strides(&tensor.shape);
        let elements = tensor.shape.iter().fold(1_u64, |product, size| product.saturating_mul(*size));
        // The first element tells stand-ins apart.
        storage.record = format!("{}@{}", storage.record, storage.offset);
        storage.offset = 0;
        storage.elements = elements;
        storage.bytes = elements.saturating_mul(tensor.dtype.bytes());
        storage.position = None;
        storage.checksum = None;
    }
}
