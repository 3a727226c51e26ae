//! Stages as a file gives them.

use schema::RecomputeUnit;

/// Blocks and devices of a stage, as a file gives them.
#[derive(Clone, Debug)]
pub(crate) struct GivenStage {
    pub(crate) blocks: Vec<usize>,
    pub(crate) devices: Vec<usize>,
    /// Blocks recomputed.
    pub(crate) recompute: Vec<usize>,
    /// Those of them that keep their dear results.
    pub(crate) light: Vec<usize>,
    /// What of them is recomputed at a time.
    pub(crate) unit: RecomputeUnit,
    /// Blocks whose activations wait in host memory.
    pub(crate) offload: Vec<usize>,
}
