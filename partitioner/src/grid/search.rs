//! The best plan of the grids of a strategy.
//!
//! Devices may be left over: where links are slow, fewer stages or replicas are faster. Grids are solved in the order of what bounds
//! them from below; one whose bound is above the best plan found cannot be better and is left out.

use std::{cell::Cell, collections::BTreeMap};

use simulator::order::Schedule;

use crate::{
    Problem,
    bound::grid::Floors,
    cut_space::Ways,
    error::PlanError,
    goal::{Goal, InOrder},
    grid::{
        shape::{FEW_DEVICES, Grid, counts},
        solver::GridSolver,
    },
    solution::{Solution, each},
    strategy::Strategy,
};

/// The most chunks of a device.
const MOST_CHUNKS: usize = 8;

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
    let grid = |schedule, ranks, chunks, replicas| Grid {
        schedule,
        ranks,
        chunks,
        replicas,
        replicas_together: true,
    };
    let straight = |schedule, chunks: usize| {
        let most = n_devices.min(n_blocks / chunks);
        let ranks = wanted.map_or_else(|| counts(2, most), |wanted| vec![wanted]);
        ranks
            .into_iter()
            .filter(move |ranks| (1..=n_blocks / chunks).contains(ranks))
            .map(move |ranks| grid(schedule, ranks, chunks, 1))
    };
    let refused =
        |reason: &str| PlanError::Schedule { strategy: strategy.name(), reason: reason.to_string() };
    if given.is_some() && (strategy.is_rule() || strategy == Strategy::Interleaved) {
        return Err(refused(if strategy.is_rule() {
            "it makes its own cuts, and others are given"
        } else {
            "it makes several parts of each stage, and all cuts are given"
        }));
    }
    let is_one_stage = wanted.is_none_or(|stages| stages == 1);
    Ok(match strategy {
        // Nothing runs side by side: the fewer stages the better.
        Strategy::Layer => straight(Schedule::LayerParallel, 1).rev().collect(),
        Strategy::GPipe => straight(Schedule::GPipe, 1).collect(),
        Strategy::ZeroBubble => straight(Schedule::InterleavedZeroBubble, 1).collect(),
        Strategy::OneForwardOneBackward => straight(Schedule::OneForwardOneBackward, 1).collect(),
        Strategy::Interleaved => {
            let grids = (2..=MOST_CHUNKS).flat_map(|chunks| straight(Schedule::Interleaved1F1B, chunks));
            let grids: Vec<Grid> = grids.filter(|grid| grid.ranks > 1).collect();
            if grids.is_empty() {
                return Err(refused("two chunks on each of two devices need four blocks"));
            }
            grids
        }
        Strategy::OneDevice | Strategy::DataParallel if !is_one_stage => {
            return Err(refused("the whole model is one stage; more were asked for"));
        }
        Strategy::OneDevice => vec![grid(Schedule::OneForwardOneBackward, 1, 1, 1)],
        Strategy::DataParallel => counts(2, n_devices)
            .into_iter()
            .map(|replicas| grid(Schedule::OneForwardOneBackward, 1, 1, replicas))
            .collect(),
        Strategy::Hybrid => {
            let grids = mixed(problem, n_blocks, wanted);
            if grids.is_empty() {
                return Err(refused("two stages of two replicas need two blocks and four devices"));
            }
            grids
        }
        // Cuts by a rule take all devices, as people do.
        _ => vec![grid(Schedule::OneForwardOneBackward, wanted.unwrap_or(n_devices.min(n_blocks)), 1, 1)],
    })
}

