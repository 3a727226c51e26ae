//! What a stage recomputes and offloads to fit its memory, and what that costs.

use schema::RecomputeUnit;

use crate::stage::memo::Memo;

/// The most stages of which is kept what they recompute: some 10 MB.
const MEMORY_PLANS: usize = 30_000;

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
    /// Nothing is recomputed or offloaded.
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

/// What stages over one list of states recompute and offload, with the optimality gap of the search; `None` where they do not fit.
pub(crate) struct MemoryPlans {
    /// By states and conditions.
    pub(crate) by_states: Memo<((usize, usize), Conditions), Found>,
    /// By kinds of blocks and conditions, blocks being positions in the stage: stages of repeated layers are the same many times.
    pub(crate) by_kinds: Memo<(Vec<u32>, Conditions), Found>,
}

/// A choice with its optimality gap.
pub(crate) type Found = (Option<MemoryPlan>, f64);

/// All that a choice depends on but blocks: micro-batches in flight, whether they wait for the weights' gradients, whether memory is
/// counted from below; and limit, speed, fixed memory and host bandwidth to the bit.
pub(crate) type Conditions = ((usize, bool, bool), [u64; 4]);

impl Default for MemoryPlans {
    fn default() -> Self {
        Self { by_states: Memo::with_most(MEMORY_PLANS), by_kinds: Memo::with_most(MEMORY_PLANS / 4) }
    }
}
