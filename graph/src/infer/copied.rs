//! `unsqueeze_copy` and similar operators: the result of a view, in memory of its own.

use super::{
    call::{Call, Known, Result, fresh},
    rules::rules,
    table::rule,
};
use crate::fact::Fact;

rules! {
    copied: CopyOfView,
}

/// Applies the view's rule, and makes the result contiguous.
pub fn copied(call: &Call<'_>) -> Result {
    let name = call.name.strip_suffix("_copy").known()?;
    let view = rule(name).known()?;
    Ok(owned((view.infer)(&call.of(name))?))
}

fn owned(fact: Fact) -> Fact {
    match fact {
        Fact::Tensor(tensor) => match tensor.shape {
            Some(sizes) => Fact::Tensor(fresh(tensor.dtype, sizes)),
            None => Fact::Unknown,
        },
        Fact::List(items) => Fact::List(items.into_iter().map(owned).collect()),
        other => other,
    }
}
