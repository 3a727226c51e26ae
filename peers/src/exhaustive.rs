//! The oracle of tests: the released optimizer's loops without bounds, and every placement of a small workload.

use schema::{
    Bytes, BytesPerSecond, DnnEdge, DnnNode, DnnWorkload, PipedreamNode, PipedreamProfile, Seconds,
};

use crate::{
    CompatQuestion, compat_plan,
    dice::{Dice, cases, is_skipped},
    load_plan,
};

fn near(a: f64, b: f64) -> bool {
    a == b || (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

/// The released optimizer's loops as they stand, without bounds.
fn unbounded(question: &CompatQuestion) -> f64 {
    let states = crate::compat_states::states(question.profile, 1000).unwrap();
    let n = states.compute.len();
    let below = |a: usize, b: usize| a < b && states.ideals[a].is_subset(&states.ideals[b]);
    let sum = |of: &[f64], first: usize, last: usize| of[last] - if first == 0 { 0.0 } else { of[first - 1] };
    let mut times = vec![vec![f64::INFINITY; n]; n];
    for (first, row) in times.iter_mut().enumerate() {
        for (last, time) in row.iter_mut().enumerate().skip(first) {
            *time = sum(&states.compute, first, last);
        }
    }
    let sent = |at: usize| if at + 1 < n { states.output[at] } else { 0.0 };
    let mut machines_below = 1.0;
    for (&machines, bandwidth) in question.machines.iter().zip(question.bandwidths) {
        let machines = machines as usize;
        let b = bandwidth.0;
        let mut best = vec![vec![vec![f64::INFINITY; machines]; n]; n];
        for first in 0..n {
            for last in first..n {
                for m in 1..=if question.straight { 1 } else { machines } {
                    let mf = m as f64;
                    let sync =
                        4.0 * (mf - 1.0) * sum(&states.parameters, first, last) / (b * mf) / machines_below;
                    best[first][last][m - 1] = (times[first][last] + sync) / mf;
                }
            }
            for m in 2..=machines {
                for last in first + 1..n {
                    for k in (0..last).filter(|&k| below(k, last) && k >= first) {
                        if first > 0 && below(k, first - 1) {
                            continue;
                        }
                        for r in 1..if question.straight { 2 } else { m } {
                            let rf = r as f64;
                            let sync = 4.0 * (rf - 1.0) * sum(&states.parameters, k + 1, last) / (b * rf);
                            let mut time = ((times[k + 1][last] + sync) / rf).max(best[first][k][m - r - 1]);
                            if question.activation_transfer {
                                time = time.max(2.0 * sent(k).max(sent(last)) / (b * rf));
                            }
                            best[first][last][m - 1] = best[first][last][m - 1].min(time);
                        }
                    }
                }
            }
        }
        for (row, best) in times.iter_mut().zip(&best) {
            for (time, best) in row.iter_mut().zip(best) {
                *time = best[machines - 1];
            }
        }
        machines_below = machines as f64;
    }
    times[0][n - 1]
}

#[test]
fn bounds_do_not_change_the_released_objective() {
    let mut dice = Dice(5);
    for case in 0..cases(600) {
        let n_nodes = 2 + dice.below(9) as usize;
        let mut nodes: Vec<PipedreamNode> = (0..n_nodes)
            .map(|index| PipedreamNode {
                id: format!("n{index}"),
                description: if dice.below(8) == 0 { "__getitem__(0)" } else { "Layer" }.to_string(),
                forward: Seconds(dice.below(10) as f64),
                backward: Seconds(dice.below(10) as f64),
                activations: Bytes(dice.below(20)),
                parameters: Bytes(dice.below(30)),
                stage: None,
            })
            .collect();
        nodes[0].description = "Input0".to_string();
        let mut edges = Vec::new();
        for to in 1..n_nodes {
            edges.push((dice.below(to as u64) as usize, to));
            if dice.flip() {
                edges.push((dice.below(to as u64) as usize, to));
            }
        }
        edges.sort_unstable();
        edges.dedup();
        let profile = PipedreamProfile { nodes, edges };
        let machines: Vec<u32> = (0..1 + dice.below(3)).map(|_| 1 + dice.below(4) as u32).collect();
        let bandwidths: Vec<_> =
            machines.iter().map(|_| BytesPerSecond(1.0 + dice.below(20) as f64)).collect();
        let question = CompatQuestion {
            profile: &profile,
            machines: &machines,
            bandwidths: &bandwidths,
            activation_transfer: dice.flip(),
            straight: dice.below(4) == 0,
        };
        if is_skipped(case) {
            continue;
        }
        let brute = unbounded(&question);
        let ours = compat_plan(&question).map_or(f64::INFINITY, |plan| plan.period);
        assert!(near(ours, brute), "case {case}: {ours} is not {brute}");
    }
}

/// The largest load by its definition, over every way to give groups to devices that keeps pieces contiguous.
fn loads_by_hand(workload: &DnnWorkload) -> f64 {
    let n = workload.nodes.len();
    let n_devices = (workload.n_accelerators + workload.n_cpus) as usize;
    let mut best = f64::INFINITY;
    for code in 0..n_devices.pow(n as u32) {
        let device: Vec<usize> = (0..n).map(|node| code / n_devices.pow(node as u32) % n_devices).collect();
        // The quotient graph of the devices must have no cycle: they can be ordered so that no edge goes back.
        let mut order: Vec<usize> = (0..n_devices).collect();
        let mut is_contiguous = false;
        permute(&mut order, 0, &mut |order| {
            let rank = |device: usize| order.iter().position(|&other| other == device);
            is_contiguous |= workload
                .edges
                .iter()
                .all(|edge| rank(device[edge.source as usize]) <= rank(device[edge.target as usize]));
        });
        if !is_contiguous {
            continue;
        }
        let load = |one: usize| {
            let nodes = (0..n).filter(|&node| device[node] == one);
            if one >= workload.n_accelerators as usize {
                return nodes.map(|node| workload.nodes[node].cpu).sum::<f64>();
            }
            let nodes: Vec<usize> = nodes.collect();
            let size: f64 = nodes.iter().map(|&node| workload.nodes[node].size).sum();
            if size > workload.accelerator_memory
                || nodes.iter().any(|&node| !workload.nodes[node].runs_on_accelerator)
            {
                return f64::INFINITY;
            }
            let paid = (0..n).filter_map(|node| {
                let mut out = workload.edges.iter().filter(|edge| edge.source as usize == node).peekable();
                let cost = out.peek()?.cost;
                let crosses = out.any(|edge| {
                    let target = device[edge.target as usize];
                    target != device[node] && (target == one || device[node] == one)
                });
                crosses.then_some(cost)
            });
            nodes.iter().map(|&node| workload.nodes[node].accelerator).sum::<f64>() + paid.sum::<f64>()
        };
        best = best.min((0..n_devices).map(load).fold(0.0, f64::max));
    }
    best
}

fn permute(order: &mut Vec<usize>, from: usize, visit: &mut dyn FnMut(&[usize])) {
    if from == order.len() {
        visit(order);
    }
    for index in from..order.len() {
        order.swap(from, index);
        permute(order, from + 1, visit);
        order.swap(from, index);
    }
}

#[test]
fn largest_loads_equal_trying_everything() {
    let mut dice = Dice(6);
    for case in 0..cases(300) {
        let n_nodes = 1 + dice.below(5) as usize;
        let nodes = (0..n_nodes)
            .map(|id| DnnNode {
                id: id as i64,
                name: format!("n{id}"),
                runs_on_accelerator: dice.below(8) > 0,
                cpu: 1.0 + dice.below(30) as f64,
                accelerator: 1.0 + dice.below(10) as f64,
                is_backward: false,
                class: None,
                size: dice.below(6) as f64,
            })
            .collect();
        let cost: Vec<f64> = (0..n_nodes).map(|_| dice.below(6) as f64).collect();
        let mut edges = Vec::new();
        for (source, &cost) in cost.iter().enumerate() {
            for target in source + 1..n_nodes {
                if dice.below(3) == 0 {
                    edges.push(DnnEdge { source: source as i64, target: target as i64, cost });
                }
            }
        }
        let workload = DnnWorkload {
            accelerator_memory: 6.0 + dice.below(12) as f64,
            n_accelerators: 1 + dice.below(3) as u32,
            n_cpus: dice.below(2) as u32,
            nodes,
            edges,
        };
        if is_skipped(case) {
            continue;
        }
        let brute = loads_by_hand(&workload);
        let ours = load_plan(&workload).map_or(f64::INFINITY, |plan| plan.load);
        assert!(near(ours, brute), "case {case}: {ours} is not {brute}");
    }
}
