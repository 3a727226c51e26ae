//! Piper's own results on its BERT-32 workload: ours must be as good or better.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use peers::{PiperOptions, piper_plan};
use schema::{DnnWorkload, PiperEdge, PiperImplementation, PiperNode, PiperWorkload};

#[path = "../../tests/needs/mod.rs"]
mod needs;

#[test]
fn bert_is_at_least_as_good_as_the_greedy_choice() {
    let path = needs::outside("partitioners/piper/bert32a100.json").expect("the sample has it");
    let workload = PiperWorkload::from_text(&std::fs::read_to_string(path).unwrap()).unwrap();
    let rows = [
        (256, [true, true, true], 0.00508104534),
        (2048, [true, true, true], 0.000703591184),
        (512, [false, true, true], 0.07390625),
        (512, [true, false, true], 0.00256112785),
        (512, [true, true, false], 0.00341807489),
    ];
    for (n_devices, [data_parallel, tensor_parallel, recompute], theirs) in rows {
        let memory = 8.0 * 1024.0_f64.powi(3);
        let bandwidth = 25.0 * 1024.0_f64.powi(3);
        let workload =
            PiperWorkload { n_devices, memory, bandwidth, micro_batches: 1920, ..workload.clone() };
        let plan = piper_plan(&workload, PiperOptions { data_parallel, tensor_parallel, recompute }).unwrap();
        assert!(plan.period <= theirs * (1.0 + 1e-8), "{n_devices}: {} is worse than {theirs}", plan.period);
        assert!(plan.period - plan.lower_bound <= 1e-9 * plan.period);
        for stage in &plan.stages {
            assert!(stage.memory <= memory);
        }
        let devices: u32 = plan.stages.iter().map(|stage| stage.data_parallel * stage.tensor_parallel).sum();
        assert!(devices <= n_devices);
    }
}

/// A layer graph of dnn-partitioning as a workload of Piper: each layer may be recomputed, for a third more time and an eighth of
/// the memory. States that nobody takes are left out.
fn from_layers(path: &str) -> Option<PiperWorkload> {
    let text = std::fs::read_to_string(needs::outside(path)?).unwrap();
    let layers = DnnWorkload::from_text(&text).unwrap();
    let is_used = |id: i64| layers.edges.iter().any(|edge| edge.source == id);
    let is_kept = |id: i64| {
        let layer = layers.nodes.iter().find(|layer| layer.id == id).unwrap();
        layer.accelerator > 0.0 || is_used(id)
    };
    let nodes = layers.nodes.iter().filter(|layer| is_kept(layer.id)).map(|layer| {
        let way = |id: &str, time: f64, memory_in_flight: f64| PiperImplementation {
            id: id.to_string(),
            time,
            parameters: layer.size / 2.0,
            memory_in_flight,
            memory_fixed: layer.size,
            sync_forward: BTreeMap::new(),
            sync_backward: BTreeMap::new(),
        };
        let (time, size) = (layer.accelerator, layer.size);
        let ways = vec![way("vanilla", time, size), way("activation recomp", time * 4.0 / 3.0, size / 8.0)];
        PiperNode { id: layer.id, name: layer.name.clone(), implementations: [(1, ways)].into() }
    });
    let edges = layers.edges.iter().filter(|edge| is_kept(edge.target));
    let edges =
        edges.map(|edge| PiperEdge { source: edge.source, target: edge.target, bytes: edge.cost * 1e6 });
    Some(PiperWorkload {
        n_devices: 3,
        memory: 4.0 * 1024.0_f64.powi(3),
        bandwidth: 25e9,
        micro_batches: 256,
        nodes: nodes.collect(),
        edges: edges.collect(),
    })
}

/// Translation models branch: more than ten million pairs of ideals, which do not fit into memory together.
#[test]
fn a_wide_graph_takes_little_memory() {
    let path = "partitioners/dnn-partitioning/LayerGraphs/gnmt_inference.json";
    let Some(workload) = from_layers(path) else { return };
    let plan = piper_plan(&workload, PiperOptions::default()).unwrap();
    assert!(plan.n_ideals > 15_000, "{}", plan.n_ideals);
    assert!(plan.period - plan.lower_bound <= 1e-9 * plan.period);
    let work: f64 = workload.nodes.iter().map(|node| node.implementations[&1][0].time).sum();
    assert!(plan.period >= work / 3.0 && plan.period < work / 2.0, "{} of {work}", plan.period);
    if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let kilobytes: u64 = peak.split_whitespace().next().unwrap().parse().unwrap();
        assert!(kilobytes < 200_000, "{kilobytes} kB");
    }
}
