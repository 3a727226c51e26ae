//! Strategies: the layouts that an operator needs of its operands when devices share its work, and the layout of its results.

use tracer::{Constant, Operand};

use super::{Bands, Layout, Rows};

/// One way to divide an operator's work among devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strategy {
    /// The layout that each operand must have, in the order of the operator's leaves.
    pub needs: Vec<Need>,
    /// The layout of all its results.
    pub gives: Layout,
    /// Sizes among its arguments and results that must be converted between one device's part and the whole.
    pub edits: Vec<Edit>,
    /// Post-processing of its results on each device.
    pub after: Option<After>,
    /// Set if another operator replaces it.
    pub special: Option<Special>,
    /// Whether each device computes a part; otherwise each computes everything.
    pub is_split: bool,
}

impl Strategy {
    /// Returns the bands that it works on: those of an operand, or else of its results.
    pub(super) fn bands(&self) -> Option<Bands> {
        let of = |layout: Option<Layout>| match layout {
            Some(Layout::Bands(bands)) => Some(bands),
            _ => None,
        };
        self.needs.iter().find_map(|need| of(need.layout())).or_else(|| of(Some(self.gives)))
    }
}

/// The requirement on an operand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Need {
    /// Replicated, and used identically on all devices: its gradient is replicated, too.
    #[default]
    Whole,
    /// Replicated, and used by each device for its own part: its gradient is a partial sum.
    Partial,
    /// In this layout.
    In(Layout),
    /// Rows of the device's own band, with a halo from its neighbours.
    Rows(Rows),
    /// A weight of this many rows, with which only the first device computes; it may be on that device only.
    Lent(u64),
    /// Any layout will do.
    Any,
}

/// A size or argument that has another value on a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Edit {
    /// The argument (or item of it) is a size of the whole; the operator must be given the size of its part.
    Divide {
        /// Which argument of the operator.
        argument: usize,
        /// Which item, if it is a list.
        item: Option<usize>,
    },
    /// This argument, or this item of it, has another value on a part.
    Set {
        /// Which argument of the operator.
        argument: usize,
        /// Which item, if it is a list.
        item: Option<usize>,
        /// Its value.
        to: Value,
    },
    /// The result is the size of a part; operators after it need the size of the whole.
    Multiply,
}

/// A value of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Value {
    /// A whole number.
    Int(i64),
    /// The factor that changes nothing.
    One,
    /// No value.
    Nothing,
}

impl Value {
    /// Returns it as an operand.
    pub(super) fn operand(self) -> Operand {
        Operand::Constant(match self {
            Value::Int(number) => Constant::Int(number),
            Value::One => Constant::Float(1.0),
            Value::Nothing => Constant::None,
        })
    }
}

/// Post-processing of an operator's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum After {
    /// Scales a mean over the device's rows into its term of the mean over all rows, this many.
    Weigh(u64),
    /// Removes rows that belong to other devices.
    Crop(Rows),
    /// Corrects means over windows that reach beyond the image, so that they have torch's divisor.
    Count {
        /// The windows.
        rows: Rows,
        /// Rows of the padding count, too.
        counts_padding: bool,
    },
    /// Divides a sum of losses by the number of targets on all devices.
    PerTarget {
        /// Which argument of the operator has the targets.
        argument: usize,
        /// The target that does not count.
        ignored: i64,
    },
}

/// The replacement for an operator that cannot compute a part by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Special {
    /// Draws the mask of the whole tensor and takes a slice of it.
    Dropout(super::Slice),
    /// The same for rows.
    DropoutOfBands(Bands),
    /// Dropout of rows, this many, on the first device; the others draw as many random numbers.
    DropoutOfFirst(u64),
    /// Averages over all devices' rows.
    Norm {
        /// The bands of the operand.
        bands: Bands,
        /// Number of groups of channels, for statistics per sample; `None` for statistics per channel over all samples.
        groups: Option<u64>,
    },
    /// Looks up rows in a part of the table, with zeros for rows on other devices.
    Rows,
    /// Causal attention from a part of the positions to all earlier ones.
    CausalAttention,
    /// A loss with a part of the classes on each device.
    CrossEntropy,
    /// Products of rows with the matrices of the device's own experts.
    Experts,
    /// Of the rows at positions those that come from the device's own slice.
    Take(super::Taken),
    /// The rows at positions of its own slice of them, from the devices of their experts.
    Combine(super::Routed, super::Slice),
}

impl Need {
    /// Returns the layout that an operand is converted to; `None` if any layout is accepted.
    pub fn layout(self) -> Option<Layout> {
        match self {
            Need::Whole | Need::Partial | Need::Lent(_) => Some(Layout::Whole),
            Need::In(layout) => Some(layout),
            Need::Rows(rows) => Some(Layout::Bands(rows.from)),
            Need::Any => None,
        }
    }
}
