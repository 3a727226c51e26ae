//! Strategies by name, and the way from a problem to the best plan of each.
//!
//! Synchronous strategies are grids: `p` stages, each on `d` devices, timed by the order that will run. Asynchronous
//! PipeDream gives stages different numbers of devices and counts the steady state. New strategies (OptCNN's and
//! FlexFlow's searches, tensor parallelism) are one more name here and one more file that returns a [`Solution`].

use std::cmp::Ordering;

use schema::Bytes;

use crate::{
    Machine, MachineDevice, Problem, ProblemError,
    grids::synchronous,
    nearest::nearest,
    pipedream::pipedream,
    pipeline::Cut,
    serving,
    simulated::{excess, state_memory},
    solution::{Objective, Solution, SolutionStage},
    stage::Scorer,
    two_way::{schedule_of, two_way},
    ways::Ways,
};

/// A way to spread a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Strategy {
    /// The whole model on one device.
    OneDevice,
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
    /// 1F1B over several chunks a device.
    Interleaved,
    /// 1F1B with weight gradients in the bubbles.
    ZeroBubble,
    /// Several stages, each of several replicas.
    Hybrid,
    /// Two copies of the model in opposite directions, a pass of one behind a pass of the other.
    Gems,
    /// Two copies of the model in opposite directions, merged slot by slot.
    Chimera,
    /// Two copies of the model in opposite directions, backward passes split.
    DualPipe,
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
pub const STRATEGIES: [Strategy; 16] = [
    Strategy::OneDevice,
    Strategy::Layer,
    Strategy::DataParallel,
    Strategy::GPipe,
    Strategy::PipeDream,
    Strategy::OneForwardOneBackward,
    Strategy::Interleaved,
    Strategy::ZeroBubble,
    Strategy::Hybrid,
    Strategy::Gems,
    Strategy::Chimera,
    Strategy::DualPipe,
    Strategy::EvenLayers,
    Strategy::EvenParameters,
    Strategy::TorchGPipe,
    Strategy::DeepSpeed,
];

impl Strategy {
    /// Returns the name as `--strategy` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::OneDevice => "one-device",
            Self::Layer => "layer",
            Self::DataParallel => "data-parallel",
            Self::GPipe => "gpipe",
            Self::PipeDream => "pipedream",
            Self::OneForwardOneBackward => "1f1b",
            Self::Interleaved => "interleaved",
            Self::ZeroBubble => "zero-bubble",
            Self::Hybrid => "hybrid",
            Self::Gems => "gems-master",
            Self::Chimera => "chimera",
            Self::DualPipe => "dualpipe",
            Self::EvenLayers => "even-layers",
            Self::EvenParameters => "even-parameters",
            Self::TorchGPipe => "torchgpipe",
            Self::DeepSpeed => "deepspeed",
        }
    }

    /// Returns the strategy with this name, or with one that it goes by elsewhere, in any case.
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        let name = match name.as_str() {
            "pipedream-flush" | "pp" | "pipeline" => "1f1b",
            "single" => "one-device",
            "model-parallel" => "layer",
            "dp" | "ddp" | "fsdp" | "zero1" | "zero2" | "zero3" => "data-parallel",
            "zb" | "zb-h1" => "zero-bubble",
            "gems" => "gems-master",
            other => other,
        };
        STRATEGIES.into_iter().find(|strategy| strategy.name() == name)
    }

    /// Tells whether it cuts by a rule that people use by hand.
    pub fn is_rule(self) -> bool {
        matches!(self, Self::EvenLayers | Self::EvenParameters | Self::TorchGPipe | Self::DeepSpeed)
    }

    /// Tells whether `auto` may choose it: baselines are there to compare with, asynchronous training gives other weights than
    /// the model trained on one device, and two copies of the model are held by who asks for them.
    pub fn is_candidate(self) -> bool {
        self != Self::PipeDream && !self.is_rule() && schedule_of(self).is_none()
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
    /// More stages than blocks with something to do.
    #[error("{stages} stages were asked for, the model has {blocks} with something to compute")]
    TooManyWorking {
        /// Stages.
        stages: usize,
        /// Blocks that take time.
        blocks: usize,
    },
    /// More stages in a row than devices.
    #[error("{stages} stages were asked for, the cluster has {devices} devices")]
    TooFewDevices {
        /// Stages.
        stages: usize,
        /// Devices.
        devices: usize,
    },
    /// No plan fits; the device that is shortest of memory in the plan that comes nearest.
    #[error(
        "no plan fits: the stage with block `{block}` needs {}, device `{device}` has {}",
        Bytes(*needed),
        Bytes(*limit)
    )]
    Memory {
        /// The largest block on it.
        block: String,
        /// Bytes that it would need; with as many more on every device the plan fits.
        needed: u64,
        /// The device.
        device: String,
        /// What it has.
        limit: u64,
    },
    /// No plan fits, and what comes nearest was not looked for or is not near.
    #[error("no plan fits the devices' memory")]
    NothingFits,
    /// A schedule that does not go with these micro-batches.
    #[error("{strategy}: {reason}")]
    Schedule {
        /// Name of the strategy.
        strategy: &'static str,
        /// What is wrong.
        reason: String,
    },
}

