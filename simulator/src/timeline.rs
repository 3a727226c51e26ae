//! What happens when: the answer of a simulation, before it becomes a text or a picture.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    build::{build, build_steps},
    event_graph::{EventGraph, TaskId},
    machine::Machine,
    memory::{self, DeviceMemory},
    order::{Kind, Op, Order},
    sharing::{self, Times},
    step::{Label, SimulateError, StepGraph, Stream, Work},
    workload::Workload,
};

/// A simulated step.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// End of the last task: one step with all that belongs to it.
    pub step: u64,
    /// Longest time from a program's first task to its last.
    pub longest_span: u64,
    /// Tasks, in an order in which each waits only for earlier ones.
    pub tasks: Vec<Task>,
    /// By program of the order.
    pub programs: Vec<ProgramTime>,
    /// By device of the machine.
    pub memory: Vec<DeviceMemory>,
    /// The tasks that the step's end waits for, in order of time.
    pub critical_path: Vec<TaskId>,
    /// Transfers, copies and gathers, with the computation that uses what they bring.
    pub consumers: Vec<(TaskId, TaskId)>,
    /// Programs that take part in a collective beside the one of its label, by task.
    pub members: BTreeMap<TaskId, Vec<usize>>,
    /// Bytes that leave devices for others, all devices together; copies to host memory are none.
    pub sent: u64,
}

/// One task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// What it does, and where.
    pub label: Label,
    /// Start in nanoseconds.
    pub start: u64,
    /// End in nanoseconds.
    pub end: u64,
}

/// Where a program's time goes, in nanoseconds; the parts sum to the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramTime {
    /// Forward passes.
    pub forward: u64,
    /// Backward passes, whole or in parts.
    pub backward: u64,
    /// Forward passes that recompute activations for the backward.
    pub recompute: u64,
    /// All-reduces inside stages.
    pub collective: u64,
    /// Copies and sends that the computation waits in.
    pub copy: u64,
    /// Host overhead.
    pub host: u64,
    /// The optimizer's step.
    pub optimizer: u64,
    /// Nothing to do.
    pub idle: u64,
}

impl ProgramTime {
    /// Returns the time of forward and backward passes.
    pub fn busy(&self) -> u64 {
        self.forward + self.backward + self.recompute
    }
}

impl Timeline {
    /// Returns the share of the devices' time in which no forward or backward pass runs.
    pub fn bubble(&self) -> f64 {
        let busy: u64 = self.programs.iter().map(ProgramTime::busy).sum();
        1.0 - busy as f64 / (self.step.max(1) as f64 * self.programs.len().max(1) as f64)
    }
}

/// Simulates a step.
///
/// # Errors
/// Says what does not fit together, or where the order deadlocks.
pub fn simulate(workload: &Workload, order: &Order, machine: &Machine) -> Result<Timeline, SimulateError> {
    let step = build(workload, order, machine)?;
    let times = sharing::times(&step, machine);
    Ok(timeline(workload, machine, step, times))
}

/// The same if the step takes less than `limit` nanoseconds; `None` otherwise.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_below(
    workload: &Workload,
    order: &Order,
    machine: &Machine,
    limit: u64,
) -> Result<Option<Timeline>, SimulateError> {
    let step = build(workload, order, machine)?;
    let times = sharing::times(&step, machine);
    let seconds = times.ends.iter().copied().max().unwrap_or(0);
    Ok((seconds < limit).then(|| timeline(workload, machine, step, times)))
}

/// Returns the nanoseconds of a step alone: what searches need.
///
/// # Errors
/// As [`simulate`].
pub fn step_time(workload: &Workload, order: &Order, machine: &Machine) -> Result<u64, SimulateError> {
    let step = build(workload, order, machine)?;
    Ok(step.time(machine))
}

/// Returns the nanoseconds that each further step adds, devices starting it after their own optimizer's step.
///
/// # Errors
/// As [`simulate`].
pub fn period(workload: &Workload, order: &Order, machine: &Machine) -> Result<u64, SimulateError> {
    // If the next forward passes overtake the gradients of the step before, the backlog takes some steps to settle.
    let overlaps = workload.sync.mode.slice().is_some();
    let (settled, cycle) = if overlaps { (16, 8) } else { (3, 1) };
    let time = |n_steps| -> Result<u64, SimulateError> {
        Ok(build_steps(workload, order, machine, n_steps)?.time(machine))
    };
    Ok(time(settled + cycle)?.saturating_sub(time(settled)?) / cycle as u64)
}

impl StepGraph {
    /// Returns when each task ends on a machine.
    pub fn ends(&self, machine: &Machine) -> Vec<u64> {
        sharing::times(self, machine).ends
    }

    /// Returns when the last task ends on a machine.
    pub fn time(&self, machine: &Machine) -> u64 {
        self.ends(machine).into_iter().max().unwrap_or(0)
    }

