//! Operators that move elements: concatenation, look-ups, padding, repetition.

use operators::ShapeRule;
use tracer::DType;

use super::{
    call::{Call, Known, Result, Stop, fresh, fresh_fact, integer, integers, reject, shape, wrap},
    elementwise::{broadcast, complex_of, promote_pair, real_of},
    matmul::agree,
    rules::rules,
    view::reshaped,
};
use crate::fact::{Dim, Fact, Shape, TensorFact, show_shape};

rules! {
    histogram: Histc,
    tensordot: Tensordot,
    weight_norm: WeightNorm,
    at_least: AtLeast1 | AtLeast2 | AtLeast3,
    cat: Cat | HStack | VStack | DStack | ColumnStack,
    stack: Stack,
    pad_sequence: PadSequence,
    index: Index,
    embedding: Embedding,
    embedding_bag: EmbeddingBag,
    gather: Gather,
    index_select: IndexSelect,
    like_first: LikeFirst,
    pad: Pad,
    repeat: Repeat | Tile,
    repeat_interleave: RepeatInterleave,
    meshgrid: Meshgrid,
    broadcast_tensors: BroadcastTensors,
    difference: Diff,
    one_hot: OneHot,
    search: Search,
    diagonal_matrix: DiagonalMatrix | DiagonalEmbedding | FlatDiagonal,
    fourier: Fourier | FourierOfReal | FourierToReal,
    moved: Moved,
    create: Create | CreateFull | CreateIntegers | CreateNew,
    create_like: CreateLike | Normal,
    sequence: Range | Steps | Permutation | Eye | LowerIndices | UpperIndices | Window,
    multinomial: Multinomial,
    shape_as_tensor: ShapeAsTensor,
}

/// Adds the dimensions that an operator requires.
fn lifted(tensor: &TensorFact, rule: ShapeRule) -> TensorFact {
    let mut lifted = tensor.clone();
    let Some(sizes) = &mut lifted.shape else { return lifted };
    let rank = sizes.len();
    match (rule, rank) {
        (ShapeRule::HStack | ShapeRule::AtLeast1, 0) => sizes.push(Some(1)),
        (ShapeRule::ColumnStack, 0) => sizes.extend([Some(1), Some(1)]),
        (ShapeRule::ColumnStack, 1) => sizes.push(Some(1)),
        (ShapeRule::VStack | ShapeRule::AtLeast2, 0) => sizes.extend([Some(1), Some(1)]),
        (ShapeRule::VStack | ShapeRule::AtLeast2, 1) => sizes.insert(0, Some(1)),
        (ShapeRule::DStack | ShapeRule::AtLeast3, 0) => sizes.extend([Some(1); 3]),
        (ShapeRule::DStack | ShapeRule::AtLeast3, 1) => {
            sizes.insert(0, Some(1));
            sizes.push(Some(1));
        }
        (ShapeRule::DStack | ShapeRule::AtLeast3, 2) => sizes.push(Some(1)),
        _ => return lifted,
    }
    lifted.strides = None;
    lifted
}

/// `atleast_1d`, `atleast_2d`, `atleast_3d`: of one tensor, or of each in a list.
pub fn at_least(call: &Call<'_>) -> Result {
    let raised = |tensor: &TensorFact| match lifted(tensor, call.shape_rule()).shape {
        Some(sizes) if Some(&sizes) != tensor.shape.as_ref() => Fact::Tensor(reshaped(tensor, sizes)),
        _ => Fact::Tensor(tensor.clone()),
    };
    match call.at(0) {
        Fact::Tensor(tensor) => Ok(raised(tensor)),
        Fact::List(items) => {
            items.iter().map(|item| Ok(raised(item.tensor().known()?))).collect::<Result<_>>().map(Fact::List)
        }
        _ => Err(Stop::Unknown),
    }
}

