//! Numbers, lists and sizes: the arithmetic around shapes in a trace.

use operators::{Arithmetic, ShapeRule};
use tracer::DType;

use super::{
    call::{Call, Known, Result, as_float, code_of_dtype, fresh, integer, number, reject, shape, wrap},
    rules::rules,
};
use crate::fact::{Fact, Number, Shape, TensorFact};

rules! {
    size: Size,
    question: Rank | Elements | Length | TypeOf | LayoutOf | DeviceOf | DeviceNumber | RequiresGrad | IsFloatingPoint | IsComplex | IsCpu | Is | IsNot | StrideOf | Text | Question,
    convert: ToInt | ToFloat | ToBool | ToTensor | Convert,
    item: Item,
    first: Unpack,
    list: List,
    dictionary: Dictionary,
    dictionary_parts: DictionaryKeys | DictionaryValues | DictionaryItems,
    same: Same,
    fold: Fold,
}

/// `aten::size`: one size or all of them.
pub fn size(call: &Call<'_>) -> Result {
    let sizes = shape(call.first()?)?;
    let one = |dim: &Option<u64>| Fact::Int(dim.and_then(|size| i64::try_from(size).ok()));
    if call.has("dim") {
        Ok(one(&sizes.get(call.dim("dim", sizes.len())?).copied().known()?))
    } else {
        Ok(Fact::List(sizes.iter().map(one).collect()))
    }
}

/// `aten::dim`, `aten::numel`, `aten::len` and similar operators: properties of a tensor or a list.
pub fn question(call: &Call<'_>) -> Result {
    let count = |count: u64| Fact::Int(i64::try_from(count).ok());
    let rule = call.shape_rule();
    Ok(match (rule, call.at(0)) {
        (ShapeRule::Rank, Fact::Tensor(tensor)) => count(shape(tensor)?.len() as u64),
        (ShapeRule::Elements, Fact::Tensor(tensor)) => count(tensor.elements().known()?),
        (ShapeRule::Length, Fact::Tensor(tensor)) => {
            Fact::Int(shape(tensor)?.first().known()?.map(|size| size as i64))
        }
        (ShapeRule::Length, Fact::List(items)) => count(items.len() as u64),
        (ShapeRule::Length, Fact::Dict(items)) => count(items.len() as u64),
        (ShapeRule::Length, Fact::Str(text)) => count(text.chars().count() as u64),
        (ShapeRule::TypeOf, Fact::Tensor(tensor)) => Fact::Int(Some(code_of_dtype(tensor.dtype.known()?))),
        (ShapeRule::LayoutOf, _) => Fact::Int(Some(0)),
        (ShapeRule::DeviceOf, _) => Fact::Str("cpu".to_string()),
        (ShapeRule::DeviceNumber, _) => Fact::Int(None),
        (ShapeRule::RequiresGrad, Fact::Tensor(tensor)) => Fact::Bool(Some(tensor.requires_grad)),
        (ShapeRule::IsFloatingPoint, Fact::Tensor(tensor)) => {
            Fact::Bool(Some(tensor.dtype.known()?.is_float()))
        }
        (ShapeRule::IsComplex, Fact::Tensor(tensor)) => Fact::Bool(Some(tensor.dtype.known()?.is_complex())),
        (ShapeRule::Is | ShapeRule::IsNot, a) if call.len() == 2 => {
            let same = match (a, call.at(1)) {
                (Fact::None, Fact::None) => true,
                (Fact::Unknown, _) | (_, Fact::Unknown) => return Ok(Fact::Bool(None)),
                (Fact::None, _) | (_, Fact::None) => false,
                _ => return Ok(Fact::Bool(None)),
            };
            Fact::Bool(Some(same == (rule == ShapeRule::Is)))
        }
        (ShapeRule::StrideOf, Fact::Tensor(tensor)) => {
            let strides = tensor.strides.as_ref().known()?;
            let one = |stride: &u64| Fact::Int(i64::try_from(*stride).ok());
            if call.has("dim") {
                one(strides.get(call.dim("dim", strides.len())?).known()?)
            } else {
                Fact::List(strides.iter().map(one).collect())
            }
        }
        (ShapeRule::IsCpu, _) => Fact::Bool(Some(true)),
        // Boolean properties, also for arguments that are not tensors.
        (ShapeRule::Question | ShapeRule::IsFloatingPoint | ShapeRule::IsComplex, _) => Fact::Bool(None),
        (ShapeRule::Text, _) => Fact::Str(String::new()),
        _ => Fact::Unknown,
    })
}

