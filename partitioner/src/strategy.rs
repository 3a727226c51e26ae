//! Strategies by name, and the way from a problem to the best plan of each.
//!
//! Synchronous strategies are grids: `p` stages, each on `d` devices, timed by the order that will run. Asynchronous
//! PipeDream gives stages different numbers of devices and counts the steady state. New strategies (OptCNN's and
//! FlexFlow's searches, tensor parallelism, GEMS) are one more name here and one more file that returns a [`Solution`].

use simulator::{
    Cost,
    order::{Schedule, Shape, make_for_costs},
};

use crate::{
    Problem, ProblemError,
    baselines::{deepspeed, even_layers, even_parameters, torchgpipe},
    chain::{best_chain, can_walk},
    local_search::improve,
    pipeline::{Cut, Sharing, best_pipeline},
    solution::{Objective, Solution, SolutionStage},
    stage::{InFlight, Rules, Run, Scorer},
    states::States,
    step::{StageTimes, step_time},
};

/// A way to spread a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Strategy {
    /// Stages one after the other, no pipelining.
    Layer,
    /// Every device holds the whole model.
    DataParallel,
    /// All forward passes, then all backward passes.
    GPipe,
    /// Asynchronous 1F1B, stages replicated as each needs.
    PipeDream,
    /// 1F1B with a flush at the end of the step.
    OneForwardOneBackward,
    /// 1F1B over two chunks a device.
    Interleaved,
    /// 1F1B with weight gradients in the bubbles.
    ZeroBubble,
    /// Pipelines side by side: stages × replicas.
    Hybrid,
    /// The same number of blocks to each stage.
    EvenLayers,
    /// The same parameters to each stage, first fit.
    EvenParameters,
    /// torchgpipe's balance by time.
    TorchGPipe,
    /// DeepSpeed's balance by parameters.
    DeepSpeed,
}

/// All strategies, in the order they are listed to users.
pub const STRATEGIES: [Strategy; 12] = [
    Strategy::Layer,
    Strategy::DataParallel,
    Strategy::GPipe,
    Strategy::PipeDream,
    Strategy::OneForwardOneBackward,
    Strategy::Interleaved,
    Strategy::ZeroBubble,
    Strategy::Hybrid,
    Strategy::EvenLayers,
    Strategy::EvenParameters,
    Strategy::TorchGPipe,
    Strategy::DeepSpeed,
];

impl Strategy {
    /// Returns the name as `--strategy` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Layer => "layer",
            Self::DataParallel => "data-parallel",
            Self::GPipe => "gpipe",
            Self::PipeDream => "pipedream",
            Self::OneForwardOneBackward => "1f1b",
            Self::Interleaved => "interleaved",
            Self::ZeroBubble => "zero-bubble",
            Self::Hybrid => "hybrid",
            Self::EvenLayers => "even-layers",
            Self::EvenParameters => "even-parameters",
            Self::TorchGPipe => "torchgpipe",
            Self::DeepSpeed => "deepspeed",
        }
    }

    /// Returns the strategy with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        let name = match name {
            "pipedream-flush" => "1f1b",
            "model-parallel" => "layer",
            "dp" => "data-parallel",
            "zb" | "zb-h1" => "zero-bubble",
            other => other,
        };
        STRATEGIES.into_iter().find(|strategy| strategy.name() == name)
    }

    /// Tells whether `auto` may choose it: baselines are there to compare with, and asynchronous training gives
    /// other weights than the model trained on one device.
    pub fn is_candidate(self) -> bool {
        !matches!(
            self,
            Self::PipeDream | Self::EvenLayers | Self::EvenParameters | Self::TorchGPipe | Self::DeepSpeed
        )
    }
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// The question makes no sense.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// More stages than can be cut.
    #[error("{stages} stages were asked for, the model has {blocks} blocks")]
    TooManyStages {
        /// Stages.
        stages: usize,
        /// Blocks.
        blocks: usize,
    },
    /// No plan fits; the stage that is shortest of memory in the plan that comes nearest.
    #[error(
        "no plan fits: the stage with block `{block}` needs {needed} bytes, device `{device}` has {limit}"
    )]
    Memory {
        /// The largest block of the stage.
        block: String,
        /// Bytes at the least.
        needed: u64,
        /// The device.
        device: String,
        /// What it has.
        limit: u64,
    },
    /// A schedule that does not go with these micro-batches.
    #[error("{strategy}: {reason}")]
    Schedule {
        /// Name of the strategy.
        strategy: &'static str,
        /// What is wrong.
        reason: String,
    },
}

