//! The best plan of the grids of a strategy.
//!
//! Devices may be left over: where links are slow, fewer stages or replicas are faster. Grids are solved in the order of their
//! lower bounds; one whose bound is above the best plan found is pruned.

use std::{
    cell::{Cell, OnceCell},
    collections::BTreeMap,
    rc::Rc,
};

use crate::{
    Problem,
    bound::grid::GridBounds,
    cut_space::CutSpace,
    dag::cut_states::States,
    error::PlanError,
    goal::{Goal, InOrder},
    grid::{
        question::GridSolver,
        shape::{FEW_DEVICES, Grid, GridSpace},
    },
    pinned::{Pinned, unplaced},
    problem::MicroBatches,
    solution::Solution,
    stage::run::Run,
    strategy::{Strategy, row::Search},
};

/// Returns the grids of a strategy on this machine.
pub(crate) fn grids(problem: &Problem, strategy: Strategy) -> Result<Vec<Grid>, PlanError> {
    let n_devices = problem.machine.devices.len();
    let n_blocks = problem.blocks.iter().filter(|block| block.seconds() > 0.0).count().max(1);
    let given = problem.begins.as_ref().map(|begins| begins.len() + 1);
    let wanted = given.or(problem.training.stages.map(|stages| stages as usize));
    if let Some(stages) = wanted {
        if stages > n_blocks {
            return Err(PlanError::TooManyWorking { stages, blocks: n_blocks });
        }
        if stages > n_devices {
            return Err(PlanError::TooFewDevices { stages, devices: n_devices });
        }
    }
    let is_uniform = problem.machine.is_uniform();
    // The number of stages leaves few shapes on few devices.
    let is_narrow = wanted.is_some() && n_devices <= FEW_DEVICES;
    let replicated_chunks = problem.training.limits.replicated_chunks || is_narrow;
    let is_given = given.is_some();
    let micro_batches = match problem.training.micro_batches {
        MicroBatches::Exactly(count) => Some(count as usize),
        _ => None,
    };
    let space =
        GridSpace { n_devices, n_blocks, wanted, is_given, is_uniform, replicated_chunks, micro_batches };
    let grids = match strategy.row().search {
        Search::Grids(grids) => grids(&space),
        Search::Rule(_) if space.is_given => Err("it makes its own cuts, and others are given".into()),
        Search::Rule(_) if !problem.pins.is_empty() => {
            Err("it makes its own cuts, and blocks are pinned".into())
        }
        Search::Rule(_) => Ok(vec![space.by_hand()]),
        Search::TwoCopies(_) | Search::Asynchronous => Ok(Vec::new()),
    };
    let grids = grids.map_err(|reason| PlanError::Schedule { strategy: strategy.name(), reason })?;
    with_pinned(problem, grids)
}

/// Keeps the grids in which every pinned block has a stage that it may be in.
///
/// # Errors
/// Why there is none.
fn with_pinned(problem: &Problem, grids: Vec<Grid>) -> Result<Vec<Grid>, PlanError> {
    if problem.pins.is_empty() {
        return Ok(grids);
    }
    let why = |grid: &Grid| unplaced(problem, &runs(*grid));
    let most = grids.iter().max_by_key(|grid| grid.n_stages()).copied();
    let kept: Vec<Grid> = grids.into_iter().filter(|grid| why(grid).is_none()).collect();
    match most.filter(|_| kept.is_empty()).and_then(|most| Some((why(&most)?, most.n_stages()))) {
        Some((reason, stages)) => Err(PlanError::Pinned { reason, stages }),
        None => Ok(kept),
    }
}

/// Returns the devices of each stage; chunks of a rank share theirs.
fn runs(grid: Grid) -> Vec<Run> {
    (0..grid.n_stages()).map(|stage| grid.devices(stage)).collect()
}

