//! What exchanges between devices that share the work of one give; `layout` puts them into programs.
//!
//! Their last operand is the number of devices.

use super::call::{Call, Known, Result, fresh_fact, reject, shape};
use crate::fact::{Dim, Fact};

fn degree(call: &Call<'_>) -> Result<u64> {
    super::call::integer(call.at(call.len().saturating_sub(1)))
        .and_then(|degree| u64::try_from(degree).ok())
        .filter(|degree| *degree > 0)
        .known()
}

fn divided(size: Dim, by: u64) -> Result<Dim> {
    match size {
        Some(size) if !size.is_multiple_of(by) => reject!("{size} is no multiple of {by}"),
        size => Ok(size.map(|size| size / by)),
    }
}

/// Slices, and what is gathered of slices.
pub fn exchanged(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let degree = degree(call)?;
    let mut sizes = shape(input)?.clone();
    let dim = |position: usize| -> Result<usize> {
        let dim =
            super::call::integer(call.at(position)).and_then(|dim| usize::try_from(dim).ok()).known()?;
        if dim >= sizes.len() {
            reject!("dimension {dim} of a tensor with {} dimensions", sizes.len());
        }
        Ok(dim)
    };
    let first = dim(1)?;
    match call.name {
        "shard_scatter" | "shard_reduce_scatter" => sizes[first] = divided(sizes[first], degree)?,
        "shard_exchange" => {
            let second = dim(2)?;
            sizes[first] = sizes[first].map(|size| size.saturating_mul(degree));
            sizes[second] = divided(sizes[second], degree)?;
        }
        _ => sizes[first] = sizes[first].map(|size| size.saturating_mul(degree)),
    }
    fresh_fact(input.dtype, sizes)
}

/// What one device has of a number, and what all have.
pub fn number(call: &Call<'_>) -> Result {
    let degree = degree(call)?;
    let number = super::call::integer(call.at(0));
    Ok(Fact::Int(match (call.name, number) {
        ("shard_part", Some(number)) => match u64::try_from(number) {
            Ok(number) => divided(Some(number), degree)?.and_then(|number| i64::try_from(number).ok()),
            Err(_) => reject!("{number} cannot be shared out"),
        },
        (_, Some(number)) => number.checked_mul(degree as i64),
        (_, None) => None,
    }))
}