/// Conversions between tensors and numbers: `Int`, `Float`, `NumToTensor`, `ScalarImplicit`, `item`, …
pub fn convert(call: &Call<'_>) -> Result {
    let input = call.at(0);
    Ok(match call.shape_rule() {
        ShapeRule::ToInt => Fact::Int(truncated(input)),
        ShapeRule::ToFloat => Fact::Float(number(input).map(as_float)),
        ShapeRule::ToBool => Fact::Bool(number(input).map(|value| as_float(value) != 0.0)),
        ShapeRule::ToTensor => return to_tensor(call),
        _ => match input {
            Fact::Tensor(tensor) => match (tensor.number, tensor.dtype) {
                (Some(value), _) => from_number(value),
                (None, Some(dtype)) if dtype.is_float() => Fact::Float(None),
                (None, Some(DType::Bool)) => Fact::Bool(None),
                (None, Some(_)) => Fact::Int(None),
                _ => Fact::Unknown,
            },
            other => other.clone(),
        },
    })
}

fn to_tensor(call: &Call<'_>) -> Result {
    let input = call.at(0);
    let asked = call.dtype("dtype")?;
    let (shape, dtype) = match input {
        Fact::Tensor(tensor) => {
            return Ok(Fact::Tensor(TensorFact { dtype: asked.or(tensor.dtype), ..tensor.clone() }));
        }
        other => nested(other),
    };
    let number = if shape.is_empty() { number(input) } else { None };
    Ok(Fact::Tensor(TensorFact { number, ..fresh(asked.or(dtype), shape) }))
}

/// Returns sizes and dtype of a list of lists of numbers.
fn nested(fact: &Fact) -> (Shape, Option<DType>) {
    match fact {
        Fact::List(items) => {
            let (inner, dtype) = items.first().map_or((Shape::new(), Some(DType::Float32)), nested);
            let mut shape = Shape::new();
            shape.push(Some(items.len() as u64));
            shape.extend(inner);
            (shape, dtype)
        }
        Fact::Int(_) => (Shape::new(), Some(DType::Int64)),
        Fact::Float(_) => (Shape::new(), Some(DType::Float32)),
        Fact::Bool(_) => (Shape::new(), Some(DType::Bool)),
        Fact::Tensor(tensor) => (tensor.shape.clone().unwrap_or_default(), tensor.dtype),
        _ => (Shape::new(), None),
    }
}

/// `__getitem__` and `prim::TupleIndex`.
pub fn item(call: &Call<'_>) -> Result {
    match (call.at(0), call.at(1)) {
        (Fact::List(items), position) => {
            let position = integer(position).known()?;
            if items.is_empty() || position >= items.len() as i64 || position < -(items.len() as i64) {
                reject!("item {position} of a list of {}", items.len());
            }
            Ok(items[wrap(position, items.len())?].clone())
        }
        (Fact::Dict(items), key) => {
            let key = match key {
                Fact::Str(text) => text.clone(),
                other => other.to_string(),
            };
            items.iter().find(|(name, _)| *name == key).map(|(_, fact)| fact.clone()).known()
        }
        _ => Ok(Fact::Unknown),
    }
}

/// `prim::ListUnpack`, `prim::TupleUnpack`: the caller distributes the list, unless there is one value.
pub fn first(call: &Call<'_>) -> Result {
    match call.at(0) {
        Fact::List(items) if call.n_outputs == 1 => Ok(items.first().cloned().unwrap_or_default()),
        list => Ok(list.clone()),
    }
}

/// `prim::ListConstruct`, `prim::TupleConstruct`.
pub fn list(call: &Call<'_>) -> Result {
    Ok(Fact::List(call.facts().cloned().collect()))
}

/// `prim::DictConstruct`: alternating keys and values.
pub fn dictionary(call: &Call<'_>) -> Result {
    let facts: Vec<&Fact> = call.facts().collect();
    let pairs = facts.chunks_exact(2).map(|pair| match pair[0] {
        Fact::Str(text) => (text.clone(), pair[1].clone()),
        other => (other.to_string(), pair[1].clone()),
    });
    Ok(Fact::Dict(pairs.collect()))
}

/// `aten::keys`, `aten::values`, `aten::items`.
pub fn dictionary_parts(call: &Call<'_>) -> Result {
    let Fact::Dict(items) = call.at(0) else { return Ok(Fact::Unknown) };
    let key = |text: &String| Fact::Str(text.clone());
    Ok(Fact::List(match call.shape_rule() {
        ShapeRule::DictionaryKeys => items.iter().map(|(name, _)| key(name)).collect(),
        ShapeRule::DictionaryValues => items.iter().map(|(_, fact)| fact.clone()).collect(),
        _ => items.iter().map(|(name, fact)| Fact::List(vec![key(name), fact.clone()])).collect(),
    }))
}

/// `aten::list`, `annotate` and other copies.
pub fn same(call: &Call<'_>) -> Result {
    match call.at(0) {
        Fact::None => Ok(Fact::None),
        other => Ok(other.clone()),
    }
}

