//! The times of one stage of a grid, as the order of operations needs them: passes, transfers, gradient sums.

use schema::{Execution, ShardingLevel};
use simulator::Cost;

use crate::{
    grid::{shape::Grid, step_time::StageTimes},
    problem::Problem,
    solution::SolutionStage,
    stage::{costs::StageCosts, run::Run},
};

/// Returns the sharding level of replicas; none for a single one.
pub(crate) fn shared_out(problem: &Problem, replicas: usize) -> Execution {
    let training = &problem.training;
    let sharding = Some(training.sharding).filter(|level| *level != ShardingLevel::None && replicas > 1);
    let group = training.sharding_group.filter(|_| sharding.is_some());
    let sharding_group = group.filter(|_| training.sharers(replicas) < replicas);
    Execution { sharding, sharding_group, ..Execution::default() }
}

/// Returns the number of buckets of a stage's gradients, and the seconds of one.
fn buckets(costs: &StageCosts, start: usize, end: usize) -> (usize, f64) {
    let bytes = costs.scorer.parameters(start, end);
    let place = &costs.place;
    if place.run.count == 1 || bytes == 0.0 {
        // Only tied parameters are summed.
        let seconds = costs.all_reduce(start, end);
        return (usize::from(seconds > 0.0), seconds);
    }
    let n_buckets = ((bytes / schema::BUCKET.0 as f64).ceil()).clamp(1.0, 4096.0);
    let each = bytes / n_buckets;
    // Replicas that shard scatter gradients and gather parameters.
    let shared = shared_out(costs.scorer.problem, place.run.count);
    let is_halved = shared.sharding.is_some() && shared.sharding_group.is_none();
    (n_buckets as usize, if is_halved { 2.0 * place.half(each) } else { place.all_reduce(each) })
}

/// Returns the seconds in which sharded replicas gather the parameters for a pass (ZeRO-3), and reduce-scatter one micro-batch's
/// gradients (ZeRO-2 and 3): each half of an all-reduce, which runs beside a pass and bounds it.
fn shared(costs: &StageCosts, start: usize, end: usize) -> (f64, f64) {
    let (scorer, run) = (costs.scorer, costs.place.run);
    let half = || {
        let count = scorer.problem.training.sharers(run.count);
        let place = scorer.place(Run { count, ..run });
        place.half(scorer.parameters(start, end))
    };
    match shared_out(scorer.problem, run.count).sharding {
        Some(ShardingLevel::Zero3) => (half(), half()),
        Some(ShardingLevel::Zero2) => (0.0, half()),
        _ => (0.0, 0.0),
    }
}

/// Times of one micro-batch on one replica of the stage between two states.
pub(crate) fn stage_times(costs: &StageCosts, start: usize, end: usize, stage: &SolutionStage) -> StageTimes {
    let StageCosts { scorer, place, .. } = costs;
    let problem = scorer.problem;
    let speed = place.speed;
    let sum = |field: &dyn Fn(&crate::Block) -> f64| {
        stage.blocks.iter().map(|&block| field(&problem.blocks[block])).sum::<f64>() / speed
    };
    let overhead = stage.score.overhead * place.run.count as f64;
    // A grid's stage is as late as its latest replica.
    let (before, after) = place.slowest;
    let send = |bytes: f64, level: Option<crate::MachineLevel>| {
        level.map_or((0.0, 0.0), |level| (bytes / level.bandwidth.0, level.latency.0))
    };
    let (gather, scatter) = shared(costs, start, end);
    let input_gradient = sum(&|block| block.input_gradient.0) + overhead;
    let weight_gradient = sum(&|block| block.weight_gradient.0);
    let accumulation = costs.accumulation(start, end);
    // Replicas that share out the update sum their shares alone.
    let is_shared = shared_out(problem, place.run.count).sharding.is_some();
    let sharers = if is_shared { problem.training.sharers(place.run.count) } else { 1 };
    let once: f64 = stage.blocks.iter().map(|&block| problem.blocks[block].once.0).sum();
    StageTimes {
        forward: sum(&|block| block.forward.0).max(gather),
        input_gradient: input_gradient.max(gather),
        weight_gradient: weight_gradient.max(scatter),
        accumulation: (weight_gradient + accumulation).max(scatter) - weight_gradient.max(scatter),
        host: problem.training.host_overhead.0,
        split: problem.training.split_overhead.0,
        send: send(scorer.states.crossing[end], after),
        send_back: send(scorer.states.crossing_back[start], before),
        buckets: buckets(costs, start, end),
        once: once / sharers as f64,
    }
}

/// Returns the costs that an order is made for, as in the simulator: the average stage, and the slowest hop between neighbours.
pub(crate) fn average_cost(problem: &Problem, grid: Grid) -> Cost {
    let machine = &problem.machine;
    let first = |rank: usize| grid.devices(rank).first;
    let hops = (1..grid.ranks).filter_map(|rank| machine.level(first(rank - 1), first(rank)));
    let power: f64 = (0..grid.ranks).map(|rank| machine.devices[first(rank)].speed).sum();
    let whole = |seconds: f64| (seconds * 1e9).round() as u64;
    // Averages over `ranks` devices at their average speed, each with as many stages.
    let average = |field: &dyn Fn(&crate::Block) -> f64| {
        let all: f64 = problem.blocks.iter().map(field).sum();
        whole(all / (power * grid.chunks as f64))
    };
    let bandwidth = machine.devices[first(0)].memory_bandwidth.0;
    let accumulation = problem.parameters() * problem.training.accumulated() / bandwidth;
    Cost {
        forward: average(&|block| block.forward.0),
        input_gradient: average(&|block| block.input_gradient.0),
        weight_gradient: average(&|block| block.weight_gradient.0)
            + whole(accumulation / grid.n_stages() as f64),
        hop: whole(hops.map(|level| level.latency.0).fold(0.0, f64::max)),
    }
}

/// Returns the seconds of a stage's passes with nothing beside them: a lower bound of the simulator's.
pub(crate) fn passes_alone(problem: &Problem, stage: &SolutionStage) -> StageTimes {
    let speeds = stage.run.devices().map(|device| problem.machine.devices[device].speed);
    let speed = speeds.fold(f64::INFINITY, f64::min);
    let sum = |blocks: &[usize], field: &dyn Fn(&crate::Block) -> f64| {
        blocks.iter().map(|&block| field(&problem.blocks[block])).sum::<f64>() / speed
    };
    let recomputed = stage.score.again(problem).map(|(_, again)| again.forward.0).sum::<f64>() / speed;
    let parameters = sum(&stage.blocks, &|block| block.parameters.0 as f64) * speed;
    StageTimes {
        forward: sum(&stage.blocks, &|block| block.forward.0),
        input_gradient: sum(&stage.blocks, &|block| block.input_gradient.0) + recomputed,
        weight_gradient: sum(&stage.blocks, &|block| block.weight_gradient.0),
        accumulation: parameters * problem.least_accumulation(),
        host: problem.training.host_overhead.0,
        split: problem.training.split_overhead.0,
        send: (0.0, 0.0),
        send_back: (0.0, 0.0),
        buckets: (0, 0.0),
        once: 0.0,
    }
}
