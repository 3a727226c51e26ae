//! 1F1B with a flush (DAPPLE, PipeDream-Flush, Megatron): after the warm-up each forward waits for a backward.
//!
//! ```text
//! rank 0  F0 F1 F2    B0 F3 B1    B2    B3
//! rank 1     F0 F1    B0 F2 B1 F3 B2 B3
//! rank 2        F0 B0 F1 B1 F2 B2 F3 B3
//! ```
//!
//! The same time as GPipe without latency, but only `min(m, p − r)` activations on rank `r`. PyTorch 2.11's printed
//! order of this schedule lacks the first forward pass of the last rank; this is the order that its runtime executes.

use super::{
    InFlight, Op, Order, Shape,
    row::{Need, Row},
};

pub(super) const ROW: Row = Row {
    aliases: &["pipedreamflush", "dapple", "schedule1f1b"],
    needs: fills_all_ranks,
    in_flight: |share| InFlight::UntilEnd((share.each * share.replicas) as u32),
    // Latency is paid almost once for each micro-batch: unlike GPipe's, the waits do not overlap.
    makespan: |t| {
        let (p, m) = (t.p, t.m);
        let hops =
            if p == 1 { 0 } else { (m + p - 2) - (m - 1).div_euclid(p) - i128::from((m - 1) % p != 0) };
        Some((m + p - 1) * (t.f + t.b) + 2 * t.c * hops)
    },
    ..Row::new("1f1b", |shape, _| order(shape.ranks, shape.micro_batches))
};

/// Wants a micro-batch for each rank.
pub(super) fn fills_all_ranks(Shape { ranks, micro_batches, .. }: Shape) -> Result<(), Need> {
    if micro_batches < ranks {
        let rule = format!("at least {ranks} micro-batches, one for each rank");
        return Err(Need::MicroBatches(rule, Some(ranks)));
    }
    Ok(())
}

/// Makes the order.
fn order(ranks: u32, micro_batches: u32) -> Order {
    let program = |rank: u32| with_warm_up(rank, micro_batches, ranks - rank);
    Order { ranks: (0..ranks).map(program).collect(), chain: ranks }
}

/// Returns a stage's program: `warm_up` forward passes, then a backward before each further forward.
pub(super) fn with_warm_up(stage: u32, micro_batches: u32, warm_up: u32) -> Vec<Op> {
    let warm_up = warm_up.clamp(1, micro_batches.max(1));
    let mut ops: Vec<Op> = (0..warm_up.min(micro_batches)).map(|mb| Op::forward(stage, mb)).collect();
    for mb in 0..micro_batches {
        ops.push(Op::backward(stage, mb));
        if mb + warm_up < micro_batches {
            ops.push(Op::forward(stage, mb + warm_up));
        }
    }
    ops
}
