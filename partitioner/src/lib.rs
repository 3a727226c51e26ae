//! Which blocks belong on which device?

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod compat;
mod compat_states;
mod node_set;

pub use compat::{CompatError, CompatPlan, CompatQuestion, CompatSplit, CompatStage, compat_plan};
pub use node_set::NodeSet;
