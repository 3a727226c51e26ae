//! Plans: read, simulated on their cluster, explained.

use schema::{
    Bytes, CriticalStep, MemoryPart, OutOfMemory, Plan, Saving, Seconds, SimulatedDevice, SimulatedPlan,
    SpanKind, StageVersions, StepSplit, TIMELINE_VERSION, TimeParts,
};
use simulator::{
    KeptVersions, Part, PlanError, PlanOptions, PlannedStep, Timeline, USES, Work, from_plan, order::Kind,
};

use super::{order::list, order_failure};
use crate::{columns::table, failure::Failure};

/// The most tasks for which savings are simulated for every device and link.
const MAX_SAVING_TASKS: usize = 20_000_000;

/// A plan, its times and the answer about them.
pub(super) struct Simulated {
    pub(super) step: PlannedStep,
    pub(super) timeline: Timeline,
    pub(super) answer: SimulatedPlan,
}

/// Simulates a plan.
pub(super) fn simulate(name: &str, plan: &Plan, options: &PlanOptions) -> Result<Simulated, Failure> {
    let step = from_plan(plan, options).map_err(|error| plan_failure(name, plan, error))?;
    let in_plan = |error: simulator::SimulateError| Failure::input(format!("{name}: {error}"));
    let timeline = simulator::simulate(&step.workload, &step.order, &step.machine).map_err(in_plan)?;
    let split = simulator::split(&step.workload, &step.order, &step.machine).map_err(in_plan)?;
    let savings = simulator::savings(&step.workload, &step.order, &step.machine, &timeline, MAX_SAVING_TASKS)
        .map_err(in_plan)?;
    let mut notes = step.notes.clone();
    let period = match step.period() {
        Err(simulator::SimulateError::TooLarge { .. }) => {
            notes.push(
                "the period shown is the step: the plan is too large to simulate several steps".to_string(),
            );
            timeline.step
        }
        period => period.map_err(in_plan)?,
    };
    if savings.is_none() {
        notes.push(
            "savings are left out: the plan is too large to simulate once per device and link".to_string(),
        );
    }
    let device_name = |device: usize| plan.cluster.devices[device].name.clone();
    let group = |device: usize| {
        let program = step.workload.devices.iter().position(|used| *used == device);
        let peers = program.and_then(|program| step.workload.peers.get(program)).into_iter().flatten();
        std::iter::once(device).chain(peers.copied()).map(device_name).collect::<Vec<_>>()
    };
    let place = |part: Part| match part {
        Part::Device(device) => match &group(device)[..] {
            [one] => format!("device {one}"),
            several => format!("devices {}", several.join(", ")),
        },
        Part::Link(from, to) => format!("link {} — {}", device_name(from), device_name(to)),
        Part::Level(level) => format!("all links of {}", plan.cluster.levels[level].name),
        Part::Host(device) => format!("host link of {}", device_name(device)),
        Part::Devices => Saving::ALL_DEVICES.to_string(),
    };
    let answer = SimulatedPlan {
        schema_version: TIMELINE_VERSION,
        schedule: step.schedule.name().to_string(),
        micro_batches: step.shape.micro_batches,
        step_seconds: seconds(timeline.step),
        longest_span_seconds: seconds(timeline.longest_span),
        period_seconds: seconds(period),
        micro_batch_seconds: seconds(period) / f64::from(step.shape.micro_batches),
        bubble: timeline.bubble(),
        devices: devices(plan, &step, &timeline),
        versions: versions(&step.kept),
        split: in_seconds(split),
        critical_path: critical_path(&step, &timeline, device_name),
        savings: savings
            .unwrap_or_default()
            .into_iter()
            .map(|(part, saved)| Saving { what: place(part), seconds: signed(saved) })
            .collect(),
        out_of_memory: out_of_memory(plan, &timeline),
        notes,
    };
    Ok(Simulated { step, timeline, answer })
}

