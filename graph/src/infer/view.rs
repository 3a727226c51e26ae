//! Views: other sizes and strides over the same storage.
//!
//! `reshape`, `flatten` and `contiguous` are views if the strides allow it and copies otherwise; the difference decides
//! the saved activations.

use operators::ShapeRule;

use smallvec::SmallVec;

use super::{
    call::{Call, Known, Result, contiguous_strides, fresh, integer, integers, reject, shape, view, wrap},
    elementwise::like,
    rules::rules,
};
use crate::fact::{Dim, Fact, Shape, TensorFact, show_shape};

rules! {
    reshape: Reshape,
    flatten: Flatten,
    unflatten: Unflatten,
    ravel: Ravel,
    permute: Permute | ReverseDimensions | TransposeLast | MoveDimensions | SwapAxes | Transpose,
    expand: Expand,
    squeeze: Squeeze,
    unsqueeze: Unsqueeze,
    slice: Slice,
    narrow: Narrow,
    select: Select,
    unbind: Unbind,
    split: Split | HSplit | VSplit | DSplit,
    contiguous: Contiguous,
    identity: Identity,
    as_strided: AsStrided,
    windows: Unfold,
    diagonal: Diagonal,
    complex_parts: ComplexParts | AsComplex | AsReal,
    clone: Clone,
    dropout: Dropout | NativeDropout,
}

type Strides = Option<SmallVec<[u64; 4]>>;

/// `view`, `reshape`, `view_as`, `_unsafe_view`, …
pub fn reshape(call: &Call<'_>) -> Result {
    let input = call.first()?;
    if call.get("size").is_none() && call.has("dtype") {
        // `view(dtype)`: the same bytes read as another type.
        let dtype = call.dtype("dtype")?;
        let (Some(old), Some(new)) = (input.dtype, dtype) else { return Err(super::call::Stop::Unknown) };
        let (old, new) = (old.bytes(), new.bytes());
        let mut sizes = shape(input)?.clone();
        if let Some(last) = sizes.last_mut() {
            *last = last.map(|size| size.saturating_mul(old) / new);
        }
        let strides = contiguous_strides(&sizes);
        return Ok(Fact::Tensor(TensorFact { dtype, ..view(input, sizes, strides) }));
    }
    let asked = match call.get("other") {
        Some(Fact::Tensor(other)) => {
            shape(other)?.iter().map(|dim| dim.and_then(|d| i64::try_from(d).ok())).collect()
        }
        _ => call.ints("size").or_else(|| call.ints("shape")).known()?,
    };
    let sizes = resolve(input, &asked)?;
    Ok(Fact::Tensor(reshaped(input, sizes)))
}

/// Fills in the `-1` and checks that the number of elements is unchanged.
fn resolve(input: &TensorFact, asked: &[Option<i64>]) -> Result<Shape> {
    let old = shape(input)?;
    let total = input.elements();
    let product = asked
        .iter()
        .filter(|dim| **dim != Some(-1))
        .try_fold(1_u64, |product, dim| product.checked_mul(u64::try_from((*dim)?).ok()?));
    let n_free = asked.iter().filter(|dim| **dim == Some(-1)).count();
    let list = || {
        asked.iter().map(|dim| dim.map_or("?".to_string(), |d| d.to_string())).collect::<Vec<_>>().join(", ")
    };
    if n_free > 1 || asked.iter().any(|dim| dim.is_some_and(|dim| dim < -1)) {
        reject!("sizes [{}] are invalid", list());
    }
    let free = match (total, product) {
        (Some(total), Some(product)) if n_free == 1 && product > 0 && total % product == 0 => {
            Some(total / product)
        }
        (Some(total), Some(product)) if n_free == 0 && product == total => None,
        (Some(_), Some(0)) if n_free == 1 => Some(0),
        (Some(total), Some(_)) => {
            reject!("{} has {total} elements, which do not fit into [{}]", show_shape(old), list())
        }
        // One side is unknown: the other may still determine the free size.
        _ => None,
    };
    let mut sizes: Shape = asked
        .iter()
        .map(|dim| match dim {
            Some(-1) => free,
            dim => dim.and_then(|dim| u64::try_from(dim).ok()),
        })
        .collect();
    // A single unknown size follows from the total.
    let unknown: Vec<usize> = (0..sizes.len()).filter(|at| sizes[*at].is_none()).collect();
    if let ([at], Some(total)) = (unknown.as_slice(), total) {
        let rest: Option<u64> =
            sizes.iter().flatten().try_fold(1_u64, |product, size| product.checked_mul(*size));
        sizes[*at] = rest.filter(|rest| *rest > 0 && total % rest == 0).map(|rest| total / rest);
    }
    Ok(sizes)
}

