//! Kinds of operators in profiles: a profile has some thirty kinds, torch hundreds of operators.

/// The kind of an operator in profiles; `cost-model/src/shape.rs` maps it to the kinds of `schema::kinds`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// The kind of its class.
    OfClass,
    /// A product with one matrix, whatever the batch.
    FlatProduct,
    /// A sum of two tensors.
    Add,
    /// An elementwise product of two tensors.
    Mul,
    /// Another elementwise operation on two tensors.
    Pairwise,
    /// An activation that profiles measure by name.
    Activation,
    /// Reads a tensor and writes one, at memory bandwidth.
    Cheap,
    /// A costly function per element.
    Costly,
    /// Dropout.
    Dropout,
    /// Softmax.
    Softmax,
    /// Its logarithm.
    LogSoftmax,
    /// Concatenates tensors.
    Cat,
    /// A contiguous copy of a tensor in another order.
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
