//! From a problem to the best plan of one strategy, or of all.
//!
//! Each strategy is solved with the devices as they stand and in other orders of them; what does not fit the simulator's count of
//! memory is planned again with less. `plan_model` is the way in: it also chooses the number of micro-batches and what replicas share.

pub(crate) mod any_cut;
pub(crate) mod memory_needed;
pub(crate) mod micro_batches;
pub(crate) mod plan_model;
pub(crate) mod planned;
pub(crate) mod replica_sharding;
pub(crate) mod what_if;

use schema::RecomputeUnit;

use crate::{
    Problem,
    cut_space::CutSpace,
    device_orders::other_orders,
    error::PlanError,
    goal::{Goal, InOrder},
    grid::{search::synchronous, two_copies::two_way},
    pinned::pinned_orders,
    pipeline::pipedream::pipedream,
    planner::{memory_needed::nearest, planned::Ranked},
    serving,
    simulate::{excess, state_memory},
    solution::{MadeBy, Solution},
    strategy::{STRATEGIES, Strategy, candidates, row::Search},
};

/// Finds the best plan of one strategy.
///
/// # Errors
/// When the problem makes no sense or nothing fits.
pub fn plan_with(problem: &Problem, strategy: Strategy) -> Result<Solution, PlanError> {
    problem.validate()?;
    let cut_space = CutSpace::of(problem);
    plan_over(problem, &cut_space, strategy)
        .map_err(|error| shortage_over(problem, &cut_space, Some(strategy), error))
}

/// The same, searching first the shape of a plan of other blocks of the same model; `None` if there is none, for whatever reason.
pub fn plan_near(problem: &Problem, strategy: Strategy, like: &Solution) -> Option<Solution> {
    problem.validate().ok()?;
    let cut_space = CutSpace::near(problem, Some(like));
    let mut best = solve(problem, &cut_space, strategy, Goal::Best).ok()?;
    state_memory(problem, &mut best);
    Some(best)
}

/// Finds the best plan of one strategy over the cuts of a valid problem.
pub(crate) fn plan_over(
    problem: &Problem,
    cut_space: &CutSpace,
    strategy: Strategy,
) -> Result<Solution, PlanError> {
    let mut best = solve(problem, cut_space, strategy, Goal::Best).map_err(|(error, _)| error)?;
    state_memory(problem, &mut best);
    Ok(best)
}

/// Tells whether a strategy has a plan that fits; does not search for the memory that would suffice.
pub fn fits(problem: &Problem, strategy: Strategy) -> bool {
    if problem.validate().is_err() {
        return false;
    }
    let cut_space = CutSpace::of(problem);
    match problem.training.inference {
        Some(aim) => serving::can_serve(problem, &cut_space, aim),
        None => solve(problem, &cut_space, strategy, Goal::Any).is_ok(),
    }
}

/// Finds the best plan of one strategy, trying several orders of devices that differ; or returns why there is none, and the lower
/// bound in seconds for each micro-batch.
pub(crate) fn solve(
    problem: &Problem,
    cut_space: &CutSpace,
    strategy: Strategy,
    goal: Goal,
) -> Result<Solution, (PlanError, f64)> {
    let (mut orders, mut is_all) = other_orders(&problem.machine);
    if problem.has_device_pins() {
        let more: Vec<Vec<usize>> =
            pinned_orders(problem).into_iter().filter(|order| !orders.contains(order)).collect();
        orders.extend(more);
        is_all = false;
    }
    let (mut best, mut least) = match solve_in_order(problem, cut_space, strategy, goal) {
        Ok((solution, least)) => (Ok(solution), least),
        Err((error, least)) => (Err(error), least),
    };
    let mut bound = best.as_ref().map_or(0.0, Solution::lower_bound_each);
    for order in orders {
        if goal == Goal::Any && best.is_ok() {
            break;
        }
        let mut ordered = problem.clone();
        ordered.machine.devices =
            order.iter().map(|&device| problem.machine.devices[device].clone()).collect();
        // Other orders must be better than the best so far.
        let goal = match (goal, &best) {
            (Goal::Best | Goal::Below(_), Ok(best)) => Goal::Below(goal.below().min(best.seconds_each())),
            _ => goal,
        };
        match solve_in_order(&ordered, cut_space, strategy, goal) {
            Ok((mut found, own)) => {
                least = least.min(own);
                // This bound holds for every order, so it holds for the best of all.
                bound = bound.max(found.lower_bound_each());
                let is_better = |best: &Solution| found.seconds_each() < best.seconds_each() * (1.0 - 1e-9);
                if best.as_ref().map_or(true, is_better) {
                    found.order = order;
                    best = Ok(found);
                }
            }
            Err((_, own)) => least = least.min(own),
        }
    }
    bound = bound.max(if is_all { least } else { 0.0 });
    // Without a plan the only bound of other orders is the work of all devices together.
    let by_work = problem.seconds() / problem.machine.total_speed();
    let mut best = best.map_err(|error| (error, bound.max(by_work)))?;
    best.lower_bound = (bound * best.micro_batches_of_objective()).min(best.seconds());
    Ok(best)
}