/// Arithmetic and comparison of plain numbers and lists.
pub fn fold(call: &Call<'_>) -> Result {
    let (numbers, a, b) = (call.numbers(), call.at(0), call.at(1));
    if let (Fact::List(x), Fact::List(y)) = (a, b) {
        return Ok(match numbers {
            Arithmetic::Add => Fact::List(x.iter().chain(y).cloned().collect()),
            Arithmetic::Equal | Arithmetic::NotEqual
                if x.iter().chain(y).all(|item| number(item).is_some()) =>
            {
                Fact::Bool(Some((x == y) == (numbers == Arithmetic::Equal)))
            }
            Arithmetic::Equal | Arithmetic::NotEqual => Fact::Bool(None),
            _ => Fact::Unknown,
        });
    }
    if let (Fact::List(items), Arithmetic::Multiply, Some(times)) = (a, numbers, integer(b)) {
        // A list longer than any shape is not evaluated.
        let times = if items.is_empty() { 0 } else { usize::try_from(times).unwrap_or(0) };
        return match times.checked_mul(items.len()) {
            Some(length) if length <= 4096 => {
                Ok(Fact::List((0..times).flat_map(|_| items.iter().cloned()).collect()))
            }
            _ => Ok(Fact::Unknown),
        };
    }
    if let (Fact::Str(x), Fact::Str(y)) = (a, b) {
        return Ok(match numbers {
            Arithmetic::Equal => Fact::Bool(Some(x == y)),
            Arithmetic::NotEqual => Fact::Bool(Some(x != y)),
            _ => Fact::Unknown,
        });
    }
    if call.len() == 1 {
        return Ok(match (a, number(a)) {
            (Fact::List(items), _) => list_fold(numbers, items),
            (_, Some(value)) => unary_number(numbers, value).map_or(Fact::Unknown, from_number),
            (Fact::Int(_), _) => Fact::Int(None),
            _ => Fact::Unknown,
        });
    }
    let result = match numbers {
        Arithmetic::Divide | Arithmetic::TrueDivide => divide(call),
        _ => binary_number(numbers, a, b),
    };
    match (result, a, b) {
        (Some(value), ..) => Ok(from_number(value)),
        (None, ..) if is_truth(numbers) => Ok(Fact::Bool(None)),
        (None, Fact::Int(_), Fact::Int(_)) if numbers != Arithmetic::Divide => Ok(Fact::Int(None)),
        (None, Fact::Int(_) | Fact::Float(_), Fact::Int(_) | Fact::Float(_)) => Ok(Fact::Float(None)),
        _ => Ok(Fact::Unknown),
    }
}

fn list_fold(numbers: Arithmetic, items: &[Fact]) -> Fact {
    let Some(integers) = items.iter().map(integer).collect::<Option<Vec<i64>>>() else {
        return Fact::Int(None);
    };
    Fact::Int(match numbers {
        Arithmetic::Maximum => integers.into_iter().max(),
        Arithmetic::Minimum => integers.into_iter().min(),
        Arithmetic::Sum => integers.into_iter().try_fold(0_i64, i64::checked_add),
        _ => None,
    })
}

/// Tells whether the result for two numbers is a boolean.
fn is_truth(numbers: Arithmetic) -> bool {
    numbers.compares() || matches!(numbers, Arithmetic::And | Arithmetic::Or | Arithmetic::Contains)
}

/// Computes `a / b`, rounded by `rounding_mode`.
pub fn divide(call: &Call<'_>) -> Option<Number> {
    let (a, b) = (number(call.at(0))?, number(call.at(1))?);
    match call.get("rounding_mode") {
        Some(Fact::Str(mode)) if mode == "floor" => binary(Arithmetic::FloorDivide, a, b),
        Some(Fact::Str(mode)) if mode == "trunc" => match (a, b) {
            (Number::Int(x), Number::Int(y)) => x.checked_div(y).map(Number::Int),
            _ => Some(Number::Float((as_float(a) / as_float(b)).trunc())),
        },
        _ => Some(Number::Float(as_float(a) / as_float(b))),
    }
}

/// Computes with two known numbers.
pub fn binary_number(numbers: Arithmetic, a: &Fact, b: &Fact) -> Option<Number> {
    binary(numbers, number(a)?, number(b)?)
}