/// `cat`, `concat`, `concatenate`, `hstack`, `vstack`, `dstack`, `column_stack`.
pub fn cat(call: &Call<'_>) -> Result {
    let rule = call.shape_rule();
    let all: Vec<TensorFact> = call.at(0).tensors().into_iter().map(|one| lifted(one, rule)).collect();
    let all: Vec<&TensorFact> = all.iter().collect();
    let first = all
        .iter()
        .find(|t| t.shape.as_deref() != Some(&[Some(0)]))
        .copied()
        .or(all.first().copied())
        .known()?;
    let dtype = all.iter().map(|t| t.dtype).reduce(|a, b| Some(promote_pair(a?, b?))).flatten();
    let mut result = shape(first)?.clone();
    let rank = result.len();
    let dim = match rule {
        ShapeRule::HStack => usize::from(rank > 1),
        ShapeRule::VStack => 0,
        ShapeRule::ColumnStack => 1,
        ShapeRule::DStack => 2,
        _ => call.dim("dim", rank)?,
    };
    if rank == 0 {
        reject!("tensors without dimensions cannot be joined");
    }
    let mut total = Some(0_u64);
    for tensor in &all {
        let sizes = shape(tensor)?;
        // torch lets an empty vector be joined with anything.
        if sizes.as_slice() == [Some(0)] && rank != 1 {
            continue;
        }
        if sizes.len() != rank {
            reject!(
                "{} and {} have different numbers of dimensions",
                show_shape(shape(first)?),
                show_shape(sizes)
            );
        }
        for at in (0..rank).filter(|at| *at != dim) {
            result[at] = agree(result[at], sizes[at], || {
                format!(
                    "{} and {} differ in dimension {at}",
                    show_shape(first.shape.as_deref().unwrap_or(&[])),
                    show_shape(sizes)
                )
            })?;
        }
        total = total.and_then(|total| total.checked_add(sizes[dim]?));
    }
    result[dim] = total;
    let is_channels_last = all.iter().all(|t| t.is_channels_last());
    let strides = super::convolution::laid_out(&result, is_channels_last);
    Ok(Fact::Tensor(TensorFact { strides, ..fresh(dtype, result) }))
}

/// `stack`: a new dimension.
pub fn stack(call: &Call<'_>) -> Result {
    let all = call.at(0).tensors();
    let first = all.first().known()?;
    let mut sizes = shape(first)?.clone();
    for other in &all {
        let own = shape(other)?;
        if own.len() != sizes.len()
            || own.iter().zip(&sizes).any(|(a, b)| a.is_some() && b.is_some() && a != b)
        {
            reject!("{} and {} cannot be stacked", show_shape(&sizes), show_shape(own));
        }
    }
    let dim = call.dim("dim", sizes.len() + 1)?;
    sizes.insert(dim, Some(all.len() as u64));
    let dtype = all.iter().map(|t| t.dtype).reduce(|a, b| Some(promote_pair(a?, b?))).flatten();
    fresh_fact(dtype, sizes)
}

/// `pad_sequence`: a batch of sequences, each padded to the longest.
pub fn pad_sequence(call: &Call<'_>) -> Result {
    let all = call.at(0).tensors();
    let first = all.first().known()?;
    let Some((longest, rest)) = shape(first)?.split_first() else { reject!("a number is not a sequence") };
    let (mut longest, mut rest) = (*longest, Shape::from_slice(rest));
    for tensor in &all {
        let own = shape(tensor)?;
        if own.len() != rest.len() + 1 {
            reject!("{} and {} cannot be padded alike", show_shape(shape(first)?), show_shape(own));
        }
        longest = longest.zip(own[0]).map(|(longest, length)| longest.max(length));
        for (size, other) in rest.iter_mut().zip(&own[1..]) {
            *size = agree(*size, *other, || {
                let of = shape(first).map_or_else(|_| String::new(), |sizes| show_shape(sizes));
                format!("{of} and {} cannot be padded alike", show_shape(own))
            })?;
        }
    }
    let count = Some(all.len() as u64);
    let is_batch_first = call.flag("batch_first").unwrap_or(false);
    let front = if is_batch_first { [count, longest] } else { [longest, count] };
    fresh_fact(first.dtype, front.into_iter().chain(rest).collect())
}

