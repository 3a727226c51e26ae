//! Random inputs of a model.

use tch::{Device, Kind, Tensor};

use crate::{
    error::TorchError,
    kinds::{carries_gradient, is_complex, is_float, kind},
};

/// An input of the model to generate.
#[derive(Clone, Debug, PartialEq)]
pub struct InputSpec {
    /// Name for messages.
    pub name: String,
    /// `float32`, `int64`, …
    pub dtype: String,
    /// Sizes of one micro-batch.
    pub shape: Vec<i64>,
    /// Numbers are drawn from the first (inclusive) to the second (exclusive), where the trace gives a range.
    pub range: Option<(f64, f64)>,
    /// The numbers themselves, row by row, if no others are drawn.
    pub values: Option<Vec<f64>>,
    /// Integers without a range are drawn below this.
    pub below: i64,
}

/// Makes a random input; the same seed gives the same values.
///
/// # Errors
/// When the data type cannot be made.
pub fn random(spec: &InputSpec, seed: i64) -> Result<Tensor, TorchError> {
    let kind = kind(&spec.dtype)?;
    if let Some(values) = &spec.values {
        return Ok(Tensor::f_from_slice(values)?.f_reshape(&spec.shape)?.f_to_kind(kind)?);
    }
    tch::manual_seed(seed);
    let options = (Kind::Float, Device::Cpu);
    Ok(match (kind, spec.range) {
        (Kind::Bool, _) => Tensor::f_rand(&spec.shape, options)?.f_gt(0.5)?,
        (_, Some((low, high))) if carries_gradient(kind) => {
            let drawn = Tensor::f_rand(&spec.shape, options)?;
            drawn.f_mul_scalar(high - low)?.f_add_scalar(low)?.f_to_kind(kind)?
        }
        (_, None) if is_complex(kind) => Tensor::f_randn(&spec.shape, (kind, Device::Cpu))?,
        (_, None) if is_float(kind) => Tensor::f_randn(&spec.shape, options)?.f_to_kind(kind)?,
        (_, Some((low, high))) => {
            // Floats would round large integers.
            let options = (Kind::Int64, Device::Cpu);
            let (low, high) = (low as i64, (high as i64).max((low as i64).saturating_add(1)));
            Tensor::f_randint_low(low, high, &spec.shape, options)?.f_to_kind(kind)?
        }
        (_, None) => Tensor::f_randint(spec.below.max(1), &spec.shape, options)?.f_to_kind(kind)?,
    })
}
