//! Looped breadth-first pipeline (Lamy-Poirier, 2022, arXiv:2211.05953): GPipe over several chunks a rank.
//!
//! ```text
//! rank 0  0F0 0F1 2F0 2F1                 2B1 2B0 0B1 0B0
//! rank 1      1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0
//! ```
//!
//! Backward passes run through the micro-batches in reverse. Time `(v·max(m, p) + min(m, p) − 1)(F + B)`.

use super::{
    InFlight, Op, Order, interleaved,
    row::{Chunks, Row},
};

pub(super) const ROW: Row = Row {
    aliases: &["bfs"],
    chunks: Chunks::Any,
    in_flight: |share| InFlight::All((share.each * share.replicas) as u32),
    makespan: interleaved::makespan,
    ..Row::new("looped-bfs", |shape, _| order(shape.ranks, shape.chunks, shape.micro_batches))
};

/// Makes the order.
fn order(ranks: u32, chunks: u32, micro_batches: u32) -> Order {
    let program = |rank: u32| {
        let stages = move || (0..chunks).map(move |chunk| chunk * ranks + rank);
        let forward = stages().flat_map(|stage| (0..micro_batches).map(move |mb| Op::forward(stage, mb)));
        let backward =
            stages().rev().flat_map(|stage| (0..micro_batches).rev().map(move |mb| Op::backward(stage, mb)));
        forward.chain(backward).collect()
    };
    Order { ranks: (0..ranks).map(program).collect(), chain: ranks * chunks }
}
