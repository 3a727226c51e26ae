//! `Fact`: a static fact about a value.
//!
//! Sizes taken from a tensor (`x.size(0)`), and numbers computed from them, are tracked as plain numbers, so that
//! `x.view(int(n) * 4, -1)` has a shape. A dimension that depends on data is `None`.

use std::fmt;

use smallvec::SmallVec;
use tracer::DType;

/// Index into [`crate::ModelGraph::storages`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StorageId(pub u32);

impl StorageId {
    /// Returns the position in the graph's list.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A size; `None` if it depends on data.
pub type Dim = Option<u64>;

/// Sizes of a tensor.
pub type Shape = SmallVec<[Dim; 4]>;

/// Facts about a value.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Fact {
    /// Nothing, not even its type.
    #[default]
    Unknown,
    /// A tensor.
    Tensor(TensorFact),
    /// An integer.
    Int(Option<i64>),
    /// A float.
    Float(Option<f64>),
    /// A boolean.
    Bool(Option<bool>),
    /// A text or a device.
    Str(String),
    /// `None`.
    None,
    /// A list or tuple of known length.
    List(Vec<Fact>),
    /// A dictionary with text keys, in order.
    Dict(Vec<(String, Fact)>),
}

/// Facts about a tensor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TensorFact {
    /// Element type.
    pub dtype: Option<DType>,
    /// Sizes; `None` if not even the number of dimensions is known.
    pub shape: Option<Shape>,
    /// Strides in elements; `None` if unknown.
    pub strides: Option<SmallVec<[u64; 4]>>,
    /// Its storage; `None` for tensors in the program that only hold numbers.
    pub storage: Option<StorageId>,
    /// True when a gradient flows back through it.
    pub requires_grad: bool,
    /// The value of a tensor without dimensions, if known.
    pub number: Option<Number>,
    /// True for a tensor made from a Python number, which does not widen other dtypes.
    pub is_wrapped_number: bool,
}

/// A known number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// An integer.
    Int(i64),
    /// A float.
    Float(f64),
    /// A boolean.
    Bool(bool),
}

impl TensorFact {
    /// Returns the number of elements, if every size is known.
    pub fn elements(&self) -> Option<u64> {
        self.shape.as_ref()?.iter().try_fold(1u64, |product, dim| product.checked_mul((*dim)?))
    }

    /// Returns the bytes of its elements, if size and type are known.
    pub fn bytes(&self) -> Option<u64> {
        self.elements()?.checked_mul(self.dtype?.bytes())
    }

    /// Returns the sizes, if all are known.
    pub fn sizes(&self) -> Option<Vec<u64>> {
        self.shape.as_ref()?.iter().copied().collect()
    }

    /// Tells whether these are channels-last images, as torch's `suggest_memory_format` does.
    pub fn is_channels_last(&self) -> bool {
        let (Some(sizes), Some(strides)) = (self.sizes(), self.strides.as_ref()) else { return false };
        let rank = sizes.len();
        if !matches!(rank, 4 | 5) || strides[1] == 0 {
            return false;
        }
        let mut least = 0;
        for dim in std::iter::once(1).chain((2..rank).rev()).chain([0]) {
            if sizes[dim] == 0 || strides[dim] < least {
                return false;
            }
            // An all-ones shape fits both layouts; torch decides for the plain one.
            if dim == 0 && least == strides[1] {
                return false;
            }
            least = strides[dim];
            if sizes[dim] > 1 {
                least = least.saturating_mul(sizes[dim]);
            }
        }
        true
    }

    /// Tells whether the elements are contiguous in memory, as far as known.
    pub fn is_contiguous(&self) -> Option<bool> {
        let (sizes, strides) = (self.sizes()?, self.strides.as_ref()?);
        if sizes.contains(&0) {
            return Some(true);
        }
        let mut expected = 1;
        for (size, stride) in sizes.iter().zip(strides).rev() {
            if *size != 1 && *stride != expected {
                return Some(false);
            }
            expected = expected.saturating_mul(*size);
        }
        Some(true)
    }
}

impl Fact {
    /// Returns the tensor, if it is one.
    pub fn tensor(&self) -> Option<&TensorFact> {
        match self {
            Fact::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// Returns every tensor inside, in order.
    pub fn tensors(&self) -> Vec<&TensorFact> {
        match self {
            Fact::Tensor(tensor) => vec![tensor],
            Fact::List(items) => items.iter().flat_map(Fact::tensors).collect(),
            Fact::Dict(items) => items.iter().flat_map(|(_, fact)| fact.tensors()).collect(),
            _ => Vec::new(),
        }
    }
}

/// Returns torch's name of a dtype: `float32`.
pub fn dtype_name(dtype: DType) -> &'static str {
    dtype.name()
}

/// Shows a shape as `8x3x224x224`, `?` for an unknown size, `scalar` for no dimensions.
pub fn show_shape(shape: &[Dim]) -> String {
    if shape.is_empty() {
        return "scalar".to_string();
    }
    let sizes: Vec<String> =
        shape.iter().map(|dim| dim.map_or_else(|| "?".to_string(), |size| size.to_string())).collect();
    sizes.join("x")
}

impl fmt::Display for TensorFact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.dtype.map_or("tensor", dtype_name))?;
        match &self.shape {
            Some(shape) => write!(f, " {}", show_shape(shape)),
            None => f.write_str(" of unknown shape"),
        }
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn known(f: &mut fmt::Formatter<'_>, name: &str, value: Option<impl fmt::Display>) -> fmt::Result {
            match value {
                Some(value) => write!(f, "{value}"),
                None => f.write_str(name),
            }
        }
        match self {
            Fact::Unknown => f.write_str("?"),
            Fact::Tensor(tensor) => tensor.fmt(f),
            Fact::Int(value) => known(f, "int", *value),
            Fact::Float(value) => known(f, "float", *value),
            Fact::Bool(value) => known(f, "bool", *value),
            Fact::Str(text) => write!(f, "{text:?}"),
            Fact::None => f.write_str("None"),
            Fact::List(items) => {
                f.write_str("[")?;
                for (position, item) in items.iter().enumerate() {
                    if position > 0 {
                        f.write_str(", ")?;
                    }
                    item.fmt(f)?;
                }
                f.write_str("]")
            }
            Fact::Dict(items) => write!(f, "dict of {}", items.len()),
        }
    }
}