/// The most ideals that are planned over; wider graphs are put in line.
const IDEALS: usize = 3000;

/// Finds the best plan of one strategy.
///
/// # Errors
/// When the problem makes no sense or nothing fits.
pub fn plan_with(problem: &Problem, strategy: Strategy) -> Result<Solution, PlanError> {
    problem.validate()?;
    solve(problem, strategy).map_err(|error| match error {
        PlanError::Memory { .. } => nearest(problem, error, |roomier| solve(roomier, strategy).ok()),
        other => other,
    })
}

fn solve(problem: &Problem, strategy: Strategy) -> Result<Solution, PlanError> {
    let blocks = problem.blocks.len();
    if let Some(stages) =
        problem.training.stages.map(|stages| stages as usize).filter(|&stages| stages > blocks)
    {
        return Err(PlanError::TooManyStages { stages, blocks });
    }
    match strategy {
        Strategy::PipeDream => pipedream(problem),
        _ => synchronous(problem, strategy),
    }
}

/// Finds how much more memory would do: the fullest stage of the first plan that fits when every device has more.
fn nearest(problem: &Problem, error: PlanError, make: impl Fn(&Problem) -> Option<Solution>) -> PlanError {
    let with = |factor: f64| {
        let mut roomier = problem.clone();
        for device in &mut roomier.machine.devices {
            device.memory.0 = (device.memory.0 as f64 * factor) as u64;
        }
        make(&roomier)
    };
    let (mut low, mut high) = (1.0, 2.0);
    let mut found = with(high);
    while found.is_none() && high < 1e12 {
        (low, high) = (high, high * 4.0);
        found = with(high);
    }
    let Some(mut plan) = found else { return error };
    for _ in 0..8 {
        let middle = f64::sqrt(low * high);
        match with(middle) {
            Some(tighter) => (plan, high) = (tighter, middle),
            None => low = middle,
        }
    }
    let devices = &problem.machine.devices;
    let share = |stage: &SolutionStage| stage.score.memory / devices[stage.run.first].memory.0.max(1) as f64;
    let Some(fullest) = plan.stages.iter().max_by(|a, b| share(a).total_cmp(&share(b))) else { return error };
    let weight = |block: usize| {
        let block = &problem.blocks[block];
        block.parameters.0 as f64 * 4.0 + block.activations.0 as f64
    };
    let largest = fullest.blocks.iter().copied().max_by(|&a, &b| weight(a).total_cmp(&weight(b)));
    PlanError::Memory {
        block: largest.map_or_else(String::new, |block| problem.blocks[block].path.clone()),
        needed: fullest.score.memory as u64,
        device: devices[fullest.run.first].name.clone(),
        limit: devices[fullest.run.first].memory.0,
    }
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
    let mut found = Vec::new();
    let mut failed = Vec::new();
    for strategy in STRATEGIES.into_iter().filter(|strategy| strategy.is_candidate()) {
        match solve(problem, strategy) {
            Ok(solution) => found.push(solution),
            Err(error) => failed.push((strategy, error)),
        }
    }
    found.sort_by(|a, b| a.seconds_each().total_cmp(&b.seconds_each()));
    if found.is_empty() {
        let error = failed.pop().expect("there are candidates").1;
        // Sharing the model out needs least: of each kind, the plan that fits first.
        let make = |roomier: &Problem| {
            let kinds = [Strategy::OneForwardOneBackward, Strategy::Hybrid, Strategy::Layer];
            kinds.into_iter().find_map(|strategy| solve(roomier, strategy).ok())
        };
        return Err(nearest(problem, error, make));
    }
    // What bounds every candidate's family bounds the best of all.
    let bound = found.iter().map(|plan| plan.lower_bound / each(plan)).fold(f64::INFINITY, f64::min);
    let mut best = found.remove(0);
    best.lower_bound = (bound * each(&best)).min(best.seconds());
    Ok((best, found, failed))
}

