//! The file of `graph -o FILE.json`: the model as an adjacency list.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::inspect::NamedTensor;

/// Newest version of [`GraphDocument`].
pub const GRAPH_VERSION: u32 = 1;

/// A model as operators, blocks and edges.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GraphDocument {
    /// Version of this form.
    pub schema_version: u32,
    /// The model's name.
    pub model: String,
    /// The model's inputs.
    pub inputs: Vec<NamedTensor>,
    /// The model's outputs.
    pub outputs: Vec<NamedTensor>,
    /// Operators in execution order, which is a topological order.
    pub operators: Vec<GraphOperator>,
    /// Edges by source, then by target.
    pub edges: Vec<GraphEdge>,
    /// Calls of modules, parents before their children; the root's path is empty.
    pub blocks: Vec<GraphBlock>,
    /// Parameters, buffers and constants.
    pub tensors: Vec<GraphTensor>,
}

/// One operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GraphOperator {
    /// Its position in the order, from 0.
    pub id: u32,
    /// Qualified name: `aten::conv2d`.
    pub name: String,
    /// Path of the innermost block.
    pub block: String,
    /// Its results.
    pub outputs: Vec<NamedTensor>,
    /// Paths of the parameters, buffers and constants that it reads.
    pub tensors: Vec<String>,
    /// Forward operations; null if sizes are unknown.
    pub flops: Option<u64>,
    /// Bytes that autograd saves here; null if sizes are unknown.
    pub activation_bytes: Option<u64>,
}

/// One edge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GraphEdge {
    /// The first operator.
    pub from: u32,
    /// The second operator.
    pub to: u32,
    /// The value that flows; null if only the order matters, because one of the two writes in place.
    pub value: Option<String>,
}

/// One call of a module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GraphBlock {
    /// Unique in the model.
    pub path: String,
    /// The class's last name.
    pub kind: String,
    /// Path of the block it is called from; null for the root.
    pub parent: Option<String>,
    /// Its first operator.
    pub first: u32,
    /// One past its last operator.
    pub end: u32,
    /// Equal for blocks that do the same on the same sizes.
    pub structure: String,
}

/// A parameter, a buffer or a constant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GraphTensor {
    /// Path from the root.
    pub path: String,
    /// `parameter`, `buffer` or `constant`.
    pub role: String,
    /// Element type as torch names it.
    pub dtype: String,
    /// Sizes.
    pub shape: Vec<u64>,
    /// The first path of the same tensor, if this is another name of it.
    pub tied_to: Option<String>,
}
