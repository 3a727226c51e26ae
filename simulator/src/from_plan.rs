//! A plan file as numbers: seconds become whole nanoseconds, names become positions, stages get an order.
//!
//! The plan's costs are for the devices that its stages stand on. Stages that the schedule wants in more parts than
//! the plan has are cut evenly, and the answer says so.

mod execution;
mod steady;

use std::collections::BTreeMap;

use schema::{Bytes, BytesPerSecond, Execution, Plan, Seconds};
use thiserror::Error;

use crate::{
    cost::Cost,
    in_flight,
    machine::{Device, Link, Machine, Sends, Sharing},
    order::{Order, OrderError, Schedule, Shape, for_replicas, make_for_costs},
    workload::{Layer, Stage, StageMemory, Tie, Transfer, Workload},
};

/// What a command may want otherwise than the plan has it.
#[derive(Clone, Debug, Default)]
pub struct PlanOptions {
    /// The schedule, by name; the plan's when absent.
    pub schedule: Option<String>,
    /// Micro-batches; the plan's when absent.
    pub micro_batches: Option<u32>,
    /// What the host adds to each operation.
    pub host_overhead: Seconds,
    /// How transfers share ports.
    pub sharing: Sharing,
    /// Whether computation goes on while values are sent.
    pub sends: Sends,
    /// Gradient sync, sharding and offload; the plan's where nothing is said.
    pub execution: Execution,
    /// Share of each stage's activations that waits in host memory; the plan's when absent.
    pub offloaded: Option<f64>,
    /// Devices of a tensor-parallel group, to estimate what a plan without such groups would gain.
    pub tensor_parallel: Option<u32>,
}

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
    /// Devices of each rank: what a longer order is dealt to.
    rank_devices: Vec<Vec<usize>>,
}