/// `index`: with integer or boolean tensors, some absent.
pub fn index(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let sizes = shape(input)?;
    let Some(Fact::List(indices)) = call.get("indices") else { return Err(Stop::Unknown) };
    let mut result = Shape::new();
    let mut at = 0;
    let mut indexed: Vec<Shape> = Vec::new();
    // The position of the indexed dimensions in the result, and whether they are adjacent.
    let (mut place, mut is_adjacent, mut last) = (None, true, None);
    for index in indices {
        match index {
            Fact::Tensor(tensor) => {
                let own = shape(tensor)?;
                let covers = match tensor.dtype {
                    Some(DType::Bool | DType::UInt8) => {
                        indexed.push(Shape::from_slice(&[None]));
                        own.len()
                    }
                    _ => {
                        indexed.push(own.clone());
                        1
                    }
                };
                place.get_or_insert(result.len());
                is_adjacent &= last.is_none_or(|last| last == at);
                at += covers;
                last = Some(at);
            }
            Fact::None => {
                result.push(*sizes.get(at).known()?);
                at += 1;
            }
            _ => return Err(Stop::Unknown),
        }
    }
    if at > sizes.len() {
        reject!("{at} indices into {}", show_shape(sizes));
    }
    result.extend_from_slice(&sizes[at..]);
    let shapes: Vec<&Shape> = indexed.iter().collect();
    let made = broadcast(&shapes)?;
    let place = if is_adjacent { place.unwrap_or(0) } else { 0 };
    result.insert_many(place, made);
    fresh_fact(input.dtype, result)
}

/// `embedding`: the index's sizes with the row's length.
pub fn embedding(call: &Call<'_>) -> Result {
    let (weight, indices) = (call.tensor("weight")?, call.tensor("indices")?);
    if let Some(dtype) = indices.dtype.filter(|d| !matches!(d, DType::Int64 | DType::Int32)) {
        reject!("indices are {}, not integers", crate::fact::dtype_name(dtype));
    }
    let mut sizes = shape(indices)?.clone();
    sizes.extend(shape(weight)?.iter().skip(1).copied());
    fresh_fact(weight.dtype, sizes)
}

/// `embedding_bag`: one row per bag.
pub fn embedding_bag(call: &Call<'_>) -> Result {
    let (weight, indices, offsets) =
        (call.tensor("weight")?, call.tensor("indices")?, call.tensor("offsets")?);
    let bags = match (shape(indices)?.as_slice(), shape(offsets)?.as_slice()) {
        ([batch, _], _) => *batch,
        (_, [bags]) if call.flag("include_last_offset") == Some(true) => {
            bags.map(|bags| bags.saturating_sub(1))
        }
        (_, [bags]) => *bags,
        _ => None,
    };
    let unknown = Fact::Tensor(fresh(Some(DType::Int64), Shape::from_slice(&[None])));
    let rows = Fact::Tensor(fresh(weight.dtype, Shape::from_slice(&[bags, *shape(weight)?.get(1).known()?])));
    let largest = match call.int("mode") {
        Some(2) => Fact::Tensor(fresh(
            Some(DType::Int64),
            rows.tensor().and_then(|rows| rows.shape.clone()).known()?,
        )),
        _ => unknown.clone(),
    };
    Ok(Fact::List(vec![rows, unknown.clone(), unknown, largest]))
}

/// `gather`, `take`: the index's sizes.
pub fn gather(call: &Call<'_>) -> Result {
    let (input, index) = (call.first()?, call.tensor("index")?);
    fresh_fact(input.dtype, shape(index)?.clone())
}

/// `index_select`: one dimension's size is the index's.
pub fn index_select(call: &Call<'_>) -> Result {
    let (input, index) = (call.first()?, call.tensor("index")?);
    let mut sizes = shape(input)?.clone();
    let dim = call.dim("dim", sizes.len())?;
    if let Some(slot) = sizes.get_mut(dim) {
        *slot = index.elements();
    }
    fresh_fact(input.dtype, sizes)
}

