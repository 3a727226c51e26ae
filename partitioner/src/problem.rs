//! The question: blocks and values, a machine, and how it trains.
//!
//! Every strategy reads this one type. Blocks stand in a topological order, the order of the trace; times are for one
//! micro-batch on a device of speed 1.

use std::collections::BTreeSet;

use schema::{
    Bytes, BytesPerSecond, Cluster, HOST_BANDWIDTH, Inference, PipedreamProfile, RecomputePolicy,
    RecomputeUnit, Seconds, ShardingLevel,
};

use crate::{
    limits::Limits,
    pin::{self, Pin},
};

/// What is to be planned.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// Blocks. Invariant: a value's takers stand after its maker.
    pub blocks: Vec<Block>,
    /// What flows between blocks.
    pub values: Vec<Value>,
    /// Parameters that several blocks use.
    pub ties: Vec<Tie>,
    /// Where it runs.
    pub machine: Machine,
    /// How it trains.
    pub training: Training,
    /// The first block of each stage but the first, if boundaries are given; the planner chooses them if not.
    ///
    /// Invariant: positions rise, and none is the first block's.
    pub begins: Option<Vec<usize>>,
    /// Blocks that are to be in one stage, or on some devices.
    pub pins: Vec<Pin>,
}

/// One block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Block {
    /// Path in the model: `layer1.0`.
    pub path: String,
    /// Paths of the blocks behind it that are joined to it: no boundary separates them.
    pub joined: Vec<String>,
    /// Forward pass.
    pub forward: Seconds,
    /// Gradient of the inputs.
    pub input_gradient: Seconds,
    /// Gradient of the parameters.
    pub weight_gradient: Seconds,
    /// Once a step: sums of gradients over devices that share it as one.
    pub once: Seconds,
    /// Parameters that only this block uses.
    pub parameters: Bytes,
    /// Bytes saved for the backward pass of one micro-batch; for inference, the keys and values of one.
    pub activations: Bytes,
    /// The part of `activations` that is kept whatever is recomputed: the loss's.
    pub kept: Bytes,
    /// The part of `forward` that computing it again leaves out: what follows the last tensor that the backward pass needs.
    pub left_out: Seconds,
    /// What it takes if its dear results are kept and only the rest is computed again; `None` if that saves nothing.
    pub light: Option<Again>,
    /// Bytes of one micro-batch that stay between the gradients of its inputs and those of its weights, if these are two passes.
    pub waiting: Bytes,
    /// Scratch memory while it runs; for inference, all that is alive meanwhile.
    pub workspace: Bytes,
    /// Whether it is one operator. Recomputing it alone saves nothing: its inputs have to be kept, and its takers keep its
    /// output.
    pub is_operator: bool,
    /// Whether it is always or never recomputed; the planner chooses if absent.
    pub recompute: Option<RecomputePolicy>,
}

/// What it takes to compute a block again in the backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Again {
    /// Seconds of what is computed again.
    pub forward: Seconds,
    /// Bytes of one micro-batch that are kept besides the block's inputs: results that are not computed again.
    pub held: Bytes,
    /// Bytes that exist once while its backward pass runs, beside those.
    pub once_more: Bytes,
}

impl Block {
    /// Returns what it takes to compute it again: all of it, or what lies between its dear results.
    pub(crate) fn again(&self, is_light: bool) -> Again {
        let once_more = Bytes(self.activations.0.saturating_sub(self.kept.0));
        let forward = Seconds(self.forward.0 - self.left_out.0);
        let whole = Again { forward, held: Bytes(0), once_more };
        self.light.filter(|_| is_light).unwrap_or(whole)
    }

    /// Returns all paths in it.
    pub fn paths(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.path).chain(&self.joined)
    }

    /// Returns the time of forward and backward pass.
    pub fn seconds(&self) -> f64 {
        self.forward.0 + self.input_gradient.0 + self.weight_gradient.0
    }
}

/// A value that one block makes and later ones take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Its maker; `None` for an input of the model, which is wherever its first taker is.
    pub from: Option<usize>,
    /// Its takers, in order.
    pub to: Vec<usize>,
    /// Bytes of one micro-batch.
    pub forward: Bytes,
    /// Bytes of its gradient; none for integers and masks.
    pub backward: Bytes,
}

