//! `plan.yaml`: which blocks run where, under which schedule, and what that is predicted to cost.
//!
//! The plan carries its cluster and its stages' costs, so that `simulate` needs nothing else.

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
    /// Where it runs.
    pub cluster: Cluster,
    /// `pipedream`, `data-parallel`, `even-layers`, …
    pub strategy: String,
    /// `gpipe`, `1f1b`, `interleaved-1f1b`, … as `simulate --schedule` takes it.
    pub schedule: String,
    /// Micro-batches in a step.
    pub micro_batches: u32,
    /// Samples in a micro-batch, where they are not those of the trace's inputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_batch_size: Option<u64>,
    /// Stages in the order of the model. Under an interleaved schedule a device holds several.
    pub stages: Vec<PlanStage>,
    /// What crosses between stages, each micro-batch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transfers: Vec<Transfer>,
    /// Parameters that several stages hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ties: Vec<PlanTie>,
    /// Gradient sync, sharding and offload where they are not the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution: Option<Execution>,
    /// Parameters that devices share within each layer, by name; a star stands for the numbers of layers that are alike. Where
    /// images lie in bands, the inputs that do, or a star for others.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub cuts: IndexMap<String, Cut>,
    /// Whether values between shared layers are in parts of the sequences; absent where that is chosen with the cuts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence_parallel: Option<SequenceParallel>,
    /// Set where the plan is for the forward pass alone: nothing is trained, and stages hold no gradients and no optimizer's state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inference: Option<Inference>,
    /// What it was held to when it was made, and is held to when it is checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constraints: Option<Constraints>,
    /// What the plan is predicted to do.
    pub predicted: Predicted,
}

/// What a plan of the forward pass alone is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Inference {
    /// What it makes small.
    pub objective: InferenceObjective,
    /// Tokens of each sequence whose keys and values every attention keeps; they are each stage's `activations`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_cache: Option<u64>,
}

/// What a plan of the forward pass alone makes small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum InferenceObjective {
    /// Seconds for each micro-batch of a stream without an end.
    Throughput,
    /// Seconds of one request.
    Latency,
}

/// What the stages of a plan are held to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Constraints {
    /// Calls that no cut goes through, by path or class; a star stands for anything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keep_together: Vec<String>,
    /// Devices that no stage stands on, by name; a star stands for anything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leave_out: Vec<String>,
    /// Calls, or operators, that the stages but the first begin with: no other cuts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cut_at: Vec<String>,
    /// How many of the blocks that the model repeats each stage has, instead of `cut_at`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<u32>,
    /// Calls that are to be in one stage, or on some devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pin: Vec<PinnedCalls>,
    /// Calls that are always computed again in the backward pass, or never.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recompute: Vec<RecomputedCalls>,
    /// How many samples a micro-batch may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_batch_size: Option<MicroBatchSize>,
}

/// Calls and where they are to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PinnedCalls {
    /// The calls, by path or class; a star stands for anything.
    pub calls: String,
    /// Where they are to be.
    pub to: PinTo,
}

/// Where calls are to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum PinTo {
    /// The stage of this number, the first being 0.
    Stage(u32),
    /// `last` for the last stage, or devices by name; a star stands for anything.
    Named(String),
}

