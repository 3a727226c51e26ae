//! Updates: gradient sums and the optimizer's step.
//!
//! Once, at the end of a step; in a pipeline without a flush every few micro-batches, in the middle of the order.
//! Gradients go in buckets behind the backward that makes them (DDP, Horovod), after it, or layer by layer over a
//! queue (parameter server, P3). In the last case the sum comes back updated, and the next step's forward passes wait
//! layer by layer for it.

use std::{collections::BTreeMap, ops::Range, rc::Rc};

use super::{
    Builder,
    collectives::{Team, Ways},
    messages::{MAX_MESSAGES, Message, messages},
};
use crate::{
    collective::{self, Algorithm, Collective},
    event_graph::TaskId,
    machine::Sends,
    order::{Kind, Op},
    step::{Label, Queued, Stream, Work},
    workload::{Servers, Sharding, Stage, SyncMode},
};

/// Where a program is between two updates of its stage.
#[derive(Clone, Copy, Default)]
pub(super) struct Round {
    /// Its micro-batches that are through, and all that it has in this round.
    done: usize,
    share: usize,
    /// Whether it has done its share and waits for the other programs of its stage.
    pub(super) waits: bool,
}

impl Builder<'_> {
    /// Updates everything, where that happens at the end of a step.
    pub(super) fn finish_step(&mut self) {
        if self.workload.updates.is_some() {
            return;
        }
        self.updates.iter_mut().for_each(Vec::clear);
        let mut synced: BTreeMap<usize, Vec<TaskId>> = BTreeMap::new();
        self.sync(0..self.workload.stages.len(), &mut synced);
        self.add_up_ties(&mut synced);
        self.optimize(&(0..self.order.ranks.len()).collect::<Vec<usize>>(), synced);
    }

    /// Counts a micro-batch of a pipeline without a flush; the last one of an update updates the stage.
    ///
    /// A program that has done its share begins no pass before the update: PipeDream's workers sum their gradients at the end of
    /// a backward pass and step at once.
    pub(super) fn count_gradient(&mut self, program: usize, op: Op, task: TaskId) {
        let Some(updates) = self.workload.updates else { return };
        let stage = self.model_stage(op.stage);
        let members = Rc::clone(&self.members[stage]);
        let range = self.round_of(op.micro_batch, updates.every(members.len()));
        if self.rounds[program].done == 0 {
            let own = range.clone().map(|micro_batch| self.cell(op.stage, micro_batch as u32));
            self.rounds[program].share = own.filter(|cell| self.home[*cell] == program as u32).count();
        }
        let round = &mut self.rounds[program];
        round.done += 1;
        round.waits = round.done == round.share;
        if !round.waits {
            self.scatter_after(program, op, task);
        }
        let is_serial = self.is_serial();
        if is_serial {
            self.send_ties(program, stage, op);
        }
        if members.iter().map(|member| self.rounds[*member].done).sum::<usize>() >= range.len() {
            self.updates[stage].clear();
            let mut synced = BTreeMap::new();
            self.sync(stage..stage + 1, &mut synced);
            self.optimize(&members, synced);
            for member in members.iter().copied() {
                self.rounds[member] = Round::default();
                self.last_gradient[member].clear();
                if !self.updates[stage].is_empty() && !self.stale[member].contains(&stage) {
                    self.stale[member].push(stage);
                }
            }
        }
        if !is_serial {
            self.count_ties(stage, op, task);
        }
    }

    /// Returns the micro-batches of the update that one belongs to.
    pub(super) fn round_of(&self, micro_batch: u32, every: usize) -> Range<usize> {
        let first = micro_batch as usize / every * every;
        first..(first + every).min(self.n_micro_batches)
    }

    /// Sums some stages' gradients; adds the tasks that each program's optimizer waits for.
    fn sync(&mut self, stages: Range<usize>, synced: &mut BTreeMap<usize, Vec<TaskId>>) {
        let sync = self.workload.sync;
        let most = self.most_messages();
        let layers_of = |stage: &Stage| stage.layers.len().max(1);
        let mut before: usize = self.workload.stages[..stages.end].iter().map(layers_of).sum();
        // The last stage has its gradients first.
        for stage in stages.rev() {
            before -= layers_of(&self.workload.stages[stage]);
            let Some(team) = self.team(stage) else { continue };
            if sync.sharding != Sharding::Replicated && sync.sharers(team.members.len()) < team.members.len()
            {
                self.sync_in_groups(stage, &team, synced);
                continue;
            }
            let (members, group) = (&team.members, &team.group);
            let what = match sync.sharding {
                Sharding::Replicated => Collective::AllReduce,
                _ => Collective::ReduceScatter,
            };
            for (nth, message) in messages(&self.workload.stages[stage], sync, most).into_iter().enumerate() {
                let parts = collective::parts(what, sync.algorithm, message.bytes, group);
                self.count_sent(what, message.bytes, &team, members.len());
                // A replica without a micro-batch contributes nothing, but needs the sum.
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
    }

    /// Sums a stage's gradients for programs that shard in groups: reduce-scatter inside each group, then an all-reduce of each
    /// member's shard with its counterparts in the other groups.
    fn sync_in_groups(&mut self, stage: usize, team: &Team, synced: &mut BTreeMap<usize, Vec<TaskId>>) {
        let sync = self.workload.sync;
        let size = sync.sharers(team.members.len());
        let groups: Vec<Rc<[usize]>> = team.members.chunks(size).map(Rc::from).collect();
        let firsts: Rc<[usize]> = groups.iter().map(|group| group[0]).collect();
        let across = self.team_of(firsts);
        let messages = messages(&self.workload.stages[stage], sync, self.most_messages());
        for (nth, message) in messages.into_iter().enumerate() {
            let label = |program: usize, bytes: u64| Label {
                program,
                stream: Stream::Collective,
                work: Work::Reduce { stage: stage as u32, message: nth as u32, bytes },
            };
            let mut scattered = Vec::new();
            for group in &groups {
                let Some(own) = self.sharers(group[0], stage) else { continue };
                let what = Collective::ReduceScatter;
                let parts = collective::parts(what, sync.algorithm, message.bytes, &own.group);
                self.count_sent(what, message.bytes, &own, group.len());
                let waits = group.iter().filter_map(|one| self.gradients_exist(*one, stage, &message));
                let waits = waits.collect();
                let task = self.collective(label(group[0], message.bytes), parts, group, &own, waits);
                scattered.push((task, 0));
            }
            let Some(across) = &across else { continue };
            let share = message.bytes.div_ceil(size as u64);
            let parts = collective::parts(Collective::AllReduce, sync.algorithm, share, &across.group);
            // Each member of the first group sums its shard with its counterparts.
            for _ in 0..size {
                self.count_sent(Collective::AllReduce, share, across, across.members.len());
            }
            let members = &team.members;
            let task = self.collective(label(members[0], share), parts, members, across, scattered);
            members.iter().for_each(|program| synced.entry(*program).or_default().push(task));
        }
    }

    /// The optimizer's step of some programs.
    fn optimize(&mut self, programs: &[usize], mut synced: BTreeMap<usize, Vec<TaskId>>) {
        for program in programs {
            self.optimizer_step(*program, synced.remove(program).unwrap_or_default());
        }
        if matches!(self.workload.sync.sharding, Sharding::Optimizer | Sharding::Gradients) {
            programs.iter().for_each(|program| self.gather_after(*program));
        }
    }

    /// Returns the most messages of an update, so that many updates stay within reach.
    fn most_messages(&self) -> u64 {
        let n_updates = self.workload.updates.map_or(1, |updates| self.n_micro_batches / updates.every(1));
        (MAX_MESSAGES / n_updates.max(1) as u64).max(256)
    }

    /// Lets a message wait for its turn on a group's link, in one of its directions.
    fn queue(&mut self, task: TaskId, link: (Rc<[usize]>, bool), rank: u64) {
        let next = self.queues.len() as u32;
        let queue = *self.queues.entry(link).or_insert(next);
        self.step.n_queues = self.queues.len();
        self.step.queued.push(Queued { task, queue, rank });
    }

    /// Tells whether a device waits for gradient sums as for its sends, in a pipeline without a flush on a machine without
    /// overlap.
    fn is_serial(&self) -> bool {
        self.workload.updates.is_some() && self.machine.sends == Sends::Blocking
    }

    /// Returns the wait of a message for one replica's gradients.
    pub(super) fn gradients_exist(
        &self,
        program: usize,
        stage: usize,
        message: &Message,
    ) -> Option<(TaskId, i64)> {
        if self.is_serial() || self.workload.sync.mode == SyncMode::AfterBackward {
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
            // Passes are not interrupted in this model: a pass that begins late by the work before the layer ends at the same
            // time.
            let early = duration * u128::from(*before) / u128::from((*whole).max(1));
            waits.push((*task, -i64::try_from(early).unwrap_or(i64::MAX)));
        }
    }

    fn optimizer_step(&mut self, program: usize, synced: Vec<TaskId>) {
        let stages: Vec<usize> = self.last_gradient[program].iter().map(|(stage, _)| *stage).collect();
        let shards = |builder: &Self, stage: usize| match builder.workload.sync.sharding {
            Sharding::Replicated => 1,
            _ => builder.workload.sync.sharers(builder.members[stage].len()) as u64,
        };
        // Layers that are sent one by one come back updated.
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

    /// Gathers the parameters, of which each replica has updated its shard, before anything else runs.
    fn gather_after(&mut self, program: usize) {
        let stages: Vec<usize> = self.last_gradient[program].iter().map(|(stage, _)| *stage).collect();
        for stage in stages {
            let Some(team) = self.sharers(program, stage) else { continue };
            let waits = team
                .members
                .iter()
                .filter_map(|member| self.stepped[*member])
                .map(|step| (step, 0))
                .collect();
            let bytes = self.workload.stages[stage].memory.parameters;
            let parts =
                collective::parts(Collective::AllGather, self.workload.sync.algorithm, bytes, &team.group);
            self.count_sent(Collective::AllGather, bytes, &team, 1);
            let work = Work::Gather { stage: stage as u32, op: None };
            let label = Label { program, stream: Stream::Collective, work };
            let task = self.collective(label, parts, &[program], &team, waits);
            self.tail[program][Stream::Compute as usize] = task;
        }
    }
}
