//! Operators that few models use: distances, quantiles, spectra, products of grids.

use tracer::DType;

use super::{
    call::{Call, Known, Result, fresh, fresh_fact, integers, reject, shape, wrap},
    elementwise::{broadcast, complex_of, float_of},
};
use crate::fact::{Dim, Fact, Shape, show_shape};

/// `pairwise_distance`, `cosine_similarity`: rows against rows.
pub fn row_by_row(call: &Call<'_>) -> Result {
    let (a, b) = (call.tensor("x1")?, call.tensor("x2")?);
    let mut sizes = broadcast(&[shape(a)?, shape(b)?])?;
    let dtype = a.dtype.map(float_of);
    if sizes.is_empty() {
        return fresh_fact(dtype, sizes);
    }
    let dim = match call.get("dim") {
        Some(_) => call.dim("dim", sizes.len())?,
        None => sizes.len() - 1,
    };
    match call.flag("keepdim") {
        Some(true) => sizes[dim] = Some(1),
        _ => drop(sizes.remove(dim)),
    }
    fresh_fact(dtype, sizes)
}

/// `pdist`: each pair of rows once.
pub fn pairs(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let [rows, _] = shape(input)?.as_slice() else {
        reject!("distances between {}", show_shape(shape(input)?))
    };
    let pairs = rows.and_then(|rows| rows.checked_mul(rows.saturating_sub(1))).map(|twice| twice / 2);
    fresh_fact(input.dtype, Shape::from_slice(&[pairs]))
}

/// `quantile`: one row for each of several quantiles.
pub fn quantile(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let sizes = shape(input)?;
    let dims = match call.get("dim") {
        None | Some(Fact::None) => (0..sizes.len()).collect(),
        Some(_) => vec![call.dim("dim", sizes.len())?],
    };
    let keep = call.flag("keepdim") == Some(true);
    let mut result = match call.get("q").and_then(Fact::tensor) {
        Some(several) => shape(several)?.clone(),
        None => Shape::new(),
    };
    for (at, size) in sizes.iter().enumerate() {
        match dims.contains(&at) {
            true if keep => result.push(Some(1)),
            true => {}
            false => result.push(*size),
        }
    }
    fresh_fact(input.dtype, result)
}

/// `rot90`: the two dimensions change places with every odd turn.
pub fn turned(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let mut sizes = shape(input)?.clone();
    let dims = call.get("dims").and_then(integers).known()?;
    let [Some(a), Some(b)] = dims.as_slice() else { reject!("a turn takes two dimensions") };
    let (a, b) = (wrap(*a, sizes.len())?, wrap(*b, sizes.len())?);
    if a == b {
        reject!("a turn takes two dimensions");
    }
    if call.int("k").known()?.rem_euclid(2) == 1 {
        sizes.swap(a, b);
    }
    fresh_fact(input.dtype, sizes)
}

/// `trace`: the sum of a matrix's diagonal.
pub fn trace(call: &Call<'_>) -> Result {
    let input = call.first()?;
    if shape(input)?.len() != 2 {
        reject!("the trace of {}", show_shape(shape(input)?));
    }
    let widened = |dtype: DType| if dtype.is_float() || dtype.is_complex() { dtype } else { DType::Int64 };
    fresh_fact(input.dtype.map(widened), Shape::new())
}

/// `block_diag`: rows and columns add up.
pub fn blocks(call: &Call<'_>) -> Result {
    let all = call.tensors();
    let (mut rows, mut columns): (Dim, Dim) = (Some(0), Some(0));
    for tensor in &all {
        let (height, width) = match shape(tensor)?.as_slice() {
            [] => (Some(1), Some(1)),
            [width] => (Some(1), *width),
            [height, width] => (*height, *width),
            other => reject!("{} is no matrix", show_shape(other)),
        };
        rows = rows.zip(height).and_then(|(sum, more)| sum.checked_add(more));
        columns = columns.zip(width).and_then(|(sum, more)| sum.checked_add(more));
    }
    fresh_fact(all.first().known()?.dtype, Shape::from_slice(&[rows, columns]))
}

