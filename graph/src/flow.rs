//! Dependencies between operators: data flow, and the order imposed by writes in place.
//!
//! ```text
//! a = conv(x)    b = a.view(..)    relu_(a)    c = add(b, 1)
//!                     └──── order ────┘  └─── order ───┘        b looks at what relu_ writes
//! ```
//!
//! A writer comes after all earlier readers of any alias of its storage and before all later ones. Linear in operands.

use std::collections::HashMap;

use petgraph::graph::{DiGraph, NodeIndex};

use crate::{
    fact::StorageId,
    model::{Flow, ModelGraph, Operator, OperatorId},
};

/// The accesses of a storage so far.
#[derive(Default)]
struct History {
    writer: Option<OperatorId>,
    readers: Vec<OperatorId>,
}

/// Builds the edges of a graph whose operators and values are complete.
pub fn edges(graph: &ModelGraph) -> DiGraph<OperatorId, Flow> {
    let n_edges = graph.operators.iter().map(|operator| operator.inputs.len()).sum();
    let mut flow = DiGraph::with_capacity(graph.operators.len(), n_edges);
    for operator in &graph.operators {
        flow.add_node(operator.id);
    }
    let node = |id: OperatorId| NodeIndex::new(id.index());
    // Only storages that are written to need a history.
    let mut histories: HashMap<StorageId, History> = graph
        .operators
        .iter()
        .filter_map(|operator| written(graph, operator))
        .map(|s| (s, History::default()))
        .collect();
    for operator in &graph.operators {
        let mut before: Vec<OperatorId> = Vec::new();
        for value in &operator.inputs {
            if let Some(producer) = graph.value(*value).producer {
                before.push(producer);
                flow.add_edge(node(producer), node(operator.id), Flow::Value(*value));
            }
        }
        if histories.is_empty() {
            continue;
        }
        let writes = written(graph, operator);
        let mut seen: Vec<StorageId> = Vec::new();
        for storage in storages(graph, operator) {
            let Some(history) = histories.get_mut(&storage) else { continue };
            if seen.contains(&storage) {
                continue;
            }
            seen.push(storage);
            let mut order = |from: OperatorId| {
                if from != operator.id && !before.contains(&from) {
                    flow.add_edge(node(from), node(operator.id), Flow::Order(storage));
                }
            };
            if let Some(writer) = history.writer {
                order(writer);
            }
            if writes == Some(storage) {
                history.readers.drain(..).for_each(order);
                history.writer = Some(operator.id);
            } else {
                history.readers.push(operator.id);
            }
        }
    }
    flow
}

/// Returns the storage that an operator writes to in place.
pub(crate) fn written(graph: &ModelGraph, operator: &Operator) -> Option<StorageId> {
    if !operator.is_writing {
        return None;
    }
    match &operator.arguments.first()?.operand {
        tracer::Operand::Value(value) => graph.value(*value).fact.tensor()?.storage,
        tracer::Operand::Tensor(tensor) => Some(graph.tensor(*tensor).storage),
        _ => None,
    }
}

/// Returns the storages that an operator reads or writes, with repetitions.
fn storages<'a>(graph: &'a ModelGraph, operator: &'a Operator) -> impl Iterator<Item = StorageId> + 'a {
    let values = operator.inputs.iter().flat_map(|value| graph.value(*value).fact.tensors());
    let stored = operator.tensors.iter().map(|tensor| graph.tensor(*tensor).storage);
    values.filter_map(|tensor| tensor.storage).chain(stored)
}
