//! Results of exchanges between devices, which `layout` inserts into programs.
//!
//! Their last operand is the number of devices.

use super::{
    call::{Call, Known, Result, fresh_fact, reject, shape},
    rules::rules,
};
use crate::fact::{Dim, Fact};

rules! {
    exchanged: Shared,
    rows: SharedRows,
    experts: SharedExperts,
    taken: SharedTaken,
    first: SharedFirst,
    number: SharedNumber,
}

fn degree(call: &Call<'_>) -> Result<u64> {
    super::call::integer(call.at(call.len().saturating_sub(1)))
        .and_then(|degree| u64::try_from(degree).ok())
        .filter(|degree| *degree > 0)
        .known()
}

fn divided(size: Dim, by: u64) -> Result<Dim> {
    match size {
        Some(size) if !size.is_multiple_of(by) => reject!("{size} is not a multiple of {by}"),
        size => Ok(size.map(|size| size / by)),
    }
}

/// Slices, and gathered slices.
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

/// Rows of bands: those of the first device, which has the most.
pub fn rows(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let degree = degree(call)? as i64;
    let mut sizes = shape(input)?.clone();
    let number = |at: usize| super::call::integer(call.at(at)).known();
    let dim = usize::try_from(number(1)?).ok().filter(|dim| *dim < sizes.len()).known()?;
    let most = |size: i64| -(-size).div_euclid(degree);
    let (size, results) = (number(2)?, number(3).unwrap_or(0));
    let own = sizes[dim].and_then(|rows| i64::try_from(rows).ok());
    let given = if call.name == "shard_to_bands" { size } else { most(size) };
    if !matches!(call.name, "shard_crop" | "shard_counted") && own.is_some_and(|own| own != given) {
        reject!("{} rows are not the {given} of a band of {size}", own.unwrap_or_default());
    }
    let made = match call.name {
        "shard_to_bands" => most(size),
        "shard_from_bands" | "shard_from_bands_split" => size,
        "shard_window" => (most(results) - 1) * number(5)? + number(4)?,
        "shard_spread" => {
            let (reach, stride, padding) = (number(4)? - 1, number(5)?.max(1), number(6)?);
            let last = most(results) - 1 + padding;
            let first = (-(reach - padding).div_euclid(stride)).min(padding.div_euclid(stride));
            last.div_euclid(stride).max(-(reach - last).div_euclid(stride)) + 1 - first
        }
        _ => most(results),
    };
    sizes[dim] = u64::try_from(made).ok();
    fresh_fact(input.dtype, sizes)
}

/// Rows of experts: on each device as many as with even routing.
pub fn experts(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let degree = degree(call)?;
    let mut sizes = shape(input)?.clone();
    let Some(rows) = sizes.first_mut() else { reject!("a tensor without rows") };
    *rows = match call.name {
        "shard_to_experts" => divided(*rows, degree)?,
        _ => rows.map(|rows| rows.saturating_mul(degree)),
    };
    fresh_fact(input.dtype, sizes)
}

/// Rows at positions: on each device as many as if all came to the same.
pub fn taken(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let mut sizes = shape(input)?.clone();
    let positions = shape(call.at(1).tensor().known()?)?.first().copied().flatten();
    let Some(rows) = sizes.first_mut() else { reject!("a tensor without rows") };
    *rows = divided(positions, degree(call)?)?;
    fresh_fact(input.dtype, sizes)
}

/// Rows on the first device, whose sizes these are.
pub fn first(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let degree = degree(call)?;
    let mut sizes = shape(input)?.clone();
    let given = super::call::integer(call.at(1)).and_then(|rows| u64::try_from(rows).ok()).known()?;
    let Some(rows) = sizes.first_mut() else { reject!("a tensor without rows") };
    let own = if call.name == "shard_collect" { divided(Some(given), degree)? } else { Some(given) };
    if rows.is_some() && *rows != own {
        reject!("{} rows are not those of {given}", rows.unwrap_or_default());
    }
    *rows = if call.name == "shard_deal" { divided(Some(given), degree)? } else { Some(given) };
    fresh_fact(input.dtype, sizes)
}

/// Conversions between the size of a part and the size of the whole.
pub fn number(call: &Call<'_>) -> Result {
    let degree = degree(call)?;
    let number = super::call::integer(call.at(0));
    Ok(Fact::Int(match (call.name, number) {
        ("shard_rows", Some(number)) => Some(-(-number).div_euclid(degree as i64)),
        ("shard_on_first", number) => number,
        ("shard_all_rows", _) => super::call::integer(call.at(1)),
        ("shard_part", Some(number)) => match u64::try_from(number) {
            Ok(number) => divided(Some(number), degree)?.and_then(|number| i64::try_from(number).ok()),
            Err(_) => reject!("{number} cannot be divided"),
        },
        (_, Some(number)) => number.checked_mul(degree as i64),
        (_, None) => None,
    }))
}
