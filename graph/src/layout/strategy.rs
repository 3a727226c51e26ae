//! What an operator asks of its operands when its work is shared out, and what its results then are.

use tracer::{Constant, Operand};

use super::{Bands, Layout, Rows};

/// One way to share out an operator's work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strategy {
    /// What each operand must be, in the order of the operator's leaves.
    pub needs: Vec<Need>,
    /// The layout of all its results.
    pub gives: Layout,
    /// Numbers in its arguments, and results of its, that count what one device has or what all have.
    pub edits: Vec<Edit>,
    /// What is done to its results on each device.
    pub after: Option<After>,
    /// Set where another operator stands for it.
    pub special: Option<Special>,
    /// Whether each device does a part of the work; else each does all of it.
    pub is_split: bool,
}

/// What an operand must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Need {
    /// Whole, and all devices do the same with it: so its gradient is whole on each.
    #[default]
    Whole,
    /// Whole, and each device does a part with it: its gradient is a term of the sum.
    Partial,
    /// In this layout.
    In(Layout),
    /// Rows of the own band and of others'.
    Rows(Rows),
    /// Any layout will do.
    Any,
}

/// A number that changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Edit {
    /// The number in this argument, or in this item of it, counts what all have; the operator is to be told what one has.
    Divide {
        /// Which argument of the operator.
        argument: usize,
        /// Which item, where it is a list.
        item: Option<usize>,
    },
    /// This argument, or this item of it, has another value on a part.
    Set {
        /// Which argument of the operator.
        argument: usize,
        /// Which item, where it is a list.
        item: Option<usize>,
        /// Its value.
        to: Value,
    },
    /// The result counts what one device has, and all that follows wants to know what all have.
    Multiply,
}

/// A value of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Value {
    /// A whole number.
    Int(i64),
    /// The factor that changes nothing.
    One,
    /// None.
    Nothing,
}

impl Value {
    /// Returns it as it is written.
    pub(super) fn operand(self) -> Operand {
        Operand::Constant(match self {
            Value::Int(number) => Constant::Int(number),
            Value::One => Constant::Float(1.0),
            Value::Nothing => Constant::None,
        })
    }
}

/// What is done to an operator's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum After {
    /// A mean of the own rows becomes a term of the mean of all of so many.
    Weigh(u64),
    /// Rows of others are cut off.
    Crop(Rows),
    /// Means over windows that reach beyond the image count what torch counts.
    Count {
        /// The windows.
        rows: Rows,
        /// Rows that fill the image up to its padding count, too.
        counts_padding: bool,
    },
}

/// What stands for an operator where a device does a part that the operator itself cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Special {
    /// Draws the mask of the whole, takes its slice.
    Dropout(super::Slice),
    /// The same of rows.
    DropoutOfBands(Bands),
    /// Averages over all devices' rows.
    Norm {
        /// How they lie.
        bands: Bands,
        /// Each of so many groups of channels of each sample by itself; none: each channel of all samples.
        groups: Option<u64>,
    },
    /// Looks up rows of a part of the table; zeros for those that lie elsewhere.
    Rows,
    /// Attention of a part of the positions to all that are not behind them.
    CausalAttention,
    /// A loss of classes, of which each device has a part.
    CrossEntropy,
}

impl Need {
    /// Returns the layout that an operand has when it is taken; `None` where any will do.
    pub fn layout(self) -> Option<Layout> {
        match self {
            Need::Whole | Need::Partial => Some(Layout::Whole),
            Need::In(layout) => Some(layout),
            Need::Rows(rows) => Some(Layout::Bands(rows.from)),
            Need::Any => None,
        }
    }
}
