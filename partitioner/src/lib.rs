//! Which blocks belong on which device?
//!
//! One [`Problem`] (blocks, values, a machine), one [`Solution`] (stages with their costs and a lower bound), one file an
//! algorithm. Other planners' objectives are the crate `peers`.

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
pub mod knapsack;
mod node_set;

pub use batches::{ENOUGH, Planned, plan_model};
pub use from_graph::{OperatorSeconds, from_graph};
pub use grain::{Grain, Sliceable};
pub use grids::bound_of_any_cut;
pub use ideals::Ideals;
pub use node_set::NodeSet;
pub use plan_file::{CheckError, check_plan, to_plan};
pub use problem::{
    Block, Machine, MachineDevice, MachineLevel, MicroBatches, Problem, ProblemError, Tie, Training, Value,
};
pub use sharded::beyond;
pub use solution::{Objective, Solution, SolutionStage};
pub use stage::{BoundBy, InFlight, Neighbours, Rules, Run, StageScore};
pub use strategy::{PlanError, STRATEGIES, Strategy, fits, plan_auto, plan_with};
pub use ways::Ways;
pub use why::{Change, what_if};
