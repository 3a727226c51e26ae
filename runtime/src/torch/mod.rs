//! Stages in libtorch, through tch.

mod backend;
mod bench;
mod blocks;
mod card;
mod cold;
mod flush;
mod functional;
mod gpu;
mod gradients;
mod libraries;
mod memory;
mod operators;
mod precision;
mod seeded;
mod stage;
mod timer;
mod verify;
mod whole;

pub use backend::{TorchBackend, TorchSetup};
pub use bench::{Bench, Overhead};
pub use blocks::{BlockTimes, measure_blocks};
pub use libraries::folder;
pub use verify::{Difference, GradientDifference, Verification, verify};
pub use whole::WholeModel;

use tch::{Device, Kind, Tensor};

use crate::BackendError;

impl From<tch::TchError> for BackendError {
    fn from(error: tch::TchError) -> Self {
        // libtorch appends its C++ stack; the first lines hold the reason.
        let text = error.to_string();
        let reason = text.lines().take_while(|line| !line.starts_with("Exception raised from"));
        BackendError(reason.collect::<Vec<_>>().join("\n").trim_end().to_string())
    }
}

/// A tensor to make: an input of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct InputSpec {
    /// Name for messages.
    pub name: String,
    /// `float32`, `int64`, …
    pub dtype: String,
    /// Sizes of one micro-batch.
    pub shape: Vec<i64>,
    /// Numbers are drawn from this one on, and below that one, where the trace says so.
    pub range: Option<(f64, f64)>,
    /// Integers without a range are drawn below this.
    pub below: i64,
}

/// Returns libtorch's name of a data type.
///
/// # Errors
/// When there is no such type.
pub fn kind(dtype: &str) -> Result<Kind, BackendError> {
    Ok(match dtype {
        "float64" => Kind::Double,
        "float32" => Kind::Float,
        "float16" => Kind::Half,
        "bfloat16" => Kind::BFloat16,
        "int64" => Kind::Int64,
        "int32" => Kind::Int,
        "int16" => Kind::Int16,
        "int8" => Kind::Int8,
        "uint8" => Kind::Uint8,
        "bool" => Kind::Bool,
        "complex64" => Kind::ComplexFloat,
        "complex128" => Kind::ComplexDouble,
        other => return Err(BackendError(format!("inputs of type {other} cannot be made"))),
    })
}

/// Returns the name of a data type as files have it; nothing for those that inputs cannot have.
pub fn dtype(kind: Kind) -> Option<&'static str> {
    const NAMES: [&str; 12] = [
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
        "bool",
        "complex64",
        "complex128",
    ];
    NAMES.into_iter().find(|name| self::kind(name).is_ok_and(|known| known == kind))
}

/// Lets libtorch use so many threads for one operator: more than there are processors wait for each other, busily.
pub fn set_threads(threads: usize) {
    tch::set_num_threads(threads.max(1) as i32);
}

/// Returns the device with this name.
///
/// # Errors
/// When the name is unknown or this machine has no such device.
pub fn device(name: &str) -> Result<Device, BackendError> {
    let number = match name {
        "cpu" => return Ok(Device::Cpu),
        "cuda" => Some(0),
        _ => name.strip_prefix("cuda:").and_then(|number| number.parse::<usize>().ok()),
    };
    let unknown = || BackendError(format!("unknown device `{name}`; known are cpu and cuda:N"));
    let number = number.ok_or_else(unknown)?;
    gpu::load()?;
    match tch::Cuda::device_count() {
        0 => Err(BackendError(format!("there is no cuda:{number}: {}", gpu::why_none()))),
        1 if number > 0 => Err(BackendError(format!("there is no cuda:{number}, only cuda:0"))),
        have if number as i64 >= have => {
            Err(BackendError(format!("there is no cuda:{number}, only cuda:0 to cuda:{}", have - 1)))
        }
        _ => Ok(Device::Cuda(number)),
    }
}

/// Returns the device with this name for comparing results: NVIDIA's libraries leave TF32 alone from then on.
///
/// To be called before any other device is asked for.
///
/// # Errors
/// As [`device`].
pub fn exact_device(name: &str) -> Result<Device, BackendError> {
    precision::forbid_for_good();
    device(name)
}

/// Returns what the driver calls a GPU: `NVIDIA H200`; nothing of a processor, or where the driver does not tell.
pub fn card_name(device: Device) -> Option<String> {
    if let Device::Cuda(index) = device { card::card(index).map(|card| card.name) } else { None }
}

/// Makes a random input; the same seed gives the same values.
///
/// # Errors
/// When the data type cannot be made.
pub fn random(spec: &InputSpec, seed: i64) -> Result<Tensor, BackendError> {
    let kind = kind(&spec.dtype)?;
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
            // Floats would lose large whole numbers.
            let options = (Kind::Int64, Device::Cpu);
            let (low, high) = (low as i64, (high as i64).max((low as i64).saturating_add(1)));
            Tensor::f_randint_low(low, high, &spec.shape, options)?.f_to_kind(kind)?
        }
        (_, None) => Tensor::f_randint(spec.below.max(1), &spec.shape, options)?.f_to_kind(kind)?,
    })
}

/// Tells whether numbers of this type are real and not whole.
fn is_float(kind: Kind) -> bool {
    matches!(kind, Kind::Float | Kind::Double | Kind::Half | Kind::BFloat16)
}

/// Tells whether numbers of this type are complex.
fn is_complex(kind: Kind) -> bool {
    matches!(kind, Kind::ComplexFloat | Kind::ComplexDouble)
}

/// Tells whether tensors of this type can carry a gradient.
fn carries_gradient(kind: Kind) -> bool {
    is_float(kind) || is_complex(kind)
}
