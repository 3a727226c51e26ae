//! The row of a strategy, or the reason why it is left out.

use std::collections::BTreeSet;

use partitioner::Strategy;
use schema::{Bytes, Plan, StrategyLeftOut, StrategyRow};
use simulator::{PlanError, PlannedStep, order::OrderError};

use super::ways::{How, Otherwise, Way};
use crate::{
    commands::{
        emit::not_carried_out,
        plan::{PlanRequest, StepSize, Subject, Unplanned, attempt},
    },
    workspace::Workspace,
};

/// Micro-batches of a schedule that takes only one per copy of the model.
const COPIES: u32 = 2;

/// The result of a strategy.
pub enum Outcome {
    /// A plan, and the file that `plan` would write, if it writes one.
    Found(Box<StrategyRow>, Option<Box<Plan>>),
    /// No plan.
    LeftOut(StrategyLeftOut),
}

/// A model on a cluster, the same for all strategies.
pub struct Question<'a> {
    /// The model.
    pub workspace: &'a Workspace,
    /// The request for all strategies.
    pub request: &'a PlanRequest,
    /// The size of one micro-batch.
    pub size: StepSize,
}

impl Way {
    fn row(&self) -> StrategyRow {
        StrategyRow {
            name: self.name.clone(),
            about: self.about.to_string(),
            flags: self.flags(),
            trains_as_one_device: !self.is_asynchronous(),
            ..StrategyRow::default()
        }
    }

    fn left_out(&self, reason: String, missing: Option<Bytes>) -> Outcome {
        Outcome::LeftOut(StrategyLeftOut {
            name: self.name.clone(),
            about: self.about.to_string(),
            reason,
            missing_bytes: missing,
        })
    }
}

impl Question<'_> {
    /// Plans a strategy that needs no other's plan.
    pub fn ask(&self, way: &Way) -> Outcome {
        let found = match way.how {
            How::Planned(strategy, sharding, tensor_parallel) => {
                let request = PlanRequest {
                    strategy,
                    alternatives: strategy,
                    sharding,
                    tensor_parallel,
                    spatial: crate::commands::plan::Degree::Of(1),
                    context_parallel: crate::commands::plan::Degree::Of(1),
                    expert_parallel: crate::commands::plan::Degree::Of(1),
                    on_first: Vec::new(),
                    ..self.request.clone()
                };
                self.planned(way, &request)
            }
            How::Split(method) => {
                let request = PlanRequest {
                    strategy: None,
                    alternatives: None,
                    operators: Some(method),
                    ..self.request.clone()
                };
                self.planned(way, &request)
            }
            How::Simulated(..) => {
                return way.left_out("it simulates a plan of another strategy".into(), None);
            }
        };
        found.unwrap_or_else(|reason| way.left_out(reason.reason(), reason.missing()))
    }

    fn planned(&self, way: &Way, request: &PlanRequest) -> Result<Outcome, Unplanned> {
        let (asked, solved) = attempt(Subject::Model(self.workspace), request)?;
        let file = asked.file(&solved.best);
        let (best, plan) = (&solved.best, file.plan);
        let rates = asked.rates(best.seconds_each(), &plan);
        let devices = &asked.problem.machine.devices;
        let held = best.held(devices.len());
        let (memory_bytes, memory_limit) =
            fullest(held.iter().zip(devices).map(|(held, device)| (*held as u64, device.memory)));
        let shared_by =
            plan.stages.first().and_then(|stage| stage.tensor_parallel).map(|shared| shared.degree);
        let row = StrategyRow {
            is_chosen: request.strategy.is_none() && request.operators.is_none(),
            strategy: plan.strategy.clone(),
            sharding: best.sharing(),
            shared_by,
            schedule: Some(plan.schedule.clone()),
            stages: plan.stages.len() as u32,
            chunks: best.chunks() as u32,
            micro_batches: best.micro_batches,
            micro_batch_size: plan.micro_batch_size,
            samples: asked.samples().map(|samples| samples * u64::from(best.micro_batches)),
            step_seconds: best.seconds_each() * f64::from(best.micro_batches),
            micro_batch_seconds: best.seconds_each(),
            samples_per_second: rates.samples,
            tokens_per_second: rates.tokens,
            mfu: rates.mfu,
            memory_bytes,
            memory_limit,
            idle: plan.predicted.bubble,
            sent_bytes: file.sent,
            ..self.carried_out(way.row(), &plan)
        };
        Ok(Outcome::Found(Box::new(row), Some(Box::new(plan))))
    }

    /// Simulates another strategy's plan; without one it is left out.
    pub fn simulate(&self, way: &Way, of: Strategy, otherwise: Otherwise, plan: Option<&Plan>) -> Outcome {
        let Some(plan) = plan else {
            return way
                .left_out(format!("it would take the stages of {}, which has no plan", of.name()), None);
        };
        match self.simulated(way, otherwise, plan) {
            Ok(outcome) => outcome,
            Err(reason) => way.left_out(reason, None),
        }
    }

    fn simulated(&self, way: &Way, otherwise: Otherwise, plan: &Plan) -> Result<Outcome, String> {
        let mut options = otherwise.options();
        let is_free = self.request.micro_batches.is_none() && self.request.batch.is_none();
        let made = match simulator::from_plan(plan, &options) {
            // Some schedules need an even number of micro-batches, or at least one per device.
            Err(PlanError::Order(OrderError::MicroBatches { smallest, .. })) if is_free => {
                options.micro_batches = Some(smallest.unwrap_or(COPIES));
                simulator::from_plan(plan, &options)
            }
            made => made,
        };
        let step = made.map_err(|error| error.to_string())?;
        if step.workload.stages.len() > plan.stages.len() && !self.request.constraints.pin.is_empty() {
            return Err("it has more stages than the plan with the pinned calls".into());
        }
        let timeline = simulator::simulate(&step.workload, &step.order, &step.machine)
            .map_err(|error| error.to_string())?;
        let devices = plan.cluster.devices.iter().zip(&timeline.memory);
        let (memory, limit) = fullest(
            devices.map(|(device, memory)| (memory.peak, plan.cluster.types[&device.type_].usable())),
        );
        if memory.0 > limit.0 {
            let reason = format!("a device would hold {memory} of {limit}");
            return Ok(way.left_out(reason, Some(Bytes(memory.0 - limit.0))));
        }
        let micro_batches = step.shape.micro_batches;
        let seconds = nanoseconds(&step, otherwise, timeline.step)? as f64 * 1e-9;
        let each = seconds / f64::from(micro_batches);
        let used = plan.stages.iter().flat_map(|stage| &stage.devices).map(String::as_str).collect();
        let size = match plan.micro_batch_size {
            Some(samples) => StepSize::of(&self.workspace.with_samples(samples)?),
            None => self.size.clone(),
        };
        let rates = size.rates(each, &plan.cluster, &used);
        let changed = Plan { micro_batches, ..otherwise.of(plan) };
        let carried_out = self.carried_out(way.row(), &changed);
        let mut not_carried_out = carried_out.not_carried_out.clone();
        if step.workload.stages.len() > plan.stages.len() {
            not_carried_out
                .push("its stages are equal parts of another plan's stages, not cuts of the model".into());
        }
        let row = StrategyRow {
            strategy: plan.strategy.clone(),
            schedule: Some(step.schedule.name().to_string()),
            stages: step.workload.stages.len() as u32,
            chunks: step.shape.chunks,
            micro_batches,
            micro_batch_size: plan.micro_batch_size,
            samples: size.samples.map(|samples| samples * u64::from(micro_batches)),
            step_seconds: seconds,
            micro_batch_seconds: each,
            samples_per_second: rates.samples,
            tokens_per_second: rates.tokens,
            mfu: rates.mfu,
            memory_bytes: memory,
            memory_limit: limit,
            idle: Some(timeline.bubble()),
            sent_bytes: Some(Bytes(timeline.sent)),
            not_carried_out,
            ..carried_out
        };
        Ok(Outcome::Found(Box::new(row), None))
    }

    /// Adds the devices of a plan, and the parts of it that `train.py` cannot run.
    fn carried_out(&self, row: StrategyRow, plan: &Plan) -> StrategyRow {
        let devices: BTreeSet<&String> = plan.stages.iter().flat_map(|stage| &stage.devices).collect();
        let mut reasons = not_carried_out(plan);
        if self.workspace.program().archive.is_none() {
            reasons.push("stages are cut from an archive, which this model's file is not".into());
        }
        StrategyRow { devices: devices.len() as u32, not_carried_out: reasons, ..row }
    }
}