/// `scatter`, `index_add`, `masked_fill` by value, `index_put`: the first operand's sizes, contiguous.
pub fn like_first(call: &Call<'_>) -> Result {
    let input = call.first()?;
    fresh_fact(input.dtype, shape(input)?.clone())
}

/// `pad`, `constant_pad_nd`, `reflection_pad2d`, …: pairs from the last dimension on.
pub fn pad(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let mut sizes = shape(input)?.clone();
    let pads = call.ints("pad").or_else(|| call.ints("padding")).known()?;
    if pads.len() % 2 != 0 || pads.len() / 2 > sizes.len() {
        reject!("{} paddings of {}", pads.len(), show_shape(&sizes));
    }
    for (pair, slot) in pads.chunks_exact(2).zip(sizes.iter_mut().rev()) {
        let grown =
            (*slot).and_then(|size| i64::try_from(size).ok()?.checked_add(pair[0]?)?.checked_add(pair[1]?));
        *slot = match grown {
            Some(size) if size < 0 => reject!("paddings {pads:?} leave nothing"),
            size => size.map(|size| size as u64),
        };
    }
    let strides = super::convolution::laid_out(&sizes, input.is_channels_last());
    Ok(Fact::Tensor(TensorFact { strides, ..fresh(input.dtype, sizes) }))
}

/// `repeat`, `tile`.
pub fn repeat(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let sizes = shape(input)?;
    let mut times = call.ints("repeats").or_else(|| call.ints("dims")).known()?;
    while call.shape_rule() == ShapeRule::Tile && times.len() < sizes.len() {
        times.insert(0, Some(1));
    }
    let Some(extra) = times.len().checked_sub(sizes.len()) else {
        reject!("{} repetitions of {}", times.len(), show_shape(sizes));
    };
    let repeated = times.iter().enumerate().map(|(position, times)| {
        let own = position.checked_sub(extra).map_or(Some(1), |at| sizes[at]);
        own.and_then(|own| own.checked_mul(u64::try_from((*times)?).ok()?))
    });
    fresh_fact(input.dtype, repeated.collect())
}

/// `repeat_interleave`.
pub fn repeat_interleave(call: &Call<'_>) -> Result {
    let input = call.first()?;
    if call.get("self").is_none() {
        let length = call.int("output_size").and_then(|n| u64::try_from(n).ok());
        return fresh_fact(Some(DType::Int64), Shape::from_slice(&[length]));
    }
    let mut sizes = shape(input)?.clone();
    let times = call.int("repeats").and_then(|times| u64::try_from(times).ok());
    if !call.has("dim") {
        sizes = Shape::from_slice(&[input.elements()]);
    }
    let dim = if call.has("dim") { call.dim("dim", sizes.len())? } else { 0 };
    let asked = call.int("output_size").and_then(|n| u64::try_from(n).ok());
    if let Some(slot) = sizes.get_mut(dim) {
        *slot = asked.or_else(|| slot.and_then(|size| size.checked_mul(times?)));
    }
    fresh_fact(input.dtype, sizes)
}

/// `broadcast_tensors`.
pub fn broadcast_tensors(call: &Call<'_>) -> Result {
    let all = call.at(0).tensors();
    let shapes: Vec<&Shape> = all.iter().map(|t| shape(t)).collect::<Result<_>>()?;
    let sizes = broadcast(&shapes)?;
    let each = all.iter().map(|t| Fact::Tensor(super::call::view(t, sizes.clone(), None)));
    Ok(Fact::List(each.collect()))
}

