//! A plan as numbers: seconds become whole nanoseconds, names become positions, stages get an order.
//!
//! The plan's costs are for the devices of its stages. If the schedule needs more stages than the plan has, each is cut evenly,
//! and the notes say so.

mod error;
mod execution;
mod numbers;
mod options;
mod parts;
mod ranks;
mod stages;
mod steady;

use schema::Plan;

pub use self::{
    error::PlanError,
    options::PlanOptions,
    parts::{PartDevice, PartStage, PlanParts},
};
use self::{
    numbers::check_sums,
    ranks::{check_placement, ranks},
    stages::{cut, stages},
};
use crate::{
    cost::Cost,
    machine::{Machine, Sends},
    order::{Kind, Order, OrderError, Schedule, Shape, for_replicas, make_for_costs},
    versions::{self, KeptVersions},
    workload::{Stage, Workload},
};

/// A plan, ready to be simulated.
#[derive(Clone, Debug)]
pub struct PlannedStep {
    /// The schedule.
    pub schedule: Schedule,
    /// Ranks, chunks and micro-batches.
    pub shape: Shape,
    /// Stages and transfers.
    pub workload: Workload,
    /// What each program does.
    pub order: Order,
    /// Devices and links.
    pub machine: Machine,
    /// What was assumed.
    pub notes: Vec<String>,
    /// What each stage needs for versions of its weights; empty where steps end with a flush.
    pub kept: Vec<KeptVersions>,
    /// Passes that are run.
    passes: Passes,
    /// Devices of each rank, to which a longer order is dealt.
    rank_devices: Vec<Vec<usize>>,
}

/// Which passes of a schedule are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passes {
    All,
    /// Those of inference.
    Forward,
}

/// Turns a plan into numbers.
///
/// # Errors
/// Names the first thing in the plan that does not fit.
pub fn from_plan(plan: &Plan, options: &PlanOptions) -> Result<PlannedStep, PlanError> {
    if plan.kind != "plan" {
        return Err(PlanError::Kind { kind: plan.kind.chars().take(40).collect() });
    }
    if plan.version > schema::PLAN_VERSION {
        return Err(PlanError::Version { version: plan.version });
    }
    if plan.stages.is_empty() {
        return Err(PlanError::NoStages);
    }
    let mut notes = Vec::new();
    let parts = PlanParts::read(plan, options, &mut notes)?;
    step(parts, options, notes)
}

impl PlannedStep {
    /// Makes a step of a plan in numbers.
    ///
    /// # Errors
    /// Names the first thing in the plan that does not fit.
    pub fn of(parts: PlanParts) -> Result<Self, PlanError> {
        step(parts, &PlanOptions::default(), Vec::new())
    }
}

