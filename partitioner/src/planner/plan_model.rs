//! From a problem to its best plan: all strategies or one, all numbers of micro-batches, all levels of sharding, and both units of
//! recomputation where one does not fit.

use schema::RecomputeUnit;

use crate::{
    cut_space::CutSpace,
    error::PlanError,
    planner::{micro_batches::plan_batches, planned::Planned, replica_sharding},
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
/// When the problem makes no sense or nothing fits.
///
/// For inference, finds the best plan of the forward pass alone, whatever the strategy. `like`, a plan of other blocks of the
/// same model, tells which shape to search first.
pub fn plan_model(
    problem: &mut Problem,
    strategy: Option<Strategy>,
    like: Option<&Solution>,
) -> Result<Planned, PlanError> {
    problem.validate()?;
    if let Some(aim) = problem.training.inference {
        let cut_space = CutSpace::of(problem);
        let best = serving::serve(problem, &cut_space, aim)?;
        return Ok(Planned { best, others: Vec::new(), failed: Vec::new(), tried: Vec::new(), cut_space });
    }
    let mut by_stage = problem.clone();
    let error = match plan_by_unit(problem, strategy, like) {
        Err(error) if error.is_full() && by_stage.training.recompute && !by_stage.training.offload => error,
        planned => return planned,
    };
    // If keeping each block's inputs is too much, a stage may keep only its own.
    by_stage.training.recompute_unit = RecomputeUnit::Stage;
    let planned = plan_by_unit(&mut by_stage, strategy, like);
    let needs_less = match (&error, &planned) {
        (PlanError::Memory { needed, .. }, Err(PlanError::Memory { needed: by_stage, .. })) => {
            by_stage < needed
        }
        (_, planned) => planned.is_ok(),
    };
    if needs_less {
        *problem = by_stage;
        planned
    } else {
        Err(error)
    }
}

/// Plans with a given unit of recomputation.
fn plan_by_unit(
    problem: &mut Problem,
    strategy: Option<Strategy>,
    like: Option<&Solution>,
) -> Result<Planned, PlanError> {
    let cut_space = CutSpace::of(problem);
    like.iter().for_each(|like| cut_space.expect(like));
    let whole = plan_batches(problem, &cut_space, strategy);
    let ((best, others, failed), tried) = replica_sharding::or_better(problem, &cut_space, strategy, whole)?;
    Ok(Planned { best, others, failed, tried, cut_space })
}
