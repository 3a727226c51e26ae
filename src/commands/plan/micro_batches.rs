//! How many micro-batches a step has, where nobody says.

use partitioner::{MicroBatches, PlanError, Problem, Solution, Strategy, plan_auto, plan_with};
use schema::MicroBatchesTried;

use super::{Plan, model::no_plan};
use crate::failure::Failure;

/// Problems with more blocks × devices than this keep the default number of micro-batches: searches take their time.
const SMALL: usize = 20_000;
/// Fewer micro-batches are better where they cost no more than this share of the throughput.
const ENOUGH: f64 = 1.05;

/// The winner and all others.
pub struct Solved {
    pub best: Solution,
    pub others: Vec<Solution>,
    pub failed: Vec<(Strategy, PlanError)>,
    /// Numbers of micro-batches that were tried, when nobody asked for one.
    pub tried: Vec<MicroBatchesTried>,
}

/// Finds the best plan; chooses the number of micro-batches where none is asked for.
///
/// A step has one, two, four or eight of them for each device; the fewest are taken that come near the best. All are as large as
/// the model's inputs, so more of them make a larger batch: throughput is what compares.
///
/// # Errors
/// When nothing fits.
pub fn solve(asking: &Plan, problem: &mut Problem, strategy: Option<Strategy>) -> Result<Solved, Failure> {
    let n_devices = problem.machine.devices.len();
    let is_large = problem.blocks.len() * n_devices > SMALL;
    let once = |problem: &Problem| -> Result<Solved, PlanError> {
        let tried = Vec::new();
        Ok(match strategy {
            None => {
                let (best, others, failed) = plan_auto(problem)?;
                Solved { best, others, failed, tried }
            }
            Some(strategy) => {
                let best = plan_with(problem, strategy)?;
                Solved { best, others: Vec::new(), failed: Vec::new(), tried }
            }
        })
    };
    // What else there is, where one strategy was asked for: looked up once, for the micro-batches that were chosen.
    let beside = |problem: &Problem, solved: &mut Solved| {
        if strategy.is_none() || is_large {
            return;
        }
        if let Ok((first, others, failed)) = plan_auto(problem) {
            let others = std::iter::once(first).chain(others);
            solved.others = others.filter(|other| other.strategy != solved.best.strategy).collect();
            solved.failed = failed;
        }
    };
    // A pipeline without an end has no step to fill.
    let is_free =
        problem.training.micro_batches == MicroBatches::Enough && strategy != Some(Strategy::PipeDream);
    if !is_free || n_devices == 1 || is_large {
        let mut solved = once(problem).map_err(|error| no_plan(asking, problem, error))?;
        beside(problem, &mut solved);
        return Ok(solved);
    }
    let mut found: Vec<Solved> = Vec::new();
    let mut error = None;
    for factor in [1, 2, 4, 8] {
        problem.training.micro_batches = MicroBatches::About((factor * n_devices) as u32);
        match once(problem) {
            Ok(solved) => found.push(solved),
            Err(other) => {
                let is_full = matches!(other, PlanError::Memory { .. });
                error = Some(other);
                // More of them need no less memory.
                if is_full {
                    break;
                }
            }
        }
    }
    let tried: Vec<MicroBatchesTried> = found
        .iter()
        .map(|solved| MicroBatchesTried {
            micro_batches: solved.best.micro_batches,
            seconds_each: solved.best.seconds_each(),
        })
        .collect();
    let least = tried.iter().map(|one| one.seconds_each).fold(f64::INFINITY, f64::min);
    let chosen = found.into_iter().find(|solved| solved.best.seconds_each() <= ENOUGH * least);
    match (chosen, error) {
        (Some(mut solved), _) => {
            problem.training.micro_batches = MicroBatches::About(solved.best.micro_batches);
            solved.tried = tried;
            beside(problem, &mut solved);
            Ok(solved)
        }
        (None, Some(error)) => {
            // What would do is asked for the fewest: they need the least memory.
            problem.training.micro_batches = MicroBatches::About(n_devices as u32);
            Err(no_plan(asking, problem, error))
        }
        (None, None) => Err(Failure::bug("no number of micro-batches was tried")),
    }
}