/// `meshgrid`.
pub fn meshgrid(call: &Call<'_>) -> Result {
    let all = call.at(0).tensors();
    let mut sizes: Shape = all.iter().map(|t| t.elements()).collect();
    let mut strides: Vec<Vec<u64>> =
        (0..all.len()).map(|at| (0..all.len()).map(|dim| u64::from(dim == at)).collect()).collect();
    if matches!(call.get("indexing"), Some(Fact::Str(mode)) if mode == "xy") && sizes.len() > 1 {
        sizes.swap(0, 1);
        strides.iter_mut().for_each(|strides| strides.swap(0, 1));
    }
    let each = all.iter().zip(strides).map(|(t, strides)| {
        Fact::Tensor(super::call::view(t, sizes.clone(), Some(strides.into_iter().collect())))
    });
    Ok(Fact::List(each.collect()))
}

/// `one_hot`.
pub fn one_hot(call: &Call<'_>) -> Result {
    let mut sizes = shape(call.first()?)?.clone();
    sizes.push(call.int("num_classes").and_then(|classes| u64::try_from(classes).ok()));
    fresh_fact(Some(DType::Int64), sizes)
}

/// `searchsorted`, `bucketize`: one position per value.
pub fn search(call: &Call<'_>) -> Result {
    let value = call.get("self").and_then(Fact::tensor).known()?;
    let dtype = if call.flag("out_int32") == Some(true) { DType::Int32 } else { DType::Int64 };
    fresh_fact(Some(dtype), shape(value)?.clone())
}

/// `diag`, `diag_embed`, `diagflat`.
pub fn diagonal_matrix(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let mut sizes = shape(input)?.clone();
    let shift = call.int("diagonal").or(call.int("offset")).unwrap_or(0);
    let offset = shift.unsigned_abs();
    let rule = call.shape_rule();
    match (rule, sizes.as_slice()) {
        (ShapeRule::FlatDiagonal, _) => {
            let side = input.elements().map(|elements| elements.saturating_add(offset));
            fresh_fact(input.dtype, Shape::from_slice(&[side, side]))
        }
        (ShapeRule::DiagonalMatrix, [rows, columns]) => {
            // A diagonal above the middle begins in a later column, one below in a later row.
            let left = |size: &Dim, is_shorter: bool| {
                size.map(|size| if is_shorter { size.saturating_sub(offset) } else { size })
            };
            let length =
                left(rows, shift < 0).zip(left(columns, shift > 0)).map(|(rows, columns)| rows.min(columns));
            fresh_fact(input.dtype, Shape::from_slice(&[length]))
        }
        (_, [.., last]) => {
            let side = last.map(|last| last.saturating_add(offset));
            sizes.pop();
            let rank = sizes.len() + 2;
            let (mut first, mut second) = match rule {
                ShapeRule::DiagonalEmbedding => (call.dim("dim1", rank)?, call.dim("dim2", rank)?),
                _ => (rank - 2, rank - 1),
            };
            if first > second {
                std::mem::swap(&mut first, &mut second);
            }
            sizes.insert(first.min(sizes.len()), side);
            sizes.insert(second.min(sizes.len()), side);
            fresh_fact(input.dtype, sizes)
        }
        _ => Err(Stop::Unknown),
    }
}

/// `tensordot`: the remaining dimensions.
pub fn tensordot(call: &Call<'_>) -> Result {
    let (a, b) = (call.tensor("self")?, call.tensor("other")?);
    let (x, y) = (shape(a)?, shape(b)?);
    let (over_a, over_b) = (call.dims("dims_self", x.len())?, call.dims("dims_other", y.len())?);
    let left = |sizes: &Shape, over: &[usize]| -> Vec<Dim> {
        sizes.iter().enumerate().filter(|(at, _)| !over.contains(at)).map(|(_, size)| *size).collect()
    };
    fresh_fact(a.dtype, left(x, &over_a).into_iter().chain(left(y, &over_b)).collect())
}

