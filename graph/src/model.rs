//! `ModelGraph`: the operators, blocks and values of a model.
//!
//! Numbers are those of the trace: operator `i` is node `i` of the [`tracer::Program`], block `i` is call `i`, values
//! and stored tensors keep their ids. The program has their source.
//!
//! Operators are in execution order, which is a topological order of [`ModelGraph::flow`].

use std::{fmt, ops::Range};

use indexmap::IndexMap;
use operators::{OperatorClass, ShapeRule};
use petgraph::graph::DiGraph;
use tracer::{CallId, Constant, DType, NodeId, Operand, Role, Span, TensorId, ValueId};

use crate::{
    block::{Block, BlockId},
    fact::{Fact, StorageId, TensorFact},
};

/// Index into [`ModelGraph::operators`]; the same number as the trace's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperatorId(pub u32);

impl OperatorId {
    /// Returns the position in the graph's list.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the operator's node in the trace.
    pub fn node(self) -> NodeId {
        NodeId(self.0)
    }
}

/// A model as operators, blocks and the values between them. Built once, never edited.
#[derive(Clone, Debug, Default)]
pub struct ModelGraph {
    /// The root's class name, or the archive's.
    pub name: String,
    /// Operators in execution order.
    pub operators: Vec<Operator>,
    /// Values by the trace's ids: model inputs and operators' outputs.
    pub values: Vec<Value>,
    /// Parameters, buffers and constants by the trace's ids.
    pub tensors: Vec<StoredTensor>,
    /// Names with the same storage, two or more per group, in order of first appearance.
    pub tied: Vec<Vec<TensorId>>,
    /// Storages; a view has the storage of its base.
    pub storages: Vec<Storage>,
    /// Calls as a tree; the root is first, parents precede their children.
    pub blocks: Vec<Block>,
    /// The model's inputs in order.
    pub inputs: Vec<ValueId>,
    /// The model's result, as written.
    pub output: Operand,
    /// The values inside `output`, in order.
    pub outputs: Vec<ValueId>,
    /// Dependencies between operators; node `i` is operator `i`.
    pub flow: DiGraph<OperatorId, Flow>,
    /// Operators without a rule, by name.
    pub unknown: IndexMap<String, UnknownOperator>,
    /// Operators whose inferred types differ from the recorded ones, which were kept.
    pub disagreements: Vec<Disagreement>,
}

/// One operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Operator {
    /// Its number.
    pub id: OperatorId,
    /// Qualified name: `aten::conv2d`, `aten::relu_`, `prim::NumToTensor`.
    pub name: String,
    /// Its family.
    pub class: OperatorClass,
    /// Arguments by their schema's names, with defaults filled in. Names are `0`, `1`, … if the operator is in no
    /// schema.
    pub arguments: Vec<Argument>,
    /// Values it makes.
    pub outputs: Vec<ValueId>,
    /// Values it reads, in order of appearance, each once.
    pub inputs: Vec<ValueId>,
    /// Parameters, buffers and constants it reads, in order of appearance, each once.
    pub tensors: Vec<TensorId>,
    /// The innermost block it belongs to.
    pub block: BlockId,
    /// True if it writes to its first argument in place.
    pub is_writing: bool,
    /// Its source location.
    pub span: Span,
}

/// One argument by its schema's name.
#[derive(Clone, Debug, PartialEq)]
pub struct Argument {
    /// `self`, `weight`, `stride`, …
    pub name: std::borrow::Cow<'static, str>,
    /// The operand.
    pub operand: Operand,
    /// False for a default that the source does not contain.
    pub is_given: bool,
}

/// A value and its static facts.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Its number.
    pub id: ValueId,
    /// Unique name, close to the one in the source.
    pub name: String,
    /// Shape and dtype of a tensor; the number itself if it is known.
    pub fact: Fact,
    /// The operator that makes it; `None` for an input of the model.
    pub producer: Option<OperatorId>,
    /// Operators that read it, in order, each once.
    pub consumers: Vec<OperatorId>,
    /// Its source location.
    pub span: Span,
}

/// A parameter, a buffer or a constant.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredTensor {
    /// Its number.
    pub id: TensorId,
    /// Path from the root: `layer1.0.conv1.weight`.
    pub path: String,
    /// Parameter, buffer or constant.
    pub role: Role,
    /// Element type.
    pub dtype: DType,
    /// Sizes; empty and meaningless without `has_shape`.
    pub shape: Vec<u64>,
    /// False if an IR text does not state the sizes and they cannot be inferred.
    pub has_shape: bool,
    /// Strides in elements.
    pub strides: Vec<u64>,
    /// Bytes of its elements; 0 without `has_shape`.
    pub bytes: u64,
    /// True for parameters that train.
    pub requires_grad: bool,
    /// The storage of its elements; equal for tied tensors.
    pub storage: StorageId,
    /// The first tensor in the same storage; itself unless tied.
    pub first: TensorId,
    /// Operators that read it, in order, each once.
    pub consumers: Vec<OperatorId>,
}

