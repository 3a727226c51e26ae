//! Strategies by name, and the way from a problem to the best plan of each.
//!
//! Synchronous strategies are grids: `p` stages, each on `d` devices, timed by the order that will run. Asynchronous
//! PipeDream gives stages different numbers of devices and counts the steady state. New strategies (OptCNN's and
//! FlexFlow's searches, tensor parallelism, GEMS) are one more name here and one more file that returns a [`Solution`].

use crate::{
    Problem, ProblemError,
    grid::synchronous,
    pipedream::pipedream,
    pipeline::Cut,
    simulated::{peaks, settle},
    solution::{Objective, Solution, SolutionStage},
    stage::Scorer,
    states::States,
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

    /// Tells whether it cuts by a rule that people use by hand.
    pub fn is_rule(self) -> bool {
        matches!(self, Self::EvenLayers | Self::EvenParameters | Self::TorchGPipe | Self::DeepSpeed)
    }

    /// Tells whether `auto` may choose it: baselines are there to compare with, and asynchronous training gives
    /// other weights than the model trained on one device.
    pub fn is_candidate(self) -> bool {
        self != Self::PipeDream && !self.is_rule()
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
pub(crate) const IDEALS: usize = 3000;

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

/// Tells whether a strategy has a plan that fits, without looking for what is nearest to one.
pub fn fits(problem: &Problem, strategy: Strategy) -> bool {
    problem.validate().is_ok() && solve(problem, strategy).is_ok()
}

fn solve(problem: &Problem, strategy: Strategy) -> Result<Solution, PlanError> {
    let blocks = problem.blocks.len();
    if let Some(stages) =
        problem.training.stages.map(|stages| stages as usize).filter(|&stages| stages > blocks)
    {
        return Err(PlanError::TooManyStages { stages, blocks });
    }
    let attempt = |problem: &Problem| match strategy {
        Strategy::PipeDream => pipedream(problem),
        Strategy::OneForwardOneBackward => {
            let mut best = settle(problem, synchronous(problem, strategy)?);
            // Solvers go by formulas, the simulator has the last word: never worse than cuts by a rule.
            for rule in STRATEGIES.into_iter().filter(|rule| rule.is_rule()) {
                let Ok(other) = synchronous(problem, rule) else { continue };
                let other = settle(problem, other);
                if other.seconds() < best.seconds() * (1.0 - 1e-9) {
                    let lower_bound = best.lower_bound.min(other.seconds());
                    best = Solution { strategy: strategy.name(), lower_bound, ..other };
                }
            }
            Ok(best)
        }
        _ => synchronous(problem, strategy).map(|solution| settle(problem, solution)),
    };
    let mut found = attempt(problem)?;
    let bound = found.lower_bound;
    // Memory by formula is above the simulator's but for rare orders of arrival: leave room for those.
    let mut room = 1.0;
    for _ in 0..5 {
        let Some(share) = excess(problem, &found) else { return Ok(found) };
        room /= share.max(1.01);
        let mut tighter = problem.clone();
        for device in &mut tighter.machine.devices {
            device.memory.0 = (device.memory.0 as f64 * room) as u64;
        }
        found = attempt(&tighter)?;
        found.lower_bound = bound.min(found.seconds());
        found.stages.iter_mut().for_each(|stage| stage.score.limit /= room);
    }
    Err(shortage(problem))
}

/// How many times as much as it has the fullest device needs in the simulation, where that is more than once.
fn excess(problem: &Problem, solution: &Solution) -> Option<f64> {
    let is_full = |stage: &SolutionStage| stage.score.memory > 0.5 * stage.score.limit;
    if !solution.stages.iter().any(is_full) {
        return None;
    }
    let shares = peaks(problem, solution)?.into_iter().zip(&solution.stages);
    let most = shares.map(|(peak, stage)| peak / stage.score.limit).fold(0.0, f64::max);
    (most > 1.0).then_some(most)
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
    // Who asks for several stages does not want the whole model on every device.
    let wants_stages = problem.training.stages.is_some_and(|stages| stages > 1);
    let serves = |strategy: &Strategy| !(wants_stages && *strategy == Strategy::DataParallel);
    for strategy in STRATEGIES.into_iter().filter(|strategy| strategy.is_candidate() && serves(strategy)) {
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
pub(crate) fn each(plan: &Solution) -> f64 {
    match plan.objective {
        Objective::Period(_) => 1.0,
        Objective::Step(_) => f64::from(plan.micro_batches),
    }
}

/// Returns the states to plan over: all ideals where there are few, the problem's own order otherwise.
pub(crate) fn states_of(problem: &Problem) -> States {
    let line = States::line(problem, (0..problem.blocks.len()).collect());
    if line.is_complete(problem) {
        return line;
    }
    States::ideals(problem, IDEALS).unwrap_or(line)
}

/// Enough micro-batches that the ends of a step matter little.
pub(crate) fn default_micro_batches(problem: &Problem) -> u32 {
    (4 * problem.machine.devices.len() as u32).clamp(4, 4096)
}

/// Scores cuts.
pub(crate) fn stages_of(scorer: &Scorer, cuts: &[Cut]) -> Vec<SolutionStage> {
    let stage = |cut: &Cut| {
        let score = scorer.score(cut.start, cut.end, cut.run, cut.behind)?;
        Some(SolutionStage { blocks: scorer.states.blocks(cut.start, cut.end), run: cut.run, score })
    };
    cuts.iter().filter_map(stage).collect()
}

/// Says that something does not fit; [`nearest`] finds out what.
pub(crate) fn shortage(problem: &Problem) -> PlanError {
    PlanError::Memory {
        block: problem.blocks[0].path.clone(),
        needed: problem.parameters() as u64,
        device: problem.machine.devices[0].name.clone(),
        limit: problem.machine.devices[0].memory.0,
    }
}
