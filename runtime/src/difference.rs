//! How far the stages' results are from the whole model's, whichever program compared them.

/// The difference of two tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Output or parameter.
    pub name: String,
    /// Largest absolute difference.
    pub absolute: f64,
    /// That, divided by the largest absolute value of the whole model's tensor, or by the noise level if that is
    /// larger.
    pub relative: f64,
}

/// The largest difference of a parameter's gradients.
#[derive(Clone, Debug, PartialEq)]
pub struct GradientDifference {
    /// The parameter and its difference.
    pub difference: Difference,
    /// The first stage that holds it.
    pub stage: u32,
    /// True when it was exactly zero on both sides in every step.
    pub is_zero: bool,
}