/// Why a plan cannot be simulated.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum PlanError {
    /// Another kind of file.
    #[error("the file is a `{kind}`, not a plan")]
    Kind {
        /// What it says it is.
        kind: String,
    },
    /// A newer format.
    #[error("the plan has version {version}, the newest known is {}", schema::PLAN_VERSION)]
    Version {
        /// Its version.
        version: u32,
    },
    /// No stage.
    #[error("the plan has no stages")]
    NoStages,
    /// A stage without a device.
    #[error("stage {stage} has no device")]
    NoDevice {
        /// The stage.
        stage: usize,
    },
    /// A device that the cluster does not have.
    #[error("stage {stage} runs on device `{device}`, which the cluster does not have")]
    UnknownDevice {
        /// The stage.
        stage: usize,
        /// The device.
        device: String,
    },
    /// A stage that names a device twice.
    #[error("stage {stage} names device `{device}` twice")]
    DeviceTwice {
        /// The stage.
        stage: usize,
        /// The device.
        device: String,
    },
    /// A device type that the cluster does not describe.
    #[error("device `{device}` has the type `{type_}`, which the cluster does not describe")]
    UnknownType {
        /// The device.
        device: String,
        /// Its type.
        type_: String,
    },
    /// A number that is no cost.
    #[error("{what} is {value}: it must be a number of seconds, 0 or more, and no more than a century")]
    Cost {
        /// Which cost.
        what: String,
        /// What stands there.
        value: f64,
    },
    /// No stage takes any time.
    #[error("the stages take no time: forward, input_gradient and weight_gradient of all of them are 0")]
    NoCost,
    /// A rate that is none.
    #[error("{what} is {value}: it must be a number above 0")]
    Rate {
        /// Which rate.
        what: String,
        /// What stands there.
        value: f64,
    },
    /// A transfer between stages that are not there or in the wrong order.
    #[error(
        "a transfer goes from stage {from} to stage {to}; it must go to a later one of the {n_stages} stages"
    )]
    Transfer {
        /// Where it comes from.
        from: u32,
        /// Where it goes.
        to: u32,
        /// Stages of the plan.
        n_stages: usize,
    },
    /// Tied parameters of a stage that is not there.
    #[error("tied parameters are held by stage {stage}, the plan has {n_stages} stages")]
    Tie {
        /// The stage.
        stage: u32,
        /// Stages of the plan.
        n_stages: usize,
    },
    /// Stages that share some devices but not all.
    #[error("stages {first} and {second} share device `{device}` but not all of their devices")]
    Overlap {
        /// One stage.
        first: usize,
        /// The other.
        second: usize,
        /// A device of both.
        device: String,
    },
    /// Ranks with different numbers of stages.
    #[error(
        "the plan's {n_stages} stages are on {n_ranks} groups of devices: the same number must be on each"
    )]
    Uneven {
        /// Stages of the plan.
        n_stages: usize,
        /// Groups of devices.
        n_ranks: usize,
    },
    /// A stage on another rank than the schedule puts it.
    #[error("{} puts stage {stage} on `{expected}`, the plan on `{found}`", schedule.name())]
    Placement {
        /// The schedule.
        schedule: Schedule,
        /// The stage.
        stage: usize,
        /// First device of the rank that should run it.
        expected: String,
        /// First device that the plan gives it.
        found: String,
    },
    /// A number of the execution that makes no sense.
    #[error("{what} is {value}: it must be {rule}")]
    Execution {
        /// Which number.
        what: &'static str,
        /// What stands there.
        value: f64,
        /// What it must be.
        rule: &'static str,
    },
    /// Two ways of execution that exclude each other.
    #[error("{one} cannot be combined with {other}: {reason}")]
    Combination {
        /// One of them.
        one: &'static str,
        /// The other.
        other: &'static str,
        /// Why.
        reason: &'static str,
    },
    /// Tensor-parallel groups that do not come out.
    #[error("stage {stage} cannot be tensor-parallel: {reason}")]
    TensorParallel {
        /// The stage.
        stage: usize,
        /// Why not.
        reason: String,
    },
    /// Layers that do not make up their stage.
    #[error(
        "the layers of stage {stage} hold {} bytes of gradients, the stage {} bytes of parameters",
        layers.0,
        parameters.0
    )]
    Layers {
        /// The stage.
        stage: usize,
        /// Sum of the layers.
        layers: Bytes,
        /// The stage's own.
        parameters: Bytes,
    },
    /// A link from or to a device that the cluster does not have.
    #[error("a link joins `{from}` and `{to}`, which the cluster does not both have")]
    UnknownLink {
        /// One end.
        from: String,
        /// The other.
        to: String,
    },
    /// Numbers that are too large together.
    #[error("the {what} of the plan add up to more than {limit}, at {place} at the latest")]
    Sum {
        /// `times` or `sizes`.
        what: &'static str,
        /// What is the most.
        limit: &'static str,
        /// Where that is exceeded.
        place: String,
    },
    /// The order cannot be made.
    #[error(transparent)]
    Order(#[from] OrderError),
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
    let choices = options.execution.or(plan.execution.unwrap_or_default());
    let mut machine = machine(plan, options, &mut notes)?;
    machine.slowdown = execution::slowdown(&choices)?;
    let schedule = Schedule::from_name(options.schedule.as_deref().unwrap_or(&plan.schedule))?;
    let micro_batches = options.micro_batches.unwrap_or(plan.micro_batches);
    let stage_devices = stage_devices(plan)?;
    let (rank_groups, rank_of) = ranks(plan, &stage_devices)?;
    let mut stages = stages(plan, &stage_devices, &machine)?;
    let mut transfers = transfers(plan)?;
    let mut ties = ties(plan)?;
    check_sums(&stages, &transfers, &ties)?;
    let (rank_devices, peers) =
        execution::tensor_parallel(plan, options, &rank_groups, &rank_of, &mut stages, &mut notes)?;
    let most_replicas = rank_devices.iter().map(Vec::len).max().unwrap_or(1) as u32;
    let sync = execution::sync(&choices, most_replicas, &mut notes)?;
    execution::offloaded(options, &mut stages, &mut notes)?;
    execution::layers(plan, sync, &rank_devices, &rank_of, &mut stages, &mut notes)?;
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
        check_placement(plan, schedule, &rank_groups, &rank_of)?;
    }
    let shape = Shape { ranks: n_ranks as u32, chunks: chunks as u32, micro_batches };
    schedule.check(shape)?;
    for (idx, stage) in stages.iter_mut().enumerate() {
        let rank = schedule.rank_of(idx as u32, shape.ranks);
        let versions = u64::from(in_flight::weight_versions(schedule, shape, rank)) - 1;
        stage.memory.older_versions = stage.memory.parameters.saturating_mul(versions);
    }
    let order = order_of(schedule, shape, &stages, &machine, &rank_devices)?;
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
        },
        order,
        machine,
        notes,
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
        order_of(self.schedule, shape, &self.workload.stages, &self.machine, &self.rank_devices)
    }

    fn note_idle_replicas(&mut self) {
        let idle = self.order.ranks.iter().filter(|ops| ops.is_empty()).count();
        if idle > 0 {
            self.notes.push(format!("{idle} replicas have no micro-batch: there are fewer than replicas"));
        }
    }
}

