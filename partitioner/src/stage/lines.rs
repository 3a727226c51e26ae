//! Orders of the blocks that several grids of a strategy cut stages from, with the states of each and the memory plans over them.
//!
//! Grids climb from few lines, mostly the model's own order. At most [`LINES`] are kept, O(blocks + values) each beside its plans.

use std::rc::Rc;

use crate::{
    dag::cut_states::States,
    stage::{memo::Memo, memory_plan::MemoryPlans, scorer::Scorer},
};

/// The most lines that are kept at a time.
const LINES: usize = 16;

/// States and memory plans by order; all questions are about the same blocks and values.
pub(crate) struct Lines(Memo<Vec<usize>, (Rc<States>, Rc<MemoryPlans>)>);

impl Lines {
    /// Calls `ask` with a scorer over an order of blocks, on the devices of another scorer.
    pub(crate) fn with<T>(&self, scorer: &Scorer, line: &[usize], ask: impl FnOnce(&Scorer) -> T) -> T {
        let make = || (Rc::new(States::line(scorer.problem, line.to_vec())), Rc::default());
        let (states, memory_plans) = self.0.get(line.to_vec(), make);
        let mut over = scorer.over(&states);
        over.memory_plans = memory_plans;
        ask(&over)
    }
}

impl Default for Lines {
    fn default() -> Self {
        Self(Memo::with_most(LINES))
    }
}
