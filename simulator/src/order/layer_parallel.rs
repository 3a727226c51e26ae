//! Layer parallelism: stages on different ranks, one micro-batch at a time, no pipelining.
//!
//! ```text
//! rank 0  F0            B0 F1            B1
//! rank 1     F0      B0       F1      B1
//! rank 2        F0 B0            F1 B1
//! ```
//!
//! Time `m · Σ (F + B)` over the stages plus two hops at each cut; one set of activations.

use super::{
    InFlight, Op, Order,
    row::{Chunks, Row},
};

pub(super) const ROW: Row = Row {
    aliases: &["none", "sequential"],
    chunks: Chunks::Any,
    in_flight: |_| InFlight::UntilEnd(1),
    // A hop to the next stage each way; with several chunks the last rank's next stage is on the first.
    makespan: |t| {
        let hops = if t.p == 1 { 0 } else { t.p * t.v - 1 };
        Some(t.m * (t.p * t.v * (t.f + t.b) + 2 * hops * t.c))
    },
    ..Row::new("layer-parallel", |shape, _| order(shape.ranks, shape.chunks, shape.micro_batches))
};

/// Makes the order, stages dealt to the ranks in a loop.
fn order(ranks: u32, chunks: u32, micro_batches: u32) -> Order {
    let program = |rank: u32| {
        let stages = move || (0..chunks).map(move |chunk| chunk * ranks + rank);
        (0..micro_batches)
            .flat_map(move |mb| {
                let forward = stages().map(move |stage| Op::forward(stage, mb));
                forward.chain(stages().rev().map(move |stage| Op::backward(stage, mb)))
            })
            .collect()
    };
    Order { ranks: (0..ranks).map(program).collect(), chain: ranks * chunks }
}
