//! `stages/manifest.json`: how the stages of a model join.
//!
//! Chaining needs nothing else: call the stages in order, give each the inputs it names, in this order, keep
//! what it returns. The last stage returns the values that the model returns, in the order of `output`.

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
    /// The file they were cut from, for `verify`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The checkpoint that their weights were taken from, where that was not `source`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
    /// True when it was traced in training mode.
    pub training: bool,
    /// `relay`: values that skip a stage pass through it. `portal`: they go straight.
    pub skips: String,
    /// Inputs of the model.
    pub inputs: Vec<Boundary>,
    /// What the model returns.
    pub output: OutputTree,
    /// The stages in order.
    pub stages: Vec<StageFiles>,
    /// Parameters that several stages hold: whoever trains sums their gradients.
    pub tied: Vec<TiedParameter>,
    /// How many ranks hold each stage together, where stages are cut inside their operators; each must divide what is cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<u32>,
    /// All files of the folder but this one, by their path in it. Folders of earlier versions say nothing of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, FileDigest>,
}

/// What a file was when it was written.
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
    /// What `forward` takes, in order.
    pub inputs: Vec<Input>,
    /// What `forward` returns, in order. A single one is returned by itself, more as a tuple.
    pub outputs: Vec<Boundary>,
    /// Names of its parameters in the model.
    pub parameters: Vec<String>,
    /// Names of its buffers in the model.
    pub buffers: Vec<String>,
    /// Blocks whose activations the plan wants computed again in the backward pass.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recompute: Vec<String>,
    /// What is computed again at a time.
    #[serde(default, skip_serializing_if = "RecomputeUnit::is_block")]
    pub recompute_unit: RecomputeUnit,
    /// Blocks whose activations the plan wants kept in host memory until the backward pass.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub offload: Vec<String>,
    /// Operators that it runs although another stage runs them, too, because that is cheaper than sending.
    pub repeated_operators: u32,
    /// Devices of the plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// Parameters and buffers that shards have a part of: the dimension that is cut, and of how many equal blocks it is, each of
    /// which is cut; of none where the first shard has all of it. Absent where a stage is not cut inside its operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuts: Option<BTreeMap<String, (usize, u32)>>,
    /// What its shards send each other for inputs of the traced sizes, there and back.
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
    /// Type of what is sent, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// How many.
    pub calls: u64,
    /// Bytes of the whole values; those of all messages where they go from one to another.
    pub bytes: u64,
}

/// Files of a stage; absent when they were not asked for.
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

/// A value at a border.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Boundary {
    /// Its name.
    pub name: String,
    /// Its sizes in the traced example, where known.
    pub shape: Option<Vec<u64>>,
    /// `float32`, `int64`, …, where known.
    pub dtype: Option<String>,
    /// Of an input of the model: the numbers between which its example was drawn, the last excluded where they are whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<(f64, f64)>,
}

/// An input of a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Its name in `forward`.
    pub name: String,
    /// `input:NAME` or `stage:K:NAME`.
    pub from: String,
    /// Its sizes in the traced example, where known.
    pub shape: Option<Vec<u64>>,
    /// `float32`, `int64`, …, where known.
    pub dtype: Option<String>,
}

/// What the model returns.
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
    /// Where it is.
    pub holders: Vec<TiedHolder>,
    /// True when it trains.
    pub requires_grad: bool,
}

/// One place of a tied parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TiedHolder {
    /// Position of the stage.
    pub stage: u32,
    /// Its name there.
    pub name: String,
}
