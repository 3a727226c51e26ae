//! Saved activations: the operands and results that autograd keeps, after PyTorch's `derivatives.yaml`.

/// The saved activations of an operator; `graph/src/cost/saved.rs` turns them into bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // Those below the rule are named after the operator or family that they are the exception for.
pub enum Keeps {
    /// Only sizes.
    Nothing,
    /// Unknown: there is no rule for the operator.
    Unknown,
    /// The rule in its own file in `graph/src/own`.
    Own,
    /// Its first result.
    Result,
    /// Its first operand; a copy of it, if the result overwrites it.
    Operand,
    /// Its first operand; in place its result.
    OperandOrResult,
    /// Its first operand and its first result.
    OperandAndResult,
    /// Its first operand, and the indices among its results.
    OperandAndIndices,
    /// Every tensor after the first operand that needs no gradient itself: indices and masks.
    OtherOperands,
    /// Where it writes: indices or a mask.
    Places,
    /// The same, if what it writes needs a gradient.
    PlacesOfSource,
    /// Where it writes, and what, if that needs a gradient.
    PlacesAndSource,
    /// Where it adds, and what, both if the latter needs a gradient.
    AddedSource,
    /// Every tensor after the first operand.
    AllButFirst,
    /// All tensors among its operands.
    AllOperands,
    /// All tensors among its operands, its result, and in place the original values.
    AllAndResult,
    /// All tensors among its operands, and its first result.
    AllAndFirstResult,
    /// The indices among its results.
    Indices,
    /// All its results.
    Results,
    /// Both factors, each if the other needs a gradient.
    Factors,
    /// The same, of the two operands after the added one.
    AddedFactors,
    /// A mask of one byte per element.
    DropoutMask,
    /// One factor per channel.
    ChannelMask,

    // -- exceptions -- Element by element.
    Product,
    Quotient,
    Power,
    FloatPower,
    Selection,
    MaskedScatter,
    Complex,
    CopySign,
    Ldexp,
    LogSigmoid,
    RRelu,
    FakeQuantize,
    Polygamma,
    Ndtr,
    // Reductions and losses.
    Extreme,
    Quantile,
    Covariance,
    Correlation,
    Trapezoid,
    CosineSimilarity,
    PairwiseDistance,
    CrossEntropy,
    NllLoss,
    KlDiv,
    MarginLoss,
    MarginRankingLoss,
    PoissonNllLoss,
    TripletMarginLoss,
    CtcLoss,
    // Products.
    Linear,
    Matmul,
    GroupedFactors,
    Einsum,
    Chain,
    MatrixPower,
    Attention,
    Convolution,
    Recurrent,
    Embedding,
    EmbeddingBag,
    // Norms and pools.
    BatchNorm,
    InstanceNorm,
    LayerNorm,
    RmsNorm,
    FusedRmsNorm,
    GroupNorm,
    WeightNorm,
    MaxPool,
    MaxUnpool,
    AdaptiveMean,
    // Linear algebra.
    MatrixNorm,
    Condition,
    Determinant,
    LogDeterminant,
    Solve,
    SolveTriangular,
    LuSolve,
    LeastSquares,
    LuFactors,
    EigenValues,
    HermitianEigenValues,
    SingularValues,
    // Others.
    Pad,
    RealTransform,
}
