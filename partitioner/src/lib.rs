//! Which blocks belong on which device?
//!
//! One [`Problem`] (blocks, values, a machine), one [`Solution`] (stages with their costs and a lower bound), one file an
//! algorithm. Other planners' objectives are the crate `peers`.
//!
//! ```
//! use partitioner::{Block, Machine, Problem, Strategy, Training, Value, plan_with};
//! use schema::{Bytes, BytesPerSecond, Seconds};
//!
//! // Four equal blocks in a chain, on two devices with a fast link.
//! let block = |path: &str| Block {
//!     path: path.into(),
//!     forward: Seconds(1.0),
//!     input_gradient: Seconds(1.0),
//!     weight_gradient: Seconds(1.0),
//!     ..Block::default()
//! };
//! let value = |from| Value { from: Some(from), to: vec![from + 1], forward: Bytes(1), backward: Bytes(1) };
//! let problem = Problem {
//!     blocks: ["a", "b", "c", "d"].map(block).to_vec(),
//!     values: (0..3).map(value).collect(),
//!     ties: Vec::new(),
//!     machine: Machine::flat(2, Bytes(1 << 30), BytesPerSecond(1e9)),
//!     training: Training::default(),
//!     begins: None,
//!     pins: Vec::new(),
//! };
//! let plan = plan_with(&problem, Strategy::OneForwardOneBackward)?;
//! assert_eq!(plan.stages.len(), 2);
//! assert!(plan.lower_bound <= plan.seconds());
//! # Ok::<(), partitioner::PlanError>(())
//! ```

#![cfg_attr(not(test), warn(clippy::too_many_lines, clippy::excessive_nesting))]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod limits;
mod problem;

mod dag;
mod device_orders;
mod error;
mod goal;
mod pin;
mod pinned;
mod solution;
mod stage;
mod strategy;

mod bound;
mod cut_space;
mod grid;
mod pipeline;
mod planner;
mod serving;

mod from_graph;
mod grain;
mod plan_file;
mod simulate;

pub mod inside;

#[cfg(test)]
mod oracle;

pub use cut_space::CutSpace;
pub use dag::ideals::Ideals;
pub use dag::node_set::NodeSet;
pub use error::PlanError;
pub use from_graph::{ForwardOnly, forward_only, from_graph, workspace};
pub use grain::{Grain, OperatorSeconds, Sliceable};
pub use limits::{Effort, Limits, Sizes};
pub use pin::{Pin, PinnedTo};
pub use plan_file::{
    check::{CheckError, check_plan},
    write::to_plan,
};
pub use planner::{
    any_cut::bound_of_any_cut,
    fits,
    micro_batches::{ENOUGH, times_ideal},
    plan_auto,
    plan_model::{plan_model, plan_model_below},
    plan_near, plan_with,
    planned::Planned,
    shortage,
    what_if::{Change, ONE_MORE, what_if},
};
pub use problem::{
    Again, Block, Machine, MachineDevice, MachineLevel, MicroBatches, Problem, ProblemError, Tie, Training,
    Value,
};
pub use serving::score::cache_growth;
pub use solution::{MadeBy, Objective, Solution, SolutionStage};
pub use stage::{
    knapsack,
    place::Neighbours,
    run::Run,
    score::{BoundBy, Rules, StageScore},
};
pub use strategy::{STRATEGIES, Strategy, candidates};