/// Parameters that several blocks use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tie {
    /// The blocks, in order.
    pub blocks: Vec<usize>,
    /// Bytes.
    pub parameters: Bytes,
}

/// Where the model runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Devices in the order of the cluster: stages take runs of them.
    pub devices: Vec<MachineDevice>,
    /// Links by level, innermost first.
    pub levels: Vec<MachineLevel>,
    /// Links between two devices by name, where they differ from their level's.
    pub links: Vec<(String, String, MachineLevel)>,
    /// Whether transfers and synchronisation run beside compute.
    pub overlaps: bool,
}

/// One device.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineDevice {
    /// Its name.
    pub name: String,
    /// Relative to the device that times are for.
    pub speed: f64,
    /// What a process can use.
    pub memory: Bytes,
    /// Bandwidth of its memory, which the optimizer's step uses.
    pub memory_bandwidth: BytesPerSecond,
    /// Host link, each way.
    pub host_bandwidth: BytesPerSecond,
    /// Group at each level, innermost first.
    pub place: Vec<u32>,
}

/// What joins the members of one level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MachineLevel {
    /// Bandwidth of one device's port, each way.
    pub bandwidth: BytesPerSecond,
    /// Time before the first byte arrives.
    pub latency: Seconds,
}

/// How the model trains.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Training {
    /// Micro-batches in a step.
    pub micro_batches: MicroBatches,
    /// The most of them, where the planner chooses how many: one for each replica there may be.
    pub most_micro_batches: u32,
    /// Devices that stand behind each one of the machine: more than one where groups share layers. A step is as large, whoever
    /// shares.
    pub devices_each: u32,
    /// Stages in a row, each on devices of its own; chosen by the planner when absent.
    pub stages: Option<u32>,
    /// Bytes of gradient for each byte of parameters.
    pub gradient_factor: f64,
    /// Bytes of optimizer state for each byte of parameters: 2 for Adam.
    pub optimizer_factor: f64,
    /// What replicas of a stage share out instead of each keeping it whole.
    pub sharding: ShardingLevel,
    /// Replicas that share out together; all of a stage when absent, or where it does not divide them.
    pub sharding_group: Option<u32>,
    /// Whether only stages with more than one sharding group are searched: all others are known.
    pub only_groups: bool,
    /// Whether only stages with replicas are searched: a single one shares nothing out, and those are known.
    pub only_replicas: bool,
    /// Whether the planner may choose to shard inside nodes alone.
    pub sharding_inside: bool,
    /// The highest sharding level that the planner may choose.
    pub sharding_up_to: ShardingLevel,
    /// Whether blocks may be recomputed in the backward pass.
    pub recompute: bool,
    /// What is recomputed at a time.
    pub recompute_unit: RecomputeUnit,
    /// Whether activations may wait in host memory.
    pub offload: bool,
    /// Seconds that the script costs the host for each pass of a stage, beside the stage's own work: for a forward pass, a
    /// backward pass, or each half of a split one.
    ///
    /// Invariant: 0 for inference.
    pub host_overhead: Seconds,
    /// Seconds that a backward pass costs the host besides where it is split into halves.
    ///
    /// Invariant: 0 for inference.
    pub split_overhead: Seconds,
    /// The objective of inference; `None` for training.
    pub inference: Option<Inference>,
    /// The most that a search looks at.
    pub limits: Limits,
}

/// Micro-batches in a step, of all replicas together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MicroBatches {
    /// So many that the ends of a step matter little.
    #[default]
    Enough,
    /// This number, or a few more where a schedule takes them in rounds or replicas share them, or fewer where that would be
    /// more than a step may have.
    About(u32),
    /// This number: plans that cannot share it evenly are not allowed.
    Exactly(u32),
}

impl Training {
    /// Returns how many micro-batches are wanted on a machine.
    pub fn wanted(&self, machine: &Machine) -> u32 {
        match self.micro_batches {
            MicroBatches::Enough => {
                let some = self.all_devices(machine).saturating_mul(4).clamp(4, 4096);
                some.min(self.most_micro_batches)
            }
            MicroBatches::About(count) | MicroBatches::Exactly(count) => count,
        }
    }

    /// Returns the number of devices, those of groups one by one.
    pub(crate) fn all_devices(&self, machine: &Machine) -> u32 {
        (machine.devices.len() as u32).saturating_mul(self.devices_each)
    }

