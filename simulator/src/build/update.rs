//! The end of a step: replicas agree on gradients, the optimizer steps.
//!
//! Gradients go in buckets behind the backward that makes them (DDP, Horovod), after it, or layer by layer over a
//! queue (parameter server, P3). In the last case the sum comes back updated, and the next step's forward passes wait
//! layer by layer for it.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use super::{Builder, collectives::Ways};
use crate::{
    collective::{self, Algorithm, Collective},
    event_graph::TaskId,
    order::{Kind, Op},
    sharing::Queued,
    step::{Label, Stream, Work},
    workload::{Layer, Servers, Sharding, Stage, Sync, SyncMode},
};

/// Most messages of a stage in a step; beyond it, they are made larger.
const MAX_MESSAGES: u64 = 16_384;

/// What is sent of a stage's gradients in one go.
struct Message {
    bytes: u64,
    /// Backward work that is still to be done when the gradients exist, of `whole`.
    remaining: u64,
    whole: u64,
    /// The layer, from the front.
    layer: usize,
    /// Forward work before the layer, of the stage's, when this is the layer's last message.
    needed: Option<(u64, u64)>,
}

impl Builder<'_> {
    /// Gradient sync by bucket or layer, then the optimizer's step.
    pub(super) fn finish_step(&mut self) {
        let sync = self.workload.sync;
        let mut synced: BTreeMap<usize, Vec<TaskId>> = BTreeMap::new();
        self.updates.iter_mut().for_each(Vec::clear);
        let layers_of = |stage: &Stage| stage.layers.len().max(1);
        let mut before: usize = self.workload.stages.iter().map(layers_of).sum();
        // The last stage has its gradients first.
        for stage in (0..self.workload.stages.len()).rev() {
            before -= layers_of(&self.workload.stages[stage]);
            let Some(team) = self.team(stage) else { continue };
            let (members, group) = (&team.members, &team.group);
            let what = match sync.sharding {
                Sharding::Replicated => Collective::AllReduce,
                _ => Collective::ReduceScatter,
            };
            for (nth, message) in messages(&self.workload.stages[stage], sync).into_iter().enumerate() {
                let parts = collective::parts(what, sync.algorithm, message.bytes, group);
                // A replica without a micro-batch has nothing to add, but needs the sum.
                let waits =
                    members.iter().filter_map(|program| self.gradients_exist(*program, stage, &message));
                let waits: Vec<(TaskId, i64)> = waits.collect();
                let label = Label {
                    program: members[0],
                    stream: Stream::Collective,
                    work: Work::Reduce { stage: stage as u32, message: nth as u32, bytes: message.bytes },
                };
                if sync.mode.slice().is_none() {
                    let task = self.collective(label, parts, members, &team, waits);
                    members.iter().for_each(|program| synced.entry(*program).or_default().push(task));
                    continue;
                }
                let is_first_come = matches!(sync.mode, SyncMode::Fifo { .. });
                let rank = if is_first_come { 0 } else { (before + message.layer) as u64 };
                let task = match (sync.servers, sync.algorithm) {
                    (Servers::Apart, Algorithm::ParameterServer { servers }) => {
                        let parts = collective::to_servers(message.bytes, servers, group);
                        let pushed = self.message(label, parts, members, (&team, Ways::Out), waits);
                        self.queue(pushed, (Rc::clone(members), true), rank);
                        let label = Label { work: Work::Gather { stage: stage as u32, op: None }, ..label };
                        let back = self.message(label, parts, members, (&team, Ways::In), vec![(pushed, 0)]);
                        self.queue(back, (Rc::clone(members), false), rank);
                        back
                    }
                    _ => {
                        let task = self.message(label, parts, members, (&team, Ways::Both), waits);
                        self.queue(task, (Rc::clone(members), true), rank);
                        task
                    }
                };
                self.updates[stage].extend(message.needed.map(|(before, whole)| (task, before, whole)));
            }
        }
        self.add_up_ties(&mut synced);
        for program in 0..self.order.ranks.len() {
            self.optimizer_step(program, synced.remove(&program).unwrap_or_default());
        }
        if matches!(sync.sharding, Sharding::Optimizer | Sharding::Gradients) {
            (0..self.order.ranks.len()).for_each(|program| self.gather_after(program));
        }
    }

    /// Adds the gradients of tied parameters up across the stages that hold them.
    fn add_up_ties(&mut self, synced: &mut BTreeMap<usize, Vec<TaskId>>) {
        let workload = self.workload;
        for (nth, tie) in workload.ties.iter().enumerate() {
            let n_stages = self.members.len();
            let stages = || tie.stages.iter().filter(|stage| **stage < n_stages);
            let members: BTreeSet<usize> =
                stages().flat_map(|stage| self.members[*stage].iter().copied()).collect();
            let Some(team) = self.team_of(members.into_iter().collect()) else { continue };
            let members = &team.members;
            let parts = collective::parts(
                Collective::AllReduce,
                self.workload.sync.algorithm,
                tie.bytes,
                &team.group,
            );
            let whole = Message { bytes: tie.bytes, remaining: 0, whole: 0, layer: 0, needed: None };
            let exist = |stage: &usize| {
                let of = |program: &usize| self.gradients_exist(*program, *stage, &whole);
                members.iter().filter_map(of).collect::<Vec<_>>()
            };
            let waits: Vec<(TaskId, i64)> = stages().flat_map(exist).collect();
            let stage = tie.stages.first().copied().unwrap_or(0) as u32;
            // Behind the stage's own messages.
            let message = MAX_MESSAGES as u32 + nth as u32;
            let label = Label {
                program: members[0],
                stream: Stream::Collective,
                work: Work::Reduce { stage, message, bytes: tie.bytes },
            };
            let task = self.collective(label, parts, members, &team, waits);
            members.iter().for_each(|program| synced.entry(*program).or_default().push(task));
        }
    }

    /// Lets a message wait for its turn on a group's link, in one of its directions.
    fn queue(&mut self, task: TaskId, link: (Rc<[usize]>, bool), rank: u64) {
        let next = self.queues.len() as u32;
        let queue = *self.queues.entry(link).or_insert(next);
        self.step.n_queues = self.queues.len();
        self.step.queued.push(Queued { task, queue, rank });
    }

    /// Returns the wait of a message for one replica's gradients.
    fn gradients_exist(&self, program: usize, stage: usize, message: &Message) -> Option<(TaskId, i64)> {
        if self.workload.sync.mode == SyncMode::AfterBackward {
            return self.tail_of(program, Stream::Compute).map(|tail| (tail, 0));
        }
        let (_, last) = *self.last_gradient[program].iter().find(|(other, _)| *other == stage)?;
        if message.remaining == 0 {
            return Some((last, 0));
        }
        // The all-reduces of a tensor-parallel pass are spread over its kernels, and so are its gradients over both. Here
        // they stand behind the kernels: what exists before the last of them exists at the end of the pass at the latest.
        let kernels = self.kernels_of(last);
        let inside = if kernels == last { 0 } else { self.step.graph.duration(last) };
        let duration = u128::from(self.step.graph.duration(kernels)) + u128::from(inside);
        let early = duration * u128::from(message.remaining) / u128::from(message.whole.max(1));
        let lag = i64::try_from(inside)
            .unwrap_or(i64::MAX)
            .saturating_sub(i64::try_from(early).unwrap_or(i64::MAX));
        Some(if lag <= 0 { (kernels, lag) } else { (last, 0) })
    }

    /// Lets the first forward pass of a step wait, layer by layer, for the parameters of the step before.
    pub(super) fn wait_for_update(&mut self, program: usize, op: Op, waits: &mut Vec<(TaskId, i64)>) {
        if op.kind != Kind::Forward {
            return;
        }
        let stage = self.model_stage(op.stage);
        let Some(at) = self.stale[program].iter().position(|other| *other == stage) else { return };
        self.stale[program].swap_remove(at);
        let duration = u128::from(self.kernel_time(program, op));
        for (task, before, whole) in &self.updates[stage] {
            // Passes are not interrupted here: beginning late by what stands before the layer ends at the same time.
            let early = duration * u128::from(*before) / u128::from((*whole).max(1));
            waits.push((*task, -i64::try_from(early).unwrap_or(i64::MAX)));
        }
    }

    fn optimizer_step(&mut self, program: usize, synced: Vec<TaskId>) {
        let stages: Vec<usize> = self.last_gradient[program].iter().map(|(stage, _)| *stage).collect();
        let shards = |builder: &Self, stage: usize| match builder.workload.sync.sharding {
            Sharding::Replicated => 1,
            _ => builder.members[stage].len().max(1) as u64,
        };
        // Where layers are sent by themselves, they come back updated.
        let is_updated = |builder: &Self, stage: usize| !builder.updates[stage].is_empty();
        let time: u64 = stages
            .iter()
            .filter(|stage| !is_updated(self, **stage))
            .map(|stage| self.workload.stages[*stage].optimizer_step / shards(self, *stage))
            .sum();
        // A step of no time still waits for the sums.
        if time == 0 && synced.is_empty() {
            return;
        }
        let duration = crate::machine::scaled(time, self.device(program).speed);
        let waits = synced.into_iter().map(|task| (task, 0)).collect();
        let label = Label { program, stream: Stream::Compute, work: Work::Optimizer };
        let step = self.push(label, duration, waits);
        self.stepped[program] = Some(step);
    }

    /// Each replica has stepped its share of the parameters; now everybody needs all of them before it goes on.
    fn gather_after(&mut self, program: usize) {
        let stages: Vec<usize> = self.last_gradient[program].iter().map(|(stage, _)| *stage).collect();
        for stage in stages {
            let Some(team) = self.team(stage) else { continue };
            let waits = team
                .members
                .iter()
                .filter_map(|member| self.stepped[*member])
                .map(|step| (step, 0))
                .collect();
            let bytes = self.workload.stages[stage].memory.parameters;
            let parts =
                collective::parts(Collective::AllGather, self.workload.sync.algorithm, bytes, &team.group);
            let work = Work::Gather { stage: stage as u32, op: None };
            let label = Label { program, stream: Stream::Collective, work };
            let task = self.collective(label, parts, &[program], &team, waits);
            self.tail[program][Stream::Compute as usize] = task;
        }
    }
}

