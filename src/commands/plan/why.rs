//! The paragraph of reasons for a plan: what bounds it, the cost of memory, the next best, and what would help.

use std::collections::BTreeMap;

use partitioner::{
    MachineDevice, MadeBy, MicroBatches, Objective, Problem, Solution, SolutionStage, Strategy,
};
use schema::{Bytes, InferenceObjective, PlanAnswer, RecomputeUnit, Seconds, StageAnswer};
use simulator::order::Schedule;

use super::answer::{holder, titled};

/// The most stages whose recomputed blocks are listed one by one.
const STAGES: usize = 4;
/// A smaller difference of two plans' times is shown as zero.
const SAME: f64 = 5e-4;

/// Explains a plan.
pub fn why(problem: &Problem, solution: &Solution, answer: &PlanAnswer) -> String {
    let sentences = [
        explained(problem, solution, answer),
        ends(solution),
        thrown_away(solution),
        Some(memory(problem, solution, answer)),
        unused(problem, solution, answer),
        alone(problem, solution, answer),
        others(problem, answer),
        what_would_help(answer),
    ];
    sentences.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// Returns the stage that takes longest; of two copies of the model, one of the device whose two stages do.
pub fn slowest(answer: &PlanAnswer) -> Option<usize> {
    let has_both = two_copies(answer);
    let seconds = |stage: &StageAnswer| if has_both { stage.compute_seconds } else { stage.seconds };
    let stages = answer.stages.iter().enumerate();
    stages.max_by(|a, b| seconds(a.1).total_cmp(&seconds(b.1))).map(|(index, _)| index)
}

/// Tells whether each device has a stage of both ends of the model.
fn two_copies(answer: &PlanAnswer) -> bool {
    let schedule = answer.schedule.as_deref().and_then(|name| Schedule::from_name(name).ok());
    schedule.is_some_and(|schedule| schedule.copies() > 1)
}

/// Explains the slowest stage.
fn explained(problem: &Problem, solution: &Solution, answer: &PlanAnswer) -> Option<String> {
    let index = slowest(answer)?;
    let score = &solution.stages.get(index)?.score;
    let parts = [(score.compute, "compute"), (score.sync, "sync"), (score.transfer, "transfers")];
    let parts: Vec<String> = parts
        .into_iter()
        .filter(|(seconds, _)| *seconds > 0.0)
        .map(|(seconds, what)| format!("{} of {what}", Seconds(seconds)))
        .collect();
    let parts = match parts.as_slice() {
        [] => "nothing to compute".to_string(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    };
    let part = if solution.chunks() > 1 { "Chunk" } else { "Stage" };
    let bound_by = answer.stages.get(index).map_or(score.bound_by.name(), |stage| &stage.bound_by);
    let bound_by = match bound_by {
        "host" => "the host, which calls operators one by one,",
        other => other,
    };
    if two_copies(answer) {
        let other = solution.stages.len() - 1 - index;
        let (first, last) = (index.min(other), index.max(other));
        let name = |stage: usize| answer.stages[stage].devices.join(" ");
        return Some(if first == last {
            format!(
                "{} is the busiest device, with stage {index} of both copies: {parts} per micro-batch; {bound_by} bounds it.",
                name(first)
            )
        } else {
            format!(
                "{} and {} are the busiest devices, each with stages {first} and {last} of the two copies: {parts} per micro-batch; {bound_by} bounds them.",
                name(first),
                name(last)
            )
        });
    }
    let mut text = format!("{part} {index} is the slowest: {parts} per micro-batch; {bound_by} bounds it.");
    if solution.chunks() > 1 {
        let mut busy: BTreeMap<usize, f64> = BTreeMap::new();
        for stage in &solution.stages {
            solution
                .devices(stage)
                .for_each(|device| *busy.entry(device).or_default() += stage.score.compute);
        }
        if let Some((&device, &seconds)) = busy.iter().rev().max_by(|a, b| a.1.total_cmp(b.1)) {
            text.push_str(&format!(
                " The busiest device is {}: {} of compute in its {} chunks.",
                problem.machine.devices[device].name,
                Seconds(seconds),
                solution.chunks()
            ));
        }
    }
    Some(text)
}

/// The time of a one-stage step in addition to its micro-batches.
fn ends(solution: &Solution) -> Option<String> {
    let ([stage], Objective::Step(step)) = (solution.stages.as_slice(), solution.objective) else {
        return None;
    };
    let rest = step - stage.score.compute * f64::from(solution.micro_batches);
    let what = match stage.run.count {
        1 => "the optimizer's step takes",
        _ => "sums of gradients that nothing hides and the optimizer's step take",
    };
    (rest > 0.001 * step).then(|| format!("After the last of them {what} {}.", Seconds(rest)))
}

/// Tells how many of some recomputed blocks keep the results of their products.
pub fn but_for_products(light: usize, recomputed: usize) -> String {
    match light {
        0 => String::new(),
        _ if light == recomputed => " but for products".to_string(),
        _ => format!(" ({light} of these but for products)"),
    }
}

/// Reports recomputation and offload, and their cost.
fn thrown_away(solution: &Solution) -> Option<String> {
    let part = if solution.chunks() > 1 { "chunk" } else { "stage" };
    let is_short =
        |stage: &SolutionStage| !stage.score.recompute.is_empty() || !stage.score.offload.is_empty();
    let mut told: Vec<String> = Vec::new();
    let short = || solution.stages.iter().enumerate().filter(|(_, stage)| is_short(stage));
    for (index, stage) in short().take(STAGES) {
        let score = &stage.score;
        let what: Vec<String> = [(score.recompute.len(), "recomputes"), (score.offload.len(), "offloads")]
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, verb)| {
                if score.recompute_unit == RecomputeUnit::Stage {
                    return "saves only its inputs and recomputes all of its blocks".to_string();
                }
                let but = if verb == "recomputes" {
                    but_for_products(score.light.len(), count)
                } else {
                    String::new()
                };
                format!("{verb} {count} of {} blocks{but}", stage.blocks.len())
            })
            .collect();
        let cost =
            if score.overhead > 0.0 { format!(" (+{})", Seconds(score.overhead)) } else { String::new() };
        told.push(format!("{part} {index} {}{cost}", what.join(" and ")));
    }
    let n_more = short().count().saturating_sub(STAGES);
    if n_more > 0 {
        told.push(format!("{n_more} more {part}s do the same"));
    }
    let n_asked = short().filter(|(_, stage)| stage.score.is_as_asked).count();
    let why = if n_asked == 0 {
        "To fit"
    } else if n_asked == short().count() {
        "As asked"
    } else {
        "To fit, or as asked"
    };
    (!told.is_empty()).then(|| format!("{why}, {}.", told.join(", ")))
}

