//! The least latency of one sample: against every placement of small graphs, and the workloads of dnn-partitioning.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;

use peers::latency_plan;
use schema::DnnWorkload;

/// Makes random small graphs, the same for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, count: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % count
    }
}

fn random(seed: u64) -> DnnWorkload {
    let mut dice = Dice(seed);
    let n_nodes = 3 + dice.below(4);
    let nodes: Vec<String> = (0..n_nodes)
        .map(|id| {
            let (time, cpu) = (dice.below(6), dice.below(12));
            let class = if dice.below(4) == 0 { dice.below(2) } else { 10 + id };
            let supported = u64::from(dice.below(8) > 0);
            format!(
                r#"{{"id": {id}, "supportedOnFpga": {supported}, "cpuLatency": {cpu}, "fpgaLatency": {time}, "isBackwardNode": 0,
                "colorClass": {class}, "size": {}}}"#,
                dice.below(4)
            )
        })
        .collect();
    let mut edges = Vec::new();
    for from in 0..n_nodes {
        let cost = dice.below(5);
        for to in from + 1..n_nodes {
            if dice.below(3) == 0 {
                edges.push(format!(r#"{{"sourceId": {from}, "destId": {to}, "cost": {cost}}}"#));
            }
        }
    }
    let text = format!(
        r#"{{"maxSizePerFPGA": {}, "maxFPGAs": {}, "maxCPUs": 1, "nodes": [{}], "edges": [{}]}}"#,
        4 + dice.below(4),
        1 + dice.below(3),
        nodes.join(", "),
        edges.join(", ")
    );
    DnnWorkload::from_text(&text).unwrap()
}

/// The latency of a placement, by the authors' integer program; none where it is against their rules. Place 0 is the CPUs.
fn latency(workload: &DnnWorkload, place: &[usize]) -> Option<f64> {
    let n_nodes = workload.nodes.len();
    let edges: Vec<(usize, usize, f64)> =
        workload.edges.iter().map(|edge| (edge.source as usize, edge.target as usize, edge.cost)).collect();
    let mut class_of: HashMap<i64, usize> = HashMap::new();
    for (node, data) in workload.nodes.iter().enumerate() {
        if place[node] > 0 && !data.runs_on_accelerator {
            return None;
        }
        if let Some(class) = data.class
            && *class_of.entry(class).or_insert(place[node]) != place[node]
        {
            return None;
        }
    }
    let n_places = 1 + workload.n_accelerators as usize;
    let mut load = vec![0.0; n_places];
    for (at, load) in load.iter_mut().enumerate().skip(1) {
        let size: f64 =
            (0..n_nodes).filter(|&node| place[node] == at).map(|node| workload.nodes[node].size).sum();
        if size > workload.accelerator_memory {
            return None;
        }
        // Contiguous: no way leads out and in again.
        let mut is_after = vec![false; n_nodes];
        for node in 0..n_nodes {
            for &(from, to, _) in edges.iter().filter(|edge| edge.1 == node) {
                is_after[to] |= is_after[from] || place[from] == at;
            }
            let leaves_and_returns = edges
                .iter()
                .any(|&(from, to, _)| to == node && place[node] == at && place[from] != at && is_after[from]);
            if leaves_and_returns {
                return None;
            }
        }
        for node in 0..n_nodes {
            let outside = |inside: bool| {
                edges.iter().find(|&&(from, to, _)| {
                    from == node && (place[from] == at) == inside && (place[to] == at) != inside
                })
            };
            let moved = if place[node] == at { outside(true) } else { outside(false) };
            *load += moved.map_or(0.0, |edge| edge.2);
            if place[node] == at {
                *load += workload.nodes[node].accelerator;
            }
        }
    }
    // Times rise from nothing until they stay; those of placements that wait for themselves never do.
    let (mut ready, mut finish) = (vec![0.0_f64; n_nodes], load.clone());
    for _ in 0..3 * (n_nodes + n_places) {
        let before = (ready.clone(), finish.clone());
        for at in 1..n_places {
            let taken = edges.iter().filter(|&&(from, to, _)| place[to] == at && place[from] != at);
            finish[at] = taken.map(|edge| ready[edge.0]).fold(0.0, f64::max) + load[at];
        }
        for node in 0..n_nodes {
            ready[node] = match place[node] {
                0 => {
                    let taken = edges.iter().filter(|edge| edge.1 == node).map(|edge| ready[edge.0]);
                    taken.fold(0.0, f64::max) + workload.nodes[node].cpu
                }
                at => finish[at],
            };
        }
        if before == (ready.clone(), finish.clone()) {
            return Some(ready.into_iter().fold(0.0, f64::max));
        }
    }
    None
}

#[test]
fn small_graphs_get_the_best_of_all_placements() {
    let mut n_proven = 0;
    for seed in 0..300 {
        let workload = random(seed);
        let n_places = 1 + workload.n_accelerators as usize;
        let n_nodes = workload.nodes.len();
        let all = (0..n_places.pow(n_nodes as u32)).filter_map(|number| {
            let place: Vec<usize> =
                (0..n_nodes).map(|node| number / n_places.pow(node as u32) % n_places).collect();
            latency(&workload, &place)
        });
        let best = all.fold(f64::INFINITY, f64::min);
        let plan = latency_plan(&workload).unwrap();
        assert!(plan.lower_bound <= best + 1e-9, "{seed}: bound {} of {best}", plan.lower_bound);
        assert!(plan.latency >= best - 1e-9, "{seed}: {} is less than {best}", plan.latency);
        if plan.lower_bound == plan.latency {
            n_proven += 1;
        }
        // What is said of each accelerator adds up to a placement by the authors' rules.
        let mut place = vec![0; n_nodes];
        for (at, device) in plan.devices.iter().filter(|device| device.is_accelerator).enumerate() {
            device.nodes.iter().for_each(|&node| place[node] = at + 1);
        }
        let placed = latency(&workload, &place).unwrap();
        assert!(placed <= plan.latency + 1e-9, "{seed}: {placed} is not {}", plan.latency);
    }
    assert!(n_proven >= 270, "{n_proven} of 300");
}

#[path = "../../tests/needs/mod.rs"]
mod needs;

#[test]
fn an_outside_workload_is_proven() {
    let path = "partitioners/dnn-partitioning/latency-inputs/LayerGraphs/bert24_inference.json";
    let text = std::fs::read_to_string(needs::outside(path).expect("the sample has it")).unwrap();
    let plan = latency_plan(&DnnWorkload::from_text(&text).unwrap()).unwrap();
    assert!((plan.latency - 100.2185).abs() < 1e-4, "{}", plan.latency);
    assert_eq!(plan.latency, plan.lower_bound);
}
