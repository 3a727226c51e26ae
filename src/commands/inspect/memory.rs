//! `inspect --memory`: whether a training step fits a device, what fills it, the largest batch that fits, and what
//! would help.
//!
//! Sizes are inferred again for each batch that is tried, so that the answer holds for models whose memory is not
//! linear in it.

use clap::Args;
use graph::{InputShape, ModelGraph, TensorFact};
use schema::{Bytes, Cluster, InspectMemory, LargestSize, MemoryRelief, ShardingLevel};

use crate::{
    columns::columns,
    commands::plan::{
        arguments::{Optimizer, sharding_level},
        clusters,
        loss::{self, Loss, LossCost},
    },
    cost_models::CostModels,
    failure::Failure,
    step_memory::{Held, OptimizerMemory, Setting, held, note_without_copies},
    workspace::Workspace,
};

/// The least memory of CUDA's context: kernels and driver (pytorch#107667).
const CONTEXT: u64 = 300_000_000;
/// The number of devices for which savings by sharding are reported, if a device is given.
const NODE: u32 = 8;
/// Shorter passes of a loss are not told, for starting their kernels takes as long.
const LAUNCHED: f64 = 1e-5;
/// The largest batch or length that is tried.
const LARGEST: u64 = 1 << 24;

/// Arguments of `--memory`.
#[derive(Args)]
pub struct MemoryArguments {
    /// Memory of a training step by part; with a device, whether it fits, the largest batch that does, and what would
    /// help
    #[arg(long)]
    memory: bool,
    /// Devices for data parallelism, each with the model's inputs: 8xh100
    #[arg(long, value_name = "N×NAME", conflicts_with = "device", requires = "memory")]
    devices: Option<String>,
    /// Optimizer, which decides the state kept per parameter [default: adam]
    #[arg(long, value_enum, ignore_case = true, requires = "memory")]
    optimizer: Option<Optimizer>,
    /// Parameters of 16 bits have a float32 copy that is trained
    #[arg(long, requires = "memory")]
    master_weights: bool,
    /// Loss that training adds after the outputs [default: guessed from them]
    #[arg(long, value_enum, requires = "memory")]
    loss: Option<Loss>,
    /// State that devices shard: none (DDP), zero1 (optimizer state), zero2 (also gradients), zero3 (also parameters:
    /// FSDP)
    #[arg(long, value_name = "LEVEL", value_parser = sharding_level, requires = "memory")]
    sharding: Option<ShardingLevel>,
    /// Recompute calls in the backward pass, at the depth of the model that saves most
    #[arg(long, requires = "memory")]
    recompute: bool,
    /// Move activations to host memory
    #[arg(long, requires = "memory")]
    offload: bool,
    /// Sum the gradients of several micro-batches
    #[arg(long, requires = "memory")]
    accumulate: bool,
}

impl MemoryArguments {
    /// Answers for a model, if requested.
    pub fn answer(
        &self,
        model: &Workspace,
        device: Option<&str>,
        inputs: &[InputShape],
    ) -> Result<Option<InspectMemory>, Failure> {
        if !self.memory {
            return Ok(None);
        }
        if self.master_weights {
            note_without_copies(&model.graph);
        }
        let none = CostModels::default();
        let text = self.devices.clone().or_else(|| device.map(|name| format!("1x{name}")));
        let cluster = clusters::named(text.as_deref(), None, &none)?;
        let loss = loss::memory(&model.graph, self.loss);
        let setting = Setting {
            optimizer: optimizer(self.optimizer.unwrap_or_default(), self.master_weights),
            loss: loss.as_ref().map(|(memory, _)| *memory).unwrap_or_default(),
            devices: cluster.as_ref().map_or(1, |cluster| cluster.devices.len() as u32),
            sharding: self.sharding.unwrap_or_default(),
            recompute: self.recompute,
            offload: self.offload,
            accumulates: self.accumulate,
        };
        let now = held(&model.graph, &model.costs, &setting);
        let mut answer = InspectMemory {
            bytes: Bytes(now.total()),
            when: when(&model.graph, &now),
            parts: now.parts,
            loss: loss.map(|(_, words)| words),
            loss_forward_seconds: None,
            loss_backward_seconds: None,
            unmeasured_operators: u64::from(model.costs.total().unmeasured),
            device: None,
            devices: setting.devices,
            memory: None,
            kept_clear: None,
            verdict: None,
            largest_batch: None,
            longest_sequence: None,
            reliefs: self.reliefs(model, &setting),
        };
        if let Some(cluster) = &cluster {
            self.fit(model, cluster, inputs, &setting, &mut answer);
        }
        Ok(Some(answer))
    }