/// Returns why no cut puts the pinned blocks where they are to be, if that is so.
fn unpinnable(problem: &Problem, states: &States, grids: &[Grid]) -> Option<String> {
    let [first, ..] = problem.pins.as_slice() else { return None };
    let can_be = |grid: &Grid| {
        let runs = runs(*grid);
        let n_stages = runs.len();
        let runs = runs.into_iter();
        match &problem.begins {
            None => Pinned::new(problem, states, runs).has_chain(states, n_stages),
            Some(begins) => {
                let line = States::line(problem, (0..problem.blocks.len()).collect());
                let pinned = Pinned::new(problem, &line, runs);
                let ends: Vec<usize> = begins.iter().copied().chain([problem.blocks.len()]).collect();
                let starts = std::iter::once(0).chain(ends.iter().copied());
                starts.zip(&ends).enumerate().all(|(stage, (start, end))| pinned.allows(stage, start, *end))
            }
        }
    };
    if grids.iter().any(can_be) {
        return None;
    }
    let others = if problem.pins.len() > 1 { " and the others that are pinned" } else { "" };
    let cuts =
        if problem.begins.is_some() { "the cuts that are given do not bring" } else { "no cut brings" };
    Some(format!("{cuts} `{}`{others} to where they are to be", first.name))
}

/// A grid that may have the best plan: its lower bound in seconds for each micro-batch, and one replica's micro-batches.
type Open = (f64, usize, Grid);

/// Returns the grids of a strategy by rising lower bound; and why some were refused, if their micro-batches are the reason.
///
/// # Errors
/// When there is no grid on this machine.
fn open_grids(
    problem: &Problem,
    strategy: Strategy,
    bounds: &GridBounds,
) -> Result<(Vec<Open>, Option<PlanError>), PlanError> {
    let (mut open, mut refused): (Vec<Open>, Option<PlanError>) = (Vec::new(), None);
    let training = &problem.training;
    let is_known = |grid: &Grid| {
        training.only_groups && training.sharers(grid.replicas) == grid.replicas
            || training.only_replicas && grid.replicas == 1
    };
    for grid in grids(problem, strategy)?.into_iter().filter(|grid| !is_known(grid)) {
        match grid.micro_batches(problem) {
            Ok(each) => {
                let own_bound = bounds.by_work(grid, each) / (each * grid.replicas) as f64;
                open.push((own_bound, each, grid));
            }
            Err(reason) => {
                refused = refused.or(Some(PlanError::Schedule { strategy: strategy.name(), reason }));
            }
        }
    }
    open.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok((open, refused))
}

/// V-shaped grids are slow to search: near a plan of other cuts, keeps only its shape and that of the best pipeline so far; an
/// error if that leaves none.
fn without_other_vs(open: &mut Vec<Open>, cut_space: &CutSpace, strategy: Strategy) -> Option<PlanError> {
    let had_some = !open.is_empty();
    let near = [cut_space.like, cut_space.likely.get()];
    open.retain(|(_, _, grid)| !grid.schedule.is_in_v() || near.contains(&Some((grid.ranks, grid.replicas))));
    let reason = "on so many devices it is searched in the shape of the best pipeline, and none was found; in all shapes where it is asked for by name, or with more effort";
    let none = PlanError::Schedule { strategy: strategy.name(), reason: reason.into() };
    Some(none).filter(|_| had_some && open.is_empty())
}

