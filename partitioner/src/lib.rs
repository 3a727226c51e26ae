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
//! };
//! let plan = plan_with(&problem, Strategy::OneForwardOneBackward)?;
//! assert_eq!(plan.stages.len(), 2);
//! assert!(plan.lower_bound <= plan.seconds());
//! # Ok::<(), partitioner::PlanError>(())
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod again;
mod batches;
mod nearest;
mod problem;
mod solution;
mod stage;
mod states;
mod strategy;
mod ways;

mod grid;
mod grids;
mod pipedream;
mod placed;
mod why;

mod from_graph;
mod grain;
mod plan_file;
mod serving;
mod sharded;
mod simulated;

mod all_cuts;
mod baselines;
mod chain;
mod chunks;
mod collective;
mod floor;
mod handover;
mod known;
mod local_search;
mod narrow_steps;
mod narrowest;
mod pipeline;
mod polish;
mod remembered;
mod step;
mod two_way;
mod window;

#[cfg(test)]
mod agreement;
#[cfg(test)]
mod dice;
#[cfg(test)]
mod exhaustive;
#[cfg(test)]
mod oracle;

mod ideals;
pub mod inside;
pub mod knapsack;
mod node_set;

pub use batches::{ENOUGH, Planned, plan_model};
pub use from_graph::{ForwardOnly, OperatorSeconds, forward_only, from_graph};
pub use grain::{Grain, Sliceable};
pub use grids::bound_of_any_cut;
pub use ideals::Ideals;
pub use node_set::NodeSet;
pub use plan_file::{CheckError, check_plan, to_plan};
pub use problem::{
    Block, Machine, MachineDevice, MachineLevel, MicroBatches, Problem, ProblemError, Tie, Training, Value,
};
pub use serving::cache_growth;
pub use sharded::beyond;
pub use solution::{Objective, Solution, SolutionStage};
pub use stage::{BoundBy, InFlight, Neighbours, Rules, Run, StageScore};
pub use strategy::{PlanError, STRATEGIES, Strategy, fits, plan_auto, plan_with};
pub use ways::Ways;
pub use why::{Change, what_if};
