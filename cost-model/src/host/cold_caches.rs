//! Cold caches: the share of an operator's code and of its memory that the caches have lost since the last use.
//!
//! A profile calls one operator over and over; in a model others run in between, and evict its code. They also evict memory for
//! results and scratch, which in a profile the call before has just freed. Profiles with `flushed_seconds` tell what both
//! cost at most, by kind (timed on an EPYC with a last cache of 32 MiB: nothing after 8 MB of something else, half after 16, three
//! quarters after 32). One figure tells what code costs that only the core's own cache has lost, 15 to 20 µs a call on a Xeon.
//! O(operators²) at worst, and O(operators) where one of them moves much.

use std::collections::HashMap;

use graph::{ModelGraph, Operator, OperatorClass, OperatorCosts};

use crate::cache::{BACKWARD, activations};

/// Returns how much of a result's memory and of scratch memory is gone from the cache when it is given out again, by
/// operator: in a forward pass and in a training step.
///
/// The C library gives out first what was freed last. A forward pass frees each activation soon, so a result lies where the
/// previous result of that size lay, and at most the largest operator's memory is touched in between; a training step keeps activations and comes back to the same memory a step later.
pub(super) fn lost_memory(
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

/// Returns the share of data that a cache has lost after `distance` bytes of other accesses.
pub(super) fn lost(distance: f64, cache: f64) -> f64 {
    (distance / cache).min(1.0)
}

/// Returns how many bytes other operators moved since the last one with the same code, forward and backward.
pub(super) fn code_distances(graph: &ModelGraph, moved: &[f64]) -> Vec<[f64; 2]> {
    let all = || graph.operators.iter().zip(moved);
    // Before the first of a kind comes the rest of the step before.
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

/// Returns a key that is equal for operators with the same code. All views share one: they have hardly any code of their own.
fn kernel(operator: &Operator) -> &str {
    match operator.class {
        OperatorClass::View => "view",
        _ => operator.name.trim_end_matches('_'),
    }
}
