//! How devices can share an operator: the name of a rule, for which `graph/src/layout` has a function.
//!
//! A rule gives the dimensions of operands and results that are cut together, so that each device can take an equal
//! slice of them, and the summed ones, for which each device makes a term of the result.

/// The dimensions along which devices can divide an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Nothing: each device computes all of it.
    Whole,
    /// Any dimension; operands broadcast.
    Elementwise,
    /// As [`Split::Elementwise`], and sums of terms are added term by term.
    Additive,
    /// As [`Split::Elementwise`], and a term of a sum may be scaled by a number.
    Scaling,
    /// Any dimension, and a term of a sum passes through.
    Through,
    /// Any dimension; if it draws random numbers, each device takes its slice of one mask.
    Dropout,
    /// Any dimension except the one that the argument `dim` names.
    OtherDims,
    /// Any dimension but the last two.
    LeadingDims,
    /// Dimensions before the normalised ones.
    LayerNorm,
    /// Channels; if nothing is averaged, all other dimensions, too.
    BatchNorm,
    /// Samples, and groups.
    GroupNorm,
    /// Samples and channels, each independently.
    Samples,
    /// Rows, output features, and input features, over which terms are summed.
    Linear,
    /// Batches, rows, columns, and the inner dimension, over which terms are summed.
    Matmul,
    /// The same with a summand.
    AddedProduct,
    /// Experts, each with its own rows; output features, and input features, over which terms are summed.
    GroupedProduct,
    /// Batches, heads, and positions of the query.
    Attention,
    /// Indices, columns of the table, and its rows, with zeros for rows of other devices.
    Embedding,
    /// Classes of a loss, whose sums are exchanged.
    CrossEntropy,
    /// Samples, output channels, groups, and input channels, over which terms are summed.
    Convolution,
    /// Dimensions that are contiguous on both sides.
    Reshape,
    /// Any dimension, at its new position.
    Permute,
    /// Any dimension, expanded ones included.
    Expand,
    /// Any dimension that exists before and after.
    Squeeze,
    /// Any dimension that is taken whole.
    Slice,
    /// Any dimension except the selected one.
    Select,
    /// Any other dimension; the one that is split, by cutting each part.
    Parts,
    /// Any dimension but the concatenated one.
    Cat,
    /// Any dimension of the operands.
    Stack,
    /// Dimensions that remain.
    Reduce,
    /// The same, and the reduced ones, along which terms are summed.
    Sum,
    /// The same, with each term weighted by its share of the rows.
    Mean,
    /// Items of a list are cut as the list is.
    Items,
    /// A size, which is that of the whole.
    Size,
    /// A property that is the same for each part.
    Question,
    /// Any dimension that is not repeated.
    Repeat,
    /// Any dimension: an element's repeats are next to it.
    Interleave,
    /// Positions, and dimensions that are not indexed.
    Index,
    /// Any dimension that is not padded.
    Pad,
    /// Samples.
    Recurrent,
    /// Dimensions that an exchange between groups of devices leaves alone, and terms of sums.
    Exchanged,
}