/// Makes the order of stages on ranks of so many devices.
fn order_of(
    schedule: Schedule,
    shape: Shape,
    stages: &[Stage],
    machine: &Machine,
    rank_devices: &[Vec<usize>],
) -> Result<Order, OrderError> {
    let cost = average_cost(stages, machine, rank_devices);
    let replicas: Vec<u32> = rank_devices.iter().map(|devices| devices.len() as u32).collect();
    for_replicas(schedule, shape.micro_batches, &replicas, |micro_batches| {
        make_for_costs(schedule, Shape { micro_batches, ..shape }, cost)
    })
}

/// The most that the times of a plan may add up to, a century in nanoseconds, and its sizes, an exbibyte.
const MOST_TIME: u64 = 36_525 * 86_400 * 1_000_000_000;
const MOST_BYTES: u64 = 1 << 60;

/// Checks that what is added up of a plan's numbers stays within 64 bits.
fn check_sums(stages: &[Stage], transfers: &[Transfer], ties: &[Tie]) -> Result<(), PlanError> {
    let (mut time, mut bytes) = (0_u64, 0_u64);
    let mut add = |times: &[u64], sizes: &[u64], place: &dyn Fn() -> String| {
        time = times.iter().copied().fold(time, u64::saturating_add);
        bytes = sizes.iter().copied().fold(bytes, u64::saturating_add);
        match (time > MOST_TIME, bytes > MOST_BYTES) {
            (true, _) => Err(PlanError::Sum { what: "times", limit: "a century", place: place() }),
            (_, true) => Err(PlanError::Sum { what: "sizes", limit: "2^60 bytes", place: place() }),
            _ => Ok(()),
        }
    };
    for (idx, stage) in stages.iter().enumerate() {
        let place = || format!("stage {idx}");
        let StageMemory { parameters, gradients, optimizer, activations, workspace, .. } = stage.memory;
        let times = [stage.forward, stage.input_gradient, stage.weight_gradient, stage.optimizer_step];
        add(&times, &[parameters, gradients, optimizer, activations, workspace], &place)?;
        for layer in &stage.layers {
            add(&[layer.forward, layer.backward], &[], &place)?;
        }
    }
    for transfer in transfers {
        let place = || format!("the transfer from stage {} to stage {}", transfer.from, transfer.to);
        add(&[], &[transfer.forward, transfer.backward], &place)?;
    }
    ties.iter().try_for_each(|tie| add(&[], &[tie.bytes], &|| "tied parameters".to_string()))
}

fn nanoseconds(seconds: Seconds, what: impl FnOnce() -> String) -> Result<u64, PlanError> {
    // A century at most fits in 64 bits.
    let is_cost = seconds.0 >= 0.0 && seconds.0 * 1e9 <= MOST_TIME as f64;
    if is_cost {
        Ok((seconds.0 * 1e9).round() as u64)
    } else {
        Err(PlanError::Cost { what: what(), value: seconds.0 })
    }
}

fn rate(rate: BytesPerSecond, what: impl FnOnce() -> String) -> Result<f64, PlanError> {
    if rate.0 > 0.0 { Ok(rate.0) } else { Err(PlanError::Rate { what: what(), value: rate.0 }) }
}

fn machine(plan: &Plan, options: &PlanOptions, notes: &mut Vec<String>) -> Result<Machine, PlanError> {
    let cluster = &plan.cluster;
    let overhead = nanoseconds(options.host_overhead, || "the host overhead".to_string())?;
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
        let base = Device::default();
        devices.push(Device {
            speed,
            memory: Some(type_.memory.0),
            host_bandwidth: host.transpose()?.unwrap_or(base.host_bandwidth),
            host_overhead: overhead,
            place: device.place.clone(),
            ..base
        });
        positions.insert(device.name.as_str(), idx);
    }
    let offloads = plan.stages.iter().any(|stage| stage.cost.offloaded.0 > 0);
    if offloads && cluster.types.values().any(|type_| type_.host_bandwidth.is_none()) {
        notes.push("the host link is taken as 12 GB/s where the cluster does not say".to_string());
    }
    let link = |bandwidth: BytesPerSecond, latency: Seconds, name: &str| {
        Ok::<Link, PlanError>(Link {
            latency: nanoseconds(latency, || format!("the latency of {name}"))?,
            bandwidth: rate(bandwidth, || format!("the bandwidth of {name}"))?,
        })
    };
    let levels =
        cluster.levels.iter().map(|level| link(level.bandwidth, level.latency, &format!("`{}`", level.name)));
    let mut links = BTreeMap::new();
    for own in &cluster.links {
        let ends = (positions.get(own.from.as_str()), positions.get(own.to.as_str()));
        let (Some(from), Some(to)) = ends else {
            return Err(PlanError::UnknownLink { from: own.from.clone(), to: own.to.clone() });
        };
        let name = format!("the link `{}` to `{}`", own.from, own.to);
        links.insert((*from, *to), link(own.bandwidth, own.latency, &name)?);
    }
    let levels = levels.collect::<Result<_, _>>()?;
    let (sharing, sends) = (options.sharing, options.sends);
    Ok(Machine { devices, levels, links, sharing, sends, ..Machine::default() })
}

