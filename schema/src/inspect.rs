//! What `inspect --format json` prints.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Band, Bytes, MemoryPart, TimesFrom};

/// Newest version of [`InspectReport`].
pub const INSPECT_VERSION: u32 = 1;

/// A model as a table of blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InspectReport {
    /// Version of this form.
    pub schema_version: u32,
    /// The model's name.
    pub model: String,
    /// What is known of the model's inputs.
    pub inputs: Vec<NamedTensor>,
    /// What the model returns.
    pub outputs: Vec<NamedTensor>,
    /// Sums over the whole model.
    pub totals: InspectTotals,
    /// Blocks down to the asked depth, parents before their children; the root's path is empty.
    pub blocks: Vec<InspectBlock>,
    /// Operators that no rule knows.
    pub unknown: Vec<InspectUnknown>,
    /// Operators whose inferred type is not the recorded one: our error, and the recorded one was used.
    pub disagreements: Vec<String>,
    /// What could not be followed exactly when the trace was read.
    pub notes: Vec<String>,
    /// Statements that the trace has fixed although they depend on data, and what else was found while tracing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trace_notes: Vec<String>,
    /// Where predicted times come from; absent when no device was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<TimesFrom>,
    /// What a training step holds in memory; absent unless asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<InspectMemory>,
}

/// What a training step holds on each device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InspectMemory {
    /// Bytes at the fullest moment.
    pub bytes: Bytes,
    /// That moment, in words.
    pub when: String,
    /// What the memory consists of then.
    pub parts: Vec<MemoryPart>,
    /// The loss that was counted; absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<String>,
    /// Operators that keep something of unknown size, which is not counted.
    pub unmeasured_operators: u64,
    /// The device's type; absent, like what follows from it, when none was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Devices that train together.
    pub devices: u32,
    /// The device's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
    /// Of it: kept clear for CUDA's context, buffers of collectives and what the allocator cannot fill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_clear: Option<Bytes>,
    /// `fits`; `tight` where it needs some of what is kept clear; `does not fit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    /// First size of the inputs, on each device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub largest_batch: Option<LargestSize>,
    /// Second size, where the first input is of token ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longest_sequence: Option<LargestSize>,
    /// What would help, each change by itself.
    pub reliefs: Vec<MemoryRelief>,
}

/// The largest size that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LargestSize {
    /// Beside what is kept clear; 0 where nothing fits.
    pub safe: u64,
    /// With all of the memory but CUDA's context.
    pub most: u64,
}

/// A change, and what a step holds with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryRelief {
    /// The change.
    pub what: String,
    /// Bytes at the fullest moment then.
    pub bytes: Bytes,
}

/// A tensor with its name; sizes that depend on data are null.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NamedTensor {
    /// Its name.
    pub name: String,
    /// Sizes; null when even their number is not known.
    pub shape: Option<Vec<Option<u64>>>,
    /// Element type as torch names it.
    pub dtype: Option<String>,
}

/// Sums over the whole model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InspectTotals {
    /// Trained elements, tied ones once; null when the trace does not say the sizes of all of them.
    pub parameters: Option<u64>,
    /// Elements of buffers.
    pub buffers: u64,
    /// Forward operations as torch's flop counter counts them on a CPU, one multiply-add as two; null when sizes that
    /// they follow from are not known.
    pub flops: Option<u64>,
    /// Backward operations; null where `flops` is.
    pub backward_flops: Option<u64>,
    /// Further forward operations, in fused attention and recurrent kernels: torch's counter misses them on a CPU and
    /// counts attention's by the same formula on a GPU.
    pub fused_flops: u64,
    /// Bytes of parameters, tied ones once; null where `parameters` is.
    pub parameter_bytes: Option<u64>,
    /// Bytes that autograd keeps for the backward pass; null when sizes that they follow from are not known.
    pub activation_bytes: Option<u64>,
    /// Number of operators.
    pub operators: u64,
    /// Number of operators that no rule knows.
    pub unknown_operators: u64,
    /// Parameters and buffers whose sizes the trace neither says nor determines; some of them are named in the notes.
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
    /// Sizes of the first tensor that it returns; null when it returns none or they are not known.
    pub output_shape: Option<Vec<Option<u64>>>,
    /// Element type of that tensor.
    pub output_dtype: Option<String>,
    /// Trained elements that it reads, tied ones once; null when not all of their sizes are known.
    pub parameters: Option<u64>,
    /// Forward operations, those of `fused_flops` left out; null when sizes that they follow from are not known.
    pub flops: Option<u64>,
    /// Further forward operations, in fused kernels.
    #[serde(default)]
    pub fused_flops: u64,
    /// Backward operations; null where `flops` is.
    pub backward_flops: Option<u64>,
    /// Bytes that autograd keeps from here; null when sizes that they follow from are not known.
    pub activation_bytes: Option<u64>,
    /// Number of operators in it.
    pub operators: u64,
    /// Equal for blocks that do the same on the same sizes.
    pub structure: String,
    /// Predicted seconds from inputs to outputs; absent, like what follows, when no device was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward_seconds: Option<f64>,
    /// Predicted seconds of both gradients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backward_seconds: Option<f64>,
    /// More about them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<InspectTime>,
}

/// More about a block's predicted time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InspectTime {
    /// Eight of ten measured forward times lie between.
    pub forward: Band,
    /// Eight of ten measured backward times lie between.
    pub backward: Band,
    /// Seconds of the gradient of the inputs.
    pub input_gradient_seconds: f64,
    /// Seconds of the gradient of the weights.
    pub weight_gradient_seconds: f64,
    /// Scratch memory that a kernel asks for, at most.
    pub workspace_bytes: u64,
    /// The least certain source: `measured`, `overhead`, `curve`, `scaled-curve`, `roofline`; `free` when nothing runs.
    pub source: String,
    /// Whether launching takes most of the forward time.
    pub is_launch_bound: bool,
}

/// An operator that no rule knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InspectUnknown {
    /// Its name.
    pub name: String,
    /// How often it occurs.
    pub count: u64,
    /// Paths of blocks that it occurs in, some of them when there are many.
    pub paths: Vec<String>,
    /// True when the shapes of its results are recorded.
    pub is_recorded: bool,
}
