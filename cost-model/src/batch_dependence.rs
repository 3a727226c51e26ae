//! Which values depend on the batch: only these are scaled in a prediction for another batch.

use graph::{Constant, ModelGraph};
use operators::ShapeRule;

/// Tells for each value whether it depends on the batch: if it is computed from the model's inputs, of whose sizes only the first
/// counts. A table of positions, as long as a sentence, is the same for any batch.
pub(crate) fn depends_on_batch(graph: &ModelGraph) -> Vec<bool> {
    let mut depends = vec![false; graph.values.len()];
    for input in &graph.inputs {
        depends[input.index()] = true;
    }
    for operator in &graph.operators {
        let is_other_size = operator.shape_rule() == ShapeRule::Size
            && !matches!(operator.constant("dim"), None | Some(Constant::Int(0)));
        let is_made = !is_other_size && operator.inputs.iter().any(|value| depends[value.index()]);
        for output in operator.outputs.iter().filter(|_| is_made) {
            depends[output.index()] = true;
        }
    }
    depends
}

#[cfg(test)]
mod tests {
    use graph::OperatorClass;

    use super::*;

    /// Both tables of GPT-2 are read at places that are made of the input: at words, and at as many positions as a sentence has.
    #[test]
    fn positions_do_not_follow_the_batch() {
        let trace = std::fs::read("../fixtures/traces/gpt2_tiny.pt").expect("a trace");
        let program = tracer::read_archive(&trace).expect("a program");
        let graph = graph::build(&program, &graph::BuildOptions::default()).expect("a graph");
        let depends = depends_on_batch(&graph);
        let read = graph.operators.iter().filter(|operator| operator.class == OperatorClass::Embedding);
        let read: Vec<bool> = read.map(|operator| depends[operator.outputs[0].index()]).collect();
        assert_eq!(read, [true, false]);
        assert!(depends[graph.outputs[0].index()]);
    }
}
