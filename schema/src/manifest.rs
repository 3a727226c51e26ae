//! `stages/manifest.json`: the stages of a model and their connections.
//!
//! Running the stages needs nothing else: call them in order, give each the inputs it names, in this order, and keep
//! its outputs. The last stage returns the model's outputs, in the order of `output`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ModelReference, RecomputeUnit};

/// The newest version of the manifest.
pub const MANIFEST_VERSION: u32 = 1;

/// The whole file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Always `stages`.
    pub kind: String,
    /// [`MANIFEST_VERSION`] at most.
    pub schema_version: u32,
    /// Tool and version that wrote it.
    pub written_by: String,
    /// The model that was cut.
    pub model: ModelReference,
    /// The file that the stages were cut from, for `verify`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The checkpoint that the weights were taken from, if not `source`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
    /// True if it was traced in training mode.
    pub training: bool,
    /// `relay`: values that skip a stage pass through it. `portal`: they are sent directly.
    pub skips: String,
    /// Inputs of the model.
    pub inputs: Vec<Boundary>,
    /// The model's output.
    pub output: OutputTree,
    /// The stages in order.
    pub stages: Vec<StageFiles>,
    /// Parameters that several stages hold: the training loop sums their gradients.
    pub tied: Vec<TiedParameter>,
    /// Number of ranks that share each stage, if stages are cut inside their operators; it must divide everything that
    /// is cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<u32>,
    /// Number of groups that these ranks are in, if groups share each stage first, and the ranks of each group share its
    /// part: neighbours are in one group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard_groups: Option<u32>,
    /// All other files of the folder, by their relative paths. Empty in folders of earlier versions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, FileDigest>,
}

/// Size and checksum of a file when it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileDigest {
    /// Its size.
    pub bytes: u64,
    /// Its CRC-32, as eight hexadecimal digits.
    pub crc32: String,
}

/// One stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StageFiles {
    /// Position.
    pub stage: u32,
    /// Blocks of the model that it runs.
    pub blocks: Vec<String>,
    /// Its files, in the manifest's folder.
    pub files: Files,
    /// Arguments of `forward`, in order.
    pub inputs: Vec<Input>,
    /// Results of `forward`, in order. A single one is returned directly, several as a tuple.
    pub outputs: Vec<Boundary>,
    /// Names of its parameters in the model.
    pub parameters: Vec<String>,
    /// Names of its buffers in the model.
    pub buffers: Vec<String>,
    /// Blocks whose activations are recomputed in the backward pass.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recompute: Vec<String>,
    /// The unit of recomputation.
    #[serde(default, skip_serializing_if = "RecomputeUnit::is_block")]
    pub recompute_unit: RecomputeUnit,
    /// Those of them that keep the results of products with weights, convolutions and fused attention.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recompute_light: Vec<String>,
    /// Blocks whose activations are kept in host memory until the backward pass.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub offload: Vec<String>,
    /// Number of operators that it recomputes although another stage owns them, because that is cheaper than a
    /// transfer.
    pub repeated_operators: u32,
    /// Devices of the plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// Parameters and buffers that are cut over shards: the cut dimension, and its number of equal blocks, each of
    /// which is cut; 0 if the first shard has all of it. Absent if a stage is not cut inside its operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuts: Option<BTreeMap<String, (usize, u32)>>,
    /// The dimension of those that groups of shards cut first, in one block; the shards of a group cut its part further.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub group_cuts: BTreeMap<String, usize>,
    /// Exchanges between its shards for inputs of the traced sizes, in both passes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exchanges: Vec<Exchanged>,
}

/// Exchanges of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Exchanged {
    /// `forward` or `backward`.
    pub phase: String,
    /// `all-reduce`, `all-gather`, `reduce-scatter`, `all-to-all` or `point-to-point`.
    pub collective: String,
    /// Type of the sent values, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// Number of calls.
    pub calls: u64,
    /// Bytes of the whole values; for point-to-point the sum of all messages.
    pub bytes: u64,
}

/// Files of a stage; absent if they were not requested.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Files {
    /// TorchScript archive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub torchscript: Option<String>,
    /// Python source with a class `Stage` and a function `load()`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
    /// Weights of the Python source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
}

/// A value at a boundary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Boundary {
    /// Its name.
    pub name: String,
    /// Its sizes in the traced example, if known.
    pub shape: Option<Vec<u64>>,
    /// `float32`, `int64`, …, if known.
    pub dtype: Option<String>,
    /// For an input of the model, the range of its example's values, the end excluded for integers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<(f64, f64)>,
    /// For an input of the model that takes no others of the range, its example's values, row by row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<Vec<f64>>,
}

/// An input of a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Its name in `forward`.
    pub name: String,
    /// `input:NAME` or `stage:K:NAME`.
    pub from: String,
    /// Its sizes in the traced example, if known.
    pub shape: Option<Vec<u64>>,
    /// `float32`, `int64`, …, if known.
    pub dtype: Option<String>,
}

/// The model's output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutputTree {
    /// The last stage's output at this position.
    Value(u32),
    /// A literal.
    Literal(serde_json::Value),
    /// A list.
    List(Vec<OutputTree>),
    /// A tuple.
    Tuple(Vec<OutputTree>),
    /// A dictionary, as pairs.
    Dict(Vec<(OutputTree, OutputTree)>),
}

/// A parameter that several stages hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TiedParameter {
    /// Its holders.
    pub holders: Vec<TiedHolder>,
    /// True if it is trained.
    pub requires_grad: bool,
}

/// One holder of a tied parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TiedHolder {
    /// Position of the stage.
    pub stage: u32,
    /// Its name there.
    pub name: String,
}
