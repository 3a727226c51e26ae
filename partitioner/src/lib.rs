//! Which blocks belong on which device?
//!
//! One [`Problem`] (blocks, values, a machine), one [`Solution`] (stages with their costs and a lower bound), one file an
//! algorithm. Outside formats keep their own objectives: [`compat_plan`], [`load_plan`], [`piper_plan`].

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

mod branches;
mod compat;
mod compat_states;
mod knapsack;
mod latency;
mod latency_graph;
mod latency_search;
mod load_balance;
mod load_groups;
mod piper;
mod piper_recent;
mod piper_sums;

mod ideals;
mod node_set;

pub use batches::{ENOUGH, Planned, plan_model};
pub use compat::{CompatError, CompatPlan, CompatQuestion, CompatSplit, CompatStage, compat_plan};
pub use from_graph::{OperatorSeconds, from_graph};
pub use grain::{Grain, Sliceable};
pub use grids::bound_of_any_cut;
pub use ideals::Ideals;
pub use latency::{LatencyError, LatencyPlan, latency_plan, latency_plan_within};
pub use load_balance::{LoadDevice, LoadError, LoadPlan, load_plan, load_plan_within};
pub use node_set::NodeSet;
pub use piper::{PiperError, PiperOptions, PiperPlan, PiperStage, piper_plan};
pub use plan_file::{CheckError, check_plan, to_plan};
pub use problem::{
    Block, Machine, MachineDevice, MachineLevel, MicroBatches, Problem, ProblemError, Tie, Training, Value,
};
pub use solution::{Objective, Solution, SolutionStage};
pub use stage::{BoundBy, InFlight, Neighbours, Rules, Run, StageScore};
pub use strategy::{PlanError, STRATEGIES, Strategy, fits, plan_auto, plan_with};
pub use ways::Ways;
pub use why::{Change, what_if};
