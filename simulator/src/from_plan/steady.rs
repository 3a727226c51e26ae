//! The steady state of a plan: what each further step adds.
//!
//! A pipeline without a flush has no end of a step. Its replicas agree after every round of one micro-batch each, which no order of
//! operations shows: beside compute, the longest such agreement bounds the period; where sends block, each backward
//! pass is so much longer.

use std::borrow::Cow;

use super::PlannedStep;
use crate::{
    SimulateError,
    build::collectives::group,
    collective::{self, Collective},
    event_graph::TaskId,
    machine::{Machine, NEVER, Sends, Sharing},
    order::OrderError,
    step::{StepGraph, Stream},
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
        // Until every stage has met its slowest neighbour; then as long as it takes until the same replicas meet again.
        let settled = (2 * n_devices).div_ceil(m) + 1;
        let round =
            self.rank_devices.iter().fold(1, |round, devices| least_common(round, devices.len() as u64));
        let cycle = (least_common(round, u64::from(m)) / u64::from(m)).max(1);
        let each = 2 * u64::from(m) * self.workload.stages.len() as u64;
        let cycle = cycle.min((OPERATIONS / each.max(1)).max(1)) as u32;
        let rounds = self.rounds();
        let mut workload = Cow::Borrowed(&self.workload);
        if self.machine.sends == Sends::Blocking {
            let workload = workload.to_mut();
            for (idx, (stage, (sync, _))) in workload.stages.iter_mut().zip(&rounds).enumerate() {
                let speed = self.machine.devices[self.rank_devices[idx % self.rank_devices.len()][0]].speed;
                let longer = (*sync as f64 * speed).round() as u64;
                stage.weight_gradient = stage.weight_gradient.saturating_add(longer);
            }
        }
        let run = |steps: u32| match self.order_for(m.saturating_mul(steps)) {
            Ok(order) => Ok(Run::of(
                &crate::build(&workload, &order, &self.machine)?,
                &self.machine,
                self.workload.devices.len(),
            )),
            Err(OrderError::TooLarge { ops }) => {
                Err(SimulateError::TooLarge { n_ops: usize::try_from(ops).unwrap_or(usize::MAX) })
            }
            Err(error) => Err(error.into()),
        };
        let pipeline = run(settled + cycle)?.beyond(&run(settled)?) / u64::from(cycle);
        // A stage agrees once for as many micro-batches as it has replicas.
        let agree = |(sync, replicas): &(u64, u64)| u128::from(*sync) * u128::from(m) / u128::from(*replicas);
        let agree = rounds.iter().map(agree).max().unwrap_or(0);
        match u64::try_from(agree) {
            Ok(agree) if agree < NEVER && rounds.iter().all(|(sync, _)| *sync < NEVER) => {
                Ok(pipeline.max(agree))
            }
            _ => Err(SimulateError::Overflow),
        }
    }

    /// Returns, by stage, how long its replicas take to agree, and their number.
    fn rounds(&self) -> Vec<(u64, u64)> {
        let rank = |stage: usize| &self.rank_devices[stage % self.rank_devices.len()];
        let all_reduce = |bytes: u64, devices: Vec<usize>| {
            let algorithm = self.workload.sync.algorithm;
            let group = group(&self.machine, devices);
            group
                .map_or(0, |group| collective::parts(Collective::AllReduce, algorithm, bytes, &group).total())
        };
        let sync = |(idx, stage): (usize, &crate::Stage)| {
            let own = all_reduce(stage.memory.gradients, rank(idx).clone());
            let shared = self.workload.ties.iter().filter(|tie| tie.stages.contains(&idx)).map(|tie| {
                let devices = tie.stages.iter().flat_map(|stage| rank(*stage).iter().copied());
                all_reduce(tie.bytes, devices.collect())
            });
            (shared.fold(own, u64::saturating_add), rank(idx).len().max(1) as u64)
        };
        self.workload.stages.iter().enumerate().map(sync).collect()
    }
}

/// How long some steps take, and how long each program and each port is busy in them.
struct Run {
    makespan: u64,
    busy: Vec<u64>,
}

impl Run {
    fn of(step: &StepGraph, machine: &Machine, n_programs: usize) -> Self {
        let mut programs = vec![0; n_programs];
        let mut ports = vec![0; step.n_ports];
        for (task, label) in
            step.labels.iter().enumerate().filter(|(_, label)| label.stream == Stream::Compute)
        {
            programs[label.program] += step.graph.duration(task as TaskId);
        }
        if machine.sharing == Sharing::Fair {
            for flow in &step.flows {
                let first = flow.first_port as usize;
                let own = &step.flow_ports[first..first + flow.n_ports as usize];
                own.iter().for_each(|port| ports[*port as usize] += flow.transfer);
            }
        }
        programs.extend(ports);
        Self { makespan: step.time(machine), busy: programs }
    }

    /// What a longer run adds: a slow stage may not yet have held up the others, but it will.
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
