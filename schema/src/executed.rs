//! The answers of `verify` and `run`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Bytes, Proved, Seconds};

/// The newest version of these answers.
pub const EXECUTED_VERSION: u32 = 1;

/// Answer of `verify`: the differences between the stages and the whole model, the worst of all formats.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Verified {
    /// Version of this answer.
    pub schema_version: u32,
    /// True if every difference of every format is within its tolerance.
    pub ok: bool,
    /// The device.
    pub device: String,
    /// True when both sides ran in float64.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub float64: bool,
    /// Training steps compared.
    pub steps: usize,
    /// Largest absolute difference of an output.
    pub outputs_max_difference: f64,
    /// Largest difference of a gradient, relative to the largest value of its tensor, or to a thousandth of the model's
    /// largest gradient if that is more.
    pub gradients_max_difference: f64,
    /// Largest difference of a loss, relative to the loss if that is more than 1.
    pub losses_max_difference: f64,
    /// Number of parameters whose gradients were compared.
    pub gradients_compared: usize,
    /// How many of these were exactly zero on both sides in every step: they prove little.
    pub gradients_zero: usize,
    /// The worst tensors, outputs and gradients together.
    pub worst: Vec<TensorDifference>,
    /// Losses of each step: whole model, stages.
    pub losses: Vec<(f64, f64)>,
    /// The compared formats.
    pub forms: Vec<VerifiedForm>,
    /// The formats in the folder that were not compared.
    pub unchecked: Vec<UncheckedForm>,
    /// The proof of one device's program, if devices share layers and the sources match the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proved: Option<Proved>,
    /// Why nothing was proven although devices share layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unproved: Option<String>,
    /// The place of the first difference, if there is one and it was found.
    pub first_difference: Option<FirstDifference>,
}

/// One format of the stages, compared with the whole model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VerifiedForm {
    /// `torchscript` or `python`.
    pub form: String,
    /// True when every difference is within its tolerance.
    pub ok: bool,
    /// Training steps compared.
    pub steps: usize,
    /// As in the whole answer.
    pub outputs_max_difference: f64,
    /// As in the whole answer.
    pub gradients_max_difference: f64,
    /// As in the whole answer.
    pub losses_max_difference: f64,
    /// As in the whole answer.
    pub gradients_compared: usize,
    /// As in the whole answer.
    pub gradients_zero: usize,
    /// The worst tensors, outputs and gradients together.
    pub worst: Vec<TensorDifference>,
    /// Losses of each step: whole model, stages.
    pub losses: Vec<(f64, f64)>,
    /// Results of several processes, if stages are shared by several devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<VerifiedShards>,
}

/// Stages shared by several devices, run by one process each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VerifiedShards {
    /// Processes.
    pub ranks: u32,
    /// Replicated outputs, gradients and buffers that were compared with the first process's.
    pub replicated_compared: usize,
    /// Largest difference of these, relative to the tensor's largest value; 0 if they are bitwise equal.
    pub replicated_max_difference: f64,
    /// The one that differs most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicated_worst: Option<String>,
    /// Bytes exchanged in a step, by kind.
    pub exchanges: Vec<VerifiedExchange>,
}

/// The traffic of one kind of collective in a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VerifiedExchange {
    /// `forward` or `backward`.
    pub phase: String,
    /// `all-reduce`, `all-gather`, `reduce-scatter`, `all-to-all` or `point-to-point`.
    pub collective: String,
    /// Number of calls.
    pub calls: u64,
    /// Bytes of the whole values; for point-to-point the sum of all messages.
    pub bytes: u64,
    /// The plan's bytes; absent if the folder was written by a version that did not record them.
    pub planned_bytes: Option<u64>,
}

/// A format that was not compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UncheckedForm {
    /// `torchscript` or `python`.
    pub form: String,
    /// The reason.
    pub reason: String,
}

/// The first tensor that differs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FirstDifference {
    /// The stage.
    pub stage: u32,
    /// The output, or the parameter or input whose gradient it is.
    pub tensor: String,
}

/// The difference of one tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TensorDifference {
    /// `output` or `gradient`.
    pub kind: String,
    /// Output or parameter.
    pub name: String,
    /// The first stage that holds the parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<u32>,
    /// Largest absolute difference.
    pub absolute: f64,
    /// That, relative to the largest value of the tensor.
    pub relative: f64,
}

/// Answer of `run`: the measured pipeline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Executed {
    /// Version of this answer.
    pub schema_version: u32,
    /// The schedule.
    pub schedule: String,
    /// Micro-batches per step.
    pub micro_batches: u32,
    /// Timed steps, without warm-up.
    pub steps: usize,
    /// Median time of a step.
    pub step_seconds: Seconds,
    /// The plan's prediction of a step, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_step_seconds: Option<Seconds>,
    /// Samples per second, by the first dimension of the first input.
    pub samples_per_second: f64,
    /// Share of device time that was idle.
    pub bubble: f64,
    /// Stages in order.
    pub stages: Vec<ExecutedStage>,
    /// Peak memory of this process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_peak_bytes: Option<Bytes>,
    /// Mean loss of each step; empty without libtorch.
    pub losses: Vec<f64>,
}

/// Measurements of one stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExecutedStage {
    /// Position.
    pub stage: u32,
    /// Devices that ran it.
    pub devices: Vec<String>,
    /// Median forward time of a micro-batch.
    pub forward_seconds: Seconds,
    /// Median backward time of a micro-batch, both halves.
    pub backward_seconds: Seconds,
}
