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

/// Why a grid has no plan, and what bounds one that was not found.
pub(crate) struct NoGrid {
    pub(crate) error: PlanError,
    /// Seconds of a step; infinite where nothing fits however memory is counted.
    pub(crate) lower_bound: f64,
}

/// Finds the best plan of one grid.
pub(crate) struct GridSolver<'a> {
    pub(crate) problem: &'a Problem,
    pub(crate) states: &'a States,
    /// Whether all ways to cut are among the states.
    pub(crate) is_complete: bool,
    /// Best pipelines over the states of strategies that cut by no rule.
    pub(crate) pipelines: &'a PipelineCache,
    pub(crate) bounds: &'a GridBounds<'a>,
    pub(crate) strategy: Strategy,
    pub(crate) goal: Goal,
    /// Grids that share the time there is.
    pub(crate) n_grids: usize,
    /// Pairs of states that searches looked at, at the most.
    pub(crate) spent: Cell<usize>,
    /// What stages recompute: the same for all grids, and all strategies that cut by no rule, with as many micro-batches in flight.
    pub(crate) memory_plans: Rc<MemoryPlans>,
    /// Lines of blocks that grids climb from.
    pub(crate) lines: Lines,
    /// What runs of the machine's devices bring, and those of the ideal machine's.
    pub(crate) runs: Rc<DeviceRuns>,
    pub(crate) ideal_runs: Rc<DeviceRuns>,
    /// Whether all devices and links are alike.
    pub(crate) is_uniform: bool,
    /// The problem on its ideal machine; made on first use.
    pub(crate) ideal: OnceCell<Problem>,
}

impl GridSolver<'_> {
    /// Returns the problem with devices that are all the best in everything.
    pub(crate) fn ideal(&self) -> &Problem {
        self.ideal.get_or_init(|| self.problem.ideal())
    }
}
