//! From a problem to its best plan: all strategies or one, all numbers of micro-batches, all levels of sharding, and both units of
//! recomputation where one does not fit.

use crate::{
    cut_space::CutSpace,
    error::PlanError,
    planner::{
        by_stage,
        micro_batches::plan_batches,
        planned::{Planned, Unranked},
        replica_sharding,
    },
    problem::Problem,
    serving,
    solution::Solution,
    strategy::Strategy,
};

/// Finds the best plan of a strategy or of all; chooses the number of micro-batches where none is asked for.
///
/// Replicas shard what the training allows if that is faster. The problem is left with the chosen settings, or, without a plan,
/// with the number of micro-batches that needs the least memory.
///
/// # Errors
/// When the problem makes no sense or nothing fits; [`shortage`](crate::shortage) finds the memory that would do.
///
/// For inference, finds the best plan of the forward pass alone, whatever the strategy. `like`, a plan of other blocks of the
/// same model, tells which shape to search first.
pub fn plan_model(
    problem: &mut Problem,
    strategy: Option<Strategy>,
    like: Option<&Solution>,
) -> Result<Planned, PlanError> {
    plan_model_below(problem, strategy, like, f64::INFINITY)
}

/// The same where only plans are of use that take less than `below` seconds for each micro-batch: slower ones are not looked for,
/// and [`Planned::rank`] finds the other strategies' plans.
///
/// # Errors
/// As [`plan_model`], or when no plan below the limit was found.
pub fn plan_model_below(
    problem: &mut Problem,
    strategy: Option<Strategy>,
    like: Option<&Solution>,
    below: f64,
) -> Result<Planned, PlanError> {
    problem.validate()?;
    if let Some(aim) = problem.training.inference {
        let cut_space = CutSpace::of(problem);
        let best = serving::serve(problem, &cut_space, aim)?;
        return Ok(Planned {
            best,
            others: Vec::new(),
            failed: Vec::new(),
            tried: Vec::new(),
            cut_space,
            unranked: None,
        });
    }
    let by_stage = by_stage(problem);
    let error = match plan_by_unit(problem, strategy, like, below) {
        Err(error) if error.is_full() => error,
        planned => return planned,
    };
    // If keeping each block's inputs is too much, a stage may keep only its own.
    let Some(mut by_stage) = by_stage else { return Err(error) };
    let planned = plan_by_unit(&mut by_stage, strategy, like, below).map_err(|_| error)?;
    *problem = by_stage;
    Ok(planned)
}

/// Plans with a given unit of recomputation.
fn plan_by_unit(
    problem: &mut Problem,
    strategy: Option<Strategy>,
    like: Option<&Solution>,
    below: f64,
) -> Result<Planned, PlanError> {
    let cut_space = CutSpace::of(problem);
    like.iter().for_each(|like| cut_space.expect(like));
    let whole = plan_batches(problem, &cut_space, strategy, below);
    let unranked = (below < f64::INFINITY).then(|| {
        let own = whole.as_ref().ok().map(|((best, ..), _)| best.clone());
        Box::new(Unranked { problem: problem.clone(), asked: strategy, own })
    });
    let ((best, others, failed), tried) =
        replica_sharding::or_better(problem, &cut_space, strategy, whole, below)?;
    Ok(Planned { best, others, failed, tried, cut_space, unranked })
}
