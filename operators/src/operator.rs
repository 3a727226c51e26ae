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
    /// Whose memory its result lies in.
    pub memory: Memory,
    /// The type of its result where that is no tensor.
    pub gives: Gives,
    /// Its spelling in Python.
    pub python: Python,
    /// Whether there is `relu_`, which writes to its first operand.
    pub in_place: InPlace,
    /// The spelling of the in-place form.
    pub in_place_python: Python,
    /// The ways to divide it among devices.
    pub split: Split,
    /// Its arithmetic on plain numbers, strings and lists.
    pub numbers: Arithmetic,
    /// Further properties, one bit for each [`Mark`].
    pub(crate) marks: u32,
}

impl Operator {
    /// Tells whether something is true of it.
    pub fn has(&self, mark: Mark) -> bool {
        self.marks & mark.bit() != 0
    }

    /// Returns in how many dimensions it looks at an image, which its name tells: `max_pool2d`.
    pub fn image_dimensions(&self) -> Option<usize> {
        ["1d", "2d", "3d"].iter().position(|mark| self.name.contains(mark)).map(|at| at + 1)
    }

    /// Returns the name of its in-place form; `None` where there is none.
    pub fn in_place_name(&self) -> Option<String> {
        (self.in_place != InPlace::Absent).then(|| format!("{}_", self.name))
    }
}

/// Families of operators, for costs and pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OperatorClass {
    /// Integers, lists and sizes: no tensor of weight comes out.
    Plumbing,
    /// Looks at the same storage in another way; moves no bytes.
    View,
    /// Makes a tensor of nothing: `zeros`, `arange`.
    Create,
    /// Moves bytes: `cat`, `contiguous`, `index`, `pad`.
    Copy,
    /// One result for each element, broadcasting.
    Elementwise,
    /// Sums, means, maxima, soft-maxima over dimensions.
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
    /// Known, but of no family above.
    Other,
    /// No rule knows it.
    Unknown,
}

/// Whose memory a result lies in, for the form that is not in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Its own.
    Fresh,
    /// That of the first operand.
    View,
    /// That of the first operand or its own, as layout, type or mode have it.
    MayView,
}

/// The form that writes to its first operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InPlace {
    /// Torch has none.
    Absent,
    /// The form out of place takes the same arguments and gives the same numbers.
    Same,
    /// The form out of place is another operator, or was not compared.
    Other,
}

/// The spelling in Python of an operator's call with the trace's own arguments in their order.
///
/// `torch.einsum`, `torch.norm` and others are left out: their Python wrappers may choose another way to compute.
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
    /// `torch.ops.aten.index.Tensor`: without the overload's name each other one is tried first, and unpacks tensors into lists of
    /// numbers.
    OverloadTensor,
    /// `torch.ops.aten.index_put.default`, for the same reason.
    OverloadDefault,
}

/// A further property of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Cheap, exact and without side effect: it may be repeated instead of sent.
    Cheap,
    /// It draws random numbers, unless an argument turns that off.
    Random,
    /// Its result holds what was in memory.
    Unset,
    /// Its result never carries a gradient.
    NoGradient,
    /// Its result has the sizes of its first operand.
    KeepsSizes,
    /// Its result has the sizes that its first two operands have together.
    Broadcasts,
    /// It makes a tensor on a device that one of its arguments names.
    OnDevice,
    /// Its results may lie in the memory of each operand, not of the first alone.
    AliasesAll,
    /// It gives a list of parts that lie in its operand's memory.
    GivesParts,
    /// It takes a list, tuple or dictionary apart.
    Unpacks,
    /// Python's arithmetic calls it with a number as second operand.
    TakesNumbers,
    /// It only converts numbers to tensors and back, or unpacks lists: such steps appear and vanish with a cut.
    Detour,
    /// It changes the list or dictionary that is its first operand, though no `_` says so.
    Changes,
    /// In training it writes running statistics: its operands 3 and 4, where operand 5 says so.
    MovesStatistics,
    /// Gradients stop at its result: detached copies, places of extremes, random numbers, tensors that only have its sizes.
    StopsGradient,
    /// It takes the numbers of its first operand alone, of others at most a type or sizes.
    FirstGradient,
    /// The gradient of its first operand is that of its result: nothing is computed.
    KeepsGradient,
}

impl Mark {
    pub(crate) const fn bit(self) -> u32 {
        1 << self as u16
    }
}

/// Splits the name of an in-place form, without name space: `relu_` is `relu` in place. Names such as `__or__` stay whole.
pub fn plain(name: &str) -> (&str, bool) {
    match name.strip_suffix('_') {
        Some(rest) if !rest.ends_with('_') && !rest.is_empty() => (rest, true),
        _ => (name, false),
    }
}
