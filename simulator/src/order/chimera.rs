//! Chimera (Li and Hoefler, 2021, arXiv:2107.06925): two copies of the model from both ends, merged slot by slot.
//!
//! ```text
//! D = 4, N = 4, a slot a column; copy 1 in stages 0-3, copy 2 in stages 4-7
//! rank 0  0F0     0F1 7F0 7B0 7F1 7B1 0B0     0B1
//! rank 1      1F0 6F0 1F1 6F1 6B0 1B0 6B1 1B1
//! rank 2      5F0 2F0 5F1 2F1 2B0 5B0 2B1 5B1
//! rank 3  4F0     4F1 3F0 3B0 3F1 3B1 4B0     4B1
//! ```
//!
//! A unit is `D/2` micro-batches in each direction, two slots apart. No two operations want one slot: on rank `k` copy 1
//! runs forward in slots `k + 2x` and backward in `2D−1−k + 2x`, copy 2 forward in `D−1−k + 2x` and backward in
//! `D+k + 2x`, for `x < D/2`. `D` is even, so copy 1's forward and copy 2's backward have the parity of `k` and the other
//! two the other; of each parity, the backward begins where the forward has ended. Units follow each other every `2D`
//! slots, and by the same count the next unit's forward begins where this one's backward of its parity has ended.
//!
//! For `D | N` the time is `N(F+B) + (D−2)[max(F,B) + (N/D−1)|B−F|]`. The authors' generator makes the same orders but
//! where `N ≥ 3D` and `D ≥ 6`: there it lets units collide, and leaves this formula. We keep the units apart, so that
//! the formula stays exact.
//! The copies agree on gradients once, at the end of a step: that is the workload's sync, not part of the order.

use super::{
    InFlight, Op, Order, Shape,
    row::{Need, Row},
};

pub(super) const ROW: Row = Row {
    copies: 2,
    needs: |Shape { ranks, micro_batches, .. }| {
        if !ranks.is_multiple_of(2) {
            return Err(Need::Ranks("an even number of ranks"));
        }
        if !micro_batches.is_multiple_of(2) {
            let rule = "an even number of micro-batches, half for each copy".to_string();
            return Err(Need::MicroBatches(rule, Some(micro_batches.next_multiple_of(2))));
        }
        Ok(())
    },
    in_flight: |share| InFlight::Depth(share.ranks.min(share.each.div_ceil(2)) as u32),
    makespan: |t| {
        let is_exact = t.is_without_latency() && t.m % t.p == 0;
        is_exact.then(|| t.m * (t.f + t.b) + (t.p - 2) * (t.f.max(t.b) + (t.m / t.p - 1) * (t.b - t.f).abs()))
    },
    ..Row::new("chimera", |shape, _| order(shape.ranks, shape.micro_batches))
};

/// Makes the order.
fn order(ranks: u32, micro_batches: u32) -> Order {
    let half = ranks / 2;
    // (slot, operation) by rank; the two copies in turn take up to D/2 micro-batches of each unit.
    let mut slots: Vec<Vec<(u64, Op)>> = vec![Vec::new(); ranks as usize];
    let mut done = [0; 2];
    let mut start = 0;
    while done[0] + done[1] < micro_batches {
        let left = micro_batches - done[0] - done[1];
        let unit = [half.min(left.div_ceil(2)), half.min(left / 2)];
        for copy in 0..2 {
            for x in 0..unit[copy] {
                for k in 0..ranks {
                    let rank = if copy == 0 { k } else { ranks - 1 - k };
                    let stage = copy as u32 * ranks + k;
                    let first = start + 2 * u64::from(x);
                    let (down, up) = (u64::from(k), u64::from(2 * ranks - 1 - k));
                    let mb = done[copy] + x;
                    slots[rank as usize].extend([
                        (first + down, Op::forward(stage, mb)),
                        (first + up, Op::backward(stage, mb)),
                    ]);
                }
            }
            done[copy] += unit[copy];
        }
        start += 2 * u64::from(ranks);
    }
    let in_order = |mut slots: Vec<(u64, Op)>| {
        slots.sort_by_key(|(slot, _)| *slot);
        slots.into_iter().map(|(_, op)| op).collect()
    };
    Order { ranks: slots.into_iter().map(in_order).collect(), chain: ranks }
}