/// Micro-batches that an objective stands for.
fn each(plan: &Solution) -> f64 {
    match plan.objective {
        Objective::Period(_) => 1.0,
        Objective::Step(_) => f64::from(plan.micro_batches),
    }
}

/// Returns the states to plan over: all ideals where there are few, the problem's own order otherwise.
fn states_of(problem: &Problem) -> States {
    let line = States::line(problem, (0..problem.blocks.len()).collect());
    if line.is_complete(problem) {
        return line;
    }
    States::ideals(problem, IDEALS).unwrap_or(line)
}

/// Asynchronous PipeDream: the slowest stage is as fast as can be.
fn pipedream(problem: &Problem) -> Result<Solution, PlanError> {
    let micro_batches = problem.training.micro_batches.unwrap_or(default_micro_batches(problem));
    let rules = Rules { is_asynchronous: true, in_flight: InFlight::UntilEnd(u32::MAX) };
    let n_devices = problem.machine.devices.len();
    let line = States::line(problem, (0..problem.blocks.len()).collect());
    let is_chain = line.is_complete(problem);
    // Long chains: walk, and keep the answer if it fits into memory.
    let is_long = is_chain && (problem.blocks.len() as f64) * (n_devices as f64).powi(2) > 2e7;
    let states = if is_chain { line } else { States::ideals(problem, IDEALS).unwrap_or(line) };
    let scorer = Scorer::new(problem, &states, rules);
    let walked = if is_long && can_walk(&scorer) { best_chain(&scorer) } else { None };
    let fits =
        |cuts: &[Cut]| cuts.iter().all(|cut| scorer.score(cut.start, cut.end, cut.run, cut.behind).is_some());
    let found = match walked {
        Some((seconds, cuts)) if fits(&cuts) => Some((seconds, cuts)),
        _ => best_pipeline(&scorer, Sharing::Free, f64::INFINITY),
    };
    let Some((_, cuts)) = found else { return Err(shortage(problem)) };
    let mut stages = stages_of(&scorer, &cuts);
    let is_exact = states.is_complete(problem);
    if !is_exact {
        stages = improve(problem, rules, stages);
    }
    let seconds = stages.iter().map(|stage| stage.score.seconds).fold(0.0, f64::max);
    let floor = problem.seconds() / problem.machine.total_speed();
    Ok(Solution {
        strategy: Strategy::PipeDream.name(),
        schedule: Schedule::PipeDream.name(),
        micro_batches,
        stages,
        objective: Objective::Period(seconds),
        lower_bound: if is_exact { seconds } else { floor.min(seconds) },
        bubble: None,
    })
}

/// Enough micro-batches that the ends of a step matter little.
fn default_micro_batches(problem: &Problem) -> u32 {
    (4 * problem.machine.devices.len() as u32).clamp(4, 4096)
}

/// Scores cuts.
fn stages_of(scorer: &Scorer, cuts: &[Cut]) -> Vec<SolutionStage> {
    let stage = |cut: &Cut| {
        let score = scorer.score(cut.start, cut.end, cut.run, cut.behind)?;
        Some(SolutionStage { blocks: scorer.states.blocks(cut.start, cut.end), run: cut.run, score })
    };
    cuts.iter().filter_map(stage).collect()
}