/// Returns a view if the strides allow it, and otherwise a copy.
pub fn reshaped(input: &TensorFact, sizes: Shape) -> TensorFact {
    match (input.sizes(), input.strides.as_ref()) {
        (Some(old), Some(strides)) => match viewed_strides(&old, strides, &sizes) {
            Some(strides) => view(input, sizes, Some(strides)),
            None => fresh(input.dtype, sizes),
        },
        _ => view(input, sizes, None),
    }
}

/// Returns the strides of the same elements with other sizes, if there are any. One walk from the back over runs of
/// dimensions without gaps in memory, as in torch's `computeStride`.
pub fn viewed_strides(old: &[u64], strides: &[u64], new: &Shape) -> Strides {
    let new: SmallVec<[u64; 4]> = new.iter().copied().collect::<Option<_>>()?;
    if old.contains(&0) {
        return contiguous_strides(&new.iter().map(|size| Some(*size)).collect::<Shape>());
    }
    let mut result: SmallVec<[u64; 4]> = SmallVec::from_elem(1, new.len());
    if old.is_empty() {
        return Some(result);
    }
    let mut at = new.len();
    let mut base = *strides.last()?;
    let (mut old_run, mut new_run) = (1_u64, 1_u64);
    for dim in (0..old.len()).rev() {
        old_run = old_run.checked_mul(old[dim])?;
        let ends = dim == 0 || (old[dim - 1] != 1 && Some(strides[dim - 1]) != old_run.checked_mul(base));
        if !ends {
            continue;
        }
        while at > 0 && (new_run < old_run || new[at - 1] == 1) {
            result[at - 1] = new_run.checked_mul(base)?;
            new_run = new_run.checked_mul(new[at - 1])?;
            at -= 1;
        }
        if new_run != old_run {
            return None;
        }
        if dim > 0 {
            base = strides[dim - 1];
            (old_run, new_run) = (1, 1);
        }
    }
    (at == 0).then_some(result)
}

/// `ravel`.
pub fn ravel(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let all = shape(input)?.iter().copied().try_fold(1_u64, |product, dim: Dim| product.checked_mul(dim?));
    Ok(Fact::Tensor(reshaped(input, Shape::from_slice(&[all]))))
}

/// `unflatten`.
pub fn unflatten(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let sizes = shape(input)?;
    let dim = call.dim("dim", sizes.len())?;
    let parts = call.ints("sizes").known()?;
    let known = |part: &Option<i64>| part.and_then(|part| u64::try_from(part).ok());
    let product =
        parts.iter().filter(|p| **p != Some(-1)).try_fold(1_u64, |p, part| p.checked_mul(known(part)?));
    let free = match (sizes.get(dim).copied().flatten(), product) {
        (Some(size), Some(product)) if product > 0 => Some(size / product),
        _ => None,
    };
    let mut result = Shape::from_slice(&sizes[..dim]);
    result.extend(parts.iter().map(|part| if *part == Some(-1) { free } else { known(part) }));
    result.extend_from_slice(sizes.get(dim + 1..).unwrap_or(&[]));
    Ok(Fact::Tensor(reshaped(input, result)))
}

