//! Plans that end each step together: `p` stages in a row, each on `d` devices, under a schedule.
//!
//! A grid's stages are cut so that the slowest is as fast as can be, the exact optimum over ideals, and the step is then timed by
//! the order of operations that will run. Baselines bring their own cuts.

use schema::{Bytes, BytesPerSecond};
use simulator::{
    Cost,
    order::{OrderError, Schedule, Shape, make_for_costs},
};

use crate::{
    Problem,
    baselines::{deepspeed, even_layers, even_parameters, least_bound, torchgpipe},
    collective::Group,
    floor::Steps,
    pipeline::{Cut, Sharing, best_pipeline},
    polish::{Polished, polish, timed},
    solution::{Objective, Solution, SolutionStage},
    stage::{InFlight, Neighbours, Rules, Run, Scorer},
    states::States,
    step::StageTimes,
    strategy::{PlanError, Strategy, default_micro_batches, each, shortage, stages_of, states_of},
};

/// A grid that can be tried.
#[derive(Clone, Copy)]
struct Grid {
    schedule: Schedule,
    ranks: usize,
    chunks: usize,
    replicas: usize,
    replicas_together: bool,
}

/// Returns the grids of a strategy on this machine.
fn grids(problem: &Problem, strategy: Strategy) -> Vec<Grid> {
    let n_devices = problem.machine.devices.len();
    let n_blocks = problem.blocks.iter().filter(|block| block.seconds() > 0.0).count().max(1);
    let straight =
        |schedule, ranks, chunks| Grid { schedule, ranks, chunks, replicas: 1, replicas_together: true };
    let wanted = problem.training.stages.map(|stages| stages as usize);
    let ranks = wanted.unwrap_or(n_devices).min(n_devices).min(n_blocks);
    match strategy {
        Strategy::Layer => vec![straight(Schedule::LayerParallel, ranks, 1)],
        Strategy::GPipe => vec![straight(Schedule::GPipe, ranks, 1)],
        Strategy::ZeroBubble => vec![straight(Schedule::InterleavedZeroBubble, ranks, 1)],
        Strategy::Interleaved => {
            let ranks = ranks.min(n_blocks / 2).max(1);
            vec![straight(Schedule::Interleaved1F1B, ranks, 2)]
        }
        Strategy::DataParallel => vec![Grid {
            schedule: Schedule::OneForwardOneBackward,
            ranks: 1,
            chunks: 1,
            replicas: n_devices,
            replicas_together: true,
        }],
        Strategy::Hybrid => {
            let mut grids = Vec::new();
            for ranks in 1..=ranks {
                let replicas = n_devices / ranks;
                // Fewer ranks with the same replicas leave devices idle.
                let is_wasteful =
                    ranks < n_blocks && n_devices / (ranks + 1) == replicas && ranks < n_devices;
                if wanted.map_or(is_wasteful, |wanted| ranks != wanted) {
                    continue;
                }
                for replicas_together in [true, false] {
                    if replicas_together || (replicas > 1 && ranks > 1) {
                        let schedule = Schedule::OneForwardOneBackward;
                        grids.push(Grid { schedule, ranks, chunks: 1, replicas, replicas_together });
                    }
                }
            }
            grids
        }
        _ => vec![straight(Schedule::OneForwardOneBackward, ranks, 1)],
    }
}

/// Strategies that end each step together.
pub(crate) fn synchronous(problem: &Problem, strategy: Strategy) -> Result<Solution, PlanError> {
    let is_baseline = !strategy.is_candidate();
    let states = match is_baseline {
        true => States::line(problem, (0..problem.blocks.len()).collect()),
        false => states_of(problem),
    };
    let mut best: Option<Solution> = None;
    let mut bound = f64::INFINITY;
    let mut error = None;
    for grid in grids(problem, strategy) {
        match solve_grid(problem, &states, strategy, grid) {
            Ok(solution) => {
                bound = bound.min(solution.lower_bound / each(&solution));
                if best.as_ref().is_none_or(|best| solution.seconds_each() < best.seconds_each()) {
                    best = Some(solution);
                }
            }
            Err(why) => error = error.or(Some(why)),
        }
    }
    // Without a grid, more stages were asked for than there are blocks that take time.
    let too_many = || PlanError::TooManyStages {
        stages: problem.training.stages.map_or(1, |stages| stages as usize),
        blocks: problem.blocks.iter().filter(|block| block.seconds() > 0.0).count(),
    };
    let mut best = best.ok_or_else(|| error.unwrap_or_else(too_many))?;
    best.lower_bound = (bound * each(&best)).min(best.seconds());
    Ok(best)
}

