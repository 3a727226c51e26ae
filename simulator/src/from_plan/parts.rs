//! A plan in numbers, before a schedule makes a step of it: what [`PlannedStep::of`](super::PlannedStep::of) takes, of a file or of a
//! planner's solution alike.

use std::collections::BTreeMap;

use schema::{BytesPerSecond, Execution, LayerCost, Plan, PlanTie, Seconds, StageCost, TensorParallel};

use super::{
    PlanError, PlanOptions,
    numbers::{nanoseconds, rate},
};
use crate::{
    machine::{Device, Link, Machine},
    order::Schedule,
    workload::{Tie, Transfer},
};

/// A plan in numbers: devices and stages by position.
#[derive(Clone, Debug)]
pub struct PlanParts {
    /// The schedule.
    pub schedule: Schedule,
    /// Micro-batches of a step.
    pub micro_batches: u32,
    /// Devices and links.
    pub machine: Machine,
    /// What else is asked of each device.
    pub devices: Vec<PartDevice>,
    /// Stages in the order of the model.
    pub stages: Vec<PartStage>,
    /// What crosses between them.
    pub transfers: Vec<Transfer>,
    /// Parameters that several stages hold.
    pub ties: Vec<Tie>,
    /// How it is carried out beyond its stages.
    pub execution: Execution,
    /// Whether forward passes alone are run.
    pub is_inference: bool,
}

/// A device as messages name it, and its memory.
#[derive(Clone, Debug)]
pub struct PartDevice {
    /// Its name.
    pub name: String,
    /// The position of its type.
    pub type_: usize,
    /// Bandwidth of its memory.
    pub memory_bandwidth: BytesPerSecond,
}

/// A stage: its devices, and what it costs on them.
#[derive(Clone, Debug)]
pub struct PartStage {
    /// Positions of its devices.
    pub devices: Vec<usize>,
    /// Costs of one micro-batch on one of them.
    pub cost: StageCost,
    /// Its layers, where they are known.
    pub layers: Vec<LayerCost>,
    /// How its devices cut layers among them.
    pub tensor_parallel: Option<TensorParallel>,
    /// Blocks in it.
    pub n_blocks: usize,
}

impl PlanParts {
    /// Makes a link of its figures.
    ///
    /// # Errors
    /// Names the figure that no link has.
    pub fn link(
        bandwidth: BytesPerSecond,
        latency: Seconds,
        name: impl Fn() -> String,
    ) -> Result<Link, PlanError> {
        Ok(Link {
            latency: nanoseconds(latency, || format!("the latency of {}", name()))?,
            bandwidth: rate(bandwidth, || format!("the bandwidth of {}", name()))?,
        })
    }

    /// Reads a plan file.
    pub(super) fn read(
        plan: &Plan,
        options: &PlanOptions,
        notes: &mut Vec<String>,
    ) -> Result<Self, PlanError> {
        let machine = machine(plan, options, notes)?;
        let types = &plan.cluster.types;
        let devices = plan.cluster.devices.iter().map(|device| PartDevice {
            name: device.name.clone(),
            type_: types.get_index_of(&device.type_).unwrap_or(0),
            memory_bandwidth: types[&device.type_].memory_bandwidth,
        });
        let schedule = Schedule::from_name(options.schedule.as_deref().unwrap_or(&plan.schedule))?;
        Ok(Self {
            schedule,
            micro_batches: options.micro_batches.unwrap_or(plan.micro_batches),
            machine,
            devices: devices.collect(),
            stages: stages(plan)?,
            transfers: transfers(plan)?,
            ties: ties(plan)?,
            execution: plan.execution.unwrap_or_default(),
            is_inference: plan.inference.is_some(),
        })
    }
}

fn stages(plan: &Plan) -> Result<Vec<PartStage>, PlanError> {
    let devices = plan.cluster.devices.iter().enumerate();
    let positions: BTreeMap<&str, usize> = devices.map(|(idx, device)| (device.name.as_str(), idx)).collect();
    let stage = |(stage, planned): (usize, &schema::PlanStage)| {
        if planned.devices.is_empty() {
            return Err(PlanError::NoDevice { stage });
        }
        let mut devices = Vec::with_capacity(planned.devices.len());
        for name in &planned.devices {
            let device = *positions
                .get(name.as_str())
                .ok_or_else(|| PlanError::UnknownDevice { stage, device: name.clone() })?;
            if devices.contains(&device) {
                return Err(PlanError::DeviceTwice { stage, device: name.clone() });
            }
            devices.push(device);
        }
        Ok(PartStage {
            devices,
            cost: planned.cost,
            layers: planned.layers.clone(),
            tensor_parallel: planned.tensor_parallel,
            n_blocks: planned.blocks.len(),
        })
    };
    plan.stages.iter().enumerate().map(stage).collect()
}

