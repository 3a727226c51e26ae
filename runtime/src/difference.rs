//! How far stages are from the whole model, whoever compared them.

/// How far two tensors are apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Output or parameter.
    pub name: String,
    /// Largest absolute difference.
    pub absolute: f64,
    /// That, divided by the largest absolute value of the whole model's tensor, or by what counts as noise if that is more.
    pub relative: f64,
}

/// How far the gradients of a parameter are apart, at worst.
#[derive(Clone, Debug, PartialEq)]
pub struct GradientDifference {
    /// The parameter, and how far.
    pub difference: Difference,
    /// The first stage that holds it.
    pub stage: u32,
    /// True when it was exactly zero on both sides in every step.
    pub is_zero: bool,
}
