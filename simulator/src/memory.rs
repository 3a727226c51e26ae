//! Memory over time: the bytes that each device holds, its peak, and the parts of the peak.
//!
//! Parameters, gradients and optimizer state are held all the time; an old weight version from the update that follows it to the
//! last pass that uses it, or all the time if the order is too short to reach it. Activations of a micro-batch are held from the
//! start of its forward pass to the end of the backward pass that frees them, except for the part that is offloaded; what weight
//! gradients wait with, from the start of the input gradient to the end of their own; workspace
//! and recomputed activations as long as their operation; transfer buffers from the start of a transfer to its end on the sender,
//! and to the start of the operation that uses them on the receiver; buckets while they are summed; of sharded parameters, two
//! layers' while a pass needs them, and of sharded gradients, two layers' while a pass makes them.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    event_graph::TaskId,
    machine::Machine,
    order::{Kind, Op, Order},
    step::Work,
    timeline::Task,
    versions::{Updates, ledgers},
    workload::{Sharding, Workload},
};

/// What memory is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Use {
    /// Parameters.
    Parameters,
    /// Gradients of the parameters.
    Gradients,
    /// Optimizer state.
    Optimizer,
    /// Weight versions beside the newest.
    Versions,
    /// Activations between forward and backward.
    Activations,
    /// Scratch memory and recomputed activations of the operation that runs.
    Workspace,
    /// Values on their way.
    Buffers,
}

/// All uses, in the order in which they are listed.
pub const USES: [Use; 7] = [
    Use::Parameters,
    Use::Gradients,
    Use::Optimizer,
    Use::Versions,
    Use::Activations,
    Use::Workspace,
    Use::Buffers,
];

impl Use {
    /// Returns the name for people and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Use::Parameters => "parameters",
            Use::Gradients => "gradients",
            Use::Optimizer => "optimizer",
            Use::Versions => "weight versions",
            Use::Activations => "activations",
            Use::Workspace => "workspace",
            Use::Buffers => "buffers",
        }
    }
}

/// Memory of one device over a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Most bytes in use.
    pub peak: u64,
    /// When that is reached first.
    pub peak_at: u64,
    /// What the peak consists of, by use in the order of [`USES`].
    pub parts: [u64; 7],
    /// Most activations of a stage and micro-batch at once.
    pub peak_activations: u32,
    /// Activations alive at the memory's peak.
    pub alive_at_peak: Vec<(u32, u32)>,
    /// Time and bytes in use from then on.
    pub curve: Vec<(u64, u64)>,
    /// What was needed when the limit was first exceeded.
    pub exceeded: Option<Exceeded>,
}

/// The moment at which a device first needs more than it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exceeded {
    /// When.
    pub at: u64,
    /// Bytes in use then, by use.
    pub parts: [u64; 7],
}

/// One change of a device's memory.
struct Change {
    at: u64,
    /// Frees come before allocations of the same moment.
    bytes: i64,
    used_for: Use,
    activation: Option<Activation>,
}

/// A stage's micro-batch comes or goes; it counts even where it holds no bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Activation {
    Gone(u32, u32),
    Made(u32, u32),
}

