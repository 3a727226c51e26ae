//! The answer of `plan --format json`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Band, Bytes, InferenceObjective, MemoryPart, MicroBatchSizeTried, MicroBatchesTried, RecomputeUnit,
    TimesFrom,
};

/// The answer of `plan`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanAnswer {
    /// Version of this answer.
    pub schema_version: u32,
    /// Name of the model.
    pub model: String,
    /// Strategy that made the plan.
    pub strategy: String,
    /// Sharding level, if there are replicas that shard: `zero1`, `zero2`, `zero3`, `zero3 in groups of 8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharding: Option<String>,
    /// How devices share each layer, if they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<SharedAnswer>,
    /// Schedule it runs under.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// Micro-batches per step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub micro_batches: Option<u32>,
    /// Samples per step, if the model's inputs tell them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// Samples per second, if the model's inputs tell the size of a micro-batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples_per_second: Option<f64>,
    /// Tokens per second, if the model takes rows of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    /// Model FLOPs utilisation: the model's own operations per second, without recomputation, as a share of the peak of
    /// the used devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
    /// The inference objective; absent for training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inference: Option<InferenceAnswer>,
    /// The loss after the outputs, which is part of the last stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<LossAnswer>,
    /// The limit on the size of a step, if the planner chose the size and met a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_limit: Option<String>,
    /// Seconds per micro-batch in steady state; in the file's own unit for dnn-partitioning workloads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period_seconds: Option<f64>,
    /// Seconds of one step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_seconds: Option<f64>,
    /// Seconds of data parallelism by the same objective.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_parallel_seconds: Option<f64>,
    /// No plan is faster, or none of those that `bound_of` names.
    pub lower_bound_seconds: f64,
    /// The plans that the lower bound holds for, if not for all: `gpipe plan with 2 stages`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound_of: Option<String>,
    /// Optimality gap, as a share.
    pub gap: f64,
    /// Whether no plan of the family is better.
    pub optimal: bool,
    /// Pinned calls: bounds and plans are under these pins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pins: Vec<String>,
    /// Number of blocks between which cuts were searched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<u64>,
    /// Operators of the model that take time; the number of blocks if every cut was searched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operators: Option<u64>,
    /// Effort of the search, if not `normal`: `quick` or `thorough`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
    /// Share of device time spent idle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bubble: Option<f64>,
    /// The uncertainty of the step, or else the period; see [`Predicted::band`](crate::Predicted::band).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub band: Option<Band>,
    /// The source of the operators' times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<TimesFrom>,
    /// Host time of the script per pass, if it was charged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_overhead_seconds: Option<f64>,
    /// Host time charged per split backward pass, in addition to that of its two passes; `None` if zero.
    pub split_overhead_seconds: Option<f64>,
    /// Peak bytes of the fullest device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Stages in the order of the model.
    pub stages: Vec<StageAnswer>,
    /// Other plans that were tried, best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runners_up: Vec<RunnerUp>,
    /// Effects of changes to the cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub what_if: Vec<WhatIf>,
    /// Numbers of micro-batches that were tried, if none was requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub micro_batches_tried: Vec<MicroBatchesTried>,
    /// Micro-batch sizes that were tried, if that was requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub micro_batch_sizes_tried: Vec<MicroBatchSizeTried>,
    /// How operators are split, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<InsideAnswer>,
}

/// How the operators of a model are split over all devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InsideAnswer {
    /// Operators in the order of the model.
    pub operators: Vec<OperatorSplit>,
    /// Seconds of a step as the paper's search has it, of the model's own inputs.
    pub step_seconds: f64,
    /// No split of the operators is faster.
    pub lower_bound_seconds: f64,
    /// Seconds of gradient sync beside them.
    pub sync_seconds: f64,
    /// Bytes on a device.
    pub memory_bytes: u64,
    /// Seconds of a step under data parallelism; absent if it does not fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_parallel_seconds: Option<f64>,
    /// Share by which random changes improved the exact answer, if they were tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub random_gain: Option<f64>,
    /// Why no split of the operators can be run, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_carried_out: Option<String>,
}

/// The degrees of an operator; their product is the number of devices that it uses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OperatorSplit {
    /// Path of the call that contains it; empty for the model's own code.
    pub block: String,
    /// Its name without name space: `conv2d`.
    pub operator: String,
    /// Parts of the samples of its result.
    pub samples: u32,
    /// Parts of the channels; for other tensors than images, of the last axis.
    pub channels: u32,
    /// Parts of the height, or of the positions of a sequence.
    pub height: u32,
    /// Parts of the width.
    pub width: u32,
    /// Parts of the sums of one element.
    pub sums: u32,
}

impl PlanAnswer {
    /// Returns the number of stages per device.
    pub fn chunks(&self) -> usize {
        let first = self.stages.first().map(|stage| &stage.devices);
        self.stages.iter().filter(|stage| Some(&stage.devices) == first).count().max(1)
    }
}

/// The objective and the memory of an inference plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InferenceAnswer {
    /// The minimised quantity.
    pub objective: InferenceObjective,
    /// Keys and values, if they are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_cache: Option<KvCacheAnswer>,
}

/// Keys and values that attentions keep between tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KvCacheAnswer {
    /// Tokens per sequence.
    pub tokens: u64,
    /// Attentions that keep them.
    pub attentions: u64,
    /// Bytes per token and sequence over all attentions; one device's part if devices share each layer.
    pub bytes_per_token: Bytes,
    /// Concurrent sequences over all devices, if the model's inputs tell them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequences: Option<u64>,
    /// Tokens per sequence for which these stages have room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most_tokens: Option<u64>,
}