/// A piece of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// Its origin.
    pub origin: Origin,
    /// Its size; `None` if a shape is unknown.
    pub bytes: Option<u64>,
}

/// The origin of a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Stored in the file.
    Stored(TensorId),
    /// Passed by the caller.
    Input(ValueId),
    /// Allocated by an operator.
    Made(OperatorId),
}

/// Why one operator must run before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flow {
    /// The second reads a value of the first.
    Value(ValueId),
    /// One of them writes to a storage in place that the other also uses.
    Order(StorageId),
}

/// An operator without a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnknownOperator {
    /// The operators of this name.
    pub operators: Vec<OperatorId>,
    /// True if every tensor it makes has a recorded shape.
    pub is_recorded: bool,
}

/// An operator whose inferred type differs from the recorded one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disagreement {
    /// The operator.
    pub operator: OperatorId,
    /// For example `float32 8x64`; or why the rule rejects the operands.
    pub inferred: String,
    /// The recorded type in the archive.
    pub recorded: String,
}

impl ModelGraph {
    /// Returns an operator.
    pub fn operator(&self, id: OperatorId) -> &Operator {
        &self.operators[id.index()]
    }

    /// Returns a value.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    /// Returns a stored tensor.
    pub fn tensor(&self, id: TensorId) -> &StoredTensor {
        &self.tensors[id.index()]
    }

    /// Returns a storage.
    pub fn storage(&self, id: StorageId) -> &Storage {
        &self.storages[id.index()]
    }

    /// Returns the number of trained elements, tied ones once.
    pub fn parameters(&self) -> u64 {
        self.tensors.iter().filter(|t| t.is_first_parameter()).map(StoredTensor::elements).sum()
    }

    /// Returns the operators of a range such as [`Block::operators`].
    pub fn operators_of(&self, range: &Range<u32>) -> &[Operator] {
        &self.operators[range.start as usize..range.end as usize]
    }

    /// Returns a block.
    pub fn block(&self, id: BlockId) -> &Block {
        &self.blocks[id.index()]
    }

    /// Returns the tensor that represents a block's result: the first that it returns, with those without a gradient (a
    /// mask that others also use) after the rest, and those without dimensions (sizes) last; for a call whose result is
    /// unused, the result of its last operator.
    pub fn result_of(&self, block: BlockId) -> Option<&TensorFact> {
        let block = self.block(block);
        let tensors = |values: &[ValueId]| -> Vec<&TensorFact> {
            values.iter().flat_map(|value| self.value(*value).fact.tensors()).collect()
        };
        let rank = |tensor: &&&TensorFact| {
            let has_dimensions = tensor.shape.as_ref().is_none_or(|shape| !shape.is_empty());
            (!has_dimensions, !tensor.requires_grad)
        };
        let returned = tensors(&block.outputs);
        if let Some(tensor) = returned.iter().min_by_key(rank) {
            return Some(tensor);
        }
        let last = self.operators_of(&block.operators).last()?;
        tensors(&last.outputs).first().copied()
    }

    /// Returns the call of a block.
    pub fn call(&self, block: BlockId) -> CallId {
        CallId(block.0)
    }
}

impl Operator {
    /// Returns the operand of a named argument.
    pub fn argument(&self, name: &str) -> Option<&Operand> {
        self.arguments.iter().find(|a| a.name == name).map(|a| &a.operand)
    }

    /// Returns the literal of a named argument.
    pub fn constant(&self, name: &str) -> Option<&Constant> {
        match self.argument(name)? {
            Operand::Constant(constant) => Some(constant),
            _ => None,
        }
    }

    /// Returns the name without name space: `conv2d`.
    pub fn short_name(&self) -> &str {
        schema::short_name(&self.name)
    }

    /// Returns its row in the table of operators, that of the plain form if it writes in place.
    pub fn row(&self) -> Option<&'static operators::Operator> {
        operators::find(operators::plain(self.short_name()).0)
    }

    /// Returns its shape rule.
    pub fn shape_rule(&self) -> ShapeRule {
        self.row().map_or(ShapeRule::Unknown, |row| row.shape)
    }
}

impl StoredTensor {
    /// Returns the number of elements; 0 if its sizes are unknown.
    pub fn elements(&self) -> u64 {
        if self.has_shape {
            self.shape.iter().fold(1, |product, size| product.saturating_mul(*size))
        } else {
            0
        }
    }

    /// Returns its facts, in the form of any value's.
    pub fn fact(&self) -> TensorFact {
        TensorFact {
            dtype: Some(self.dtype),
            shape: self.has_shape.then(|| self.shape.iter().map(|size| Some(*size)).collect()),
            strides: (self.has_shape && self.strides.len() == self.shape.len())
                .then(|| self.strides.iter().copied().collect()),
            storage: Some(self.storage),
            requires_grad: self.requires_grad,
            number: None,
            is_wrapped_number: false,
        }
    }

    /// Tells whether this is a trained parameter that no earlier name has counted.
    pub fn is_first_parameter(&self) -> bool {
        self.role == Role::Parameter && self.first == self.id
    }
}

impl fmt::Display for OperatorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "operator {}", self.0)
    }
}
