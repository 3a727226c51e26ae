//! Operators whose code others drove from the caches take longer; those that run right after their like do not.

use std::collections::HashSet;

use cost_model::{CostModel, Costs, PredictOptions, predict};
use graph::{BuildOptions, ModelGraph, OperatorClass};
use schema::{Bytes, CostModelFile, FlushedFile, catalogue};

/// What finding the code again takes in these tests.
const COLD: f64 = 1e-5;

fn model(name: &str) -> ModelGraph {
    let trace = std::fs::read(format!("../fixtures/traces/{name}.pt")).expect("a trace");
    graph::build(&tracer::read_archive(&trace).expect("a program"), &BuildOptions::default())
        .expect("a graph")
}

/// Predicts with a shipped model whose header and curves tell other figures of what is cold.
fn times(graph: &ModelGraph, cold: f64, flushed: Option<FlushedFile>, batch_scale: f64) -> Costs {
    times_of(graph, cold, flushed, batch_scale, |_| {})
}

/// The same on a processor that differs further.
fn times_of(
    graph: &ModelGraph,
    cold: f64,
    flushed: Option<FlushedFile>,
    batch_scale: f64,
    change: impl Fn(&mut CostModelFile),
) -> Costs {
    let device = "CPU-EPYC-ZEN4-1T";
    let mut file = CostModel::shipped(&catalogue()[device]).expect("a shipped model").to_file();
    file.overhead.as_mut().expect("an overhead").cold = cold;
    for curve in &mut file.curves {
        curve.flushed = flushed;
    }
    change(&mut file);
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
    forward_passes(graph, &times(graph, 0.0, Some(FlushedFile { call, byte: 0.0 }), batch_scale))
}

fn forward_passes(graph: &ModelGraph, costs: &Costs) -> Vec<f64> {
    graph.operators.iter().map(|operator| costs.operator(operator.id).forward.seconds).collect()
}

/// Works, and no views: those have hardly any code.
fn works(class: OperatorClass) -> bool {
    !matches!(class, OperatorClass::Plumbing | OperatorClass::View)
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
        let pays = works(operator.class);
        assert!((large - f64::from(u8::from(pays))).abs() < 1e-6, "{}: {large}", operator.name);
        assert!((-1e-6..0.5).contains(small), "{}: {small}", operator.name);
    }
}

#[test]
fn a_forward_pass_is_given_the_memory_that_it_freed_last() {
    // Of 512 times the batch the largest operator moves more than the cache holds, those deep inside little of it.
    let graph = model("unet_small");
    let passes = |byte: f64| times(&graph, 0.0, Some(FlushedFile { call: 0.0, byte }), 512.0);
    let (with, without) = (passes(1e-9), passes(0.0));
    let added = |id: graph::OperatorId| {
        let (with, without) = (with.operator(id), without.operator(id));
        let more = |with: cost_model::Estimate, without: cost_model::Estimate| with.seconds - without.seconds;
        [more(with.forward, without.forward), more(with.weight_gradient, without.weight_gradient)]
    };
    let convolutions = graph.operators.iter().filter(|operator| operator.class == OperatorClass::Convolution);
    // How much of its memory a forward pass finds cold, beside a step that keeps all activations.
    let shares: Vec<f64> = convolutions
        .map(|operator| added(operator.id))
        .map(|[forward, step]| forward / step)
        .filter(|share| share.is_finite())
        .collect();
    let (least, most) = shares
        .iter()
        .fold((f64::INFINITY, 0.0_f64), |(least, most), &share| (least.min(share), most.max(share)));
    assert!(shares.len() > 8 && least < 0.3 * most && most > 0.5, "{shares:?}");
}

#[test]
fn code_that_the_last_cache_lost_is_not_found_again_in_it() {
    // As long either way: each call pays once, wherever its code is.
    let graph = model("unet_small");
    for batch_scale in [1.0, 64.0, 1e4] {
        let flushed = Some(FlushedFile { call: COLD, byte: 0.0 });
        let both = forward_passes(&graph, &times(&graph, COLD, flushed, batch_scale));
        let none = Some(FlushedFile { call: 0.0, byte: 0.0 });
        let neither = forward_passes(&graph, &times(&graph, 0.0, none, batch_scale));
        for ((operator, both), neither) in graph.operators.iter().zip(&both).zip(&neither) {
            let more = (both - neither) / COLD;
            // Shares are told in sixteenths.
            assert!((-1e-6..1.0 + 1.0 / 32.0).contains(&more), "{}: {more}", operator.name);
            let pays = works(operator.class) && batch_scale > 1e3;
            assert!(!pays || more > 1.0 - 1e-6, "{}: {more}", operator.name);
        }
    }
}

#[test]
fn a_large_last_cache_behind_a_small_one_keeps_what_that_lost() {
    // A pass of 64 times the batch moves some 30 MB: much for a core's own cache, little for the whole socket's.
    let graph = model("unet_small");
    let flushed = Some(FlushedFile { call: COLD, byte: 0.0 });
    let passes = |last: Option<u64>| {
        let costs = times_of(&graph, 0.0, flushed, 64.0, |file| {
            file.figures.l2 = Some(Bytes(2 << 20));
            file.figures.last_cache = last.map(Bytes);
        });
        forward_passes(&graph, &costs).iter().sum::<f64>()
    };
    let nothing = forward_passes(
        &graph,
        &times_of(&graph, 0.0, Some(FlushedFile { call: 0.0, byte: 0.0 }), 64.0, |file| {
            file.figures.l2 = Some(Bytes(2 << 20));
        }),
    );
    let nothing: f64 = nothing.iter().sum();
    let (small, large) = (passes(None) - nothing, passes(Some(480 << 20)) - nothing);
    assert!(small > 10.0 * COLD && large < 0.5 * small, "{small} {large}");
    // What was read a moment ago lies in it, too.
    let read = |far: f64| {
        let costs = times_of(&graph, 0.0, None, 64.0, |file| {
            (file.figures.l2, file.figures.last_cache) = (Some(Bytes(2 << 20)), Some(Bytes(480 << 20)));
            file.curves.iter_mut().for_each(|curve| (curve.warm, curve.warm_far) = (far, far));
        });
        forward_passes(&graph, &costs).iter().sum::<f64>()
    };
    assert!(read(1e-11) < 0.99 * read(0.0), "{} {}", read(1e-11), read(0.0));
}

#[test]
fn a_small_model_stays_in_the_cache() {
    let graph = model("cnn_basic");
    let sum = |batch: f64| added(&graph, batch).iter().flatten().sum::<f64>();
    let (small, large) = (sum(1e-3), sum(1e3));
    assert!(small < 0.5 * large, "{small} {large}");
}
