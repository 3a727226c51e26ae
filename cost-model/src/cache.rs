//! How much of what an operator reads still lies in the cache, of its code, and of the memory that it is given.
//!
//! Profiles measure operators on operands that no cache holds, and again on operands that were just used. In a model
//! both occur: an activation is read right after it was made, a weight was last read a whole step ago. What decides is
//! how many bytes were moved in between (the reuse distance), compared with the last-level cache. O(operands).
//!
//! With code it is the other way round. A profile calls one operator over and over; in a model others run in between,
//! and their operands and code take its place. So does memory for results and scratch, which the call before has just
//! freed in a profile. Profiles with `flushed_seconds` tell what both cost at most, by kind (timed on an EPYC with a last
//! cache of 32 MiB: nothing after 8 MB of something else, half after 16, three quarters after 32). One figure tells what
//! code costs that only the core's own cache has lost, 15 to 20 µs a call on a Xeon.
//!
//! A last cache of hundreds of MiB is the whole socket's, and slow: what "warm" means for a curve is then the core's own, and
//! the last one saves and loses apart from it (timed on a Xeon with 480 MiB: sums run at 70–120 GB/s from the core's 2 MiB, at
//! 26 from the last cache, at 17 from memory; a small sum takes 12 µs in a row, 33 to 52 after 2 to 32 MB of something else,
//! and 66, 84 and 125 after 64, 128 and 256).

use std::collections::HashMap;

use graph::{ModelGraph, Operator, OperatorClass, OperatorCosts, StorageId};

/// Bytes of a core's own cache, which holds its code: 0.5 to 2 MiB on servers since 2017.
pub(crate) const OWN_CACHE: f64 = 2.0 * 1024.0 * 1024.0;
/// Backward moves about so many times as much as forward.
const BACKWARD: f64 = 2.0;

/// Share of what is read that is found in the cache, by operator.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Warmth {
    pub forward: Vec<f64>,
    pub backward: Vec<f64>,
}

/// Returns the bytes that each operator moves.
pub(crate) fn moved(graph: &ModelGraph, costs: &OperatorCosts, batch_scale: f64) -> Vec<f64> {
    let moved = graph
        .operators
        .iter()
        .map(|operator| activations(graph, costs, operator, batch_scale) + stored(graph, operator));
    moved.collect()
}

/// Follows a training step over a cache of so many bytes: the near one or the last one.
pub(crate) fn warmth(graph: &ModelGraph, moved: &[f64], cache: f64, batch_scale: f64) -> Warmth {
    let total: f64 = moved.iter().sum();
    let fresh = |distance: f64, bytes: f64| (1.0 - (distance + bytes) / cache).clamp(0.0, 1.0);
    let mut touched: HashMap<StorageId, f64> = HashMap::new();
    let mut warmth = Warmth::default();
    let mut now = 0.0;
    for (operator, moved) in graph.operators.iter().zip(moved) {
        let mut forward = Share::default();
        let mut backward = Share::default();
        let after = total - now - moved;
        for value in &operator.inputs {
            for tensor in graph.value(*value).fact.tensors() {
                let bytes = tensor.bytes().unwrap_or(0) as f64 * batch_scale;
                let last = tensor.storage.and_then(|storage| touched.get(&storage));
                let distance = last.map_or(total * (1.0 + BACKWARD), |last| now - last);
                forward.add(bytes, fresh(distance, bytes));
                backward.add(bytes, fresh((1.0 + BACKWARD) * after, bytes));
            }
        }
        let weights = stored(graph, operator);
        forward.add(weights, fresh((total - moved) * (1.0 + BACKWARD), weights));
        backward.add(weights, fresh((1.0 + BACKWARD) * after, weights));
        now += moved;
        for value in operator.inputs.iter().chain(&operator.outputs) {
            for tensor in graph.value(*value).fact.tensors() {
                tensor.storage.and_then(|storage| touched.insert(storage, now));
            }
        }
        // The gradient of the result was made just before.
        for value in &operator.outputs {
            for tensor in graph.value(*value).fact.tensors() {
                let bytes = tensor.bytes().unwrap_or(0) as f64 * batch_scale;
                backward.add(bytes, fresh(0.0, bytes));
            }
        }
        warmth.forward.push(forward.share());
        warmth.backward.push(backward.share());
    }
    warmth
}