/// What plans are searched for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Goal {
    /// The fastest, and what none beats.
    Best,
    /// The fastest if it takes less than so many seconds for each micro-batch; what cannot is not looked at.
    Below(f64),
    /// Any that fits: whether there is one.
    Any,
}

impl Goal {
    /// Returns the seconds for each micro-batch below which plans are looked for.
    pub(crate) fn below(self) -> f64 {
        match self {
            Self::Below(seconds) => seconds,
            Self::Best | Self::Any => f64::INFINITY,
        }
    }
}

/// Finds the best plan of one strategy.
///
/// # Errors
/// When the problem makes no sense or nothing fits.
pub fn plan_with(problem: &Problem, strategy: Strategy) -> Result<Solution, PlanError> {
    problem.validate()?;
    plan_over(problem, &Ways::of(problem), strategy)
}

/// Finds the best plan of one strategy over known ways to cut a valid problem.
pub(crate) fn plan_over(problem: &Problem, ways: &Ways, strategy: Strategy) -> Result<Solution, PlanError> {
    match solve(problem, ways, strategy, Goal::Best) {
        Ok(mut best) => {
            state_memory(problem, &mut best);
            Ok(best)
        }
        Err((PlanError::NothingFits, _)) => {
            Err(nearest(problem, &[&|roomier| solve(roomier, ways, strategy, Goal::Any).ok()]))
        }
        Err((error, _)) => Err(error),
    }
}

/// Tells whether a strategy has a plan that fits, without looking for what is nearest to one.
pub fn fits(problem: &Problem, strategy: Strategy) -> bool {
    if problem.validate().is_err() {
        return false;
    }
    let ways = Ways::of(problem);
    match problem.training.inference {
        Some(aim) => serving::can_serve(problem, &ways, aim),
        None => solve(problem, &ways, strategy, Goal::Any).is_ok(),
    }
}

/// A plan and the seconds for each micro-batch that none beats with the devices in their order; or why there is none, and what
/// one would take at the least.
pub(crate) type InOrder = Result<(Solution, f64), (PlanError, f64)>;

