//! The answers of `split`, `emit`, `trace`, `diff` and `profile` with `--format json`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Bytes, Flops, PlanAnswer, Seconds, SimulatedPlan};

/// The newest version of these answers.
pub const ANSWER_VERSION: u32 = 1;

/// Answer of `split`; the parts are the answers of `plan` and `simulate`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SplitAnswer {
    /// Version of this answer.
    pub schema_version: u32,
    /// Name of the model's file.
    pub model: String,
    /// The chosen plan.
    pub plan: PlanAnswer,
    /// Its simulated step.
    pub simulated: SimulatedPlan,
    /// A step with the same micro-batches on one device; absent if the model does not fit one, or devices share layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub one_device_step_seconds: Option<f64>,
    /// Throughput, by the first size of the first input; absent if that is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples_per_second: Option<f64>,
    /// Rule-of-thumb cuts.
    pub by_hand: Vec<ByHand>,
    /// The best plan of each family and rule-of-thumb cuts, simulated with the same micro-batches, best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compared: Vec<ComparedPlan>,
    /// Every strategy, likewise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub strategies: Vec<ComparedPlan>,
    /// Why the plan is better than the next best.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub why: Vec<String>,
    /// Numbers of micro-batches that were tried, if none was requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub micro_batches_tried: Vec<MicroBatchesTried>,
}

/// A plan to compare with the chosen one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ComparedPlan {
    /// `best pipeline`, `even layers, by hand`; or a strategy.
    pub name: String,
    /// Strategy that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
    /// Its schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// Stages of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stages: Option<u32>,
    /// Stages per device, if several: `stages` counts all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunks: Option<u32>,
    /// Its simulated step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_seconds: Option<f64>,
    /// By how much its step is longer, as a share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slower: Option<f64>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fails: Option<String>,
    /// Whether it is the plan that was chosen.
    pub is_chosen: bool,
}

/// The best plan with a number of micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MicroBatchesTried {
    /// Micro-batches per step.
    pub micro_batches: u32,
    /// Seconds per micro-batch.
    pub seconds_each: f64,
}

/// Samples per micro-batch that were tried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MicroBatchSizeTried {
    /// Samples per micro-batch.
    pub samples: u64,
    /// Seconds per sample under the best plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample_seconds: Option<f64>,
    /// Why there is no plan, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fails: Option<String>,
}

/// A rule-of-thumb cut.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ByHand {
    /// `even-layers`, `even-parameters`, …
    pub strategy: String,
    /// Its step, by the planner's objective.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_seconds: Option<f64>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fails: Option<String>,
}

/// Answer of `emit`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EmitAnswer {
    /// Version of this answer.
    pub schema_version: u32,
    /// The output folder.
    pub folder: String,
    /// Bytes written.
    pub bytes: u64,
    /// Stages in order.
    pub stages: Vec<EmittedStage>,
    /// Parameters that several stages hold, with their stages and names.
    pub tied: Vec<Vec<TiedPlace>>,
}

/// A written stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EmittedStage {
    /// Its blocks by path.
    pub blocks: Vec<String>,
    /// Number of its operators.
    pub operators: usize,
    /// Trained elements.
    pub parameters: u64,
    /// Names of its inputs.
    pub inputs: Vec<String>,
    /// Names of its outputs.
    pub outputs: Vec<String>,
}

/// One holder of a tied parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TiedPlace {
    /// The stage.
    pub stage: u32,
    /// Its name in the original model.
    pub name: String,
}

/// Answer of `trace`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TraceAnswer {
    /// Version of this answer.
    pub schema_version: u32,
    /// The archive.
    pub output: String,
    /// Number of its operators.
    pub operators: u64,
    /// Trained elements.
    pub parameters: u64,
    /// Version of torch that traced.
    pub torch: String,
    /// Statements that the trace has fixed although they depend on data, and other findings of tracing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trace_notes: Vec<String>,
}

