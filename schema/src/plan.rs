//! `plan.yaml`: the stages of a model, their devices and schedule, and the predicted cost.
//!
//! The plan includes its cluster and its stages' costs, so that `simulate` needs nothing else.

use std::{collections::BTreeSet, fmt};

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Bytes, Cluster, Execution, LayerCost, Seconds, TensorParallel};

/// The newest version of the plan format.
pub const PLAN_VERSION: u32 = 1;

/// A plan as written in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Always `plan`.
    pub kind: String,
    /// Format version, [`PLAN_VERSION`] at most.
    pub version: u32,
    /// Tool and version that wrote it.
    pub written_by: String,
    /// The model it was made for.
    pub model: ModelReference,
    /// The cluster.
    pub cluster: Cluster,
    /// `pipedream`, `data-parallel`, `even-layers`, …
    pub strategy: String,
    /// `gpipe`, `1f1b`, `interleaved-1f1b`, … as `simulate --schedule` takes it.
    pub schedule: String,
    /// Micro-batches per step.
    pub micro_batches: u32,
    /// Samples per micro-batch, if not those of the trace's inputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_batch_size: Option<u64>,
    /// Stages in the order of the model. Under an interleaved schedule a device holds several.
    pub stages: Vec<PlanStage>,
    /// Transfers between stages, per micro-batch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transfers: Vec<Transfer>,
    /// Parameters that several stages hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ties: Vec<PlanTie>,
    /// Gradient sums, sharding and offload, if not the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution: Option<Execution>,
    /// Parameters that devices share within each layer, by name; a star stands for the numbers of equal layers. With
    /// images in bands, the banded inputs, or a star for other values.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub cuts: IndexMap<String, Cut>,
    /// How devices share each operator, where each has a split of its own: by call and operator, a star for the numbers
    /// of equal layers. Operators that are not listed are whole on each device.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub operators: IndexMap<String, String>,
    /// Whether values between shared layers are in parts of the sequences; absent if that is chosen with the cuts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence_parallel: Option<SequenceParallel>,
    /// Parts of the samples or positions, if groups of the devices that share layers have one each; `cuts` are those of a
    /// group's devices. Absent if there is one group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_parallel: Option<u32>,
    /// The same, if each group has a part of the experts as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expert_parallel: Option<u32>,
    /// Set if the plan is for inference: nothing is trained, and stages hold no gradients and no optimizer state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inference: Option<Inference>,
    /// The optimizer, loss and rounding that were asked for, where any was: they decide time and memory, also when the plan
    /// is checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assumed: Option<Assumed>,
    /// The constraints under which it was made, and is checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constraints: Option<Constraints>,
    /// The predicted performance.
    pub predicted: Predicted,
}

/// The objective of an inference plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Inference {
    /// The quantity that is minimised.
    pub objective: InferenceObjective,
    /// Tokens per sequence whose keys and values every attention keeps; they are each stage's `activations`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_cache: Option<u64>,
}

/// The quantity that an inference plan minimises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum InferenceObjective {
    /// Seconds per micro-batch of an endless stream.
    Throughput,
    /// Seconds of one request.
    Latency,
}

/// What a step is assumed to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Assumed {
    /// The optimizer, by the state that it keeps; Adam if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<PlannedOptimizer>,
    /// Whether parameters of less than 32 bits have a float32 copy that is trained.
    #[serde(default, skip_serializing_if = "is_false")]
    pub master_weights: bool,
    /// The loss after the model's outputs; the one that suits them if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<PlannedLoss>,
    /// The data type that products round their operands to; their own if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounding: Option<PlannedRounding>,
}

impl Assumed {
    /// Returns what is assumed here, and otherwise what `other` assumes.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            optimizer: self.optimizer.or(other.optimizer),
            master_weights: self.master_weights || other.master_weights,
            loss: self.loss.or(other.loss),
            rounding: self.rounding.or(other.rounding),
        }
    }
}

/// The optimizer, by the state that it keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PlannedOptimizer {
    /// Two numbers per parameter.
    Adam,
    /// One number per parameter.
    Momentum,
    /// No state.
    Sgd,
}

/// The loss that training adds after the outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PlannedLoss {
    /// No loss.
    None,
    /// torch's `cross_entropy` of the outputs in float32.
    CrossEntropy,
    /// The same in one kernel that writes the gradient over the outputs.
    FusedCrossEntropy,
    /// torch's `mse_loss`.
    Mse,
}

/// The data type that products round their operands to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PlannedRounding {
    /// Products of float32 numbers in TF32.
    Tf32,
    /// Linear layers in 16 bits in float8.
    Float8,
}