/// Finds the best plan of one strategy, trying several orders of devices that differ; or why there is none, and the seconds for each
/// micro-batch that one would take at the least.
pub(crate) fn solve(
    problem: &Problem,
    ways: &Ways,
    strategy: Strategy,
    goal: Goal,
) -> Result<Solution, (PlanError, f64)> {
    let (orders, is_all) = other_orders(&problem.machine);
    let (mut best, mut least) = match solve_in_order(problem, ways, strategy, goal) {
        Ok((solution, least)) => (Ok(solution), least),
        Err((error, least)) => (Err(error), least),
    };
    let mut bound = best.as_ref().map_or(0.0, |best| best.lower_bound / each(best));
    for order in orders {
        if goal == Goal::Any && best.is_ok() {
            break;
        }
        let mut ordered = problem.clone();
        ordered.machine.devices =
            order.iter().map(|&device| problem.machine.devices[device].clone()).collect();
        // An order that is no better is of no use.
        let goal = match (goal, &best) {
            (Goal::Best | Goal::Below(_), Ok(best)) => Goal::Below(goal.below().min(best.seconds_each())),
            _ => goal,
        };
        match solve_in_order(&ordered, ways, strategy, goal) {
            Ok((mut found, own)) => {
                least = least.min(own);
                // What bounds plans whatever the order bounds those of all orders.
                bound = bound.max(found.lower_bound / each(&found));
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
    // Without a plan nothing is known of other orders than that all devices together do no more than they can.
    let by_work = problem.seconds() / problem.machine.total_speed();
    let mut best = best.map_err(|error| (error, bound.max(by_work)))?;
    best.lower_bound = (bound * each(&best)).min(best.seconds());
    Ok(best)
}

/// The most devices of which all orders may be tried.
const ALL_ORDERS: usize = 4;

/// Tells whether there may be so few orders of devices that all are tried, and a plan can be proven the best of all.
pub(crate) fn tries_all_orders(machine: &Machine) -> bool {
    machine.is_uniform() || machine.devices.len() <= ALL_ORDERS
}

/// Orders of devices other than the machine's own, and whether those are all that differ.
///
/// Where there are few devices all orders are tried, else fast ones first or last and roomy ones first or last: devices of one
/// kind keep their order, so nodes stay together. On large machines none is.
pub(crate) fn other_orders(machine: &Machine) -> (Vec<Vec<usize>>, bool) {
    const MOST: usize = 12;
    const SOME: usize = 64;
    let n_devices = machine.devices.len();
    let own: Vec<usize> = (0..n_devices).collect();
    let mut orders = vec![own.clone()];
    if machine.is_uniform() {
        return (Vec::new(), true);
    }
    let is_like = |one: &usize, other: &usize| {
        let (one, other) = (&machine.devices[*one], &machine.devices[*other]);
        let alike = MachineDevice { name: one.name.clone(), ..other.clone() };
        machine.links.is_empty() && alike == *one
    };
    if n_devices <= ALL_ORDERS {
        for position in 0..n_devices {
            // Each device in turn goes to each later position.
            let swapped = orders.iter().flat_map(|order| {
                (position..n_devices).map(|other| {
                    let mut order = order.clone();
                    order.swap(position, other);
                    order
                })
            });
            let mut all: Vec<Vec<usize>> = Vec::new();
            for order in swapped {
                let is_known = |known: &Vec<usize>| known.iter().zip(&order).all(|(a, b)| is_like(a, b));
                if !all.iter().any(is_known) {
                    all.push(order);
                }
            }
            orders = all;
        }
        orders.retain(|order| !order.iter().zip(&own).all(|(a, b)| is_like(a, b)));
        if orders.len() < MOST {
            return (orders, true);
        }
        orders = vec![own.clone()];
    }
    let speed = |a: &usize, b: &usize| machine.devices[*a].speed.total_cmp(&machine.devices[*b].speed);
    let memory = |a: &usize, b: &usize| machine.devices[*a].memory.cmp(&machine.devices[*b].memory);
    let mut sorted = |by: &dyn Fn(&usize, &usize) -> Ordering| {
        let mut order = own.clone();
        order.sort_by(by);
        if !orders.contains(&order) {
            orders.push(order);
        }
    };
    if n_devices <= SOME {
        sorted(&|a, b| speed(b, a));
        sorted(&speed);
        sorted(&|a, b| memory(b, a));
        sorted(&memory);
    }
    (orders.split_off(1), false)
}

/// Finds the best plan of one strategy with the devices as they stand.
fn solve_in_order(problem: &Problem, ways: &Ways, strategy: Strategy, goal: Goal) -> InOrder {
    let blocks = problem.blocks.len();
    if let Some(stages) =
        problem.training.stages.map(|stages| stages as usize).filter(|&stages| stages > blocks)
    {
        return Err((PlanError::TooManyStages { stages, blocks }, f64::INFINITY));
    }
    let (mut found, least) = attempt(problem, ways, strategy, goal)?;
    let bound = found.lower_bound;
    // Memory by formula is above the simulator's but for rare orders of arrival: leave room for those.
    let mut room = 1.0;
    for _ in 0..5 {
        let Some(share) = excess(problem, &found) else { return Ok((found, least)) };
        room /= share.max(1.01);
        let less = attempt(&with_memory(problem, room), ways, strategy, goal);
        found = less.map_err(|(error, _)| (error, least))?.0;
        found.lower_bound = bound.min(found.seconds());
        found.stages.iter_mut().for_each(|stage| stage.score.limit /= room);
    }
    Err((PlanError::NothingFits, least))
}

fn attempt(problem: &Problem, ways: &Ways, strategy: Strategy, goal: Goal) -> InOrder {
    match strategy {
        Strategy::PipeDream if problem.training.stages.is_some() => {
            let reason = "it chooses the number of stages itself".to_string();
            Err((PlanError::Schedule { strategy: strategy.name(), reason }, f64::INFINITY))
        }
        Strategy::PipeDream => pipedream(problem, ways, goal),
        Strategy::Gems | Strategy::Chimera | Strategy::DualPipe => {
            let schedule = schedule_of(strategy).expect("they have one");
            two_way(problem, ways, (strategy, schedule), goal)
        }
        Strategy::OneForwardOneBackward if goal != Goal::Any => {
            let (mut best, least) = match synchronous(problem, ways, strategy, goal) {
                Ok((best, least)) => (Ok(best), least),
                // Nothing below what is asked for by formula.
                Err((error, least)) if goal != Goal::Best => (Err(error), least),
                Err(none) => return Err(none),
            };
            // Solvers go by formulas, the simulator has the last word: never worse than cuts by a rule.
            for rule in STRATEGIES.into_iter().filter(|rule| rule.is_rule()) {
                let limit = best.as_ref().map_or(goal.below(), Solution::seconds_each);
                let Ok((other, _)) = synchronous(problem, ways, rule, goal) else { continue };
                if other.seconds_each() < limit * (1.0 - 1e-9) {
                    let bound = best.as_ref().map_or(least, |best| best.lower_bound / each(best));
                    let lower_bound = (bound * each(&other)).min(other.seconds());
                    best = Ok(Solution { strategy: strategy.name(), lower_bound, ..other });
                }
            }
            let best = best.map_err(|error| (error, least))?;
            let least = least.min(best.seconds_each());
            Ok((best, least))
        }
        _ => synchronous(problem, ways, strategy, goal),
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

/// The best plan of all candidates, the others, best first, and those that do not fit.
pub(crate) type Ranked = (Solution, Vec<Solution>, Vec<(Strategy, PlanError)>);

/// Finds the best plan of all candidates; also returns the others, best first, and those that do not fit.
///
/// # Errors
/// When nothing fits: the error of the plan that comes nearest.
#[allow(clippy::type_complexity)]
pub fn plan_auto(
    problem: &Problem,
) -> Result<(Solution, Vec<Solution>, Vec<(Strategy, PlanError)>), PlanError> {
    problem.validate()?;
    rank(problem, &Ways::of(problem), None)
}

/// Strategies that serve who does not name one.
pub(crate) fn candidates(problem: &Problem) -> impl Iterator<Item = Strategy> {
    // Who asks for a number of stages gets as many parts, no chunks of them and no whole model.
    let stages = problem.training.stages;
    let serves = move |strategy: &Strategy| match strategy {
        Strategy::OneDevice | Strategy::DataParallel => stages.is_none_or(|stages| stages == 1),
        Strategy::Interleaved => stages.is_none(),
        _ => true,
    };
    STRATEGIES.into_iter().filter(move |strategy| strategy.is_candidate() && serves(strategy))
}

/// Finds the best plan of each candidate; one of them may be known.
pub(crate) fn rank(problem: &Problem, ways: &Ways, known: Option<&Solution>) -> Result<Ranked, PlanError> {
    let mut found = Vec::new();
    let mut failed = Vec::new();
    // What bounds every candidate's family bounds the best of all: also those of which no plan was found, unless there is none.
    let mut bound = f64::INFINITY;
    for strategy in candidates(problem) {
        let known = known.filter(|known| known.strategy == strategy.name());
        match known.map_or_else(|| solve(problem, ways, strategy, Goal::Best), |known| Ok(known.clone())) {
            Ok(solution) => {
                bound = bound.min(solution.lower_bound / each(&solution));
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
        return Err(nearest_of_all(problem, ways, failed.into_iter().map(|(_, error)| error)));
    }
    let mut best = found.remove(0);
    best.lower_bound = (bound * each(&best)).min(best.seconds());
    Ok((best, found, failed))
}

/// Finds the best plan of all candidates and nothing else, beginning with one that may be good.
pub(crate) fn fastest(
    problem: &Problem,
    ways: &Ways,
    first: Option<Strategy>,
) -> Result<Solution, PlanError> {
    let others = candidates(problem).filter(|strategy| Some(*strategy) != first);
    fastest_within(problem, ways, first.into_iter().chain(others), Goal::Best)
        .map_err(|failed| nearest_of_all(problem, ways, failed.into_iter()))
}

/// Finds the best plan of some strategies for a goal: what cannot be better than those before is not searched to its end.
///
/// Where there is none, says why of each.
pub(crate) fn fastest_within(
    problem: &Problem,
    ways: &Ways,
    strategies: impl Iterator<Item = Strategy>,
    goal: Goal,
) -> Result<Solution, Vec<PlanError>> {
    let mut best: Option<Solution> = None;
    let mut failed = Vec::new();
    for strategy in strategies {
        let goal = best.as_ref().map_or(goal, |best| Goal::Below(best.seconds_each()));
        match solve(problem, ways, strategy, goal) {
            Ok(found) if found.seconds_each() < goal.below() => best = Some(found),
            Ok(_) => {}
            Err((error, _)) => failed.push(error),
        }
    }
    let mut best = best.ok_or(failed)?;
    state_memory(problem, &mut best);
    Ok(best)
}

/// Says what is nearest to a plan where no candidate has one, or what else is wrong.
fn nearest_of_all(problem: &Problem, ways: &Ways, errors: impl Iterator<Item = PlanError>) -> PlanError {
    // What is too large for one candidate may only be out of place for another.
    let error = errors.reduce(|last, error| if last == PlanError::NothingFits { last } else { error });
    match error {
        Some(error) if error != PlanError::NothingFits => error,
        _ => {
            // Sharing the model out needs least: of each kind, the plan that fits first.
            let make = |roomier: &Problem| {
                let kinds = [Strategy::OneForwardOneBackward, Strategy::Hybrid, Strategy::Layer];
                kinds.into_iter().find_map(|strategy| solve(roomier, ways, strategy, Goal::Any).ok())
            };
            let in_chunks = |roomier: &Problem| solve(roomier, ways, Strategy::Interleaved, Goal::Any).ok();
            match candidates(problem).any(|strategy| strategy == Strategy::Interleaved) {
                true => nearest(problem, &[&make, &in_chunks]),
                false => nearest(problem, &[&make]),
            }
        }
    }
}

/// Micro-batches that an objective stands for.
pub(crate) fn each(plan: &Solution) -> f64 {
    match plan.objective {
        Objective::Period(_) => 1.0,
        Objective::Step(_) => f64::from(plan.micro_batches),
    }
}

/// Scores cuts.
pub(crate) fn stages_of(scorer: &Scorer, cuts: &[Cut]) -> Vec<SolutionStage> {
    let stage = |cut: &Cut| {
        let score = scorer.score(cut.start, cut.end, cut.run, cut.behind)?;
        Some(SolutionStage { blocks: scorer.states.blocks(cut.start, cut.end), run: cut.run, score })
    };
    cuts.iter().filter_map(stage).collect()
}