/// A loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LossAnswer {
    /// Its kind, the sizes of its input, and whether it was guessed.
    pub what: String,
    /// Its largest memory for one micro-batch, in bytes.
    pub bytes: Bytes,
}

/// One stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StageAnswer {
    /// Blocks by path.
    pub blocks: Vec<String>,
    /// Devices by name.
    pub devices: Vec<String>,
    /// Devices that share each layer; absent if each device has layers of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_by: Option<u32>,
    /// Replicas.
    pub replicas: u32,
    /// Seconds per micro-batch, over all replicas.
    pub seconds: f64,
    /// The part of them that is compute.
    pub compute_seconds: f64,
    /// Seconds of gradient sums of replicas.
    pub sync_seconds: f64,
    /// Seconds of transfers.
    pub transfer_seconds: f64,
    /// Peak bytes per device.
    pub memory_bytes: u64,
    /// The parts of the peak on its fullest device, largest first, if the step is simulated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory_parts: Vec<MemoryPart>,
    /// Bytes of its devices' memory that tensors may use, and the total memory, of the smallest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_usable: Option<Bytes>,
    /// See `memory_usable`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<Bytes>,
    /// Bytes of one micro-batch that are sent to the next stage; gradients are sent back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sends: Option<Bytes>,
    /// `compute`, `host` if calling the operators takes longer than computing them, `sync`, `transfer` or `memory`.
    pub bound_by: String,
    /// Blocks that are recomputed in the backward pass.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recompute: Vec<String>,
    /// The unit of recomputation.
    #[serde(default, skip_serializing_if = "RecomputeUnit::is_block")]
    pub recompute_unit: RecomputeUnit,
    /// Those of them that keep the results of products with weights, convolutions and fused attention.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recompute_light: Vec<String>,
    /// Blocks whose activations are moved to host memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub offload: Vec<String>,
}

/// Layers that devices share.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SharedAnswer {
    /// Devices that share each layer.
    pub degree: u32,
    /// Groups of these devices, if each group has a part of the samples or positions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_parallel: Option<u32>,
    /// The same, if each group has a part of the experts as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expert_parallel: Option<u32>,
    /// The dimension along which images are in bands, one per device; absent if weights and values are cut into equal
    /// slices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bands: Option<u32>,
    /// Samples, or positions of their sequences, are divided; each device has all weights.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole_weights: bool,
    /// Each device has a part of the samples or positions, a part of the experts, and all other weights.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_expert: bool,
    /// Weights that only the first device of each group has and uses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on_first: Vec<String>,
    /// Share of the forward pass's FLOPs that is divided; every device does the rest.
    pub split_flops: f64,
    /// Exchanges of a micro-batch in the whole model.
    pub exchanges: u64,
    /// Seconds that compute waits for them per micro-batch in both passes, over the whole model.
    pub exchange_seconds: f64,
    /// The split of each operator, if each has its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operators: Vec<OperatorLayout>,
    /// The proof of one device's program.
    #[serde(default)]
    pub proved: Proved,
    /// Optimality gap of the choice of layouts, by the times of the choice.
    pub gap: f64,
    /// Seconds of a micro-batch on one device alone, if no split of operators is as fast.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alone_seconds: Option<f64>,
    /// Other numbers of devices that were tried, with the seconds of a micro-batch; absent if there is no plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tried: Vec<SharedTried>,
}

/// How devices share an operator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OperatorLayout {
    /// Path of the call that contains it; empty for the model's own code.
    pub block: String,
    /// Its name without name space: `conv2d`; numbered if the call has several.
    pub operator: String,
    /// What each device has of its result: `samples`, `channels`, `rows`, `whole`, a term of `sums`, …
    pub split: String,
}

/// The proof of the program of one of several devices: given that the rule of each operator is correct, outputs and
/// gradients are those of the whole model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Proved {
    /// Operators whose operands and gradients have the layouts that their rules need.
    pub operators: u64,
    /// Exchanges that convert layouts.
    pub exchanges: u64,
    /// Results that are not whole on any device.
    pub parts: u64,
}

/// A tried number of devices per layer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SharedTried {
    /// Devices that share each layer.
    pub degree: u32,
    /// Each has a part of the samples or positions and of the experts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_expert: bool,
    /// Groups of these devices, if each group, not each device, has such a part, and shares its layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<u32>,
    /// Seconds of a micro-batch, over all devices.
    pub seconds_each: Option<f64>,
    /// The micro-batches of the step that it is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_batches: Option<u32>,
    /// Lower bound of these seconds, where it showed that no plan could be the fastest: then none was looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
}

/// A plan that was not chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunnerUp {
    /// Its strategy.
    pub strategy: String,
    /// Sharding level of its replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharding: Option<String>,
    /// Seconds per micro-batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// How much longer each micro-batch takes, as a share of the chosen plan's time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loses: Option<f64>,
    /// Its schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// Stages of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stages: Option<u32>,
    /// Stages per device, if several: `stages` counts all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunks: Option<u32>,
    /// Peak bytes of its fullest device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Why there is no such plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fails: Option<String>,
}

/// A change of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WhatIf {
    /// The change, described.
    pub change: String,
    /// Seconds per micro-batch with it.
    pub seconds: f64,
    /// Share by which each micro-batch is faster.
    pub gains: f64,
}
