//! Layer parallelism: stages on different ranks, one micro-batch at a time, no pipelining.
//!
//! ```text
//! rank 0  F0            B0 F1            B1
//! rank 1     F0      B0       F1      B1
//! rank 2        F0 B0            F1 B1
//! ```
//!
//! Time `m · Σ (F + B)` over the stages plus two hops at each cut; one set of activations.

use super::{Op, Order};

/// Makes the order, stages dealt to the ranks in a loop.
pub(super) fn order(ranks: u32, chunks: u32, micro_batches: u32) -> Order {
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