/// Times a plan and returns the parts of its step.
pub(super) fn step(name: &str, plan: &Plan) -> Result<super::Step, Failure> {
    let step = from_plan(plan, &PlanOptions::default()).map_err(|error| plan_failure(name, plan, error))?;
    let in_plan = |error: simulator::SimulateError| Failure::input(format!("{name}: {error}"));
    let time = simulator::step_time(&step.workload, &step.order, &step.machine).map_err(in_plan)?;
    let split = simulator::split(&step.workload, &step.order, &step.machine).map_err(in_plan)?;
    let micro_batches = step.shape.micro_batches;
    Ok(super::Step { step: seconds(time), split: in_seconds(split), micro_batches })
}

fn in_seconds(split: simulator::Split) -> StepSplit {
    StepSplit {
        compute: signed(split.compute),
        imbalance: signed(split.imbalance),
        bubble: signed(split.bubble),
        latency: signed(split.latency),
        bandwidth: signed(split.bandwidth),
        host: signed(split.host),
        optimizer: signed(split.optimizer),
    }
}

fn seconds(nanoseconds: u64) -> Seconds {
    Seconds(nanoseconds as f64 / 1e9)
}

fn signed(nanoseconds: i64) -> Seconds {
    Seconds(nanoseconds as f64 / 1e9)
}

fn plan_failure(name: &str, plan: &Plan, error: PlanError) -> Failure {
    match error {
        PlanError::Order(error) => order_failure(error).in_file(std::path::Path::new(name)),
        PlanError::UnknownDevice { .. } => {
            let names: Vec<&str> =
                plan.cluster.devices.iter().take(12).map(|device| device.name.as_str()).collect();
            Failure::input(format!("{name}: {error}"))
                .with_hint(format!("the cluster's devices begin with {}", names.join(", ")))
        }
        PlanError::Placement { .. } | PlanError::Uneven { .. } => Failure::input(format!("{name}: {error}"))
            .with_hint("plan again for this schedule, or simulate the plan's own"),
        _ => Failure::input(format!("{name}: {error}")),
    }
}

/// Devices that run something, in the order of the cluster.
pub(super) fn devices(plan: &Plan, step: &PlannedStep, timeline: &Timeline) -> Vec<SimulatedDevice> {
    let mut devices = Vec::new();
    for (idx, device) in plan.cluster.devices.iter().enumerate() {
        let peers =
            |program: usize| step.workload.peers.get(program).is_some_and(|peers| peers.contains(&idx));
        let mut programs = step.workload.devices.iter().enumerate();
        let Some((program, _)) = programs.find(|(program, used)| **used == idx || peers(*program)) else {
            continue;
        };
        let time = &timeline.programs[program];
        let memory = &timeline.memory[idx];
        let mut parts = memory_parts(&memory.parts);
        parts.retain(|part| part.bytes.0 > 0);
        devices.push(SimulatedDevice {
            name: device.name.clone(),
            busy_seconds: seconds(time.busy()),
            time_parts: TimeParts {
                forward: seconds(time.forward),
                backward: seconds(time.backward),
                recompute: seconds(time.recompute),
                collective: seconds(time.collective),
                copy: seconds(time.copy),
                host: seconds(time.host),
                optimizer: seconds(time.optimizer),
                idle: seconds(time.idle),
            },
            peak_memory_bytes: Bytes(memory.peak),
            memory_limit_bytes: plan.cluster.types[&device.type_].usable(),
            peak_at_seconds: seconds(memory.peak_at),
            parts,
            peak_activations: memory.peak_activations,
        });
    }
    devices
}

/// Uses of memory, largest first.
pub(super) fn memory_parts(bytes: &[u64; 7]) -> Vec<MemoryPart> {
    let mut parts: Vec<MemoryPart> = USES
        .iter()
        .zip(bytes)
        .map(|(used_for, bytes)| MemoryPart { name: used_for.name().to_string(), bytes: Bytes(*bytes) })
        .collect();
    parts.sort_by_key(|part| std::cmp::Reverse(part.bytes));
    parts
}

