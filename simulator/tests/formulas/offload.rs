//! Training a chain of layers whose activations wait in host memory: the four modes as recurrences.
//!
//! Three resources: compute `c`, copies out `d`, copies in `h`; `k` buffers. With pinned memory and copies on streams
//! of their own, layer `i`'s forward waits for a buffer (`d_{i−k}`), its copy out for its forward, its copy in for the
//! copy out, the copy in before it and a buffer (backward of `i + k` done), its backward for its copy in.
//! Nobody is faster than `max(Σ(f + b), Σ s/out, Σ s/in)`.

use proptest::prelude::*;
use simulator::{EventGraph, Offload};

/// One layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Time of its forward pass.
    pub forward: u64,
    /// Time of its backward pass.
    pub backward: u64,
    /// Bytes that wait in host memory.
    pub bytes: u64,
}

/// Bytes a second to and from host memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostLink {
    /// Device to host, pinned.
    pub out: f64,
    /// Host to device, pinned.
    pub back: f64,
    /// Share of them that pageable memory reaches.
    pub pageable: f64,
}

/// Returns the time to move bytes at a rate, rounded up to whole nanoseconds.
fn transfer_time(bytes: u64, bandwidth: f64) -> u64 {
    (bytes as f64 * 1e9 / bandwidth).ceil() as u64
}

/// Returns the time of one step.
pub fn step(layers: &[Layer], link: HostLink, mode: Offload) -> u64 {
    let (share, depth) = match mode {
        Offload::Naive | Offload::NonBlocking => (link.pageable, None),
        Offload::Pinned => (1.0, None),
        Offload::Overlapped { depth } => (1.0, Some(depth.max(1) as usize)),
    };
    let out = |layer: &Layer| transfer_time(layer.bytes, link.out * share);
    let back = |layer: &Layer| transfer_time(layer.bytes, link.back * share);
    let Some(depth) = depth else {
        return layers.iter().map(|layer| layer.forward + out(layer) + layer.backward + back(layer)).sum();
    };
    let n = layers.len();
    // Ends by layer: forward, copy out, copy in, backward.
    let (mut c, mut d) = (vec![0_u64; n], vec![0_u64; n]);
    for (i, layer) in layers.iter().enumerate() {
        let buffer = i.checked_sub(depth).map_or(0, |i| d[i]);
        let before = i.checked_sub(1).map_or(0, |i| c[i]);
        c[i] = before.max(buffer) + layer.forward;
        d[i] = i.checked_sub(1).map_or(0, |i| d[i]).max(c[i]) + out(layer);
    }
    let (mut h, mut g) = (vec![0_u64; n], vec![0_u64; n]);
    let forward_end = c.last().copied().unwrap_or(0);
    for i in (0..n).rev() {
        // The first buffers are free when the forward passes that used them are done.
        let buffer =
            if i + depth < n { g[i + depth] } else { c[(i + depth - n).min(n - 1)].min(forward_end) };
        h[i] = h.get(i + 1).copied().unwrap_or(0).max(buffer).max(d[i]) + back(&layers[i]);
        g[i] = g.get(i + 1).copied().unwrap_or(forward_end).max(h[i]) + layers[i].backward;
    }
    g.first().copied().unwrap_or(0)
}

/// Returns a bound that no mode beats.
fn bound(layers: &[Layer], link: HostLink) -> u64 {
    let sum = |time: &dyn Fn(&Layer) -> u64| layers.iter().map(time).sum::<u64>();
    sum(&|layer| layer.forward + layer.backward)
        .max(sum(&|layer| transfer_time(layer.bytes, link.out)))
        .max(sum(&|layer| transfer_time(layer.bytes, link.back)))
}

/// The same by events: every wait written down, and the longest path taken. For checking [`step`].
fn step_by_events(layers: &[Layer], link: HostLink, depth: u32) -> u64 {
    let (n, depth) = (layers.len(), depth.max(1) as usize);
    let mut graph = EventGraph::with_capacity(4 * n);
    let (mut forward, mut out) = (Vec::new(), Vec::new());
    for (i, layer) in layers.iter().enumerate() {
        let waits = forward.last().copied().into_iter().chain(i.checked_sub(depth).map(|i| out[i]));
        let waits: Vec<_> = waits.map(|task| (task, 0)).collect();
        let task = graph.add(layer.forward, waits);
        let before = out.last().map(|task| (*task, 0));
        forward.push(task);
        out.push(graph.add(transfer_time(layer.bytes, link.out), before.into_iter().chain([(task, 0)])));
    }
    let (mut back, mut backward): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
    for i in (0..n).rev() {
        let done = backward.len();
        let buffer = match done.checked_sub(depth) {
            Some(idx) => backward[idx],
            None => forward[(i + depth - n).min(n - 1)],
        };
        let waits = [(out[i], 0), (buffer, 0)].into_iter().chain(back.last().map(|task| (*task, 0)));
        let copy = graph.add(transfer_time(layers[i].bytes, link.back), waits);
        let before = backward.last().or(forward.last()).map(|task| (*task, 0));
        backward.push(graph.add(layers[i].backward, before.into_iter().chain([(copy, 0)])));
        back.push(copy);
    }
    graph.ends().into_iter().max().unwrap_or(0)
}

const LINK: HostLink = HostLink { out: 1e9, back: 2e9, pageable: 0.5 };

#[test]
fn the_modes_by_hand() {
    let layer = Layer { forward: 10, backward: 20, bytes: 8 };
    let check = |mode, expected| assert_eq!(step(&[layer; 3], LINK, mode), expected, "{mode:?}");
    check(Offload::Naive, 3 * (10 + 16 + 20 + 8));
    check(Offload::Pinned, 3 * (10 + 8 + 20 + 4));
    check(Offload::NonBlocking, 3 * (10 + 16 + 20 + 8));
    // Copies hide but for the last out and the first in.
    check(Offload::Overlapped { depth: 2 }, 3 * 10 + 8 + 4 + 3 * 20);
    assert_eq!(bound(&[layer; 3], LINK), 90);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn recurrences_equal_events(
        layers in prop::collection::vec((1_u64..50, 1_u64..50, 0_u64..90), 1..12),
        depth in 1_u32..6,
    ) {
        let layers: Vec<Layer> =
            layers.into_iter().map(|(forward, backward, bytes)| Layer { forward, backward, bytes }).collect();
        let overlapped = step(&layers, LINK, Offload::Overlapped { depth });
        prop_assert_eq!(overlapped, step_by_events(&layers, LINK, depth));
        let [naive, pinned] = [Offload::Naive, Offload::Pinned].map(|mode| step(&layers, LINK, mode));
        prop_assert!(naive >= pinned && pinned >= overlapped && overlapped >= bound(&layers, LINK));
        let more = step(&layers, LINK, Offload::Overlapped { depth: depth + 1 });
        prop_assert!(more <= overlapped);
    }
}
