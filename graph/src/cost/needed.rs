//! Which operators receive a gradient, and of which of them torch has no derivative.

use std::collections::HashSet;

use operators::{Mark, has, plain};
use tracer::ValueId;

use crate::{
    fact::{Fact, StorageId},
    flow::written,
    model::{ModelGraph, Operator, OperatorId},
};

/// Returns for every operator whether it receives a gradient: not through positions, masks and other integers. One walk
/// from the end.
pub fn differentiated(graph: &ModelGraph) -> Vec<bool> {
    let counts = |value: ValueId| match &graph.value(value).fact {
        Fact::Unknown => true,
        fact => fact.tensors().iter().any(|tensor| tensor.requires_grad),
    };
    let mut is_read = vec![false; graph.values.len()];
    graph.outputs.iter().for_each(|value| is_read[value.index()] = counts(*value));
    // Memory that a needed operator reads: operators that write there in place are needed, too.
    let mut looked_at: HashSet<StorageId> = HashSet::new();
    let lookup = |value: ValueId, looked_at: &mut HashSet<StorageId>| {
        looked_at.extend(graph.value(value).fact.tensors().iter().filter_map(|tensor| tensor.storage));
    };
    graph.outputs.iter().filter(|value| counts(**value)).for_each(|value| lookup(*value, &mut looked_at));
    let mut needed = vec![false; graph.operators.len()];
    for operator in graph.operators.iter().rev() {
        let is_needed = operator.outputs.iter().any(|value| is_read[value.index()])
            || written(graph, operator).is_some_and(|storage| looked_at.contains(&storage));
        if is_needed {
            needed[operator.id.index()] = true;
            for value in operator.inputs.iter().filter(|value| counts(**value)) {
                is_read[value.index()] = true;
                lookup(*value, &mut looked_at);
            }
        }
    }
    needed
}

/// Returns the operators at which a backward pass fails, in order: a gradient reaches them, and torch has no derivative
/// of them.
pub fn without_derivative(graph: &ModelGraph) -> Vec<OperatorId> {
    let needed = differentiated(graph);
    let takes_gradient = |operator: &Operator| {
        let mut values = operator.inputs.iter().flat_map(|value| graph.value(*value).fact.tensors());
        let mut stored = operator.tensors.iter().map(|id| &graph.tensors[id.index()]);
        values.any(|tensor| tensor.requires_grad) || stored.any(|tensor| tensor.requires_grad)
    };
    let is_reached = |operator: &&Operator| {
        let name = operator.name.rsplit("::").next().unwrap_or_default();
        has(plain(name).0, Mark::NoDerivative) && needed[operator.id.index()] && takes_gradient(operator)
    };
    graph.operators.iter().filter(is_reached).map(|operator| operator.id).collect()
}
