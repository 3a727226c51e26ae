//! `Call`: an operator with its arguments as facts, which is the whole input of a rule.

use std::borrow::Cow;

use operators::{Arithmetic, ShapeRule};
use smallvec::SmallVec;
use tracer::{Constant, DType, Operand};

use crate::{
    fact::{Dim, Fact, Number, Shape, TensorFact},
    model::Argument,
};

/// Why a rule has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A fact that the rule needs is unknown.
    Unknown,
    /// The operator would reject these arguments, with the reason.
    Rejected(String),
}

/// The result of a rule.
pub type Result<T = Fact> = std::result::Result<T, Stop>;

/// Turns an absent value into [`Stop::Unknown`].
pub trait Known<T> {
    /// Returns the value or stops.
    fn known(self) -> Result<T>;
}

impl<T> Known<T> for Option<T> {
    fn known(self) -> Result<T> {
        self.ok_or(Stop::Unknown)
    }
}

/// Stops with a reason.
macro_rules! reject {
    ($($text:tt)*) => {
        return Err($crate::infer::call::Stop::Rejected(format!($($text)*)))
    };
}
pub(crate) use reject;

/// Facts of everything that an operand can name.
pub struct Scope<'a> {
    /// By value id.
    pub values: &'a [Fact],
    /// By tensor id.
    pub tensors: &'a [Fact],
}

impl<'a> Scope<'a> {
    /// Returns what is known about an operand.
    pub fn fact(&self, operand: &'a Operand) -> Cow<'a, Fact> {
        match operand {
            Operand::Value(value) => Cow::Borrowed(&self.values[value.index()]),
            Operand::Tensor(tensor) => Cow::Borrowed(&self.tensors[tensor.index()]),
            Operand::Constant(constant) => Cow::Owned(literal(constant)),
            Operand::List(items) | Operand::Tuple(items) => {
                Cow::Owned(Fact::List(items.iter().map(|item| self.fact(item).into_owned()).collect()))
            }
            Operand::Dict(items) => Cow::Owned(Fact::Dict(
                items
                    .iter()
                    .map(|(key, value)| {
                        let key = match self.fact(key).as_ref() {
                            Fact::Str(text) => text.clone(),
                            other => other.to_string(),
                        };
                        (key, self.fact(value).into_owned())
                    })
                    .collect(),
            )),
        }
    }
}

fn literal(constant: &Constant) -> Fact {
    match constant {
        Constant::None => Fact::None,
        Constant::Bool(value) => Fact::Bool(Some(*value)),
        Constant::Int(value) => Fact::Int(Some(*value)),
        Constant::Float(value) => Fact::Float(Some(*value)),
        Constant::Complex(..) => Fact::Unknown,
        Constant::Str(text) | Constant::Device(text) => Fact::Str(text.clone()),
    }
}

/// An operator with its arguments.
pub struct Call<'a> {
    /// The name without name space and without the `_` of in-place operators: `relu`.
    pub name: &'a str,
    /// True for an operator that writes to its first argument.
    pub is_in_place: bool,
    /// The number of its results.
    pub n_outputs: usize,
    arguments: &'a [Argument],
    facts: SmallVec<[Cow<'a, Fact>; 8]>,
}

impl<'a> Call<'a> {
    /// Looks up every argument.
    pub fn new(name: &'a str, arguments: &'a [Argument], n_outputs: usize, scope: &Scope<'a>) -> Self {
        let short = name.rsplit("::").next().unwrap_or(name);
        let (name, is_in_place) = operators::plain(short);
        let facts = arguments.iter().map(|argument| scope.fact(&argument.operand)).collect();
        Self { name, is_in_place, n_outputs, arguments, facts }
    }

    /// Returns the operator's row of the table, whatever its name space.
    pub fn row(&self) -> Option<&'static operators::Operator> {
        operators::find(self.name)
    }

    /// Returns its shape rule.
    pub fn shape_rule(&self) -> ShapeRule {
        self.row().map_or(ShapeRule::Unknown, |row| row.shape)
    }

    /// Returns its arithmetic on plain numbers.
    pub fn numbers(&self) -> Arithmetic {
        self.row().map_or(Arithmetic::Nothing, |row| row.numbers)
    }