fn out_of_memory(plan: &Plan, timeline: &Timeline) -> Vec<OutOfMemory> {
    let mut all = Vec::new();
    for (device, memory) in plan.cluster.devices.iter().zip(&timeline.memory) {
        if let Some(exceeded) = memory.exceeded {
            let mut causes = memory_parts(&exceeded.parts);
            causes.truncate(3);
            all.push(OutOfMemory {
                device: device.name.clone(),
                at_seconds: seconds(exceeded.at),
                needed: Bytes(memory.peak),
                limit: plan.cluster.types[&device.type_].usable(),
                causes,
            });
        }
    }
    all
}

fn critical_path(
    step: &PlannedStep,
    timeline: &Timeline,
    device_name: impl Fn(usize) -> String,
) -> Vec<CriticalStep> {
    let mut path = Vec::new();
    let mut end = 0;
    for id in &timeline.critical_path {
        let task = &timeline.tasks[*id as usize];
        let device = step.workload.devices[task.label.program];
        let (name, kind) = describe(&task.label.work);
        let place = match task.label.work {
            Work::Transfer { to, .. } => {
                format!("{} → {}", device_name(device), device_name(step.workload.devices[to]))
            }
            _ => device_name(device),
        };
        // Parts of a task that overlap the previous one take no time of the step.
        let from = task.start.max(end);
        path.push(CriticalStep {
            place,
            name,
            kind,
            start_seconds: seconds(task.start),
            seconds: seconds(task.end.saturating_sub(from)),
        });
        end = end.max(task.end);
    }
    path
}

/// The weight versions of each stage of a pipeline without a flush.
pub(super) fn versions(kept: &[KeptVersions]) -> Vec<StageVersions> {
    let of = |stage: &KeptVersions| StageVersions { kept: stage.versions, staleness: stage.staleness };
    kept.iter().map(of).collect()
}

/// The same for people: empty if steps end with a flush.
pub(super) fn versions_text(versions: &[StageVersions], width: usize) -> String {
    if versions.is_empty() {
        return String::new();
    }
    let row = |of: fn(&StageVersions) -> u32| list(&versions.iter().map(of).collect::<Vec<_>>());
    format!(
        "{:<width$}{}  (weight versions per stage)\n{:<width$}{}  (updates by which gradients are stale, per stage)\n",
        "versions",
        row(|stage| stage.kept),
        "staleness",
        row(|stage| stage.staleness),
    )
}

/// Returns the name and the kind of a task.
pub(super) fn describe(work: &Work) -> (String, SpanKind) {
    match work {
        Work::Compute { op, partner } => {
            let kind = match op.kind {
                _ if partner
                    .is_some_and(|partner| (partner.kind == Kind::Forward) != (op.kind == Kind::Forward)) =>
                {
                    SpanKind::Pair
                }
                Kind::Forward => SpanKind::Forward,
                Kind::InputGradient => SpanKind::InputGradient,
                Kind::WeightGradient => SpanKind::WeightGradient,
                Kind::Backward => SpanKind::Backward,
            };
            let name = partner.map_or_else(|| op.to_string(), |partner| format!("{op}+{partner}"));
            (name, kind)
        }
        Work::Transfer { op, bytes, .. } => (format!("{op} ({})", Bytes(*bytes)), SpanKind::Transfer),
        Work::Reduce { stage, message, .. } => (format!("gradients {stage}.{message}"), SpanKind::Collective),
        Work::AllReduce { op, count, .. } => (format!("{op} all-reduce ×{count}"), SpanKind::Collective),
        Work::Gather { stage, .. } => (format!("parameters {stage}"), SpanKind::Collective),
        Work::Scatter { op } => (format!("{op} gradients"), SpanKind::Collective),
        Work::Copy { op, bytes } => (format!("{op} ({})", Bytes(*bytes)), SpanKind::Copy),
        Work::Optimizer => ("optimizer".to_string(), SpanKind::Optimizer),
    }
}