/// Answer of `diff`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DiffAnswer {
    /// Version of this answer.
    pub schema_version: u32,
    /// The first plan.
    pub before: DiffSide,
    /// The second plan.
    pub after: DiffSide,
    /// Whether both are for the same trace.
    pub is_same_model: bool,
    /// Whether both are for the same cluster.
    pub is_same_cluster: bool,
    /// Time per micro-batch, after relative to before, minus one: negative is faster.
    pub time_change: f64,
    /// Bubble after minus before, in shares of device time.
    pub bubble_change: f64,
    /// Blocks that are in another stage, in the order of the model.
    pub moved: Vec<MovedBlock>,
    /// Blocks whose activations are recomputed, or moved to host memory, in one plan only.
    pub kept_otherwise: Vec<KeptOtherwise>,
    /// Devices of both, in order of their names.
    pub devices: Vec<DiffDevice>,
}

/// The answer of `diff` for two models.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelDiffAnswer {
    /// Version of this answer.
    pub schema_version: u32,
    /// The first model.
    pub before: ModelDiffSide,
    /// The second model.
    pub after: ModelDiffSide,
    /// Blocks with operators that the other model lacks, in the order of the models.
    pub blocks: Vec<DifferentBlock>,
}

/// Totals of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelDiffSide {
    /// The file.
    pub file: String,
    /// Parameters, tied ones once.
    pub parameters: u64,
    /// Forward operations.
    pub forward_flops: Flops,
    /// Backward operations.
    pub backward_flops: Flops,
    /// Saved activations.
    pub saved_bytes: Bytes,
    /// Operators.
    pub operators: u64,
    /// Operators that the other model lacks.
    pub different: u64,
}

/// A block in which two models differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DifferentBlock {
    /// Its path; empty for the model itself.
    pub block: String,
    /// Operators of the first model that the second lacks.
    pub before: u64,
    /// Operators of the second model that the first lacks.
    pub after: u64,
}

/// Totals of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DiffSide {
    /// The file.
    pub file: String,
    /// Name of the model.
    pub model: String,
    /// Strategy.
    pub strategy: String,
    /// Schedule.
    pub schedule: String,
    /// Micro-batches per step.
    pub micro_batches: u32,
    /// Devices of each stage.
    pub stages: Vec<Vec<String>>,
    /// One simulated step.
    pub step_seconds: Seconds,
    /// The same per micro-batch.
    pub micro_batch_seconds: Seconds,
    /// Share of device time spent idle.
    pub bubble: f64,
}

/// A block in another stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MovedBlock {
    /// Its path.
    pub block: String,
    /// Its stage before; absent if the first plan does not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<u32>,
    /// Its stage after; absent if the second plan does not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u32>,
}

/// A block whose saved activations are handled differently.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeptOtherwise {
    /// Its path.
    pub block: String,
    /// `kept`, `computed again` or `in host memory`.
    pub before: String,
    /// The same, after.
    pub after: String,
}

/// A device in both plans.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiffDevice {
    /// Its name.
    pub name: String,
    /// Simulated peak before; absent if it runs nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Bytes>,
    /// Simulated peak after; absent if it runs nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Bytes>,
}

/// Answer of `profile`: for operators with `--suite`, for blocks with `--model`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProfileAnswer {
    /// Version of this answer.
    pub schema_version: u32,
    /// The file with the rows.
    pub file: String,
    /// The measured device.
    pub device: String,
    /// Operators measured by this run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operators: Option<u64>,
    /// Operators measured by earlier runs of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operators_before: Option<u64>,
    /// Operators that could not be measured; comments in the file give the reasons.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<u64>,
    /// Rows in the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
    /// Seconds of measuring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Blocks, in the order of the model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<ProfiledBlock>,
    /// The whole model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ProfiledTimes>,
}

/// Measured medians of a block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProfiledBlock {
    /// The block.
    pub path: String,
    /// Its forward pass.
    pub forward_seconds: f64,
    /// Its backward pass.
    pub backward_seconds: f64,
}

/// Measured medians of a model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProfiledTimes {
    /// Its forward pass.
    pub forward_seconds: f64,
    /// Its backward pass.
    pub backward_seconds: f64,
}
