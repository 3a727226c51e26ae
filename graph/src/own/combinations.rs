//! `combinations`: one row per choice of `r` elements.

use super::Own;
use crate::{
    cost::keep::Keep,
    fact::{Dim, Shape, TensorFact, show_shape},
    infer::call::{Call, Known, Result, fresh_fact, reject, shape},
};

pub(super) const OWN: Own = Own { infer, keep, flops: None };

fn infer(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let [size] = shape(input)?.as_slice() else { reject!("{} is not a list", show_shape(shape(input)?)) };
    let Ok(r) = u64::try_from(call.int("r").known()?) else { reject!("a negative number of elements") };
    if r == 0 {
        return fresh_fact(input.dtype, Shape::from_slice(&[Some(0)]));
    }
    let is_repeated = call.flag("with_replacement").known()?;
    let rows = size.and_then(|n| match (is_repeated, n) {
        (true, 0) => Some(0),
        (true, n) => ways(n.checked_add(r - 1)?, r),
        (false, n) => ways(n, r),
    });
    fresh_fact(input.dtype, Shape::from_slice(&[rows, Some(r)]))
}

/// The number of ways to choose `k` of `n`, which at least doubles with every step.
fn ways(n: u64, k: u64) -> Dim {
    let Some(rest) = n.checked_sub(k) else { return Some(0) };
    (0..k.min(rest)).try_fold(1_u64, |ways, at| Some(ways.checked_mul(n - at)? / (at + 1)))
}

/// A mask over all choices with repetition, in any order.
fn keep(keep: &mut Keep<'_>, call: &Call<'_>, _: Option<&TensorFact>) -> bool {
    let Ok(input) = call.first() else { return false };
    keep.tensor(input);
    let length = call.int("r").and_then(|r| u32::try_from(r).ok());
    keep.fresh(input.elements().zip(length).and_then(|(n, length)| n.checked_pow(length)));
    true
}
