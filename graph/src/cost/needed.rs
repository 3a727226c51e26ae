//! Which operators receive a gradient.

use std::collections::HashSet;

use tracer::ValueId;

use crate::{
    fact::{Fact, StorageId},
    flow::written,
    model::ModelGraph,
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
