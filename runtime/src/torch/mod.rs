//! Stages in libtorch, through tch.

mod backend;
mod bench;
mod blocks;
mod card;
mod cold;
mod devices;
mod flush;
mod functional;
mod gpu;
mod gradients;
mod inputs;
mod kinds;
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
pub use devices::{card_name, device, exact_device, set_threads};
pub use inputs::{InputSpec, random};
pub use kinds::{dtype, kind};
pub use libraries::folder;
pub use verify::{Difference, GradientDifference, Verification, verify};
pub use whole::WholeModel;

use crate::BackendError;

impl From<tch::TchError> for BackendError {
    fn from(error: tch::TchError) -> Self {
        // libtorch appends its C++ stack; the first lines hold the reason.
        let text = error.to_string();
        let reason = text.lines().take_while(|line| !line.starts_with("Exception raised from"));
        BackendError(reason.collect::<Vec<_>>().join("\n").trim_end().to_string())
    }
}
