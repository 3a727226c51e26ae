//! Numbers, lists and sizes: the arithmetic around shapes that a trace carries along.

use tracer::DType;

use super::call::{
    Call, Known, Result, as_float, code_of_dtype, fresh, integer, number, reject, shape, wrap,
};
use crate::fact::{Fact, Number, Shape, TensorFact};

/// `aten::size`: one size or all of them.
pub fn size(call: &Call<'_>) -> Result {
    let sizes = shape(call.first()?)?;
    let one = |dim: &Option<u64>| Fact::Int(dim.and_then(|size| i64::try_from(size).ok()));
    match call.has("dim") {
        true => Ok(one(&sizes.get(call.dim("dim", sizes.len())?).copied().known()?)),
        false => Ok(Fact::List(sizes.iter().map(one).collect())),
    }
}

/// `aten::dim`, `aten::numel`, `aten::len` and the like: questions about a tensor or a list.
pub fn question(call: &Call<'_>) -> Result {
    let count = |count: u64| Fact::Int(i64::try_from(count).ok());
    Ok(match (call.name, call.at(0)) {
        ("dim" | "ndimension", Fact::Tensor(tensor)) => count(shape(tensor)?.len() as u64),
        ("numel", Fact::Tensor(tensor)) => count(tensor.elements().known()?),
        ("len", Fact::Tensor(tensor)) => Fact::Int(shape(tensor)?.first().known()?.map(|size| size as i64)),
        ("len", Fact::List(items)) => count(items.len() as u64),
        ("len", Fact::Dict(items)) => count(items.len() as u64),
        ("len", Fact::Str(text)) => count(text.chars().count() as u64),
        ("dtype", Fact::Tensor(tensor)) => Fact::Int(Some(code_of_dtype(tensor.dtype.known()?))),
        ("layout", _) => Fact::Int(Some(0)),
        ("device", _) => Fact::Str("cpu".to_string()),
        ("requires_grad", Fact::Tensor(tensor)) => Fact::Bool(Some(tensor.requires_grad)),
        ("is_floating_point", Fact::Tensor(tensor)) => Fact::Bool(Some(tensor.dtype.known()?.is_float())),
        ("is_complex", Fact::Tensor(tensor)) => Fact::Bool(Some(tensor.dtype.known()?.is_complex())),
        ("__is__" | "__isnot__", a) if call.len() == 2 => {
            let same = match (a, call.at(1)) {
                (Fact::None, Fact::None) => true,
                (Fact::Unknown, _) | (_, Fact::Unknown) => return Ok(Fact::Bool(None)),
                (Fact::None, _) | (_, Fact::None) => false,
                _ => return Ok(Fact::Bool(None)),
            };
            Fact::Bool(Some(same == (call.name == "__is__")))
        }
        ("stride", Fact::Tensor(tensor)) => {
            let strides = tensor.strides.as_ref().known()?;
            let one = |stride: &u64| Fact::Int(i64::try_from(*stride).ok());
            match call.has("dim") {
                true => one(strides.get(call.dim("dim", strides.len())?).known()?),
                false => Fact::List(strides.iter().map(one).collect()),
            }
        }
        ("is_cpu", _) => Fact::Bool(Some(true)),
        (name, _) if name.starts_with("is_") => Fact::Bool(None),
        ("format" | "str", _) => Fact::Str(String::new()),
        _ => Fact::Unknown,
    })
}

