//! What happens when the stages run?
//!
//! A pipeline executes the very [`Order`](simulator::order::Order) that was simulated, one thread a device, over a
//! [`Backend`]. [`Null`] only keeps time; with the feature `torch`, stage archives run in libtorch on CPU or CUDA.
//! This is the only crate that knows libtorch.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod backend;
mod null;
mod pipeline;
pub mod profile;
#[cfg(feature = "torch")]
pub mod torch;
mod wiring;

pub use backend::{Backend, BackendError};
pub use null::Null;
pub use pipeline::{Measured, MeasuredOp, RunError, run};
pub use wiring::{Source, StageWiring, Wiring, WiringError};
