//! Interleaved 1F1B (Narayanan et al., 2021, arXiv:2104.04473) and its zero-bubble variant (Qi et al., 2024,
//! arXiv:2401.10241): several chunks a rank, micro-batches in rounds, depth first.
//!
//! ```text
//! p = 2, v = 2, m = 4: a round is two micro-batches through chunk 0, then the same two through chunk 1.
//! rank 0  0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 …
//! rank 1      1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 …
//! ```
//!
//! PyTorch lets a round be longer than the ranks: `m // max(1, m // p)` micro-batches. Zero bubble halves the extra
//! warm-up (one forward for each hop instead of two), runs input gradients where 1F1B runs whole backwards, and
//! starts weight gradients after as many backwards as there are ranks before this one. One chunk gives ZB-H1.
//! Megatron's own order (here `vpp`) is the same with rounds of exactly `p` micro-batches.

use super::{
    InFlight, Kind, Op, Order, Shape,
    row::{Chunks, Need, Row, Share, Terms},
};
use crate::cost::Cost;

pub(super) const ROW: Row = Row {
    aliases: &["interleaved"],
    chunks: Chunks::Any,
    needs: fills_rounds,
    in_flight: |share| InFlight::Rounds(Rounds::of(share)),
    makespan,
    ..Row::new("interleaved-1f1b", one_f_one_b)
};

/// Megatron's grouping: a round is exactly as many micro-batches as ranks.
pub(super) const VPP: Row = Row {
    aliases: &["vpp2"],
    chunks: Chunks::Any,
    needs: |Shape { ranks, micro_batches, .. }| {
        if micro_batches.is_multiple_of(ranks) {
            return Ok(());
        }
        let rule = format!("a multiple of {ranks} micro-batches, the number of ranks");
        Err(Need::MicroBatches(rule, Some(micro_batches.next_multiple_of(ranks))))
    },
    in_flight: |share| InFlight::Rounds(Rounds::of(share)),
    makespan,
    ..Row::new("vpp", one_f_one_b)
};

pub(super) const ZERO_BUBBLE: Row = Row {
    aliases: &["zbh1", "zerobubble"],
    chunks: Chunks::Any,
    needs: fills_rounds,
    in_flight: |share| InFlight::SplitRounds(Rounds::of(share)),
    makespan: |t| {
        let is_exact = t.is_without_latency() && t.m >= t.p;
        is_exact.then(|| t.m * t.v * (t.f + t.b) + (t.p - 1) * t.f.max(t.i).max(t.f + t.i - t.w))
    },
    ..Row::new("interleaved-zero-bubble", zero_bubble)
};

/// Wants rounds of equal size.
fn fills_rounds(Shape { ranks, micro_batches, .. }: Shape) -> Result<(), Need> {
    let fits = |m: u32| m.is_multiple_of((m / ranks).max(1));
    if fits(micro_batches) {
        return Ok(());
    }
    let rule = format!("a multiple of its {} rounds of {ranks} ranks", micro_batches / ranks);
    Err(Need::MicroBatches(rule, (micro_batches..).find(|m| fits(*m))))
}

/// `(v·max(m, p) + min(m, p) − 1)(F + B)`, as breadth first.
pub(super) fn makespan(t: &Terms) -> Option<i128> {
    t.is_without_latency().then(|| (t.v * t.m.max(t.p) + t.m.min(t.p) - 1) * (t.f + t.b))
}

/// Makes the order of interleaved 1F1B.
fn one_f_one_b(Shape { ranks, chunks, micro_batches }: Shape, _: Cost) -> Order {
    let rounds = Rounds::new(ranks, chunks, micro_batches);
    let program = |rank: u32| rounds.program(rank, 2, None);
    Order { ranks: (0..ranks).map(program).collect(), chain: ranks * chunks }
}

/// Makes the order of interleaved zero bubble.
fn zero_bubble(Shape { ranks, chunks, micro_batches }: Shape, _: Cost) -> Order {
    let rounds = Rounds::new(ranks, chunks, micro_batches);
    let program = |rank: u32| rounds.program(rank, 1, Some(rank));
    Order { ranks: (0..ranks).map(program).collect(), chain: ranks * chunks }
}

/// Micro-batches in rounds over the chunks of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounds {
    ranks: u32,
    chunks: u32,
    micro_batches: u32,
    per_round: u32,
}

impl Rounds {
    /// Returns the rank of a stage, counted from the last one on.
    pub(super) fn rank(self, stage_from_end: usize) -> usize {
        let stages = (self.ranks * self.chunks) as usize;
        stages.saturating_sub(stage_from_end) % self.ranks as usize
    }

