//! `CutError`: why a cut is impossible.

use thiserror::Error;
use tracer::NodeId;

/// The deepest nesting of lists in a call. Python's parser accepts 200 brackets.
pub(crate) const MAX_DEPTH: usize = 64;

/// Why a stage may not call an operator.
#[derive(Clone, Debug, Error, PartialEq, Eq, PartialOrd, Ord)]
pub enum OperatorFault {
    /// It is in a name space of torch, but torch has no such operator.
    #[error("which torch 2.11 does not have")]
    Unknown,
    /// It belongs to another library's name space.
    #[error("which is not one of torch's operators")]
    Foreign {
        /// The name space.
        space: String,
    },
    /// An operator of torch that does more than compute.
    #[error("which stages may not: {0}")]
    Refused(&'static str),
    /// It has no argument of that name.
    #[error("with an argument `{0}`, which it does not have")]
    Argument(String),
    /// It gets an argument twice.
    #[error("with two arguments `{0}`")]
    Twice(String),
    /// Its arguments are nested too deeply.
    #[error("with lists more than {MAX_DEPTH} deep")]
    Nested,
}

/// Why a model cannot be cut in the requested way.
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
    #[error("{stages} stages are requested, the model has {operators} operators")]
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
    #[error("block `{path}` is in stage {first} and in stage {second}")]
    Twice {
        /// The block.
        path: String,
        /// The first stage.
        first: u32,
        /// The other stage.
        second: u32,
    },
    /// A cut before the model's first operator, or two at the same place.
    #[error("cutting before block `{path}` leaves a stage empty: {} at the same operator", match other {
        Some(other) => format!("block `{other}` begins"),
        None => "the model begins".to_string(),
    })]
    NothingBetween {
        /// The block.
        path: String,
        /// Another block that begins there.
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
    /// Archives cannot exchange values between shards.
    #[error("stages that are cut inside their operators can only be written in Python")]
    ShardedArchive,
    /// Unequal numbers of rows on shards, which another stage would have to know.
    #[error(
        "stage {stage} would send `{value}`, of which its shards have unequal numbers of rows, which the next stage cannot know"
    )]
    Uneven {
        /// Its name.
        value: String,
        /// The stage that makes it.
        stage: usize,
    },
    /// A part of the model has the name under which stages keep their exchanges.
    #[error(
        "the model has a part named `shard`, so it cannot be cut inside its operators: rename it and trace again"
    )]
    ShardName,
    /// A block in no stage.
    #[error("block `{path}` ({operators} operators) is in no stage")]
    Missing {
        /// The block.
        path: String,
        /// The number of operators without a stage.
        operators: usize,
    },
    /// An operator needs the result of a later stage.
    #[error("`{reader}` in stage {stage} needs `{value}`, which stage {maker} makes later")]
    Backward {
        /// Path of the block that reads.
        reader: String,
        /// Its stage.
        stage: u32,
        /// The value that it reads.
        value: String,
        /// The stage that makes it.
        maker: u32,
        /// The reading node.
        node: NodeId,
    },
    /// A value that cannot be transferred.
    #[error(
        "`{value}` is {kind} and would go from stage {from} to stage {to}; only tensors and numbers can be sent"
    )]
    NotSendable {
        /// Its name.
        value: String,
        /// What it is.
        kind: String,
        /// The stage that makes it.
        from: u32,
        /// The stage that needs it.
        to: u32,
        /// The reading node.
        node: NodeId,
    },
    /// A buffer that several stages write to or read.
    #[error("`{tensor}` is written by `{operator}` and used in stages {} and {}", stages.0, stages.1)]
    SharedBuffer {
        /// Its path.
        tensor: String,
        /// The writing operator.
        operator: String,
        /// The two stages.
        stages: (u32, u32),
        /// The writing node.
        node: NodeId,
    },
    /// A write in place that stages would see in another order.
    #[error("stage {writer} changes `{value}` in place, but stage {stage} uses its memory earlier")]
    InPlaceOrder {
        /// The written value.
        value: String,
        /// The reading stage.
        stage: u32,
        /// The writing stage.
        writer: u32,
        /// The node at fault.
        node: NodeId,
    },
    /// A write in place to memory that a stage gets under several names.
    #[error("`{operator}` in stage {stage} changes memory in place that the stage receives as {}", values.join(", "))]
    InPlaceAlias {
        /// The writing operator.
        operator: String,
        /// Its stage.
        stage: u32,
        /// Names of the values.
        values: Vec<String>,
        /// The writing node.
        node: NodeId,
    },
    /// Scripted control flow, or other features of scripted code.
    #[error("`{path}` contains scripted code ({place}) that cannot be part of a stage: {reason}")]
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
        /// The stages.
        stages: Vec<u32>,
    },
    /// A trained tensor that shares elements with another.
    #[error("`{tensor}` and `{other}` share elements and are two tensors, which stages would train apart")]
    Overlap {
        /// Its path.
        tensor: String,
        /// Path of the other tensor.
        other: String,
    },
    /// A tensor without data.
    #[error("tensor `{tensor}` has no data: the model was read from IR text, stages need the archive")]
    NoData {
        /// Its path.
        tensor: String,
    },
    /// A tensor of a model that was traced without weights.
    #[error("tensor `{tensor}` has no values: the model was traced without its weights")]
    NoWeights {
        /// Its path.
        tensor: String,
    },
    /// A tensor that the formats do not support.
    #[error("tensor `{tensor}`: {reason}")]
    Tensor {
        /// Its path.
        tensor: String,
        /// What is wrong.
        reason: String,
    },
}

impl CutError {
    /// Returns the node at fault, if another cut could help.
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
