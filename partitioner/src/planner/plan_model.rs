//! From a problem to its best plan: all strategies or one, all numbers of micro-batches, all levels of sharding, and both units of
//! recomputation where memory keeps the first from a plan, or far from what its devices could do.

use crate::{
    cut_space::CutSpace,
    error::PlanError,
    planner::{
        by_stage,
        micro_batches::{is_far_from_ideal, plan_batches},
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
    let planned = plan_by_unit(problem, strategy, like, below);
    let is_open = match &planned {
        Ok(planned) => is_short_of_memory(problem, planned),
        Err(error) => error.is_full(),
    };
    // If keeping each block's inputs is too much, a stage may keep only its own.
    let Some(mut by_stage) = by_stage.filter(|_| is_open) else { return planned };
    let Ok(mut other) = plan_by_unit(&mut by_stage, strategy, like, below) else { return planned };
    if let Ok(mut planned) = planned {
        // What bounds the best of both is the lower of their bounds.
        planned.best.bound_by(other.best.lower_bound_each());
        other.best.bound_by(planned.best.lower_bound_each());
        if other.best.seconds_each() >= planned.best.seconds_each() {
            return Ok(planned);
        }
    }
    *problem = by_stage;
    Ok(other)
}

/// Tells whether memory keeps a plan far from what its devices could do together, or other strategies from a plan.
fn is_short_of_memory(problem: &Problem, planned: &Planned) -> bool {
    is_far_from_ideal(problem, &planned.best)
        && (planned.best.is_tight() || planned.failed.iter().any(|(_, error)| error.is_full()))
}

/// Plans with a given unit of recomputation.
fn plan_by_unit(
    problem: &mut Problem,
    strategy: Option<Strategy>,
    like: Option<&Solution>,
    below: f64,
) -> Result<Planned, PlanError> {
    let cut_space = CutSpace::near(problem, like);
    let whole = plan_batches(problem, &cut_space, strategy, below);
    let unranked = (below < f64::INFINITY).then(|| {
        let own = whole.as_ref().ok().map(|((best, ..), _)| best.clone());
        Box::new(Unranked { problem: problem.clone(), asked: strategy, own })
    });
    let ((best, others, failed), tried) =
        replica_sharding::or_better(problem, &cut_space, strategy, whole, below)?;
    Ok(Planned { best, others, failed, tried, cut_space, unranked })
}

#[cfg(test)]
mod tests {
    use schema::{Bytes, ShardingLevel};

    use super::*;
    use crate::{
        MicroBatches,
        oracle::random_problems::{Dice, cases, is_skipped, problem},
        strategy::candidates,
    };

    /// On more devices than all shapes are tried on, too.
    #[test]
    fn the_best_of_all_is_as_fast_as_each_strategy() {
        let mut dice = Dice(97);
        let mut n_plans = 0;
        for case in 0..cases(44) {
            let mut open = problem(&mut dice, 12 + case % 3, 20 + 4 * (case % 2), true, true);
            let memory = 200 + dice.below(400);
            open.machine.devices.iter_mut().for_each(|device| device.memory = Bytes(memory));
            open.training.micro_batches = MicroBatches::About(48);
            open.training.sharding_up_to = ShardingLevel::ALL[dice.below(4) as usize];
            // Large problems: every eighth is planned, the last among them, which fits serially by blocks, and by stages in pipelines.
            if is_skipped(case) || case % 8 != 3 {
                continue;
            }
            let seconds = |strategy: Option<Strategy>| {
                let planned = plan_model(&mut open.clone(), strategy, None);
                planned.map_or(f64::INFINITY, |planned| planned.best.seconds_each())
            };
            let best = seconds(None);
            for strategy in candidates(&open) {
                let own = seconds(Some(strategy));
                // A plan that shards more is taken only if it gains one per cent.
                assert!(best * 0.98 <= own, "case {case}: {best} for all, {own} for {strategy:?}");
                n_plans += u32::from(own.is_finite());
            }
        }
        assert!(is_skipped(0) || n_plans > 15, "{n_plans}");
    }
}