    /// Tells whether a step fits its device.
    fn fit(
        &self,
        model: &Workspace,
        cluster: &Cluster,
        inputs: &[InputShape],
        setting: &Setting,
        answer: &mut InspectMemory,
    ) {
        let Some((name, smallest)) = cluster.types.iter().min_by_key(|(_, type_)| type_.usable()) else {
            return;
        };
        let (usable, all) = (smallest.usable().0, smallest.memory.0.saturating_sub(CONTEXT));
        answer.device = Some(name.clone());
        let (bandwidth, slowdown) = (smallest.memory_bandwidth, smallest.copy_slowdown);
        let times = LossCost::of(&model.graph, self.loss, bandwidth, slowdown).map(|loss| loss.times());
        if let Some([forward, backward]) = times.filter(|times| times[0].0 > LAUNCHED) {
            (answer.loss_forward_seconds, answer.loss_backward_seconds) = (Some(forward), Some(backward));
        }
        answer.memory = Some(smallest.memory);
        answer.kept_clear = Some(Bytes(smallest.memory.0.saturating_sub(usable)));
        let verdict = match answer.bytes.0 {
            bytes if bytes <= usable => "fits",
            bytes if bytes <= all => "tight",
            _ => "does not fit",
        };
        answer.verdict = Some(verdict.to_string());
        let given = shapes(&model.graph, inputs);
        let search = Search { model, given: &given, asked_loss: self.loss, setting };
        answer.largest_batch = search.largest(0, usable, all);
        let is_text =
            |tensor: &TensorFact| tensor.dtype.is_some_and(|dtype| graph::dtype_name(dtype) == "int64");
        let first = model.graph.inputs.first().map(|input| &model.graph.value(*input).fact);
        if first.and_then(graph::Fact::tensor).is_some_and(is_text) {
            answer.longest_sequence = search.largest(1, usable, all);
        }
    }

    /// Returns the memory of a step with each option that would save some.
    fn reliefs(&self, model: &Workspace, setting: &Setting) -> Vec<MemoryRelief> {
        let narrow = OptimizerMemory { bits: Some(8), temporaries: 0, ..setting.optimizer };
        let devices = if setting.devices > 1 { setting.devices } else { NODE };
        let shared = |sharding| Setting { sharding, devices, ..*setting };
        let mut changes = vec![
            ("recomputing calls".to_string(), Setting { recompute: true, ..*setting }),
            ("activations in host memory".to_string(), Setting { offload: true, ..*setting }),
            ("an 8-bit optimizer".to_string(), Setting { optimizer: narrow, ..*setting }),
        ];
        if setting.optimizer.temporaries > 0 {
            let fused = OptimizerMemory { temporaries: 0, ..setting.optimizer };
            changes.push((FUSED.to_string(), Setting { optimizer: fused, ..*setting }));
        }
        let levels = ShardingLevel::ALL.into_iter().filter(|level| *level > setting.sharding);
        changes
            .extend(levels.map(|level| (format!("{} over {devices} devices", level.name()), shared(level))));
        let relief = |(what, setting): (String, Setting)| MemoryRelief {
            what,
            bytes: Bytes(held(&model.graph, &model.costs, &setting).total()),
        };
        changes.into_iter().map(relief).collect()
    }
}

/// Searches the largest size of a dimension that fits.
struct Search<'a> {
    model: &'a Workspace,
    given: &'a [InputShape],
    asked_loss: Option<Loss>,
    setting: &'a Setting,
}

impl Search<'_> {
    /// Returns the largest size of a dimension that fits, with and without the reserve kept clear; `None` if the trace
    /// fixes the size.
    fn largest(&self, dimension: usize, usable: u64, all: u64) -> Option<LargestSize> {
        let now = *self.given.first()?.shape.get(dimension)?;
        let own = self.bytes(dimension, now, now)?;
        let more = |size: u64| self.bytes(dimension, now, size).map(|bytes| bytes > own);
        let less = |size: u64| self.bytes(dimension, now, size).map(|bytes| bytes < own);
        // A table of positions may have no room for twice as many, or for one more. A trace with a constant size gives the
        // same whatever is requested.
        let grows = more(now.checked_mul(2)?).or_else(|| more(now + 1)).or_else(|| less(now / 2))?;
        if !grows {
            return None;
        }
        Some(LargestSize { safe: self.up_to(dimension, now, usable), most: self.up_to(dimension, now, all) })
    }

    /// Memory is nearly linear in a size, so the line through both ends of the open interval soon meets the limit.
    fn up_to(&self, dimension: usize, now: u64, limit: u64) -> u64 {
        let held = |size: u64| self.bytes(dimension, now, size).unwrap_or(u64::MAX);
        let (mut low, mut least, mut high) = (0, 0, now.max(1));
        let mut most = held(high);
        while most <= limit && high < LARGEST {
            (low, least, high) = (high, most, high * 2);
            most = held(high);
        }
        for step in 0.. {
            if high - low <= 1 {
                break;
            }
            let line = (limit - least.min(limit)) as f64 / (most - least).max(1) as f64;
            // Every other step takes the middle: with a curve, lines would approach from one side only.
            let line = if step % 2 == 0 { line } else { 0.5 };
            let middle = low + (line * (high - low) as f64) as u64;
            let middle = middle.clamp(low + 1, high - 1);
            match held(middle) {
                bytes if bytes <= limit => (low, least) = (middle, bytes),
                bytes => (high, most) = (middle, bytes),
            }
        }
        low
    }

    /// Returns the memory of a step with another size; `None` if the model rejects it.
    fn bytes(&self, dimension: usize, now: u64, size: u64) -> Option<u64> {
        let changed = self.given.iter().map(|input| {
            let mut input = input.clone();
            // Inputs that share the size change with it.
            input.shape.get_mut(dimension).into_iter().filter(|own| **own == now).for_each(|own| *own = size);
            input
        });
        let options = graph::BuildOptions { inputs: changed.collect() };
        let graph = graph::build(&self.model.file.program, &options).ok()?;
        let costs = graph::costs(&graph);
        let loss = loss::memory(&graph, self.asked_loss).map(|(memory, _)| memory).unwrap_or_default();
        Some(held(&graph, &costs, &Setting { loss, ..*self.setting }).total())
    }
}