    /// Bytes that the optimizer's step touches for each byte of parameters: it reads them, their gradients and its state, and
    /// writes parameters and state.
    pub(crate) fn touched(&self) -> f64 {
        3.0 + 2.0 * self.optimizer_factor
    }

    /// Bytes that adding a micro-batch's gradients to those before it touches for each byte of parameters; 0 for inference.
    pub(crate) fn accumulated(&self) -> f64 {
        let accesses = schema::ACCUMULATION_ACCESSES as f64 * self.gradient_factor;
        if self.inference.is_some() { 0.0 } else { accesses }
    }

    /// Returns the number of replicas that share out together.
    pub(crate) fn sharers(&self, replicas: usize) -> usize {
        let group = self.sharding_group.map(|group| group as usize);
        let group = group.filter(|group| *group > 0 && replicas.is_multiple_of(*group));
        group.unwrap_or(replicas).max(1)
    }

    /// Bytes that each replica holds for each byte of a stage's parameters: these, their gradients and the optimizer's
    /// state, each whole or shared out.
    pub(crate) fn copies(&self, replicas: usize) -> f64 {
        let sharers = self.sharers(replicas) as f64;
        let held = |from: ShardingLevel, bytes: f64| {
            if self.sharding >= from { bytes / sharers } else { bytes }
        };
        held(ShardingLevel::Zero3, 1.0)
            + held(ShardingLevel::Zero2, self.gradient_factor)
            + held(ShardingLevel::Zero1, self.optimizer_factor)
    }
}

impl Default for Training {
    fn default() -> Self {
        Self {
            micro_batches: MicroBatches::Enough,
            most_micro_batches: u32::MAX,
            devices_each: 1,
            stages: None,
            gradient_factor: 1.0,
            optimizer_factor: 2.0,
            sharding: ShardingLevel::None,
            sharding_group: None,
            only_groups: false,
            only_replicas: false,
            sharding_inside: false,
            sharding_up_to: ShardingLevel::None,
            recompute: true,
            recompute_unit: RecomputeUnit::Block,
            offload: false,
            host_overhead: Seconds(0.0),
            split_overhead: Seconds(0.0),
            inference: None,
            limits: Limits::NORMAL,
        }
    }
}

/// Why a question makes no sense.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ProblemError {
    /// Nothing to place.
    #[error("the model has no blocks")]
    NoBlocks,
    /// Nothing to place it on.
    #[error("the cluster has no devices")]
    NoDevices,
    /// Too many devices to plan for.
    #[error("the cluster has {0} devices; {DEVICES} at most can be planned for")]
    TooManyDevices(usize),
    /// A time or size that no measurement gives.
    #[error(
        "block `{block}`: {field} is {value}; it must be a number that is not negative and can be measured"
    )]
    BadNumber {
        /// Its path.
        block: String,
        /// Name of the field.
        field: &'static str,
        /// The number.
        value: f64,
    },
    /// What the host cannot take.
    #[error(
        "the host's overhead is {0} s a pass; it must be a number that is not negative and can be measured, 0 where nothing is trained"
    )]
    BadOverhead(f64),
    /// Two given boundaries with no block between them.
    #[error("a stage is to begin at block {0}, which leaves a stage without blocks")]
    EmptyStage(usize),
    /// Blocks pinned to an earlier stage than what they need.
    #[error("`{block}` is pinned to an earlier stage than `{needs}`, which it needs")]
    PinnedBackwards {
        /// What the blocks are called.
        block: String,
        /// What they need.
        needs: String,
    },
    /// A value whose ends are in the wrong order.
    #[error("a value goes from block {from} to block {to}, which is not later")]
    Backwards {
        /// Position of its maker.
        from: usize,
        /// Position of its taker.
        to: usize,
    },
    /// A device or link without a speed.
    #[error("device `{device}`: {field} is {value}; it must be positive")]
    BadDevice {
        /// Its name.
        device: String,
        /// Name of the field.
        field: &'static str,
        /// The number.
        value: f64,
    },
}

/// The most devices.
const DEVICES: usize = 100_000;

