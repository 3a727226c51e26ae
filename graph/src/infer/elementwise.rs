//! Elementwise operators: sizes broadcast, dtypes promote, strides follow the operands' as in torch's `TensorIterator`.

use operators::ShapeRule;
use smallvec::SmallVec;
use tracer::DType;

use super::{
    call::{self, Call, Result, contiguous_strides, fresh, integer, reject, shape},
    number,
    rules::rules,
};
use crate::fact::{Fact, Number, Shape, TensorFact, show_shape};

rules! {
    unary: Unary,
    clamp: Clamp,
    absolute: Absolute,
    unary_float: UnaryFloat,
    unary_bool: UnaryBool,
    promoting: Promoting,
    choosing: Where,
    dividing: Dividing,
    promoting_float: PromotingFloat,
    mantissa: Mantissa,
    comparing: Comparing,
    keeping: LikeFirstOperand,
    scattering: MaskedScatter,
    double: FloatPower,
    member: IsIn,
    distance: Dist,
    sloped: Prelu,
    pairing: Complex,
    halving: Glu,
    cast: Cast | CastCopy | CastToFloat16 | CastToBFloat16 | CastToFloat32 | CastToFloat64 | CastToInt16 | CastToInt32 | CastToInt64 | CastToBool,
    same_with_dtype: SameWithDtype | RunningSum,
    loss: Loss | ClassLoss | CtcLoss | MarginLoss | PairLoss,
    rounding: Rounding | Round,
}

/// The result has the operand's dtype.
pub fn unary(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let number = input.number.and_then(|value| number::unary_number(call.numbers(), value));
    Ok(Fact::Tensor(TensorFact { number, ..like(input, input.dtype) }))
}

/// Scalar `floor`, `ceil` and `round` make integers.
pub fn rounding(call: &Call<'_>) -> Result {
    if call.first().is_ok() {
        return unary(call);
    }
    Ok(match call::number(call.at(0)).and_then(|value| number::unary_number(call.numbers(), value)) {
        Some(value) if call.shape_rule() != ShapeRule::Round => {
            Fact::Int(number::truncated(&number::from_number(value)))
        }
        Some(value) => number::from_number(value),
        None if call.shape_rule() == ShapeRule::Round => Fact::Float(None),
        None => Fact::Int(None),
    })
}

/// `clamp` and similar operators: the same, unless a bound is a tensor.
pub fn clamp(call: &Call<'_>) -> Result {
    let input = call.first()?;
    if call.tensors().len() > 1 {
        return keeping(call);
    }
    let number = input.number.and_then(|value| number::clamped(call, value));
    Ok(Fact::Tensor(TensorFact { number, ..like(input, input.dtype) }))
}

/// Integers become floats.
pub fn unary_float(call: &Call<'_>) -> Result {
    // The order of `polygamma` precedes the tensor.
    let Ok(input) = call.first().or_else(|_| call.tensor("self")) else { return number::fold(call) };
    let number = input.number.and_then(|value| number::unary_number(call.numbers(), value));
    Ok(Fact::Tensor(TensorFact { number, ..like(input, input.dtype.map(float_of)) }))
}

/// The result is boolean.
pub fn unary_bool(call: &Call<'_>) -> Result {
    let input = call.first()?;
    Ok(Fact::Tensor(like(input, Some(DType::Bool))))
}

/// The magnitude of a complex number is real.
pub fn absolute(call: &Call<'_>) -> Result {
    if call.first().is_err() {
        return number::fold(call);
    }
    let input = call.first()?;
    let number = input.number.and_then(|value| number::unary_number(call.numbers(), value));
    Ok(Fact::Tensor(TensorFact { number, ..like(input, input.dtype.map(real_of)) }))
}

/// Softmax and cumulative sums: same sizes, with the given `dtype`.
pub fn same_with_dtype(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let asked = call.dtype("dtype")?;
    let is_sum = call.shape_rule() == ShapeRule::RunningSum;
    let dtype = asked.or(match input.dtype {
        Some(dtype) if is_sum && !dtype.is_float() && !dtype.is_complex() => Some(DType::Int64),
        dtype => dtype,
    });
    Ok(Fact::Tensor(fresh(dtype, shape(input)?.clone())))
}