/// Fourier transforms: complex, or real again, over one, two or `dim` dimensions.
pub fn fourier(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let mut sizes = shape(input)?.clone();
    let complex = complex_of(input.dtype.known()?);
    let asked = call.get("s").or(call.get("n")).and_then(integers);
    let dims = match (call.get("dim"), &asked) {
        (Some(Fact::List(_) | Fact::Int(_)), _) => call.dims("dim", sizes.len())?,
        // The last ones, as many as the given sizes.
        (_, Some(asked)) => (sizes.len().saturating_sub(asked.len())..sizes.len()).collect(),
        _ => (0..sizes.len()).collect(),
    };
    if sizes.is_empty() {
        reject!("a transform of a tensor without dimensions");
    }
    if let Some(asked) = &asked {
        for (dim, size) in dims.iter().zip(asked) {
            sizes[*dim] = size.and_then(|size| u64::try_from(size).ok());
        }
    }
    let last = *dims.last().known()?;
    let dtype = match call.shape_rule() {
        ShapeRule::FourierOfReal => {
            sizes[last] = sizes[last].map(|size| size / 2 + 1);
            complex
        }
        ShapeRule::FourierToReal => {
            if asked.is_none() {
                sizes[last] = sizes[last].map(|size| 2 * size.saturating_sub(1));
            }
            real_of(complex)
        }
        _ => complex,
    };
    fresh_fact(Some(dtype), sizes)
}

/// `_weight_norm`: the direction's sizes.
pub fn weight_norm(call: &Call<'_>) -> Result {
    let direction = call.first()?;
    let result = Fact::Tensor(fresh(direction.dtype, shape(direction)?.clone()));
    match call.n_outputs {
        2 => Ok(Fact::List(vec![result, Fact::Tensor(call.at(1).tensor().known()?.clone())])),
        _ => Ok(result),
    }
}

/// `zeros`, `ones`, `full`, `rand`, `empty`, `new_*`.
pub fn create(call: &Call<'_>) -> Result {
    let sizes = call.ints("size").known()?;
    let sizes = sizes.into_iter().map(|size| size.and_then(|size| u64::try_from(size).ok()));
    let rule = call.shape_rule();
    let like = if rule == ShapeRule::CreateNew { call.first()?.dtype } else { None };
    let filled = match call.get("fill_value") {
        Some(Fact::Int(_)) if rule == ShapeRule::CreateFull => Some(DType::Int64),
        Some(Fact::Bool(_)) if rule == ShapeRule::CreateFull => Some(DType::Bool),
        _ => None,
    };
    let default = match rule {
        ShapeRule::CreateIntegers => DType::Int64,
        _ => DType::Float32,
    };
    fresh_fact(call.dtype("dtype")?.or(like).or(filled).or(Some(default)), sizes.collect())
}

/// `zeros_like`, `rand_like` and their like.
pub fn create_like(call: &Call<'_>) -> Result {
    let input = call.first()?;
    // Means and deviations, each of them a tensor.
    if call.shape_rule() == ShapeRule::Normal && call.tensors().len() > 1 {
        return super::elementwise::keeping(call);
    }
    let dtype = call.dtype("dtype")?.or(input.dtype);
    Ok(Fact::Tensor(super::elementwise::like(input, dtype)))
}

