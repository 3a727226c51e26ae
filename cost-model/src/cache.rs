//! Cache reuse: the share of an operator's operands that the cache still holds.
//!
//! Profiles measure operators with operands in no cache, and again with operands that were just used. A model has both: an
//! activation is read right after it was made, a weight was last read a whole step ago. The reuse distance, the bytes moved in
//! between, decides, compared with the last-level cache. O(operands).
//!
//! A last cache of hundreds of MiB is shared by the socket, and slow: "warm" then means a core's own cache to a curve, and the
//! last cache is counted apart (timed on a Xeon with 480 MiB: sums run at 70–120 GB/s from the core's 2 MiB, at 26 from the last
//! cache, at 17 from memory; a small sum takes 12 µs in a row, 33 to 52 after 2 to 32 MB of other data, and 66, 84 and 125 after
//! 64, 128 and 256).

use std::collections::HashMap;

use graph::{ModelGraph, Operator, OperatorClass, OperatorCosts, StorageId};

/// Bytes that the backward pass moves, relative to the forward pass.
pub(crate) const BACKWARD: f64 = 2.0;

/// Share of the bytes read that the cache holds, by operator.
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

/// Simulates a training step over a cache of the given size, the near one or the last one.
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

/// Bytes of activations that an operator reads and writes.
pub(crate) fn activations(
    graph: &ModelGraph,
    costs: &OperatorCosts,
    operator: &Operator,
    batch_scale: f64,
) -> f64 {
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