/// Reports how full the fullest device is, with all stages on it, and what it holds.
fn memory(problem: &Problem, solution: &Solution, answer: &PlanAnswer) -> String {
    let devices = &problem.machine.devices;
    let held = solution.held(devices.len());
    let used = held.iter().zip(devices).filter(|(held, _)| **held > 0.0);
    let share = |(held, device): (&f64, &MachineDevice)| held / device.memory.0 as f64;
    let Some((held, device)) = used.max_by(|a, b| share(*a).total_cmp(&share(*b))) else {
        return String::new();
    };
    let share = share((held, device));
    let stage = answer.stages.iter().find(|stage| stage.devices.contains(&device.name));
    let limits = stage.and_then(|stage| Some((stage.memory_usable?, stage.memory_limit?)));
    let reserve = match limits {
        Some((usable, limit)) if usable < limit => {
            format!("; {} of its {limit} are reserved for everything but tensors", limit - usable)
        }
        _ => String::new(),
    };
    if share < 0.005 {
        return "The fullest device uses less than 1 % of its memory.".to_string();
    }
    let parts = stage.map_or(&[][..], |stage| &stage.memory_parts);
    let parts: Vec<String> = parts.iter().map(|part| format!("{} {}", part.name, part.bytes)).collect();
    let parts = if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) };
    let usable = device.memory;
    format!(
        "The fullest device holds {} of {usable}, {:.0} %{parts}{reserve}.",
        Bytes(*held as u64),
        share * 100.0
    )
}

/// Reports unused devices.
fn unused(problem: &Problem, solution: &Solution, answer: &PlanAnswer) -> Option<String> {
    let mut used: Vec<usize> = solution.stages.iter().flat_map(|stage| solution.devices(stage)).collect();
    used.sort_unstable();
    used.dedup();
    let n_devices = problem.machine.devices.len();
    (used.len() < n_devices).then(|| {
        let verb = if used.len() == 1 { "is" } else { "are" };
        // For a given plan nothing else was searched.
        let others = match solution.made_by {
            MadeBy::Strategy(_) => "; no plan was found that is faster with the others",
            MadeBy::Inference(InferenceObjective::Latency) => {
                "; a request is on one device at a time, and each further one adds a transfer"
            }
            MadeBy::Inference(_) | MadeBy::AsGiven => "",
        };
        let what = match &answer.shared {
            Some(shared) => format!("groups of {} devices", shared.degree),
            None => "devices".to_string(),
        };
        format!("{} of the {n_devices} {what} {verb} used{others}.", used.len())
    })
}

