//! How an operator's work can be shared out between devices that run it together: the name of a rule, which `graph/src/layout`
//! has a function for.
//!
//! A rule tells which dimensions of operands and results belong together, so that each device can take an equal slice of
//! them, and which are summed over, so that each device makes a term of the result.

/// The dimensions along which devices can divide an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Nothing: each device computes all of it.
    Whole,
    /// Any dimension; operands broadcast.
    Elementwise,
    /// As [`Split::Elementwise`], and sums of terms add up term by term.
    Additive,
    /// As [`Split::Elementwise`], and a term of a sum may be scaled by a number.
    Scaling,
    /// Any dimension, and a term of a sum goes through.
    Through,
    /// Any dimension; where it draws numbers, each device takes its slice of one mask.
    Dropout,
    /// Any dimension except the one that the argument `dim` names.
    OtherDims,
    /// Any dimension but the last two.
    LeadingDims,
    /// Dimensions in front of those that are normalised together.
    LayerNorm,
    /// Channels; when nothing is averaged, all else too.
    BatchNorm,
    /// Samples, and groups.
    GroupNorm,
    /// Samples and channels, of which each is looked at alone.
    Samples,
    /// Rows, output features, and input features, over which terms are summed.
    Linear,
    /// Batches, rows, columns, and the inner dimension, over which terms are summed.
    Matmul,
    /// The same with a summand.
    AddedProduct,
    /// Experts, whose rows are their own; output features, and input features, over which terms are summed.
    GroupedProduct,
    /// Batches, heads, and positions of the query.
    Attention,
    /// Indices, columns of the table, and its rows, with zeros for rows of other devices.
    Embedding,
    /// Classes of a loss, whose sums all devices make together.
    CrossEntropy,
    /// Samples, output channels, groups, and input channels, over which terms are summed.
    Convolution,
    /// Dimensions that are contiguous on both sides.
    Reshape,
    /// Any dimension, which then stands elsewhere.
    Permute,
    /// Any dimension, expanded ones included.
    Expand,
    /// Any dimension that exists before and after.
    Squeeze,
    /// Any dimension that is taken whole.
    Slice,
    /// Any dimension except the selected one.
    Select,
    /// Any other dimension; the one that is divided, where each part is cut.
    Parts,
    /// Any dimension but that along which operands are joined.
    Cat,
    /// Any dimension of the operands.
    Stack,
    /// Dimensions that remain.
    Reduce,
    /// The same, and the others, along which terms are summed.
    Sum,
    /// The same, where each term is weighed by its share of the rows.
    Mean,
    /// Items of a list are cut as the list is.
    Items,
    /// A size, which is the whole's.
    Size,
    /// A property that is the same for each part.
    Question,
    /// Any dimension that is not repeated.
    Repeat,
    /// Any dimension: an element's repeats stand beside it.
    Interleave,
    /// Positions, and dimensions that they do not stand for.
    Index,
    /// Any dimension that is not padded.
    Pad,
    /// Samples.
    Recurrent,
}