/// `flatten`.
pub fn flatten(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let sizes = shape(input)?;
    let (start, end) = (call.dim("start_dim", sizes.len())?, call.dim("end_dim", sizes.len())?);
    if sizes.is_empty() {
        return Ok(Fact::Tensor(view(input, Shape::from_slice(&[Some(1)]), contiguous_strides(&[Some(1)]))));
    }
    if start > end {
        reject!("flatten from dimension {start} to {end}");
    }
    if start == end {
        return Ok(Fact::Tensor(input.clone()));
    }
    let run = sizes[start..=end].iter().try_fold(1_u64, |product, dim| product.checked_mul((*dim)?));
    let mut result = Shape::from_slice(&sizes[..start]);
    result.push(run);
    result.extend_from_slice(&sizes[end + 1..]);
    Ok(Fact::Tensor(reshaped(input, result)))
}

/// `permute`, `transpose`, `t`, `movedim`, `swapaxes`, `numpy_T`, `mT`.
pub fn permute(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let rank = shape(input)?.len();
    let mut order: Vec<usize> = (0..rank).collect();
    let pair = |a: &str, b: &str| -> Result<(usize, usize)> { Ok((call.dim(a, rank)?, call.dim(b, rank)?)) };
    match call.shape_rule() {
        ShapeRule::Permute => {
            order = call.dims("dims", rank)?;
            let mut seen = order.clone();
            seen.sort_unstable();
            if seen != (0..rank).collect::<Vec<_>>() {
                reject!("{order:?} is not an order of {rank} dimensions");
            }
        }
        ShapeRule::ReverseDimensions => order.reverse(),
        ShapeRule::TransposeLast if rank >= 2 => order.swap(rank - 1, rank - 2),
        ShapeRule::MoveDimensions => {
            let from = call.dims("source", rank)?;
            let to = call.dims("destination", rank)?;
            let mut result = vec![usize::MAX; rank];
            for (from, to) in from.iter().zip(&to) {
                *result.get_mut(*to).known()? = *from;
            }
            let mut rest = (0..rank).filter(|dim| !from.contains(dim));
            for slot in &mut result {
                if *slot == usize::MAX {
                    *slot = rest.next().known()?;
                }
            }
            order = result;
        }
        ShapeRule::SwapAxes if rank > 0 => {
            let (a, b) = pair("axis0", "axis1")?;
            order.swap(a, b);
        }
        ShapeRule::Transpose if rank > 0 => {
            let (a, b) = pair("dim0", "dim1")?;
            order.swap(a, b);
        }
        _ => {}
    }
    Ok(Fact::Tensor(permuted(input, &order)?))
}

/// Returns a tensor with its dimensions in another order.
pub fn permuted(input: &TensorFact, order: &[usize]) -> Result<TensorFact> {
    let sizes = shape(input)?;
    let strides = input.strides.as_ref().map(|strides| order.iter().map(|at| strides[*at]).collect());
    Ok(view(input, order.iter().map(|at| sizes[*at]).collect(), strides))
}

