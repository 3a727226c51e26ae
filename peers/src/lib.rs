//! What would other planners have said?
//!
//! Three published planners by their own objectives and on their own inputs, so that plans of `partitioner` can be compared
//! with theirs: PipeDream's optimizer as released ([`compat_plan`]), the largest device load of dnn-partitioning
//! ([`load_plan`]), and Piper's time for each sample ([`piper_plan`]). Nothing else of the workspace needs this crate.
//!
//! ```
//! let node = "Linear(1, 1) -- forward_compute_time=1.0, backward_compute_time=1.0, activation_size=4.0, parameter_size=8.0";
//! let text = format!("node1 -- {node}\nnode2 -- {node}\n\tnode1 -- node2\n");
//! let question = peers::CompatQuestion {
//!     profile: &schema::PipedreamProfile::from_text(&text)?,
//!     machines: &[2],
//!     bandwidths: &[schema::BytesPerSecond(1e9)],
//!     activation_transfer: true,
//!     straight: true,
//! };
//! let plan = peers::compat_plan(&question)?;
//! assert_eq!(plan.stages.len(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(not(test), warn(clippy::too_many_lines, clippy::excessive_nesting))]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod branches;
mod compat;
mod compat_states;
mod latency;
mod latency_graph;
mod latency_search;
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
pub use latency::{LatencyError, LatencyPlan, latency_plan, latency_plan_within};
pub use load_balance::{LoadDevice, LoadError, LoadPlan, load_plan, load_plan_within};
pub use piper::{PiperError, PiperOptions, PiperPlan, PiperStage, piper_plan};