/// Says that something does not fit; [`nearest`] finds out what.
fn shortage(problem: &Problem) -> PlanError {
    PlanError::Memory {
        block: problem.blocks[0].path.clone(),
        needed: problem.parameters() as u64,
        device: problem.machine.devices[0].name.clone(),
        limit: problem.machine.devices[0].memory.0,
    }
}

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
fn synchronous(problem: &Problem, strategy: Strategy) -> Result<Solution, PlanError> {
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
    let mut best = best.ok_or_else(|| error.expect("no grid without an answer"))?;
    best.lower_bound = (bound * each(&best)).min(best.seconds());
    Ok(best)
}

/// Micro-batches that a stage holds under a schedule, `each` being those of one replica.
fn in_flight_of(schedule: Schedule, ranks: usize, chunks: usize, each: usize, replicas: usize) -> InFlight {
    match schedule {
        Schedule::GPipe | Schedule::LoopedBfs => InFlight::All((each * replicas) as u32),
        Schedule::LayerParallel => InFlight::UntilEnd(1),
        Schedule::OneForwardOneBackward => InFlight::UntilEnd((each * replicas) as u32),
        // A rank holds `(v-1)·p + 2(p-1-r) + 1` chunks at most; each of its chunks gets an equal part.
        Schedule::Interleaved1F1B | Schedule::Vpp => {
            InFlight::Depth(((chunks + 1) * ranks).div_ceil(chunks).min(each) as u32)
        }
        Schedule::InterleavedZeroBubble if chunks == 1 => InFlight::Depth(ranks.min(each) as u32),
        _ => InFlight::Depth((2 * ranks).min(each) as u32),
    }
}

fn solve_grid(
    problem: &Problem,
    states: &States,
    strategy: Strategy,
    grid: Grid,
) -> Result<Solution, PlanError> {
    let n_stages = grid.ranks * grid.chunks;
    // A step's micro-batches are shared by the replicas; interleaving takes them in rounds of the ranks.
    let wanted = problem.training.micro_batches.unwrap_or(default_micro_batches(problem)) as usize;
    let each = wanted.div_ceil(grid.replicas).max(1);
    let each = if grid.chunks > 1 { each.next_multiple_of(grid.ranks) } else { each };
    let shape = Shape { ranks: grid.ranks as u32, chunks: grid.chunks as u32, micro_batches: each as u32 };
    let order = make_for_costs(grid.schedule, shape, Cost::EQUAL)
        .map_err(|error| PlanError::Schedule { strategy: strategy.name(), reason: error.to_string() })?;
    let in_flight = in_flight_of(grid.schedule, grid.ranks, grid.chunks, each, grid.replicas);
    let rules = Rules { is_asynchronous: false, in_flight };
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
    let is_exact = states.is_complete(problem) && given.is_none();
    let cuts = match given {
        Some(positions) => {
            let cut = |(index, pair): (usize, &[usize])| Cut {
                start: pair[0],
                end: pair[1],
                run: Run { first: index, count: 1, stride: 1 },
                behind: positions.len() - 1 - index,
            };
            positions.windows(2).enumerate().map(cut).collect()
        }
        None => best_pipeline(&scorer, sharing, f64::INFINITY).ok_or_else(|| shortage(problem))?.1,
    };
    let mut stages = stages_of(&scorer, &cuts);
    if stages.len() < cuts.len() {
        return Err(shortage(problem));
    }
    let bottleneck = stages.iter().map(|stage| stage.score.seconds).fold(0.0, f64::max);
    let times: Vec<StageTimes> =
        cuts.iter().zip(&stages).map(|(cut, stage)| stage_times(&scorer, cut, stage)).collect();
    let time = step_time(&order, &times, problem.machine.overlaps).ok_or_else(|| PlanError::Schedule {
        strategy: strategy.name(),
        reason: "the order deadlocks".into(),
    })?;
    if grid.chunks > 1 {
        stages.iter_mut().enumerate().for_each(|(index, stage)| stage.run.first = index % grid.ranks);
    }
    let floor = step_floor(problem, grid, each, if is_exact { bottleneck } else { 0.0 });
    Ok(Solution {
        strategy: strategy.name(),
        schedule: grid.schedule.name(),
        micro_batches: (each * grid.replicas) as u32,
        stages,
        objective: Objective::Step(time.seconds),
        lower_bound: floor.min(time.seconds),
        bubble: Some(time.bubble),
    })
}

