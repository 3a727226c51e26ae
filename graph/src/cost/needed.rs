//! Which operators the loss depends on: no gradient flows into the others.

use std::collections::HashSet;

use crate::{fact::StorageId, flow::written, model::ModelGraph};

/// Tells for every operator whether something that the model returns depends on it. One walk from the end.
pub(super) fn needed(graph: &ModelGraph) -> Vec<bool> {
    let mut is_read = vec![false; graph.values.len()];
    graph.outputs.iter().for_each(|value| is_read[value.index()] = true);
    // Memory that a needed operator looks at: who writes there in place is needed too.
    let mut looked_at: HashSet<StorageId> = HashSet::new();
    let look = |value: tracer::ValueId, looked_at: &mut HashSet<StorageId>| {
        looked_at.extend(graph.value(value).fact.tensors().iter().filter_map(|tensor| tensor.storage));
    };
    graph.outputs.iter().for_each(|value| look(*value, &mut looked_at));
    let mut needed = vec![false; graph.operators.len()];
    for operator in graph.operators.iter().rev() {
        let is_needed = operator.outputs.iter().any(|value| is_read[value.index()])
            || written(graph, operator).is_some_and(|storage| looked_at.contains(&storage));
        if is_needed {
            needed[operator.id.index()] = true;
            for value in &operator.inputs {
                is_read[value.index()] = true;
                look(*value, &mut looked_at);
            }
        }
    }
    needed
}
