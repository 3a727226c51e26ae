//! What `plan --format json` prints.

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
    /// What replicas share out, where there are any and they do: `zero1`, `zero2`, `zero3`, `zero3 in groups of 8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharding: Option<String>,
    /// What devices share within each layer, where they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<SharedAnswer>,
    /// Schedule it runs under.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// Micro-batches in a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub micro_batches: Option<u32>,
    /// Samples in a step, where the model's inputs tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// Samples a second, where the model's inputs tell how many a micro-batch has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples_per_second: Option<f64>,
    /// Tokens a second, where the model takes rows of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    /// Model FLOPs utilisation: the model's own operations in a second, what is computed again left out, as a share of the peak of
    /// the devices that are used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
    /// What the forward pass alone was planned for; absent where training was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inference: Option<InferenceAnswer>,
    /// The loss behind the outputs, which is part of the last stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<LossAnswer>,
    /// What keeps a step from being larger, where the planner chose its size and this was the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_limit: Option<String>,
    /// Seconds for each micro-batch in steady state; in the file's own unit for dnn-partitioning workloads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period_seconds: Option<f64>,
    /// Seconds of one step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_seconds: Option<f64>,
    /// Seconds of data parallelism by the same objective.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_parallel_seconds: Option<f64>,
    /// No plan of the family is faster.
    pub lower_bound_seconds: f64,
    /// Share by which the plan may be worse than the best.
    pub gap: f64,
    /// Whether no plan of the family is better.
    pub optimal: bool,
    /// What is pinned: bounds and plans are of what keeps it so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pins: Vec<String>,
    /// Blocks between which cuts were looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<u64>,
    /// Operators of the model that take time; as many as blocks where every cut was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operators: Option<u64>,
    /// How long the search was allowed to take, where that was not `normal`: `quick` or `thorough`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
    /// Share of device time spent idle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bubble: Option<f64>,
    /// How uncertain the step, or else the period, is; see [`Predicted::band`](crate::Predicted::band).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub band: Option<Band>,
    /// Where the times of operators come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<TimesFrom>,
    /// What the script takes of the host for each pass, where that was charged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_overhead_seconds: Option<f64>,
    /// Bytes at the peak of the fullest device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Stages in the order of the model.
    pub stages: Vec<StageAnswer>,
    /// What else was tried, best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runners_up: Vec<RunnerUp>,
    /// What a change of the cluster would give.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub what_if: Vec<WhatIf>,
    /// Numbers of micro-batches that were tried, where none was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub micro_batches_tried: Vec<MicroBatchesTried>,
    /// Samples of a micro-batch that were tried, where that was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub micro_batch_sizes_tried: Vec<MicroBatchSizeTried>,
    /// How operators are split, where they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<InsideAnswer>,
}

/// How the operators of a model are split over all devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InsideAnswer {
    /// Operators in the order of the model.
    pub operators: Vec<OperatorSplit>,
    /// By which share random changes made the exact answer faster, where they were tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub random_gain: Option<f64>,
    /// Why nothing runs it.
    pub not_carried_out: String,
}

/// In how many parts an operator is split; their product is the number of devices that it uses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OperatorSplit {
    /// Path of the call that it is in; empty for the model's own code.
    pub block: String,
    /// Its name without name space: `conv2d`.
    pub operator: String,
    /// Parts of the samples of its result.
    pub samples: u32,
    /// Parts of the channels; of the last axis of what is no image.
    pub channels: u32,
    /// Parts of the height; of the positions of a sequence.
    pub height: u32,
    /// Parts of the width.
    pub width: u32,
    /// Parts of the sums that make one element.
    pub sums: u32,
}

impl PlanAnswer {
    /// Returns how many parts of the model each device has.
    pub fn chunks(&self) -> usize {
        let first = self.stages.first().map(|stage| &stage.devices);
        self.stages.iter().filter(|stage| Some(&stage.devices) == first).count().max(1)
    }
}

/// What a plan of the forward pass alone is for, and what it holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InferenceAnswer {
    /// What is made small.
    pub objective: InferenceObjective,
    /// Keys and values, where they are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_cache: Option<KvCacheAnswer>,
}

