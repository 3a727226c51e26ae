//! `norm_except_dim`: the norm over all dimensions but one; over everything for -1.

use super::Own;
use crate::{
    cost::keep::Keep,
    fact::{Shape, TensorFact},
    infer::{
        call::{Call, Known, Result, fresh_fact, shape, wrap},
        contiguous_strides,
    },
};

pub(super) const OWN: Own = Own { infer, keep, flops: None };

fn infer(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let sizes = shape(input)?;
    let along = match call.int("dim").known()? {
        -1 => return fresh_fact(input.dtype, Shape::new()),
        dim => wrap(dim, sizes.len())?,
    };
    fresh_fact(
        input.dtype,
        (0..sizes.len()).map(|at| if at == along { sizes[at] } else { Some(1) }).collect(),
    )
}

/// The norms, and their operand: a contiguous copy, if it is not contiguous or the dimension is neither first nor last.
fn keep(keep: &mut Keep<'_>, call: &Call<'_>, result: Option<&TensorFact>) -> bool {
    let (Ok(input), Some(dim)) = (call.first(), call.int("dim")) else { return false };
    let Some(sizes) = &input.shape else { return false };
    let is_outer = dim == -1 || wrap(dim, sizes.len()).is_ok_and(|at| at == 0 || at + 1 == sizes.len());
    if dim == -1 || is_outer && input.strides == contiguous_strides(sizes) {
        keep.tensor(input);
    } else {
        keep.fresh(input.bytes());
    }
    result.into_iter().for_each(|norms| keep.tensor(norms));
    true
}
