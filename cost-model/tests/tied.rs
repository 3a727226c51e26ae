//! A weight that two operators read has two gradients, which a training step adds up.

use cost_model::{CostModel, Costs, PredictOptions, predict};
use graph::{BuildOptions, ModelGraph, Operator};
use schema::catalogue;

/// Predicts by a profile that was measured in fresh memory: later ones keep it, and clear nothing.
fn gradients(graph: &ModelGraph) -> Costs {
    let device = "CPU-EPYC-ZEN3-1T";
    let model = CostModel::shipped(&catalogue()[device]).expect("a shipped model");
    predict(graph, &graph::costs(graph), &model, &PredictOptions::default())
}

fn gpt2() -> ModelGraph {
    let trace = std::fs::read("../fixtures/traces/gpt2_tiny.pt").expect("a trace");
    let program = tracer::read_archive(&trace).expect("a program");
    graph::build(&program, &BuildOptions::default()).expect("a graph")
}

fn untied(tied: &ModelGraph) -> ModelGraph {
    let mut untied = tied.clone();
    for tensor in &mut untied.tensors {
        tensor.first = tensor.id;
        tensor.consumers.truncate(1);
    }
    untied
}

#[test]
fn the_first_reader_of_a_tied_weight_adds_its_gradients_up() {
    let tied = gpt2();
    let untied = untied(&tied);
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

/// What the sum of two gradients of so many bytes costs.
fn sum(bytes: u64) -> f64 {
    let mut tied = gpt2();
    let reader = tied.operators.iter().find(|operator| operator.name == "aten::embedding");
    let reader = reader.expect("an embedding");
    let (reader, first) = (reader.id, tied.tensor(reader.tensors[0]).first);
    for tensor in tied.tensors.iter_mut().filter(|tensor| tensor.first == first) {
        (tensor.shape, tensor.bytes) = (vec![bytes / 256, 64], bytes);
    }
    let gradient = |graph: &ModelGraph| gradients(graph).operator(reader).input_gradient.seconds;
    gradient(&tied) - gradient(&untied(&tied))
}

#[test]
fn a_large_sum_is_fresh_memory() {
    // glibc maps what is larger than 32 MiB: its pages are cleared each time.
    let (below, above) = (sum(32 << 20), sum((32 << 20) + 4096));
    assert!(below > 0.0 && above > 2.0 * below, "{below} {above}");
}