/// Two or more operands, one result, promoted.
pub fn promoting(call: &Call<'_>) -> Result {
    if call.tensors().is_empty() {
        return number::fold(call);
    }
    let known =
        (call.len() >= 2).then(|| number::binary_number(call.numbers(), call.at(0), call.at(1))).flatten();
    let dtype = promote(&operands(call));
    Ok(Fact::Tensor(TensorFact { number: known, ..combine(call, dtype)? }))
}

/// `where`: of the second and third operand. `where(condition)` lists the positions, one list per dimension.
pub fn choosing(call: &Call<'_>) -> Result {
    if call.len() == 1 {
        return places_by_dimension(call);
    }
    if call.tensors().is_empty() {
        return number::fold(call);
    }
    let dtype = promote(&operands(call).into_iter().skip(1).collect::<Vec<_>>());
    Ok(Fact::Tensor(combine(call, dtype)?))
}

/// `nonzero_numpy`, `where(condition)`: one list of positions per dimension.
pub fn places_by_dimension(call: &Call<'_>) -> Result {
    let rank = shape(call.first()?)?.len();
    let places = TensorFact { strides: None, ..fresh(Some(DType::Int64), Shape::from_slice(&[None])) };
    Ok(Fact::List(vec![Fact::Tensor(places); rank]))
}

/// Division: integers become floats unless a rounding mode keeps them.
pub fn dividing(call: &Call<'_>) -> Result {
    if call.tensors().is_empty() {
        return number::fold(call);
    }
    let dtype = promote(&operands(call));
    let is_rounded = call.has("rounding_mode");
    let known = number::divide(call);
    let result = combine(call, if is_rounded { dtype } else { dtype.map(float_of) })?;
    Ok(Fact::Tensor(TensorFact { number: known, ..result }))
}

/// Two operands, promoted; integers become floats.
pub fn promoting_float(call: &Call<'_>) -> Result {
    if call.tensors().is_empty() {
        return number::fold(call);
    }
    Ok(Fact::Tensor(combine(call, promote(&operands(call)).map(float_of))?))
}

/// `frexp`: mantissas, and exponents as integers.
pub fn mantissa(call: &Call<'_>) -> Result {
    let Ok(input) = call.first() else { return number::fold(call) };
    Ok(Fact::List([input.dtype, Some(DType::Int32)].map(|dtype| Fact::Tensor(like(input, dtype))).into()))
}

/// Comparisons and logic: the result is boolean.
pub fn comparing(call: &Call<'_>) -> Result {
    if call.tensors().is_empty() {
        return number::fold(call);
    }
    let known = number::binary_number(call.numbers(), call.at(0), call.at(1));
    Ok(Fact::Tensor(TensorFact { number: known, ..combine(call, Some(DType::Bool))? }))
}

/// `complex` and `polar`: two real tensors make a complex one.
pub fn pairing(call: &Call<'_>) -> Result {
    let dtype = promote(&operands(call)).filter(|dtype| matches!(dtype, DType::Float32 | DType::Float64));
    Ok(Fact::Tensor(combine(call, dtype.map(complex_of))?))
}

/// The result has the first operand's dtype and the broadcast sizes.
pub fn keeping(call: &Call<'_>) -> Result {
    let dtype = call.first()?.dtype;
    Ok(Fact::Tensor(combine(call, dtype)?))
}

/// `masked_scatter`: elements are taken from the source in memory order, whatever its sizes.
pub fn scattering(call: &Call<'_>) -> Result {
    let (first, mask) = (call.first()?, call.tensor("mask")?);
    let sizes = broadcast(&[shape(first)?, shape(mask)?])?;
    if call.is_in_place && shape(first)? != &sizes {
        reject!("the mask {} does not fit into {}", show_shape(shape(mask)?), show_shape(shape(first)?));
    }
    Ok(Fact::Tensor(fresh(first.dtype, sizes)))
}

/// `float_power`: in double precision, whatever the operands.
pub fn double(call: &Call<'_>) -> Result {
    let dtype = promote(&operands(call))
        .map(|dtype| if dtype.is_complex() { DType::Complex128 } else { DType::Float64 });
    Ok(Fact::Tensor(combine(call, dtype)?))
}

/// `isin`: one boolean per element.
pub fn member(call: &Call<'_>) -> Result {
    match call.get("elements") {
        Some(Fact::Tensor(elements)) => Ok(Fact::Tensor(like(elements, Some(DType::Bool)))),
        _ => Ok(Fact::Tensor(fresh(Some(DType::Bool), Shape::new()))),
    }
}