/// Returns the positions of each stage's devices in the cluster.
fn stage_devices(plan: &Plan) -> Result<Vec<Vec<usize>>, PlanError> {
    let positions: BTreeMap<&str, usize> =
        plan.cluster.devices.iter().enumerate().map(|(idx, device)| (device.name.as_str(), idx)).collect();
    let mut all = Vec::with_capacity(plan.stages.len());
    for (stage, planned) in plan.stages.iter().enumerate() {
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
        all.push(devices);
    }
    Ok(all)
}

/// Returns the groups of devices in the order of their first stage, and each stage's group.
fn ranks(plan: &Plan, stage_devices: &[Vec<usize>]) -> Result<(Vec<Vec<usize>>, Vec<usize>), PlanError> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut rank_of = Vec::with_capacity(stage_devices.len());
    // First stage and rank of each device.
    let mut owner: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    for (stage, devices) in stage_devices.iter().enumerate() {
        let mut sorted = devices.clone();
        sorted.sort_unstable();
        let rank = match owner.get(&sorted[0]) {
            Some((_, rank)) => *rank,
            None => groups.len(),
        };
        let same = groups.get(rank).is_some_and(|group| {
            let mut group = group.clone();
            group.sort_unstable();
            group == sorted
        });
        if !same {
            if let Some((device, (first, _))) =
                sorted.iter().find_map(|device| owner.get(device).map(|owner| (*device, *owner)))
            {
                let device = plan.cluster.devices[device].name.clone();
                return Err(PlanError::Overlap { first, second: stage, device });
            }
            groups.push(devices.clone());
            owner.extend(sorted.iter().map(|device| (*device, (stage, rank))));
        }
        rank_of.push(rank);
    }
    Ok((groups, rank_of))
}

fn check_placement(
    plan: &Plan,
    schedule: Schedule,
    rank_devices: &[Vec<usize>],
    rank_of: &[usize],
) -> Result<(), PlanError> {
    for (stage, &found) in rank_of.iter().enumerate() {
        let expected = schedule.rank_of(stage as u32, rank_devices.len() as u32) as usize;
        if expected != found {
            let name = |rank: usize| {
                let device = rank_devices.get(rank).and_then(|devices| devices.first());
                device.map_or_else(
                    || format!("rank {rank}"),
                    |device| plan.cluster.devices[*device].name.clone(),
                )
            };
            return Err(PlanError::Placement {
                schedule,
                stage,
                expected: name(expected),
                found: name(found),
            });
        }
    }
    Ok(())
}

fn stages(plan: &Plan, stage_devices: &[Vec<usize>], machine: &Machine) -> Result<Vec<Stage>, PlanError> {
    let mut stages = Vec::with_capacity(plan.stages.len());
    for (idx, planned) in plan.stages.iter().enumerate() {
        let cost = &planned.cost;
        // Costs are for the stage's own devices; the machine scales them by speed, so they are given at speed 1.
        let first = stage_devices[idx][0];
        let speed = machine.devices[first].speed;
        let time =
            |seconds: Seconds, name: &str| nanoseconds(seconds * speed, || format!("{name} of stage {idx}"));
        let forward = time(cost.forward, "forward")?;
        let input_gradient = time(cost.input_gradient, "input_gradient")?;
        let weight_gradient = time(cost.weight_gradient, "weight_gradient")?;
        let type_ = &plan.cluster.types[&plan.cluster.devices[first].type_];
        // The step reads parameters, gradients and state, and writes parameters and state.
        let touched =
            Bytes(cost.parameters.0.saturating_mul(3).saturating_add(cost.optimizer.0.saturating_mul(2)));
        let bandwidth = BytesPerSecond(rate(type_.memory_bandwidth, || {
            "the memory bandwidth of a device type".to_string()
        })?);
        stages.push(Stage {
            forward,
            input_gradient,
            weight_gradient,
            recompute: 0,
            optimizer_step: time(touched / bandwidth, "the optimizer step")?,
            memory: StageMemory {
                parameters: cost.parameters.0,
                gradients: cost.parameters.0,
                optimizer: cost.optimizer.0,
                older_versions: 0,
                activations: cost.activations.0,
                recomputed: 0,
                workspace: cost.workspace.0,
                // A copy that stays on the device is no offload.
                offloaded: cost.offloaded.0.min(cost.activations.0),
            },
            tensor_parallel: None,
            layers: layers_of(idx, planned)?,
        });
    }
    // A stage of views and dropouts may take none; a plan without any has no times in it.
    match stages
        .iter()
        .all(|stage| stage.forward == 0 && stage.input_gradient == 0 && stage.weight_gradient == 0)
    {
        true => Err(PlanError::NoCost),
        false => Ok(stages),
    }
}

