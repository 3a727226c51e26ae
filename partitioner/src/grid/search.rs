//! The best plan of the grids of a strategy.
//!
//! Devices may be left over: where links are slow, fewer stages or replicas are faster. Grids are solved in the order of what bounds
//! them from below; one whose bound is above the best plan found cannot be better and is left out.

use std::{
    cell::{Cell, OnceCell},
    collections::BTreeMap,
    rc::Rc,
};

use crate::{
    Problem,
    bound::grid::GridBounds,
    cut_space::CutSpace,
    error::PlanError,
    goal::{Goal, InOrder},
    grid::{
        question::GridSolver,
        shape::{FEW_DEVICES, Grid, GridSpace},
    },
    solution::Solution,
    stage::lines::Lines,
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
    let space = GridSpace { n_devices, n_blocks, wanted, is_given: given.is_some(), is_uniform };
    let grids = match strategy.row().search {
        Search::Grids(grids) => grids(&space),
        Search::Rule(_) if space.is_given => Err("it makes its own cuts, and others are given".into()),
        Search::Rule(_) => Ok(vec![space.by_hand()]),
        Search::TwoCopies(_) | Search::Asynchronous => Ok(Vec::new()),
    };
    grids.map_err(|reason| PlanError::Schedule { strategy: strategy.name(), reason })
}

/// Finds the best plan of a strategy that ends each step together, as the simulator times it.
///
/// Also returns the seconds for each micro-batch that no plan beats with the devices in this order.
pub(crate) fn synchronous(
    problem: &Problem,
    cut_space: &CutSpace,
    strategy: Strategy,
    goal: Goal,
) -> InOrder {
    let states = if strategy.is_rule() { cut_space.line(problem) } else { &cut_space.states };
    let is_complete = if strategy.is_rule() { cut_space.is_chain } else { cut_space.is_complete };
    let bounds = GridBounds::new(problem, cut_space, (states, is_complete), strategy);
    // Why solved grids have no plan, and why others were not solved.
    let (mut error, mut refused) = (None, None);
    let mut open = Vec::new();
    let is_known = |grid: &Grid| {
        problem.training.only_groups && problem.training.sharers(grid.replicas) == grid.replicas
    };
    let grids = grids(problem, strategy).map_err(|error| (error, f64::INFINITY))?;
    for grid in grids.into_iter().filter(|grid| !is_known(grid)) {
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
    // Grids that were not tried have fewer stages or replicas, so the same bounds hold for them.
    let is_all = problem.machine.devices.len() <= FEW_DEVICES || strategy.is_rule();
    let untried = open.first().filter(|_| !is_all).map_or(f64::INFINITY, |first| first.0);
    // What was the best shape of a like question is likely to be hard to beat.
    if goal != Goal::Any {
        open.sort_by_key(|(_, _, grid)| cut_space.likely.get() != Some(grid.likeness()));
    }
    let mut best: Option<Solution> = None;
    let (mut bound, mut least) = (untried, untried);
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
        lines: Lines::default(),
        runs: Rc::default(),
        ideal_runs: Rc::default(),
        is_uniform: problem.machine.is_uniform(),
        ideal: OnceCell::new(),
    };
    // Best time by ranks at the last number of chunks that improved; 0.0 once more chunks stop helping.
    let mut chunked: BTreeMap<usize, f64> = BTreeMap::new();
    for (by_work, each_replica, grid) in open {
        let gains = grid.chunks == 1 || chunked.get(&grid.ranks).is_none_or(|seconds| *seconds > 0.0);
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
                bound = bound.min(solution.lower_bound / solution.micro_batches_of_objective());
                least = least.min(own / solution.micro_batches_of_objective());
                let seconds = solution.seconds_each();
                let before = chunked.get(&grid.ranks).copied().unwrap_or(f64::INFINITY);
                chunked.insert(grid.ranks, if seconds < before { seconds } else { 0.0 });
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
        return Err((error.or(refused).unwrap_or(PlanError::NothingFits), least));
    };
    cut_space.expect(&best);
    best.lower_bound = (bound * best.micro_batches_of_objective()).min(best.seconds());
    let least = least.min(best.seconds_each());
    Ok((best, least))
}