/// `dist`: one number.
pub fn distance(call: &Call<'_>) -> Result {
    let dtype = promote(&operands(call));
    combine(call, dtype)?;
    Ok(Fact::Tensor(fresh(dtype, Shape::new())))
}

/// `prelu`: one slope for all elements, or one per channel.
pub fn sloped(call: &Call<'_>) -> Result {
    let input = call.first()?;
    if let (Some(sizes), Some(slopes)) = (&input.shape, call.tensor("weight")?.sizes()) {
        let slopes = slopes.into_iter().fold(1, u64::saturating_mul);
        let channels = sizes.get(1).copied().unwrap_or(Some(1));
        if slopes != 1 && channels.is_some_and(|channels| channels != slopes) {
            reject!("{slopes} slopes for {} channels", channels.unwrap_or(0));
        }
    }
    Ok(Fact::Tensor(like(input, input.dtype)))
}

/// Losses: one number unless `reduction` is 0.
pub fn loss(call: &Call<'_>) -> Result {
    let input = call.first()?;
    if call.int("reduction") != Some(0) {
        return Ok(Fact::Tensor(fresh(input.dtype, Shape::new())));
    }
    match call.shape_rule() {
        ShapeRule::ClassLoss => {
            let sizes = shape(input)?;
            let mut kept = sizes.clone();
            if kept.is_empty() {
                reject!("a number has no classes");
            }
            kept.remove(usize::from(sizes.len() > 1));
            Ok(Fact::Tensor(fresh(input.dtype, kept)))
        }
        // One number per sample; in CTC the samples come after the steps.
        ShapeRule::CtcLoss => {
            let sizes = shape(input)?;
            let kept = if sizes.len() > 2 { Shape::from_slice(&[sizes[1]]) } else { Shape::new() };
            Ok(Fact::Tensor(fresh(input.dtype, kept)))
        }
        ShapeRule::MarginLoss => {
            let sizes = shape(input)?;
            let kept = Shape::from_slice(&sizes[..sizes.len().saturating_sub(1)]);
            Ok(Fact::Tensor(fresh(input.dtype, kept)))
        }
        ShapeRule::PairLoss => {
            let pair: Vec<&Shape> =
                call.facts().take(2).filter_map(Fact::tensor).map(shape).collect::<Result<_>>()?;
            let mut kept = broadcast(&pair)?;
            kept.pop();
            Ok(Fact::Tensor(fresh(input.dtype, kept)))
        }
        _ => Ok(Fact::Tensor(combine(call, input.dtype)?)),
    }
}

/// `glu`: half the size of one dimension.
pub fn halving(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let mut sizes = shape(input)?.clone();
    let dim = call.dim("dim", sizes.len())?;
    match sizes.get_mut(dim) {
        Some(size) => *size = size.map(|size| size / 2),
        None => reject!("a tensor without dimensions cannot be halved"),
    }
    Ok(Fact::Tensor(fresh(input.dtype, sizes)))
}

/// An operand's rank in type promotion.
#[derive(Clone, Copy)]
enum Rank {
    WrappedNumber,
    NoDimensions,
    Dimensions,
}

fn operands(call: &Call<'_>) -> SmallVec<[(Option<DType>, Rank); 4]> {
    let takes_part = |(position, fact): (usize, &Fact)| match fact {
        Fact::Tensor(tensor) => {
            // A plain number has torch's default dtypes, whatever tensor holds it.
            let plain = |dtype| match dtype {
                DType::Float64 => DType::Float32,
                DType::Complex128 => DType::Complex64,
                dtype => dtype,
            };
            let rank = match &tensor.shape {
                _ if tensor.is_wrapped_number => return Some((tensor.dtype.map(plain), Rank::WrappedNumber)),
                Some(shape) if shape.is_empty() => Rank::NoDimensions,
                _ => Rank::Dimensions,
            };
            Some((tensor.dtype, rank))
        }
        // `alpha` and `rounding_mode` come later and do not take part.
        _ if position > 1 && call.shape_rule() != ShapeRule::Where => None,
        Fact::Int(_) => Some((Some(DType::Int64), Rank::WrappedNumber)),
        Fact::Float(_) => Some((Some(DType::Float32), Rank::WrappedNumber)),
        Fact::Bool(_) => Some((Some(DType::Bool), Rank::WrappedNumber)),
        _ => None,
    };
    call.facts().enumerate().filter_map(takes_part).collect()
}

