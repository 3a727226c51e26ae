//! ZB-V (Qi et al., 2024, arXiv:2401.10241, §6), the handcrafted pattern, as PyTorch 2.11 lays it out.
//!
//! ```text
//! rank 0  0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 …
//! rank 1      1F0 2F0 1F1 2F1 2I0 2W0 1F2 …           every operation one slot long
//! ```
//!
//! No bubble in the steady state when forward, input and weight gradient take equally long. With fewer than
//! `2p − 1` micro-batches the pattern for `2p − 1` is laid out and the missing ones left as gaps.

use super::{
    InFlight, Op, Order,
    row::{Chunks, Row},
    vshape::stage,
};

pub(super) const ROW: Row = Row {
    aliases: &["zbvzerobubble"],
    chunks: Chunks::V,
    in_flight: |share| InFlight::SplitUntilEnd { ranks: share.ranks as u32, most: share.each as u32 },
    makespan: |t| {
        let is_exact = t.is_without_latency() && t.m >= 2 * t.p - 1 && t.w <= t.f && t.f <= t.i;
        is_exact.then(|| 2 * t.m * (t.f + t.b) + (t.p - 1) * t.i.max(2 * (t.i - t.w)))
    },
    ..Row::new("zbv", |shape, _| order(shape.ranks, shape.micro_batches))
};

/// Makes the order.
fn order(ranks: u32, micro_batches: u32) -> Order {
    let program = |rank| {
        let mut ops = program(rank, ranks, micro_batches.max(2 * ranks - 1));
        ops.retain(|op| op.micro_batch < micro_batches);
        ops
    };
    Order { ranks: (0..ranks).map(program).collect(), chain: 2 * ranks }
}

/// Which micro-batch is next, by chunk.
#[derive(Default)]
struct Next {
    forward: [u32; 2],
    input: [u32; 2],
    weight: [u32; 2],
}

fn program(rank: u32, ranks: u32, micro_batches: u32) -> Vec<Op> {
    let stages = [stage(rank, ranks, 0), stage(rank, ranks, 1)];
    let mut ops = Vec::with_capacity(6 * micro_batches as usize);
    let mut next = Next::default();
    let take = |counter: &mut u32| std::mem::replace(counter, *counter + 1);
    let forward = |next: &mut Next, chunk: usize| Op::forward(stages[chunk], take(&mut next.forward[chunk]));
    let input =
        |next: &mut Next, chunk: usize| Op::input_gradient(stages[chunk], take(&mut next.input[chunk]));
    let weight =
        |next: &mut Next, chunk: usize| Op::weight_gradient(stages[chunk], take(&mut next.weight[chunk]));

    // Warm-up: down alone, then down and up in turn, then up with its backward.
    for _ in 0..2 * (ranks - rank) - 1 {
        ops.push(forward(&mut next, 0));
    }
    for _ in 0..rank {
        ops.extend([forward(&mut next, 1), forward(&mut next, 0)]);
    }
    for _ in 0..ranks - rank {
        ops.extend([forward(&mut next, 1), input(&mut next, 1), weight(&mut next, 1)]);
    }
    // Steady state: one forward and one backward of each chunk.
    while next.forward[1] < next.forward[0] || next.forward[0] < micro_batches {
        if next.forward[0] < micro_batches {
            ops.push(forward(&mut next, 0));
        }
        ops.extend([input(&mut next, 0), weight(&mut next, 0)]);
        ops.extend([forward(&mut next, 1), input(&mut next, 1), weight(&mut next, 1)]);
    }
    // Cool-down: input gradients first, so that other ranks can go on.
    for _ in 0..rank {
        ops.extend([input(&mut next, 0), input(&mut next, 1)]);
    }
    for _ in 0..ranks - rank {
        ops.extend([input(&mut next, 0), weight(&mut next, 0)]);
    }
    for chunk in [1, 0] {
        while next.weight[chunk] < next.input[chunk] {
            ops.push(weight(&mut next, chunk));
        }
    }
    ops
}