/// Finds the best plan of one strategy with the devices as they stand.
fn solve_in_order(problem: &Problem, cut_space: &CutSpace, strategy: Strategy, goal: Goal) -> InOrder {
    let blocks = problem.blocks.len();
    if let Some(stages) =
        problem.training.stages.map(|stages| stages as usize).filter(|&stages| stages > blocks)
    {
        return Err((PlanError::TooManyStages { stages, blocks }, f64::INFINITY));
    }
    let (mut found, least) = attempt(problem, cut_space, strategy, goal)?;
    let bound = found.lower_bound;
    // Memory by formula exceeds the simulator's but for rare orders of arrival: plan again with less for those.
    let mut room = 1.0;
    for _ in 0..5 {
        let Some(share) = excess(problem, &found) else { return Ok((found, least)) };
        room /= share.max(1.01);
        let less = attempt(&with_memory(problem, room), cut_space, strategy, goal);
        found = less.map_err(|(error, _)| (error, least))?.0;
        found.lower_bound = bound.min(found.seconds());
        found.stages.iter_mut().for_each(|stage| stage.score.limit /= room);
    }
    Err((PlanError::NothingFits, least))
}

fn attempt(problem: &Problem, cut_space: &CutSpace, strategy: Strategy, goal: Goal) -> InOrder {
    match strategy.row().search {
        Search::Asynchronous if problem.training.stages.is_some() => {
            let reason = "it chooses the number of stages itself".to_string();
            Err((PlanError::Schedule { strategy: strategy.name(), reason }, f64::INFINITY))
        }
        Search::Asynchronous if !problem.pins.is_empty() => {
            let reason = "it chooses the number of stages itself, and blocks are pinned".to_string();
            Err((PlanError::Schedule { strategy: strategy.name(), reason }, f64::INFINITY))
        }
        Search::Asynchronous => pipedream(problem, cut_space, strategy, goal),
        Search::TwoCopies(schedule) => two_way(problem, cut_space, (strategy, schedule), goal),
        Search::Grids(_) if strategy.row().tries_rules && goal != Goal::Any => {
            let (mut best, least) = match synchronous(problem, cut_space, strategy, goal) {
                Ok((best, least)) => (Ok(best), least),
                // No plan below the goal by formula.
                Err((error, least)) if goal != Goal::Best => (Err(error), least),
                Err(none) => return Err(none),
            };
            // The simulator decides: the solvers' formulas may have missed a cut by a rule that is faster.
            let rules = STRATEGIES.into_iter().filter(|rule| rule.is_rule() && problem.pins.is_empty());
            for rule in rules {
                let limit = best.as_ref().map_or(goal.below(), Solution::seconds_each);
                let Ok((other, _)) = synchronous(problem, cut_space, rule, goal) else { continue };
                if other.seconds_each() < limit * (1.0 - 1e-9) {
                    let bound = best.as_ref().map_or(least, |best| best.lower_bound_each());
                    let lower_bound = (bound * other.micro_batches_of_objective()).min(other.seconds());
                    best = Ok(Solution { made_by: MadeBy::Strategy(strategy), lower_bound, ..other });
                }
            }
            let best = best.map_err(|error| (error, least))?;
            let least = least.min(best.seconds_each());
            Ok((best, least))
        }
        Search::Grids(_) | Search::Rule(_) => synchronous(problem, cut_space, strategy, goal),
    }
}

/// Returns the problem with devices of another size.
fn with_memory(problem: &Problem, factor: f64) -> Problem {
    let mut changed = problem.clone();
    for device in &mut changed.machine.devices {
        device.memory.0 = (device.memory.0 as f64 * factor) as u64;
    }
    changed
}

/// Finds the best plan of all candidates; also returns the others, best first, and those that do not fit.
///
/// # Errors
/// When nothing fits: the error of the plan that comes nearest.
#[allow(clippy::type_complexity)]
pub fn plan_auto(
    problem: &Problem,
) -> Result<(Solution, Vec<Solution>, Vec<(Strategy, PlanError)>), PlanError> {
    problem.validate()?;
    let cut_space = CutSpace::of(problem);
    rank(problem, &cut_space, None).map_err(|error| shortage_over(problem, &cut_space, None, error))
}