fn layers_of(idx: usize, planned: &schema::PlanStage) -> Result<Vec<Layer>, PlanError> {
    let layer = |layer: &schema::LayerCost| {
        Ok(Layer {
            forward: nanoseconds(layer.forward, || format!("forward of a layer of stage {idx}"))?,
            backward: nanoseconds(layer.backward, || format!("backward of a layer of stage {idx}"))?,
            gradients: layer.gradients.0,
        })
    };
    let layers = planned.layers.iter().map(layer).collect::<Result<Vec<_>, PlanError>>()?;
    let gradients = layers.iter().fold(0, |sum: u64, layer| sum.saturating_add(layer.gradients));
    if !layers.is_empty() && gradients != planned.cost.parameters.0 {
        let parameters = planned.cost.parameters;
        return Err(PlanError::Layers { stage: idx, layers: Bytes(gradients), parameters });
    }
    Ok(layers)
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
    let tie = |tie: &schema::PlanTie| match tie.stages.iter().find(|stage| **stage as usize >= n_stages) {
        Some(&stage) => Err(PlanError::Tie { stage, n_stages }),
        None => {
            let stages = tie.stages.iter().map(|stage| *stage as usize).collect();
            Ok(Tie { stages, bytes: tie.parameters.0 })
        }
    };
    plan.ties.iter().map(tie).collect()
}

/// Cuts every stage into equal parts; what crosses a new cut is taken to be what leaves the stage.
fn cut(stages: &[Stage], transfers: &[Transfer], parts: usize) -> (Vec<Stage>, Vec<Transfer>) {
    let n = parts as u64;
    let part = |stage: &Stage| {
        let memory = stage.memory;
        Stage {
            forward: stage.forward / n,
            input_gradient: stage.input_gradient / n,
            weight_gradient: stage.weight_gradient / n,
            recompute: stage.recompute / n,
            optimizer_step: stage.optimizer_step / n,
            memory: StageMemory {
                parameters: memory.parameters / n,
                gradients: memory.gradients / n,
                optimizer: memory.optimizer / n,
                older_versions: memory.older_versions / n,
                activations: memory.activations / n,
                recomputed: memory.recomputed / n,
                workspace: memory.workspace,
                offloaded: memory.offloaded / n,
            },
            tensor_parallel: stage.tensor_parallel.map(|group| crate::workload::TensorParallel {
                per_pass: group.per_pass.div_ceil(parts as u32),
                ..group
            }),
            // Which layers fall into which part is not known: their gradients appear evenly.
            layers: Vec::new(),
        }
    };
    let cut_stages = stages.iter().flat_map(|stage| vec![part(stage); parts]).collect();
    let mut all: Vec<Transfer> = transfers
        .iter()
        .map(|transfer| Transfer {
            from: transfer.from * parts + parts - 1,
            to: transfer.to * parts,
            ..*transfer
        })
        .collect();
    for stage in 0..stages.len() {
        let near = transfers.iter().filter(|transfer| transfer.from == stage || transfer.to == stage);
        let (forward, backward) =
            near.fold((0, 0), |most, transfer| (most.0.max(transfer.forward), most.1.max(transfer.backward)));
        for inner in 1..parts {
            let to = stage * parts + inner;
            all.push(Transfer { from: to - 1, to, forward, backward });
        }
    }
    (cut_stages, all)
}

/// Returns what searched schedules are searched for: the average stage and hop.
fn average_cost(stages: &[Stage], machine: &Machine, rank_devices: &[Vec<usize>]) -> Cost {
    let n = stages.len().max(1) as u64;
    let average = |time: fn(&Stage) -> u64| stages.iter().map(time).sum::<u64>() / n;
    let neighbours = rank_devices.windows(2).filter_map(|pair| machine.link(pair[0][0], pair[1][0]));
    Cost {
        forward: average(|stage| stage.forward),
        input_gradient: average(|stage| stage.recompute + stage.input_gradient),
        weight_gradient: average(|stage| stage.weight_gradient),
        hop: neighbours.map(|link| link.latency).max().unwrap_or(0),
    }
}
