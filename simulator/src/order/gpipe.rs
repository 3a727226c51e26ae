//! GPipe (Huang et al., 2019, arXiv:1811.06965): all forward passes, then all backward passes.
//!
//! ```text
//! rank 0  F0 F1 F2 F3             B0 B1 B2 B3
//! rank 1     F0 F1 F2 F3       B0 B1 B2 B3
//! rank 2        F0 F1 F2 F3 B0 B1 B2 B3
//! ```
//!
//! The paper draws the backward passes from the last micro-batch to the first; PyTorch, and so this order, starts
//! them with the first. Time `(m + p − 1)(F + B) + 2(p − 1)C`; all `m` activations are alive at once.

use super::{InFlight, Op, Order, row::Row};

pub(super) const ROW: Row = Row {
    aliases: &["schedulegpipe"],
    in_flight: |share| InFlight::All((share.each * share.replicas) as u32),
    makespan: |t| Some((t.m + t.p - 1) * (t.f + t.b) + 2 * (t.p - 1) * t.c),
    ..Row::new("gpipe", |shape, _| order(shape.ranks, shape.micro_batches))
};

/// Makes the order.
fn order(ranks: u32, micro_batches: u32) -> Order {
    let program = |rank: u32| {
        let forward = (0..micro_batches).map(|mb| Op::forward(rank, mb));
        forward.chain((0..micro_batches).map(|mb| Op::backward(rank, mb))).collect()
    };
    Order { ranks: (0..ranks).map(program).collect(), chain: ranks }
}