impl Problem {
    /// Checks what the types do not.
    ///
    /// # Errors
    /// When there are no blocks or devices, a number is negative or not finite, or a value goes backwards.
    pub fn validate(&self) -> Result<(), ProblemError> {
        if self.blocks.is_empty() {
            return Err(ProblemError::NoBlocks);
        }
        for Seconds(overhead) in [self.training.host_overhead, self.training.split_overhead] {
            if !(0.0..1e15).contains(&overhead) || self.training.inference.is_some() && overhead > 0.0 {
                return Err(ProblemError::BadOverhead(overhead));
            }
        }
        for block in &self.blocks {
            let times = [
                ("forward", block.forward),
                ("input_gradient", block.input_gradient),
                ("weight_gradient", block.weight_gradient),
                ("once", block.once),
            ];
            for (field, Seconds(value)) in times {
                if !(0.0..1e15).contains(&value) {
                    return Err(ProblemError::BadNumber { block: block.path.clone(), field, value });
                }
            }
        }
        for value in &self.values {
            for &to in &value.to {
                if to >= self.blocks.len() || value.from.is_some_and(|from| from >= to) {
                    return Err(ProblemError::Backwards { from: value.from.unwrap_or(to), to });
                }
            }
        }
        let begins = self.begins.iter().flatten();
        let mut before = 0;
        for &begin in begins {
            if begin <= before || begin >= self.blocks.len() {
                return Err(ProblemError::EmptyStage(begin));
            }
            before = begin;
        }
        let edges = self.values.iter().filter_map(|value| Some((value.from?, &value.to)));
        let edges = edges.flat_map(|(from, to)| to.iter().map(move |&to| (from, to)));
        if let Some((pin, other)) = pin::backwards(&self.pins, self.blocks.len(), edges) {
            return Err(ProblemError::PinnedBackwards { block: pin.name.clone(), needs: other.name.clone() });
        }
        self.machine.validate()
    }

    /// Tells whether blocks are pinned to devices: then the order of devices that are alike matters, too.
    pub(crate) fn has_device_pins(&self) -> bool {
        self.pins.iter().any(Pin::is_to_devices)
    }

    /// Returns the time of one micro-batch through all blocks on a device of speed 1.
    pub fn seconds(&self) -> f64 {
        self.blocks.iter().map(Block::seconds).sum()
    }

    /// Host overhead of one micro-batch in a stage, at the least: of a forward and a backward pass. A split backward pass has it
    /// once more.
    pub(crate) fn host_of_two(&self) -> f64 {
        2.0 * self.training.host_overhead.0
    }

    /// The most seconds that a stage takes less for the first micro-batch of a step, whose gradients are added to none.
    pub(crate) fn accumulation(&self) -> f64 {
        self.parameters() * self.least_accumulation()
    }

    /// Seconds of adding gradients up for each byte of parameters, on the device with the fastest memory.
    pub(crate) fn least_accumulation(&self) -> f64 {
        let bandwidths = self.machine.devices.iter().map(|device| device.memory_bandwidth.0);
        self.training.accumulated() / bandwidths.fold(0.0, f64::max)
    }

    /// Returns the bytes of all parameters, tied ones once.
    pub fn parameters(&self) -> f64 {
        let own = self.blocks.iter().map(|block| block.parameters.0 as f64).sum::<f64>();
        own + self.ties.iter().map(|tie| tie.parameters.0 as f64).sum::<f64>()
    }

    /// Tells whether some device could hold the parameters, their gradients and the optimizer's state alone.
    pub fn fits_one_device(&self) -> bool {
        let most = self.machine.devices.iter().map(|device| device.memory.0).max().unwrap_or_default();
        self.parameters() * self.training.copies(1) <= most as f64
    }

    /// Returns the problem on an ideal machine, a relaxation over all orders of devices and all links: every device is the best
    /// in everything, and copies to the host take no time.
    pub(crate) fn ideal(&self) -> Self {
        let mut ideal = self.clone();
        let devices = &mut ideal.machine.devices;
        let speed = devices.iter().map(|device| device.speed).fold(0.0, f64::max);
        let memory = devices.iter().map(|device| device.memory).max().unwrap_or_default();
        let bandwidth = devices.iter().map(|device| device.memory_bandwidth.0).fold(0.0, f64::max);
        for device in devices {
            device.speed = speed;
            device.memory = memory;
            device.memory_bandwidth = BytesPerSecond(bandwidth);
            device.host_bandwidth = BytesPerSecond(f64::INFINITY);
        }
        // The ideal machine stands for all orders of devices.
        ideal.pins.retain(|pin| !pin.is_to_devices());
        ideal
    }

