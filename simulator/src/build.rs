//! From an order on a machine to a graph of tasks: computation, transfers, copies, collectives, optimizer.
//!
//! Programs are walked in turn, each until it has to wait, as in the clock, so every task is added after the tasks that it waits
//! for, and a deadlock shows here. Each device computes in program order; transfers of a device leave in the order in which their
//! values are made; copies and collectives have streams of their own.

pub(crate) mod collectives;
mod host;
mod messages;
mod ties;
mod transfers;
mod update;

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use collectives::Team;
use update::Round;

use crate::{
    event_graph::{EventGraph, TaskId},
    machine::{Link, Machine, NEVER, scaled},
    order::{Kind, Op, Order},
    step::{Label, SimulateError, StepGraph, Stream, Work},
    workload::Workload,
};

const NONE: TaskId = TaskId::MAX;
/// Limits on memory, far above any real step.
const MAX_OPS: usize = 16 << 20;
const MAX_ARRIVALS: usize = 1 << 28;

/// An edge between stages of one copy.
#[derive(Clone, Copy)]
struct Edge {
    from: usize,
    to: usize,
    forward: u64,
    backward: u64,
}

/// Builds the graph of one step.
///
/// # Errors
/// Names the first inconsistency, or where programs wait for each other.
pub fn build(workload: &Workload, order: &Order, machine: &Machine) -> Result<StepGraph, SimulateError> {
    build_steps(workload, order, machine, 1)
}

/// Builds the graph of several steps in a row: a device starts the next one after its own optimizer's step.
///
/// # Errors
/// As [`build`].
pub fn build_steps(
    workload: &Workload,
    order: &Order,
    machine: &Machine,
    n_steps: usize,
) -> Result<StepGraph, SimulateError> {
    check(workload, order, machine)?;
    let n_ops = order.n_ops().saturating_mul(n_steps);
    if n_ops > MAX_OPS {
        return Err(SimulateError::TooLarge { n_ops });
    }
    let mut builder = Builder::new(workload, order, machine)?;
    for _ in 0..n_steps {
        builder.begin_step();
        builder.walk()?;
        builder.finish_step();
    }
    // No path is longer than all tasks and lags together.
    if builder.step.graph.total() >= NEVER {
        return Err(SimulateError::Overflow);
    }
    Ok(builder.step)
}

fn check(workload: &Workload, order: &Order, machine: &Machine) -> Result<(), SimulateError> {
    let n_stages = workload.stages.len();
    if workload.devices.len() != order.ranks.len() {
        let (programs, devices) = (order.ranks.len(), workload.devices.len());
        return Err(SimulateError::Programs { programs, devices });
    }
    let n_devices = machine.devices.len();
    let peers =
        workload.peers.iter().enumerate().flat_map(|(at, peers)| peers.iter().map(move |peer| (at, peer)));
    for (program, &device) in workload.devices.iter().enumerate().chain(peers) {
        if device >= n_devices {
            return Err(SimulateError::Device { program, device, n_devices });
        }
    }
    if order.chain as usize > n_stages {
        return Err(SimulateError::Stage { stage: order.chain - 1, last: n_stages.saturating_sub(1) });
    }
    for &crate::Transfer { from, to, .. } in &workload.transfers {
        if from >= to || to >= n_stages {
            return Err(SimulateError::Transfer { from, to, n_stages });
        }
    }
    if workload.updates.is_some() {
        let is_mixed = |ops: &Vec<Op>| ops.iter().any(|op| op.stage != ops[0].stage);
        if let Some(program) = order.ranks.iter().position(is_mixed) {
            return Err(SimulateError::Mixed { program });
        }
    }
    let positive = |value: f64, what: &dyn Fn() -> String| {
        if value > 0.0 { Ok(()) } else { Err(SimulateError::NotPositive { what: what() }) }
    };
    for (idx, device) in machine.devices.iter().enumerate() {
        positive(device.speed, &|| format!("the speed of device {idx}"))?;
        positive(device.host_bandwidth, &|| format!("the host bandwidth of device {idx}"))?;
        positive(device.pageable, &|| format!("the pageable share of device {idx}"))?;
    }
    positive(machine.slowdown, &|| "the slowdown beside collectives".to_string())?;
    for link in machine.levels.iter().chain(machine.links.values()) {
        positive(link.bandwidth, &|| "the bandwidth of a link".to_string())?;
    }
    Ok(())
}

