//! `kron`: every element of one with every element of the other.

use super::Own;
use crate::{
    cost::keep::Keep,
    fact::{Shape, TensorFact},
    infer::{
        call::{Call, Known, Result, fresh_fact, shape},
        promote_pair,
    },
};

pub(super) const OWN: Own = Own { infer, keep, flops: None };

fn infer(call: &Call<'_>) -> Result {
    let (a, b) = (call.at(0).tensor().known()?, call.at(1).tensor().known()?);
    let (x, y) = (shape(a)?, shape(b)?);
    let rank = x.len().max(y.len());
    let size = |sizes: &Shape, at: usize| match (at + sizes.len()).checked_sub(rank) {
        Some(own) => sizes[own],
        None => Some(1),
    };
    let product = |at| size(x, at).zip(size(y, at)).and_then(|(a, b)| a.checked_mul(b));
    let dtype = a.dtype.zip(b.dtype).map(|(a, b)| promote_pair(a, b));
    fresh_fact(dtype, (0..rank).map(product).collect())
}

fn keep(keep: &mut Keep<'_>, call: &Call<'_>, _: Option<&TensorFact>) -> bool {
    let (Some(one), Some(other)) = (call.at(0).tensor(), call.at(1).tensor()) else { return false };
    if other.requires_grad {
        keep.tensor(one);
    }
    if one.requires_grad {
        keep.tensor(other);
    }
    true
}
