//! Tied parameters: their gradients are summed across the stages that hold them.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    rc::Rc,
};

use super::{
    Builder,
    collectives::{Team, Ways},
    messages::{MAX_MESSAGES, Message},
};
use crate::{
    collective::{self, Collective, Parts},
    event_graph::TaskId,
    order::Op,
    step::{Label, Stream, Work},
    workload::Tie,
};

impl Builder<'_> {
    /// Sums the gradients of tied parameters at the end of a step.
    pub(super) fn add_up_ties(&mut self, synced: &mut BTreeMap<usize, Vec<TaskId>>) {
        let workload = self.workload;
        for (nth, tie) in workload.ties.iter().enumerate() {
            let Some(team) = self.team_of_tie(nth) else { continue };
            let whole = Message { bytes: tie.bytes, remaining: 0, whole: 0, layer: 0, needed: None };
            let exist = |stage: &usize| {
                let of = |program: &usize| self.gradients_exist(*program, *stage, &whole);
                team.members.iter().filter_map(of).collect::<Vec<_>>()
            };
            let waits = tie.stages.iter().flat_map(exist).collect();
            let task = self.add_up(nth, &team, waits);
            team.members.iter().for_each(|program| synced.entry(*program).or_default().push(task));
        }
    }

    /// Counts a gradient of a pipeline without a flush to the ties of its stage; the last one of an update sends them.
    ///
    /// The last stage has its gradients long before the first: no pass waits for these sums, which are applied when they arrive.
    pub(super) fn count_ties(&mut self, stage: usize, op: Op, task: TaskId) {
        let workload = self.workload;
        for (nth, tie) in workload.ties.iter().enumerate().filter(|(_, tie)| tie.stages.contains(&stage)) {
            let range = self.round_of_tie(tie, op);
            let there = self.tied.entry((nth, range.start)).or_default();
            there.push((task, 0));
            let held = tie.stages.iter().filter(|stage| **stage < self.members.len()).count();
            if there.len() < held * range.len() {
                continue;
            }
            let waits = self.tied.remove(&(nth, range.start)).unwrap_or_default();
            if let Some(team) = self.team_of_tie(nth) {
                self.add_up(nth, &team, waits);
            }
        }
    }

    /// Sends a program's gradients of the ties of its stage behind its last pass of an update, in compute time, if the machine
    /// overlaps nothing. As for transfers between stages, receiving takes no time, and no pass waits for the sums.
    pub(super) fn send_ties(&mut self, program: usize, stage: usize, op: Op) {
        let workload = self.workload;
        for (nth, tie) in workload.ties.iter().enumerate().filter(|(_, tie)| tie.stages.contains(&stage)) {
            let mut later = op.micro_batch as usize + 1..self.round_of_tie(tie, op).end;
            if later.any(|other| self.home[self.cell(op.stage, other as u32)] == program as u32) {
                continue;
            }
            let Some(team) = self.team_of_tie(nth) else { continue };
            let (parts, label) = self.sum_of_tie(nth, &team);
            self.count_sent(Collective::AllReduce, tie.bytes, &team, 1);
            let label = Label { program, stream: Stream::Compute, ..label };
            let behind = self.tail_of(program, Stream::Compute).map(|tail| (tail, 0));
            let ways = (&*team, Ways::Both);
            let task = self.message(label, parts, &[program], ways, behind.into_iter().collect());
            self.tail[program][Stream::Compute as usize] = task;
        }
    }

    /// Returns the micro-batches of a tie's update that contains a micro-batch: the tie updates as often as its most frequent
    /// stage.
    fn round_of_tie(&self, tie: &Tie, op: Op) -> Range<usize> {
        let replicas = tie.stages.iter().filter_map(|stage| self.members.get(*stage));
        let fewest = replicas.map(|members| members.len()).min().unwrap_or(1);
        self.round_of(op.micro_batch, self.workload.updates.map_or(1, |updates| updates.every(fewest)))
    }

    fn add_up(&mut self, nth: usize, team: &Team, waits: Vec<(TaskId, i64)>) -> TaskId {
        let (parts, label) = self.sum_of_tie(nth, team);
        self.count_sent(Collective::AllReduce, self.workload.ties[nth].bytes, team, team.members.len());
        self.collective(label, parts, &team.members, team, waits)
    }

    /// Returns the duration of one sum of a tie's gradients, and its label for the first of its team.
    fn sum_of_tie(&self, nth: usize, team: &Team) -> (Parts, Label) {
        let tie = &self.workload.ties[nth];
        let algorithm = self.workload.sync.algorithm;
        let parts = collective::parts(Collective::AllReduce, algorithm, tie.bytes, &team.group);
        let stage = tie.stages.first().copied().unwrap_or(0) as u32;
        // Behind the stage's own messages.
        let message = MAX_MESSAGES as u32 + nth as u32;
        let label = Label {
            program: team.members[0],
            stream: Stream::Collective,
            work: Work::Reduce { stage, message, bytes: tie.bytes },
        };
        (parts, label)
    }

    /// The programs that hold tied parameters; `None` for fewer than two devices.
    fn team_of_tie(&mut self, nth: usize) -> Option<Rc<Team>> {
        if let Some(team) = self.tie_teams.get(&nth) {
            return team.clone();
        }
        let held = self.workload.ties[nth].stages.iter().filter_map(|stage| self.members.get(*stage));
        let members: BTreeSet<usize> = held.flat_map(|members| members.iter().copied()).collect();
        let team = self.team_of(members.into_iter().collect()).map(Rc::new);
        self.tie_teams.insert(nth, team.clone());
        team
    }
}
