//! `CutError`: why a cut cannot be right.

use thiserror::Error;
use tracer::NodeId;

/// Deepest lists inside lists that a call is given. Python's parser takes 200 brackets.
pub(crate) const MAX_DEPTH: usize = 64;

/// Why a stage may not call an operator.
#[derive(Clone, Debug, Error, PartialEq, Eq, PartialOrd, Ord)]
pub enum OperatorFault {
    /// It is in a name space of torch, which has no such operator.
    #[error("which torch 2.11 does not have")]
    Unknown,
    /// It belongs to another library's name space.
    #[error("which is not one of torch's operators")]
    Foreign {
        /// The name space.
        space: String,
    },
    /// It is torch's, and does more than compute.
    #[error("which stages may not: {0}")]
    Refused(&'static str),
    /// It takes no argument by that name.
    #[error("with an argument `{0}`, which it does not take by name")]
    Argument(String),
    /// It is given an argument twice.
    #[error("with two arguments `{0}`")]
    Twice(String),
    /// Its arguments are nested too deeply.
    #[error("with lists more than {MAX_DEPTH} deep")]
    Nested,
}

/// Why a model cannot be cut in the way that was asked for.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum CutError {
    /// A stage without operators.
    #[error("stage {stage} is empty")]
    EmptyStage {
        /// Which.
        stage: u32,
    },
    /// No stages, or more than there are operators.
    #[error("{stages} stages are asked for, the model has {operators} operators")]
    StageCount {
        /// Asked for.
        stages: usize,
        /// In the model.
        operators: usize,
    },
    /// A block that the model does not have.
    #[error("stage {stage} names block `{path}`, which the model does not have")]
    UnknownBlock {
        /// Stage in the plan.
        stage: u32,
        /// As written in the plan.
        path: String,
        /// The most similar path.
        similar: Option<String>,
    },
    /// A block in two stages.
    #[error("block `{path}` is in stage {first} and again in stage {second}")]
    Twice {
        /// The block.
        path: String,
        /// Where it is first.
        first: u32,
        /// Where it is again.
        second: u32,
    },
    /// A cut before the model's first operator, or two at one place.
    #[error("cutting before block `{path}` leaves a stage empty: {} at the same operator", match other {
        Some(other) => format!("block `{other}` begins"),
        None => "the model begins".to_string(),
    })]
    NothingBetween {
        /// The block.
        path: String,
        /// Another that begins there.
        other: Option<String>,
    },
    /// An operator that stages may not call.
    #[error("`{path}` calls `{operator}` ({place}), {fault}")]
    Operator {
        /// As read.
        operator: String,
        /// Block path.
        path: String,
        /// File of the archive and line.
        place: String,
        /// Why not.
        fault: OperatorFault,
    },
    /// Archives cannot exchange what shards of an operator make.
    #[error("stages that are cut inside their operators are written in Python only")]
    ShardedArchive,
    /// Rows of which shards have unequal numbers, which another stage would have to know.
    #[error(
        "stage {stage} would hand on `{value}`, of which its shards have unequal numbers of rows: how many, the next stage cannot know"
    )]
    Uneven {
        /// Its name.
        value: String,
        /// The stage that makes it.
        stage: usize,
    },
    /// The model has a part under the name that stages keep their exchanges under.
    #[error(
        "the model has a part named `shard`, so it cannot be cut inside its operators: rename it and trace again"
    )]
    ShardName,
    /// A block in no stage.
    #[error("block `{path}` ({operators} operators) is in no stage")]
    Missing {
        /// The block.
        path: String,
        /// How much would be lost.
        operators: usize,
    },
    /// An operator needs what a later stage makes.
    #[error("`{reader}` in stage {stage} needs `{value}`, which stage {maker} makes later")]
    Backward {
        /// Path of the block that reads.
        reader: String,
        /// Its stage.
        stage: u32,
        /// What it reads.
        value: String,
        /// Who makes it.
        maker: u32,
        /// The reading node.
        node: NodeId,
    },
    /// A value that cannot travel.
    #[error("`{value}` is {kind} and would go from stage {from} to stage {to}; only tensors and numbers can")]
    NotSendable {
        /// Its name.
        value: String,
        /// What it is.
        kind: String,
        /// Made here.
        from: u32,
        /// Needed here.
        to: u32,
        /// The reading node.
        node: NodeId,
    },
    /// A buffer that several stages write to or read.
    #[error("`{tensor}` is written by `{operator}` and used in stages {} and {}", stages.0, stages.1)]
    SharedBuffer {
        /// Its path.
        tensor: String,
        /// Who writes.
        operator: String,
        /// Where.
        stages: (u32, u32),
        /// The writing node.
        node: NodeId,
    },
    /// A write in place that stages would see in another order.
    #[error("stage {writer} changes `{value}` in place, stage {stage} uses its memory before")]
    InPlaceOrder {
        /// What is written.
        value: String,
        /// Who reads.
        stage: u32,
        /// Who writes.
        writer: u32,
        /// The node at fault.
        node: NodeId,
    },
    /// A write in place to memory that a stage gets under several names.
    #[error("`{operator}` in stage {stage} changes in place what the stage gets as {}", values.join(", "))]
    InPlaceAlias {
        /// Who writes.
        operator: String,
        /// Its stage.
        stage: u32,
        /// Names of the values.
        values: Vec<String>,
        /// The writing node.
        node: NodeId,
    },
    /// Scripted control flow, or what else only scripted code has.
    #[error("`{path}` holds scripted code ({place}) that cannot be written as a stage of its own: {reason}")]
    Opaque {
        /// Block path.
        path: String,
        /// File of the archive and line.
        place: String,
        /// Why not.
        reason: String,
        /// The node.
        node: NodeId,
    },
    /// A parameter in two stages, refused on request.
    #[error("parameter `{tensor}` is used in stages {}", join(stages))]
    Tied {
        /// Its path.
        tensor: String,
        /// Where.
        stages: Vec<u32>,
    },
    /// A tensor without data.
    #[error("tensor `{tensor}` has no data: the model was read from IR text, stages need the archive")]
    NoData {
        /// Its path.
        tensor: String,
    },
    /// A tensor of a model that was traced without weights.
    #[error("tensor `{tensor}` has no numbers: the model was traced without its weights")]
    NoWeights {
        /// Its path.
        tensor: String,
    },
    /// A tensor that the formats cannot hold.
    #[error("tensor `{tensor}`: {reason}")]
    Tensor {
        /// Its path.
        tensor: String,
        /// What is wrong.
        reason: String,
    },
}

impl CutError {
    /// Returns the node at fault, where another cut could help.
    pub fn node(&self) -> Option<NodeId> {
        match self {
            CutError::NotSendable { node, .. }
            | CutError::SharedBuffer { node, .. }
            | CutError::InPlaceOrder { node, .. }
            | CutError::InPlaceAlias { node, .. }
            | CutError::Backward { node, .. } => Some(*node),
            _ => None,
        }
    }
}

fn join(stages: &[u32]) -> String {
    stages.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}