/// Keys and values that attentions keep from token to token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KvCacheAnswer {
    /// Tokens of each sequence.
    pub tokens: u64,
    /// Attentions that keep them.
    pub attentions: u64,
    /// Bytes of one token of one sequence, all attentions together; what one device has of them where devices share each layer.
    pub bytes_per_token: Bytes,
    /// Sequences that are on their way at once, on all devices together, where the model's inputs tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequences: Option<u64>,
    /// Tokens of each sequence that these stages have room for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most_tokens: Option<u64>,
}

/// A loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LossAnswer {
    /// Which, of what, and whether it was guessed.
    pub what: String,
    /// Bytes that it takes of one micro-batch at the most.
    pub bytes: Bytes,
}

/// One stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StageAnswer {
    /// Blocks by path.
    pub blocks: Vec<String>,
    /// Devices by name.
    pub devices: Vec<String>,
    /// Devices that share each layer; absent where each device has layers of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_by: Option<u32>,
    /// Replicas.
    pub replicas: u32,
    /// Seconds for each micro-batch, all replicas together.
    pub seconds: f64,
    /// Seconds of that which are compute.
    pub compute_seconds: f64,
    /// Seconds of synchronising replicas.
    pub sync_seconds: f64,
    /// Seconds of transfers.
    pub transfer_seconds: f64,
    /// Bytes at the peak, on each device.
    pub memory_bytes: u64,
    /// What the peak on its fullest device consists of, largest first, where the step is simulated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory_parts: Vec<MemoryPart>,
    /// Bytes of its devices' memory that tensors may fill, and all that there is, of the smallest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_usable: Option<Bytes>,
    /// See `memory_usable`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<Bytes>,
    /// Bytes of one micro-batch that go on to the next stage; gradients go back the same way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sends: Option<Bytes>,
    /// `compute`, `host` where calling the operators takes longer than computing them, `sync`, `transfer` or `memory`.
    pub bound_by: String,
    /// Blocks that are computed again in the backward pass.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recompute: Vec<String>,
    /// What is computed again at a time.
    #[serde(default, skip_serializing_if = "RecomputeUnit::is_block")]
    pub recompute_unit: RecomputeUnit,
    /// Blocks whose activations wait in host memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub offload: Vec<String>,
}

/// Layers that devices share.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SharedAnswer {
    /// Devices that share each layer.
    pub degree: u32,
    /// The dimension along which images lie in bands, one for each device; none where weights and values are cut evenly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bands: Option<u32>,
    /// Samples, or positions of their sequences, are dealt out; each device has all weights.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole_weights: bool,
    /// Weights that the first device of each group has alone, and computes with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on_first: Vec<String>,
    /// Share of the forward pass's FLOPs that they share; the rest each of them does.
    pub split_flops: f64,
    /// Exchanges of a micro-batch in the whole model.
    pub exchanges: u64,
    /// Seconds that compute waits for them in a micro-batch, there and back, through the whole model.
    pub exchange_seconds: f64,
    /// What was proven of the program that one device runs.
    #[serde(default)]
    pub proved: Proved,
    /// Share by which layers might be shared faster, by the times that it was chosen by.
    pub gap: f64,
    /// Other numbers of devices that were tried, with the seconds of a micro-batch; none where there is no plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tried: Vec<SharedTried>,
}

/// What was proven of the program that one of several devices runs: given that the rule of each operator is right, outputs and
/// gradients are those of the whole model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Proved {
    /// Operators whose operands and gradients lie as their rules need them.
    pub operators: u64,
    /// Exchanges that bring them there.
    pub exchanges: u64,
    /// Results that no device holds whole.
    pub parts: u64,
}

/// A number of devices that might share each layer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SharedTried {
    /// Devices that share each layer.
    pub degree: u32,
    /// Seconds of a micro-batch, all devices together.
    pub seconds_each: Option<f64>,
}

/// A plan that was not chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunnerUp {
    /// Its strategy.
    pub strategy: String,
    /// What its replicas share out, as in the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharding: Option<String>,
    /// Seconds for each micro-batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// How much longer each micro-batch takes, as a share of the chosen plan's time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loses: Option<f64>,
    /// Its schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// Parts that the model is cut into.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stages: Option<u32>,
    /// Parts on each device, where there are several: `stages` counts them all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunks: Option<u32>,
    /// Bytes at the peak of its fullest device's stages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Why there is no such plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fails: Option<String>,
}

/// A change of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WhatIf {
    /// The change in words.
    pub change: String,
    /// Seconds for each micro-batch after it.
    pub seconds: f64,
    /// Share by which each micro-batch is faster.
    pub gains: f64,
}