/// The whole model on the fastest device alone.
pub struct OneDevice {
    /// Seconds of a micro-batch, with enough memory if it does not fit.
    pub seconds_each: f64,
    /// Whether it fits.
    pub fits: bool,
}

/// Returns the time on the fastest device alone; `None` if nothing takes time.
pub fn one_device(problem: &Problem, solution: &Solution, answer: &PlanAnswer) -> Option<OneDevice> {
    let fitting = |seconds_each: f64| OneDevice { seconds_each, fits: true };
    if solution.made_by == MadeBy::Strategy(Strategy::OneDevice) {
        return Some(fitting(solution.seconds_each()));
    }
    let name = Strategy::OneDevice.name();
    let known = answer.runners_up.iter().find(|other| other.strategy == name);
    if let Some(one) = known.and_then(|other| other.seconds) {
        return Some(fitting(one));
    }
    let mut free = problem.clone();
    (free.training.stages, free.begins) = (None, None);
    free.training.micro_batches = MicroBatches::About(solution.micro_batches);
    free.pins.clear();
    // If a number of stages was requested, one device was refused only for that.
    let may_fit = known.is_none() || problem.training.stages.is_some();
    if may_fit
        && partitioner::fits(&free, Strategy::OneDevice)
        && let Ok(found) = partitioner::plan_with(&free, Strategy::OneDevice)
    {
        return Some(fitting(found.seconds_each()));
    }
    let speed = problem.machine.devices.iter().map(|device| device.speed).fold(0.0, f64::max);
    let seconds_each = problem.seconds() / speed + 2.0 * problem.training.host_overhead.0;
    (seconds_each > 0.0).then_some(OneDevice { seconds_each, fits: false })
}

/// Tells how long the fastest device alone would take.
fn alone(problem: &Problem, solution: &Solution, answer: &PlanAnswer) -> Option<String> {
    let each = solution.seconds_each();
    if problem.training.inference.is_some()
        || problem.machine.devices.len() < 2
        || solution.made_by == MadeBy::Strategy(Strategy::OneDevice)
        || each <= 0.0
    {
        return None;
    }
    let holder = holder(answer);
    let OneDevice { seconds_each: one, fits } = one_device(problem, solution, answer)?;
    let (seconds, times) = (Seconds(one), one / each);
    Some(if fits {
        format!("One {holder} would take {seconds} per micro-batch, {times:.2} times as long.")
    } else {
        format!(
            "The model does not fit one {holder}; with enough memory it would take {seconds} per micro-batch there, {times:.2} times as long."
        )
    })
}

/// Other strategies: those faster than the requested one, and the next best.
fn others(problem: &Problem, answer: &PlanAnswer) -> Option<String> {
    // On one device most strategies have the same plan.
    let is_other = |loses: f64| problem.machine.devices.len() > 1 || loses.abs() >= SAME;
    let list = |is_wanted: &dyn Fn(f64) -> bool| -> Vec<String> {
        // Pipelines without a flush may be faster; they train with stale weights.
        let others = answer.runners_up.iter().filter(|other| other.strategy != Strategy::PipeDream.name());
        let others = others.filter(|other| other.loses.is_some_and(is_other));
        others
            .filter_map(|other| Some((other, other.loses.filter(|loses| is_wanted(*loses))?)))
            .map(|(other, loses)| {
                let title = titled(&other.strategy, other.sharding.as_deref());
                format!("{title} ({:+.1} %)", loses * 100.0)
            })
            .take(3)
            .collect()
    };
    let faster = list(&|loses| loses <= -1e-9);
    let slower = list(&|loses| loses > -1e-9);
    let said = [("Faster", faster), ("Next best", slower)];
    let said = said.into_iter().filter(|(_, names)| !names.is_empty());
    let said: Vec<String> = said.map(|(word, names)| format!("{word}: {}.", names.join(", "))).collect();
    (!said.is_empty()).then(|| said.join(" "))
}

/// The gains of changes to the cluster: plans for it are searched less far than the plan itself.
fn what_would_help(answer: &PlanAnswer) -> Option<String> {
    let gains: Vec<String> = answer
        .what_if
        .iter()
        .filter(|change| change.gains > 0.001)
        .map(|change| format!("{} {:.1} %", change.change, change.gains * 100.0))
        .collect();
    (!gains.is_empty()).then(|| format!("What would help (at least, in throughput): {}.", gains.join(", ")))
}
