//! From a problem to its best plan: all strategies or one, all numbers of micro-batches, all levels of sharding.

use crate::{
    cut_space::Ways,
    error::PlanError,
    planner::{micro_batches::plan_batches, planned::Planned, replica_sharding},
    problem::Problem,
    serving,
    strategy::Strategy,
};

/// Finds the best plan of a strategy or of all; chooses the number of micro-batches where none is asked for.
///
/// Replicas share out what the training allows where that is faster. The problem is left with what was taken, or with the number of
/// micro-batches that needs the least memory.
///
/// # Errors
/// When the problem makes no sense or nothing fits.
///
/// Where nothing is trained, the best plan of the forward pass alone is found, which no strategy is asked for.
pub fn plan_model(problem: &mut Problem, strategy: Option<Strategy>) -> Result<Planned, PlanError> {
    problem.validate()?;
    let ways = Ways::of(problem);
    if let Some(aim) = problem.training.inference {
        let best = serving::serve(problem, &ways, aim)?;
        return Ok(Planned { best, others: Vec::new(), failed: Vec::new(), tried: Vec::new(), ways });
    }
    let whole = plan_batches(problem, &ways, strategy);
    let ((best, others, failed), tried) = replica_sharding::or_better(problem, &ways, strategy, whole)?;
    Ok(Planned { best, others, failed, tried, ways })
}
