//! Kernels that are slower beside a collective on their device.

use super::{Event, Running, Simulation};
use crate::event_graph::TaskId;

/// What a program computes while collectives may slow it.
#[derive(Clone, Default)]
pub(super) struct Kernels {
    running: Running,
    task: Option<TaskId>,
    /// Tasks that wait for a part of the work only: the work that may be left then, largest last.
    early: Vec<(u64, TaskId)>,
    /// Collectives that the program takes part in now.
    collectives: u32,
}

impl Simulation<'_> {
    pub(super) fn start_kernels(&mut self, program: usize, task: TaskId, duration: u64, now: u64) {
        let gone = now.saturating_sub(self.ready_at[task as usize]);
        let left = duration.saturating_sub(gone);
        let range = self.first[task as usize] as usize..self.first[task as usize + 1] as usize;
        let early = self.successors[range].iter().filter(|(_, lag)| *lag < 0);
        let mut early: Vec<(u64, TaskId)> =
            early.map(|(successor, lag)| (lag.unsigned_abs(), *successor)).collect();
        early.sort_unstable();
        let kernels = &mut self.kernels[program];
        kernels.early = early;
        kernels.task = Some(task);
        kernels.running.left = left as f64;
        (kernels.running.rate, kernels.running.since) = (0.0, now);
        self.compute_on(program, now);
    }

    /// Lets a program's kernels go on at the rate that its collectives leave.
    fn compute_on(&mut self, program: usize, now: u64) {
        let kernels = &mut self.kernels[program];
        let Some(task) = kernels.task else { return };
        let rate = if kernels.collectives > 0 { 1.0 / self.slowdown } else { 1.0 };
        kernels.running.go_on(rate, now, 0.0);
        // A fraction of a nanosecond may be left at an event.
        let reached = |(left, _): &mut (u64, TaskId)| kernels.running.left < *left as f64 + 1e-6;
        if let Some((_, successor)) = kernels.early.pop_if(reached) {
            self.count_off(successor, now, now);
            // Released tasks may have joined a collective.
            return self.compute_on(program, now);
        }
        let kernels = &mut self.kernels[program];
        if kernels.running.left < 1e-6 {
            kernels.task = None;
            kernels.running.version += 1;
            return self.finish(task, now);
        }
        let until = kernels.early.last().map_or(0.0, |(left, _)| *left as f64);
        let (time, version) = kernels.running.go_on(rate, now, until);
        self.at(now.saturating_add(time), Event::Computed { program: program as u32, version });
    }

    pub(super) fn computed(&mut self, program: u32, version: u32, now: u64) {
        if self.kernels[program as usize].running.version == version {
            self.compute_on(program as usize, now);
        }
    }

    /// Counts a collective in or out on its programs, and changes the rate of their kernels.
    pub(super) fn join(&mut self, task: TaskId, now: u64, comes: bool) {
        if self.slowdown <= 1.0 || !self.step.labels[task as usize].work.is_collective() {
            return;
        }
        let step = self.step;
        let others = step.members.get(&task).into_iter().flatten().copied();
        for program in others.chain([step.labels[task as usize].program]) {
            let kernels = &mut self.kernels[program];
            kernels.collectives = if comes { kernels.collectives + 1 } else { kernels.collectives - 1 };
            self.compute_on(program, now);
        }
    }
}
