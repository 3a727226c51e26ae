//! `linalg_tensorsolve`: the matrix's sizes that the right side does not have.

use super::Own;
use crate::{
    cost::{keep::Keep, times},
    fact::{Fact, TensorFact},
    infer::call::{Call, Known, Result, fresh_fact, shape},
};

pub(super) const OWN: Own = Own { infer, keep, flops: Some(flops) };

fn infer(call: &Call<'_>) -> Result {
    let (a, b) = (call.at(0).tensor().known()?, call.at(1).tensor().known()?);
    let (x, y) = (shape(a)?, shape(b)?);
    let moved = match call.get("dims") {
        Some(Fact::List(_)) => call.dims("dims", x.len())?,
        _ => Vec::new(),
    };
    let kept = (0..x.len()).filter(|at| !moved.contains(at)).chain(moved.iter().copied());
    fresh_fact(a.dtype, kept.skip(y.len()).filter_map(|at| x.get(at).copied()).collect())
}

/// The matrix, its factors with a pivot per row, and the solution.
fn keep(keep: &mut Keep<'_>, call: &Call<'_>, result: Option<&TensorFact>) -> bool {
    let Ok(matrix) = call.first() else { return false };
    keep.tensor(matrix);
    keep.fresh(matrix.bytes());
    keep.fresh(result.and_then(TensorFact::elements).map(|rows| rows.saturating_mul(4)));
    result.into_iter().for_each(|solution| keep.tensor(solution));
    true
}

/// One matrix of all the dimensions.
fn flops(call: &Call<'_>, _: Option<&TensorFact>) -> Option<[u64; 2]> {
    Some([0, times([2, times(call.first().ok()?.sizes()?)])])
}
