//! The steady state of a plan: what each further step adds.
//!
//! A pipeline without a flush has no end of a step: a long run is set beside a longer one.

use super::PlannedStep;
use crate::{
    SimulateError,
    event_graph::TaskId,
    machine::Sharing,
    order::OrderError,
    step::{StepGraph, Stream, Work},
};

/// The most operations of a run.
const OPERATIONS: u64 = 4_000_000;

impl PlannedStep {
    /// Returns the time that each further step adds.
    ///
    /// # Errors
    /// As [`crate::simulate`].
    pub fn period(&self) -> Result<u64, SimulateError> {
        if !self.schedule.is_asynchronous() {
            return crate::period(&self.workload, &self.order, &self.machine);
        }
        let m = self.shape.micro_batches;
        let n_devices: u32 = self.rank_devices.iter().map(|devices| devices.len() as u32).sum();
        // Until every stage has waited for its slowest neighbour; then until the same replicas meet again.
        let settled = (2 * n_devices).div_ceil(m) + 1;
        let round =
            self.rank_devices.iter().fold(1, |round, devices| least_common(round, devices.len() as u64));
        let cycle = (least_common(round, u64::from(m)) / u64::from(m)).max(1);
        let each = 2 * u64::from(m) * self.workload.stages.len() as u64;
        let cycle = cycle.min((OPERATIONS / each.max(1)).max(1)) as u32;
        let run = |steps: u32| match self.order_for(m.saturating_mul(steps)) {
            Ok(order) => {
                let step = crate::build(&self.workload, &order, &self.machine)?;
                Ok(Run::of(&step, self))
            }
            Err(OrderError::TooLarge { ops }) => {
                Err(SimulateError::TooLarge { n_ops: usize::try_from(ops).unwrap_or(usize::MAX) })
            }
            Err(error) => Err(error.into()),
        };
        Ok(run(settled + cycle)?.beyond(&run(settled)?) / u64::from(cycle))
    }
}

/// Makespan of some steps, and in them the time that each program computes and sums gradients, that each port is busy, and that
/// each rank computes and waits for its own sums.
struct Run {
    makespan: u64,
    busy: Vec<u64>,
}

impl Run {
    fn of(step: &StepGraph, planned: &PlannedStep) -> Self {
        let PlannedStep { machine, rank_devices: ranks, workload, .. } = planned;
        // No pass runs during a gather, unless layers are sent one by one.
        let stops_to_gather = workload.sync.mode.slice().is_none();
        let n_programs = ranks.iter().map(Vec::len).sum();
        // A longer run may use further ports: they stand last.
        let first_port = 2 * n_programs + ranks.len();
        let mut busy = vec![0; first_port + step.n_ports];
        let ends = step.ends(machine);
        // What each program's optimizer waits after its last pass, update by update.
        let mut waits: Vec<Vec<u64>> = vec![Vec::new(); n_programs];
        let mut last = vec![0_u64; n_programs];
        for (task, label) in step.labels.iter().enumerate() {
            let task = task as TaskId;
            let first = match label.stream {
                Stream::Compute => 0,
                Stream::Collective => n_programs,
                _ => continue,
            };
            if stops_to_gather && matches!(label.work, Work::Gather { op: None, .. }) {
                busy[label.program] += step.graph.duration(task);
            }
            let others = step.members.get(&task).into_iter().flatten().copied();
            for program in others.chain([label.program]) {
                busy[first + program] += step.graph.duration(task);
            }
            if label.stream == Stream::Compute {
                let end = ends[task as usize];
                if label.work == Work::Optimizer {
                    let start = end.saturating_sub(step.graph.duration(task));
                    waits[label.program].push(start.saturating_sub(last[label.program]));
                }
                last[label.program] = end;
            }
        }
        if machine.sharing == Sharing::Fair {
            for flow in &step.flows {
                let first = flow.first_port as usize;
                let own = &step.flow_ports[first..first + flow.n_ports as usize];
                own.iter().for_each(|port| busy[first_port + *port as usize] += flow.transfer);
            }
        }
        let mut first = 0;
        for (rank, devices) in ranks.iter().enumerate() {
            let programs = first..first + devices.len();
            first = programs.end;
            let computes = busy[programs.clone()].iter().copied().max().unwrap_or(0);
            // The last replica to finish waits for the sum alone; the others wait for that replica, too.
            let least = |nth: usize| waits[programs.clone()].iter().filter_map(|waits| waits.get(nth)).min();
            let n_updates = waits[programs.clone()].iter().map(Vec::len).max().unwrap_or(0);
            busy[2 * n_programs + rank] = computes + (0..n_updates).filter_map(least).sum::<u64>();
        }
        Self { makespan: ends.into_iter().max().unwrap_or(0), busy }
    }

    /// Returns the time that a longer run adds: also by its busiest part, which may not have delayed the others yet, but will.
    fn beyond(&self, shorter: &Self) -> u64 {
        let busy =
            self.busy.iter().zip(&shorter.busy).map(|(longer, shorter)| longer.saturating_sub(*shorter));
        busy.max().unwrap_or(0).max(self.makespan.saturating_sub(shorter.makespan))
    }
}

fn least_common(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a.max(1), b.max(1));
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a.max(1) / x).saturating_mul(b.max(1))
}