/// Several stages, each of several replicas.
fn mixed(problem: &Problem, n_blocks: usize, wanted: Option<usize>) -> Vec<Grid> {
    let n_devices = problem.machine.devices.len();
    let most = (n_devices / 2).min(n_blocks);
    let is_uniform = problem.machine.is_uniform();
    let mut grids = Vec::new();
    for ranks in (2..=most).filter(|&ranks| wanted.is_none_or(|wanted| ranks == wanted)) {
        let all = n_devices / ranks;
        // Fewer ranks with the same replicas leave devices idle.
        let is_wasteful = ranks < most && n_devices / (ranks + 1) == all && wanted.is_none();
        let replicas = match n_devices <= FEW_DEVICES {
            true => (2..=all).rev().collect(),
            false if is_wasteful => Vec::new(),
            false => vec![all],
        };
        for replicas in replicas {
            for replicas_together in [true, false] {
                // Where all devices are alike, one way is as good as the other.
                if replicas_together || !is_uniform {
                    let schedule = Schedule::OneForwardOneBackward;
                    grids.push(Grid { schedule, ranks, chunks: 1, replicas, replicas_together });
                }
            }
        }
    }
    grids
}

/// Finds the best plan of a strategy that ends each step together, as the simulator times it.
///
/// Also returns the seconds for each micro-batch that no plan beats with the devices in this order.
pub(crate) fn synchronous(problem: &Problem, ways: &Ways, strategy: Strategy, goal: Goal) -> InOrder {
    let states = if strategy.is_rule() { ways.line(problem) } else { &ways.states };
    let is_complete = if strategy.is_rule() { ways.is_chain } else { ways.is_complete };
    let floors = Floors::new(problem, ways, (states, is_complete), strategy);
    // Why what was solved has no plan, and why others were not.
    let (mut error, mut refused) = (None, None);
    let mut open = Vec::new();
    let is_known = |grid: &Grid| {
        problem.training.only_groups && problem.training.sharers(grid.replicas) == grid.replicas
    };
    let grids = grids(problem, strategy).map_err(|error| (error, f64::INFINITY))?;
    for grid in grids.into_iter().filter(|grid| !is_known(grid)) {
        match grid.micro_batches(problem, strategy) {
            Ok(each) => {
                let floor = floors.by_work(grid, each) / (each * grid.replicas) as f64;
                open.push((floor, each, grid));
            }
            Err(why) => refused = refused.or(Some(why)),
        }
    }
    open.sort_by(|a, b| a.0.total_cmp(&b.0));
    // What was not tried has fewer stages or replicas than what was: it is bounded by the same floors.
    let is_all = problem.machine.devices.len() <= FEW_DEVICES || strategy.is_rule();
    let untried = open.first().filter(|_| !is_all).map_or(f64::INFINITY, |first| first.0);
    let mut best: Option<Solution> = None;
    let (mut bound, mut least) = (untried, untried);
    let solver = GridSolver {
        problem,
        states,
        is_complete,
        pipelines: &ways.pipelines,
        floors: &floors,
        strategy,
        goal,
        n_grids: open.len(),
        spent: Cell::new(0),
    };
    // Seconds with as many chunks as gained last, by ranks; nothing once more of them do not gain.
    let mut chunked: BTreeMap<usize, f64> = BTreeMap::new();
    for (by_work, each_replica, grid) in open {
        let gains = grid.chunks == 1 || chunked.get(&grid.ranks).is_none_or(|seconds| *seconds > 0.0);
        let below = best.as_ref().map_or(goal.below(), |best| best.seconds_each().min(goal.below()));
        // What must cross cuts is looked for where the work alone does not decide.
        let floor = match below > by_work && goal != Goal::Any {
            true => {
                let n_micro_batches = (each_replica * grid.replicas) as f64;
                floors.floor(grid, each_replica, below * n_micro_batches) / n_micro_batches
            }
            false => by_work,
        };
        if solver.is_spent(grid) && below > floor {
            let reason = "no plan that fits was found; not all numbers of chunks were tried".to_string();
            refused = Some(PlanError::Schedule { strategy: strategy.name(), reason });
            error = None;
            (bound, least) = (bound.min(floor), least.min(floor));
            continue;
        }
        if !gains || below <= floor {
            (bound, least) = (bound.min(floor), least.min(floor));
            continue;
        }
        match solver.solve(grid, each_replica, below) {
            Ok((solution, own)) => {
                bound = bound.min(solution.lower_bound / each(&solution));
                least = least.min(own / each(&solution));
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
    best.lower_bound = (bound * each(&best)).min(best.seconds());
    let least = least.min(best.seconds_each());
    Ok((best, least))
}