/// Finds the best plan of each candidate; `best` is the one already found, for its strategy.
pub(crate) fn rank(
    problem: &Problem,
    cut_space: &CutSpace,
    best: Option<&Solution>,
) -> Result<Ranked, PlanError> {
    let mut found = Vec::new();
    let mut failed = Vec::new();
    // The least of all candidates' bounds holds for the best plan; also of those without a plan, unless they can have none.
    let mut bound = f64::INFINITY;
    for strategy in candidates(problem) {
        let own = best.filter(|best| best.made_by == MadeBy::Strategy(strategy));
        match own.map_or_else(|| solve(problem, cut_space, strategy, Goal::Best), |own| Ok(own.clone())) {
            Ok(solution) => {
                bound = bound.min(solution.lower_bound_each());
                found.push(solution);
            }
            Err((error, least)) => {
                bound = bound.min(least);
                failed.push((strategy, error));
            }
        }
    }
    found.sort_by(|a, b| a.seconds_each().total_cmp(&b.seconds_each()));
    found.iter_mut().for_each(|plan| state_memory(problem, plan));
    if found.is_empty() {
        return Err(nearest_reason(failed.into_iter().map(|(_, error)| error)));
    }
    let mut best = found.remove(0);
    best.lower_bound = (bound * best.micro_batches_of_objective()).min(best.seconds());
    Ok((best, found, failed))
}

/// Finds the best plan of all candidates and nothing else, beginning with one that may be good.
pub(crate) fn fastest(
    problem: &Problem,
    cut_space: &CutSpace,
    first: Option<Strategy>,
) -> Result<Solution, PlanError> {
    let others = candidates(problem).filter(|strategy| Some(*strategy) != first);
    fastest_within(problem, cut_space, first.into_iter().chain(others), Goal::Best)
        .map_err(|failed| nearest_reason(failed.into_iter()))
}

/// Finds the best plan of some strategies for a goal; later strategies are pruned by the best plan so far.
///
/// If there is none, returns why for each.
pub(crate) fn fastest_within(
    problem: &Problem,
    cut_space: &CutSpace,
    strategies: impl Iterator<Item = Strategy>,
    goal: Goal,
) -> Result<Solution, Vec<PlanError>> {
    let mut best: Option<Solution> = None;
    let mut failed = Vec::new();
    for strategy in strategies {
        let goal = best.as_ref().map_or(goal, |best| Goal::Below(best.seconds_each()));
        match solve(problem, cut_space, strategy, goal) {
            Ok(found) if found.seconds_each() < goal.below() => best = Some(found),
            Ok(_) => {}
            Err((error, _)) => failed.push(error),
        }
    }
    let mut best = best.ok_or(failed)?;
    state_memory(problem, &mut best);
    Ok(best)
}

/// Returns the most telling of the reasons why strategies have no plan.
pub(crate) fn nearest_reason(errors: impl Iterator<Item = PlanError>) -> PlanError {
    errors.reduce(PlanError::or_nearer).unwrap_or(PlanError::NothingFits)
}

/// Finds the memory with which a strategy, or some candidate, would have a plan, where nothing fits; other reasons stay as they
/// are. `problem` is left with the unit of recomputation that needs less.
///
/// Searches a dozen times and more, so it is for who has to say why there is no plan.
pub fn shortage(problem: &mut Problem, strategy: Option<Strategy>, error: PlanError) -> PlanError {
    let explained =
        |problem: &Problem| shortage_over(problem, &CutSpace::of(problem), strategy, PlanError::NothingFits);
    if error != PlanError::NothingFits || problem.training.inference.is_some() || problem.validate().is_err()
    {
        return error;
    }
    let own = explained(problem);
    let Some(by_stage) = by_stage(problem) else { return own };
    let other = explained(&by_stage);
    match (&own, &other) {
        (PlanError::Memory { needed, .. }, PlanError::Memory { needed: less, .. }) if less < needed => {
            *problem = by_stage;
            other
        }
        _ => own,
    }
}

/// Returns the problem where a stage keeps its own inputs alone, if keeping those of each block may be too much.
pub(crate) fn by_stage(problem: &Problem) -> Option<Problem> {
    let training = &problem.training;
    let is_open = training.recompute && !training.offload && training.recompute_unit.is_block();
    is_open.then(|| {
        let mut by_stage = problem.clone();
        by_stage.training.recompute_unit = RecomputeUnit::Stage;
        by_stage
    })
}

/// The same as [`shortage`] over known cuts, with the problem's own unit of recomputation.
fn shortage_over(
    problem: &Problem,
    cut_space: &CutSpace,
    asked: Option<Strategy>,
    error: PlanError,
) -> PlanError {
    if error != PlanError::NothingFits {
        return error;
    }
    let of = |strategy: Strategy, roomier: &Problem| solve(roomier, cut_space, strategy, Goal::Any).ok();
    if let Some(strategy) = asked {
        return nearest(problem, &[&|roomier| of(strategy, roomier)]);
    }
    // Strategies that divide the model need least memory: take the first of these with a plan that fits.
    let kinds = [Strategy::OneForwardOneBackward, Strategy::Hybrid, Strategy::Layer];
    let make = |roomier: &Problem| kinds.into_iter().find_map(|strategy| of(strategy, roomier));
    let in_chunks = |roomier: &Problem| of(Strategy::Interleaved, roomier);
    if candidates(problem).any(|strategy| strategy == Strategy::Interleaved) {
        nearest(problem, &[&make, &in_chunks])
    } else {
        nearest(problem, &[&make])
    }
}
