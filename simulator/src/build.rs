//! From an order on a machine to a graph of tasks: computation, transfers, copies, collectives, optimizer.
//!
//! Programs are walked as far as they go, like the clock does it, so every task is made after what it waits for and
//! a deadlock shows here. Each device computes in program order; transfers of a device leave in the order in which
//! their values are made; copies and collectives have streams of their own.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    collective::{self, Collective, Group},
    event_graph::{EventGraph, TaskId},
    machine::{Link, Machine, Sends, scaled, transfer_time},
    order::{Kind, Op, Order},
    sharing::Flow,
    step::{Label, SimulateError, StepGraph, Stream, Work},
    workload::{Offload, Sharding, Workload},
};

const NONE: TaskId = TaskId::MAX;
/// Bounds on memory, far above any real step.
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
/// Says what does not fit together, or where programs wait for each other.
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
    if builder.step.graph.total() > 1 << 62 {
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
    for (program, &device) in workload.devices.iter().enumerate() {
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
    let positive = |value: f64, what: &dyn Fn() -> String| {
        if value > 0.0 { Ok(()) } else { Err(SimulateError::NotPositive { what: what() }) }
    };
    for (idx, device) in machine.devices.iter().enumerate() {
        positive(device.speed, &|| format!("the speed of device {idx}"))?;
        positive(device.host_bandwidth, &|| format!("the host bandwidth of device {idx}"))?;
        positive(device.pageable, &|| format!("the pageable share of device {idx}"))?;
    }
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
    /// Copies out and computations of each program, in order: what bounds the copies' lead.
    copies_out: Vec<Vec<TaskId>>,
    computed: Vec<Vec<TaskId>>,
    /// Last gradient of each stage, by program.
    last_gradient: Vec<Vec<(usize, TaskId)>>,
    ports: BTreeMap<(usize, usize, bool), u32>,
    /// Programs that run each stage of the model: replicas and copies.
    members: Vec<Vec<usize>>,
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
                flows: Vec::new(),
                n_ports: 0,
                consumers: Vec::new(),
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
            last_gradient: vec![Vec::new(); order.ranks.len()],
            ports: BTreeMap::new(),
            members: members.into_iter().map(|programs| programs.into_iter().collect()).collect(),
        })
    }

    /// Forgets the step before but what each stream did last.
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

    /// Returns the time of an operation's kernels, collectives inside it included, host overhead not.
    fn kernel_time(&self, program: usize, op: Op) -> u64 {
        let stage = &self.workload.stages[self.model_stage(op.stage)];
        let kernels = match op.kind {
            Kind::Forward => stage.forward,
            Kind::InputGradient => stage.recompute.saturating_add(stage.input_gradient),
            Kind::WeightGradient => stage.weight_gradient,
            Kind::Backward => {
                stage.recompute.saturating_add(stage.input_gradient).saturating_add(stage.weight_gradient)
            }
        };
        // Weight gradients need no exchange: the inputs' gradient does it.
        let exchanges = op.kind != Kind::WeightGradient;
        let inside = stage.tensor_parallel.filter(|_| exchanges);
        let inside = inside.map_or(0, |group| group.all_reduce.saturating_mul(group.per_pass.into()));
        scaled(kernels, self.device(program).speed).saturating_add(inside)
    }

    fn compute(&mut self, program: usize, op: Op, partner: Option<Op>) -> Result<(), SimulateError> {
        let both = || std::iter::once(op).chain(partner);
        let mut waits = Vec::new();
        for op in both() {
            self.waits_of(op, &mut waits);
            self.copies_before(program, op, &mut waits);
            self.gather_before(program, op, &mut waits);
        }
        let kernels = both().map(|op| self.kernel_time(program, op)).fold(0, u64::saturating_add);
        let duration = kernels.saturating_add(self.device(program).host_overhead);
        let plain = |op: Op| Op { joined: false, ..op };
        let work = Work::Compute { op: plain(op), partner: partner.map(plain) };
        let task = self.step.graph.len() as TaskId;
        for (before, _) in &waits {
            if matches!(self.step.labels[*before as usize].work, Work::Transfer { .. } | Work::Copy { .. }) {
                self.step.consumers.push((*before, task));
            }
        }
        self.push(Label { program, stream: Stream::Compute, work }, duration, waits);
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

    /// Sends what an operation makes to every stage that needs it.
    fn send(&mut self, program: usize, op: Op, made: TaskId) -> Result<(), SimulateError> {
        let stage = self.model_stage(op.stage);
        let is_forward = op.kind == Kind::Forward;
        if op.kind == Kind::WeightGradient {
            return Ok(());
        }
        let n_edges = if is_forward { self.outgoing[stage].len() } else { self.incoming[stage].len() };
        for nth in 0..n_edges {
            let idx = if is_forward { self.outgoing[stage][nth] } else { self.incoming[stage][nth] };
            let edge = self.edges[idx];
            let (peer, bytes) = if is_forward { (edge.to, edge.forward) } else { (edge.from, edge.backward) };
            let peer_stage = op.stage - stage as u32 + peer as u32;
            let arrival = self.arrival(op, idx);
            let there = match self.home.get(self.cell(peer_stage, op.micro_batch)) {
                Some(&to) if to != u32::MAX && to as usize != program => {
                    self.transfer(program, to as usize, op, bytes, made)?
                }
                _ => made,
            };
            let table = if is_forward { &mut self.forward_there } else { &mut self.backward_there };
            table[arrival] = there;
        }
        Ok(())
    }

    fn transfer(
        &mut self,
        from: usize,
        to: usize,
        op: Op,
        bytes: u64,
        made: TaskId,
    ) -> Result<TaskId, SimulateError> {
        let (source, target) = (self.workload.devices[from], self.workload.devices[to]);
        if source == target {
            return Ok(made);
        }
        let nth = self.channel(from, to, source, target)?;
        let Channel { link, ports, last, .. } = self.channels[from][nth];
        let duration = link.latency.saturating_add(transfer_time(bytes, link.bandwidth));
        let label = Label {
            program: from,
            stream: Stream::Network,
            work: Work::Transfer { op: Op { joined: false, ..op }, to, bytes },
        };
        // Messages do not overtake each other, but their latencies overlap.
        let behind = (last != NONE).then(|| (last, -i64::try_from(link.latency).unwrap_or(i64::MAX)));
        let waits = std::iter::once((made, 0)).chain(behind);
        let task = if self.machine.sends == Sends::Blocking {
            self.push(Label { stream: Stream::Compute, ..label }, duration, waits.collect())
        } else {
            let task = self.step.graph.add(duration, waits);
            self.step.labels.push(label);
            task
        };
        self.channels[from][nth].last = task;
        self.step.flows.push(Flow { task, latency: link.latency, bytes, ports, bandwidth: link.bandwidth });
        Ok(task)
    }

    /// Returns the place of a channel among its sender's.
    fn channel(
        &mut self,
        from: usize,
        to: usize,
        source: usize,
        target: usize,
    ) -> Result<usize, SimulateError> {
        if let Some(nth) = self.channels[from].iter().position(|channel| channel.to == to) {
            return Ok(nth);
        }
        let link =
            self.machine.link(source, target).ok_or(SimulateError::NoLink { from: source, to: target })?;
        let level = self.machine.level(source, target);
        let ports = [self.port(source, level, true), self.port(target, level, false)];
        self.channels[from].push(Channel { to, link, ports, last: NONE });
        Ok(self.channels[from].len() - 1)
    }

    fn port(&mut self, device: usize, level: usize, is_out: bool) -> u32 {
        let next = self.ports.len() as u32;
        let port = *self.ports.entry((device, level, is_out)).or_insert(next);
        self.step.n_ports = self.ports.len();
        port
    }

    /// Rate of copies to host memory, and whether the computation waits for them.
    fn copy_rate(&self, program: usize) -> (f64, Option<u32>) {
        let device = self.device(program);
        match self.workload.offload {
            Offload::Naive | Offload::NonBlocking => (device.host_bandwidth * device.pageable, None),
            Offload::Pinned => (device.host_bandwidth, None),
            Offload::Overlapped { depth } => (device.host_bandwidth, Some(depth.max(1))),
        }
    }

    /// Brings offloaded activations back before a backward; before a forward, waits for a free buffer.
    fn copies_before(&mut self, program: usize, op: Op, waits: &mut Vec<(TaskId, i64)>) {
        let bytes = self.workload.stages[self.model_stage(op.stage)].memory.offloaded;
        if bytes == 0 {
            return;
        }
        let (rate, depth) = self.copy_rate(program);
        match op.kind {
            Kind::Forward => {
                if let Some(depth) = depth {
                    let copies = &self.copies_out[program];
                    let buffer = copies.len().checked_sub(depth as usize).map(|idx| (copies[idx], 0));
                    waits.extend(buffer);
                }
            }
            Kind::InputGradient | Kind::Backward => {
                let mut before = vec![(self.copied_out[self.cell(op.stage, op.micro_batch)], 0)];
                let stream = if let Some(depth) = depth {
                    // So many buffers: the copy may run beside the passes that use the others.
                    let done = &self.computed[program];
                    before.extend(done.len().checked_sub(depth as usize).map(|idx| (done[idx], 0)));
                    Stream::CopyIn
                } else {
                    // What a blocking copy waits for, the stream waits for.
                    before.append(waits);
                    Stream::Compute
                };
                let work = Work::Copy { op: Op { joined: false, ..op }, bytes };
                let copy = self.push(Label { program, stream, work }, transfer_time(bytes, rate), before);
                waits.push((copy, 0));
            }
            Kind::WeightGradient => {}
        }
    }

    fn copy_after(&mut self, program: usize, op: Op, made: TaskId) {
        let bytes = self.workload.stages[self.model_stage(op.stage)].memory.offloaded;
        if bytes == 0 || op.kind != Kind::Forward {
            return;
        }
        let (rate, depth) = self.copy_rate(program);
        let stream = if depth.is_some() { Stream::CopyOut } else { Stream::Compute };
        let work = Work::Copy { op: Op { joined: false, ..op }, bytes };
        let copy = self.push(Label { program, stream, work }, transfer_time(bytes, rate), vec![(made, 0)]);
        self.copies_out[program].push(copy);
        let cell = self.cell(op.stage, op.micro_batch);
        self.copied_out[cell] = copy;
    }

    /// FSDP: gathers a stage's parameters before a pass, one pass ahead.
    fn gather_before(&mut self, program: usize, op: Op, waits: &mut Vec<(TaskId, i64)>) {
        if self.workload.sync.sharding != Sharding::Parameters || op.kind == Kind::WeightGradient {
            return;
        }
        let stage = self.model_stage(op.stage);
        let Some(group) = self.collective_group(&self.members[stage]) else { return };
        let bytes = self.workload.stages[stage].memory.parameters;
        let time = collective::time(Collective::AllGather, self.workload.sync.algorithm, bytes, &group);
        // The gather may run beside the pass before this one, so it waits for the one before that.
        let ahead = self.tail_of(program, Stream::Compute).map(|tail| {
            let duration = self.step.graph.duration(tail);
            (tail, -i64::try_from(duration).unwrap_or(i64::MAX))
        });
        let work = Work::Gather { stage: stage as u32, op: Some(Op { joined: false, ..op }) };
        let label = Label { program, stream: Stream::Collective, work };
        let gather = self.push(label, time, ahead.into_iter().collect());
        waits.push((gather, 0));
    }

    /// The links of a group of programs; `None` for fewer than two devices.
    fn collective_group(&self, programs: &[usize]) -> Option<Group> {
        let mut devices: Vec<usize> =
            programs.iter().map(|program| self.workload.devices[*program]).collect();
        devices.sort_unstable();
        devices.dedup();
        if devices.len() < 2 {
            return None;
        }
        let node = |device: &usize| self.machine.devices[*device].place.first().copied().unwrap_or(0);
        let mut by_node: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for device in &devices {
            by_node.entry(node(device)).or_default().push(*device);
        }
        let per_node = by_node.values().map(Vec::len).max().unwrap_or(1);
        let is_even = by_node.values().all(|members| members.len() == per_node);
        let slowest = self.machine.ring(&devices).unwrap_or(Link { latency: 0, bandwidth: f64::INFINITY });
        if by_node.len() == 1 || !is_even {
            return Some(Group::flat(devices.len() as u32, slowest));
        }
        let inner = by_node.values().filter_map(|members| self.machine.ring(members)).reduce(|a, b| Link {
            latency: a.latency.max(b.latency),
            bandwidth: a.bandwidth.min(b.bandwidth),
        });
        Some(Group {
            nodes: by_node.len() as u32,
            per_node: per_node as u32,
            inner: inner.unwrap_or(slowest),
            outer: slowest,
        })
    }

    /// Gradient sync by bucket, then the optimizer's step.
    fn finish_step(&mut self) {
        let sync = self.workload.sync;
        let mut synced: BTreeMap<usize, Vec<TaskId>> = BTreeMap::new();
        // The last stage has its gradients first.
        for stage in (0..self.workload.stages.len()).rev() {
            // A replica without a micro-batch has nothing to add, but needs the sum.
            let members = self.members[stage].clone();
            let Some(group) = self.collective_group(&members) else { continue };
            let bytes = self.workload.stages[stage].memory.gradients;
            let n_buckets = bytes.div_ceil(sync.bucket.max(1)).clamp(1, 4096);
            let what = match sync.sharding {
                Sharding::Replicated => Collective::AllReduce,
                _ => Collective::ReduceScatter,
            };
            for bucket in 0..n_buckets {
                // The last bucket is the rest.
                let size = bytes / n_buckets + if bucket + 1 == n_buckets { bytes % n_buckets } else { 0 };
                let time = collective::time(what, sync.algorithm, size, &group);
                let mut waits = Vec::new();
                for program in &members {
                    let own = self.last_gradient[*program].iter().find(|(other, _)| *other == stage);
                    if let Some((_, last)) = own {
                        // Gradients appear evenly over the last backward.
                        let early = self.step.graph.duration(*last) / n_buckets * (n_buckets - 1 - bucket);
                        waits.push((*last, -i64::try_from(early).unwrap_or(i64::MAX)));
                    }
                    waits.extend(self.tail_of(*program, Stream::Collective).map(|tail| (tail, 0)));
                }
                let label = Label {
                    program: members[0],
                    stream: Stream::Collective,
                    work: Work::Reduce { stage: stage as u32, bucket: bucket as u32 },
                };
                let task = self.push(label, time, waits);
                for program in &members {
                    self.tail[*program][Stream::Collective as usize] = task;
                    synced.entry(*program).or_default().push(task);
                }
            }
        }
        for program in 0..self.order.ranks.len() {
            self.optimizer_step(program, synced.remove(&program).unwrap_or_default());
        }
    }

    fn optimizer_step(&mut self, program: usize, synced: Vec<TaskId>) {
        let stages: Vec<usize> = self.last_gradient[program].iter().map(|(stage, _)| *stage).collect();
        let shards = |builder: &Self, stage: usize| match builder.workload.sync.sharding {
            Sharding::Replicated => 1,
            _ => builder.members[stage].len().max(1) as u64,
        };
        let time: u64 = stages
            .iter()
            .map(|stage| self.workload.stages[*stage].optimizer_step / shards(self, *stage))
            .sum();
        if time == 0 {
            return;
        }
        let duration = scaled(time, self.device(program).speed);
        let waits = synced.into_iter().map(|task| (task, 0)).collect();
        let label = Label { program, stream: Stream::Compute, work: Work::Optimizer };
        let step = self.push(label, duration, waits);
        if !matches!(self.workload.sync.sharding, Sharding::Optimizer | Sharding::Gradients) {
            return;
        }
        // Each replica has stepped its share of the parameters; now everybody needs all of them.
        for stage in stages {
            let Some(group) = self.collective_group(&self.members[stage]) else { continue };
            let bytes = self.workload.stages[stage].memory.parameters;
            let time = collective::time(Collective::AllGather, self.workload.sync.algorithm, bytes, &group);
            let work = Work::Gather { stage: stage as u32, op: None };
            self.push(Label { program, stream: Stream::Collective, work }, time, vec![(step, 0)]);
        }
    }
}

/// Returns the edges of one copy: the transfers, and the chain where nothing is listed.
fn edges(workload: &Workload, chain: usize) -> Vec<Edge> {
    let mut merged: BTreeMap<(usize, usize), Edge> = BTreeMap::new();
    for transfer in &workload.transfers {
        let crate::Transfer { from, to, forward, backward } = *transfer;
        let edge = merged.entry((from, to)).or_insert(Edge { from, to, forward: 0, backward: 0 });
        edge.forward = edge.forward.saturating_add(forward);
        edge.backward = edge.backward.saturating_add(backward);
    }
    for to in 1..chain {
        if !merged.keys().any(|(_, listed)| *listed == to) {
            let from = to - 1;
            merged.insert((from, to), Edge { from, to, forward: 0, backward: 0 });
        }
    }
    merged.into_values().collect()
}
