//! The answer of `compare --format json`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Bytes;

/// The answer of `compare`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CompareAnswer {
    /// Version of this answer.
    pub schema_version: u32,
    /// Name of the model.
    pub model: String,
    /// The devices, for people: `4 × T4`.
    pub devices: String,
    /// Strategies with a plan, the one with the highest throughput first.
    pub strategies: Vec<StrategyRow>,
    /// Strategies without a plan, in the order in which they are tried.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<StrategyLeftOut>,
}

/// A strategy with a plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StrategyRow {
    /// Its name in this comparison: `data-parallel zero1`, `p3`, `auto`.
    pub name: String,
    /// A description in one line.
    pub about: String,
    /// The flags with which `plan` gives the same numbers, in addition to those of this comparison; after `simulate`,
    /// the flags with which `simulate` gives them for that plan.
    pub flags: String,
    /// Whether it is the plan of `plan` without a strategy.
    pub is_plan: bool,
    /// The planner's strategy.
    pub strategy: String,
    /// Whether it was chosen as the best instead of requested.
    pub is_chosen: bool,
    /// Sharding level, if there are replicas that shard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharding: Option<String>,
    /// Devices that share each layer, if they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_by: Option<u32>,
    /// Its schedule; absent if operators are split and there are no stages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// Stages of the model.
    pub stages: u32,
    /// Stages per device: `stages` counts all.
    pub chunks: u32,
    /// Devices that it uses.
    pub devices: u32,
    /// Micro-batches per step.
    pub micro_batches: u32,
    /// Samples per micro-batch, if not the trace's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_batch_size: Option<u64>,
    /// Samples per step, if the model's inputs tell them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// Seconds of a step; without a flush, or if steps overlap, the period.
    pub step_seconds: f64,
    /// Seconds per micro-batch.
    pub micro_batch_seconds: f64,
    /// How much longer each sample takes than with the first of all, as a share.
    pub slower: f64,
    /// Samples per second, if the model's inputs tell them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples_per_second: Option<f64>,
    /// Tokens per second, if the model takes rows of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    /// Model FLOPs utilisation of the used devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
    /// Peak bytes of the device that is nearest to its limit.
    pub memory_bytes: Bytes,
    /// Bytes of that device that tensors may use.
    pub memory_limit: Bytes,
    /// Share of the used devices' time in which they compute nothing; absent if operators are split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<f64>,
    /// Bytes that devices send each other in a step, summed; absent if operators are split, or if the step is too large
    /// to simulate here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_bytes: Option<Bytes>,
    /// Whether gradients are computed with the newest weights: pipelines without a flush use stale ones.
    pub trains_as_one_device: bool,
    /// The parts of it that `train.py` cannot run; empty if it runs as planned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_carried_out: Vec<String>,
}

/// A strategy without a plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StrategyLeftOut {
    /// Its name in this comparison.
    pub name: String,
    /// A description in one line.
    pub about: String,
    /// Why there is none.
    pub reason: String,
    /// Memory that each device lacks, if that is the reason and a plan would fit with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_bytes: Option<Bytes>,
}