fn step(
    mut parts: PlanParts,
    options: &PlanOptions,
    mut notes: Vec<String>,
) -> Result<PlannedStep, PlanError> {
    let choices = options.execution.or(parts.execution);
    parts.machine.slowdown = execution::slowdown(&choices)?;
    if choices.blocking_sends == Some(true) {
        parts.machine.sends = Sends::Blocking;
    }
    let (schedule, micro_batches) = (parts.schedule, parts.micro_batches);
    let (rank_groups, rank_of) = ranks(&parts)?;
    let mut stages = stages(&parts)?;
    let (mut transfers, mut ties) = (parts.transfers.clone(), parts.ties.clone());
    check_sums(&stages, &transfers, &ties)?;
    let (rank_devices, peers) =
        execution::tensor_parallel(&parts, options, &rank_groups, &rank_of, &mut stages, &mut notes)?;
    let most_replicas = rank_devices.iter().map(Vec::len).max().unwrap_or(1) as u32;
    let mut sync = execution::sync(&choices, &options.execution, most_replicas, &mut notes)?;
    if schedule.copies() > 1 && choices.bucket.is_none() {
        // The copies sum each stage's gradients in one message.
        (sync.first_bucket, sync.bucket) = (u64::MAX, u64::MAX);
    }
    execution::offloaded(options, &mut stages, &mut notes)?;
    execution::layers(&parts, sync, &rank_devices, &rank_of, &mut stages, &mut notes)?;
    let n_ranks = rank_devices.len();
    if !stages.len().is_multiple_of(n_ranks) {
        return Err(PlanError::Uneven { n_stages: stages.len(), n_ranks });
    }
    let mut chunks = stages.len() / n_ranks;
    let wanted = schedule.fixed_chunks().map_or(chunks, |chunks| chunks as usize);
    if chunks == 1 && wanted > 1 {
        notes.push(format!(
            "{} runs {wanted} stages on each rank: every stage of the plan is cut into {wanted} equal parts",
            schedule.name()
        ));
        (stages, transfers) = cut(&stages, &transfers, wanted);
        ties.iter_mut().flat_map(|tie| &mut tie.stages).for_each(|stage| *stage *= wanted);
        chunks = wanted;
    } else {
        check_placement(&parts, &rank_groups, &rank_of)?;
    }
    if schedule.copies() > 1 {
        execution::note_second_copy(&parts, &mut notes);
    }
    let shape = Shape { ranks: n_ranks as u32, chunks: chunks as u32, micro_batches };
    schedule.check(shape)?;
    let updates = execution::updates(&parts, options, &mut notes)?;
    let replicas: Vec<u32> = rank_devices.iter().map(|devices| devices.len() as u32).collect();
    let kept = updates.map_or_else(Vec::new, |updates| versions::kept_versions(&replicas, updates));
    if parts.is_inference {
        // Nobody adds gradients up.
        ties.clear();
        for stage in &mut stages {
            (stage.memory.gradients, stage.memory.optimizer) = (0, 0);
            (stage.optimizer_step, stage.accumulation) = (0, 0);
        }
    }
    for (stage, kept) in stages.iter_mut().zip(&kept) {
        let older = u64::from(kept.versions.saturating_sub(1));
        stage.memory.older_versions = stage.memory.parameters.saturating_mul(older);
    }
    let passes = if parts.is_inference { Passes::Forward } else { Passes::All };
    let order = order_of((schedule, passes), shape, &stages, &parts.machine, &rank_devices)?;
    let mut step = PlannedStep {
        schedule,
        shape,
        workload: Workload {
            stages,
            transfers,
            devices: rank_devices.iter().flatten().copied().collect(),
            peers,
            ties,
            sync,
            offload: execution::offload(&choices)?,
            updates,
        },
        order,
        machine: parts.machine,
        notes,
        kept,
        passes,
        rank_devices,
    };
    step.note_idle_replicas();
    Ok(step)
}

impl PlannedStep {
    /// Makes the order of the same plan for another number of micro-batches.
    ///
    /// # Errors
    /// Names the constraint that the number breaks.
    pub fn order_for(&self, micro_batches: u32) -> Result<Order, OrderError> {
        let shape = Shape { micro_batches, ..self.shape };
        order_of(
            (self.schedule, self.passes),
            shape,
            &self.workload.stages,
            &self.machine,
            &self.rank_devices,
        )
    }

    fn note_idle_replicas(&mut self) {
        let idle = self.order.ranks.iter().filter(|ops| ops.is_empty()).count();
        if idle > 0 {
            self.notes.push(format!("{idle} replicas have no micro-batch: there are fewer than replicas"));
        }
    }
}

/// Makes the order of stages on ranks with replicas.
fn order_of(
    (schedule, passes): (Schedule, Passes),
    shape: Shape,
    stages: &[Stage],
    machine: &Machine,
    rank_devices: &[Vec<usize>],
) -> Result<Order, OrderError> {
    let cost = average_cost(stages, machine, rank_devices);
    let replicas: Vec<u32> = rank_devices.iter().map(|devices| devices.len() as u32).collect();
    let mut order = for_replicas(schedule, shape.micro_batches, &replicas, |micro_batches| {
        make_for_costs(schedule, Shape { micro_batches, ..shape }, cost)
    })?;
    if passes == Passes::Forward {
        order.ranks.iter_mut().for_each(|ops| ops.retain(|op| op.kind == Kind::Forward));
    }
    Ok(order)
}

/// Returns the costs that searched schedules are made for: the average stage and hop.
fn average_cost(stages: &[Stage], machine: &Machine, rank_devices: &[Vec<usize>]) -> Cost {
    let n = stages.len().max(1) as u64;
    let average = |time: fn(&Stage) -> u64| stages.iter().map(time).sum::<u64>() / n;
    let neighbours = rank_devices.windows(2).filter_map(|pair| machine.link(pair[0][0], pair[1][0]));
    Cost {
        forward: average(|stage| stage.forward),
        input_gradient: average(|stage| stage.recompute + stage.input_gradient),
        weight_gradient: average(|stage| stage.weight_gradient + stage.accumulation),
        hop: neighbours.map(|link| link.latency).max().unwrap_or(0),
    }
}
