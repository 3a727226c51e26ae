//! A recurrent layer as the products that it is made of.
//!
//! No profile measures such layers: their times are those of products. What comes in is multiplied for all steps at once, the
//! state step by step, in each layer and direction. The way back does the same in reverse, and sums the weights' gradients
//! over all steps at once; it goes through all states also where nothing asks for the input's gradient. What the gates
//! do to each element is small beside that.

use graph::{ModelGraph, Operator};
use schema::{Phase, WorkSize};

use crate::shape::recurrent_input;

/// Products of a layer that are alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Products {
    pub size: WorkSize,
    pub phase: Phase,
    /// The number of products, one after the other.
    pub number: f64,
}

/// Returns the products of a phase; nothing where sizes are not known, or the state is projected.
pub(crate) fn products(
    graph: &ModelGraph,
    operator: &Operator,
    phase: Phase,
    batch_scale: f64,
) -> Option<Vec<Products>> {
    let (steps, batch) = recurrent_input(graph, operator)?;
    let batch = batch * batch_scale;
    let weights: Vec<&[u64]> = operator
        .tensors
        .iter()
        .map(|tensor| graph.tensor(*tensor).shape.as_slice())
        .filter(|shape| shape.len() == 2)
        .collect();
    let (pairs, rest) = weights.as_chunks::<2>();
    let mut products = Vec::new();
    for [of_input, of_state] in pairs {
        let ([gates, width], [same, state]) = (of_input, of_state) else { return None };
        if gates != same || gates % state != 0 {
            return None;
        }
        let products_of = |rows: f64, width: u64, phase: Phase, number: f64| {
            let size = WorkSize::Product { batch: 1.0, m: rows, n: *gates as f64, k: width as f64 };
            Products { size, phase, number }
        };
        products.push(products_of(steps * batch, *width, phase, 1.0));
        match phase {
            Phase::Forward => products.push(products_of(batch, *state, phase, steps)),
            Phase::WeightGradient => {
                products.push(products_of(steps * batch, *state, phase, 1.0));
                products.push(products_of(batch, *state, Phase::InputGradient, steps));
            }
            _ => {}
        }
    }
    (rest.is_empty() && !products.is_empty()).then_some(products)
}

#[cfg(test)]
mod tests {
    use graph::{BuildOptions, OperatorClass};

    use super::*;

    #[test]
    fn products_are_the_operations_of_the_layer() {
        let trace = std::fs::read("../fixtures/traces/lstm_seq2seq_small.pt").expect("a trace");
        let program = tracer::read_archive(&trace).expect("a program");
        let graph = graph::build(&program, &BuildOptions::default()).expect("a graph");
        let costs = graph::costs(&graph);
        let layers = graph.operators.iter().filter(|one| one.class == OperatorClass::Recurrent);
        let mut n_layers = 0;
        for layer in layers {
            n_layers += 1;
            let flops = |phase: Phase, scale: f64| -> f64 {
                let all = products(&graph, layer, phase, scale).expect("known sizes");
                all.iter()
                    .map(|one| match one.size {
                        WorkSize::Product { m, n, k, .. } => 2.0 * m * n * k * one.number,
                        _ => 0.0,
                    })
                    .sum()
            };
            let counted = costs.operator(layer.id).forward_flops as f64;
            assert_eq!(flops(Phase::Forward, 1.0), counted);
            assert_eq!(flops(Phase::Forward, 3.0), 3.0 * counted);
            // All of it twice on the way back, of the input's gradient and the weights'.
            let back = flops(Phase::InputGradient, 1.0) + flops(Phase::WeightGradient, 1.0);
            assert_eq!(back, 2.0 * counted);
        }
        assert_eq!(n_layers, 2);
    }
}