/// `expand`, `expand_as`, `broadcast_to`.
pub fn expand(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let sizes = shape(input)?;
    let asked: Vec<Option<i64>> = match call.get("other") {
        Some(Fact::Tensor(other)) => {
            shape(other)?.iter().map(|dim| dim.and_then(|d| i64::try_from(d).ok())).collect()
        }
        _ => call.ints("size").known()?,
    };
    let Some(extra) = asked.len().checked_sub(sizes.len()) else {
        reject!("{} cannot be expanded to {} dimensions", show_shape(sizes), asked.len());
    };
    let mut result = Shape::new();
    let mut strides: SmallVec<[u64; 4]> = SmallVec::new();
    for (position, want) in asked.iter().enumerate() {
        let own = position.checked_sub(extra).map(|at| sizes[at]);
        let stride =
            position.checked_sub(extra).and_then(|at| input.strides.as_ref().map(|s| s[at])).unwrap_or(0);
        let (size, stride) = match (own, want) {
            (Some(own), Some(-1)) => (own, stride),
            (Some(own), Some(want)) if own == u64::try_from(*want).ok() => (own, stride),
            (Some(None), want) => (want.and_then(|w| u64::try_from(w).ok()), stride),
            (Some(Some(1)) | None, want) => (want.and_then(|w| u64::try_from(w).ok()), 0),
            (Some(own), None) => (own, stride),
            (Some(Some(own)), Some(want)) => {
                reject!("size {own} of {} cannot be expanded to {want}", show_shape(sizes))
            }
        };
        result.push(size);
        strides.push(stride);
    }
    let strides = input.strides.is_some().then_some(strides);
    Ok(Fact::Tensor(view(input, result, strides)))
}

/// `unsqueeze`.
pub fn unsqueeze(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let mut sizes = shape(input)?.clone();
    let at = call.dim("dim", sizes.len() + 1)?;
    let mut strides = input.strides.clone();
    if let Some(strides) = &mut strides {
        let stride = match sizes.get(at) {
            Some(size) => size.map(|size| size.saturating_mul(strides[at])),
            None => Some(1),
        };
        strides.insert(at, stride.unwrap_or(1));
    }
    sizes.insert(at, Some(1));
    Ok(Fact::Tensor(view(input, sizes, strides)))
}

/// `squeeze`.
pub fn squeeze(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let sizes = shape(input)?;
    let mut result = sizes.clone();
    let mut strides = input.strides.clone();
    let dims = match call.get("dim") {
        Some(dims) if !matches!(dims, Fact::None) => integers(dims)
            .known()?
            .into_iter()
            .map(|dim| wrap(dim.known()?, sizes.len()))
            .collect::<Result<Vec<_>>>()?,
        _ => (0..sizes.len()).collect(),
    };
    for at in (0..sizes.len()).rev() {
        if dims.contains(&at) && sizes[at] == Some(1) {
            result.remove(at);
            if let Some(strides) = &mut strides {
                strides.remove(at);
            }
        } else if dims.contains(&at) && sizes[at].is_none() {
            return Err(super::call::Stop::Unknown);
        }
    }
    Ok(Fact::Tensor(view(input, result, strides)))
}

/// `narrow`.
pub fn narrow(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let mut sizes = shape(input)?.clone();
    let dim = call.dim("dim", sizes.len())?;
    let Some(size) = sizes.get(dim).copied() else { reject!("a slice of a tensor without dimensions") };
    let length = call.int("length");
    if let (Some(length), Some(size), Some(start)) = (length, size, call.int("start")) {
        let start = if start < 0 { start.saturating_add(size as i64) } else { start };
        if length < 0 || start < 0 || start.saturating_add(length) > size as i64 {
            reject!("{length} from {start} of {} in dimension {dim}", show_shape(&sizes));
        }
    }
    sizes[dim] = length.and_then(|length| u64::try_from(length).ok());
    Ok(Fact::Tensor(view(input, sizes, input.strides.clone())))
}

/// `slice`.
pub fn slice(call: &Call<'_>) -> Result {
    let bound = |name: &str| match call.get(name) {
        None | Some(Fact::None) => Some(None),
        Some(fact) => integer(fact).map(Some),
    };
    if let Fact::List(items) = call.at(0) {
        let (start, end) = (bound("start").known()?.unwrap_or(0), bound("end").known()?.unwrap_or(i64::MAX));
        let (from, to) = clamp(start, end, items.len() as u64);
        return Ok(Fact::List(items[from as usize..to.max(from) as usize].to_vec()));
    }
    let input = call.first()?;
    let sizes = shape(input)?;
    let dim = call.dim("dim", sizes.len())?;
    let mut result = sizes.clone();
    let mut strides = input.strides.clone();
    let Some(size) = sizes.get(dim) else { reject!("a slice of a tensor without dimensions") };
    let step = call.int("step").unwrap_or(1).max(1) as u64;
    result[dim] = match (bound("start"), bound("end"), size) {
        (Some(start), Some(end), Some(size)) => {
            let (from, to) = clamp(start.unwrap_or(0), end.unwrap_or(i64::MAX), *size);
            Some(to.saturating_sub(from).div_ceil(step))
        }
        _ => None,
    };
    if let Some(strides) = &mut strides {
        strides[dim] = strides[dim].saturating_mul(step);
    }
    Ok(Fact::Tensor(view(input, result, strides)))
}

