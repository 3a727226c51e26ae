//! `take_along_dim`: the index's size along a dimension, the others broadcast; without a dimension both are flattened.

use super::Own;
use crate::{
    cost::keep::Keep,
    fact::{Shape, TensorFact, show_shape},
    infer::{
        broadcast,
        call::{Call, Result, fresh_fact, reject, shape},
    },
};

pub(super) const OWN: Own = Own { infer, keep, flops: None };

fn infer(call: &Call<'_>) -> Result {
    let (input, index) = (call.first()?, call.tensor("indices")?);
    if !call.has("dim") {
        return fresh_fact(input.dtype, Shape::from_slice(&[index.elements()]));
    }
    let dim = call.dim("dim", shape(input)?.len())?;
    let mut own = shape(input)?.clone();
    let mut other = shape(index)?.clone();
    let (Some(of_own), Some(of_other)) = (own.get_mut(dim), other.get_mut(dim)) else {
        reject!("positions {} in {}", show_shape(shape(index)?), show_shape(shape(input)?));
    };
    let length = *of_other;
    (*of_own, *of_other) = (Some(1), Some(1));
    let mut sizes = broadcast(&[&own, &other])?;
    sizes[dim] = length;
    fresh_fact(input.dtype, sizes)
}

/// The positions are first expanded to the tensor's size, as a copy.
fn keep(keep: &mut Keep<'_>, call: &Call<'_>, _: Option<&TensorFact>) -> bool {
    let (Some(input), Some(places)) = (call.at(0).tensor(), call.at(1).tensor()) else { return false };
    keep.tensor(input);
    keep.fresh(places.bytes());
    true
}
