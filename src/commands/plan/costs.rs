//! Seconds of operators on a device: the cost model's predictions, as numbers for the planner.

use cost_model::{CostModel, PredictOptions, predict};
use graph::{ModelGraph, OperatorCosts, OperatorId};
use partitioner::OperatorSeconds;
use schema::DeviceType;

/// Predicts seconds by operator.
pub fn seconds(
    graph: &ModelGraph,
    costs: &OperatorCosts,
    name: &str,
    device: &DeviceType,
) -> Vec<OperatorSeconds> {
    let model = CostModel::of_data_sheet(name, device);
    let predicted = predict(graph, costs, &model, &PredictOptions::default());
    (0..graph.operators.len() as u32)
        .map(|index| {
            let one = predicted.operator(OperatorId(index));
            OperatorSeconds {
                forward: one.forward.seconds,
                input_gradient: one.input_gradient.seconds,
                weight_gradient: one.weight_gradient.seconds,
            }
        })
        .collect()
}
