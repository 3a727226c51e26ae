//! What a stage recomputes and offloads to fit its memory, and what that costs.

use schema::RecomputeUnit;

/// The blocks that a stage recomputes and offloads, with the time that takes and the memory that is left in use.
#[derive(Clone, Debug)]
pub(crate) struct MemoryPlan {
    pub(crate) seconds: f64,
    pub(crate) memory: f64,
    pub(crate) recompute: Vec<usize>,
    pub(crate) unit: RecomputeUnit,
    pub(crate) offload: Vec<usize>,
}

impl MemoryPlan {
    /// Nothing is thrown away.
    pub(crate) fn nothing(memory: f64) -> Self {
        Self { seconds: 0.0, memory, recompute: vec![], unit: RecomputeUnit::Block, offload: vec![] }
    }
}

/// The memory that recomputing or offloading a block saves, and its price.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Saving {
    pub(crate) block: usize,
    pub(crate) bytes: f64,
    pub(crate) seconds_per_byte: f64,
}
