//! What planning a model returns.

use schema::MicroBatchesTried;

use crate::{cut_space::CutSpace, error::PlanError, solution::Solution, strategy::Strategy};

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
}

/// The best plan of all candidates, the others, best first, and those that do not fit.
pub(crate) type Ranked = (Solution, Vec<Solution>, Vec<(Strategy, PlanError)>);

/// Ranked plans, and the numbers of micro-batches that were tried.
pub(crate) type Tried = (Ranked, Vec<MicroBatchesTried>);
