//! One row of the table.

use crate::{Arithmetic, Flops, Gives, Keeps, Kernel, ShapeRule, Split};

/// The facts of one operator and its in-place form.
#[derive(Clone, Copy, Debug)]
pub struct Operator {
    /// Its name without name space, and without the `_` of its in-place form: `relu`.
    pub name: &'static str,
    /// Its family.
    pub class: OperatorClass,
    /// The rule for the sizes and types of its results.
    pub shape: ShapeRule,
    /// Its saved activations.
    pub keeps: Keeps,
    /// The formula of its FLOPs.
    pub flops: Flops,
    /// Its kind in profiles.
    pub kernel: Kernel,
    /// The owner of its result's memory.
    pub memory: Memory,
    /// The type of its result, if not a tensor.
    pub gives: Gives,
    /// How it is written in Python.
    pub python: Python,
    /// Whether there is `relu_`, which writes to its first operand.
    pub in_place: InPlace,
    /// How the in-place form is written in Python.
    pub in_place_python: Python,
    /// The ways to divide it among devices.
    pub split: Split,
    /// Its arithmetic on plain numbers, strings and lists.
    pub numbers: Arithmetic,
    /// Further properties, one bit for each [`Mark`].
    pub(crate) marks: u32,
}

impl Operator {
    /// Tells whether it has a property.
    pub fn has(&self, mark: Mark) -> bool {
        self.marks & mark.bit() != 0
    }

    /// Returns the number of dimensions of images in its name: `max_pool2d`.
    pub fn image_dimensions(&self) -> Option<usize> {
        ["1d", "2d", "3d"].iter().position(|mark| self.name.contains(mark)).map(|at| at + 1)
    }

    /// Returns the name of its in-place form, if there is one.
    pub fn in_place_name(&self) -> Option<String> {
        (self.in_place != InPlace::Absent).then(|| format!("{}_", self.name))
    }
}

/// Families of operators, for costs and pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OperatorClass {
    /// Integers, lists and sizes: no large tensors.
    Plumbing,
    /// A view of the same storage; moves no bytes.
    View,
    /// Makes a tensor without operands: `zeros`, `arange`.
    Create,
    /// Moves bytes: `cat`, `contiguous`, `index`, `pad`.
    Copy,
    /// One result per element, broadcasting.
    Elementwise,
    /// Sums, means, maxima, softmax over dimensions.
    Reduce,
    /// Batch, layer, group and instance norm.
    Norm,
    /// Matrix products.
    Matmul,
    /// Convolutions.
    Convolution,
    /// Pools and resampling.
    Pool,
    /// Scaled dot-product and multi-head attention.
    Attention,
    /// LSTM, GRU and plain recurrent layers.
    Recurrent,
    /// Table look-ups.
    Embedding,
    /// Known, but in no family above.
    Other,
    /// Without a rule.
    Unknown,
}

/// The owner of a result's memory, for the form that is not in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Its own.
    Fresh,
    /// That of the first operand.
    View,
    /// The first operand's or its own, depending on layout, type or mode.
    MayView,
}

/// The form that writes to its first operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InPlace {
    /// Torch has none.
    Absent,
    /// The out-of-place form takes the same arguments and gives the same numbers.
    Same,
    /// The out-of-place form is another operator, or was not compared.
    Other,
}

/// How Python writes an operator's call with the trace's own arguments in their order.
///
/// `torch.einsum`, `torch.norm` and others are not used: their Python wrappers may compute in another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Python {
    /// `torch.ops.aten.relu`, which every operator has.
    Dispatcher,
    /// `torch.relu`.
    Torch,
    /// `x.view`.
    Method,
    /// `F.gelu`.
    Functional,
    /// `torch.ops.aten.index.Tensor`: without the overload's name all others are tried first, and unpack tensors into
    /// lists of numbers.
    OverloadTensor,
    /// `torch.ops.aten.index_put.default`, for the same reason.
    OverloadDefault,
}

/// A further property of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Cheap, exact and without side effect: it may be recomputed instead of sent.
    Cheap,
    /// It draws random numbers, unless an argument turns that off.
    Random,
    /// Its result is uninitialised memory.
    Unset,
    /// Its result never carries a gradient.
    NoGradient,
    /// Its result has the sizes of its first operand.
    KeepsSizes,
    /// Its result has the broadcast sizes of its first two operands.
    Broadcasts,
    /// It makes a tensor on a device that one of its arguments names.
    OnDevice,
    /// Its results may alias each operand, not only the first.
    AliasesAll,
    /// It returns a list of views of parts of its operand.
    GivesParts,
    /// It unpacks a list, tuple or dictionary.
    Unpacks,
    /// Python's arithmetic calls it with a number as the second operand.
    TakesNumbers,
    /// It only converts numbers to tensors and back, or unpacks lists: a cut adds and removes such steps.
    Detour,
    /// It changes the list or dictionary that is its first operand, although its name has no `_`.
    Changes,
    /// In training it writes running statistics: its operands 3 and 4, if operand 5 is true.
    MovesStatistics,
    /// No gradient flows to its result: detached copies, indices of extremes, random numbers, tensors that only have
    /// its sizes.
    StopsGradient,
    /// Only its first operand has a gradient; of others it reads at most a type or sizes.
    FirstGradient,
    /// The gradient of its first operand is that of its result, without computation.
    KeepsGradient,
    /// Devices may sum the gradient of its operand once a step, in place of each backward pass.
    SumsLater,
    /// torch has no derivative of it: a backward pass that reaches it fails.
    NoDerivative,
}

impl Mark {
    pub(crate) const fn bit(self) -> u32 {
        1 << self as u16
    }
}

/// Splits the name of an in-place form, without name space: `relu_` is `relu` in place. Names such as `__or__` stay
/// whole.
pub fn plain(name: &str) -> (&str, bool) {
    match name.strip_suffix('_') {
        Some(rest) if !rest.ends_with('_') && !rest.is_empty() => (rest, true),
        _ => (name, false),
    }
}
