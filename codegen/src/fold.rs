//! Removes conversions of sizes to tensors and back.
//!
//! A trace turns every size into a tensor and back: `int(NumToTensor(x.size(0)))`. If only such steps read the tensor,
//! they are omitted from the emitted code.

use std::collections::{HashMap, HashSet};

use operators::Arithmetic;
use tracer::{NodeId, Operand, Program, ValueId};

use crate::{
    nodes::{Kind, split, values_of},
    pipeline::{Carried, Stage, Step},
};

/// The conversions that a stage's code omits.
#[derive(Clone, Debug, Default)]
pub(crate) struct Folded {
    /// Values that are replaced by another.
    same: HashMap<ValueId, ValueId>,
    /// Nodes without a line of code.
    skipped: HashSet<NodeId>,
}

impl Folded {
    /// Finds the conversions of a stage. O(operands of the stage).
    pub fn new(program: &Program, stage: &Stage, kinds: &[Kind]) -> Self {
        let mut readers: HashMap<ValueId, Vec<NodeId>> = HashMap::new();
        let mut kept: HashSet<ValueId> = stage
            .outputs
            .iter()
            .filter_map(|port| match port.carried {
                Carried::Value(value) => Some(value),
                Carried::Tensor(_) => None,
            })
            .collect();
        let nodes = || {
            stage.steps.iter().filter_map(|step| match step {
                Step::Run { node, .. } => Some(*node),
                Step::Clone(_) | Step::Unbox(_) => None,
            })
        };
        for node in nodes() {
            for argument in &program.nodes[node.index()].arguments {
                for value in values_of(&argument.operand) {
                    readers.entry(value).or_default().push(node);
                }
            }
        }
        let is_back = |node: &NodeId| {
            matches!(
                Arithmetic::of(split(&program.nodes[node.index()].operator).1),
                Arithmetic::ToInt | Arithmetic::ToIntImplicitly | Arithmetic::ToNumberImplicitly
            )
        };
        // A value that arrives from another stage keeps its name.
        kept.extend(stage.inputs.iter().filter_map(|port| match port.carried {
            Carried::Value(value) => Some(value),
            Carried::Tensor(_) => None,
        }));
        let mut folded = Self::default();
        for id in nodes() {
            let node = &program.nodes[id.index()];
            let (Some(Operand::Value(read)), [made]) =
                (node.arguments.first().map(|a| &a.operand), node.outputs.as_slice())
            else {
                continue;
            };
            let read = folded.get(*read);
            let is_there = Arithmetic::of(split(&node.operator).1) == Arithmetic::ToTensor
                && kinds[read.index()] == Kind::Int
                && !kept.contains(made)
                && readers.get(made).is_some_and(|readers| readers.iter().all(is_back));
            let is_back_again = is_back(&id) && kinds[read.index()] == Kind::Int && !kept.contains(made);
            if is_there || is_back_again {
                folded.same.insert(*made, read);
                folded.skipped.insert(id);
            }
        }
        folded
    }

    /// Returns the value that replaces a value, or the value itself.
    pub fn get(&self, value: ValueId) -> ValueId {
        self.same.get(&value).copied().unwrap_or(value)
    }

    /// Tells whether a node has no line of code.
    pub fn skips(&self, node: NodeId) -> bool {
        self.skipped.contains(&node)
    }
}
