//! The cuts of a model with what was found of them: states, lower bounds and best pipelines, for all questions about it.
//!
//! States and traffic depend on blocks, values and whether activations may be offloaded; not on machines, strategies or micro-batches,
//! which change from question to question. Caches are keyed by all else that an answer depends on.

use std::{
    cell::{Cell, OnceCell},
    rc::Rc,
};

use crate::{
    Problem, Solution, bound::crossing::CrossingBound, dag::cut_states::States,
    pipeline::cache::PipelineCache, stage::memory_plan::MemoryPlans,
};

/// The cuts of a model, and what was found of them.
pub struct CutSpace {
    /// All ideals where there are few, the problem's own order otherwise.
    pub(crate) states: States,
    /// Whether all cuts of the model are among them.
    pub(crate) is_complete: bool,
    /// Whether the problem's own order is the only one.
    pub(crate) is_chain: bool,
    /// The problem's own order, where the states are others.
    line: OnceCell<States>,
    /// The bound from traffic across cuts; made on first use.
    crossing_bound: OnceCell<CrossingBound>,
    /// Best pipelines over the states, as far as they were asked for.
    pub(crate) pipelines: PipelineCache,
    /// What stages over the states recompute and offload, as far as it was asked for.
    pub(crate) memory_plans: Rc<MemoryPlans>,
    /// Ranks and replicas of the plan that was found last: tried first, so that others have something to beat.
    pub(crate) likely: Cell<Option<(usize, usize)>>,
}

impl CutSpace {
    /// Returns the cuts of a valid problem's model.
    pub fn of(problem: &Problem) -> Self {
        let line = own_order(problem);
        let is_chain = line.is_complete(problem);
        let ideals =
            if is_chain { None } else { States::ideals(problem, problem.training.limits.sizes.ideals) };
        let (states, line) = match ideals {
            Some(ideals) => (ideals, OnceCell::from(line)),
            None => (line, OnceCell::new()),
        };
        let is_complete = states.is_complete(problem);
        Self {
            states,
            is_complete,
            is_chain,
            line,
            crossing_bound: OnceCell::new(),
            pipelines: PipelineCache::default(),
            memory_plans: Rc::default(),
            likely: Cell::new(None),
        }
    }

    /// Notes the shape of a plan of these or of other cuts of the model.
    pub(crate) fn expect(&self, plan: &Solution) {
        let replicas = plan.stages.first().map_or(1, |stage| stage.run.count);
        self.likely.set(Some((plan.stages.len() / plan.chunks(), replicas)));
    }

    /// Returns the problem's own order.
    pub(crate) fn line(&self, problem: &Problem) -> &States {
        self.line.get_or_init(|| own_order(problem))
    }

    /// Returns the bound from traffic across cuts.
    pub(crate) fn crossing_bound(&self, problem: &Problem) -> &CrossingBound {
        self.crossing_bound.get_or_init(|| {
            if self.is_complete {
                CrossingBound::of_all(problem, &self.states)
            } else {
                CrossingBound::sought(problem)
            }
        })
    }
}

fn own_order(problem: &Problem) -> States {
    States::line(problem, (0..problem.blocks.len()).collect())
}
