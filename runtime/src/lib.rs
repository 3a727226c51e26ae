//! What happens when the stages run?
//!
//! A pipeline executes the same [`Order`](simulator::order::Order) that was simulated, one thread a device, over a
//! [`Backend`]. [`Null`] only keeps time; the backend of the crate `libtorch` runs archives on CPU or CUDA. [`profile`]
//! defines what is measured, and reads and writes its file.
//!
//! ```
//! use runtime::{Null, Source, StageWiring, Wiring, run};
//!
//! let first = StageWiring { inputs: vec![Source::Input(0)], n_outputs: 1 };
//! let last = StageWiring { inputs: vec![Source::Stage { stage: 0, output: 0 }], n_outputs: 1 };
//! let wiring = Wiring { stages: vec![first, last], n_inputs: 1 };
//! let backend = Null { n_outputs: vec![1, 1], durations: Vec::new() };
//! let order = simulator::order::make("1f1b", 2, 1, 4)?;
//! let measured = run(&backend, &wiring, &order, 3)?;
//! assert_eq!(measured.steps.len(), 3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(not(test), warn(clippy::too_many_lines, clippy::excessive_nesting))]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod backend;
mod difference;
mod null;
mod pipeline;
pub mod profile;
mod wiring;

pub use backend::{Backend, BackendError};
pub use difference::{Difference, GradientDifference};
pub use null::Null;
pub use pipeline::{Measured, MeasuredOp, RunError, run};
pub use wiring::{Source, StageWiring, Wiring, WiringError};