/// Constraints on the stages of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Constraints {
    /// Calls that no cut divides, by path or class; a star stands for any text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keep_together: Vec<String>,
    /// Devices that are not used, by name; a star stands for any text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leave_out: Vec<String>,
    /// Calls, or operators, with which the second and later stages begin: no other cuts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cut_at: Vec<String>,
    /// Numbers of the model's repeated blocks in the stages, instead of `cut_at`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<u32>,
    /// Calls that must be in one stage, or on some devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pin: Vec<PinnedCalls>,
    /// Calls that are always recomputed in the backward pass, or never.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recompute: Vec<RecomputedCalls>,
    /// Allowed samples per micro-batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_batch_size: Option<MicroBatchSize>,
}

/// Calls and their required place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PinnedCalls {
    /// The calls, by path or class; a star stands for any text.
    pub calls: String,
    /// Their required place.
    pub to: PinTo,
}

/// The required place of calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum PinTo {
    /// The stage of this number, the first being 0.
    Stage(u32),
    /// `last` for the last stage, or devices by name; a star stands for any text.
    Named(String),
}

impl PinnedCalls {
    /// Reads `encoder=0`, `head=last` or `decoder.*=node1:*`.
    ///
    /// # Errors
    /// The expected form.
    pub fn from_text(text: &str) -> Result<Self, String> {
        let parts = text.rsplit_once('=').filter(|(calls, to)| !calls.is_empty() && !to.is_empty());
        let (calls, to) = parts.ok_or(
            "expected calls and their place: embed=0, head=last, decoder.*=node1:* (a stage, or devices by name)",
        )?;
        let to = to.parse().map_or_else(|_| PinTo::Named(to.to_string()), PinTo::Stage);
        Ok(Self { calls: calls.to_string(), to })
    }
}

impl fmt::Display for PinnedCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.to {
            PinTo::Stage(stage) => write!(f, "{}={stage}", self.calls),
            PinTo::Named(name) => write!(f, "{}={name}", self.calls),
        }
    }
}

/// Calls and whether they are recomputed in the backward pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecomputedCalls {
    /// The calls, by path or class; a star stands for any text.
    pub calls: String,
    /// Whether they are.
    pub policy: RecomputePolicy,
}

/// Whether calls are recomputed in the backward pass, independently of the available memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RecomputePolicy {
    /// Each of them is recomputed as one unit.
    Always,
    /// The same, but results of products with weights, convolutions and fused attention are kept.
    Light,
    /// None is recomputed.
    Never,
}

impl RecomputePolicy {
    /// Tells whether calls are recomputed, all of them or but for their products.
    pub fn is_again(self) -> bool {
        matches!(self, Self::Always | Self::Light)
    }

    /// Returns the word for flags and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Light => "light",
            Self::Never => "never",
        }
    }
}

impl RecomputedCalls {
    /// Reads `layers.*=always` or `LlamaAttention=never`.
    ///
    /// # Errors
    /// The expected form.
    pub fn from_text(text: &str) -> Result<Self, String> {
        let (calls, policy) =
            text.rsplit_once('=').filter(|(calls, _)| !calls.is_empty()).unwrap_or_default();
        let policy = match policy.to_ascii_lowercase().as_str() {
            "always" => RecomputePolicy::Always,
            "light" => RecomputePolicy::Light,
            "never" => RecomputePolicy::Never,
            _ => {
                return Err(
                    "expected calls and `always`, `light` or `never`: layers.*=always, LlamaAttention=never"
                        .into(),
                );
            }
        };
        Ok(Self { calls: calls.to_string(), policy })
    }
}

impl fmt::Display for RecomputedCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.calls, self.policy.name())
    }
}

/// The smallest and the largest micro-batch of a plan, in samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MicroBatchSize {
    /// The smallest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least: Option<u64>,
    /// The largest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<u64>,
}

impl Constraints {
    /// Returns the number of stages that they imply; `None` if it is free.
    pub fn stages(&self) -> Option<usize> {
        match (self.layers.len(), self.cut_at.len()) {
            (0, 0) => None,
            (0, cuts) => Some(cuts + 1),
            (stages, _) => Some(stages),
        }
    }
}

impl Plan {
    /// Tells whether some blocks are recomputed but for the results of their products.
    pub fn keeps_products(&self) -> bool {
        self.stages.iter().any(|stage| !stage.recompute_light.is_empty())
    }

    /// Returns the rank of each stage: stages on the same devices have one rank. Ranks are numbered by first
    /// occurrence.
    pub fn ranks(&self) -> Vec<usize> {
        let mut seen: Vec<&[String]> = Vec::new();
        let mut ranks = Vec::with_capacity(self.stages.len());
        for stage in &self.stages {
            let known = seen.iter().position(|devices| *devices == stage.devices.as_slice());
            ranks.push(known.unwrap_or_else(|| {
                seen.push(&stage.devices);
                seen.len() - 1
            }));
        }
        ranks
    }

