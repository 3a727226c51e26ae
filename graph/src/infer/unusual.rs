//! Operators that few models use: distances, quantiles, spectra, products of grids, areas, histograms.

use operators::ShapeRule;
use tracer::DType;

use super::{
    call::{Call, Known, Result, Stop, fresh, fresh_fact, integer, integers, reject, shape, wrap},
    elementwise::{broadcast, float_of, promote_pair},
    rules::rules,
};
use crate::fact::{Dim, Fact, Shape, show_shape};

rules! {
    row_by_row: RowByRow,
    pairs: Pdist,
    quantile: Quantile,
    extremes: AMinMax,
    trace: Trace,
    covariance: Covariance,
    area: Trapezoid | RunningTrapezoid,
    sum_to_size: SumToSize,
    histograms: Histogram | HistogramOfRows,
    places: NonzeroStatic,
    unpool: MaxUnpool,
    fractional_pool: FractionalPool,
    turned: Rot90,
    blocks: BlockDiag,
    choices: CartesianProd,
    gradient: Gradient,
}

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

/// `quantile`: one row per quantile if there are several.
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
        if !dims.contains(&at) {
            result.push(*size);
        } else if keep {
            result.push(Some(1));
        }
    }
    fresh_fact(input.dtype, result)
}

/// `rot90`: the two dimensions are exchanged by an odd number of turns.
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
    fresh_fact(input.dtype.map(super::reduce::widened), Shape::new())
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
            other => reject!("{} is not a matrix", show_shape(other)),
        };
        rows = rows.zip(height).and_then(|(sum, more)| sum.checked_add(more));
        columns = columns.zip(width).and_then(|(sum, more)| sum.checked_add(more));
    }
    fresh_fact(all.first().known()?.dtype, Shape::from_slice(&[rows, columns]))
}

/// `cartesian_prod`: one row per choice of one element from each list.
pub fn choices(call: &Call<'_>) -> Result {
    let all = call.tensors();
    let dtype = all.first().known()?.dtype;
    let mut rows: Dim = Some(1);
    for tensor in &all {
        let [size] = shape(tensor)?.as_slice() else {
            reject!("{} is not a list", show_shape(shape(tensor)?))
        };
        rows = rows.zip(*size).and_then(|(rows, size)| rows.checked_mul(size));
    }
    match all.len() {
        1 => fresh_fact(dtype, Shape::from_slice(&[rows])),
        n => fresh_fact(dtype, Shape::from_slice(&[rows, Some(n as u64)])),
    }
}

/// `max_unpool2d`, `max_unpool3d`: the requested size.
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

/// `fractional_max_pool2d`, `fractional_max_pool3d`: the requested size, and the positions of the maxima.
pub fn fractional_pool(call: &Call<'_>) -> Result {
    let pooled = unpool(call)?;
    let sizes = pooled.tensor().and_then(|pooled| pooled.shape.clone()).known()?;
    Ok(Fact::List(vec![pooled, Fact::Tensor(fresh(Some(DType::Int64), sizes))]))
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

/// `cov`, `corrcoef`: one number per pair of rows.
pub fn covariance(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let mut dtype = input.dtype.map(float_of);
    if let Ok(weights) = call.tensor("aweights") {
        dtype = dtype.zip(weights.dtype).map(|(own, other)| promote_pair(own, other));
    }
    match shape(input)?.as_slice() {
        [] | [_] | [Some(1), _] => fresh_fact(dtype, Shape::new()),
        [Some(rows), _] => fresh_fact(dtype, Shape::from_slice(&[Some(*rows), Some(*rows)])),
        [None, _] => Err(Stop::Unknown),
        other => reject!("rows of {}", show_shape(other)),
    }
}

/// `trapezoid`, `trapz`, `cumulative_trapezoid`: areas between neighbours, summed.
pub fn area(call: &Call<'_>) -> Result {
    let y = call.first()?;
    let mut sizes = shape(y)?.clone();
    let rank = sizes.len();
    let dim = call.dim("dim", rank)?;
    let is_running = call.shape_rule() == ShapeRule::RunningTrapezoid;
    let between = |size: &mut Dim| *size = size.map(|size| size.saturating_sub(1));
    let Some(own) = sizes.get_mut(dim) else { reject!("the area below a number") };
    let is_empty = *own == Some(0);
    between(own);
    let mut dtype = y.dtype;
    if let Some(x) = call.get("x").and_then(Fact::tensor) {
        dtype = dtype.zip(x.dtype).map(|(a, b)| promote_pair(a, b));
        let mut steps = match shape(x)?.as_slice() {
            [only] => (0..rank).map(|at| if at == dim { *only } else { Some(1) }).collect(),
            of => {
                let missing = rank.saturating_sub(of.len());
                std::iter::repeat_n(Some(1), missing).chain(of.iter().copied()).collect::<Shape>()
            }
        };
        if !is_empty {
            between(steps.get_mut(dim).known()?);
            sizes = broadcast(&[&sizes, &steps])?;
        }
    }
    if !is_running && dim < sizes.len() {
        sizes.remove(dim);
    }
    fresh_fact(dtype.map(float_of), sizes)
}

/// `gradient`: one result of the input's sizes per dimension.
pub fn gradient(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let sizes = shape(input)?;
    let count = match call.get("dim") {
        None | Some(Fact::None) => sizes.len(),
        Some(_) => call.dims("dim", sizes.len())?.len(),
    };
    let one = Fact::Tensor(fresh(input.dtype.map(float_of), sizes.clone()));
    Ok(Fact::List(vec![one; count]))
}

/// `sum_to_size`: sums over broadcast dimensions, or the tensor itself.
pub fn sum_to_size(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let asked = call.ints("size").known()?;
    let asked: Shape = asked.into_iter().map(|size| size.and_then(|size| u64::try_from(size).ok())).collect();
    if shape(input)? == &asked && !asked.is_empty() {
        return Ok(call.at(0).clone());
    }
    fresh_fact(input.dtype.map(super::reduce::widened), asked)
}

/// `nonzero_static`: the requested number of positions.
pub fn places(call: &Call<'_>) -> Result {
    let rank = shape(call.first()?)?.len() as u64;
    let asked = call.int("size").and_then(|size| u64::try_from(size).ok());
    fresh_fact(Some(DType::Int64), Shape::from_slice(&[asked, Some(rank)]))
}

/// `histogram`, `histogramdd`: counts, and the bounds of the bins in each dimension.
pub fn histograms(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let bounds = |bins: &Fact| match bins {
        Fact::Tensor(bounds) => bounds.elements(),
        bins => integer(bins).and_then(|bins| u64::try_from(bins).ok()?.checked_add(1)),
    };
    let is_one = call.shape_rule() == ShapeRule::Histogram;
    let all: Vec<Dim> = match (is_one, call.get("bins").known()?) {
        (true, bins) => vec![bounds(bins)],
        (_, Fact::List(bins)) => bins.iter().map(bounds).collect(),
        (_, bins) => {
            let n = shape(input)?.last().copied().flatten().filter(|n| *n <= 64).known()?;
            vec![bounds(bins); n as usize]
        }
    };
    let counts = all.iter().map(|bounds| bounds.map(|bounds| bounds.saturating_sub(1))).collect();
    let mut edges: Vec<Fact> =
        all.iter().map(|bounds| Fact::Tensor(fresh(input.dtype, Shape::from_slice(&[*bounds])))).collect();
    let counts = Fact::Tensor(fresh(input.dtype, counts));
    let edges = if is_one { edges.pop().known()? } else { Fact::List(edges) };
    Ok(Fact::List(vec![counts, edges]))
}