fn binary(numbers: Arithmetic, a: Number, b: Number) -> Option<Number> {
    let (x, y) = (as_float(a), as_float(b));
    let truth = match numbers {
        Arithmetic::Equal => Some(x == y),
        Arithmetic::NotEqual => Some(x != y),
        Arithmetic::Less => Some(x < y),
        Arithmetic::LessOrEqual => Some(x <= y),
        Arithmetic::Greater => Some(x > y),
        Arithmetic::GreaterOrEqual => Some(x >= y),
        Arithmetic::And | Arithmetic::LogicalAnd => match (a, b) {
            (Number::Bool(a), Number::Bool(b)) => Some(a && b),
            _ => None,
        },
        Arithmetic::Or | Arithmetic::LogicalOr => match (a, b) {
            (Number::Bool(a), Number::Bool(b)) => Some(a || b),
            _ => None,
        },
        _ => None,
    };
    if let Some(truth) = truth {
        return Some(Number::Bool(truth));
    }
    if let (Number::Int(a), Number::Int(b)) = (a, b) {
        let result = match numbers {
            Arithmetic::Add => a.checked_add(b),
            Arithmetic::Subtract => a.checked_sub(b),
            Arithmetic::SubtractFrom => b.checked_sub(a),
            Arithmetic::Multiply => a.checked_mul(b),
            Arithmetic::FloorDivide | Arithmetic::FloorDivideNumbers => {
                a.checked_div_euclid(b).map(|q| if b < 0 && a.rem_euclid(b) != 0 { q - 1 } else { q })
            }
            Arithmetic::Remainder => {
                a.checked_rem(b).map(|r| if r != 0 && (r < 0) != (b < 0) { r + b } else { r })
            }
            Arithmetic::TruncatedRemainder => a.checked_rem(b),
            Arithmetic::Maximum => Some(a.max(b)),
            Arithmetic::Minimum => Some(a.min(b)),
            Arithmetic::Power => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
            _ => return None,
        };
        return result.map(Number::Int);
    }
    Some(Number::Float(match numbers {
        Arithmetic::Add => x + y,
        Arithmetic::Subtract => x - y,
        Arithmetic::SubtractFrom => y - x,
        Arithmetic::Multiply => x * y,
        Arithmetic::FloorDivide | Arithmetic::FloorDivideNumbers => (x / y).floor(),
        Arithmetic::Remainder => x - y * (x / y).floor(),
        Arithmetic::TruncatedRemainder => x % y,
        Arithmetic::Maximum => x.max(y),
        Arithmetic::Minimum => x.min(y),
        Arithmetic::Power => x.powf(y),
        _ => return None,
    }))
}

/// Computes with one known number.
pub fn unary_number(numbers: Arithmetic, value: Number) -> Option<Number> {
    match (numbers, value) {
        (Arithmetic::Not | Arithmetic::LogicalNot, value) => {
            return Some(Number::Bool(as_float(value) == 0.0));
        }
        (Arithmetic::Negate, Number::Int(value)) => return value.checked_neg().map(Number::Int),
        (Arithmetic::Absolute, Number::Int(value)) => return value.checked_abs().map(Number::Int),
        (
            Arithmetic::Floor
            | Arithmetic::Ceiling
            | Arithmetic::Round
            | Arithmetic::Truncate
            | Arithmetic::Same,
            Number::Int(_),
        ) => {
            return Some(value);
        }
        _ => {}
    }
    let x = as_float(value);
    Some(Number::Float(match numbers {
        Arithmetic::Negate => -x,
        Arithmetic::Absolute => x.abs(),
        Arithmetic::Floor => x.floor(),
        Arithmetic::Ceiling => x.ceil(),
        Arithmetic::Truncate => x.trunc(),
        Arithmetic::Round => x.round_ties_even(),
        Arithmetic::SquareRoot => x.sqrt(),
        Arithmetic::Exponential => x.exp(),
        Arithmetic::Logarithm => x.ln(),
        Arithmetic::ReciprocalRoot => x.sqrt().recip(),
        Arithmetic::Reciprocal => x.recip(),
        Arithmetic::Same => x,
        _ => return None,
    }))
}

/// Returns an integer in the way of `int()`.
pub fn truncated(fact: &Fact) -> Option<i64> {
    match number(fact)? {
        Number::Int(value) => Some(value),
        Number::Bool(value) => Some(i64::from(value)),
        Number::Float(value) => (value.is_finite() && value.abs() < 9e18).then_some(value.trunc() as i64),
    }
}

/// Turns a number into a fact.
pub fn from_number(number: Number) -> Fact {
    match number {
        Number::Int(value) => Fact::Int(Some(value)),
        Number::Float(value) => Fact::Float(Some(value)),
        Number::Bool(value) => Fact::Bool(Some(value)),
    }
}

/// Clamps a known number between `min` and `max`, each of which may be absent.
pub fn clamped(call: &Call<'_>, value: Number) -> Option<Number> {
    let mut result = value;
    for (bound, is_lower) in [("min", true), ("max", false)] {
        match call.get(bound) {
            None | Some(Fact::None) => {}
            Some(fact) => {
                let limit = number(fact)?;
                let is_outside = if is_lower {
                    as_float(result) < as_float(limit)
                } else {
                    as_float(result) > as_float(limit)
                };
                result = if is_outside { limit } else { result };
            }
        }
    }
    Some(result)
}
