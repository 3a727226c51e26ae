//! What `verify` and `run` answer.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Bytes, Proved, Seconds};

/// The newest version of these answers.
pub const EXECUTED_VERSION: u32 = 1;

/// Answer of `verify`: how far the stages are from the whole model, the worst of all forms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Verified {
    /// Version of this answer.
    pub schema_version: u32,
    /// True when every difference of every form is within its tolerance.
    pub ok: bool,
    /// Where it ran.
    pub device: String,
    /// True when both sides ran in float64.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub float64: bool,
    /// Training steps compared.
    pub steps: usize,
    /// Largest absolute difference of an output.
    pub outputs_max_difference: f64,
    /// Largest difference of a gradient, relative to the largest value of its tensor, or to a thousandth of the model's largest
    /// gradient where that is more.
    pub gradients_max_difference: f64,
    /// Largest difference of a loss, relative to the loss where that is more than 1.
    pub losses_max_difference: f64,
    /// Number of parameters whose gradients were compared.
    pub gradients_compared: usize,
    /// How many of those were exactly zero on both sides in every step: they prove little.
    pub gradients_zero: usize,
    /// The worst tensors, outputs and gradients together.
    pub worst: Vec<TensorDifference>,
    /// Losses of each step: whole model, stages.
    pub losses: Vec<(f64, f64)>,
    /// The forms that were compared, each by itself.
    pub forms: Vec<VerifiedForm>,
    /// The forms that the folder has and that were not compared.
    pub unchecked: Vec<UncheckedForm>,
    /// What was proven of the program that one device runs, where devices share layers and the sources are those of the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proved: Option<Proved>,
    /// Why nothing was proven where devices share layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unproved: Option<String>,
    /// Where the first difference is, when there is one and its place was found.
    pub first_difference: Option<FirstDifference>,
}

/// One form of the stages beside the whole model.
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
    /// What several processes did together, where stages are held by several devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<VerifiedShards>,
}

/// Stages that several devices hold together, run by a process for each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VerifiedShards {
    /// Processes.
    pub ranks: u32,
    /// Outputs, gradients and buffers that each of them holds whole, and that were compared with the first one's.
    pub replicated_compared: usize,
    /// Largest difference of these, relative to the tensor's largest value; 0 where they are the same to the last bit.
    pub replicated_max_difference: f64,
    /// The one that differs most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicated_worst: Option<String>,
    /// What they sent each other in a step, by kind.
    pub exchanges: Vec<VerifiedExchange>,
}

/// What went through one kind of collective in a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VerifiedExchange {
    /// `forward` or `backward`.
    pub phase: String,
    /// `all-reduce`, `all-gather`, `reduce-scatter`, `all-to-all` or `point-to-point`.
    pub collective: String,
    /// How many.
    pub calls: u64,
    /// Bytes of the whole values; those of all messages where they go from one to another.
    pub bytes: u64,
    /// Bytes that the plan counts; none where the folder was written by a version that did not record them.
    pub planned_bytes: Option<u64>,
}

/// A form that was not compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UncheckedForm {
    /// `torchscript` or `python`.
    pub form: String,
    /// Why.
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

/// How far one tensor is off.
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

/// Answer of `run`: what the pipeline took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Executed {
    /// Version of this answer.
    pub schema_version: u32,
    /// The schedule that ran.
    pub schedule: String,
    /// Micro-batches in a step.
    pub micro_batches: u32,
    /// Steps that were timed; warm-up is not among them.
    pub steps: usize,
    /// Median time of a step.
    pub step_seconds: Seconds,
    /// What the plan predicted for a step, where it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_step_seconds: Option<Seconds>,
    /// Samples in a second, by the first dimension of the first input.
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

/// What one stage took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExecutedStage {
    /// Position.
    pub stage: u32,
    /// Devices that ran it.
    pub devices: Vec<String>,
    /// Median forward time of a micro-batch.
    pub forward_seconds: Seconds,
    /// Median backward time of a micro-batch, both halves together.
    pub backward_seconds: Seconds,
}