/// `arange`, `linspace`, `eye`, `triu_indices`, `randperm`, window functions.
pub fn sequence(call: &Call<'_>) -> Result {
    let asked = call.dtype("dtype")?;
    let natural = |value: Option<i64>| value.and_then(|value| u64::try_from(value).ok());
    let vector = |length: Dim, dtype: DType| fresh_fact(asked.or(Some(dtype)), Shape::from_slice(&[length]));
    let rule = call.shape_rule();
    match rule {
        ShapeRule::Range => {
            let get = |name: &str, default: f64| match call.get(name) {
                None | Some(Fact::None) => Some(default),
                Some(_) => call.float(name),
            };
            let bounds = ["start", "end", "step"].map(|name| call.get(name));
            let is_float = bounds.iter().flatten().any(|fact| match fact {
                Fact::Float(_) => true,
                Fact::Tensor(tensor) => tensor.dtype.is_some_and(DType::is_float),
                _ => false,
            });
            let length = match (get("start", 0.0), get("end", 0.0), get("step", 1.0)) {
                (Some(start), Some(end), Some(step)) if step != 0.0 => {
                    let length = ((end - start) / step).ceil();
                    if !(0.0..1e15).contains(&length) {
                        reject!("a range from {start} to {end} by {step}");
                    }
                    Some(length as u64)
                }
                _ => None,
            };
            vector(length, if is_float { DType::Float32 } else { DType::Int64 })
        }
        ShapeRule::Steps => vector(natural(call.int("steps")), DType::Float32),
        ShapeRule::Permutation => vector(natural(call.int("n")), DType::Int64),
        ShapeRule::Eye => {
            let rows = natural(call.int("n"));
            let columns = if call.has("m") { natural(call.int("m")) } else { rows };
            fresh_fact(asked.or(Some(DType::Float32)), Shape::from_slice(&[rows, columns]))
        }
        ShapeRule::LowerIndices | ShapeRule::UpperIndices => {
            let (row, col) = (call.int("row").known()?, call.int("col").known()?);
            let offset = call.int("offset").known()?;
            if !(0..=1 << 20).contains(&row) || col < 0 {
                return Err(Stop::Unknown);
            }
            let below = |at: i64| at.saturating_add(offset).saturating_add(1).clamp(0, col);
            let lower = (0..row).fold(0_i64, |sum, at| sum.saturating_add(below(at)));
            let upper_offset = offset.saturating_sub(1);
            let above = |at: i64| at.saturating_add(upper_offset).saturating_add(1).clamp(0, col);
            let upper = (0..row).fold(0_i64, |sum, at| sum.saturating_add(col - above(at)));
            let length = if rule == ShapeRule::LowerIndices { lower } else { upper };
            fresh_fact(asked.or(Some(DType::Int64)), Shape::from_slice(&[Some(2), natural(Some(length))]))
        }
        _ => vector(natural(call.int("window_length")), DType::Float32),
    }
}

/// `_shape_as_tensor`: one number per dimension.
pub fn shape_as_tensor(call: &Call<'_>) -> Result {
    fresh_fact(Some(DType::Int64), std::iter::once(Some(shape(call.first()?)?.len() as u64)).collect())
}

/// `multinomial`: sampled positions.
pub fn multinomial(call: &Call<'_>) -> Result {
    let mut sizes = shape(call.first()?)?.clone();
    *sizes.last_mut().known()? = call.int("num_samples").and_then(|n| u64::try_from(n).ok());
    fresh_fact(Some(DType::Int64), sizes)
}

/// `roll`, `flip`, `tril`: the same sizes; strides are kept if dense.
pub fn moved(call: &Call<'_>) -> Result {
    let input = call.first()?;
    for name in ["dims", "dim"] {
        if let Some(Fact::List(dims)) = call.get(name) {
            for dim in dims.iter().filter_map(integer) {
                wrap(dim, shape(input)?.len())?;
            }
        }
    }
    Ok(Fact::Tensor(super::elementwise::like(input, input.dtype)))
}

/// `diff`: one fewer per round, more with what is prepended and appended.
pub fn difference(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let mut sizes = shape(input)?.clone();
    let dim = call.dim("dim", sizes.len())?;
    let rounds = call.int("n").and_then(|n| u64::try_from(n).ok()).known()?;
    if rounds == 0 {
        return fresh_fact(input.dtype, sizes);
    }
    let Some(slot) = sizes.get_mut(dim) else { reject!("the differences of a tensor without dimensions") };
    for name in ["prepend", "append"] {
        if call.has(name) {
            let more = shape(call.tensor(name)?)?.get(dim).copied().flatten();
            *slot = slot.and_then(|size| size.checked_add(more?));
        }
    }
    *slot = slot.map(|size| size.saturating_sub(rounds));
    fresh_fact(input.dtype, sizes)
}

/// `histc`: one count per bin.
pub fn histogram(call: &Call<'_>) -> Result {
    let bins = call.int("bins").and_then(|bins| u64::try_from(bins).ok());
    fresh_fact(call.first()?.dtype, Shape::from_slice(&[bins]))
}