/// Micro-batches that a stage holds under a schedule, `each` being those of one replica.
pub(crate) fn in_flight_of(
    schedule: Schedule,
    ranks: usize,
    chunks: usize,
    each: usize,
    replicas: usize,
) -> InFlight {
    match schedule {
        Schedule::GPipe | Schedule::LoopedBfs => InFlight::All((each * replicas) as u32),
        Schedule::LayerParallel => InFlight::UntilEnd(1),
        Schedule::OneForwardOneBackward => InFlight::UntilEnd((each * replicas) as u32),
        // A rank holds `(v-1)·p + 2(p-1-r) + 1` chunks at most; each of its chunks gets an equal part.
        Schedule::Interleaved1F1B | Schedule::Vpp => {
            InFlight::Depth(((chunks + 1) * ranks).div_ceil(chunks).min(each) as u32)
        }
        Schedule::InterleavedZeroBubble if chunks == 1 => InFlight::Split(ranks.min(each) as u32),
        _ => InFlight::Split((2 * ranks).min(each) as u32),
    }
}

fn solve_grid(
    problem: &Problem,
    states: &States,
    strategy: Strategy,
    grid: Grid,
) -> Result<Solution, PlanError> {
    let n_stages = grid.ranks * grid.chunks;
    // A step's micro-batches are shared by the replicas.
    let wanted = problem.training.micro_batches.unwrap_or(default_micro_batches(problem)) as usize;
    let each = wanted.div_ceil(grid.replicas).max(1);
    let shape = |each: usize| Shape {
        ranks: grid.ranks as u32,
        chunks: grid.chunks as u32,
        micro_batches: each as u32,
    };
    let reason =
        |error: OrderError| PlanError::Schedule { strategy: strategy.name(), reason: error.to_string() };
    let (each, order) = match make_for_costs(grid.schedule, shape(each), Cost::EQUAL) {
        // Some schedules take micro-batches in rounds: a few more, then.
        Err(OrderError::MicroBatches { smallest: Some(next), .. }) => {
            (next as usize, make_for_costs(grid.schedule, shape(next as usize), Cost::EQUAL).map_err(reason)?)
        }
        other => (each, other.map_err(reason)?),
    };
    let in_flight = in_flight_of(grid.schedule, grid.ranks, grid.chunks, each, grid.replicas);
    let rules = Rules { is_asynchronous: false, in_flight, neighbours: Neighbours::Paired };
    let mut chunked;
    let problem = match grid.chunks {
        1 => problem,
        // Chunks share their device: it stands for as many smaller ones.
        chunks => {
            chunked = problem.clone();
            chunked.machine.devices = (0..n_stages)
                .map(|stage| {
                    let mut device = problem.machine.devices[stage % grid.ranks].clone();
                    device.memory.0 /= chunks as u64;
                    device
                })
                .collect();
            &chunked
        }
    };
    let scorer = Scorer::new(problem, states, rules);
    let sharing = Sharing::Equal {
        stages: n_stages,
        replicas: grid.replicas,
        replicas_together: grid.replicas_together,
    };
    let given = match strategy {
        Strategy::EvenLayers => Some(even_layers(problem.blocks.len(), n_stages)),
        Strategy::EvenParameters => Some(even_parameters(problem, n_stages)),
        Strategy::TorchGPipe => Some(torchgpipe(problem, n_stages)),
        Strategy::DeepSpeed => Some(deepspeed(problem, n_stages)),
        _ => None,
    };
    let is_exact = states.is_complete(problem);
    let place = |index: usize| {
        let run = match grid.replicas_together {
            true => Run { first: index * grid.replicas, count: grid.replicas, stride: 1 },
            false => Run { first: index, count: grid.replicas, stride: n_stages },
        };
        (run, (n_stages - index) * grid.replicas)
    };
    let places: Vec<(Run, usize)> = (0..n_stages).map(place).collect();
    let natural: Vec<usize> = (0..problem.blocks.len()).collect();
    let is_given = given.is_some();
    let mut bottleneck = 0.0;
    let polished = match given {
        Some(borders) => timed(problem, rules, &order, &places, natural, &borders),
        None => {
            let cuts = best_pipeline(&scorer, sharing, f64::INFINITY).ok_or_else(|| shortage(problem))?.1;
            let found = stages_of(&scorer, &cuts);
            if is_exact {
                bottleneck = least_bottleneck(&scorer, sharing, &found, grid.chunks);
            }
            let line: Vec<usize> = found.iter().flat_map(|stage| stage.blocks.iter().copied()).collect();
            let mut borders = vec![0];
            found.iter().for_each(|stage| borders.push(borders[borders.len() - 1] + stage.blocks.len()));
            let mut seeds = vec![(line.clone(), borders)];
            let times: Vec<f64> = line.iter().map(|&block| problem.blocks[block].seconds()).collect();
            seeds.push((line, least_bound(&times, n_stages)));
            seeds.push((natural, torchgpipe(problem, n_stages)));
            polish(problem, rules, &order, &places, &seeds)
        }
    };
    let Polished { mut stages, time } = polished.ok_or_else(|| shortage(problem))?;
    if grid.chunks > 1 {
        stages.iter_mut().enumerate().for_each(|(index, stage)| stage.run.first = index % grid.ranks);
    }
    let floor = match is_given {
        // Cuts made by a rule stand for no others.
        true => step_floor(problem, states, grid, each, 0.0),
        false => step_floor(problem, states, grid, each, bottleneck),
    };
    Ok(Solution {
        strategy: strategy.name(),
        schedule: grid.schedule.name(),
        micro_batches: (each * grid.replicas) as u32,
        stages,
        offload: None,
        objective: Objective::Step(time.seconds),
        lower_bound: floor.min(time.seconds),
        bubble: Some(time.bubble),
    })
}

