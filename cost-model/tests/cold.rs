//! Operators whose code others drove from the cache take longer; those that run right after their like do not.

use std::collections::HashSet;

use cost_model::{CostModel, Costs, PredictOptions, predict};
use graph::{BuildOptions, ModelGraph, OperatorClass};
use schema::{FlushedFile, catalogue};

/// What finding the code again takes in these tests.
const COLD: f64 = 1e-5;

fn model(name: &str) -> ModelGraph {
    let trace = std::fs::read(format!("../fixtures/traces/{name}.pt")).expect("a trace");
    graph::build(&tracer::read_archive(&trace).expect("a program"), &BuildOptions::default())
        .expect("a graph")
}

/// Predicts with a shipped model whose header and curves tell other figures of what is cold.
fn times(graph: &ModelGraph, cold: f64, flushed: Option<FlushedFile>, batch_scale: f64) -> Costs {
    let device = "CPU-EPYC-ZEN4-1T";
    let mut file = CostModel::shipped(device, &catalogue()[device]).expect("a shipped model").to_file();
    file.overhead.as_mut().expect("an overhead").cold = cold;
    for curve in &mut file.curves {
        curve.flushed = flushed;
    }
    let model = CostModel::from_file(&file).expect("a model");
    predict(graph, &graph::costs(graph), &model, &PredictOptions { batch_scale, ..PredictOptions::default() })
}

/// What is added to the passes of each operator, in units of [`COLD`].
fn added(graph: &ModelGraph, batch_scale: f64) -> Vec<[f64; 3]> {
    let (with, without) = (times(graph, COLD, None, batch_scale), times(graph, 0.0, None, batch_scale));
    let passes = |costs: &Costs, id| {
        let one = costs.operator(id);
        [one.forward, one.input_gradient, one.weight_gradient].map(|pass| pass.seconds)
    };
    let more = graph.operators.iter().map(|operator| {
        let (with, without) = (passes(&with, operator.id), passes(&without, operator.id));
        let more = |pass: usize| (with[pass] - without[pass]) / COLD;
        assert!((0..3).all(|pass| without[pass] > 0.0 || with[pass] == 0.0), "{operator:?}");
        [more(0), more(1), more(2)]
    });
    more.collect()
}

#[test]
fn each_pass_pays_at_most_once_and_the_first_of_a_kind_in_full() {
    let graph = model("unet_small");
    let added = added(&graph, 64.0);
    assert!(added.iter().flatten().all(|more| (-1e-6..1.0 + 1e-6).contains(more)), "{added:?}");
    let mut seen = HashSet::new();
    for (operator, [forward, ..]) in graph.operators.iter().zip(&added) {
        if operator.class == OperatorClass::Plumbing {
            assert_eq!(*forward, 0.0);
        } else if operator.class != OperatorClass::View && seen.insert(operator.name.trim_end_matches('_')) {
            assert!((forward - 1.0).abs() < 1e-6, "{}: {forward}", operator.name);
        }
    }
}

/// The forward passes of a model's operators where each call with empty caches takes so much longer.
fn forward(graph: &ModelGraph, call: f64, batch_scale: f64) -> Vec<f64> {
    let costs = times(graph, COLD, Some(FlushedFile { call, byte: 0.0 }), batch_scale);
    graph.operators.iter().map(|operator| costs.operator(operator.id).forward.seconds).collect()
}

#[test]
fn what_empty_caches_cost_is_paid_by_how_much_runs_in_between() {
    let graph = model("unet_small");
    let added = |batch_scale: f64| {
        let (with, without) = (forward(&graph, COLD, batch_scale), forward(&graph, 0.0, batch_scale));
        with.iter().zip(&without).map(|(with, without)| (with - without) / COLD).collect::<Vec<_>>()
    };
    let (large, small) = (added(1e4), added(1e-3));
    for ((operator, large), small) in graph.operators.iter().zip(&large).zip(&small) {
        let pays = !matches!(operator.class, OperatorClass::Plumbing | OperatorClass::View);
        assert!((large - f64::from(u8::from(pays))).abs() < 1e-6, "{}: {large}", operator.name);
        assert!((-1e-6..0.5).contains(small), "{}: {small}", operator.name);
    }
    // Where a curve says it, the header's way back to the code is not added once more.
    let (whole, plain) = (forward(&graph, 0.0, 64.0), times(&graph, 0.0, None, 64.0));
    for (operator, whole) in graph.operators.iter().zip(&whole) {
        let plain = plain.operator(operator.id).forward.seconds;
        let is_view = operator.class == OperatorClass::View;
        assert!(is_view || (whole - plain).abs() < 1e-9, "{}: {whole} {plain}", operator.name);
    }
}

#[test]
fn a_small_model_stays_in_the_cache() {
    let graph = model("cnn_basic");
    let sum = |batch: f64| added(&graph, batch).iter().flatten().sum::<f64>();
    let (small, large) = (sum(1e-3), sum(1e3));
    assert!(small < 0.5 * large, "{small} {large}");
}
