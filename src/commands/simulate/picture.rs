//! Timelines for pictures and traces.

use std::{collections::BTreeMap, path::Path};

use schema::{Bytes, Flow, MemoryCurve, Plan, TIMELINE_VERSION, Timeline, TimelineSpan, Track};
use simulator::{
    Clock, PlannedStep, Span, Stream, Work,
    order::{Kind, Op, Order},
};

use super::plan::{Simulated, describe};
use crate::failure::Failure;

/// Checks the timeline's format by its name, before any work is done.
pub(super) fn check_name(path: &Path) -> Result<(), Failure> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("svg" | "json") => Ok(()),
        _ => Err(Failure::input(format!("{}: the timeline must be an .svg or .json", path.display()))
            .with_hint("use .svg for a picture, .json for a trace that ui.perfetto.dev opens")),
    }
}

/// Draws a timeline in the format of the name.
pub(super) fn draw(path: &Path, timeline: &Timeline) -> Result<String, Failure> {
    if path.extension().is_some_and(|extension| extension == "svg") {
        Ok(viz::gantt::svg(timeline))
    } else {
        Ok(viz::perfetto::trace(&[timeline]))
    }
}

/// Returns the timeline of an order.
pub(super) fn of_order(name: &str, order: &Order, clock: &Clock, spans: &[Vec<Span>]) -> Timeline {
    let mut tracks = Vec::new();
    // The spans of each forward and backward pass.
    let mut made: BTreeMap<(u32, u32, bool), (u32, u32)> = BTreeMap::new();
    for (rank, spans) in spans.iter().enumerate() {
        let mut track = Track { device: rank as u32, stream: "compute".to_string(), spans: Vec::new() };
        let mut spans = spans.iter().peekable();
        while let Some(span) = spans.next() {
            let at = (rank as u32, track.spans.len() as u32);
            let partner = span.op.joined.then(|| spans.next()).flatten().map(|span| span.op);
            for op in std::iter::once(span.op).chain(partner) {
                if op.kind == Kind::Forward || op.kind.makes_input_gradient() {
                    made.insert((op.stage, op.micro_batch, op.kind == Kind::Forward), at);
                }
            }
            track.spans.push(compute_span(span.op, partner, span.start, span.end));
        }
        tracks.push(track);
    }
    let mut flows = Vec::new();
    for (&(stage, micro_batch, is_forward), &to) in &made {
        let from = match (is_forward, stage % order.chain) {
            (true, 0) => None,
            (true, _) => made.get(&(stage - 1, micro_batch, true)),
            (false, at) if at + 1 == order.chain => None,
            (false, _) => made.get(&(stage + 1, micro_batch, false)),
        };
        flows.extend(from.filter(|from| from.0 != to.0).map(|from| Flow { from: *from, to }));
    }
    Timeline {
        kind: "timeline".to_string(),
        version: TIMELINE_VERSION,
        name: name.to_string(),
        unit: "units".to_string(),
        devices: (0..order.ranks.len()).map(|rank| format!("rank {rank}")).collect(),
        tracks,
        flows,
        memory: Vec::new(),
        end: clock.makespan,
    }
}

fn compute_span(op: Op, partner: Option<Op>, start: u64, end: u64) -> TimelineSpan {
    let plain = |op: Op| Op { joined: false, ..op };
    let (name, kind) = describe(&Work::Compute { op: plain(op), partner: partner.map(plain) });
    TimelineSpan { name, kind, stage: Some(op.stage), micro_batch: Some(op.micro_batch), start, end }
}

/// Returns the timeline of a plan.
pub(super) fn of_plan(plan: &Plan, simulated: &Simulated) -> Timeline {
    of_step(plan, &simulated.step, &simulated.timeline)
}

/// Returns the timeline of a plan's step, perhaps under another schedule.
pub(in crate::commands) fn of_step(
    plan: &Plan,
    step: &PlannedStep,
    timeline: &simulator::Timeline,
) -> Timeline {
    // Devices that run something, in the order of the programs.
    let mut by_stream: BTreeMap<(usize, Stream), Vec<usize>> = BTreeMap::new();
    for (id, task) in timeline.tasks.iter().enumerate() {
        if task.end > task.start {
            let others = timeline.members.get(&(id as u32)).into_iter().flatten();
            for program in others.chain([&task.label.program]) {
                by_stream.entry((*program, task.label.stream)).or_default().push(id);
            }
        }
    }
    let mut place: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
    let mut tracks = Vec::new();
    for ((program, stream), mut ids) in by_stream {
        ids.sort_by_key(|id| (timeline.tasks[*id].start, *id));
        let mut track =
            Track { device: program as u32, stream: stream_name(stream).to_string(), spans: Vec::new() };
        for id in ids {
            let task = &timeline.tasks[id];
            if program == task.label.program {
                place.insert(id as u32, (tracks.len() as u32, track.spans.len() as u32));
            }
            let (name, kind) = describe(&task.label.work);
            let op = match task.label.work {
                Work::Compute { op, .. }
                | Work::Transfer { op, .. }
                | Work::Copy { op, .. }
                | Work::Scatter { op }
                | Work::AllReduce { op, .. } => Some(op),
                Work::Gather { op, .. } => op,
                Work::Reduce { .. } | Work::Optimizer => None,
            };
            let stage = match task.label.work {
                Work::Reduce { stage, .. } => Some(stage),
                _ => op.map(|op| op.stage),
            };
            track.spans.push(TimelineSpan {
                name,
                kind,
                stage,
                micro_batch: op.map(|op| op.micro_batch),
                start: task.start,
                end: task.end,
            });
        }
        tracks.push(track);
    }
    let flow = |(from, to): &(u32, u32)| Some(Flow { from: *place.get(from)?, to: *place.get(to)? });
    let device_name = |device: &usize| plan.cluster.devices[*device].name.clone();
    let memory = step.workload.devices.iter().enumerate().map(|(program, device)| MemoryCurve {
        device: program as u32,
        limit: step.machine.devices[*device].memory.map(Bytes),
        points: timeline.memory[*device].curve.clone(),
    });
    Timeline {
        kind: "timeline".to_string(),
        version: TIMELINE_VERSION,
        name: format!(
            "{}, {}, {} micro-batches",
            plan.model.name,
            step.schedule.name(),
            step.shape.micro_batches
        ),
        unit: "ns".to_string(),
        devices: step.workload.devices.iter().map(device_name).collect(),
        tracks,
        flows: timeline.consumers.iter().filter_map(flow).collect(),
        memory: memory.collect(),
        end: timeline.step,
    }
}

fn stream_name(stream: Stream) -> &'static str {
    match stream {
        Stream::Compute => "compute",
        Stream::Network => "network",
        Stream::Collective => "collective",
        Stream::CopyOut => "copy-out",
        Stream::CopyIn => "copy-in",
    }
}
