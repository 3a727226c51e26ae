//! DualPipe (DeepSeek-V3, 2024, arXiv:2412.19437) and DualPipeV, its fold into one copy of the model.
//!
//! ```text
//! rank 0  0F0 0F1 0F2 7F0 7I0 7W0 7F1 (0F3;7B1) (7F2;0B0) …      copy 1 runs 0 → 3, copy 2 runs 4 → 7
//! rank 3  4F0 4F1 4F2 3F0 3I0 3W0 3F1 (4F3;3B1) (3F2;4B0) …      from the other end, over the same ranks
//! ```
//!
//! In DualPipe the two halves of the ranks run the same program with the copies exchanged; cut between the halves
//! and joined at the cut, one half is DualPipeV. So one program serves both: `n` ranks of which this is the `r`-th,
//! `m` micro-batches in each direction. `(F;B)` is one fused pair that hides one's communication behind the other's
//! computation.

use std::collections::VecDeque;

use super::{
    InFlight, Op, Order, Shape,
    row::{Chunks, Need, Row},
    vshape,
};

pub(super) const TWO_COPIES: Row = Row {
    copies: 2,
    needs: |Shape { ranks, micro_batches, .. }| {
        if !ranks.is_multiple_of(2) {
            return Err(Need::Ranks("an even number of ranks"));
        }
        if micro_batches < 2 * ranks || !micro_batches.is_multiple_of(2) {
            let rule = format!("an even number of at least {} micro-batches", 2 * ranks);
            let smallest = micro_batches.max(2 * ranks).next_multiple_of(2);
            return Err(Need::MicroBatches(rule, Some(smallest)));
        }
        Ok(())
    },
    in_flight: |share| InFlight::Split((share.ranks + 1).min(share.each.div_ceil(2)) as u32),
    // A fused pair takes as long as its parts: no gain from overlap is assumed.
    makespan: |t| {
        let is_exact = t.is_without_latency() && t.f == t.i && t.i >= t.w;
        is_exact.then(|| t.m * (t.f + t.b) + (t.p / 2 - 1) * (t.f + t.b + t.b - 3 * t.w))
    },
    ..Row::new("dualpipe", |shape, _| two_copies(shape.ranks, shape.micro_batches))
};

pub(super) const FOLDED: Row = Row {
    chunks: Chunks::V,
    needs: |Shape { ranks, micro_batches, .. }| {
        if micro_batches < 2 * ranks {
            let rule = format!("at least {} micro-batches, one for each stage", 2 * ranks);
            return Err(Need::MicroBatches(rule, Some(2 * ranks)));
        }
        Ok(())
    },
    in_flight: |share| InFlight::DualPipeV(share.ranks as u32),
    makespan: |t| {
        let is_exact = t.is_without_latency() && t.f == t.i && t.i >= t.w;
        is_exact.then(|| 2 * t.m * (t.f + t.b) + (t.p - 1) * (t.f + t.b + t.b - 3 * t.w))
    },
    ..Row::new("dualpipev", |shape, _| folded(shape.ranks, shape.micro_batches))
};

/// Makes DualPipe's order: two copies of the model, half of the micro-batches through each.
fn two_copies(ranks: u32, micro_batches: u32) -> Order {
    let half = ranks / 2;
    let program = |rank: u32| {
        let (first, second) = (rank, 2 * ranks - 1 - rank);
        let own = if rank < half { [first, second] } else { [second, first] };
        program(rank.min(ranks - 1 - rank), half, micro_batches / 2, own)
    };
    Order { ranks: (0..ranks).map(program).collect(), chain: ranks }
}

/// Makes DualPipeV's order.
fn folded(ranks: u32, micro_batches: u32) -> Order {
    let program = |rank: u32| {
        let own = [vshape::stage(rank, ranks, 0), vshape::stage(rank, ranks, 1)];
        program(rank, ranks, micro_batches, own)
    };
    Order { ranks: (0..ranks).map(program).collect(), chain: 2 * ranks }
}

/// A rank's program in the making.
struct Rank {
    stages: [u32; 2],
    forward: [u32; 2],
    backward: [u32; 2],
    /// Input gradients whose weight gradient is still to come, oldest first.
    postponed: VecDeque<Op>,
    ops: Vec<Op>,
}

impl Rank {
    fn next_forward(&mut self, phase: usize) -> Op {
        let op = Op::forward(self.stages[phase], self.forward[phase]);
        self.forward[phase] += 1;
        op
    }

    fn next_backward(&mut self, phase: usize) -> Op {
        let op = Op::backward(self.stages[phase], self.backward[phase]);
        self.backward[phase] += 1;
        op
    }

    fn forward(&mut self, phase: usize) {
        let op = self.next_forward(phase);
        self.ops.push(op);
    }

    fn backward(&mut self, phase: usize, is_split: bool) {
        let op = self.next_backward(phase);
        if is_split {
            self.ops.push(Op::input_gradient(op.stage, op.micro_batch));
            self.postponed.push_back(Op::weight_gradient(op.stage, op.micro_batch));
        } else {
            self.ops.push(op);
        }
    }

    fn weight(&mut self) {
        self.ops.extend(self.postponed.pop_front());
    }

    fn overlapped(&mut self, forward_phase: usize, backward_phase: usize) {
        let forward = self.next_forward(forward_phase).join();
        let backward = self.next_backward(backward_phase);
        self.ops.extend([forward, backward]);
    }
}

/// The eight steps of `DualPipe.step`.
fn program(r: u32, n: u32, micro_batches: u32, stages: [u32; 2]) -> Vec<Op> {
    let mut rank = Rank {
        stages,
        forward: [0; 2],
        backward: [0; 2],
        postponed: VecDeque::new(),
        ops: Vec::with_capacity(5 * micro_batches as usize),
    };
    // 1: forward of the first direction alone.
    for _ in 0..2 * (n - r - 1) {
        rank.forward(0);
    }
    // 2: forward of both directions.
    for _ in 0..=r {
        rank.forward(0);
        rank.forward(1);
    }
    // 3: split backward and forward of the second direction.
    for _ in 0..n - r - 1 {
        rank.backward(1, true);
        rank.weight();
        rank.forward(1);
    }
    // 4: the main part, fused pairs; the innermost rank keeps its first pair apart for a smaller bubble.
    for i in 0..micro_batches + r + 1 - 2 * n {
        if i == 0 && r == n - 1 {
            rank.forward(0);
            rank.backward(1, false);
        } else {
            rank.overlapped(0, 1);
        }
        rank.overlapped(1, 0);
    }
    // 5: the second direction's last forward passes.
    for _ in 0..n - r - 1 {
        rank.backward(1, false);
        rank.overlapped(1, 0);
    }
    // 6: backward of both directions; the second half of them is split.
    let mut is_split = false;
    for i in 0..=r {
        let is_middle = i == r.div_ceil(2);
        is_split |= is_middle && !r.is_multiple_of(2);
        rank.backward(1, is_split);
        is_split |= is_middle && r.is_multiple_of(2);
        rank.backward(0, is_split);
    }
    // 7, 8: the postponed weight gradients.
    for _ in 0..n - r - 1 {
        rank.weight();
        rank.backward(0, is_split);
    }
    while !rank.postponed.is_empty() {
        rank.weight();
    }
    rank.ops
}