/// Follows memory through a timeline, by device of the machine.
pub(crate) fn over_time(
    workload: &Workload,
    machine: &Machine,
    tasks: &[Task],
    consumers: &[(TaskId, TaskId)],
    members: &BTreeMap<TaskId, Vec<usize>>,
) -> Vec<DeviceMemory> {
    let n_devices = machine.devices.len();
    let mut resident = resident(workload, n_devices, tasks);
    let mut changes: Vec<Vec<Change>> = (0..n_devices).map(|_| Vec::new()).collect();
    if let Some(updates) = workload.updates {
        versions(workload, updates, tasks, &mut changes, &mut resident);
    }
    let mut used_by: BTreeMap<TaskId, Task> = BTreeMap::new();
    for (brought, user) in consumers {
        used_by.insert(*brought, tasks[*user as usize]);
    }
    let mut computed_until = vec![0; workload.devices.len()];
    for task in tasks.iter().filter(|task| matches!(task.label.work, Work::Compute { .. })) {
        let until = &mut computed_until[task.label.program];
        *until = task.end.max(*until);
    }
    for (id, task) in tasks.iter().enumerate() {
        let device = workload.devices[task.label.program];
        match task.label.work {
            Work::Compute { op, partner } => {
                for op in std::iter::once(op).chain(partner) {
                    compute(workload, op, task, &mut changes[device]);
                }
            }
            Work::Transfer { to, bytes, .. } => {
                let receiver = workload.devices[to];
                let used = used_by.get(&(id as TaskId)).map_or(task.end, |user| user.start.max(task.end));
                hold(&mut changes[device], Use::Buffers, bytes, task.start, task.end);
                hold(&mut changes[receiver], Use::Buffers, bytes, task.start, used);
            }
            Work::Copy { op, bytes } => {
                let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
                let (at, bytes) = match op.kind {
                    Kind::Forward => (task.end, -bytes),
                    _ => (task.start, bytes),
                };
                changes[device].push(Change { at, bytes, used_for: Use::Activations, activation: None });
            }
            Work::Gather { stage, op: Some(_) } => {
                // The pass computes with what is gathered layer by layer.
                let bytes = workload.stages[stage as usize].gathered();
                if let Some(user) = used_by.get(&(id as TaskId)) {
                    hold(&mut changes[device], Use::Buffers, bytes, user.start, user.end);
                }
            }
            Work::Reduce { bytes, .. } => {
                // A bucket is a copy of its gradients while it is summed.
                let others = members.get(&(id as TaskId)).into_iter().flatten();
                for program in others.chain([&task.label.program]) {
                    let device = workload.devices[*program];
                    // With sharded gradients, passes hold those that are not scattered yet.
                    let shares = workload.sync.sharding >= Sharding::Gradients;
                    let from = if shares { task.start.max(computed_until[*program]) } else { task.start };
                    hold(&mut changes[device], Use::Buffers, bytes, from, task.end);
                }
            }
            Work::AllReduce { count, bytes, .. } => {
                let one = bytes / u64::from(count.max(1));
                hold(&mut changes[device], Use::Buffers, one, task.start, task.end);
            }
            // The pass that makes these gradients holds those that are not scattered yet.
            Work::Scatter { .. } | Work::Gather { .. } | Work::Optimizer => {}
        }
    }
    let mut memory: Vec<DeviceMemory> = changes
        .into_iter()
        .zip(resident)
        .zip(&machine.devices)
        .map(|((changes, resident), device)| sweep(changes, resident, device.memory))
        .collect();
    // A tensor-parallel group holds the same everywhere.
    for (program, peers) in workload.peers.iter().enumerate() {
        for peer in peers {
            memory[*peer] = memory[workload.devices[program]].clone();
        }
    }
    memory
}

/// Returns the bytes that each device holds all the time.
fn resident(workload: &Workload, n_devices: usize, tasks: &[Task]) -> Vec<[u64; 7]> {
    let n_stages = workload.stages.len().max(1);
    // A device holds a stage once for every copy of the model that it runs.
    let mut held: BTreeSet<(usize, u32)> = BTreeSet::new();
    for task in tasks {
        if let Work::Compute { op, partner } = task.label.work {
            for op in std::iter::once(op).chain(partner) {
                held.insert((task.label.program, op.stage));
            }
        }
    }
    let mut groups = vec![BTreeSet::new(); n_stages];
    for (program, stage) in &held {
        groups[*stage as usize % n_stages].insert(*program);
    }
    let mut resident = vec![[0_u64; 7]; n_devices];
    for (program, stage) in held {
        let stage = stage as usize % n_stages;
        let memory = workload.stages[stage].memory;
        let shards = workload.sync.sharers(groups[stage].len()) as u64;
        let from = |level: Sharding, bytes: u64| {
            if workload.sync.sharding >= level { bytes.div_ceil(shards) } else { bytes }
        };
        let parts = &mut resident[workload.devices[program]];
        let mut add = |used_for: Use, bytes: u64| {
            parts[used_for as usize] = parts[used_for as usize].saturating_add(bytes);
        };
        add(Use::Parameters, from(Sharding::Parameters, memory.parameters));
        add(Use::Gradients, from(Sharding::Gradients, memory.gradients));
        add(Use::Optimizer, from(Sharding::Optimizer, memory.optimizer));
        add(Use::Versions, memory.older_versions);
    }
    resident
}

/// Follows old weight versions: each comes with the update that makes a newer one.
fn versions(
    workload: &Workload,
    updates: Updates,
    tasks: &[Task],
    changes: &mut [Vec<Change>],
    resident: &mut [[u64; 7]],
) {
    let mut ranks = vec![Vec::new(); workload.devices.len()];
    for task in tasks {
        if let Work::Compute { op, partner } = task.label.work {
            ranks[task.label.program].extend(std::iter::once(op).chain(partner));
        }
    }
    let order = Order { ranks, chain: workload.stages.len() as u32 };
    let mut ledgers = ledgers(&order, updates);
    // Times at which a share of an update was done whose optimizer has not stepped yet.
    let mut due: Vec<Option<u64>> = vec![None; workload.devices.len()];
    let mut most = vec![0_u64; workload.devices.len()];
    let parameters = |program: usize| {
        let stage = order.ranks[program].first().map_or(0, |op| op.stage as usize);
        workload.stages[stage % workload.stages.len()].memory.parameters
    };
    let moves_on = |task: &&Task| matches!(task.label.work, Work::Compute { .. } | Work::Optimizer);
    for task in tasks.iter().filter(moves_on) {
        let program = task.label.program;
        let (device, ledger) = (workload.devices[program], &mut ledgers[program]);
        let bytes = i64::try_from(parameters(program)).unwrap_or(i64::MAX);
        let mut change = |at: u64, bytes: i64| {
            changes[device].push(Change { at, bytes, used_for: Use::Versions, activation: None });
        };
        if let Some(done) = due[program].take() {
            let at = if matches!(task.label.work, Work::Optimizer) { task.start } else { done };
            if ledger.update() {
                change(at, bytes);
            }
            most[program] = most[program].max(u64::from(ledger.older));
        }
        if let Work::Compute { op, partner } = task.label.work {
            for op in std::iter::once(op).chain(partner) {
                let before = ledger.older;
                let is_share = ledger.pass(op);
                if ledger.older < before {
                    change(task.end, -bytes);
                }
                if is_share {
                    due[program] = Some(task.end);
                }
            }
        }
    }
    for (program, device) in workload.devices.iter().enumerate() {
        let reached = parameters(program).saturating_mul(most[program]);
        let of_device = &mut resident[*device][Use::Versions as usize];
        *of_device = of_device.saturating_sub(reached);
    }
}