fn transfers(plan: &Plan) -> Result<Vec<Transfer>, PlanError> {
    let n_stages = plan.stages.len();
    let transfer = |transfer: &schema::Transfer| {
        let (from, to) = (transfer.from as usize, transfer.to as usize);
        if from >= to || to >= n_stages {
            return Err(PlanError::Transfer { from: transfer.from, to: transfer.to, n_stages });
        }
        Ok(Transfer { from, to, forward: transfer.forward.0, backward: transfer.backward.0 })
    };
    plan.transfers.iter().map(transfer).collect()
}

fn ties(plan: &Plan) -> Result<Vec<Tie>, PlanError> {
    let n_stages = plan.stages.len();
    let tie = |tie: &PlanTie| match tie.stages.iter().find(|stage| **stage as usize >= n_stages) {
        Some(&stage) => Err(PlanError::Tie { stage, n_stages }),
        None => {
            let stages = tie.stages.iter().map(|stage| *stage as usize).collect();
            Ok(Tie { stages, bytes: tie.parameters.0 })
        }
    };
    plan.ties.iter().map(tie).collect()
}

fn machine(plan: &Plan, options: &PlanOptions, notes: &mut Vec<String>) -> Result<Machine, PlanError> {
    let cluster = &plan.cluster;
    let mut devices = Vec::new();
    let mut positions = BTreeMap::new();
    for (idx, device) in cluster.devices.iter().enumerate() {
        let type_ = cluster.types.get(&device.type_).ok_or_else(|| PlanError::UnknownType {
            device: device.name.clone(),
            type_: device.type_.clone(),
        })?;
        let speed = type_.speed.unwrap_or(1.0);
        if !(speed > 0.0 && speed.is_finite()) {
            return Err(PlanError::Rate { what: format!("the speed of `{}`", device.type_), value: speed });
        }
        let host = type_
            .host_bandwidth
            .map(|host| rate(host, || format!("the host bandwidth of `{}`", device.type_)));
        // Of a forward pass alone no training script takes anything.
        let charged = |asked: Option<Seconds>, own: Option<Seconds>| {
            let seconds = asked.or(own.filter(|_| plan.inference.is_none())).unwrap_or_default();
            nanoseconds(seconds, || "the host overhead".to_string())
        };
        let base = Device::default();
        devices.push(Device {
            speed,
            memory: Some(type_.usable().0),
            host_bandwidth: host.transpose()?.unwrap_or(base.host_bandwidth),
            host_overhead: charged(options.host_overhead, type_.host_overhead)?,
            split_overhead: charged(options.split_overhead, type_.split_overhead)?,
            place: device.place.clone(),
            ..base
        });
        positions.insert(device.name.as_str(), idx);
    }
    let offloads = plan.stages.iter().any(|stage| stage.cost.offloaded.0 > 0);
    if offloads && cluster.types.values().any(|type_| type_.host_bandwidth.is_none()) {
        notes.push("the host link is taken as 12 GB/s where the cluster does not say".to_string());
    }
    let levels = cluster
        .levels
        .iter()
        .map(|level| PlanParts::link(level.bandwidth, level.latency, || format!("`{}`", level.name)));
    let mut links = BTreeMap::new();
    for own in &cluster.links {
        let ends = (positions.get(own.from.as_str()), positions.get(own.to.as_str()));
        let (Some(from), Some(to)) = ends else {
            return Err(PlanError::UnknownLink { from: own.from.clone(), to: own.to.clone() });
        };
        let name = || format!("the link `{}` to `{}`", own.from, own.to);
        links.insert((*from, *to), PlanParts::link(own.bandwidth, own.latency, name)?);
    }
    let levels = levels.collect::<Result<_, _>>()?;
    Ok(Machine { devices, levels, links, sharing: options.sharing, ..Machine::default() })
}
