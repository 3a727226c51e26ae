//! Which blocks belong on which device?

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod compat;
mod compat_states;
mod ideals;
mod knapsack;
mod load_balance;
mod load_groups;
mod node_set;
mod piper;

pub use compat::{CompatError, CompatPlan, CompatQuestion, CompatSplit, CompatStage, compat_plan};
pub use ideals::Ideals;
pub use load_balance::{LoadDevice, LoadError, LoadPlan, load_plan, load_plan_within};
pub use node_set::NodeSet;
pub use piper::{PiperError, PiperOptions, PiperPlan, PiperStage, piper_plan};