fn hold(changes: &mut Vec<Change>, used_for: Use, bytes: u64, from: u64, until: u64) {
    let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
    if bytes > 0 && until > from {
        changes.push(Change { at: from, bytes, used_for, activation: None });
        changes.push(Change { at: until, bytes: -bytes, used_for, activation: None });
    }
}

fn compute(workload: &Workload, op: Op, task: &Task, changes: &mut Vec<Change>) {
    let memory = workload.stages[op.stage as usize % workload.stages.len()].memory;
    let bytes = i64::try_from(memory.activations).unwrap_or(i64::MAX);
    if op.kind == Kind::Forward {
        let activation = Some(Activation::Made(op.stage, op.micro_batch));
        changes.push(Change { at: task.start, bytes, used_for: Use::Activations, activation });
    }
    if op.kind.frees_activations() {
        let activation = Some(Activation::Gone(op.stage, op.micro_batch));
        changes.push(Change { at: task.end, bytes: -bytes, used_for: Use::Activations, activation });
    }
    if op.kind.frees_activations() && workload.sync.sharding >= Sharding::Gradients {
        // A layer's gradients are whole until they are scattered.
        let stage = &workload.stages[op.stage as usize % workload.stages.len()];
        hold(changes, Use::Buffers, stage.gathered(), task.start, task.end);
    }
    let waiting = i64::try_from(memory.waiting).unwrap_or(i64::MAX);
    let mut wait = |at: u64, bytes: i64| {
        changes.push(Change { at, bytes, used_for: Use::Activations, activation: None });
    };
    match op.kind {
        Kind::InputGradient => wait(task.start, waiting),
        Kind::WeightGradient => wait(task.end, -waiting),
        _ => {}
    }
    let recomputed = if op.kind.makes_input_gradient() { memory.recomputed } else { 0 };
    hold(changes, Use::Workspace, memory.workspace.saturating_add(recomputed), task.start, task.end);
}

fn sweep(mut changes: Vec<Change>, resident: [u64; 7], limit: Option<u64>) -> DeviceMemory {
    changes.sort_by_key(|change| (change.at, change.bytes > 0, change.activation));
    let mut now: [i128; 7] = resident.map(i128::from);
    let bytes_of = |now: &[i128; 7]| now.map(|part| u64::try_from(part.max(0)).unwrap_or(u64::MAX));
    let total_of = |now: &[i128; 7]| bytes_of(now).into_iter().fold(0, u64::saturating_add);
    let mut alive: BTreeSet<(u32, u32)> = BTreeSet::new();
    let mut memory = DeviceMemory { peak: total_of(&now), parts: resident, ..DeviceMemory::default() };
    memory.curve.push((0, memory.peak));
    let exceeds = |total: u64| limit.is_some_and(|limit| total > limit);
    if exceeds(memory.peak) {
        memory.exceeded = Some(Exceeded { at: 0, parts: resident });
    }
    for moment in changes.chunk_by(|a, b| a.at == b.at) {
        let at = moment[0].at;
        for change in moment {
            now[change.used_for as usize] += i128::from(change.bytes);
            match change.activation {
                Some(Activation::Made(stage, micro_batch)) => {
                    alive.insert((stage, micro_batch));
                }
                Some(Activation::Gone(stage, micro_batch)) => {
                    alive.remove(&(stage, micro_batch));
                }
                None => {}
            }
            memory.peak_activations = memory.peak_activations.max(alive.len() as u32);
        }
        let total = total_of(&now);
        if total > memory.peak {
            memory.peak = total;
            memory.peak_at = at;
            memory.parts = bytes_of(&now);
            memory.alive_at_peak = alive.iter().copied().collect();
        }
        if memory.exceeded.is_none() && exceeds(total) {
            memory.exceeded = Some(Exceeded { at, parts: bytes_of(&now) });
        }
        if memory.curve.last().is_none_or(|(_, last)| *last != total) {
            memory.curve.push((at, total));
        }
    }
    memory
}
