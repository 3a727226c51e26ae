//! The paragraph of reasons for a plan: what bounds it, the cost of memory, the next best, and what would help.

use std::collections::BTreeMap;

use partitioner::{MachineDevice, MadeBy, Objective, Problem, Solution, SolutionStage, Strategy};
use schema::{Bytes, InferenceObjective, PlanAnswer, RecomputeUnit, Seconds};

use super::answer::{holder, titled};

/// The most stages whose recomputed blocks are listed one by one.
const STAGES: usize = 4;

/// Explains a plan.
pub fn why(problem: &Problem, solution: &Solution, answer: &PlanAnswer) -> String {
    let sentences = [
        slowest(problem, solution, answer),
        ends(solution),
        thrown_away(solution),
        Some(memory(problem, solution, answer)),
        unused(problem, solution),
        one_device(problem, solution, answer),
        others(answer),
        what_would_help(answer),
    ];
    sentences.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// Explains the slowest stage.
fn slowest(problem: &Problem, solution: &Solution, answer: &PlanAnswer) -> Option<String> {
    let stages = solution.stages.iter().enumerate();
    let (index, stage) = stages.max_by(|a, b| a.1.score.seconds.total_cmp(&b.1.score.seconds))?;
    let score = &stage.score;
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
                format!("{verb} {count} of {} blocks", stage.blocks.len())
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
fn unused(problem: &Problem, solution: &Solution) -> Option<String> {
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
        format!("{} of the {n_devices} devices {verb} used{others}.", used.len())
    })
}

/// The time on the fastest device alone, and whether the model fits it.
fn one_device(problem: &Problem, solution: &Solution, answer: &PlanAnswer) -> Option<String> {
    let each = solution.seconds_each();
    let name = Strategy::OneDevice.name();
    if problem.training.inference.is_some() {
        return None;
    }
    if problem.machine.devices.len() < 2
        || solution.made_by == MadeBy::Strategy(Strategy::OneDevice)
        || each <= 0.0
    {
        return None;
    }
    let holder = holder(answer);
    let known = answer.runners_up.iter().find(|other| other.strategy == name);
    if let Some(one) = known.and_then(|other| other.seconds) {
        return Some(takes(&holder, one, each));
    }
    let speed = problem.machine.devices.iter().map(|device| device.speed).fold(0.0, f64::max);
    let one = problem.seconds() / speed;
    // If a number of stages was requested, one device was refused only for that.
    let fits = (known.is_none() || problem.training.stages.is_some()) && {
        let mut free = problem.clone();
        (free.training.stages, free.begins) = (None, None);
        free.pins.clear();
        partitioner::fits(&free, Strategy::OneDevice)
    };
    Some(if fits {
        takes(&holder, one, each)
    } else {
        format!(
            "The model does not fit one {holder}; with enough memory it would take {} per micro-batch there, {:.2} times as long.",
            Seconds(one),
            one / each
        )
    })
}

fn takes(holder: &str, one: f64, each: f64) -> String {
    format!("One {holder} would take {} per micro-batch, {:.2} times as long.", Seconds(one), one / each)
}

/// Other strategies: those faster than the requested one, and the next best.
fn others(answer: &PlanAnswer) -> Option<String> {
    let list = |is_wanted: &dyn Fn(f64) -> bool| -> Vec<String> {
        // Pipelines without a flush may be faster; they train with stale weights.
        let others = answer.runners_up.iter().filter(|other| other.strategy != Strategy::PipeDream.name());
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

/// The gains of changes to the cluster.
fn what_would_help(answer: &PlanAnswer) -> Option<String> {
    let gains: Vec<String> = answer
        .what_if
        .iter()
        .filter(|change| change.gains > 0.001)
        .map(|change| format!("{} {:.1} %", change.change, change.gains * 100.0))
        .collect();
    (!gains.is_empty()).then(|| format!("What would help: {}.", gains.join(", ")))
}