/// Turns the bounds of a slice into positions.
fn clamp(start: i64, end: i64, size: u64) -> (u64, u64) {
    let place = |at: i64| match at {
        at if at < 0 => size.saturating_sub(at.unsigned_abs()),
        at => (at as u64).min(size),
    };
    (place(start), place(end))
}

/// `select`: one dimension less.
pub fn select(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let mut sizes = shape(input)?.clone();
    if sizes.is_empty() {
        reject!("an item of a tensor without dimensions");
    }
    let dim = call.dim("dim", sizes.len())?;
    if let (Some(index), Some(size)) = (call.int("index"), sizes[dim]) {
        let size = i64::try_from(size).unwrap_or(i64::MAX);
        if index >= size || index < -size {
            reject!("item {index} of {} in dimension {dim}", show_shape(&sizes));
        }
    }
    let mut strides = input.strides.clone();
    sizes.remove(dim);
    if let Some(strides) = &mut strides {
        strides.remove(dim);
    }
    Ok(Fact::Tensor(view(input, sizes, strides)))
}

/// `unbind`: every item of a dimension.
pub fn unbind(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let mut sizes = shape(input)?.clone();
    let dim = call.dim("dim", sizes.len())?;
    if sizes.is_empty() {
        reject!("the items of a tensor without dimensions");
    }
    let count = match sizes.get(dim) {
        Some(Some(count)) => *count,
        _ if call.n_outputs > 1 => call.n_outputs as u64,
        _ => return Err(super::call::Stop::Unknown),
    };
    sizes.remove(dim);
    let mut strides = input.strides.clone();
    if let Some(strides) = &mut strides {
        strides.remove(dim);
    }
    repeated(view(input, sizes, strides), count)
}

/// Makes a list of equal tensors, with a limit on its length.
fn repeated(tensor: TensorFact, count: u64) -> Result {
    if count <= 1 << 16 {
        Ok(Fact::List(vec![Fact::Tensor(tensor); count as usize]))
    } else {
        Err(super::call::Stop::Unknown)
    }
}

/// `split`, `split_with_sizes`, `chunk`, `tensor_split`.
pub fn split(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let sizes = shape(input)?;
    let dim = match call.shape_rule() {
        ShapeRule::HSplit => usize::from(sizes.len() > 1),
        ShapeRule::VSplit => 0,
        ShapeRule::DSplit => 2,
        _ => call.dim("dim", sizes.len())?,
    };
    let size = sizes.get(dim).copied().flatten().known()?;
    let parts: Vec<u64> = if let Some(list) = call
        .ints("split_sizes")
        .or_else(|| call.get("split_size").filter(|fact| matches!(fact, Fact::List(_))).and_then(integers))
    {
        let list: Option<Vec<u64>> = list.into_iter().map(|part| u64::try_from(part?).ok()).collect();
        let list = list.known()?;
        if list.iter().try_fold(0, |sum: u64, part| sum.checked_add(*part)) != Some(size) {
            reject!("parts {list:?} of {} in dimension {dim}", show_shape(sizes));
        }
        list
    } else if let Some(step) = call.int("split_size") {
        runs(size, u64::try_from(step).ok().filter(|step| *step > 0).known()?)?
    } else if let Some(chunks) = call.int("chunks") {
        let chunks = u64::try_from(chunks).ok().filter(|chunks| *chunks > 0).known()?;
        runs(size, size.div_ceil(chunks).max(1))?
    } else if let Some(sections) = call.int("sections") {
        let sections = u64::try_from(sections).ok().filter(|n| *n > 0 && *n <= 1 << 16).known()?;
        (0..sections).map(|at| size / sections + u64::from(at < size % sections)).collect()
    } else {
        let ends = call.ints("indices").known()?;
        let mut parts = Vec::new();
        let mut last = 0;
        for end in ends.into_iter().chain([Some(i64::MAX)]) {
            let (from, to) = clamp(last, end.known()?, size);
            parts.push(to.saturating_sub(from));
            last = end.unwrap_or(0);
        }
        parts
    };
    let part = |length: u64| {
        let mut sizes = sizes.clone();
        sizes[dim] = Some(length);
        Fact::Tensor(view(input, sizes, input.strides.clone()))
    };
    Ok(Fact::List(parts.into_iter().map(part).collect()))
}

