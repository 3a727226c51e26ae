//! What does libtorch do with a stage, a model, an operator?
//!
//! The only crate that knows libtorch, through tch; without the feature `torch` it is empty. Stages run behind
//! [`runtime::Backend`], operators are measured (`Bench`), and the whole model is compared with its stages (`verify`). The
//! command reaches it from the program `model-analyze-torch` alone.
//!
//! ```
//! use libtorch::{InputSpec, device, random};
//!
//! let (name, dtype) = ("tokens".to_string(), "int64".to_string());
//! let tokens = random(&InputSpec { name, dtype, shape: vec![2, 3], range: None, values: None, below: 100 }, 7)?;
//! assert_eq!((tokens.size(), device("cpu")?), (vec![2, 3], tch::Device::Cpu));
//! # Ok::<(), libtorch::TorchError>(())
//! ```

#![cfg_attr(not(test), warn(clippy::too_many_lines, clippy::excessive_nesting))]
#![cfg(feature = "torch")]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod backend;
mod bench;
mod blocks;
mod card;
mod cold;
mod devices;
mod error;
mod flush;
mod functional;
mod gpu;
mod gradients;
mod inputs;
mod kinds;
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
pub use error::TorchError;
pub use inputs::{InputSpec, random};
pub use kinds::{dtype, kind};
pub use verify::{Verification, verify};
pub use whole::WholeModel;
