//! `segment_reduce`: one row per segment, given by lengths or bounds.

use super::Own;
use crate::{
    cost::keep::Keep,
    fact::TensorFact,
    infer::call::{Call, Known, Result, fresh_fact, shape},
};

pub(super) const OWN: Own = Own { infer, keep, flops: None };

fn infer(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let of = match call.tensor("lengths") {
        Ok(lengths) => shape(lengths)?.clone(),
        Err(_) => {
            let mut bounds = shape(call.tensor("offsets")?)?.clone();
            let last = bounds.last_mut().known()?;
            *last = last.map(|bounds| bounds.saturating_sub(1));
            bounds
        }
    };
    let rest = shape(input)?.iter().skip(of.len()).copied();
    fresh_fact(input.dtype, of.iter().copied().chain(rest).collect())
}

fn keep(keep: &mut Keep<'_>, call: &Call<'_>, result: Option<&TensorFact>) -> bool {
    let Ok(input) = call.first() else { return false };
    keep.tensor(input);
    ["lengths", "offsets"].into_iter().for_each(|name| keep.named(call, name));
    result.into_iter().for_each(|rows| keep.tensor(rows));
    true
}