/// Cuts a size into runs of one length and a rest.
fn runs(size: u64, step: u64) -> Result<Vec<u64>> {
    let count = size.div_ceil(step).max(1);
    if count > 1 << 16 {
        return Err(super::call::Stop::Unknown);
    }
    Ok((0..count).map(|at| step.min(size - at * step)).collect())
}

/// `contiguous`: the tensor itself if it is contiguous already.
pub fn contiguous(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let wants_channels_last = call.int("memory_format") == Some(2);
    let is_done =
        if wants_channels_last { input.is_channels_last() } else { input.is_contiguous() != Some(false) };
    if is_done {
        return Ok(Fact::Tensor(input.clone()));
    }
    let sizes = shape(input)?.clone();
    let strides = super::convolution::laid_out(&sizes, wants_channels_last);
    Ok(Fact::Tensor(TensorFact { strides, ..fresh(input.dtype, sizes) }))
}

/// `detach`, `alias`, `lift_fresh` and other operators that return their input.
pub fn identity(call: &Call<'_>) -> Result {
    Ok(call.at(0).clone())
}

/// `clone`: the same sizes and, if dense, strides.
pub fn clone(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let strides = match call.int("memory_format") {
        Some(0) => contiguous_strides(shape(input)?),
        _ => like(input, None).strides,
    };
    let number = input.number;
    Ok(Fact::Tensor(TensorFact { strides, number, ..fresh(input.dtype, shape(input)?.clone()) }))
}

/// Tells whether a dropout returns its operand unchanged: in evaluation, or with a probability of zero.
pub fn is_dropout_idle(call: &Call<'_>) -> bool {
    let rate = match call.get("p") {
        Some(Fact::Float(rate)) => *rate,
        Some(Fact::Int(rate)) => rate.map(|rate| rate as f64),
        _ => None,
    };
    call.flag("train") == Some(false) || rate == Some(0.0) && call.shape_rule() != ShapeRule::NativeDropout
}

/// `dropout`: the identity in evaluation.
pub fn dropout(call: &Call<'_>) -> Result {
    let input = call.first()?;
    if is_dropout_idle(call) {
        Ok(Fact::Tensor(input.clone()))
    } else {
        Ok(Fact::Tensor(like(input, input.dtype)))
    }
}

/// `as_strided`.
pub fn as_strided(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let natural = |name: &str| -> Option<Vec<Dim>> {
        Some(call.ints(name)?.into_iter().map(|n| n.and_then(|n| u64::try_from(n).ok())).collect())
    };
    let strides: Strides = natural("stride").and_then(|list| list.into_iter().collect());
    Ok(Fact::Tensor(view(input, natural("size").known()?.into_iter().collect(), strides)))
}