/// Divides a stage's gradients into messages, in the order in which they come to exist: the last layer's first.
fn messages(stage: &Stage, sync: Sync) -> Vec<Message> {
    match sync.mode.slice() {
        Some(slice) => slices(stage, slice),
        None => buckets(stage, sync),
    }
}

fn buckets(stage: &Stage, sync: Sync) -> Vec<Message> {
    let total = stage.memory.gradients;
    if total == 0 {
        return Vec::new();
    }
    let size = sync.bucket.max(total.div_ceil(MAX_MESSAGES)).max(1);
    let first = sync.first_bucket.clamp(1, size);
    let message = |bytes, remaining, whole| Message { bytes, remaining, whole, layer: 0, needed: None };
    let mut messages: Vec<Message> = Vec::new();
    if stage.layers.is_empty() {
        // Gradients appear evenly over the backward.
        let mut left = total;
        while left > 0 {
            let bytes = left.min(if messages.is_empty() { first } else { size });
            left -= bytes;
            messages.push(message(bytes, left, total));
        }
        return messages;
    }
    let whole: u64 = stage.layers.iter().map(|layer| layer.backward).sum();
    let (mut remaining, mut bytes) = (whole, 0_u64);
    for layer in stage.layers.iter().rev() {
        remaining -= layer.backward;
        bytes = bytes.saturating_add(layer.gradients);
        if bytes >= if messages.is_empty() { first } else { size } {
            messages.push(message(std::mem::take(&mut bytes), remaining, whole));
        }
    }
    if bytes > 0 {
        messages.push(message(bytes, 0, whole));
    }
    messages
}

fn slices(stage: &Stage, slice: Option<u64>) -> Vec<Message> {
    let whole_stage = [Layer { forward: 1, backward: 1, gradients: stage.memory.gradients }];
    let layers = if stage.layers.is_empty() { &whole_stage[..] } else { &stage.layers };
    let total: u64 = layers.iter().map(|layer| layer.gradients).fold(0, u64::saturating_add);
    let slice = slice.unwrap_or(u64::MAX).max(total.div_ceil(MAX_MESSAGES)).max(1);
    let whole: u64 = layers.iter().map(|layer| layer.backward).sum();
    let all: u64 = layers.iter().map(|layer| layer.forward).sum();
    let (mut remaining, mut before) = (whole, all);
    let mut messages = Vec::new();
    for (idx, layer) in layers.iter().enumerate().rev() {
        remaining -= layer.backward;
        before -= layer.forward;
        let mut left = layer.gradients;
        while left > 0 {
            let bytes = left.min(slice);
            left -= bytes;
            let needed = (left == 0).then_some((before, all));
            messages.push(Message { bytes, remaining, whole, layer: idx, needed });
        }
    }
    messages
}
