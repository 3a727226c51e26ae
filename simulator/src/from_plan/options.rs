//! What a command asks for beside a plan.

use schema::{Execution, Seconds};

use crate::machine::Sharing;

/// What a command may want otherwise than the plan has it.
#[derive(Clone, Debug, Default)]
pub struct PlanOptions {
    /// The schedule, by name; the plan's when absent.
    pub schedule: Option<String>,
    /// Micro-batches; the plan's when absent.
    pub micro_batches: Option<u32>,
    /// What the host adds to each pass; what the plan's devices say when absent.
    pub host_overhead: Option<Seconds>,
    /// What the host adds to each split backward pass besides; what the plan's devices say when absent.
    pub split_overhead: Option<Seconds>,
    /// How transfers share ports.
    pub sharing: Sharing,
    /// Gradient sync, sharding and offload; the plan's where nothing is said.
    pub execution: Execution,
    /// Share of each stage's activations that waits in host memory; the plan's when absent.
    pub offloaded: Option<f64>,
    /// Devices of a tensor-parallel group, to estimate what a plan without such groups would gain.
    pub tensor_parallel: Option<u32>,
}