    /// Returns how devices share layers.
    pub fn sharing(&self) -> LayerSharing {
        let degrees: BTreeSet<u32> =
            self.stages.iter().map(|stage| stage.tensor_parallel.map_or(1, |shared| shared.degree)).collect();
        let is_estimated =
            |stage: &PlanStage| stage.tensor_parallel.is_some_and(|shared| shared.per_pass > 0);
        match degrees.into_iter().collect::<Vec<u32>>()[..] {
            [] | [1] => LayerSharing::Nothing,
            [_] if self.cuts.is_empty() && self.stages.iter().any(is_estimated) => LayerSharing::Estimated,
            [degree] => LayerSharing::ByCuts(degree),
            _ => LayerSharing::Unequal,
        }
    }

    /// Returns the number of ranks.
    pub fn n_ranks(&self) -> usize {
        self.ranks().into_iter().max().map_or(1, |last| last + 1)
    }
}

/// How the devices of a plan share layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerSharing {
    /// Not: each has layers of its own.
    Nothing,
    /// This many share each layer; exchanges follow from [`Plan::cuts`].
    ByCuts(u32),
    /// Shared layers with a user's estimate of all-reduces: the cuts are unknown.
    Estimated,
    /// Stages are shared by different numbers of devices.
    Unequal,
}

/// The cut of a parameter, of which each device of a group holds an equal part, or of an image in bands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cut {
    /// The dimension.
    pub dim: u32,
    /// The number of equal blocks in the dimension, each of which is cut: 3 for packed queries, keys and values.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub blocks: u64,
    /// An input whose rows are in bands, one per device, as are all images made of it; parameters are whole.
    #[serde(default, skip_serializing_if = "is_false")]
    pub bands: bool,
    /// All of it is on the first device of each group, and only that device computes with it; `dim` is 0.
    #[serde(default, skip_serializing_if = "is_false")]
    pub on_first: bool,
}

/// The form of values between shared layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SequenceParallel {
    /// Parts of the samples or positions: products end in a reduce-scatter, and begin with an all-gather.
    On,
    /// Whole values: products end in an all-reduce.
    Off,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // the signature that serde requires
fn is_false(flag: &bool) -> bool {
    !*flag
}

fn one() -> u64 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref)] // the signature that serde requires
fn is_one(blocks: &u64) -> bool {
    *blocks == 1
}

/// The model of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelReference {
    /// Name for messages.
    pub name: String,
    /// SHA-256 of the model's code and tensor table (archive) or of the file (profile graph), in hex.
    pub digest: String,
}

/// The unit of recomputation in a stage, whose inputs are saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RecomputeUnit {
    /// Each block by itself.
    #[default]
    Block,
    /// All blocks of the stage together: per micro-batch only the stage's inputs are saved (GPipe).
    Stage,
}

impl RecomputeUnit {
    /// Tells whether blocks are recomputed one by one, which is the default of files.
    pub fn is_block(&self) -> bool {
        *self == Self::Block
    }
}

/// One stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanStage {
    /// Blocks by path, in the order of the trace.
    pub blocks: Vec<String>,
    /// Names of the devices that run it; more than one means replicas that share the micro-batches.
    pub devices: Vec<String>,
    /// Blocks whose activations are recomputed in the backward pass.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recompute: Vec<String>,
    /// The unit of recomputation.
    #[serde(default, skip_serializing_if = "RecomputeUnit::is_block")]
    pub recompute_unit: RecomputeUnit,
    /// Those of `recompute` that keep the results of products with weights, convolutions and fused attention: only the
    /// operators between these are recomputed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recompute_light: Vec<String>,
    /// Blocks whose activations are moved to host memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub offload: Vec<String>,
    /// Its layers are sharded over groups of its devices; each group is one replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tensor_parallel: Option<TensorParallel>,
    /// Its layers, first to last, if replicas' gradients are to be simulated one by one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<LayerCost>,
    /// Cost of one micro-batch on one replica.
    pub cost: StageCost,
    /// The uncertainty of the three times in `cost` together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub band: Option<Band>,
}

impl PlanStage {
    /// Returns the number of replicas: its devices, or groups of devices that share each layer.
    pub fn replicas(&self) -> usize {
        let degree = self.tensor_parallel.map_or(1, |shared| shared.degree.max(1) as usize);
        (self.devices.len() / degree).max(1)
    }
}