    /// Makes a problem of a PipeDream profile: a minibatch there is a micro-batch here.
    ///
    /// The profile does not split the backward pass; half of it goes to the inputs' gradients. An `Input` node's time is
    /// that of loading data, which no device does.
    pub fn from_profile(profile: &PipedreamProfile, machine: Machine, training: Training) -> Self {
        let n_nodes = profile.nodes.len();
        let mut n_inputs = vec![0; n_nodes];
        let mut takers = vec![Vec::new(); n_nodes];
        for &(from, to) in &profile.edges {
            n_inputs[to] += 1;
            takers[from].push(to);
        }
        let is_input =
            |node: usize| n_inputs[node] == 0 && profile.nodes[node].description.starts_with("Input");
        // A topological order, the file's own where it is one.
        let mut waiting = n_inputs.clone();
        let mut ready: BTreeSet<usize> = (0..n_nodes).filter(|&node| waiting[node] == 0).collect();
        let mut order = Vec::with_capacity(n_nodes);
        while let Some(node) = ready.pop_first() {
            order.push(node);
            for &taker in &takers[node] {
                waiting[taker] -= 1;
                if waiting[taker] == 0 {
                    ready.insert(taker);
                }
            }
        }
        let mut position = vec![0; n_nodes];
        order.iter().enumerate().for_each(|(index, &node)| position[node] = index);
        let blocks = order.iter().map(|&node| {
            let data = &profile.nodes[node];
            let is_free = is_input(node);
            let time = |seconds: Seconds| if is_free { Seconds(0.0) } else { seconds };
            Block {
                path: data.id.clone(),
                joined: Vec::new(),
                forward: time(data.forward),
                input_gradient: time(data.backward) / 2.0,
                weight_gradient: time(data.backward) / 2.0,
                once: Seconds(0.0),
                parameters: data.parameters,
                activations: if is_free { Bytes(0) } else { data.activations },
                kept: Bytes(0),
                workspace: Bytes(0),
                left_out: Seconds(0.0),
                light: None,
                waiting: Bytes(0),
                is_operator: false,
                recompute: None,
            }
        });
        let values = order.iter().filter(|&&node| !takers[node].is_empty()).map(|&node| {
            let mut to: Vec<usize> = takers[node].iter().map(|&taker| position[taker]).collect();
            to.sort_unstable();
            let bytes = profile.nodes[node].activations;
            if is_input(node) {
                // Inputs are loaded where they are used.
                return Value { from: None, to, forward: Bytes(0), backward: Bytes(0) };
            }
            Value { from: Some(position[node]), to, forward: bytes, backward: bytes }
        });
        Self {
            blocks: blocks.collect(),
            values: values.collect(),
            ties: Vec::new(),
            machine,
            training,
            begins: None,
            pins: Vec::new(),
        }
    }
}

impl Machine {
    /// Makes a machine of a cluster.
    pub fn from_cluster(cluster: &Cluster, overlaps: bool) -> Self {
        let devices = cluster.devices.iter().filter_map(|device| {
            let type_ = cluster.types.get(&device.type_)?;
            Some(MachineDevice {
                name: device.name.clone(),
                speed: type_.speed.unwrap_or(1.0),
                memory: type_.usable(),
                memory_bandwidth: type_.memory_bandwidth,
                host_bandwidth: type_.host_bandwidth.unwrap_or(HOST_BANDWIDTH),
                place: device.place.clone(),
            })
        });
        let levels = cluster
            .levels
            .iter()
            .map(|level| MachineLevel { bandwidth: level.bandwidth, latency: level.latency });
        let links = cluster.links.iter().map(|link| {
            let level = MachineLevel { bandwidth: link.bandwidth, latency: link.latency };
            (link.from.clone(), link.to.clone(), level)
        });
        Self { devices: devices.collect(), levels: levels.collect(), links: links.collect(), overlaps }
    }

    /// Makes a machine of equal devices with one link between any two.
    pub fn flat(n_devices: usize, memory: Bytes, bandwidth: BytesPerSecond) -> Self {
        let device = |index| MachineDevice {
            name: format!("{index}"),
            speed: 1.0,
            memory,
            memory_bandwidth: BytesPerSecond(1e12),
            host_bandwidth: HOST_BANDWIDTH,
            place: Vec::new(),
        };
        let levels = vec![MachineLevel { bandwidth, latency: Seconds(0.0) }];
        Self { devices: (0..n_devices).map(device).collect(), levels, links: Vec::new(), overlaps: true }
    }

