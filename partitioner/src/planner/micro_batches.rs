//! The number of micro-batches of a step, if none is asked for, and the plans for it.
//!
//! A step has one, two, four or eight of them for each device; the fewest are taken that come near the best. All are as large as
//! the model's inputs, so more of them make a larger batch: throughput is what compares. While numbers are
//! compared only the fastest plan is kept; all strategies are ranked for the number that is chosen.

use std::collections::BTreeMap;

use schema::MicroBatchesTried;

use crate::{
    MicroBatches, PlanError, Problem, Solution, Strategy,
    cut_space::CutSpace,
    goal::Goal,
    planner::{
        fastest, fastest_within, nearest_reason, plan_over,
        planned::{Ranked, Tried},
        rank,
    },
    strategy::asked_or_all,
};

/// The fewest micro-batches are taken whose time is at most this multiple of the least.
pub const ENOUGH: f64 = 1.05;

/// Plans with given cuts, choosing the number of micro-batches; with a limit `below` for a given number of them, only the fastest
/// plan below it.
pub(crate) fn plan_batches(
    problem: &mut Problem,
    cut_space: &CutSpace,
    strategy: Option<Strategy>,
    below: f64,
) -> Result<Tried, PlanError> {
    let n_devices = problem.machine.devices.len();
    let is_large = is_large(problem);
    // An asynchronous pipeline has no step to fill.
    let is_free = problem.training.micro_batches == MicroBatches::Enough
        && !strategy.is_some_and(Strategy::is_asynchronous);
    let best = |problem: &Problem, first: Option<Strategy>| match strategy {
        None => fastest(problem, cut_space, first),
        Some(strategy) => plan_over(problem, cut_space, strategy),
    };
    if !is_free || n_devices == 1 || is_large {
        if below < f64::INFINITY {
            let strategies = asked_or_all(problem, strategy);
            let found = fastest_within(problem, cut_space, strategies.into_iter(), Goal::Below(below));
            let best = found.map_err(|failed| nearest_reason(failed.into_iter()))?;
            return Ok(((best, Vec::new(), Vec::new()), Vec::new()));
        }
        return match strategy {
            Some(strategy) => {
                let best = plan_over(problem, cut_space, strategy)?;
                Ok((beside(problem, cut_space, best, Some(strategy), is_large), Vec::new()))
            }
            None => Ok((rank(problem, cut_space, None)?, Vec::new())),
        };
    }
    let mut found: Vec<Solution> = Vec::new();
    let mut error = None;
    for count in counts(problem) {
        problem.training.micro_batches = MicroBatches::About(count);
        // The best strategy for fewer micro-batches is likely to be good: try it first, so that it prunes others.
        let first = found.last().and_then(|last| last.made_by.strategy());
        match best(problem, first) {
            Ok(plan) => found.push(plan),
            Err(other) => {
                let is_full = other.is_full();
                error = Some(other);
                // More micro-batches need no less memory.
                if is_full {
                    break;
                }
            }
        }
    }
    // If memory is short, fewer micro-batches on more stages may fit. If one is in flight whatever the step has, fewer need no
    // less memory.
    let is_worth_it = match found.first() {
        Some(first) => is_held_back(problem, first),
        None => strategy.is_some_and(|strategy| !strategy.row().is_serial),
    };
    if is_worth_it {
        let half =
            (problem.training.all_devices(&problem.machine) / 2).min(problem.training.most_micro_batches);
        let fewer = std::iter::successors(Some(half), |count| Some(count / 2));
        for count in fewer.take_while(|&count| count > 0) {
            let mut fewer = problem.clone();
            fewer.training.micro_batches = MicroBatches::Exactly(count);
            // Only plans near the best are taken: others are pruned.
            let least = found.iter().map(Solution::seconds_each).fold(f64::INFINITY, f64::min);
            let near = Goal::Below(ENOUGH * least);
            let strategies = asked_or_all(&fewer, strategy);
            if let Ok(plan) = fastest_within(&fewer, cut_space, strategies.into_iter(), near) {
                found.insert(0, plan);
            }
        }
    }
    let found = fastest_of_each(found);
    let mut tried: Vec<MicroBatchesTried> = found
        .iter()
        .map(|plan| MicroBatchesTried {
            micro_batches: plan.micro_batches,
            seconds_each: plan.seconds_each(),
        })
        .collect();
    let least = tried.iter().map(|one| one.seconds_each).fold(f64::INFINITY, f64::min);
    let chosen = found.into_iter().enumerate().find(|(_, plan)| plan.seconds_each() <= ENOUGH * least);
    match (chosen, error) {
        (Some((index, best)), _) => {
            problem.training.micro_batches = MicroBatches::About(best.micro_batches);
            let ranked = beside(problem, cut_space, best, strategy, false);
            tried[index].seconds_each = ranked.0.seconds_each();
            Ok((ranked, tried))
        }
        (None, error) => {
            // For the error, ask with the fewest: they need the least memory.
            problem.training.micro_batches = MicroBatches::About(counts(problem)[0]);
            Err(error.expect("each number of micro-batches has a plan or none"))
        }
    }
}