/// Values from one program to another: they arrive in the order in which they are sent.
#[derive(Clone, Copy)]
struct Channel {
    to: usize,
    link: Link,
    ports: [u32; 2],
    last: TaskId,
}

struct Builder<'a> {
    workload: &'a Workload,
    order: &'a Order,
    machine: &'a Machine,
    step: StepGraph,
    n_micro_batches: usize,
    edges: Vec<Edge>,
    /// Edges into and out of each stage of one copy.
    incoming: Vec<Vec<usize>>,
    outgoing: Vec<Vec<usize>>,
    /// Program of each stage and micro-batch.
    home: Vec<u32>,
    /// Task of each forward and backward.
    forward_done: Vec<TaskId>,
    backward_done: Vec<TaskId>,
    /// Task that brings each edge's values, by copy, edge and micro-batch.
    forward_there: Vec<TaskId>,
    backward_there: Vec<TaskId>,
    /// Copies to host memory, by stage and micro-batch.
    copied_out: Vec<TaskId>,
    /// Last task on each stream of each program.
    tail: Vec<[TaskId; 5]>,
    /// Channels to other programs, by sender.
    channels: Vec<Vec<Channel>>,
    /// Copies out and computations of each program, in order: they limit how far copies run ahead.
    copies_out: Vec<Vec<TaskId>>,
    computed: Vec<Vec<TaskId>>,
    /// The last pass of each stage that makes gradients of its parameters, by program.
    last_of: Vec<BTreeMap<u32, Op>>,
    /// Last gradient of each stage, by program.
    last_gradient: Vec<Vec<(usize, TaskId)>>,
    ports: BTreeMap<(usize, usize, bool), u32>,
    /// Programs that run each stage of the model: replicas and copies.
    members: Vec<Rc<[usize]>>,
    /// The team of each stage, once it is needed.
    teams: Vec<Option<Rc<Team>>>,
    /// The teams of programs that shard a stage together, by stage and group, once they are needed.
    groups: BTreeMap<(usize, usize), Option<Rc<Team>>>,
    /// Links on which a group's messages queue, by its programs and direction.
    queues: BTreeMap<(Rc<[usize]>, bool), u32>,
    /// Waits of the next forward pass of each stage: messages, and the share of the pass before their layer.
    updates: Vec<Vec<(TaskId, u64, u64)>>,
    /// Stages of each program whose forward pass has not added these waits in this step.
    stale: Vec<Vec<usize>>,
    /// Where each program is between two updates, where weights change while micro-batches are on their way.
    rounds: Vec<Round>,
    /// The team of each tie, once it is needed.
    tie_teams: BTreeMap<usize, Option<Rc<Team>>>,
    /// Gradients of tied parameters made so far, by tie and first micro-batch of an update.
    tied: BTreeMap<(usize, usize), Vec<(TaskId, i64)>>,
    /// Each program's last optimizer step.
    stepped: Vec<Option<TaskId>>,
}

