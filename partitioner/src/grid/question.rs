//! What the searches of all grids of a strategy share.

use std::{
    cell::{Cell, OnceCell},
    rc::Rc,
};

use crate::{
    Problem,
    bound::grid::GridBounds,
    dag::cut_states::States,
    error::PlanError,
    goal::Goal,
    pipeline::cache::PipelineCache,
    stage::{lines::Lines, memory_plan::MemoryPlans, place::DeviceRuns},
    strategy::Strategy,
};

/// Why a grid has no plan, and the lower bound of those that were not found.
pub(crate) struct NoGrid {
    pub(crate) error: PlanError,
    /// Seconds of a step; infinite if nothing fits however memory is counted.
    pub(crate) lower_bound: f64,
}

/// Finds the best plan of one grid.
pub(crate) struct GridSolver<'a> {
    pub(crate) problem: &'a Problem,
    pub(crate) states: &'a States,
    /// Whether all cuts are among the states.
    pub(crate) is_complete: bool,
    /// Best pipelines over the states; for strategies that do not cut by a rule.
    pub(crate) pipelines: &'a PipelineCache,
    pub(crate) bounds: &'a GridBounds<'a>,
    pub(crate) strategy: Strategy,
    pub(crate) goal: Goal,
    /// Grids among which the budget is divided.
    pub(crate) n_grids: usize,
    /// Upper bound of the pairs of states that searches have looked at.
    pub(crate) spent: Cell<usize>,
    /// What stages recompute: shared by all grids, and by all strategies that do not cut by a rule, with as many micro-batches in
    /// flight.
    pub(crate) memory_plans: Rc<MemoryPlans>,
    /// Orders of blocks that seeds of the hill climbing lie in.
    pub(crate) lines: &'a Lines,
    /// Device runs of the machine, and of the ideal machine.
    pub(crate) runs: Rc<DeviceRuns>,
    pub(crate) ideal_runs: Rc<DeviceRuns>,
    /// Whether all devices and links are alike.
    pub(crate) is_uniform: bool,
    /// The problem on its ideal machine; made on first use.
    pub(crate) ideal: OnceCell<Problem>,
}

impl GridSolver<'_> {
    /// Returns the problem on the ideal machine.
    pub(crate) fn ideal(&self) -> &Problem {
        self.ideal.get_or_init(|| self.problem.ideal())
    }
}