/// Tells whether strategies are too many to compare over so many blocks and devices.
pub(crate) fn is_large(problem: &Problem) -> bool {
    problem.blocks.len() * problem.machine.devices.len() > problem.training.limits.sizes.compared
}

/// Keeps the fastest plan of each number of micro-batches, the fewest first: a schedule that takes them in rounds may raise a small
/// number to one that is tried as well.
fn fastest_of_each(found: Vec<Solution>) -> Vec<Solution> {
    let mut fastest: BTreeMap<u32, Solution> = BTreeMap::new();
    for plan in found {
        let is_faster = |other: &Solution| plan.seconds_each() < other.seconds_each();
        if fastest.get(&plan.micro_batches).is_none_or(is_faster) {
            fastest.insert(plan.micro_batches, plan);
        }
    }
    fastest.into_values().collect()
}

/// Numbers of micro-batches to try: one, two, four or eight for each device, but no more than a step may have.
pub(crate) fn counts(problem: &Problem) -> Vec<u32> {
    let (n_devices, most) =
        (problem.training.all_devices(&problem.machine), problem.training.most_micro_batches);
    let mut counts: Vec<u32> =
        [1, 2, 4, 8].map(|factor: u32| factor.saturating_mul(n_devices).min(most)).to_vec();
    counts.dedup();
    counts
}

/// Tells whether memory keeps a plan far from what its devices could do together.
fn is_held_back(problem: &Problem, plan: &Solution) -> bool {
    plan.is_tight() && is_far_from_ideal(problem, plan)
}

/// Tells whether a plan takes more than twice as long as all devices would if they shared the work evenly.
pub(crate) fn is_far_from_ideal(problem: &Problem, plan: &Solution) -> bool {
    times_ideal(problem, plan) > 2.0
}

/// Returns how many times as long a plan takes as all devices would if they shared the work evenly.
pub fn times_ideal(problem: &Problem, plan: &Solution) -> f64 {
    plan.seconds_each() * problem.machine.total_speed() / problem.seconds()
}

/// Adds the other strategies' plans to the best one, which stays first if its strategy was asked for.
fn beside(
    problem: &Problem,
    cut_space: &CutSpace,
    best: Solution,
    asked: Option<Strategy>,
    is_large: bool,
) -> Ranked {
    let alone = |best| (best, Vec::new(), Vec::new());
    if is_large {
        return alone(best);
    }
    match (rank(problem, cut_space, Some(&best)), asked) {
        (Err(_), _) => alone(best),
        (Ok(ranked), None) => ranked,
        (Ok((first, others, failed)), Some(_)) => {
            let others = std::iter::once(first).chain(others);
            let others = others.filter(|other| other.made_by != best.made_by).collect();
            (best, others, failed)
        }
    }
}
