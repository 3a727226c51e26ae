//! Reductions: sums, means, extrema, norms, sorting.

use operators::ShapeRule;
use tracer::DType;

use super::{
    call::{Call, Known, Result, contiguous_strides, fresh, fresh_fact, reject, shape},
    elementwise::{float_of, places_by_dimension, promoting, real_of},
    rules::rules,
};
use crate::fact::{Fact, Shape, TensorFact};

rules! {
    sum: Sum,
    mean: Mean | TensorNorm,
    variance: Variance | VarianceAndMean,
    truth: Truth,
    position: Position,
    extreme: Extreme,
    extreme_with_index: ExtremeWithIndex | RunningExtreme,
    sorting: Sorting | TopK | ArgSort | SortedValues,
    by_data: Places | PlacesByDimension | MaskedSelect | BinCount | KeptBoxes | Unique | UniqueSlices | UniqueConsecutive,
}

/// Sums and products: small integers become `int64`.
pub fn sum(call: &Call<'_>) -> Result {
    if call.first().is_err() {
        return super::number::fold(call);
    }
    let input = call.first()?;
    let dtype = call.dtype("dtype")?.or(input.dtype.map(widened));
    fresh_fact(dtype, reduced(call, input)?)
}

/// Returns the dtype of a sum.
pub(crate) fn widened(dtype: DType) -> DType {
    if dtype.is_float() || dtype.is_complex() { dtype } else { DType::Int64 }
}

/// Means, norms and log-sum-exp: floats.
pub fn mean(call: &Call<'_>) -> Result {
    let input = call.first()?;
    // A norm of complex numbers is real.
    let is_norm = call.shape_rule() == ShapeRule::TensorNorm;
    let own = |dtype| if is_norm { real_of(float_of(dtype)) } else { float_of(dtype) };
    let dtype = call.dtype("dtype")?.or(input.dtype.map(own));
    fresh_fact(dtype, reduced(call, input)?)
}

/// `std`, `var` and their pairs with the mean.
pub fn variance(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let result = Fact::Tensor(fresh(input.dtype, reduced(call, input)?));
    Ok(match call.shape_rule() {
        ShapeRule::VarianceAndMean => Fact::List(vec![result.clone(), result]),
        _ => result,
    })
}

/// `any`, `all`: booleans.
pub fn truth(call: &Call<'_>) -> Result {
    if call.first().is_err() {
        return Ok(Fact::Bool(None));
    }
    let input = call.first()?;
    let dtype = if input.dtype == Some(DType::UInt8) { DType::UInt8 } else { DType::Bool };
    fresh_fact(Some(dtype), reduced(call, input)?)
}

/// `argmax`, `argmin`, `count_nonzero`: indices.
pub fn position(call: &Call<'_>) -> Result {
    fresh_fact(Some(DType::Int64), reduced(call, call.first()?)?)
}

/// `amax`, `amin`: the same dtype.
pub fn extreme(call: &Call<'_>) -> Result {
    let input = call.first()?;
    fresh_fact(input.dtype, reduced(call, input)?)
}

/// `max` and `min` in their three forms, `median`, `mode`, `kthvalue`, `cummax`: values with indices.
pub fn extreme_with_index(call: &Call<'_>) -> Result {
    if call.first().is_err() {
        return super::number::fold(call);
    }
    if call.get("other").is_some() {
        return promoting(call);
    }
    let input = call.first()?;
    if call.get("dim").is_none() {
        return fresh_fact(input.dtype, Shape::new());
    }
    let sizes = match call.shape_rule() {
        ShapeRule::RunningExtreme => shape(input)?.clone(),
        _ => reduced(call, input)?,
    };
    let indices = Fact::Tensor(fresh(Some(DType::Int64), sizes.clone()));
    Ok(Fact::List(vec![Fact::Tensor(fresh(input.dtype, sizes)), indices]))
}

/// `sort`, `topk`, `msort`, `argsort`.
pub fn sorting(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let mut sizes = shape(input)?.clone();
    if call.shape_rule() == ShapeRule::TopK && !sizes.is_empty() {
        let dim = call.dim("dim", sizes.len())?;
        let k = call.int("k").and_then(|k| u64::try_from(k).ok());
        if let (Some(k), Some(size)) = (k, sizes[dim])
            && k > size
        {
            reject!("topk of {k} among {size}");
        }
        sizes[dim] = k;
    }
    let indices = Fact::Tensor(fresh(Some(DType::Int64), sizes.clone()));
    Ok(match call.shape_rule() {
        ShapeRule::ArgSort => indices,
        ShapeRule::SortedValues => Fact::Tensor(fresh(input.dtype, sizes)),
        _ => Fact::List(vec![Fact::Tensor(fresh(input.dtype, sizes)), indices]),
    })
}

/// Returns the sizes after reducing over `dim`, with ones for `keepdim`.
fn reduced(call: &Call<'_>, input: &TensorFact) -> Result<Shape> {
    let sizes = shape(input)?;
    let dims = call.dims("dim", sizes.len())?;
    let keep = match call.get("keepdim") {
        Some(_) => call.flag("keepdim").known()?,
        None => false,
    };
    let result = sizes.iter().enumerate().filter_map(|(position, dim)| {
        if dims.contains(&position) { keep.then_some(Some(1)) } else { Some(*dim) }
    });
    Ok(result.collect())
}

/// Returns a vector of unknown length.
fn list(dtype: Option<DType>) -> Fact {
    Fact::Tensor(TensorFact { strides: None, ..fresh(dtype, Shape::from_slice(&[None])) })
}

/// `bincount`, `nonzero`, `unique`, `masked_select`: results whose sizes depend on values.
pub fn by_data(call: &Call<'_>) -> Result {
    let input = call.first()?;
    Ok(match call.shape_rule() {
        ShapeRule::Places => {
            let rank = shape(input)?.len() as u64;
            let sizes = Shape::from_slice(&[None, Some(rank)]);
            let strides = contiguous_strides(&sizes);
            Fact::Tensor(TensorFact { strides, ..fresh(Some(DType::Int64), sizes) })
        }
        ShapeRule::PlacesByDimension => return places_by_dimension(call),
        ShapeRule::MaskedSelect => list(input.dtype),
        ShapeRule::BinCount if call.has("weights") => list(match call.tensor("weights")?.dtype {
            Some(DType::Float32) => Some(DType::Float32),
            _ => Some(DType::Float64),
        }),
        ShapeRule::BinCount | ShapeRule::KeptBoxes => list(Some(DType::Int64)),
        ShapeRule::UniqueSlices | ShapeRule::UniqueConsecutive if call.has("dim") => {
            let mut sizes = shape(input)?.clone();
            let dim = call.dim("dim", sizes.len())?;
            if let Some(slot) = sizes.get_mut(dim) {
                *slot = None;
            }
            let first = Fact::Tensor(TensorFact { strides: None, ..fresh(input.dtype, sizes) });
            let rest = (1..call.n_outputs.max(1)).map(|_| list(Some(DType::Int64)));
            Fact::List(std::iter::once(first).chain(rest).collect())
        }
        ShapeRule::Unique | ShapeRule::UniqueConsecutive => Fact::List(
            [input.dtype, Some(DType::Int64), Some(DType::Int64)]
                .into_iter()
                .take(call.n_outputs.max(1))
                .map(list)
                .collect(),
        ),
        _ => list(input.dtype),
    })
}
