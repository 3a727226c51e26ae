//! What a stage recomputes or offloads to fit its memory.

use schema::RecomputeUnit;

/// What a stage throws away and computes or fetches again.
#[derive(Clone, Debug)]
pub(crate) struct Again {
    pub(crate) seconds: f64,
    pub(crate) memory: f64,
    pub(crate) recompute: Vec<usize>,
    pub(crate) unit: RecomputeUnit,
    pub(crate) offload: Vec<usize>,
}

impl Again {
    /// Nothing is thrown away.
    pub(crate) fn nothing(memory: f64) -> Self {
        Self { seconds: 0.0, memory, recompute: vec![], unit: RecomputeUnit::Block, offload: vec![] }
    }
}

/// What throwing a block away, or more of it, brings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gain {
    pub(crate) block: usize,
    pub(crate) bytes: f64,
    pub(crate) seconds_per_byte: f64,
}