/// Returns the dtype of a result: tensors with dimensions first, then those without, then plain numbers; a later rank
/// counts only if its kind (bool, integer, float, complex) is higher.
fn promote(operands: &[(Option<DType>, Rank)]) -> Option<DType> {
    let mut by_rank: [Option<DType>; 3] = [None; 3];
    for (dtype, rank) in operands {
        let dtype = (*dtype)?;
        let slot = &mut by_rank[2 - *rank as usize];
        *slot = Some(slot.map_or(dtype, |other| promote_pair(other, dtype)));
    }
    by_rank.into_iter().flatten().reduce(|result, next| {
        if kind(next) <= kind(result) {
            result
        } else if next.is_complex() && result.is_float() {
            // Parts stay as precise as the floats are.
            complex_of(result)
        } else {
            next
        }
    })
}

/// Returns the smallest dtype that holds both.
pub fn promote_pair(a: DType, b: DType) -> DType {
    use DType::{BFloat16, Complex64, Complex128, Float16, Float32, Float64, Int16, UInt8};
    if a == b {
        return a;
    }
    match (kind(a), kind(b)) {
        (x, y) if x < y && y == 3 && a == Float64 && b == Complex64 => Complex128,
        (x, y) if x < y => b,
        (x, y) if x > y => promote_pair(b, a),
        _ => match (a, b) {
            (Float16, BFloat16) | (BFloat16, Float16) => Float32,
            // An unsigned byte and a signed one need sixteen bits; other unsigned types do not mix.
            (UInt8, DType::Int8) | (DType::Int8, UInt8) => Int16,
            _ if a.bytes() >= b.bytes() => a,
            _ => b,
        },
    }
}

fn kind(dtype: DType) -> u8 {
    match dtype {
        DType::Bool => 0,
        _ if dtype.is_complex() => 3,
        _ if dtype.is_float() => 2,
        _ => 1,
    }
}

/// Returns the dtype of a result that cannot be an integer.
pub fn float_of(dtype: DType) -> DType {
    if dtype.is_float() || dtype.is_complex() { dtype } else { DType::Float32 }
}

pub(crate) fn real_of(dtype: DType) -> DType {
    match dtype {
        DType::Complex64 => DType::Float32,
        DType::Complex128 => DType::Float64,
        other => other,
    }
}

/// Returns the complex type for parts of a type.
pub(crate) fn complex_of(dtype: DType) -> DType {
    match dtype {
        DType::Float64 | DType::Complex128 => DType::Complex128,
        _ => DType::Complex64,
    }
}

/// Makes the broadcast result of every tensor among the arguments.
fn combine(call: &Call<'_>, dtype: Option<DType>) -> Result<TensorFact> {
    let tensors = call.tensors();
    let shapes: SmallVec<[&Shape; 4]> = tensors.iter().map(|t| shape(t)).collect::<Result<_>>()?;
    let sizes = broadcast(&shapes)?;
    if let (true, Ok(_), Some(own)) = (call.is_in_place, call.first(), shapes.first())
        && *own != &sizes
    {
        reject!("the result {} does not fit into {}", show_shape(&sizes), show_shape(own));
    }
    let strides = combined_strides(&tensors, &sizes);
    let is_wrapped_number = tensors.iter().all(|t| t.is_wrapped_number);
    Ok(TensorFact { dtype, shape: Some(sizes), strides, is_wrapped_number, ..TensorFact::default() })
}

/// Returns a tensor of the same sizes, with the operand's strides if it is dense.
pub fn like(input: &TensorFact, dtype: Option<DType>) -> TensorFact {
    let strides = input.shape.as_ref().and_then(|sizes| combined_strides(&[input], sizes));
    TensorFact { dtype, shape: input.shape.clone(), strides, ..TensorFact::default() }
}

