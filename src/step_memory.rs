//! The memory of a training step on each device, by part, and whether it fits.
//!
//! Two moments compete: the fullest of forward and backward pass (`graph::step_memory`), and the optimizer's step,
//! which has all gradients and no activations. The first step of a run has no optimizer state yet; this is a later one.

use std::ops::Range;

use graph::{BlockId, Item, LossMemory, ModelGraph, Moment, OperatorCosts, StepOptions, step_memory};
use schema::{Bytes, MemoryPart, ShardingLevel};

use crate::failure::note;

/// The memory of an optimizer: its state, and the temporaries of its step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OptimizerMemory {
    /// Numbers per parameter.
    pub numbers: u64,
    /// Bits of each; those of the parameter, or of its master copy, when absent.
    pub bits: Option<u64>,
    /// Temporary copies of the parameters in torch's `foreach` form: Adam's square roots.
    pub temporaries: u64,
    /// Whether parameters of less than 32 bits have a float32 copy that is trained.
    pub masters: bool,
}

/// How a model is trained.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its optimizer.
    pub optimizer: OptimizerMemory,
    /// The loss after the outputs.
    pub loss: LossMemory,
    /// Devices for data parallelism, each with its own samples.
    pub devices: u32,
    /// The sharding level.
    pub sharding: ShardingLevel,
    /// Whether calls are recomputed in the backward pass.
    pub recompute: bool,
    /// Whether activations are moved to host memory.
    pub offload: bool,
    /// Whether gradients of several micro-batches are summed.
    pub accumulates: bool,
}

/// The memory at the fullest moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    /// Parts, without those of zero bytes.
    pub parts: Vec<MemoryPart>,
    /// The moment; `None` for the optimizer's step.
    pub moment: Option<Moment>,
}

impl Held {
    /// Returns the bytes of all parts.
    pub fn total(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes.0).fold(0, u64::saturating_add)
    }
}

/// Notes where float32 copies were asked for that no parameter gets.
pub fn note_without_copies(graph: &ModelGraph) {
    let is_narrow = |tensor: &graph::StoredTensor| tensor.bytes < 4 * tensor.elements();
    if !graph.tensors.iter().any(|tensor| tensor.is_first_parameter() && is_narrow(tensor)) {
        note("no parameter has 16 bits: --master-weights changes nothing");
    }
}

