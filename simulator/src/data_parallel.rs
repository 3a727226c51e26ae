//! Data-parallel training of one model: gradients in buckets behind the backward pass, or in slices by priority.
//!
//! * DDP and Horovod: bucket `k` is sent when its last gradient exists, buckets one after the other,
//!   `e_k = max(e_{k−1}, r_k) + AR(g_k)`; the step ends with the later of computation and the last bucket.
//! * P3 (Jayarajan et al., 2019, arXiv:1905.03960): a parameter server's link sends slices, the front layers first, so
//!   that the next forward pass can start while the back layers are still on their way.

use std::{cmp::Reverse, collections::BinaryHeap};

pub use crate::workload::Layer;

/// Groups gradients into buckets in the order in which they appear: the last layer's first.
///
/// A bucket is closed when it holds `size` bytes; the first one at `first` bytes, so that sending starts early.
/// Returns (time since the start of the step at which it is complete, bytes).
pub fn buckets(layers: &[Layer], first: u64, size: u64) -> Vec<(u64, u64)> {
    let mut time: u64 = layers.iter().map(|layer| layer.forward).sum();
    let mut buckets = Vec::new();
    let mut bytes = 0;
    for layer in layers.iter().rev() {
        time += layer.backward;
        bytes += layer.gradients;
        let limit = if buckets.is_empty() { first } else { size };
        if bytes >= limit.max(1) {
            buckets.push((time, bytes));
            bytes = 0;
        }
    }
    if bytes > 0 {
        buckets.push((time, bytes));
    }
    buckets
}

/// Returns the time of a step: computation with bucketed all-reduces behind it, then the optimizer.
pub fn step(
    layers: &[Layer],
    buckets: &[(u64, u64)],
    all_reduce: impl Fn(u64) -> u64,
    optimizer: u64,
) -> u64 {
    let compute: u64 = layers.iter().map(|layer| layer.forward + layer.backward).sum();
    let end = buckets.iter().fold(0, |end: u64, (ready, bytes)| end.max(*ready) + all_reduce(*bytes));
    compute.max(end) + optimizer
}

/// In which order a parameter server's link sends what is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// Nothing is sent before the whole backward pass is over.
    Sequential,
    /// First come, first served.
    Fifo,
    /// Front layers first; what is being sent is not interrupted.
    Priority,
}

/// Released P3's slice: the most parameters in it.
pub const P3_SLICE: u64 = 40_000;

/// Returns the steady time from step to step with a link that takes `send(bytes)` for a message.
///
/// `slice` is the most bytes of a message; layers are sent whole without it. The link is serial, and a layer's next
/// forward pass waits for all of its slices.
pub fn parameter_server_period(
    layers: &[Layer],
    discipline: Discipline,
    slice: Option<u64>,
    send: impl Fn(u64) -> u64,
) -> u64 {
    // Long enough for the link's backlog to settle into its cycle.
    const STEPS: usize = 24;
    const CYCLE: usize = 8;
    let mut updated = vec![0_u64; layers.len()];
    let mut now = 0_u64;
    let mut link_free = 0_u64;
    let mut starts = Vec::with_capacity(STEPS);
    for _ in 0..STEPS {
        let mut is_first = true;
        for (layer, updated) in layers.iter().zip(&updated) {
            now = now.max(*updated);
            if std::mem::take(&mut is_first) {
                starts.push(now);
            }
            now += layer.forward;
        }
        // When each layer's gradients exist, in the order in which they do.
        let mut ready = Vec::with_capacity(layers.len());
        for (idx, layer) in layers.iter().enumerate().rev() {
            now += layer.backward;
            ready.push((now, idx));
        }
        if discipline == Discipline::Sequential {
            ready.iter_mut().for_each(|(at, _)| *at = now);
        }
        link_free = drain(layers, &ready, discipline, slice, &send, link_free, &mut updated);
    }
    (starts[STEPS - 1] - starts[STEPS - 1 - CYCLE]) / CYCLE as u64
}

/// Sends one step's gradients; returns when the link is free again.
fn drain(
    layers: &[Layer],
    ready: &[(u64, usize)],
    discipline: Discipline,
    slice: Option<u64>,
    send: &impl Fn(u64) -> u64,
    mut link_free: u64,
    updated: &mut [u64],
) -> u64 {
    let mut waiting: BinaryHeap<Reverse<(usize, usize, u64)>> = BinaryHeap::new();
    let mut arrived = 0;
    while arrived < ready.len() || !waiting.is_empty() {
        if waiting.is_empty() {
            link_free = link_free.max(ready[arrived].0);
        }
        while arrived < ready.len() && ready[arrived].0 <= link_free {
            let (_, layer) = ready[arrived];
            let rank = if discipline == Discipline::Priority { layer } else { arrived };
            waiting.push(Reverse((rank, layer, layers[layer].gradients)));
            arrived += 1;
        }
        let Some(Reverse((rank, layer, bytes))) = waiting.pop() else { continue };
        let message = slice.map_or(bytes, |slice| bytes.min(slice.max(1)));
        link_free += send(message);
        updated[layer] = link_free;
        if bytes > message {
            waiting.push(Reverse((rank, layer, bytes - message)));
        }
    }
    link_free
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p3s_toy() {
        let layers = [
            Layer { forward: 1, backward: 1, gradients: 1 },
            Layer { forward: 1, backward: 1, gradients: 4 },
        ];
        let check = |discipline, slice, expected| {
            assert_eq!(parameter_server_period(&layers, discipline, slice, |bytes| bytes), expected);
        };
        check(Discipline::Sequential, None, 9);
        check(Discipline::Fifo, None, 8);
        check(Discipline::Fifo, Some(1), 8);
        check(Discipline::Priority, None, 8);
        check(Discipline::Priority, Some(1), 7);
    }

    #[test]
    fn buckets_close_early_and_overlap() {
        let layer = |gradients| Layer { forward: 10, backward: 20, gradients };
        let layers = [layer(5), layer(30), layer(30), layer(2)];
        assert_eq!(buckets(&layers, 1, 40), [(60, 2), (100, 60), (120, 5)]);
        assert_eq!(buckets(&layers, 1000, 1000), [(120, 67)]);
        // 2 bytes at 60, 60 bytes from 100 to 160, 5 bytes to 165; then the optimizer.
        assert_eq!(step(&layers, &buckets(&layers, 1, 40), |bytes| bytes, 7), 172);
        assert_eq!(step(&layers, &buckets(&layers, 1, 40), |_| 0, 7), 127);
    }
}