    /// Tells whether it is a transposed convolution.
    pub fn is_transposed(&self) -> bool {
        self.shape_rule() == ShapeRule::TransposedConvolution || self.flag("transposed") == Some(true)
    }

    /// Returns the same call of another operator.
    pub fn of(&self, name: &'a str) -> Self {
        Self { name, facts: self.facts.clone(), ..*self }
    }

    /// Returns the number of arguments.
    pub fn len(&self) -> usize {
        self.facts.len()
    }

    /// Returns the fact of an argument by position.
    pub fn at(&self, position: usize) -> &Fact {
        self.facts.get(position).map_or(&Fact::None, Cow::as_ref)
    }

    /// Returns the fact of a named argument.
    pub fn get(&self, name: &str) -> Option<&Fact> {
        let position = self.arguments.iter().position(|argument| argument.name == name)?;
        Some(self.at(position))
    }

    /// Tells whether a named argument is present and not `None`.
    pub fn has(&self, name: &str) -> bool {
        !matches!(self.get(name), None | Some(Fact::None))
    }

    /// Returns every argument's fact in order.
    pub fn facts(&self) -> impl Iterator<Item = &Fact> {
        self.facts.iter().map(Cow::as_ref)
    }

    /// Returns every tensor among the arguments, including those in lists.
    pub fn tensors(&self) -> Vec<&TensorFact> {
        self.facts().flat_map(Fact::tensors).collect()
    }

    /// Returns the first argument as a tensor.
    pub fn first(&self) -> Result<&TensorFact> {
        self.at(0).tensor().known()
    }

    /// Returns a named tensor.
    pub fn tensor(&self, name: &str) -> Result<&TensorFact> {
        self.get(name).and_then(Fact::tensor).known()
    }

    /// Returns a named integer; `None` if absent, `None` or unknown.
    pub fn int(&self, name: &str) -> Option<i64> {
        integer(self.get(name)?)
    }

    /// Returns a named flag.
    pub fn flag(&self, name: &str) -> Option<bool> {
        match self.get(name)? {
            Fact::Bool(value) => *value,
            Fact::Int(value) => value.map(|value| value != 0),
            _ => None,
        }
    }

    /// Returns a named float.
    pub fn float(&self, name: &str) -> Option<f64> {
        number(self.get(name)?).map(as_float)
    }

    /// Returns a named list of integers, unknown ones as `None`.
    pub fn ints(&self, name: &str) -> Option<Vec<Option<i64>>> {
        integers(self.get(name)?)
    }

    /// Returns a named list of known integers, repeated to `length` if it has one item.
    pub fn sizes(&self, name: &str, length: usize) -> Option<Vec<i64>> {
        let list: Option<Vec<i64>> = self.ints(name)?.into_iter().collect();
        match list? {
            list if list.len() == length => Some(list),
            list if list.len() == 1 => Some(vec![list[0]; length]),
            _ => None,
        }
    }

    /// Returns a named dtype; `Ok(None)` if absent.
    pub fn dtype(&self, name: &str) -> Result<Option<DType>> {
        match self.get(name) {
            None | Some(Fact::None) => Ok(None),
            Some(fact) => integer(fact).and_then(dtype_from_code).known().map(Some),
        }
    }

    /// Returns a named dimension of a tensor with `rank` dimensions, counted from the front.
    pub fn dim(&self, name: &str, rank: usize) -> Result<usize> {
        wrap(self.int(name).known()?, rank)
    }

    /// Returns a named list of dimensions; all of them if absent or empty.
    pub fn dims(&self, name: &str, rank: usize) -> Result<Vec<usize>> {
        match self.get(name) {
            None | Some(Fact::None) => Ok((0..rank).collect()),
            Some(fact) => {
                let list = integers(fact).known()?;
                if list.is_empty() {
                    return Ok((0..rank).collect());
                }
                list.into_iter().map(|dim| wrap(dim.known()?, rank)).collect()
            }
        }
    }
}

/// Counts a dimension from the front; a tensor without dimensions takes 0 and -1.
pub fn wrap(dim: i64, rank: usize) -> Result<usize> {
    let limit = rank.max(1) as i64;
    if dim < -limit || dim >= limit {
        reject!("dimension {dim} of a tensor with {rank} dimensions");
    }
    Ok(if dim < 0 { dim + limit } else { dim } as usize)
}

