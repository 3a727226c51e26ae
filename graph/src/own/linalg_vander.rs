//! `linalg_vander`: powers of each number.

use super::Own;
use crate::{
    cost::{keep::Keep, times},
    fact::TensorFact,
    infer::{
        call::{Call, Known, Result, fresh_fact, shape},
        widened,
    },
};

pub(super) const OWN: Own = Own { infer, keep, flops: None };

fn infer(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let mut sizes = shape(input)?.clone();
    if sizes.is_empty() {
        sizes.push(Some(1));
    }
    let own = *sizes.last().known()?;
    sizes.push(if call.has("N") { call.int("N").and_then(|n| u64::try_from(n).ok()) } else { own });
    fresh_fact(input.dtype.map(widened), sizes)
}

fn keep(keep: &mut Keep<'_>, call: &Call<'_>, result: Option<&TensorFact>) -> bool {
    let Ok(input) = call.first() else { return false };
    keep.tensor(input);
    let power = input.bytes().zip(input.elements().filter(|n| *n > 0)).map(|(bytes, n)| bytes / n);
    let columns = result.and_then(|result| result.shape.as_ref()?.last().copied().flatten());
    let all = input.elements().zip(columns).zip(power);
    keep.fresh(all.map(|((n, columns), power)| times([n, columns.saturating_sub(1), power])));
    true
}
