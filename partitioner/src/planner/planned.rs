//! What planning a model returns.

use schema::MicroBatchesTried;

use crate::{
    cut_space::CutSpace,
    error::PlanError,
    planner::{micro_batches::is_large, rank},
    problem::Problem,
    solution::Solution,
    strategy::Strategy,
};

/// The best plan and all others.
pub struct Planned {
    /// The fastest plan, or that of the strategy that was asked for.
    pub best: Solution,
    /// The other strategies' plans, best first.
    pub others: Vec<Solution>,
    /// Strategies without a plan, and why.
    pub failed: Vec<(Strategy, PlanError)>,
    /// Numbers of micro-batches that were tried, when nobody asked for one.
    pub tried: Vec<MicroBatchesTried>,
    /// The model's cuts with the tables filled on the way: for further questions.
    pub cut_space: CutSpace,
    /// What has to be ranked beside the best plan, if that was put off.
    pub unranked: Option<Box<Unranked>>,
}

/// A search that looked for the best plan alone: the others are found for the plan that is answered.
pub struct Unranked {
    /// The problem, with the sharding that it came with.
    pub(crate) problem: Problem,
    /// The strategy that was asked for.
    pub(crate) asked: Option<Strategy>,
    /// The best plan with that sharding.
    pub(crate) own: Option<Solution>,
}

impl Planned {
    /// Finds the other strategies' plans, if that was put off; the best may turn out to be another.
    pub fn rank(&mut self) {
        let Some(Unranked { problem, asked, own }) = self.unranked.take().map(|unranked| *unranked) else {
            return;
        };
        if asked.is_some() && is_large(&problem) {
            return;
        }
        let Ok((first, mut others, failed)) = rank(&problem, &self.cut_space, own.as_ref()) else { return };
        // Plans that share more were put before the one that they beat.
        let is_own = own.is_some() && self.others.is_empty();
        self.failed = failed;
        if asked.is_none() {
            self.best.bound_by(first.lower_bound_each());
        }
        let is_faster = first.seconds_each() < self.best.seconds_each();
        if is_own && asked.is_none() && (is_faster || first.made_by == self.best.made_by) {
            self.best = first;
        } else {
            others.insert(0, first);
        }
        if !is_own {
            let best = self.best.made_by.strategy();
            self.failed.retain(|(strategy, _)| Some(*strategy) != best);
        } else if asked.is_some() {
            others.retain(|other| other.made_by != self.best.made_by);
        }
        self.others = others;
    }
}

/// The best plan of all candidates, the others, best first, and those that do not fit.
pub(crate) type Ranked = (Solution, Vec<Solution>, Vec<(Strategy, PlanError)>);

/// Ranked plans, and the numbers of micro-batches that were tried.
pub(crate) type Tried = (Ranked, Vec<MicroBatchesTried>);
