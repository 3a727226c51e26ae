//! A weight that two operators read has two gradients, which a training step adds up.

use cost_model::{CostModel, Costs, PredictOptions, predict};
use graph::{BuildOptions, ModelGraph, Operator};
use schema::catalogue;

fn gradients(graph: &ModelGraph) -> Costs {
    let device = "CPU-EPYC-ZEN4-1T";
    let model = CostModel::shipped(device, &catalogue()[device]).expect("a shipped model");
    predict(graph, &graph::costs(graph), &model, &PredictOptions::default())
}

#[test]
fn the_first_reader_of_a_tied_weight_adds_its_gradients_up() {
    let trace = std::fs::read("../fixtures/traces/gpt2_tiny.pt").expect("a trace");
    let program = tracer::read_archive(&trace).expect("a program");
    let tied = graph::build(&program, &BuildOptions::default()).expect("a graph");
    let mut untied = tied.clone();
    for tensor in &mut untied.tensors {
        tensor.first = tensor.id;
        tensor.consumers.truncate(1);
    }
    let (with, without) = (gradients(&tied), gradients(&untied));
    let more: Vec<&Operator> = tied
        .operators
        .iter()
        .filter(|operator| with.operator(operator.id) != without.operator(operator.id))
        .collect();
    let names: Vec<&str> = more.iter().map(|operator| operator.name.as_str()).collect();
    assert_eq!(names, ["aten::embedding"]);
    let gradient = |costs: &Costs| costs.operator(more[0].id).input_gradient.seconds;
    assert!(gradient(&with) > gradient(&without), "{} {}", gradient(&with), gradient(&without));
}