/// Returns the memory of each device at the fullest moment of a step.
pub fn held(graph: &ModelGraph, costs: &OperatorCosts, setting: &Setting) -> Held {
    let once = |role| graph.tensors.iter().filter(move |t| t.role == role && t.first == t.id);
    let parameters: u64 =
        once(graph::Role::Parameter).map(|tensor| tensor.bytes).fold(0, u64::saturating_add);
    let buffers: u64 = once(graph::Role::Buffer).map(|tensor| tensor.bytes).fold(0, u64::saturating_add);
    let inputs = graph.inputs.iter().flat_map(|input| graph.value(*input).fact.tensors());
    let inputs: u64 = inputs.filter_map(graph::TensorFact::bytes).fold(0, u64::saturating_add);
    let trained: Vec<_> = once(graph::Role::Parameter).filter(|tensor| tensor.requires_grad).collect();
    let sharers = |level| if setting.sharding >= level { setting.devices.max(1) } else { 1 };
    let state: u64 = trained
        .iter()
        .map(|tensor| setting.optimizer.state(tensor.elements(), tensor.bytes))
        .fold(0, u64::saturating_add);
    let temporaries: u64 = trained
        .iter()
        .map(|tensor| setting.optimizer.temporaries.saturating_mul(tensor.bytes))
        .fold(0, u64::saturating_add);
    let whole = whole_units(graph, setting);
    let options = StepOptions {
        loss: setting.loss,
        recomputed: &[],
        accumulates: setting.accumulates,
        offloads: setting.offload,
        sharers: sharers(ShardingLevel::Zero2),
    };
    let recomputed = if setting.recompute { units_to_recompute(graph, costs, &options) } else { Vec::new() };
    let step = step_memory(graph, costs, &StepOptions { recomputed: &recomputed, ..options });
    let optimizer_shares = u64::from(sharers(ShardingLevel::Zero1));
    let gradients: u64 = trained.iter().map(|tensor| tensor.bytes).fold(0, u64::saturating_add);
    let buckets = match (setting.devices, setting.sharding) {
        (0 | 1, _) | (_, ShardingLevel::Zero2 | ShardingLevel::Zero3) => 0,
        // DDP's buckets are a second copy of the gradients, unless the gradients are views of them.
        _ => gradients,
    };
    let always = [
        ("parameters", parameters.div_ceil(u64::from(sharers(ShardingLevel::Zero3)))),
        ("buffers of the model", buffers),
        ("inputs", inputs),
        ("optimizer", state.div_ceil(optimizer_shares)),
        ("buckets of gradients", buckets),
    ];
    let moment = |moment: &Moment, more: &[(&'static str, u64)]| {
        let own = [
            ("gradients", moment.gradients),
            ("saved activations", moment.saved),
            ("results and gradients on their way", moment.passing),
            ("loss", moment.loss),
        ];
        let parts = always.iter().chain(&own).chain(more).filter(|(_, bytes)| *bytes > 0);
        let part =
            |(name, bytes): &(&str, u64)| MemoryPart { name: (*name).to_string(), bytes: Bytes(*bytes) };
        parts.map(part).collect::<Vec<_>>()
    };
    let pass =
        Held { parts: moment(&step.peak, &[("layers brought together", whole)]), moment: Some(step.peak) };
    let update = Held {
        parts: moment(&step.end, &[("optimizer's temporaries", temporaries.div_ceil(optimizer_shares))]),
        moment: None,
    };
    if update.total() > pass.total() { update } else { pass }
}

impl OptimizerMemory {
    /// Bytes of optimizer state for the given numbers.
    fn state(&self, elements: u64, bytes: u64) -> u64 {
        let is_narrow = bytes < elements.saturating_mul(4);
        let each = if self.masters && is_narrow { elements.saturating_mul(4) } else { bytes };
        let one = self.bits.map_or(each, |bits| (elements.saturating_mul(bits)).div_ceil(8));
        let masters = if self.masters && is_narrow { each } else { 0 };
        self.numbers.saturating_mul(one).saturating_add(masters)
    }
}

/// Bytes that devices gather under sharded parameters or gradients: two layers at a time.
fn whole_units(graph: &ModelGraph, setting: &Setting) -> u64 {
    let kinds = match setting.sharding {
        ShardingLevel::Zero3 => 2,
        ShardingLevel::Zero2 => 1,
        ShardingLevel::None | ShardingLevel::Zero1 => 0,
    };
    if setting.devices < 2 || kinds == 0 {
        return 0;
    }
    let largest = layers(graph).into_iter().map(|block| own_bytes(graph, block)).max().unwrap_or(0);
    let all = own_bytes(graph, BlockId::ROOT);
    largest.saturating_mul(2).min(all).saturating_mul(kinds)
}

/// Returns the calls that are wrapped one by one: divided until none has more than a quarter of the parameters.
fn layers(graph: &ModelGraph) -> Vec<BlockId> {
    let all = own_bytes(graph, BlockId::ROOT);
    let mut layers = vec![BlockId::ROOT];
    let mut done = Vec::new();
    while let Some(block) = layers.pop() {
        let inside: Vec<BlockId> = graph
            .inside(block)
            .into_iter()
            .filter_map(|item| if let Item::Block(inner) = item { Some(inner) } else { None })
            .collect();
        if own_bytes(graph, block) > all / 4 && !inside.is_empty() {
            layers.extend(inside);
        } else {
            done.push(block);
        }
    }
    done
}

/// Bytes of the parameters that a call reads.
fn own_bytes(graph: &ModelGraph, block: BlockId) -> u64 {
    let mut seen = std::collections::BTreeSet::new();
    let read =
        graph.operators_of(&graph.block(block).operators).iter().flat_map(|operator| &operator.tensors);
    let tensors = read.map(|tensor| graph.tensor(*tensor)).filter(|t| t.role == graph::Role::Parameter);
    tensors.filter(|tensor| seen.insert(tensor.first)).map(|tensor| tensor.bytes).fold(0, u64::saturating_add)
}

/// Returns the calls to recompute, at the depth of the tree that saves most.
fn units_to_recompute(
    graph: &ModelGraph,
    costs: &OperatorCosts,
    options: &StepOptions<'_>,
) -> Vec<Range<u32>> {
    let deepest = graph.blocks.iter().map(|block| block.depth).max().unwrap_or(0);
    let peak = |runs: &Vec<Range<u32>>| {
        step_memory(graph, costs, &StepOptions { recomputed: runs, ..*options }).peak.total()
    };
    let at = |depth: u32| {
        let blocks = graph.blocks.iter().filter(|block| block.depth == depth && block.operators.len() > 1);
        let mut runs: Vec<Range<u32>> = blocks.map(|block| block.operators.clone()).collect();
        runs.sort_by_key(|run| run.start);
        runs
    };
    (1..=deepest).map(at).min_by_key(peak).unwrap_or_default()
}
