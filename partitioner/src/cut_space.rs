//! The cuts of a model with all tables about them: states, lower bounds and best pipelines, for all questions about it.
//!
//! States and traffic depend on blocks, values and whether activations may be offloaded; not on machines, strategies or
//! micro-batches, which change between questions. Memo tables are keyed by all else that an answer depends on.

use std::{
    cell::{Cell, OnceCell},
    rc::Rc,
};

use crate::{
    Machine, Problem, Solution,
    bound::crossing::CrossingBound,
    dag::cut_states::States,
    pipeline::cache::PipelineCache,
    stage::{lines::Lines, memo::Memo, memory_plan::MemoryPlans, place::DeviceRuns},
};

/// Device runs of a machine and of its ideal machine.
pub(crate) type Runs = (Rc<DeviceRuns>, Rc<DeviceRuns>);

/// The cuts of a model, with memo tables.
pub struct CutSpace {
    /// All ideals where there are few, the problem's own order otherwise.
    pub(crate) states: States,
    /// Whether the states include all cuts of the model.
    pub(crate) is_complete: bool,
    /// Whether the problem's own order is the only one.
    pub(crate) is_chain: bool,
    /// The problem's own order, if the states are not those of this order.
    line: OnceCell<States>,
    /// The bound from traffic across cuts; made on first use.
    crossing_bound: OnceCell<CrossingBound>,
    /// Memo table of best pipelines over the states.
    pub(crate) pipelines: PipelineCache,
    /// Memo table of memory plans of stages over the states.
    pub(crate) memory_plans: Rc<MemoryPlans>,
    /// Orders of blocks that hill climbing goes along, with their states and memory plans.
    pub(crate) lines: Lines,
    /// Device runs of each machine and of its ideal machine, by the machine's number.
    runs: Memo<usize, Runs>,
    /// Ranks and replicas of the last plan found: searched first, so that it prunes others.
    pub(crate) likely: Cell<Option<(usize, usize)>>,
    /// Ranks and replicas of a plan of other cuts of the model: what is slow to search is searched near it alone.
    pub(crate) like: Option<(usize, usize)>,
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
            lines: Lines::default(),
            runs: Memo::default(),
            likely: Cell::new(None),
            like: None,
        }
    }

    /// The same, to be searched near a plan of other cuts of the model.
    pub(crate) fn near(problem: &Problem, like: Option<&Solution>) -> Self {
        let mut near = Self::of(problem);
        near.like = like.map(shape);
        near.likely.set(near.like);
        near
    }

    /// Notes the shape of a plan, to be searched first.
    pub(crate) fn expect(&self, plan: &Solution) {
        self.likely.set(Some(shape(plan)));
    }

    /// Returns the device runs of a machine and of its ideal machine: thousands of devices make many of them.
    pub(crate) fn runs(&self, machine: &Machine) -> Runs {
        self.runs.get(self.pipelines.number(machine, true), Runs::default)
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

/// Returns the ranks and replicas of a plan.
fn shape(plan: &Solution) -> (usize, usize) {
    let replicas = plan.stages.first().map_or(1, |stage| stage.run.count);
    (plan.stages.len() / plan.chunks(), replicas)
}

fn own_order(problem: &Problem) -> States {
    States::line(problem, (0..problem.blocks.len()).collect())
}
