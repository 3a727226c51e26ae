//! Blocks are calls, not modules: contiguous runs of the operators.
//!
//! A `ReLU` that is used three times is three blocks, `relu`, `relu (call 2)`, `relu (call 3)`. This is what makes the
//! quotient at any level acyclic: an edge between two runs can only go from the earlier to the later.

use std::ops::Range;

use tracer::{ModuleId, ValueId};

use crate::{OperatorId, model::ModelGraph};

/// Index into [`ModelGraph::blocks`]; the same number as the trace's call. The root is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

impl BlockId {
    /// The call of the root's `forward`.
    pub const ROOT: BlockId = BlockId(0);

    /// Returns the position in the graph's list.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One call of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its number.
    pub id: BlockId,
    /// Unique in the graph: `layer1.0.relu`, `layer1.0.relu (call 2)`; empty for the root.
    pub path: String,
    /// The class's last name: `Bottleneck`.
    pub kind: String,
    /// The class's whole name: `torchvision.models.resnet.Bottleneck`.
    pub class: String,
    /// The module that is called.
    pub module: ModuleId,
    /// The module's path, the same for each of its calls.
    pub module_path: String,
    /// 1 for the first call of the module, 2 for the second, …
    pub ordinal: u32,
    /// The block that calls it; `None` for the root.
    pub parent: Option<BlockId>,
    /// Blocks called from here, in order.
    pub children: Vec<BlockId>,
    /// Distance from the root.
    pub depth: u32,
    /// The operators made here and below. Empty for a call that computes nothing.
    pub operators: Range<u32>,
    /// Values passed to the call.
    pub inputs: Vec<ValueId>,
    /// Values that the call returns, in order.
    pub outputs: Vec<ValueId>,
    /// Equal for blocks that do the same on the same shapes: operators, constants, sizes, connections.
    pub structure: u64,
    /// Equal for blocks with the same operators and connections, whatever their sizes and constants.
    pub outline: u64,
}

/// The granularity of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Every operator by itself.
    Operator,
    /// Calls without calls of their own: `conv1`, `bn1`.
    Layer,
    /// The units that a model repeats: bottlenecks, encoder layers, cells.
    Block,
    /// Calls at this depth of the module tree, or above it where the tree ends; 0 is the whole model.
    Depth(u32),
}

/// One part of a level. A level's items cover every operator exactly once, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Item {
    /// A call with all its operators.
    Block(BlockId),
    /// An operator between the calls of an opened block.
    Operator(OperatorId),
}

impl Item {
    /// Returns the item's operators.
    pub fn operators(self, graph: &ModelGraph) -> Range<u32> {
        match self {
            Item::Block(block) => graph.block(block).operators.clone(),
            Item::Operator(operator) => operator.0..operator.0 + 1,
        }
    }
}
