//! Collectives: their members and links, FSDP's gathers, tensor-parallel all-reduces.

use std::{collections::BTreeMap, rc::Rc};

use super::Builder;
use crate::{
    collective::{self, Algorithm, Collective, Group, Parts},
    event_graph::TaskId,
    machine::{Link, Machine},
    order::{Kind, Op},
    step::{Label, Stream, Work},
    workload::Sharding,
};

/// Programs that take part in a collective, and the links between their devices.
pub(super) struct Team {
    /// The programs.
    pub(super) members: Rc<[usize]>,
    /// The links of two devices or more.
    pub(super) group: Group,
    /// Where each of their devices is in the ring, by device.
    places: BTreeMap<usize, usize>,
    /// The ports of neighbours in a ring: out of one device, into the next, and so on.
    ring: Vec<u32>,
}

/// The directions of a team's links that a message uses.
#[derive(Clone, Copy)]
pub(super) enum Ways {
    /// From each member to the next.
    Both,
    /// From members to servers.
    Out,
    /// From servers to members.
    In,
}

impl Builder<'_> {
    /// FSDP: gathers a stage's parameters before a pass, one pass ahead.
    pub(super) fn gather_before(&mut self, program: usize, op: Op, waits: &mut Vec<(TaskId, i64)>) {
        if self.workload.sync.sharding != Sharding::Parameters || op.kind == Kind::WeightGradient {
            return;
        }
        let stage = self.model_stage(op.stage);
        let Some(team) = self.sharers(program, stage) else { return };
        let bytes = self.workload.stages[stage].memory.parameters;
        let parts =
            collective::parts(Collective::AllGather, self.workload.sync.algorithm, bytes, &team.group);
        self.count_sent(Collective::AllGather, bytes, &team, 1);
        // A gather waits until every member has run its optimizer step.
        let mut ahead: Vec<(TaskId, i64)> =
            team.members.iter().filter_map(|member| self.stepped[*member]).map(|step| (step, 0)).collect();
        // The gather may run beside the pass before this one: it starts with that pass.
        ahead.extend(self.computed[program].last().map(|pass| {
            let kernels = self.kernels_of(*pass);
            (kernels, -i64::try_from(self.step.graph.duration(kernels)).unwrap_or(i64::MAX))
        }));
        let work = Work::Gather { stage: stage as u32, op: Some(Op { joined: false, ..op }) };
        let label = Label { program, stream: Stream::Collective, work };
        let gather = self.collective(label, parts, &[program], &team, ahead);
        waits.push((gather, 0));
    }

    /// ZeRO-2 and FSDP: reduce-scatters a micro-batch's gradients beside the next passes.
    ///
    /// Those of the last micro-batch before an update are summed in buckets.
    pub(super) fn scatter_after(&mut self, program: usize, op: Op, pass: TaskId) {
        if self.workload.sync.sharding < Sharding::Gradients {
            return;
        }
        let stage = self.model_stage(op.stage);
        let Some(team) = self.sharers(program, stage) else { return };
        let bytes = self.workload.stages[stage].memory.gradients;
        let parts =
            collective::parts(Collective::ReduceScatter, self.workload.sync.algorithm, bytes, &team.group);
        self.count_sent(Collective::ReduceScatter, bytes, &team, 1);
        let work = Work::Scatter { op: Op { joined: false, ..op } };
        let label = Label { program, stream: Stream::Collective, work };
        // Gradients appear layer by layer: the reduce-scatter begins with the pass and ends no earlier.
        let kernels = self.kernels_of(pass);
        let early = self.step.graph.duration(kernels).min(parts.total());
        let early = i64::try_from(early).unwrap_or(i64::MAX);
        let waits = if kernels == pass { (kernels, -early) } else { (pass, 0) };
        self.collective(label, parts, &[program], &team, vec![waits]);
    }

    /// Returns the kernels of a pass, which stand before its all-reduces.
    pub(super) fn kernels_of(&self, pass: TaskId) -> TaskId {
        let inside = matches!(self.step.labels[pass as usize].work, Work::AllReduce { .. });
        if inside { pass - 1 } else { pass }
    }

    /// Adds the all-reduces inside a pass of a tensor-parallel stage; returns the task that ends the pass.
    pub(super) fn all_reduce_inside(
        &mut self,
        program: usize,
        op: Op,
        partner: Option<Op>,
        kernels: TaskId,
    ) -> TaskId {
        let Some(peers) = self.workload.peers.get(program).filter(|peers| !peers.is_empty()) else {
            return kernels;
        };
        let (mut count, mut bytes) = (0_u32, 0_u64);
        for op in std::iter::once(op).chain(partner) {
            // Only the input gradient needs an exchange, not the weight gradient.
            let inside = self.workload.stages[self.model_stage(op.stage)].tensor_parallel;
            if let Some(inside) = inside.filter(|_| op.kind != Kind::WeightGradient) {
                count = count.saturating_add(inside.per_pass);
                bytes = bytes.saturating_add(inside.bytes.saturating_mul(inside.per_pass.into()));
            }
        }
        if count == 0 {
            return kernels;
        }
        let devices = peers.iter().copied().chain([self.workload.devices[program]]).collect();
        let devices = self.machine.around(devices);
        let Some(group) = group(self.machine, &devices) else { return kernels };
        // Inside layers a parameter server is replaced by the fastest algorithm.
        let algorithm = match self.workload.sync.algorithm {
            Algorithm::ParameterServer { .. } => Algorithm::Fastest,
            algorithm => algorithm,
        };
        let each = bytes / u64::from(count);
        let one = collective::parts(Collective::AllReduce, algorithm, each, &group);
        let parts = Parts {
            latency: one.latency.saturating_mul(count.into()),
            transfer: one.transfer.saturating_mul(count.into()),
        };
        let sent = collective::sent(Collective::AllReduce, algorithm, bytes, devices.len() as u64);
        self.step.sent = self.step.sent.saturating_add(sent);
        let work = Work::AllReduce { op: Op { joined: false, ..op }, count, bytes };
        let label = Label { program, stream: Stream::Collective, work };
        let task = self.push(label, parts.total(), vec![(kernels, 0)]);
        let ports = self.ring_ports(&devices);
        self.flow(task, parts.latency, parts.transfer, &ports);
        // The pass waits for the all-reduces, and so do later passes.
        self.tail[program][Stream::Compute as usize] = task;
        task
    }

    /// Counts the bytes that a collective of a team moves between devices when `acting` of its members take part.
    pub(super) fn count_sent(&mut self, what: Collective, bytes: u64, team: &Team, acting: usize) {
        let n_devices = team.places.len() as u64;
        let whole = collective::sent(what, self.workload.sync.algorithm, bytes, n_devices);
        let own = u128::from(whole) * acting as u128 / team.members.len().max(1) as u128;
        let own = u64::try_from(own).unwrap_or(u64::MAX);
        let alike = team.members.first().map_or(1, |program| self.alike(*program));
        self.step.sent = self.step.sent.saturating_add(own.saturating_mul(alike));
    }

    /// Returns the size of a program's tensor-parallel group.
    pub(super) fn alike(&self, program: usize) -> u64 {
        1 + self.workload.peers.get(program).map_or(0, |peers| peers.len() as u64)
    }

    /// Adds a collective behind its members' collective streams; its bytes share the ports of a ring.
    ///
    /// `acting` are the members that this task stands for.
    pub(super) fn collective(
        &mut self,
        label: Label,
        parts: Parts,
        acting: &[usize],
        team: &Team,
        mut waits: Vec<(TaskId, i64)>,
    ) -> TaskId {
        for program in acting {
            waits.extend(self.tail_of(*program, Stream::Collective).map(|tail| (tail, 0)));
        }
        let task = self.message(label, parts, acting, (team, Ways::Both), waits);
        for program in acting {
            self.tail[*program][Stream::Collective as usize] = task;
        }
        task
    }

    /// Adds a collective that waits for its given waits alone.
    pub(super) fn message(
        &mut self,
        label: Label,
        parts: Parts,
        acting: &[usize],
        (team, ways): (&Team, Ways),
        waits: Vec<(TaskId, i64)>,
    ) -> TaskId {
        let task = self.step.graph.add(parts.total(), waits);
        self.step.labels.push(label);
        let others: Vec<usize> = acting.iter().copied().filter(|other| *other != label.program).collect();
        if !others.is_empty() {
            self.step.members.insert(task, others);
        }
        let n = team.ring.len();
        let used: Vec<usize> = match team.places.get(&self.workload.devices[label.program]) {
            // Each member's part of a collective is a task: bytes out of its device, and into it.
            Some(own) if acting.len() < team.members.len() => {
                let mut own = vec![2 * own, (2 * own + n - 1) % n];
                own.sort_unstable();
                own
            }
            _ => (0..n).collect(),
        };
        let is_on_the_way = |at: &usize| match ways {
            Ways::Both => true,
            Ways::Out => at.is_multiple_of(2),
            Ways::In => !at.is_multiple_of(2),
        };
        let ports: Vec<u32> = used.into_iter().filter(is_on_the_way).map(|at| team.ring[at]).collect();
        self.flow(task, parts.latency, parts.transfer, &ports);
        task
    }

    /// The ports of neighbours in a ring of devices.
    fn ring_ports(&mut self, devices: &[usize]) -> Vec<u32> {
        let mut ports = Vec::with_capacity(2 * devices.len());
        for (at, &from) in devices.iter().enumerate() {
            let to = devices[(at + 1) % devices.len()];
            if from != to {
                let level = self.machine.level(from, to);
                ports.extend([self.port(from, level, true), self.port(to, level, false)]);
            }
        }
        ports
    }

    /// The programs of a stage as a team; `None` for fewer than two devices.
    pub(super) fn team(&mut self, stage: usize) -> Option<Rc<Team>> {
        if self.teams[stage].is_none() {
            self.teams[stage] = self.team_of(Rc::clone(&self.members[stage])).map(Rc::new);
        }
        self.teams[stage].clone()
    }

    /// Returns the team of programs that shard a stage together with this one; `None` for fewer than two devices.
    pub(super) fn sharers(&mut self, program: usize, stage: usize) -> Option<Rc<Team>> {
        let members = Rc::clone(&self.members[stage]);
        let size = self.workload.sync.sharers(members.len());
        if size == members.len() {
            return self.team(stage);
        }
        let group = members.iter().position(|member| *member == program)? / size;
        if let Some(known) = self.groups.get(&(stage, group)) {
            return known.clone();
        }
        let team = self.team_of(members[group * size..(group + 1) * size].into()).map(Rc::new);
        self.groups.insert((stage, group), team.clone());
        team
    }

    /// The same for any programs.
    pub(super) fn team_of(&mut self, members: Rc<[usize]>) -> Option<Team> {
        let devices = members.iter().map(|program| self.workload.devices[*program]).collect();
        let devices = self.machine.around(devices);
        let group = group(self.machine, &devices)?;
        let ring = self.ring_ports(&devices);
        let places = devices.into_iter().enumerate().map(|(place, device)| (device, place)).collect();
        Some(Team { members, group, places, ring })
    }
}

/// The links of a group of devices, as a ring goes around them; `None` for fewer than two.
fn group(machine: &Machine, devices: &[usize]) -> Option<Group> {
    if devices.len() < 2 {
        return None;
    }
    let mut by_node: BTreeMap<&[u32], Vec<usize>> = BTreeMap::new();
    for device in devices {
        by_node.entry(&machine.devices[*device].place).or_default().push(*device);
    }
    let per_node = by_node.values().map(Vec::len).max().unwrap_or(1);
    let is_even = by_node.values().all(|members| members.len() == per_node);
    let slowest = machine.ring(devices).unwrap_or(Link { latency: 0, bandwidth: f64::INFINITY });
    if by_node.len() == 1 || !is_even {
        return Some(Group::flat(devices.len() as u32, slowest));
    }
    let inner = by_node
        .values()
        .filter_map(|members| machine.ring(members))
        .reduce(|a, b| Link { latency: a.latency.max(b.latency), bandwidth: a.bandwidth.min(b.bandwidth) });
    Some(Group {
        nodes: by_node.len() as u32,
        per_node: per_node as u32,
        inner: inner.unwrap_or(slowest),
        outer: slowest,
    })
}