/// Conversions between tensors and numbers: `Int`, `Float`, `NumToTensor`, `ScalarImplicit`, `item`, …
pub fn convert(call: &Call<'_>) -> Result {
    let input = call.at(0);
    Ok(match call.name {
        "Int" | "IntImplicit" => Fact::Int(truncated(input)),
        "Float" | "FloatImplicit" => Fact::Float(number(input).map(as_float)),
        "Bool" => Fact::Bool(number(input).map(|value| as_float(value) != 0.0)),
        "NumToTensor" | "scalar_tensor" | "tensor" | "as_tensor" => return to_tensor(call),
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

/// `prim::ListUnpack`, `prim::TupleUnpack`: the caller spreads the list, but not over one value.
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

/// `prim::DictConstruct`: keys and values in turn.
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
    Ok(Fact::List(match call.name {
        "keys" => items.iter().map(|(name, _)| key(name)).collect(),
        "values" => items.iter().map(|(_, fact)| fact.clone()).collect(),
        _ => items.iter().map(|(name, fact)| Fact::List(vec![key(name), fact.clone()])).collect(),
    }))
}

/// `aten::list`, `annotate` and other copies of what is there.
pub fn same(call: &Call<'_>) -> Result {
    match call.at(0) {
        Fact::None => Ok(Fact::None),
        other => Ok(other.clone()),
    }
}

/// Arithmetic and comparison of plain numbers and lists.
pub fn fold(call: &Call<'_>) -> Result {
    let (a, b) = (call.at(0), call.at(1));
    if let (Fact::List(x), Fact::List(y)) = (a, b) {
        return Ok(match call.name {
            "add" => Fact::List(x.iter().chain(y).cloned().collect()),
            "eq" | "ne" if x.iter().chain(y).all(|item| number(item).is_some()) => {
                Fact::Bool(Some((x == y) == (call.name == "eq")))
            }
            "eq" | "ne" => Fact::Bool(None),
            _ => Fact::Unknown,
        });
    }
    if let (Fact::List(items), "mul", Some(times)) = (a, call.name, integer(b)) {
        // A list longer than any shape's is none of our business.
        let times = if items.is_empty() { 0 } else { usize::try_from(times).unwrap_or(0) };
        return match times.checked_mul(items.len()) {
            Some(length) if length <= 4096 => {
                Ok(Fact::List((0..times).flat_map(|_| items.iter().cloned()).collect()))
            }
            _ => Ok(Fact::Unknown),
        };
    }
    if let (Fact::Str(x), Fact::Str(y)) = (a, b) {
        return Ok(match call.name {
            "eq" => Fact::Bool(Some(x == y)),
            "ne" => Fact::Bool(Some(x != y)),
            _ => Fact::Unknown,
        });
    }
    if call.len() == 1 {
        return Ok(match (a, number(a)) {
            (Fact::List(items), _) => list_fold(call.name, items),
            (_, Some(value)) => unary_number(call.name, value).map_or(Fact::Unknown, from_number),
            (Fact::Int(_), _) => Fact::Int(None),
            _ => Fact::Unknown,
        });
    }
    let result = if matches!(call.name, "div" | "true_divide") {
        divide(call)
    } else {
        binary_number(call.name, a, b)
    };
    match (result, a, b) {
        (Some(value), ..) => Ok(from_number(value)),
        (None, ..) if is_comparison(call.name) => Ok(Fact::Bool(None)),
        (None, Fact::Int(_), Fact::Int(_)) if call.name != "div" => Ok(Fact::Int(None)),
        (None, Fact::Int(_) | Fact::Float(_), Fact::Int(_) | Fact::Float(_)) => Ok(Fact::Float(None)),
        _ => Ok(Fact::Unknown),
    }
}

fn list_fold(name: &str, items: &[Fact]) -> Fact {
    let Some(numbers) = items.iter().map(integer).collect::<Option<Vec<i64>>>() else {
        return Fact::Int(None);
    };
    Fact::Int(match name {
        "max" => numbers.into_iter().max(),
        "min" => numbers.into_iter().min(),
        "sum" => numbers.into_iter().try_fold(0_i64, i64::checked_add),
        _ => None,
    })
}

fn is_comparison(name: &str) -> bool {
    matches!(name, "eq" | "ne" | "lt" | "le" | "gt" | "ge" | "__and__" | "__or__" | "__contains__")
}

/// Computes `a / b`, rounded as `rounding_mode` says.
pub fn divide(call: &Call<'_>) -> Option<Number> {
    let (a, b) = (number(call.at(0))?, number(call.at(1))?);
    match call.get("rounding_mode") {
        Some(Fact::Str(mode)) if mode == "floor" => binary("floor_divide", a, b),
        Some(Fact::Str(mode)) if mode == "trunc" => match (a, b) {
            (Number::Int(x), Number::Int(y)) => x.checked_div(y).map(Number::Int),
            _ => Some(Number::Float((as_float(a) / as_float(b)).trunc())),
        },
        _ => Some(Number::Float(as_float(a) / as_float(b))),
    }
}

/// Computes with two known numbers.
pub fn binary_number(name: &str, a: &Fact, b: &Fact) -> Option<Number> {
    binary(name, number(a)?, number(b)?)
}

fn binary(name: &str, a: Number, b: Number) -> Option<Number> {
    let (x, y) = (as_float(a), as_float(b));
    let truth = match name {
        "eq" => Some(x == y),
        "ne" => Some(x != y),
        "lt" => Some(x < y),
        "le" => Some(x <= y),
        "gt" => Some(x > y),
        "ge" => Some(x >= y),
        "__and__" | "logical_and" => match (a, b) {
            (Number::Bool(a), Number::Bool(b)) => Some(a && b),
            _ => None,
        },
        "__or__" | "logical_or" => match (a, b) {
            (Number::Bool(a), Number::Bool(b)) => Some(a || b),
            _ => None,
        },
        _ => None,
    };
    if let Some(truth) = truth {
        return Some(Number::Bool(truth));
    }
    if let (Number::Int(a), Number::Int(b)) = (a, b) {
        let result = match name {
            "add" => a.checked_add(b),
            "sub" => a.checked_sub(b),
            "rsub" => b.checked_sub(a),
            "mul" => a.checked_mul(b),
            "floor_divide" | "floordiv" => {
                a.checked_div_euclid(b).map(|q| if b < 0 && a.rem_euclid(b) != 0 { q - 1 } else { q })
            }
            "remainder" => a.checked_rem(b).map(|r| if r != 0 && (r < 0) != (b < 0) { r + b } else { r }),
            "fmod" => a.checked_rem(b),
            "max" | "maximum" => Some(a.max(b)),
            "min" | "minimum" => Some(a.min(b)),
            "pow" => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
            _ => return None,
        };
        return result.map(Number::Int);
    }
    Some(Number::Float(match name {
        "add" => x + y,
        "sub" => x - y,
        "rsub" => y - x,
        "mul" => x * y,
        "floor_divide" | "floordiv" => (x / y).floor(),
        "remainder" => x - y * (x / y).floor(),
        "fmod" => x % y,
        "max" | "maximum" => x.max(y),
        "min" | "minimum" => x.min(y),
        "pow" => x.powf(y),
        _ => return None,
    }))
}

/// Computes with one known number.
pub fn unary_number(name: &str, value: Number) -> Option<Number> {
    match (name, value) {
        ("__not__" | "logical_not", value) => return Some(Number::Bool(as_float(value) == 0.0)),
        ("neg", Number::Int(value)) => return value.checked_neg().map(Number::Int),
        ("abs" | "absolute", Number::Int(value)) => return value.checked_abs().map(Number::Int),
        (
            "floor" | "ceil" | "round" | "trunc" | "detach" | "clone" | "contiguous" | "alias",
            Number::Int(_),
        ) => {
            return Some(value);
        }
        _ => {}
    }
    let x = as_float(value);
    Some(Number::Float(match name {
        "neg" => -x,
        "abs" => x.abs(),
        "floor" => x.floor(),
        "ceil" => x.ceil(),
        "trunc" => x.trunc(),
        "round" => x.round_ties_even(),
        "sqrt" => x.sqrt(),
        "exp" => x.exp(),
        "log" => x.ln(),
        "rsqrt" => x.sqrt().recip(),
        "reciprocal" => x.recip(),
        "detach" | "clone" | "contiguous" | "alias" => x,
        _ => return None,
    }))
}

/// Returns an integer as `int()` makes it.
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

/// Scalar `floor`, `ceil` and `round` make integers.
pub fn rounding(call: &Call<'_>) -> Result {
    if call.first().is_ok() {
        return super::elementwise::unary(call);
    }
    Ok(match number(call.at(0)).and_then(|value| unary_number(call.name, value)) {
        Some(value) if call.name != "round" => Fact::Int(truncated(&from_number(value))),
        Some(value) => from_number(value),
        None if call.name == "round" => Fact::Float(None),
        None => Fact::Int(None),
    })
}

/// Clamps a known number between `min` and `max`, each of which may be left out.
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