/// Returns how much of a result's memory and of scratch memory is gone from the cache when it is given out again, by
/// operator: in a forward pass and in a training step.
///
/// The C library gives out first what was freed last. A forward pass frees each activation soon, so a result lies where the
/// last one lay that was as large, and no more is touched in between than the largest operator's memory, for there is no
/// other; a training step keeps activations and comes back to the same memory a step later.
pub(crate) fn lost_memory(
    graph: &ModelGraph,
    costs: &OperatorCosts,
    cache: f64,
    batch_scale: f64,
) -> Vec<[f64; 2]> {
    let operators = || graph.operators.iter();
    let touched: Vec<f64> =
        operators().map(|operator| activations(graph, costs, operator, batch_scale)).collect();
    let largest = touched.iter().copied().fold(0.0, f64::max);
    let kept: u64 = operators().map(|operator| costs.operator(operator.id).saved_bytes).sum();
    let kept = kept as f64 * batch_scale;
    let weights = graph.tensors.iter().filter(|tensor| tensor.first == tensor.id);
    let weights: u64 = weights.map(|tensor| tensor.bytes).sum();
    let step = lost(largest + kept + weights as f64, cache);
    let forward = operators().enumerate().map(|(index, operator)| {
        let written = costs.operator(operator.id).written_bytes as f64 * batch_scale;
        let mut distance = touched[index];
        for before in touched[..index].iter().rev() {
            distance += before;
            if *before >= written || distance >= largest {
                break;
            }
        }
        lost(distance.min(largest), cache)
    });
    forward.map(|forward| [forward, step]).collect()
}

/// Returns which share of what was used so many bytes ago a cache has lost.
pub(crate) fn lost(distance: f64, cache: f64) -> f64 {
    (distance / cache).min(1.0)
}

/// Returns how many bytes other operators moved since the last one with the same code, forward and backward.
pub(crate) fn code_distances(graph: &ModelGraph, moved: &[f64]) -> Vec<[f64; 2]> {
    let all = || graph.operators.iter().zip(moved);
    // Before the first of a kind lies the rest of the step before.
    let step = moved.iter().sum::<f64>() * (1.0 + BACKWARD);
    let mut distances = Vec::with_capacity(moved.len());
    let (mut now, mut last) = (0.0, HashMap::new());
    for (operator, moved) in all() {
        let before = last.insert(kernel(operator), now + moved);
        distances.push([before.map_or(step, |before| now - before), 0.0]);
        now += moved;
    }
    (now, last) = (0.0, HashMap::new());
    for ((operator, moved), distance) in all().zip(&mut distances).rev() {
        let before = last.insert(kernel(operator), now + moved * BACKWARD);
        distance[1] = before.map_or(step, |before| now - before);
        now += moved * BACKWARD;
    }
    distances
}

/// Returns what operators with the same code have in common. Views hardly have any of their own.
fn kernel(operator: &Operator) -> &str {
    match operator.class {
        OperatorClass::View => "view",
        _ => operator.name.trim_end_matches('_'),
    }
}

/// Bytes of activations that an operator reads and writes.
fn activations(graph: &ModelGraph, costs: &OperatorCosts, operator: &Operator, batch_scale: f64) -> f64 {
    let cost = costs.operator(operator.id);
    (cost.read_bytes as f64 - stored(graph, operator) + cost.written_bytes as f64).max(0.0) * batch_scale
}

/// Bytes of the stored tensors that an operator reads whole.
fn stored(graph: &ModelGraph, operator: &Operator) -> f64 {
    if operator.class == OperatorClass::Embedding {
        return 0.0;
    }
    operator.tensors.iter().map(|tensor| graph.tensor(*tensor).bytes as f64).sum()
}

#[derive(Default)]
struct Share {
    bytes: f64,
    warm: f64,
}

impl Share {
    fn add(&mut self, bytes: f64, share: f64) {
        self.bytes += bytes;
        self.warm += bytes * share;
    }

    fn share(&self) -> f64 {
        if self.bytes > 0.0 { self.warm / self.bytes } else { 0.0 }
    }
}