/// Writes the answer for people.
pub(super) fn text(answer: &SimulatedPlan) -> String {
    let mut text = format!(
        "{}, {} micro-batches\n\nstep          {}\nlongest span  {}\nperiod        {}  ({} per micro-batch)\nbubble        {:.1} %\n",
        answer.schedule,
        answer.micro_batches,
        answer.step_seconds,
        answer.longest_span_seconds,
        answer.period_seconds,
        answer.micro_batch_seconds,
        100.0 * answer.bubble,
    );
    text.push_str(&versions_text(&answer.versions, 14));
    let StepSplit { compute, imbalance, bubble, latency, bandwidth, host, optimizer } = answer.split;
    let share = |part: Seconds| 100.0 * part.0 / answer.step_seconds.0.max(f64::MIN_POSITIVE);
    text.push_str("\nThe step divides into\n");
    for (name, part) in [
        ("compute", compute),
        ("imbalance", imbalance),
        ("bubble", bubble),
        ("latency", latency),
        ("bandwidth", bandwidth),
        ("host overhead", host),
        ("optimizer", optimizer),
    ] {
        if part.0 != 0.0 {
            text.push_str(&format!("  {name:<14}{:>10}  {:>5.1} %\n", part.to_string(), share(part)));
        }
    }
    let mut rows = vec![["device", "busy", "idle", "peak memory", "of", "most of it"].map(String::from)];
    for device in &answer.devices {
        let most: Vec<String> =
            device.parts.iter().take(3).map(|part| format!("{} {}", part.name, part.bytes)).collect();
        rows.push([
            device.name.clone(),
            device.busy_seconds.to_string(),
            device.time_parts.idle.to_string(),
            device.peak_memory_bytes.to_string(),
            device.memory_limit_bytes.to_string(),
            most.join(", "),
        ]);
    }
    text.push_str(&format!("\n{}", table(&rows, " ", |column| (1..5).contains(&column))));
    text.push_str(&critical_text(&answer.critical_path));
    let worth: Vec<&Saving> = answer.savings.iter().filter(|saving| saving.seconds.0 > 0.0).take(3).collect();
    if !worth.is_empty() {
        text.push_str("\n10 % more of\n");
        for saving in worth {
            text.push_str(&format!("  {} saves {} of the step\n", saving.what, saving.seconds));
        }
    }
    for short in &answer.out_of_memory {
        let causes: Vec<String> =
            short.causes.iter().map(|part| format!("{} {}", part.name, part.bytes)).collect();
        text.push_str(&format!(
            "\nout of memory: {} needs {} of {}, first at {}: {}\n",
            short.device,
            short.needed,
            short.limit,
            short.at_seconds,
            causes.join(", "),
        ));
    }
    for note in &answer.notes {
        text.push_str(&format!("\nnote: {note}\n"));
    }
    text
}

/// The chain of operations; consecutive ones at the same place are drawn together.
fn critical_text(path: &[CriticalStep]) -> String {
    const SHOWN: usize = 16;
    let mut runs: Vec<(&str, Vec<&str>, f64)> = Vec::new();
    for step in path {
        match runs.last_mut() {
            Some((place, names, seconds)) if *place == step.place => {
                names.push(&step.name);
                *seconds += step.seconds.0;
            }
            _ => runs.push((&step.place, vec![&step.name], step.seconds.0)),
        }
    }
    let mut text = "\nCritical path\n".to_string();
    for (place, names, seconds) in runs.iter().take(SHOWN) {
        let shown = match names.len() {
            0..=6 => names.join(" "),
            n => format!("{} … {} ({n} operations)", names[..3].join(" "), names[n - 1]),
        };
        text.push_str(&format!("  {place:<16} {:>9}  {shown}\n", Seconds(*seconds).to_string()));
    }
    if runs.len() > SHOWN {
        text.push_str(&format!("  … and {} more places\n", runs.len() - SHOWN));
    }
    text
}