impl<'a> Builder<'a> {
    fn new(workload: &'a Workload, order: &'a Order, machine: &'a Machine) -> Result<Self, SimulateError> {
        let (n_stages, n_micro_batches) = (order.n_stages(), order.n_micro_batches());
        let n_ops = order.n_ops();
        let cells = n_stages.saturating_mul(n_micro_batches);
        if cells > n_ops.saturating_mul(2) {
            return Err(SimulateError::Incomplete { n_ops });
        }
        let edges = edges(workload, order.chain as usize);
        let mut incoming = vec![Vec::new(); workload.stages.len()];
        let mut outgoing = vec![Vec::new(); workload.stages.len()];
        for (idx, edge) in edges.iter().enumerate() {
            incoming[edge.to].push(idx);
            outgoing[edge.from].push(idx);
        }
        let mut home = vec![u32::MAX; cells];
        for (program, ops) in order.ranks.iter().enumerate() {
            for op in ops {
                home[op.stage as usize * n_micro_batches + op.micro_batch as usize] = program as u32;
            }
        }
        let mut members = vec![BTreeSet::new(); workload.stages.len()];
        for (program, ops) in order.ranks.iter().enumerate() {
            for op in ops {
                members[(op.stage % order.chain.max(1)) as usize].insert(program);
            }
        }
        let copies = n_stages.div_ceil(order.chain.max(1) as usize);
        let arrivals = copies.saturating_mul(edges.len()).saturating_mul(n_micro_batches);
        if arrivals > MAX_ARRIVALS {
            return Err(SimulateError::TooLarge { n_ops });
        }
        Ok(Self {
            workload,
            order,
            machine,
            step: StepGraph {
                graph: EventGraph::with_capacity(2 * n_ops),
                labels: Vec::with_capacity(2 * n_ops),
                ..StepGraph::default()
            },
            n_micro_batches,
            edges,
            incoming,
            outgoing,
            home,
            forward_done: vec![NONE; cells],
            backward_done: vec![NONE; cells],
            forward_there: vec![NONE; arrivals],
            backward_there: vec![NONE; arrivals],
            copied_out: vec![NONE; cells],
            tail: vec![[NONE; 5]; order.ranks.len()],
            channels: vec![Vec::new(); order.ranks.len()],
            copies_out: vec![Vec::new(); order.ranks.len()],
            computed: vec![Vec::new(); order.ranks.len()],
            last_of: order.ranks.iter().map(|ops| last_of(ops)).collect(),
            last_gradient: vec![Vec::new(); order.ranks.len()],
            ports: BTreeMap::new(),
            members: members.into_iter().map(|programs| programs.into_iter().collect()).collect(),
            teams: vec![None; workload.stages.len()],
            groups: BTreeMap::new(),
            queues: BTreeMap::new(),
            updates: vec![Vec::new(); workload.stages.len()],
            stale: vec![Vec::new(); order.ranks.len()],
            rounds: vec![Round::default(); order.ranks.len()],
            tie_teams: BTreeMap::new(),
            tied: BTreeMap::new(),
            stepped: vec![None; order.ranks.len()],
        })
    }

    /// Clears the state of the step before, except for the last task of each stream.
    fn begin_step(&mut self) {
        for table in [
            &mut self.forward_done,
            &mut self.backward_done,
            &mut self.forward_there,
            &mut self.backward_there,
            &mut self.copied_out,
        ] {
            table.fill(NONE);
        }
        self.last_gradient.iter_mut().for_each(Vec::clear);
        self.stale.iter_mut().for_each(Vec::clear);
        self.rounds.fill(Round::default());
        for (stage, updates) in self.updates.iter().enumerate() {
            for program in self.members[stage].iter().filter(|_| !updates.is_empty()) {
                self.stale[*program].push(stage);
            }
        }
    }

    fn cell(&self, stage: u32, micro_batch: u32) -> usize {
        stage as usize * self.n_micro_batches + micro_batch as usize
    }

    /// Returns the stage of one copy that a stage of the order is.
    fn model_stage(&self, stage: u32) -> usize {
        (stage % self.order.chain.max(1)) as usize
    }

    fn arrival(&self, op: Op, edge: usize) -> usize {
        let copy = (op.stage / self.order.chain.max(1)) as usize;
        (copy * self.edges.len() + edge) * self.n_micro_batches + op.micro_batch as usize
    }

