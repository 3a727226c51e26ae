//! Devices by their names, and how libtorch computes on them.

use tch::Device;

use crate::{card, error::TorchError, gpu, precision};

/// Sets the number of threads that libtorch uses for one operator: more threads than processors spin waiting for each
/// other.
pub fn set_threads(threads: usize) {
    tch::set_num_threads(threads.max(1) as i32);
}

/// Returns the device with this name.
///
/// # Errors
/// When the name is unknown or this machine has no such device.
pub fn device(name: &str) -> Result<Device, TorchError> {
    let number = match name {
        "cpu" => return Ok(Device::Cpu),
        "cuda" => Some(0),
        _ => name.strip_prefix("cuda:").and_then(|number| number.parse::<usize>().ok()),
    };
    let unknown = || TorchError(format!("unknown device `{name}`; known are cpu and cuda:N"));
    let number = number.ok_or_else(unknown)?;
    gpu::load()?;
    match tch::Cuda::device_count() {
        0 => Err(TorchError(format!("there is no cuda:{number}: {}", gpu::why_none()))),
        1 if number > 0 => Err(TorchError(format!("there is no cuda:{number}, only cuda:0"))),
        have if number as i64 >= have => {
            Err(TorchError(format!("there is no cuda:{number}, only cuda:0 to cuda:{}", have - 1)))
        }
        _ => Ok(Device::Cuda(number)),
    }
}

/// Returns the device with this name for comparing results: NVIDIA's libraries do not use TF32 from then on.
///
/// To be called before any other device is asked for.
///
/// # Errors
/// As [`device`].
pub fn exact_device(name: &str) -> Result<Device, TorchError> {
    precision::forbid_for_good();
    device(name)
}

/// Returns the driver's name of a GPU: `NVIDIA H200`; `None` for a CPU, or where the driver does not report it.
pub fn card_name(device: Device) -> Option<String> {
    if let Device::Cuda(index) = device { card::card(index).map(|card| card.name) } else { None }
}
