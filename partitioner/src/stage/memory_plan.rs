//! What a stage recomputes and offloads to fit its memory, and what that costs.

use std::{cell::OnceCell, rc::Rc};

use schema::RecomputeUnit;

use crate::stage::memo::Memo;

/// The most stages whose memory plans are kept: some 10 MB.
const MEMORY_PLANS: usize = 30_000;

/// The blocks that a stage recomputes and offloads, the seconds that this takes, and the bytes that the stage then holds.
#[derive(Clone, Debug)]
pub(crate) struct MemoryPlan {
    pub(crate) seconds: f64,
    pub(crate) memory: f64,
    pub(crate) recompute: Vec<usize>,
    /// Those of them that keep their dear results.
    pub(crate) light: Vec<usize>,
    pub(crate) unit: RecomputeUnit,
    pub(crate) offload: Vec<usize>,
}

impl MemoryPlan {
    /// Nothing is recomputed or offloaded.
    pub(crate) fn nothing(memory: f64) -> Self {
        Self {
            seconds: 0.0,
            memory,
            recompute: vec![],
            light: vec![],
            unit: RecomputeUnit::Block,
            offload: vec![],
        }
    }
}

/// The memory that recomputing or offloading each block of a kind saves, and its price.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Saving {
    /// The kind; where kinds are too many to be counted, the block.
    pub(crate) of: usize,
    pub(crate) bytes: f64,
    pub(crate) seconds_per_byte: f64,
}

/// Memo table: what stages over one list of states recompute and offload, with the optimality gap of the search; `None` if they
/// do not fit.
pub(crate) struct MemoryPlans {
    /// By states and conditions.
    pub(crate) by_states: Memo<OfStates, (Option<MemoryPlan>, f64)>,
    /// By kinds of blocks and conditions, with blocks as positions in the stage: stages of repeated layers share an entry.
    pub(crate) by_kinds: Memo<(Vec<u32>, Conditions), Found>,
    /// Least bytes of activations before each state, whatever is recomputed: O(Q) for each number of micro-batches in flight.
    pub(crate) least_held: Memo<InFlight, Rc<Vec<f64>>>,
    /// Memory that recomputing and offloading blocks saves, the cheapest first, by micro-batches in flight, speed and host bandwidth:
    /// O(kinds of blocks) for each.
    pub(crate) savings: Memo<(InFlight, [u64; 2]), Rc<Vec<Saving>>>,
    /// Blocks before each state by kinds, O(Q · kinds); `None` where that is too much.
    pub(crate) kinds_before: OnceCell<Option<Vec<Vec<u32>>>>,
    /// Bytes that blocks before each state hold while their weights' gradients wait, on top of their activations: O(Q).
    pub(crate) waiting: OnceCell<Vec<f64>>,
}

/// The states that a stage lies between, and what else its memory plan depends on.
type OfStates = ((usize, usize), Conditions);

/// Micro-batches in flight, and those of an offloaded block that are on the device at once.
pub(crate) type InFlight = (usize, usize);

/// A memory plan, with blocks as positions in the stage, and its optimality gap.
pub(crate) type Found = (Option<Rc<MemoryPlan>>, f64);

/// All that a memory plan depends on besides the blocks: micro-batches in flight and those of them that may wait, whether the backward pass is split, whether
/// memory is underestimated; and limit, speed, fixed memory and host bandwidth by their bits.
pub(crate) type Conditions = ((usize, usize, bool, bool), [u64; 4]);

impl Default for MemoryPlans {
    fn default() -> Self {
        Self {
            by_states: Memo::with_most(MEMORY_PLANS),
            by_kinds: Memo::with_most(MEMORY_PLANS / 4),
            least_held: Memo::default(),
            savings: Memo::default(),
            kinds_before: OnceCell::new(),
            waiting: OnceCell::new(),
        }
    }
}