    /// Returns the tasks of a stage's operations with new durations, for [`EventGraph::retime`].
    pub fn stage_changes(&self, stage: u32, scale: impl Fn(Op, u64) -> u64) -> Vec<(TaskId, u64)> {
        let change = |(task, label): (usize, &Label)| match label.work {
            Work::Compute { op, partner: None } if op.stage == stage => {
                Some((task as TaskId, scale(op, self.graph.duration(task as TaskId))))
            }
            _ => None,
        };
        self.labels.iter().enumerate().filter_map(change).collect()
    }
}

fn timeline(workload: &Workload, machine: &Machine, step: StepGraph, times: Times) -> Timeline {
    let StepGraph { graph, labels, consumers, members, sent, .. } = step;
    let Times { ends, starts: known, before } = times;
    let starts = known.unwrap_or_else(|| starts(&graph, &ends));
    let makespan = ends.iter().copied().max().unwrap_or(0);
    let tasks: Vec<Task> = labels
        .into_iter()
        .zip(starts.iter().zip(&ends))
        .map(|(label, (start, end))| Task { label, start: *start, end: *end })
        .collect();
    let n_programs = workload.devices.len();
    let mut programs = vec![ProgramTime::default(); n_programs];
    let mut spans = vec![(u64::MAX, 0_u64); n_programs];
    let mut with_gradients = BTreeSet::new();
    for (id, task) in tasks.iter().enumerate() {
        let program = task.label.program;
        if task.label.stream == Stream::Compute || matches!(task.label.work, Work::AllReduce { .. }) {
            account(&mut programs[program], (workload, machine), task, &mut with_gradients);
        }
        let others = members.get(&(id as TaskId)).into_iter().flatten().copied();
        for program in others.chain([program]) {
            let span = &mut spans[program];
            *span = (span.0.min(task.start), span.1.max(task.end));
        }
    }
    for time in &mut programs {
        let spent = time.busy() + time.collective + time.copy + time.host + time.optimizer;
        time.idle = makespan.saturating_sub(spent);
    }
    let memory = memory::over_time(workload, machine, &tasks, &consumers, &members);
    let critical_path = graph.path_to_the_end(&starts, &ends, |task| before.get(&task).copied());
    Timeline {
        step: makespan,
        longest_span: spans.iter().map(|(first, last)| last.saturating_sub(*first)).max().unwrap_or(0),
        tasks,
        programs,
        memory,
        critical_path,
        consumers,
        members,
        sent,
    }
}

fn starts(graph: &EventGraph, ends: &[u64]) -> Vec<u64> {
    let start = |task: usize| {
        let there = |(before, lag): (TaskId, i64)| ends[before as usize].saturating_add_signed(lag);
        graph.waits(task as TaskId).map(there).max().unwrap_or(0)
    };
    (0..graph.len()).map(start).collect()
}

/// Divides a task's time among the parts of its program. `with_gradients` are the programs and stages that have made gradients
/// since their last update.
fn account(
    time: &mut ProgramTime,
    (workload, machine): (&Workload, &Machine),
    task: &Task,
    with_gradients: &mut BTreeSet<(usize, usize)>,
) {
    let total = task.end - task.start;
    let program = task.label.program;
    match task.label.work {
        Work::Compute { op, partner } => {
            let device = &machine.devices[workload.devices[program]];
            let both = std::iter::once(op).chain(partner);
            let host = both.map(|op| device.host_time(op)).fold(0, u64::saturating_add).min(total);
            time.host += host;
            let mut left = total - host;
            for op in std::iter::once(op).chain(partner) {
                let at = op.stage as usize % workload.stages.len();
                let stage = &workload.stages[at];
                let is_first = op.kind.frees_activations() && with_gradients.insert((program, at));
                let weight_gradient = stage.weight_gradient + if is_first { 0 } else { stage.accumulation };
                let scale = |value: u64| crate::machine::scaled(value, device.speed);
                let mut take = |part: u64| {
                    let part = part.min(left);
                    left -= part;
                    part
                };
                match op.kind {
                    Kind::Forward => time.forward += take(scale(stage.forward)),
                    Kind::InputGradient => {
                        time.recompute += take(scale(stage.recompute));
                        time.backward += take(scale(stage.input_gradient));
                    }
                    Kind::WeightGradient => time.backward += take(scale(weight_gradient)),
                    Kind::Backward => {
                        time.recompute += take(scale(stage.recompute));
                        time.backward += take(scale(stage.input_gradient + weight_gradient));
                    }
                }
            }
            // The rest is the slowdown of kernels by collectives beside them.
            time.collective += left;
        }
        Work::Optimizer => {
            time.optimizer += total;
            with_gradients.retain(|(of, _)| *of != program);
        }
        Work::Transfer { .. } | Work::Copy { .. } => time.copy += total,
        Work::Reduce { .. } | Work::Gather { .. } | Work::Scatter { .. } | Work::AllReduce { .. } => {
            time.collective += total;
        }
    }
}