    pub(super) fn new(ranks: u32, chunks: u32, micro_batches: u32) -> Self {
        let n_rounds = (micro_batches / ranks).max(1);
        Self { ranks, chunks, micro_batches, per_round: micro_batches / n_rounds }
    }

    fn of(share: &Share) -> Self {
        let [ranks, chunks, micro_batches] =
            [share.ranks, share.chunks, share.each].map(|count| count as u32);
        Self::new(ranks, chunks, micro_batches)
    }

    /// Returns the most micro-batches that a stage holds, `left` being the stages from it to the end; with a split backward pass
    /// until their weight gradients.
    ///
    /// A rank frees what it held `ahead` forward passes ago, counted over all of its chunks: the last chunk first, while forward
    /// passes begin with the first. A chunk holds most when its part of a round ends; rounds are alike once the first is freed.
    pub(super) fn held(&self, left: usize, is_split: bool) -> usize {
        let index = self.ranks.saturating_mul(self.chunks).saturating_sub(left as u32);
        let rank = index % self.ranks;
        // Weight gradients wait for as many passes as there are ranks before.
        let ahead = if is_split { self.warm_up(rank, 1) + rank } else { self.warm_up(rank, 2) };
        let [v, m, own, chunk, ahead] =
            [self.chunks, self.micro_batches, self.per_round, index / self.ranks, ahead].map(i64::from);
        let round = own * v;
        let behind_first = (chunk + 1) * own - 1 - ahead;
        let freed = |passes: i64| match passes {
            ..1 => 0,
            _ => passes / round * own + (passes % round - (v - 1 - chunk) * own).clamp(0, own),
        };
        let held = |turn: i64| (turn + 1) * own - freed(turn * round + behind_first);
        let regular = (-behind_first).div_euclid(round) + 1;
        let turns = (regular - 1..=regular).filter(|turn| (0..m / own).contains(turn));
        turns.map(held).max().unwrap_or(m).min(m) as usize
    }

    /// Forward passes before the first backward but one, on a rank.
    pub(super) fn warm_up(&self, rank: u32, hops: u32) -> u32 {
        let warm_up =
            (self.chunks - 1).saturating_mul(self.per_round).saturating_add(hops * (self.ranks - 1 - rank));
        warm_up.min(self.chunks.saturating_mul(self.micro_batches))
    }

    /// Returns the stage and micro-batch of a rank's n-th forward.
    pub(super) fn forward(&self, rank: u32, n: u32) -> (u32, u32) {
        let (round, chunk, within) = self.place(n);
        (chunk * self.ranks + rank, round * self.per_round + within)
    }

    /// Returns the stage and micro-batch of a rank's n-th backward.
    pub(super) fn backward(&self, rank: u32, n: u32) -> (u32, u32) {
        let (round, chunk, within) = self.place(n);
        ((self.chunks - 1 - chunk) * self.ranks + rank, round * self.per_round + within)
    }

    fn place(&self, n: u32) -> (u32, u32, u32) {
        let turn = n / self.per_round;
        (turn / self.chunks, turn % self.chunks, n % self.per_round)
    }

    /// `hops` is the warm-up for each rank behind this one; `weights_after` splits backwards in two and postpones
    /// the weight gradients by a number of operations.
    fn program(&self, rank: u32, hops: u32, weights_after: Option<u32>) -> Vec<Op> {
        let total = self.chunks * self.micro_batches;
        let warm_up = self.warm_up(rank, hops);
        let backward_kind = if weights_after.is_some() { Kind::InputGradient } else { Kind::Backward };
        let weight = |n: u32| {
            let (stage, mb) = self.backward(rank, n);
            Op::weight_gradient(stage, mb)
        };
        let mut ops = Vec::with_capacity(3 * total as usize);
        let mut n_weights = 0;
        ops.extend((0..warm_up).map(|n| self.forward(rank, n)).map(|(stage, mb)| Op::forward(stage, mb)));
        for n in 0..total {
            if warm_up + n < total {
                let (stage, mb) = self.forward(rank, warm_up + n);
                ops.push(Op::forward(stage, mb));
            }
            let (stage, mb) = self.backward(rank, n);
            ops.push(Op::new(stage, backward_kind, mb));
            if weights_after.is_some_and(|after| n >= after) {
                ops.push(weight(n_weights));
                n_weights += 1;
            }
        }
        if weights_after.is_some() {
            ops.extend((n_weights..total).map(weight));
        }
        ops
    }
}