/// No step of this grid is shorter.
///
/// The slowest stage works on every micro-batch. Where backward passes are whole, stage `s` also waits for one forward pass of all
/// stages before it and is followed by their backward passes: `X ≥ m·T_s + Σ_{t<s} T_t`, least when all are equal to X:
/// `X = ΣT / (1 - (1 - 1/m)^p)`.
fn step_floor(problem: &Problem, grid: Grid, micro_batches: usize, bottleneck: f64) -> f64 {
    let devices = &problem.machine.devices;
    let fastest = devices.iter().map(|device| device.speed).fold(0.0, f64::max);
    let one = problem.seconds() / fastest;
    let m = micro_batches as f64;
    let shared = match grid.schedule {
        Schedule::LayerParallel => m * one,
        Schedule::GPipe | Schedule::OneForwardOneBackward => {
            one / (1.0 - (1.0 - 1.0 / m).powi(grid.ranks as i32))
        }
        _ => m * one / grid.ranks as f64,
    };
    // The bottleneck of the grid counts all replicas' micro-batches, of every chunk of a rank.
    let of_slowest = m * bottleneck * grid.replicas as f64;
    shared.max(of_slowest).max(one)
}

/// Times of one micro-batch on one replica of a stage.
fn stage_times(scorer: &Scorer, cut: &Cut, stage: &SolutionStage) -> StageTimes {
    let problem = scorer.problem;
    let machine = &problem.machine;
    let speed = cut.run.devices().map(|device| machine.devices[device].speed).fold(f64::INFINITY, f64::min);
    let sum = |field: &dyn Fn(&crate::Block) -> f64| {
        stage.blocks.iter().map(|&block| field(&problem.blocks[block])).sum::<f64>() / speed
    };
    let again = stage.score.again * cut.run.count as f64;
    let link = |one: usize, other: usize| machine.level(one, other);
    let next = if cut.run.stride == 1 { cut.run.first + cut.run.count } else { cut.run.first + 1 };
    let last = if cut.run.stride == 1 { next - 1 } else { cut.run.first };
    let send = |bytes: f64, level: Option<crate::MachineLevel>| {
        level.map_or((0.0, 0.0), |level| (bytes / level.bandwidth.0, level.latency.0))
    };
    let is_last = cut.end + 1 == scorer.states.len();
    let after = if is_last || next >= machine.devices.len() { None } else { link(last, next) };
    let before = cut.run.first.checked_sub(1).and_then(|before| link(before, cut.run.first));
    StageTimes {
        forward: sum(&|block| block.forward.0),
        input_gradient: sum(&|block| block.input_gradient.0) + again,
        weight_gradient: sum(&|block| block.weight_gradient.0),
        send: send(scorer.states.crossing[cut.end], after),
        send_back: send(scorer.states.crossing_back[cut.start], before),
        all_reduce: if cut.run.count > 1 || !problem.ties.is_empty() {
            scorer.all_reduce(cut.start, cut.end, cut.run)
        } else {
            0.0
        },
    }
}

/// Blocks and devices of a stage, as a file gives them.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub(crate) blocks: Vec<usize>,
    pub(crate) devices: Vec<usize>,
}