/// Returns the shapes of all inputs: those given, else those of the trace.
fn shapes(graph: &ModelGraph, given: &[InputShape]) -> Vec<InputShape> {
    let tensors = graph.inputs.iter().filter_map(|input| {
        let value = graph.value(*input);
        let tensor = value.fact.tensor()?;
        Some(InputShape { name: Some(value.name.clone()), shape: tensor.sizes()?, dtype: tensor.dtype })
    });
    let all: Vec<InputShape> = tensors.collect();
    if all.len() == graph.inputs.len() { all } else { given.to_vec() }
}

fn optimizer(optimizer: Optimizer, masters: bool) -> OptimizerMemory {
    let (numbers, temporaries) = match optimizer {
        Optimizer::Adam => (2, 1),
        Optimizer::Momentum => (1, 0),
        Optimizer::Sgd => (0, 0),
    };
    OptimizerMemory { numbers, bits: None, temporaries, masters }
}

/// Describes the moment of the largest memory.
fn when(graph: &ModelGraph, held: &Held) -> String {
    let Some(moment) = held.moment else { return "the optimizer's step".to_string() };
    let pass = if moment.is_backward { "backward" } else { "forward" };
    match moment.operator {
        None => format!("the loss's {pass} pass"),
        Some(operator) => {
            let operator = graph.operator(operator);
            let path = &graph.block(operator.block).path;
            let place = if path.is_empty() { "(root)" } else { path };
            format!("the {pass} pass of {} in {place}", operator.short_name())
        }
    }
}

/// An optimizer without temporary tensors.
const FUSED: &str = "an optimizer with fused=True";

/// Prints an answer for people.
pub fn text(memory: &InspectMemory) -> String {
    let mut text = format!("\na training step holds at most {}, in {}\n", memory.bytes, memory.when);
    let share = |bytes: u64, of: u64| format!("{:.1} %", 100.0 * bytes as f64 / of.max(1) as f64);
    let of = memory.memory.unwrap_or(memory.bytes).0;
    let row = |name: &str, bytes: Bytes| vec![name.to_string(), bytes.to_string(), share(bytes.0, of)];
    let mut rows: Vec<Vec<String>> = memory.parts.iter().map(|part| row(&part.name, part.bytes)).collect();
    rows.extend(memory.kept_clear.map(|bytes| row("reserve: CUDA, collectives, fragments", bytes)));
    text.push_str(&columns(&rows, "  ", |column| column > 0));
    if let (Some(device), Some(verdict), Some(all)) = (&memory.device, &memory.verdict, memory.memory) {
        let verdict = match verdict.as_str() {
            "tight" => "may fit: it needs the reserve",
            other => other,
        };
        let count = if memory.devices > 1 { format!("{} × ", memory.devices) } else { String::new() };
        text.push_str(&format!("{count}{device}, {all}: {verdict}\n"));
    }
    let size = |what: &str, size: &LargestSize| match size.most {
        0 => format!("no {what} fits\n"),
        most => {
            format!("largest {what} that fits: {}, or {most} with the reserve\n", size.safe)
        }
    };
    text.extend(memory.largest_batch.as_ref().map(|found| size("batch", found)));
    text.extend(memory.longest_sequence.as_ref().map(|found| size("sequence", found)));
    text.push_str("with\n");
    let reliefs = memory.reliefs.iter().map(|relief| {
        let saved = memory.bytes.0 as i128 - i128::from(relief.bytes.0);
        let change = Bytes(saved.unsigned_abs() as u64);
        let word = if saved >= 0 { "less" } else { "more" };
        vec![relief.what.clone(), relief.bytes.to_string(), format!("{change} {word}")]
    });
    text.push_str(&columns(&reliefs.collect::<Vec<_>>(), "  ", |column| column > 0));
    if memory.reliefs.iter().any(|relief| relief.what == FUSED) {
        text.push_str("`plan` and `simulate` assume fused=True: no temporaries of the optimizer\n");
    }
    if let Some(loss) = &memory.loss {
        let times = memory.loss_forward_seconds.zip(memory.loss_backward_seconds);
        let times = times.map(|(forward, backward)| format!("; {forward} forward and {backward} backward"));
        text.push_str(&format!("loss: {loss}{}\n", times.unwrap_or_default()));
    }
    if memory.unmeasured_operators > 0 {
        let count = memory.unmeasured_operators;
        text.push_str(&format!("{count} operators save tensors of unknown size: the step holds more\n"));
    }
    text
}