impl PinnedCalls {
    /// Reads `encoder=0`, `head=last` or `decoder.*=node1:*`.
    ///
    /// # Errors
    /// What would be right.
    pub fn from_text(text: &str) -> Result<Self, String> {
        let parts = text.rsplit_once('=').filter(|(calls, to)| !calls.is_empty() && !to.is_empty());
        let (calls, to) = parts.ok_or(
            "calls and where they are to be: embed=0, head=last, decoder.*=node1:* (a stage, or devices by name)",
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

/// Calls and whether they are computed again in the backward pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecomputedCalls {
    /// The calls, by path or class; a star stands for anything.
    pub calls: String,
    /// Whether they are.
    pub policy: RecomputePolicy,
}

/// Whether calls are computed again in the backward pass, however much memory there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RecomputePolicy {
    /// Each of them is, as one.
    Always,
    /// None is.
    Never,
}

impl RecomputedCalls {
    /// Reads `layers.*=always` or `LlamaAttention=never`.
    ///
    /// # Errors
    /// What would be right.
    pub fn from_text(text: &str) -> Result<Self, String> {
        let (calls, policy) =
            text.rsplit_once('=').filter(|(calls, _)| !calls.is_empty()).unwrap_or_default();
        let policy = match policy.to_ascii_lowercase().as_str() {
            "always" => RecomputePolicy::Always,
            "never" => RecomputePolicy::Never,
            _ => return Err("calls and `always` or `never`: layers.*=always, LlamaAttention=never".into()),
        };
        Ok(Self { calls: calls.to_string(), policy })
    }
}

impl fmt::Display for RecomputedCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policy = match self.policy {
            RecomputePolicy::Always => "always",
            RecomputePolicy::Never => "never",
        };
        write!(f, "{}={policy}", self.calls)
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
    /// Returns the number of stages that they leave; none where they leave it open.
    pub fn stages(&self) -> Option<usize> {
        match (self.layers.len(), self.cut_at.len()) {
            (0, 0) => None,
            (0, cuts) => Some(cuts + 1),
            (stages, _) => Some(stages),
        }
    }
}

impl Plan {
    /// Returns the rank of each stage: stages on the same devices are one rank's. Ranks are counted as they first appear.
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

    /// Returns what devices share within layers.
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

/// What the devices of a plan share within layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerSharing {
    /// Nothing: each has layers of its own.
    Nothing,
    /// So many share each layer; exchanges follow from [`Plan::cuts`].
    ByCuts(u32),
    /// Layers, by a number of all-reduces that somebody has estimated: nothing says what is cut.
    Estimated,
    /// Stages are shared by different numbers of devices.
    Unequal,
}

/// Where a parameter is cut, so that each device of a group holds an equal part, or an image in bands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cut {
    /// The dimension.
    pub dim: u32,
    /// In how many equal blocks it lies, each of which is cut: 3 for packed queries, keys and values.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub blocks: u64,
    /// An input whose rows lie in bands, one for each device, and with it all images that are made of it; parameters are whole.
    #[serde(default, skip_serializing_if = "is_false")]
    pub bands: bool,
    /// All of it is on the first device of each group, which alone computes with it; `dim` is 0.
    #[serde(default, skip_serializing_if = "is_false")]
    pub on_first: bool,
}

/// What devices that share layers hold of the values between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SequenceParallel {
    /// A part of the samples or positions each: products end in a reduce-scatter, and begin with an all-gather.
    On,
    /// All of them: products end in an all-reduce.
    Off,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as serde calls it
fn is_false(flag: &bool) -> bool {
    !*flag
}

fn one() -> u64 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as serde calls it
fn is_one(blocks: &u64) -> bool {
    *blocks == 1
}

/// The model a plan belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelReference {
    /// Name for messages.
    pub name: String,
    /// SHA-256 of the model's code and tensor table (archive) or of the file (profile graph), in hex.
    pub digest: String,
}

/// What a stage computes again at a time, and so whose inputs it keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RecomputeUnit {
    /// Each block by itself.
    #[default]
    Block,
    /// All blocks of the stage together: of a micro-batch only what the stage is given is kept (GPipe).
    Stage,
}

impl RecomputeUnit {
    /// Tells whether each block is computed again by itself, as files that do not say so mean.
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
    /// Blocks whose activations are computed again in the backward pass.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recompute: Vec<String>,
    /// What is computed again at a time.
    #[serde(default, skip_serializing_if = "RecomputeUnit::is_block")]
    pub recompute_unit: RecomputeUnit,
    /// Blocks whose activations wait in host memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub offload: Vec<String>,
    /// Its layers are cut across groups of its devices; each group is one replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tensor_parallel: Option<TensorParallel>,
    /// Its layers, first to last, where replicas' gradients are to be followed one by one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<LayerCost>,
    /// Cost of one micro-batch on one replica.
    pub cost: StageCost,
    /// How uncertain the seconds of `cost`, all three together, are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub band: Option<Band>,
}