/// Returns the memory in use and the capacity of the device that is fullest, relative to its capacity.
fn fullest(devices: impl Iterator<Item = (u64, Bytes)>) -> (Bytes, Bytes) {
    let share = |(held, limit): &(u64, Bytes)| *held as f64 / limit.0.max(1) as f64;
    let full = devices.max_by(|a, b| share(a).total_cmp(&share(b)));
    full.map_or((Bytes(0), Bytes(0)), |(held, limit)| (Bytes(held), limit))
}

/// Returns the nanoseconds of a period of a schedule without a flush, and of a step of any other.
fn nanoseconds(step: &PlannedStep, otherwise: Otherwise, whole: u64) -> Result<u64, String> {
    let overlaps = matches!(otherwise, Otherwise::Sums(_, Some(_))) || step.schedule.is_asynchronous();
    if !overlaps {
        return Ok(whole);
    }
    step.period().map_err(|error| error.to_string())
}

/// Tells whether two plans are equal, except for the strategy that made them.
pub fn is_same(one: &Plan, other: &Plan) -> bool {
    let stage = |stage: &schema::PlanStage| {
        (
            stage.blocks.clone(),
            stage.devices.clone(),
            (stage.recompute.clone(), stage.recompute_light.clone()),
            stage.offload.clone(),
            stage.tensor_parallel,
        )
    };
    one.schedule == other.schedule
        && one.micro_batches == other.micro_batches
        && one.micro_batch_size == other.micro_batch_size
        && one.execution == other.execution
        && one.cuts == other.cuts
        && one.context_parallel == other.context_parallel
        && one.expert_parallel == other.expert_parallel
        && one.operators == other.operators
        && one.stages.iter().map(stage).eq(other.stages.iter().map(stage))
}
