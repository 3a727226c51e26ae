//! Gradients of weights that each device has whole and uses for a part: they can be summed once a step instead of in each
//! backward pass, since a sum over micro-batches and one over devices can change places.
//!
//! That holds where devices use a weight in no other way. One walk over operands.

use std::collections::{BTreeMap, BTreeSet};

use operators::Mark;
use tracer::{NodeId, Operand, Program, TensorId, ValueId};

use super::{Exchange, Sharded};
use crate::model::{ModelGraph, Operator};

/// The operator that passes such a weight to its users.
const WEIGHT: &str = "shard_weight";

/// Tells whether an operator passes on a weight whose gradient may be summed once a step.
pub fn is_summed_later(operator: &Operator) -> bool {
    operator.row().is_some_and(|row| row.has(Mark::SumsLater))
}

impl Sharded {
    /// Marks the weights of a shared program, in the graph of the whole one, whose gradients may be summed once a step.
    pub fn sum_later(&mut self, graph: &ModelGraph) {
        let passes: BTreeSet<NodeId> = self
            .exchanges
            .iter()
            .filter(|(_, step)| **step == Exchange::Copy)
            .map(|(node, _)| *node)
            .collect();
        let weights = weights(&self.program, graph);
        // Whatever else takes a weight has another gradient.
        let mut uses: BTreeMap<TensorId, Option<Vec<NodeId>>> = BTreeMap::new();
        for (index, node) in self.program.nodes.iter().enumerate() {
            let id = NodeId(index as u32);
            if weights.contains_key(node.outputs.first().unwrap_or(&ValueId(u32::MAX))) {
                continue;
            }
            let is_pass = passes.contains(&id);
            for argument in &node.arguments {
                each_leaf(&argument.operand, &mut |leaf| {
                    let Some(weight) = root(leaf, &weights, graph) else { return };
                    let all = uses.entry(weight).or_insert_with(|| Some(Vec::new()));
                    match all {
                        Some(all) if is_pass => all.push(id),
                        other => *other = None,
                    }
                });
            }
        }
        each_leaf(&self.program.output, &mut |leaf| {
            uses.extend(root(leaf, &weights, graph).map(|weight| (weight, None)));
        });
        for node in uses.into_values().flatten().flatten() {
            let operator = &mut self.program.nodes[node.index()].operator;
            if let Some((space, _)) = operator.split_once("::") {
                *operator = format!("{space}::{WEIGHT}");
            }
        }
    }
}

/// Returns the values that are weights passed on by groups of devices, and the weights.
fn weights(program: &Program, graph: &ModelGraph) -> BTreeMap<ValueId, TensorId> {
    let mut found = BTreeMap::new();
    for node in program.nodes.iter().filter(|node| node.operator == format!("outer::{WEIGHT}")) {
        let of = node.arguments.first().and_then(|argument| root(&argument.operand, &found, graph));
        found.extend(node.outputs.first().copied().zip(of));
    }
    found
}

/// Returns the first name of the weight that an operand is.
fn root(operand: &Operand, passed: &BTreeMap<ValueId, TensorId>, graph: &ModelGraph) -> Option<TensorId> {
    match operand {
        Operand::Tensor(id) => Some(graph.tensor(*id).first),
        Operand::Value(value) => passed.get(value).copied(),
        _ => None,
    }
}

fn each_leaf(operand: &Operand, with: &mut impl FnMut(&Operand)) {
    match operand {
        Operand::List(items) | Operand::Tuple(items) => items.iter().for_each(|item| each_leaf(item, with)),
        Operand::Dict(items) => items.iter().for_each(|(_, item)| each_leaf(item, with)),
        leaf => with(leaf),
    }
}