/// Scores given stages under a schedule; stage `s` runs where stage `s - n_ranks` does.
pub(crate) fn score_placed(
    problem: &Problem,
    placed: &[Placed],
    n_ranks: usize,
    schedule: Schedule,
    micro_batches: u32,
) -> Result<Solution, PlanError> {
    problem.validate()?;
    // Put the devices in the order of the stages: runs are then side by side.
    let mut ordered = problem.clone();
    let chunks = placed.len() / n_ranks;
    ordered.machine.devices = placed
        .iter()
        .flat_map(|stage| stage.devices.iter())
        .map(|&device| {
            let mut device = problem.machine.devices[device].clone();
            device.memory.0 /= chunks as u64;
            device
        })
        .collect();
    let order: Vec<usize> = placed.iter().flat_map(|stage| stage.blocks.iter().copied()).collect();
    let states = States::line(&ordered, order);
    let is_asynchronous = schedule.is_asynchronous();
    let replicas = placed[0].devices.len();
    let is_grid = placed.iter().all(|stage| stage.devices.len() == replicas);
    if !is_asynchronous && !is_grid {
        let reason = "stages with different numbers of devices need an asynchronous schedule".to_string();
        return Err(PlanError::Schedule { strategy: schedule.name(), reason });
    }
    let each = (micro_batches as usize).div_ceil(replicas).max(1);
    let in_flight = match is_asynchronous {
        true => InFlight::UntilEnd(u32::MAX),
        false => in_flight_of(schedule, n_ranks, chunks, each, replicas),
    };
    let scorer = Scorer::new(&ordered, &states, Rules { is_asynchronous, in_flight });
    let n_devices = ordered.machine.devices.len();
    let (mut start, mut first) = (0, 0);
    let mut cuts = Vec::with_capacity(placed.len());
    for stage in placed {
        let end = start + stage.blocks.len();
        let run = Run { first, count: stage.devices.len(), stride: 1 };
        cuts.push(Cut { start, end, run, behind: n_devices - first });
        start = end;
        first += stage.devices.len();
    }
    let stages = stages_of(&scorer, &cuts);
    if let Some(cut) = cuts.iter().find(|cut| scorer.score(cut.start, cut.end, cut.run, cut.behind).is_none())
    {
        let blocks = states.blocks(cut.start, cut.end);
        let largest = blocks
            .iter()
            .max_by_key(|&&block| problem.blocks[block].parameters.0 + problem.blocks[block].activations.0);
        return Err(PlanError::Memory {
            block: largest.map_or_else(String::new, |&block| problem.blocks[block].path.clone()),
            needed: scorer.least_memory(cut.start, cut.end, cut.run, cut.behind) as u64,
            device: ordered.machine.devices[cut.run.first].name.clone(),
            limit: ordered.machine.devices[cut.run.first].memory.0,
        });
    }
    let floor = problem.seconds() / problem.machine.total_speed();
    let (objective, bubble) = match is_asynchronous {
        true => {
            let slowest = stages.iter().map(|stage| stage.score.seconds).fold(0.0, f64::max);
            (Objective::Period(slowest), None)
        }
        false => {
            let shape = Shape { ranks: n_ranks as u32, chunks: chunks as u32, micro_batches: each as u32 };
            let reason = |reason: String| PlanError::Schedule { strategy: schedule.name(), reason };
            let order =
                make_for_costs(schedule, shape, Cost::EQUAL).map_err(|error| reason(error.to_string()))?;
            let times: Vec<StageTimes> =
                cuts.iter().zip(&stages).map(|(cut, stage)| stage_times(&scorer, cut, stage)).collect();
            let time = step_time(&order, &times, problem.machine.overlaps)
                .ok_or_else(|| reason("the order deadlocks".into()))?;
            (Objective::Step(time.seconds), Some(time.bubble))
        }
    };
    let micro_batches = if is_asynchronous { micro_batches } else { (each * replicas) as u32 };
    let mut solution = Solution {
        strategy: "as given",
        schedule: schedule.name(),
        micro_batches,
        stages,
        objective,
        lower_bound: 0.0,
        bubble,
    };
    solution.lower_bound = (floor * self::each(&solution)).min(solution.seconds());
    Ok(solution)
}