/// Seconds for each micro-batch that the slowest stage takes at the least, whatever the cuts.
///
/// The cuts found are the best by formula. Two things may beat the formula: copies to the host beside compute, and memory of a device
/// that its chunks share otherwise than evenly.
fn least_bottleneck(scorer: &Scorer, sharing: Sharing, stages: &[SolutionStage], chunks: usize) -> f64 {
    let found = stages.iter().map(|stage| stage.score.seconds).fold(0.0, f64::max);
    let problem = scorer.problem;
    if !problem.training.offload && chunks == 1 {
        return found;
    }
    let mut ideal = problem.clone();
    for device in &mut ideal.machine.devices {
        device.host_bandwidth = BytesPerSecond(f64::INFINITY);
        if chunks > 1 {
            device.memory = Bytes(u64::MAX / 4);
        }
    }
    let scorer = Scorer::new(&ideal, scorer.states, scorer.rules);
    best_pipeline(&scorer, sharing, f64::INFINITY).map_or(0.0, |best| best.0.min(found))
}

/// No step of this grid is shorter: its order of operations, and the slowest stage's port or devices, bound it.
fn step_floor(problem: &Problem, states: &States, grid: Grid, micro_batches: usize, bottleneck: f64) -> f64 {
    let devices = &problem.machine.devices;
    let fastest = devices.iter().map(|device| device.speed).fold(0.0, f64::max);
    let known = match states.is_complete(problem) && grid.chunks == 1 {
        true => states.work_and_forward(problem, fastest),
        false => Vec::new(),
    };
    let total = problem.seconds() / fastest;
    let steps = Steps { schedule: grid.schedule, ranks: grid.ranks, micro_batches, states: &known, total };
    // The bottleneck of the grid counts all replicas' micro-batches, of every chunk of a rank.
    let of_slowest = micro_batches as f64 * bottleneck * grid.replicas as f64;
    // All devices together do no more than they can, however unlike they are.
    let all = (micro_batches * grid.replicas) as f64 * problem.seconds() / problem.machine.total_speed();
    // Chunks of one device stand for as many smaller ones: their speeds are counted once each.
    let shared = if grid.chunks == 1 { all } else { all * grid.chunks as f64 };
    steps.floor().max(of_slowest).max(shared).max(total)
}

/// Buckets of a stage's gradients, PyTorch's 25 MiB each, and the seconds of one.
fn buckets(scorer: &Scorer, cut: &Cut) -> (usize, f64) {
    let bytes = scorer.synchronised(cut.start, cut.end);
    if cut.run.count == 1 || bytes == 0.0 {
        // Tied parameters alone.
        let seconds = scorer.all_reduce(cut.start, cut.end, cut.run);
        return (usize::from(seconds > 0.0), seconds);
    }
    let n_buckets = ((bytes / f64::from(25 << 20)).ceil()).clamp(1.0, 4096.0);
    let devices: Vec<usize> = cut.run.devices().collect();
    let group = Group::of(&scorer.problem.machine, &devices);
    (n_buckets as usize, group.map_or(0.0, |group| group.all_reduce(bytes / n_buckets)))
}

/// Times of one micro-batch on one replica of a stage.
pub(crate) fn stage_times(scorer: &Scorer, cut: &Cut, stage: &SolutionStage) -> StageTimes {
    let problem = scorer.problem;
    let machine = &problem.machine;
    let speed = cut.run.devices().map(|device| machine.devices[device].speed).fold(f64::INFINITY, f64::min);
    let sum = |field: &dyn Fn(&crate::Block) -> f64| {
        stage.blocks.iter().map(|&block| field(&problem.blocks[block])).sum::<f64>() / speed
    };
    let again = stage.score.again * cut.run.count as f64;
    // A grid's stage is as late as its latest replica.
    let step = cut.run.step();
    let slowest = |levels: &mut dyn Iterator<Item = crate::MachineLevel>| {
        levels.min_by(|a, b| a.bandwidth.0.total_cmp(&b.bandwidth.0))
    };
    let n_devices = machine.devices.len();
    let after = cut.run.devices().filter(|device| device + step < n_devices);
    let after = slowest(&mut after.filter_map(|device| machine.level(device, device + step)));
    let before = cut.run.devices().filter_map(|device| machine.level(device.checked_sub(step)?, device));
    let before = slowest(&mut before.into_iter());
    let send = |bytes: f64, level: Option<crate::MachineLevel>| {
        level.map_or((0.0, 0.0), |level| (bytes / level.bandwidth.0, level.latency.0))
    };
    StageTimes {
        forward: sum(&|block| block.forward.0),
        input_gradient: sum(&|block| block.input_gradient.0) + again,
        weight_gradient: sum(&|block| block.weight_gradient.0),
        send: send(scorer.states.crossing[cut.end], after),
        send_back: send(scorer.states.crossing_back[cut.start], before),
        buckets: buckets(scorer, cut),
    }
}