    /// Walks all programs as far as they go, in turn, until all are done.
    fn walk(&mut self) -> Result<(), SimulateError> {
        let order = self.order;
        let mut position = vec![0; order.ranks.len()];
        loop {
            let mut moved = false;
            for (program, ops) in order.ranks.iter().enumerate() {
                while let Some(op) = ops.get(position[program]).copied() {
                    if self.rounds[program].waits {
                        break;
                    }
                    let partner = op.joined.then(|| ops.get(position[program] + 1).copied()).flatten();
                    if !self.is_ready(op) || partner.is_some_and(|op| !self.is_ready(op)) {
                        break;
                    }
                    self.compute(program, op, partner)?;
                    position[program] += 1 + usize::from(partner.is_some());
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        for (rank, ops) in order.ranks.iter().enumerate() {
            if let Some(op) = ops.get(position[rank]) {
                return Err(SimulateError::Deadlock { rank, position: position[rank], op: *op });
            }
        }
        Ok(())
    }

    fn is_ready(&self, op: Op) -> bool {
        let stage = self.model_stage(op.stage);
        let own = |table: &[TaskId]| table[self.cell(op.stage, op.micro_batch)] != NONE;
        let there = |table: &[TaskId], edge: &usize| table[self.arrival(op, *edge)] != NONE;
        match op.kind {
            Kind::Forward => self.incoming[stage].iter().all(|edge| there(&self.forward_there, edge)),
            Kind::InputGradient | Kind::Backward => {
                own(&self.forward_done)
                    && self.outgoing[stage].iter().all(|edge| there(&self.backward_there, edge))
            }
            Kind::WeightGradient => own(&self.backward_done),
        }
    }

    /// Adds a task behind the last one on its stream.
    fn push(&mut self, label: Label, duration: u64, mut waits: Vec<(TaskId, i64)>) -> TaskId {
        waits.extend(self.tail_of(label.program, label.stream).map(|tail| (tail, 0)));
        let task = self.step.graph.add(duration, waits);
        self.step.labels.push(label);
        self.tail[label.program][label.stream as usize] = task;
        task
    }

    fn tail_of(&self, program: usize, stream: Stream) -> Option<TaskId> {
        Some(self.tail[program][stream as usize]).filter(|task| *task != NONE)
    }

    fn device(&self, program: usize) -> &'a crate::machine::Device {
        &self.machine.devices[self.workload.devices[program]]
    }

    /// Returns the time of an operation's kernels, host overhead not included.
    fn kernel_time(&self, program: usize, op: Op) -> u64 {
        let stage = &self.workload.stages[self.model_stage(op.stage)];
        let weight_gradient = || stage.weight_gradient.saturating_add(self.accumulation(program, op));
        let kernels = match op.kind {
            Kind::Forward => stage.forward,
            Kind::InputGradient => stage.recompute.saturating_add(stage.input_gradient),
            Kind::WeightGradient => weight_gradient(),
            Kind::Backward => {
                stage.recompute.saturating_add(stage.input_gradient).saturating_add(weight_gradient())
            }
        };
        scaled(kernels, self.device(program).speed)
    }

    /// Returns the time of adding a pass's gradients to those that its program has made since the last update; none where it has
    /// made none.
    fn accumulation(&self, program: usize, op: Op) -> u64 {
        let stage = self.model_stage(op.stage);
        let has_gradients = self.last_gradient[program].iter().any(|(other, _)| *other == stage);
        if has_gradients { self.workload.stages[stage].accumulation } else { 0 }
    }

    fn compute(&mut self, program: usize, op: Op, partner: Option<Op>) -> Result<(), SimulateError> {
        let both = || std::iter::once(op).chain(partner);
        let mut waits = Vec::new();
        for op in both() {
            self.waits_of(op, &mut waits);
            self.copies_before(program, op, &mut waits);
            self.gather_before(program, op, &mut waits);
            self.wait_for_update(program, op, &mut waits);
        }
        let kernels = both().map(|op| self.kernel_time(program, op)).fold(0, u64::saturating_add);
        // Two passes that run beside each other are two calls of the host.
        let host = both().map(|op| self.device(program).host_time(op)).fold(0, u64::saturating_add);
        let duration = kernels.saturating_add(host);
        let plain = |op: Op| Op { joined: false, ..op };
        let work = Work::Compute { op: plain(op), partner: partner.map(plain) };
        let task = self.step.graph.len() as TaskId;
        for (before, _) in &waits {
            let brings = &self.step.labels[*before as usize].work;
            if matches!(brings, Work::Transfer { .. } | Work::Copy { .. } | Work::Gather { op: Some(_), .. })
            {
                self.step.consumers.push((*before, task));
            }
        }
        self.push(Label { program, stream: Stream::Compute, work }, duration, waits);
        let kernels = task;
        let task = self.all_reduce_inside(program, op, partner, kernels);
        for op in both() {
            let cell = self.cell(op.stage, op.micro_batch);
            match op.kind {
                Kind::Forward => self.forward_done[cell] = task,
                Kind::InputGradient | Kind::Backward => self.backward_done[cell] = task,
                Kind::WeightGradient => {}
            }
            if op.kind.frees_activations() {
                let stage = self.model_stage(op.stage);
                let last = &mut self.last_gradient[program];
                match last.iter_mut().find(|(other, _)| *other == stage) {
                    Some((_, last)) => *last = task,
                    None => last.push((stage, task)),
                }
            }
        }
        self.computed[program].push(task);
        for op in both() {
            self.send(program, op, task)?;
            self.copy_after(program, op, task);
        }
        for op in both().filter(|op| op.kind.frees_activations()) {
            if self.workload.updates.is_none() && self.last_of[program].get(&op.stage) != Some(&op) {
                self.scatter_after(program, op, task);
            }
            self.count_gradient(program, op, task);
        }
        Ok(())
    }

    fn waits_of(&self, op: Op, waits: &mut Vec<(TaskId, i64)>) {
        let stage = self.model_stage(op.stage);
        match op.kind {
            Kind::Forward => {
                let there = |edge: &usize| (self.forward_there[self.arrival(op, *edge)], 0);
                waits.extend(self.incoming[stage].iter().map(there));
            }
            Kind::InputGradient | Kind::Backward => {
                let there = |edge: &usize| (self.backward_there[self.arrival(op, *edge)], 0);
                waits.extend(self.outgoing[stage].iter().map(there));
                waits.push((self.forward_done[self.cell(op.stage, op.micro_batch)], 0));
            }
            Kind::WeightGradient => waits.push((self.backward_done[self.cell(op.stage, op.micro_batch)], 0)),
        }
    }
}

/// Returns the last pass of each stage that makes gradients of its parameters.
fn last_of(ops: &[Op]) -> BTreeMap<u32, Op> {
    ops.iter().filter(|op| op.kind.frees_activations()).map(|op| (op.stage, *op)).collect()
}

/// Returns the edges of one copy: the transfers, and an empty one from the stage before into each stage without any.
fn edges(workload: &Workload, chain: usize) -> Vec<Edge> {
    let mut merged: BTreeMap<(usize, usize), Edge> = BTreeMap::new();
    for transfer in &workload.transfers {
        let crate::Transfer { from, to, forward, backward } = *transfer;
        let edge = merged.entry((from, to)).or_insert(Edge { from, to, forward: 0, backward: 0 });
        edge.forward = edge.forward.saturating_add(forward);
        edge.backward = edge.backward.saturating_add(backward);
    }
    let listed: BTreeSet<usize> = merged.keys().map(|(_, to)| *to).collect();
    for to in 1..chain {
        if !listed.contains(&to) {
            let from = to - 1;
            merged.insert((from, to), Edge { from, to, forward: 0, backward: 0 });
        }
    }
    merged.into_values().collect()
}
