//! What would other planners have said?
//!
//! Three published planners by their own objectives and on their own inputs, so that plans of `partitioner` can be compared
//! with theirs: PipeDream's optimizer as released ([`compat_plan`]), the largest device load of dnn-partitioning
//! ([`load_plan`]), and Piper's time for each sample ([`piper_plan`]). Nothing else of the workspace needs this crate.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod branches;
mod compat;
mod compat_states;
mod load_balance;
mod load_groups;
mod piper;
mod piper_recent;
mod piper_sums;

#[cfg(test)]
#[path = "../../tests/dice/mod.rs"]
mod dice;
#[cfg(test)]
mod exhaustive;

pub use compat::{CompatError, CompatPlan, CompatQuestion, CompatSplit, CompatStage, compat_plan};
pub use load_balance::{LoadDevice, LoadError, LoadPlan, load_plan, load_plan_within};
pub use piper::{PiperError, PiperOptions, PiperPlan, PiperStage, piper_plan};