    fn validate(&self) -> Result<(), ProblemError> {
        if self.devices.is_empty() {
            return Err(ProblemError::NoDevices);
        }
        if self.devices.len() > DEVICES {
            return Err(ProblemError::TooManyDevices(self.devices.len()));
        }
        for device in &self.devices {
            for (field, value) in [
                ("speed", device.speed),
                ("memory_bandwidth", device.memory_bandwidth.0),
                ("host_bandwidth", device.host_bandwidth.0),
            ] {
                if !(value > 0.0 && value.is_finite()) {
                    return Err(ProblemError::BadDevice { device: device.name.clone(), field, value });
                }
            }
        }
        for level in &self.levels {
            if level.bandwidth.0.is_nan() || level.bandwidth.0 <= 0.0 {
                let device = "any".to_string();
                return Err(ProblemError::BadDevice { device, field: "bandwidth", value: level.bandwidth.0 });
            }
        }
        Ok(())
    }

    /// Returns the level that joins two devices; none joins what is not there.
    pub fn level(&self, one: usize, other: usize) -> Option<MachineLevel> {
        let ends = (&self.devices[one].name, &self.devices[other].name);
        let is_own =
            |(from, to, _): &&(String, String, MachineLevel)| (from, to) == ends || (to, from) == ends;
        if let Some((_, _, level)) = self.links.iter().find(is_own) {
            return Some(*level);
        }
        self.levels.get(self.level_index(one, other)).copied()
    }

    /// Returns the position of the innermost level that holds two devices: their transfers share its ports.
    pub fn level_index(&self, one: usize, other: usize) -> usize {
        schema::level_of(&self.devices[one].place, &self.devices[other].place, self.levels.len())
    }

    /// Returns the slowest level in a ring of devices: least bandwidth, most latency.
    pub fn slowest(&self, devices: &[usize]) -> Option<MachineLevel> {
        let next = devices.iter().cycle().skip(1);
        let pairs = devices.iter().zip(next).filter(|(one, other)| one != other);
        let levels = pairs.filter_map(|(&one, &other)| self.level(one, other));
        levels.reduce(|a, b| MachineLevel {
            bandwidth: if a.bandwidth.0 < b.bandwidth.0 { a.bandwidth } else { b.bandwidth },
            latency: if a.latency.0 > b.latency.0 { a.latency } else { b.latency },
        })
    }

    /// Returns the seconds a byte takes over the fastest link; none where there are no links.
    pub fn least_seconds_per_byte(&self) -> f64 {
        let levels = self.levels.iter().chain(self.links.iter().map(|(.., level)| level));
        let least = levels.map(|level| 1.0 / level.bandwidth.0).fold(f64::INFINITY, f64::min);
        if least.is_finite() { least } else { 0.0 }
    }

    /// Returns the machine with more devices like the last, beside it.
    pub fn grown(&self, count: usize) -> Self {
        let mut larger = self.clone();
        let last = self.devices.last().cloned();
        for index in self.devices.len()..count {
            larger.devices.extend(last.clone().map(|device| MachineDevice {
                // Names must be unique.
                name: format!("{} (one more: {index})", device.name),
                ..device
            }));
        }
        larger
    }

    /// Tells whether all devices and links are alike.
    pub fn is_uniform(&self) -> bool {
        let first = &self.devices[0];
        let alike = |device: &MachineDevice| device.speed == first.speed && device.memory == first.memory;
        let are_apart = || {
            // Nodes of one device each, side by side.
            let nodes: BTreeSet<u32> =
                self.devices.iter().filter_map(|device| device.place.first().copied()).collect();
            nodes.len() == self.devices.len()
                && self.devices.iter().all(|device| device.place[1..] == first.place[1..])
        };
        self.links.is_empty()
            && self.devices.iter().all(alike)
            && (self.levels.len() <= 1
                || self.devices.iter().all(|device| device.place == first.place)
                || are_apart())
    }

    /// Returns the work that all devices do in a second.
    pub fn total_speed(&self) -> f64 {
        self.devices.iter().map(|device| device.speed).sum()
    }
}
