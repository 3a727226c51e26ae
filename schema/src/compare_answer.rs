//! What `compare --format json` prints.

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
    /// The devices, as people say them: `4 × T4`.
    pub devices: String,
    /// Strategies with a plan, the one with the highest throughput first.
    pub strategies: Vec<StrategyRow>,
    /// Strategies without a plan, in the order in which they are tried.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<StrategyLeftOut>,
}

/// A strategy, and what it gives.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StrategyRow {
    /// Its name in this comparison: `data-parallel zero1`, `p3`, `auto`.
    pub name: String,
    /// What it is, in a line.
    pub about: String,
    /// The flags that make `plan` give the same numbers, beside those of this comparison; with `simulate` behind them, those that
    /// make `simulate` give them of that plan.
    pub flags: String,
    /// Whether it is what `plan` would give without a strategy.
    pub is_plan: bool,
    /// The planner's strategy.
    pub strategy: String,
    /// Whether it was chosen as the best, and not asked for.
    pub is_chosen: bool,
    /// What replicas share out, where there are any and they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharding: Option<String>,
    /// Devices that share each layer, where they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_by: Option<u32>,
    /// Its schedule; absent where operators are split and there are no stages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// Parts that the model is cut into.
    pub stages: u32,
    /// Parts on each device: `stages` counts them all.
    pub chunks: u32,
    /// Devices that it uses.
    pub devices: u32,
    /// Micro-batches in a step.
    pub micro_batches: u32,
    /// Samples in a micro-batch, where they are not the trace's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_batch_size: Option<u64>,
    /// Samples in a step, where the model's inputs tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// Seconds of a step; of pipelines without an end, and where a step begins before the last has ended, from step to step.
    pub step_seconds: f64,
    /// Seconds for each micro-batch.
    pub micro_batch_seconds: f64,
    /// How much longer each sample takes than with the first of all, as a share.
    pub slower: f64,
    /// Samples a second, where the model's inputs tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples_per_second: Option<f64>,
    /// Tokens a second, where the model takes rows of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    /// Model FLOPs utilisation of the devices that are used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
    /// Bytes at the peak of the device that is nearest to its limit.
    pub memory_bytes: Bytes,
    /// What tensors may fill of that device.
    pub memory_limit: Bytes,
    /// Share of the used devices' time in which they compute nothing; absent where operators are split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<f64>,
    /// Bytes that devices send each other in a step, all together; absent where operators are split, and where the step is too large
    /// to be simulated in passing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_bytes: Option<Bytes>,
    /// Whether gradients are those of the newest weights: pipelines without an end train otherwise than one device does.
    pub trains_as_one_device: bool,
    /// What of it `train.py` does not carry out; nothing where it runs as it stands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_carried_out: Vec<String>,
}

/// A strategy without a plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StrategyLeftOut {
    /// Its name in this comparison.
    pub name: String,
    /// What it is, in a line.
    pub about: String,
    /// Why there is none.
    pub reason: String,
    /// Memory that each device lacks, where that is the reason and a plan is known that would fit with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_bytes: Option<Bytes>,
}
