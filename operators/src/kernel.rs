//! Kinds of operators in profiles: a profile has some thirty kinds, torch hundreds of operators.

/// The kind of an operator in profiles; `cost-model/src/shape.rs` maps it to the kinds of `schema::kinds`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// As others of its class.
    OfClass,
    /// A product with one matrix, whatever the batch.
    FlatProduct,
    /// A sum of two tensors.
    Add,
    /// A product of two tensors, element by element.
    Mul,
    /// Another operation on two tensors, element by element.
    Pairwise,
    /// An activation that profiles measure by its own name.
    Activation,
    /// Reads a tensor and writes one, at the speed of memory.
    Cheap,
    /// A function for each element.
    Costly,
    /// Dropout.
    Dropout,
    /// Soft maximum.
    Softmax,
    /// Its logarithm.
    LogSoftmax,
    /// Joins tensors.
    Cat,
    /// A copy in order, where the operand lies in another order.
    Reorder,
    /// Sums or extremes over dimensions.
    Reduce,
    /// Batch norm.
    BatchNorm,
    /// Group norm.
    GroupNorm,
    /// Instance norm.
    InstanceNorm,
    /// Layer norm.
    LayerNorm,
    /// The mean of a window.
    Pool,
    /// The maximum of a window.
    MaxPool,
    /// Means to a given size.
    AdaptivePool,
    /// Maxima to a given size.
    AdaptiveMaxPool,
    /// Resampling by the nearest element.
    UpsampleNearest,
    /// Other resampling.
    Upsample,
}