impl PlanStage {
    /// Returns how many replicas it has: its devices, or groups of them that share each layer.
    pub fn replicas(&self) -> usize {
        let degree = self.tensor_parallel.map_or(1, |shared| shared.degree.max(1) as usize);
        (self.devices.len() / degree).max(1)
    }
}

/// What one micro-batch costs in a stage, on one of its devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StageCost {
    /// Forward pass.
    pub forward: Seconds,
    /// Gradient of the inputs.
    pub input_gradient: Seconds,
    /// Gradient of the parameters.
    pub weight_gradient: Seconds,
    /// Parameters, each replica.
    pub parameters: Bytes,
    /// Optimizer state, each replica.
    pub optimizer: Bytes,
    /// What autograd keeps for one micro-batch.
    pub activations: Bytes,
    /// Scratch memory while it runs.
    pub workspace: Bytes,
    /// What was thrown away and is there once more while its backward pass runs.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub recomputed: Bytes,
    /// Copies to and from host memory for one micro-batch, each way.
    #[serde(default)]
    pub offloaded: Bytes,
}

fn is_nothing(bytes: &Bytes) -> bool {
    bytes.0 == 0
}

/// Values that go from one stage to a later one (gradients go back the same way).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Transfer {
    /// Index of the stage that makes the values.
    pub from: u32,
    /// Index of the stage that gets them.
    pub to: u32,
    /// Bytes of one micro-batch, forward.
    pub forward: Bytes,
    /// Bytes of one micro-batch, backward; less where values carry no gradient.
    pub backward: Bytes,
}

/// Parameters that several stages hold: each step adds their gradients up across these stages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanTie {
    /// Indices of the stages.
    pub stages: Vec<u32>,
    /// Bytes of the parameters; part of each stage's own.
    pub parameters: Bytes,
}

/// What a plan is predicted to do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Predicted {
    /// One training step: all micro-batches, gradient sync, optimizer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Seconds>,
    /// Steady-state time for each micro-batch of an asynchronous or endless pipeline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period: Option<Seconds>,
    /// No plan of this model on this cluster can be faster than this, by the same objective.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lower_bound: Option<Seconds>,
    /// Share of device time spent idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bubble: Option<f64>,
    /// Peak memory by device name, in the order of the cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<DeviceMemory>,
    /// How uncertain the step, or else the period, is for what is not known of operators' times.
    ///
    /// All stages err in the same direction, each by its own width; transfers and synchronisation do not err. Errors of
    /// operators are half common and half independent, so the band of many is narrower than that of each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub band: Option<Band>,
    /// Where the times of operators come from; absent when the model was a profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<TimesFrom>,
}

/// Eight of ten measured times lie between.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Band {
    /// One of ten is shorter.
    pub p10: Seconds,
    /// One of ten is longer.
    pub p90: Seconds,
}

/// Where the times of a model's operators come from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TimesFrom {
    /// The cost model: what it was fitted to, or the data sheet.
    pub cost_model: String,
    /// Share of the predicted seconds by source: `measured`, `curve`, `scaled-curve` (a gradient by the curve of the
    /// forward pass), `overhead` (a call without work), `host` (calls of an accelerator, where they take longer than what they
    /// call), `roofline` (a data sheet).
    pub shares: IndexMap<String, f64>,
    /// Share of the predicted seconds that curves give for sizes outside those they were fitted to, where any do.
    #[serde(default, skip_serializing_if = "crate::profile::is_zero")]
    pub outside: f64,
}

impl fmt::Display for TimesFrom {
    /// The model and its sources; what is below half a per cent is left out.
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
        write!(f, "{outside})")
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
    /// What the device has.
    pub limit: Bytes,
}