/// `Tensor.unfold`: windows over one dimension.
pub fn windows(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let mut sizes = shape(input)?.clone();
    if sizes.is_empty() {
        // A number is a row of one.
        return Ok(Fact::Tensor(view(
            input,
            Shape::from_slice(&[call.int("size").and_then(|n| u64::try_from(n).ok())]),
            None,
        )));
    }
    let dim = call.dim("dimension", sizes.len())?;
    let (size, step) = (call.int("size").known()?, call.int("step").known()?);
    let (Ok(size), Ok(step)) = (u64::try_from(size), u64::try_from(step)) else {
        reject!("a window of {size}")
    };
    let Some(slot) = sizes.get_mut(dim) else { reject!("windows over a tensor without dimensions") };
    *slot = match *slot {
        Some(own) if own < size || step == 0 => reject!("windows of {size} over {own}"),
        Some(own) => Some((own - size) / step + 1),
        None => None,
    };
    sizes.push(Some(size));
    let strides = input.strides.as_ref().map(|strides| {
        let mut result = strides.clone();
        result.push(strides[dim]);
        result[dim] = strides[dim].saturating_mul(step);
        result
    });
    Ok(Fact::Tensor(view(input, sizes, strides)))
}

/// `diagonal`.
pub fn diagonal(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let mut sizes = shape(input)?.clone();
    let (a, b) = (call.dim("dim1", sizes.len())?, call.dim("dim2", sizes.len())?);
    let offset = call.int("offset").known()?;
    if a == b || sizes.len() < 2 {
        reject!("the diagonal of {}", show_shape(&sizes));
    }
    let length = match (sizes[a], sizes[b]) {
        (Some(rows), Some(columns)) if offset >= 0 => {
            Some(rows.min(columns.saturating_sub(offset.unsigned_abs())))
        }
        (Some(rows), Some(columns)) => Some(columns.min(rows.saturating_sub(offset.unsigned_abs()))),
        _ => None,
    };
    let strides = input.strides.as_ref().map(|strides| {
        let mut result = strides.clone();
        result.remove(a.max(b));
        result.remove(a.min(b));
        result.push(strides[a].saturating_add(strides[b]));
        result
    });
    sizes.remove(a.max(b));
    sizes.remove(a.min(b));
    sizes.push(length);
    Ok(Fact::Tensor(view(input, sizes, strides)))
}

/// `view_as_real`, `view_as_complex`, `real`, `imag`.
pub fn complex_parts(call: &Call<'_>) -> Result {
    use operators::ShapeRule;
    use tracer::DType::{Complex64, Complex128, Float32, Float64};
    let input = call.first()?;
    let mut sizes = shape(input)?.clone();
    let mut strides = input.strides.clone();
    let rule = call.shape_rule();
    let (dtype, scale) = match (rule, input.dtype) {
        (ShapeRule::AsComplex, Some(Float64)) => (Some(Complex128), 0),
        (ShapeRule::AsComplex, _) => (Some(Complex64), 0),
        (_, Some(Complex128)) => (Some(Float64), 2),
        (_, Some(Complex64)) => (Some(Float32), 2),
        (_, dtype) => return Ok(Fact::Tensor(TensorFact { dtype, ..input.clone() })),
    };
    if rule == ShapeRule::AsComplex {
        if sizes.pop().flatten().is_some_and(|last| last != 2) {
            reject!("the last size of {} is not 2", show_shape(shape(input)?));
        }
        if let Some(strides) = &mut strides {
            strides.pop();
            strides.iter_mut().for_each(|stride| *stride /= 2);
        }
    } else {
        if let Some(strides) = &mut strides {
            strides.iter_mut().for_each(|stride| *stride = stride.saturating_mul(scale));
        }
        if rule == ShapeRule::AsReal {
            sizes.push(Some(2));
            if let Some(strides) = &mut strides {
                strides.push(1);
            }
        }
    }
    Ok(Fact::Tensor(TensorFact { dtype, ..view(input, sizes, strides) }))
}
