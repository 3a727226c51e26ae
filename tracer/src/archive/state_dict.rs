//! Finds the state dict in a pickle, and a tensor's role by its name.

use super::pickle::{Object, ObjectId, Pickle};
use crate::program::{DType, Role};

/// Dictionaries inside one another: `{"model": {"state_dict": {…}}}`.
pub(crate) const MAX_DEPTH: usize = 4;

/// Finds the outermost dictionary that holds tensors, and its tensors by name.
pub(crate) fn dictionary<'a>(
    pickle: &'a Pickle<'_>,
    id: ObjectId,
    depth: usize,
) -> Option<Vec<(&'a str, ObjectId)>> {
    let Object::Dict(pairs) = pickle.get(id) else { return None };
    let is_tensor = |id: &ObjectId| matches!(pickle.get(*id), Object::Tensor { .. });
    let named: Vec<(&str, ObjectId)> = pairs
        .iter()
        .filter_map(|(key, value)| match pickle.get(*key) {
            Object::Str(name) if is_tensor(value) => Some((*name, *value)),
            _ => None,
        })
        .collect();
    if !named.is_empty() {
        return Some(named);
    }
    let depth = depth.checked_sub(1)?;
    pairs.iter().find_map(|(_, value)| dictionary(pickle, *value, depth))
}

/// Tells parameters from buffers where a file does not: batch norm's names, and numbers that cannot train.
pub fn role_by_name(path: &str, dtype: DType) -> Role {
    let name = path.rsplit('.').next().unwrap_or(path);
    match name {
        "running_mean" | "running_var" | "num_batches_tracked" => Role::Buffer,
        _ if dtype.is_float() || dtype.is_complex() => Role::Parameter,
        _ => Role::Buffer,
    }
}
