//! Counting FLOPs as `torch.utils.flop_counter` does, a multiply-add as two.

/// The formula of an operator's FLOPs; `graph/src/cost/flops.rs` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // Most are named after the operator.
pub enum Flops {
    /// No matrix product inside.
    Nothing,
    /// A product that torch runs as one of vectors, which its counter ignores.
    Unseen,
    /// The formula in its own file in `graph/src/own`.
    Own,
    Linear,
    /// Of two matrices, or of two batches of them.
    Product,
    /// The same, of the two operands after the added one.
    AddedProduct,
    Inner,
    GroupedProduct,
    Tensordot,
    Einsum,
    Chain,
    MatrixPower,
    Covariance,
    Convolution,
    Attention,
    /// Attention with its projections.
    TransformerLayer,
    Recurrent,
    RecurrentCell,

    // -- only backward: the gradient is made of products --
    AffineGrid,
    Solve,
    /// With the matrix second.
    TriangularSolve,
    SolveFromFactors,
    LuSolve,
    CholeskyInverse,
    Inverse,
    TensorInverse,
    PseudoInverse,
    EigenValues,
    Eigen,
    HermitianEigen,
    SingularValues,
    Svd,
    MatrixNorm,
    Condition,
}