/// Returns an integer, also of a tensor with a known value.
pub fn integer(fact: &Fact) -> Option<i64> {
    match fact {
        Fact::Int(value) => *value,
        Fact::Bool(value) => value.map(i64::from),
        Fact::Float(value) => value.filter(|value| value.fract() == 0.0).map(|value| value as i64),
        Fact::Tensor(tensor) => match tensor.number? {
            Number::Int(value) => Some(value),
            Number::Bool(value) => Some(i64::from(value)),
            Number::Float(value) => (value.fract() == 0.0).then_some(value as i64),
        },
        _ => None,
    }
}

/// Returns a number, also of a tensor with a known value.
pub fn number(fact: &Fact) -> Option<Number> {
    match fact {
        Fact::Int(value) => value.map(Number::Int),
        Fact::Float(value) => value.map(Number::Float),
        Fact::Bool(value) => value.map(Number::Bool),
        Fact::Tensor(tensor) => tensor.number,
        _ => None,
    }
}

/// Returns a number as a float.
pub fn as_float(number: Number) -> f64 {
    match number {
        Number::Int(value) => value as f64,
        Number::Float(value) => value,
        Number::Bool(value) => f64::from(u8::from(value)),
    }
}

/// Returns a list of integers; a single one is a list of one.
pub fn integers(fact: &Fact) -> Option<Vec<Option<i64>>> {
    match fact {
        Fact::List(items) => Some(items.iter().map(integer).collect()),
        Fact::Int(_) | Fact::Tensor(_) | Fact::Bool(_) => Some(vec![integer(fact)]),
        _ => None,
    }
}

/// Returns the dtype of a code of `c10::ScalarType`.
pub fn dtype_from_code(code: i64) -> Option<DType> {
    Some(match code {
        0 => DType::UInt8,
        1 => DType::Int8,
        2 => DType::Int16,
        3 => DType::Int32,
        4 => DType::Int64,
        5 => DType::Float16,
        6 => DType::Float32,
        7 => DType::Float64,
        9 => DType::Complex64,
        10 => DType::Complex128,
        11 => DType::Bool,
        15 => DType::BFloat16,
        23 => DType::Float8E5M2,
        24 => DType::Float8E4M3,
        27 => DType::UInt16,
        28 => DType::UInt32,
        29 => DType::UInt64,
        _ => return None,
    })
}

/// Returns the code of a dtype in `c10::ScalarType`.
pub fn code_of_dtype(dtype: DType) -> i64 {
    (0..30).find(|code| dtype_from_code(*code) == Some(dtype)).expect("every dtype has a code below 30")
}

/// Returns a tensor's sizes, known or not, or stops if even their number is unknown.
pub fn shape(tensor: &TensorFact) -> Result<&Shape> {
    tensor.shape.as_ref().known()
}

/// Makes a fresh, contiguous tensor.
pub fn fresh(dtype: Option<DType>, shape: Shape) -> TensorFact {
    let strides = contiguous_strides(&shape);
    TensorFact { dtype, shape: Some(shape), strides, ..TensorFact::default() }
}

/// Makes a fresh tensor as a fact.
pub fn fresh_fact(dtype: Option<DType>, shape: Shape) -> Result {
    Ok(Fact::Tensor(fresh(dtype, shape)))
}

/// Returns the strides of a contiguous tensor.
pub fn contiguous_strides(shape: &[Dim]) -> Option<SmallVec<[u64; 4]>> {
    let mut strides: SmallVec<[u64; 4]> = SmallVec::from_elem(1, shape.len());
    let mut stride = 1_u64;
    for (position, dim) in shape.iter().enumerate().rev() {
        strides[position] = stride;
        stride = stride.saturating_mul((*dim)?.max(1));
    }
    Some(strides)
}

/// Makes a view of another tensor's storage.
pub fn view(of: &TensorFact, shape: Shape, strides: Option<SmallVec<[u64; 4]>>) -> TensorFact {
    TensorFact { shape: Some(shape), strides, number: None, is_wrapped_number: false, ..of.clone() }
}
