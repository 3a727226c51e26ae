//! The number of operations of a model, for rates: TFLOPS, and the share of a device's peak.

use graph::{ModelGraph, OperatorCosts};

/// Counts a model's operations in both passes; also returns the data type of most of them.
pub fn operations(graph: &ModelGraph, costs: &OperatorCosts) -> Option<(f64, String)> {
    let total = costs.total();
    let sum =
        total.forward_flops as f64 + total.backward_flops_input as f64 + total.backward_flops_weight as f64;
    let most = graph.operators.iter().max_by_key(|operator| costs.operator(operator.id).forward_flops)?;
    let made = graph.values[most.outputs.first()?.index()].fact.tensors().first()?.dtype?;
    (total.uncounted == 0 && sum > 0.0).then(|| (sum, graph::dtype_name(made).to_string()))
}