/// `cartesian_prod`: a row for each choice of one element from each list.
pub fn choices(call: &Call<'_>) -> Result {
    let all = call.tensors();
    let dtype = all.first().known()?.dtype;
    let mut rows: Dim = Some(1);
    for tensor in &all {
        let [size] = shape(tensor)?.as_slice() else { reject!("{} is no list", show_shape(shape(tensor)?)) };
        rows = rows.zip(*size).and_then(|(rows, size)| rows.checked_mul(size));
    }
    match all.len() {
        1 => fresh_fact(dtype, Shape::from_slice(&[rows])),
        n => fresh_fact(dtype, Shape::from_slice(&[rows, Some(n as u64)])),
    }
}

/// `kron`: every element of one with every element of the other.
pub fn kron(call: &Call<'_>) -> Result {
    let (a, b) = (call.at(0).tensor().known()?, call.at(1).tensor().known()?);
    let (x, y) = (shape(a)?, shape(b)?);
    let rank = x.len().max(y.len());
    let size = |sizes: &Shape, at: usize| match (at + sizes.len()).checked_sub(rank) {
        Some(own) => sizes[own],
        None => Some(1),
    };
    let product = |at| size(x, at).zip(size(y, at)).and_then(|(a, b)| a.checked_mul(b));
    let dtype = a.dtype.zip(b.dtype).map(|(a, b)| super::elementwise::promote_pair(a, b));
    fresh_fact(dtype, (0..rank).map(product).collect())
}

/// `max_unpool2d`, `max_unpool3d`: the asked size.
pub fn unpool(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let sizes = shape(input)?;
    let asked = call.ints("output_size").known()?;
    let Some(outer) = sizes.len().checked_sub(asked.len()) else {
        reject!("{} has too few dimensions", show_shape(sizes));
    };
    let asked = asked.into_iter().map(|size| size.and_then(|size| u64::try_from(size).ok()));
    fresh_fact(input.dtype, sizes[..outer].iter().copied().chain(asked).collect())
}

/// `stft`: frequencies by windows.
pub fn spectrum(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let (batch, length) = match shape(input)?.as_slice() {
        [length] => (None, *length),
        [batch, length] => (Some(*batch), *length),
        other => reject!("{} is no signal", show_shape(other)),
    };
    let window = call.int("n_fft").and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0).known()?;
    let hop = match call.get("hop_length") {
        None | Some(Fact::None) => (window / 4).max(1),
        Some(_) => {
            call.int("hop_length").and_then(|hop| u64::try_from(hop).ok()).filter(|hop| *hop > 0).known()?
        }
    };
    // torch's own function pads before it calls this.
    let padded = match call.flag("center") {
        Some(true) => length.and_then(|length| length.checked_add(window / 2 * 2)),
        _ => length,
    };
    if padded.is_some_and(|length| length < window) {
        reject!("{} is shorter than a window of {window}", show_shape(shape(input)?));
    }
    let frames = padded.map(|length| 1 + (length - window) / hop);
    let is_complex = input.dtype.known()?.is_complex();
    let is_half = match call.get("onesided") {
        None | Some(Fact::None) => !is_complex,
        Some(_) => call.flag("onesided").known()?,
    };
    let frequencies = if is_half { window / 2 + 1 } else { window };
    let mut sizes: Shape = batch.into_iter().collect();
    sizes.extend([Some(frequencies), frames]);
    if call.flag("return_complex") == Some(true) {
        return fresh_fact(input.dtype.map(complex_of), sizes);
    }
    sizes.push(Some(2));
    fresh_fact(input.dtype, sizes)
}

/// `aminmax`: the least and the largest.
pub fn extremes(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let mut sizes = shape(input)?.clone();
    match call.get("dim") {
        None | Some(Fact::None) => sizes.clear(),
        Some(_) if !sizes.is_empty() => {
            let dim = call.dim("dim", sizes.len())?;
            match call.flag("keepdim") {
                Some(true) => sizes[dim] = Some(1),
                _ => drop(sizes.remove(dim)),
            }
        }
        Some(_) => {}
    }
    let one = Fact::Tensor(fresh(input.dtype, sizes));
    Ok(Fact::List(vec![one.clone(), one]))
}