/// Broadcasts sizes.
pub fn broadcast(shapes: &[&Shape]) -> Result<Shape> {
    let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    let mut result: Shape = SmallVec::from_elem(Some(1), rank);
    for shape in shapes {
        let offset = rank - shape.len();
        for (position, dim) in shape.iter().enumerate() {
            let slot = &mut result[offset + position];
            *slot = match (*slot, *dim) {
                (a, Some(1)) => a,
                (Some(1), b) => b,
                (None, b) => b,
                (a, None) => a,
                (Some(a), Some(b)) if a == b => Some(a),
                (Some(a), Some(b)) => reject!(
                    "sizes {a} and {b} do not broadcast: {}",
                    shapes.iter().map(|shape| show_shape(shape)).collect::<Vec<_>>().join(" with ")
                ),
            };
        }
    }
    Ok(result)
}

/// Returns the strides of a `TensorIterator`'s result: dimensions in the order of the operands' strides.
fn combined_strides(tensors: &[&TensorFact], sizes: &Shape) -> Option<SmallVec<[u64; 4]>> {
    let rank = sizes.len();
    let known: SmallVec<[u64; 4]> = sizes.iter().copied().collect::<Option<_>>()?;
    let mut operands: SmallVec<[SmallVec<[u64; 4]>; 4]> = SmallVec::new();
    for tensor in tensors {
        let (own, strides) = (tensor.shape.as_ref()?, tensor.strides.as_ref()?);
        let offset = rank - own.len();
        // A broadcast dimension has stride 0 and decides nothing.
        let spread = (0..rank).map(|dim| match dim.checked_sub(offset) {
            Some(at) if own[at] == Some(1) && known[dim] != 1 => 0,
            Some(at) => strides[at],
            None => 0,
        });
        operands.push(spread.collect());
    }
    if operands
        .iter()
        .zip(tensors)
        .all(|(_, tensor)| tensor.shape.as_ref() == Some(sizes) && tensor.is_contiguous() == Some(true))
    {
        return contiguous_strides(sizes);
    }
    // Insertion sort from the innermost dimension outwards, as torch's `reorder_dimensions` does.
    let mut order: SmallVec<[usize; 4]> = (0..rank).rev().collect();
    let compare = |inner: usize, outer: usize| -> i32 {
        for strides in &operands {
            let (a, b) = (strides[inner], strides[outer]);
            if a == 0 || b == 0 {
                continue;
            }
            if a != b {
                return if a < b { -1 } else { 1 };
            }
            if known[inner] > known[outer] {
                return 1;
            }
        }
        0
    };
    for i in 1..rank {
        let mut at = i;
        for j in (0..i).rev() {
            match compare(order[j], order[at]) {
                1.. => {
                    order.swap(j, at);
                    at = j;
                }
                0 => {}
                _ => break,
            }
        }
    }
    let mut strides: SmallVec<[u64; 4]> = SmallVec::from_elem(1, rank);
    let mut stride = 1_u64;
    for dim in order {
        strides[dim] = stride;
        stride = stride.saturating_mul(known[dim].max(1));
    }
    Some(strides)
}

/// `type_as`, `to`, `float`, `half`, `bfloat16`, `double`, `int`, `long`, `bool`: the same tensor if nothing changes.
pub fn cast(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let rule = call.shape_rule();
    let asked = match rule {
        ShapeRule::CastToFloat16 => Some(DType::Float16),
        ShapeRule::CastToBFloat16 => Some(DType::BFloat16),
        ShapeRule::CastToFloat32 => Some(DType::Float32),
        ShapeRule::CastToFloat64 => Some(DType::Float64),
        ShapeRule::CastToInt16 => Some(DType::Int16),
        ShapeRule::CastToInt32 => Some(DType::Int32),
        ShapeRule::CastToInt64 => Some(DType::Int64),
        ShapeRule::CastToBool => Some(DType::Bool),
        _ if call.has("other") => call.tensor("other")?.dtype,
        _ => call.dtype("dtype")?.or(input.dtype),
    };
    let is_copy = call.flag("copy").unwrap_or(false) || rule == ShapeRule::CastCopy;
    if asked == input.dtype && !is_copy {
        return Ok(Fact::Tensor(input.clone()));
    }
    let number = match (input.number, asked) {
        (Some(value), Some(dtype)) if dtype.is_float() => Some(Number::Float(call::as_float(value))),
        (Some(_), Some(DType::Int64 | DType::Int32)) => number::truncated(call.at(0)).map(Number::Int),
        _ => None,
    };
    let integer = integer(call.at(0)).map(Number::Int);
    let number = number.or(integer.filter(|_| asked == Some(DType::Int64)));
    Ok(Fact::Tensor(TensorFact { number, ..like(input, asked) }))
}
