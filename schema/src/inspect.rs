//! The answer of `inspect --format json`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Band, Bytes, MemoryPart, Seconds, TimesFrom};

/// Newest version of [`InspectReport`].
pub const INSPECT_VERSION: u32 = 1;

/// A model as a table of blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InspectReport {
    /// Version of this form.
    pub schema_version: u32,
    /// The model's name.
    pub model: String,
    /// The model's inputs, as far as known.
    pub inputs: Vec<NamedTensor>,
    /// The model's outputs.
    pub outputs: Vec<NamedTensor>,
    /// Sums over the whole model.
    pub totals: InspectTotals,
    /// Blocks down to the requested depth, parents before their children; the root's path is empty.
    pub blocks: Vec<InspectBlock>,
    /// Operators without a rule.
    pub unknown: Vec<InspectUnknown>,
    /// Operators whose inferred type differs from the recorded one, which was used: an error of the rule.
    pub disagreements: Vec<String>,
    /// Parts of the trace that could not be followed exactly.
    pub notes: Vec<String>,
    /// Statements that the trace has fixed although they depend on data, and other findings of tracing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trace_notes: Vec<String>,
    /// The source of predicted times; absent if no device was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<TimesFrom>,
    /// Memory of a training step; absent unless requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<InspectMemory>,
}

/// Memory of a training step on each device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InspectMemory {
    /// Bytes at the fullest moment.
    pub bytes: Bytes,
    /// That moment, described.
    pub when: String,
    /// The parts of the memory at that moment.
    pub parts: Vec<MemoryPart>,
    /// The counted loss; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<String>,
    /// Its time on the device, which those of the model leave out; absent where starting kernels decides it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_forward_seconds: Option<Seconds>,
    /// The same of its backward pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_backward_seconds: Option<Seconds>,
    /// Operators that save tensors of unknown size, which are not counted.
    pub unmeasured_operators: u64,
    /// The device's type; absent, like the fields that depend on it, if none was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Devices for data parallelism.
    pub devices: u32,
    /// The device's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
    /// The part of it reserved for CUDA's context, buffers of collectives and fragmentation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_clear: Option<Bytes>,
    /// `fits`; `tight` if it needs some of the reserve; `does not fit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    /// First size of the inputs, per device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub largest_batch: Option<LargestSize>,
    /// Second size, if the first input is token ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longest_sequence: Option<LargestSize>,
    /// Changes that would help, each by itself.
    pub reliefs: Vec<MemoryRelief>,
}

/// The largest size that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LargestSize {
    /// Without the reserve; 0 if nothing fits.
    pub safe: u64,
    /// With all memory except CUDA's context.
    pub most: u64,
}

/// A change, and the memory of a step with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryRelief {
    /// The change.
    pub what: String,
    /// Bytes at the fullest moment with the change.
    pub bytes: Bytes,
}

/// A tensor with its name; sizes that depend on data are null.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NamedTensor {
    /// Its name.
    pub name: String,
    /// Sizes; null if even their number is unknown.
    pub shape: Option<Vec<Option<u64>>>,
    /// Element type as torch names it.
    pub dtype: Option<String>,
}

/// Sums over the whole model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InspectTotals {
    /// Trained elements, tied ones once; null if the trace does not state all of their sizes.
    pub parameters: Option<u64>,
    /// Elements of buffers.
    pub buffers: u64,
    /// Forward operations as torch's flop counter counts them on a CPU, one multiply-add as two; null if sizes are
    /// unknown.
    pub flops: Option<u64>,
    /// Backward operations; null if `flops` is.
    pub backward_flops: Option<u64>,
    /// Further forward operations, in fused attention and recurrent kernels: torch's counter misses them on a CPU and
    /// counts attention's by the same formula on a GPU.
    pub fused_flops: u64,
    /// Bytes of parameters, tied ones once; null if `parameters` is.
    pub parameter_bytes: Option<u64>,
    /// Bytes that autograd saves for the backward pass; null if sizes are unknown.
    pub activation_bytes: Option<u64>,
    /// Number of operators.
    pub operators: u64,
    /// Number of operators without a rule.
    pub unknown_operators: u64,
    /// Parameters and buffers whose sizes the trace neither states nor determines; the notes name some of them.
    #[serde(default)]
    pub tensors_of_unknown_size: u64,
}

/// One block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InspectBlock {
    /// Unique in the model: `layer1.0.relu (call 2)`; empty for the root.
    pub path: String,
    /// The class's last name.
    pub kind: String,
    /// Distance from the root.
    pub depth: u32,
    /// Sizes of the first tensor that it returns; null if it returns none or they are unknown.
    pub output_shape: Option<Vec<Option<u64>>>,
    /// Element type of that tensor.
    pub output_dtype: Option<String>,
    /// Trained elements that it reads, tied ones once; null if some of their sizes are unknown.
    pub parameters: Option<u64>,
    /// Forward operations, without those of `fused_flops`; null if sizes are unknown.
    pub flops: Option<u64>,
    /// Further forward operations, in fused kernels.
    #[serde(default)]
    pub fused_flops: u64,
    /// Backward operations; null if `flops` is.
    pub backward_flops: Option<u64>,
    /// Bytes that autograd saves here; null if sizes are unknown.
    pub activation_bytes: Option<u64>,
    /// Number of operators in it.
    pub operators: u64,
    /// Equal for blocks that do the same on the same sizes.
    pub structure: String,
    /// Predicted seconds of the forward pass; absent, like the following fields, if no device was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward_seconds: Option<f64>,
    /// Predicted seconds of both gradients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backward_seconds: Option<f64>,
    /// Details of the predicted times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<InspectTime>,
}

/// Details of a block's predicted time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InspectTime {
    /// p10–p90 band of the forward time.
    pub forward: Band,
    /// p10–p90 band of the backward time.
    pub backward: Band,
    /// Seconds of the gradient of the inputs.
    pub input_gradient_seconds: f64,
    /// Seconds of the gradient of the weights.
    pub weight_gradient_seconds: f64,
    /// The most scratch memory of a kernel.
    pub workspace_bytes: u64,
    /// The least certain source: `measured`, `overhead`, `curve`, `scaled-curve`, `roofline`; `free` if nothing runs.
    pub source: String,
    /// Whether launch overhead is most of the forward time.
    pub is_launch_bound: bool,
}

/// An operator without a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InspectUnknown {
    /// Its name.
    pub name: String,
    /// How often it occurs.
    pub count: u64,
    /// Paths of blocks that contain it; only some of them if there are many.
    pub paths: Vec<String>,
    /// True if the shapes of its results are recorded.
    pub is_recorded: bool,
}