/// Finds the best plan of a strategy that ends each step together, as the simulator times it.
///
/// Also returns the lower bound over all plans with the devices in this order, in seconds for each micro-batch.
pub(crate) fn synchronous(
    problem: &Problem,
    cut_space: &CutSpace,
    strategy: Strategy,
    goal: Goal,
) -> InOrder {
    let states = if strategy.is_rule() { cut_space.line(problem) } else { &cut_space.states };
    let is_complete = if strategy.is_rule() { cut_space.is_chain } else { cut_space.is_complete };
    let bounds = GridBounds::new(problem, cut_space, (states, is_complete), strategy);
    // `error`: why a solved grid has no plan; `refused`: why one was not solved.
    let (mut open, mut refused) =
        open_grids(problem, strategy, &bounds).map_err(|error| (error, f64::INFINITY))?;
    let mut error = None;
    // Untried grids have fewer stages or replicas, so the bound of the first grid holds for them too.
    let is_all = problem.machine.devices.len() <= FEW_DEVICES || strategy.is_rule();
    let untried = open.first().filter(|_| !is_all).map_or(f64::INFINITY, |first| first.0);
    if !is_all && !problem.training.limits.replicated_chunks && cut_space.like.is_some() {
        refused = refused.or(without_other_vs(&mut open, cut_space, strategy));
    }
    // The best shape of the last question is likely to be good: try it first, so that it prunes others.
    if goal != Goal::Any {
        open.sort_by_key(|(_, _, grid)| cut_space.likely.get() != Some(grid.likeness()));
    }
    let mut best: Option<Solution> = None;
    let (mut bound, mut least) = (untried, untried);
    let (runs, ideal_runs) = cut_space.runs(&problem.machine);
    let solver = GridSolver {
        problem,
        states,
        is_complete,
        pipelines: &cut_space.pipelines,
        bounds: &bounds,
        strategy,
        goal,
        n_grids: open.len(),
        spent: Cell::new(0),
        memory_plans: if strategy.is_rule() { Rc::default() } else { Rc::clone(&cut_space.memory_plans) },
        lines: &cut_space.lines,
        runs,
        ideal_runs,
        is_uniform: problem.machine.is_uniform() && !problem.has_device_pins(),
        ideal: OnceCell::new(),
    };
    // Best time by ranks and replicas at the last number of chunks that improved; 0.0 once more chunks stop helping.
    let mut chunked: BTreeMap<(usize, usize, bool), f64> = BTreeMap::new();
    let shapes: Vec<Grid> = open.iter().map(|(_, _, grid)| *grid).collect();
    for (by_work, each_replica, grid) in open {
        let shape = (grid.ranks, grid.replicas, grid.replicas_together);
        let gains = grid.chunks == 1 || chunked.get(&shape).is_none_or(|seconds| *seconds > 0.0);
        let below = best.as_ref().map_or(goal.below(), |best| best.seconds_each().min(goal.below()));
        // The bound from traffic across cuts is asked for only if the work alone does not rule the grid out.
        let own_bound = if below > by_work && goal != Goal::Any {
            let n_micro_batches = (each_replica * grid.replicas) as f64;
            bounds.least_step(grid, each_replica, below * n_micro_batches) / n_micro_batches
        } else {
            by_work
        };
        if solver.is_spent(grid) && below > own_bound {
            let reason = "no plan that fits was found; not all numbers of chunks were tried".to_string();
            refused = Some(PlanError::Schedule { strategy: strategy.name(), reason });
            error = None;
            (bound, least) = (bound.min(own_bound), least.min(own_bound));
            continue;
        }
        if !gains || below <= own_bound {
            (bound, least) = (bound.min(own_bound), least.min(own_bound));
            continue;
        }
        match solver.solve(grid, each_replica, below) {
            Ok((solution, own)) => {
                bound = bound.min(solution.lower_bound_each());
                least = least.min(own / solution.micro_batches_of_objective());
                let seconds = solution.seconds_each();
                let before = chunked.get(&shape).copied().unwrap_or(f64::INFINITY);
                chunked.insert(shape, if seconds < before { seconds } else { 0.0 });
                if best.as_ref().is_none_or(|best| seconds < best.seconds_each()) {
                    best = Some(solution);
                }
                if goal == Goal::Any {
                    break;
                }
            }
            Err(none) => {
                let own = none.lower_bound / (each_replica * grid.replicas) as f64;
                (bound, least) = (bound.min(own), least.min(own));
                error = error.or(Some(none.error));
            }
        }
    }
    let Some(mut best) = best else {
        if let Some(reason) = unpinnable(problem, states, &shapes) {
            let stages = shapes.iter().map(|grid| grid.n_stages()).max().unwrap_or(0);
            return Err((PlanError::Pinned { reason, stages }, least));
        }
        return Err((error.or(refused).unwrap_or(PlanError::NothingFits), least));
    };
    cut_space.expect(&best);
    best.lower_bound = (bound * best.micro_batches_of_objective()).min(best.seconds());
    let least = least.min(best.seconds_each());
    Ok((best, least))
}