/// The cost of one micro-batch in a stage, on one of its devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StageCost {
    /// Forward pass.
    pub forward: Seconds,
    /// Gradient of the inputs.
    pub input_gradient: Seconds,
    /// Gradient of the parameters.
    pub weight_gradient: Seconds,
    /// Once a step: sums of gradients over the devices that share it, of weights that each has whole.
    #[serde(default, skip_serializing_if = "takes_none")]
    pub once: Seconds,
    /// Parameters, per replica.
    pub parameters: Bytes,
    /// Optimizer state, per replica.
    pub optimizer: Bytes,
    /// Saved activations of one micro-batch.
    pub activations: Bytes,
    /// Scratch memory while it runs.
    pub workspace: Bytes,
    /// Recomputed activations, which exist again during its backward pass.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub recomputed: Bytes,
    /// Where gradients of inputs and of parameters are two passes: what a micro-batch holds from the one to the other on top
    /// of its saved activations. Operands of products, and the gradients of their results.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub waiting: Bytes,
    /// Copies to and from host memory for one micro-batch, each way.
    #[serde(default)]
    pub offloaded: Bytes,
}

fn takes_none(seconds: &Seconds) -> bool {
    seconds.0 == 0.0
}

fn is_nothing(bytes: &Bytes) -> bool {
    bytes.0 == 0
}

/// Values sent from one stage to a later one (gradients are sent back).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Transfer {
    /// Index of the sending stage.
    pub from: u32,
    /// Index of the receiving stage.
    pub to: u32,
    /// Bytes of one micro-batch, forward.
    pub forward: Bytes,
    /// Bytes of one micro-batch, backward; less if some values carry no gradient.
    pub backward: Bytes,
}

/// Parameters that several stages hold: each step sums their gradients over these stages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanTie {
    /// Indices of the stages.
    pub stages: Vec<u32>,
    /// Bytes of the parameters, which are included in each stage's own.
    pub parameters: Bytes,
}

/// The predicted performance of a plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Predicted {
    /// One training step: all micro-batches, gradient sums, optimizer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Seconds>,
    /// Steady-state time per micro-batch of an asynchronous or endless pipeline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period: Option<Seconds>,
    /// Lower bound: no plan of this model on this cluster, or none of those that `bound_of` names, is faster by the same
    /// objective.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lower_bound: Option<Seconds>,
    /// The plans that the lower bound holds for, if not for all: `gpipe plan with 2 stages`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound_of: Option<String>,
    /// Share of device time spent idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bubble: Option<f64>,
    /// Peak memory by device name, in the order of the cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<DeviceMemory>,
    /// The uncertainty of the step, or else the period, that comes from operators' times.
    ///
    /// All stages err in the same direction, each by its own width; transfers and gradient sums have no error. Errors
    /// of operators are half common and half independent, so the relative band of a sum is narrower than that of each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub band: Option<Band>,
    /// The source of the operators' times; absent if the model was a profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<TimesFrom>,
}

/// The p10–p90 band of a time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Band {
    /// The 10th percentile.
    pub p10: Seconds,
    /// The 90th percentile.
    pub p90: Seconds,
}

/// The source of the times of a model's operators.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TimesFrom {
    /// The cost model: its data, or the data sheet.
    pub cost_model: String,
    /// Share of the predicted seconds by source: `measured`, `curve`, `scaled-curve` (a gradient by the curve of the
    /// forward pass), `overhead` (a call without work), `host` (calls to an accelerator that take longer than the
    /// called operator), `roofline` (a data sheet).
    pub shares: IndexMap<String, f64>,
    /// Share of the predicted seconds from curves outside their fitted sizes, if any.
    #[serde(default, skip_serializing_if = "crate::profile::is_zero")]
    pub outside: f64,
    /// Other types of devices, with how many times as long every operator takes there: their whole model's time over that of
    /// the first type.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub others: IndexMap<String, f64>,
}

impl fmt::Display for TimesFrom {
    /// Writes the model, its sources and the other devices; shares below half a per cent are omitted.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shares = self.shares.iter().map(|(source, share)| (source, (100.0 * share).round()));
        let shares: Vec<String> = shares
            .filter(|(_, percent)| *percent > 0.0)
            .map(|(source, percent)| format!("{percent} % {source}"))
            .collect();
        write!(f, "{} ({}", self.cost_model, shares.join(", "))?;
        let outside = (100.0 * self.outside).round();
        let outside =
            if outside > 0.0 { format!("; {outside} % outside the measured sizes") } else { String::new() };
        write!(f, "{outside})")?;
        self.others.iter().try_for_each(|(name, factor)| write!(f, "; {name} {factor:.2} × as long"))
    }
}

/// Peak memory of one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceMemory {
    /// Device name.
    pub device: String,
    /// Predicted peak.
    pub peak: Bytes,
    /// The device's memory.
    pub limit: Bytes,
}
