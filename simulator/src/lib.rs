//! How long does a training step take under a plan, and where does the time go?
//!
//! Numbers only: a [`Workload`] (stages and their costs), an [`order::Order`] of operations and a [`Machine`] go in, a
//! [`Timeline`] comes out. [`clock()`] is the exact integer time of an order at uniform costs; [`order::Schedule::makespan`]
//! says the same in formulas where they exist.
//!
//! ```
//! use simulator::{Cost, Link, Machine, Workload, order, simulate};
//!
//! let cost = Cost { forward: 10, input_gradient: 10, weight_gradient: 10, hop: 0 };
//! let order = order::make("1f1b", 4, 1, 8)?;
//! let machine = Machine::uniform(4, Link { latency: 1, bandwidth: 1e9 });
//! let timeline = simulate(&Workload::uniform(4, 4, &cost), &order, &machine)?;
//! assert_eq!(timeline.step, (8 + 4 - 1) * 30 + 2 * (8 + 4 - 2 - 2));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(not(test), warn(clippy::too_many_lines, clippy::excessive_nesting))]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod collective;
pub mod data_parallel;
pub mod order;

mod build;
mod clock;
mod cost;
mod event_graph;
mod explain;
mod from_plan;
mod link_fit;
mod lint;
mod machine;
mod memory;
mod sharing;
mod step;
mod timeline;
mod versions;
mod workload;

pub use build::{build, build_steps};
pub use clock::{Blocked, Clock, ClockError, Span, clock, clock_as_torch, clock_spans};
pub use cost::Cost;
pub use event_graph::{EventGraph, TaskId};
pub use explain::{Part, Split, savings, split};
pub use from_plan::{PartDevice, PartStage, PlanError, PlanOptions, PlanParts, PlannedStep, from_plan};
pub use link_fit::{FittedLink, Measured, fit_link};
pub use lint::{Finding, OrderPosition, Problem, Report, Severity, lint, lint_made};
pub use machine::{Device, Link, Machine, Sends, Sharing};
pub use memory::{DeviceMemory, Exceeded, USES, Use};
pub use step::{Label, SimulateError, StepGraph, Stream, Work};
pub use timeline::{ProgramTime, Task, Timeline, period, simulate, simulate_below, step_time};
pub use versions::{KeptVersions, Updates, kept_versions};
pub use workload::{
    Layer, Offload, Servers, Sharding, Stage, StageMemory, Sync, SyncMode, TensorParallel, Tie, Transfer,
    Workload,
};
