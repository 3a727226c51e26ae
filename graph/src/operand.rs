//! The values and tensors inside an operand.

use std::collections::HashSet;
use std::hash::Hash;

use tracer::{Operand, TensorId, ValueId};

/// Lists the values and tensors inside an operand in order, with repetitions.
pub fn collect(operand: &Operand, values: &mut Vec<ValueId>, tensors: &mut Vec<TensorId>) {
    match operand {
        Operand::Value(value) => values.push(*value),
        Operand::Tensor(tensor) => tensors.push(*tensor),
        Operand::List(items) | Operand::Tuple(items) => {
            items.iter().for_each(|item| collect(item, values, tensors));
        }
        Operand::Dict(items) => items.iter().for_each(|(key, value)| {
            collect(key, values, tensors);
            collect(value, values, tensors);
        }),
        Operand::Constant(_) => {}
    }
}

/// Keeps only the first occurrence of each item.
pub fn unique<T: Copy + Eq + Hash>(mut items: Vec<T>) -> Vec<T> {
    if items.len() > 1 {
        let mut seen = HashSet::with_capacity(items.len());
        items.retain(|item| seen.insert(*item));
    }
    items
}
