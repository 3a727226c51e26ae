//! Checks every invariant of a graph. Graphs from [`crate::build()`] violate none; tests and fuzzers check that.

use std::collections::HashSet;

use crate::{
    BlockId, Item, Level, OperatorId,
    model::{Flow, ModelGraph},
};

impl ModelGraph {
    /// Returns every violated invariant as text; empty if all hold.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        check_operators(self, &mut problems);
        check_values(self, &mut problems);
        check_blocks(self, &mut problems);
        check_flow(self, &mut problems);
        let deepest = self.blocks.iter().map(|block| block.depth).max().unwrap_or(0).min(64);
        let named = [Level::Operator, Level::Layer, Level::Block];
        for level in named.into_iter().chain((0..=deepest).map(Level::Depth)) {
            check_level(self, level, &mut problems);
        }
        problems
    }
}

fn check_operators(graph: &ModelGraph, problems: &mut Vec<String>) {
    for (index, operator) in graph.operators.iter().enumerate() {
        let name = &operator.name;
        if operator.id.index() != index {
            problems.push(format!("operator {index}, {name}, has number {}", operator.id.0));
        }
        for value in &operator.outputs {
            if graph.value(*value).producer != Some(operator.id) {
                problems
                    .push(format!("value {} does not know that operator {index}, {name}, makes it", value.0));
            }
        }
        for value in &operator.inputs {
            let value = graph.value(*value);
            if value.producer.is_some_and(|producer| producer >= operator.id) {
                problems.push(format!("operator {index}, {name}, reads `{}` before it is made", value.name));
            }
            if value.consumers.binary_search(&operator.id).is_err() {
                problems
                    .push(format!("`{}` does not know that operator {index}, {name}, reads it", value.name));
            }
        }
    }
}

fn check_values(graph: &ModelGraph, problems: &mut Vec<String>) {
    for value in &graph.values {
        if !value.consumers.is_sorted() {
            problems.push(format!("the readers of `{}` are not in order", value.name));
        }
        for tensor in value.fact.tensors() {
            let Some(storage) = tensor.storage else { continue };
            if storage.index() >= graph.storages.len() {
                problems.push(format!("`{}` has no storage", value.name));
            }
            let (sizes, strides) =
                (tensor.shape.as_ref().map(|s| s.len()), tensor.strides.as_ref().map(|s| s.len()));
            if sizes.is_some() && strides.is_some() && sizes != strides {
                problems.push(format!("`{}` has not as many strides as sizes", value.name));
            }
        }
    }
    for group in &graph.tied {
        let storages: HashSet<_> = group.iter().map(|id| graph.tensor(*id).storage).collect();
        if group.len() < 2 || storages.len() != 1 {
            problems.push(format!("{} tied tensors are in {} storages", group.len(), storages.len()));
        }
    }
}

fn check_blocks(graph: &ModelGraph, problems: &mut Vec<String>) {
    let mut paths = HashSet::new();
    let mut innermost = vec![None; graph.operators.len()];
    for (index, block) in graph.blocks.iter().enumerate() {
        if block.id.index() != index || block.parent.is_none() != (index == 0) {
            problems.push(format!("block {index} is out of place"));
        }
        if !paths.insert(&block.path) {
            problems.push(format!("two blocks are called `{}`", block.path));
        }
        let mut at = block.operators.start;
        for child in &block.children {
            let child = graph.block(*child);
            if child.parent != Some(block.id) || child.depth != block.depth + 1 {
                problems.push(format!("`{}` is not a child of `{}`", child.path, block.path));
            }
            if child.operators.start < at || child.operators.end > block.operators.end {
                problems.push(format!("`{}` is not inside `{}`", child.path, block.path));
            }
            own(&mut innermost, at..child.operators.start, block.id);
            at = at.max(child.operators.end);
        }
        own(&mut innermost, at..block.operators.end, block.id);
    }
    for (operator, block) in graph.operators.iter().zip(innermost) {
        if Some(operator.block) != block {
            problems.push(format!("{}, {}, is not in the block that it names", operator.id, operator.name));
        }
    }
}

fn own(innermost: &mut [Option<BlockId>], range: std::ops::Range<u32>, block: BlockId) {
    for operator in range {
        innermost[operator as usize] = Some(block);
    }
}

fn check_flow(graph: &ModelGraph, problems: &mut Vec<String>) {
    if graph.flow.node_count() != graph.operators.len() {
        problems.push("the flow has other nodes than the graph has operators".to_string());
        return;
    }
    for edge in graph.flow.raw_edges() {
        let (from, to) = (edge.source().index(), edge.target().index());
        if from >= to {
            problems.push(format!("an edge goes back from operator {from} to operator {to}"));
        }
        if let Flow::Value(value) = edge.weight
            && graph.value(value).producer != Some(OperatorId(from as u32))
        {
            let name = &graph.value(value).name;
            problems.push(format!("an edge carries `{name}` from operator {from}, which does not make it"));
        }
    }
    let wanted: usize = graph
        .operators
        .iter()
        .flat_map(|o| &o.inputs)
        .filter(|value| graph.value(**value).producer.is_some())
        .count();
    let found = graph.flow.raw_edges().iter().filter(|edge| matches!(edge.weight, Flow::Value(_))).count();
    if wanted != found {
        problems.push(format!("{found} edges carry values, {wanted} are read"));
    }
}

fn check_level(graph: &ModelGraph, level: Level, problems: &mut Vec<String>) {
    let items = graph.level(level);
    let mut at = 0;
    for item in &items {
        let range = item.operators(graph);
        if range.start != at || range.is_empty() {
            problems.push(format!("{level:?}: {} does not begin at operator {at}", name(graph, *item)));
        }
        at = range.end;
    }
    if at as usize != graph.operators.len() {
        problems.push(format!("{level:?} ends at operator {at} of {}", graph.operators.len()));
    }
    let quotient = graph.quotient(items);
    for (from, to) in quotient.edges.keys() {
        if from >= to {
            problems.push(format!("{level:?}: an edge goes back from item {from} to item {to}"));
        }
    }
}

fn name(graph: &ModelGraph, item: Item) -> String {
    match item {
        Item::Block(block) => format!("`{}`", graph.block(block).path),
        Item::Operator(operator) => operator.to_string(),
    }
}
