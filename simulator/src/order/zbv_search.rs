//! ZB-V searched for given costs (Qi et al., 2024, arXiv:2401.10241, §6): two chunks a rank in a V.
//!
//! ```text
//! rank 0  0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 …
//! rank 1      1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 …
//! ```
//!
//! Backward and forward are placed in rounds over all ranks; waits are filled with the oldest weight gradient when
//! it fits, or when this rank's bubble would otherwise become the longest. A second try knows the bubbles of the
//! first and lets each rank wait up to what the worst of them waited. Memory is limited to 1F1B's. O(rounds·p·m).

use std::collections::VecDeque;

use super::{
    Kind, Op, Order,
    row::{Chunks, Row},
    vshape::stage,
};
use crate::cost::Cost;

pub(super) const ROW: Row = Row {
    aliases: &["zbvgreedy"],
    is_searched: true,
    chunks: Chunks::V,
    ..Row::new("zbv-search", |shape, cost| order(shape.ranks, shape.micro_batches, cost))
};

const FORWARD_MEMORY: i64 = 2;
const F: usize = 0;
const I: usize = 1;
const W: usize = 2;
/// Tries after which a search that still gets better is stopped.
const MAX_TRIES: usize = 64;

/// Makes the order.
fn order(ranks: u32, micro_batches: u32, cost: Cost) -> Order {
    let mut best: Option<Search> = None;
    for fill_before_backward in [true, false] {
        for fill_before_forward in [true, false] {
            let new = || Search::new(ranks, micro_batches, cost, fill_before_backward, fill_before_forward);
            let mut found = new();
            found.run();
            for _ in 0..MAX_TRIES {
                let mut again = new();
                again.approved.clone_from(&found.bubble);
                again.run();
                if again.longest_bubble() >= found.longest_bubble() {
                    break;
                }
                found = again;
            }
            if best.as_ref().is_none_or(|best| found.longest_bubble() < best.longest_bubble()) {
                best = Some(found);
            }
        }
    }
    Order { ranks: best.map(|search| search.programs).unwrap_or_default(), chain: 2 * ranks }
}

/// The state of all ranks while the order grows; chunk 0 is the first in its pass's direction.
struct Search {
    n_micro_batches: usize,
    cost: [i64; 3],
    hop: i64,
    limit: i64,
    fill_before_backward: bool,
    fill_before_forward: bool,
    /// Bubbles of the try before, by rank.
    approved: Vec<i64>,
    done: Vec<[[usize; 2]; 3]>,
    free: Vec<i64>,
    memory: Vec<i64>,
    bubble: Vec<i64>,
    /// When each operation ends, by rank, kind, chunk and micro-batch.
    end: Vec<[[Vec<i64>; 2]; 3]>,
    /// Chunks of the postponed weight gradients, oldest first.
    postponed: Vec<VecDeque<usize>>,
    programs: Vec<Vec<Op>>,
}

impl Search {
    fn new(ranks: u32, micro_batches: u32, cost: Cost, before_backward: bool, before_forward: bool) -> Self {
        let time = |value: u64| i64::try_from(value).unwrap_or(i64::MAX).min(1 << 40);
        let n = ranks as usize;
        Self {
            n_micro_batches: micro_batches as usize,
            cost: [time(cost.forward), time(cost.input_gradient), time(cost.weight_gradient)],
            hop: time(cost.hop),
            limit: FORWARD_MEMORY * 2 * i64::from(ranks),
            fill_before_backward: before_backward,
            fill_before_forward: before_forward,
            approved: vec![-1; n],
            done: vec![Default::default(); n],
            free: vec![0; n],
            memory: vec![0; n],
            bubble: vec![0; n],
            end: vec![Default::default(); n],
            postponed: vec![VecDeque::new(); n],
            programs: vec![Vec::with_capacity(6 * micro_batches as usize); n],
        }
    }

    fn n_ranks(&self) -> usize {
        self.free.len()
    }

    fn longest_bubble(&self) -> i64 {
        self.bubble.iter().copied().max().unwrap_or(0)
    }

    /// The bubble that a rank may reach without making the step longer.
    fn allowed_bubble(&self, rank: usize) -> i64 {
        let approved = self.approved.iter().copied().max().unwrap_or(-1);
        self.longest_bubble().max(approved - self.approved[rank])
    }

    /// The rank that feeds a chunk's next operation: the one before it going down, the one after it coming up.
    fn feeder(&self, rank: usize, kind: usize, chunk: usize) -> Option<usize> {
        match chunk {
            _ if kind == W => None,
            0 => rank.checked_sub(1),
            _ => Some(rank + 1).filter(|next| *next < self.n_ranks()),
        }
    }

    /// When the next operation's input is on its feeder; `None` while it is not made yet.
    fn made(&self, rank: usize, kind: usize, chunk: usize) -> Option<i64> {
        let from = self.feeder(rank, kind, chunk)?;
        self.end[from][kind][chunk].get(self.done[rank][kind][chunk]).copied()
    }

    fn put(&mut self, rank: usize, kind: usize, chunk: usize) {
        let nth = self.done[rank][kind][chunk];
        if nth >= self.n_micro_batches {
            return;
        }
        let unhindered = self.free[rank] + self.cost[kind];
        let made = self.made(rank, kind, chunk);
        let end = made.map_or(unhindered, |made| unhindered.max(made + self.hop + self.cost[kind]));
        if self.done[rank][F][0] > 0 {
            self.bubble[rank] += end - unhindered;
        }
        self.end[rank][kind][chunk].push(end);
        self.free[rank] = end;
        self.memory[rank] += [FORWARD_MEMORY, -1, -1][kind];
        if kind == I {
            self.postponed[rank].push_back(chunk);
        }
        self.done[rank][kind][chunk] += 1;
        let op_kind = [Kind::Forward, Kind::InputGradient, Kind::WeightGradient][kind];
        // Backward passes meet the chunks in the opposite order.
        let place = if kind == F { chunk } else { 1 - chunk };
        let stage = stage(rank as u32, self.n_ranks() as u32, place);
        self.programs[rank].push(Op::new(stage, op_kind, nth as u32));
    }

    fn put_weight(&mut self, rank: usize) -> bool {
        let Some(chunk) = self.postponed[rank].pop_front() else { return false };
        self.put(rank, W, chunk);
        true
    }

    fn run(&mut self) {
        self.warm_up();
        for _ in 0..2 * self.n_micro_batches {
            self.round_of_backwards();
            self.round_of_forwards();
        }
        for rank in 0..self.n_ranks() {
            while self.put_weight(rank) {}
        }
    }

    fn warm_up(&mut self) {
        let (n, m) = (self.n_ranks(), self.n_micro_batches);
        (0..n).for_each(|rank| self.put(rank, F, 0));
        for rank in (0..n).rev() {
            if let Some(first_up) =
                (rank + 1 < n).then(|| self.end[rank + 1][F][1].first().copied()).flatten()
            {
                // Fill the way back of the first micro-batch with further ones, on all ranks up to this.
                while self.memory[rank] + FORWARD_MEMORY * (2 + 2 * rank as i64) <= self.limit
                    && self.free[rank] + self.cost[F] <= first_up + self.hop
                    && self.done[rank][F][0] < m
                {
                    (0..=rank).for_each(|rank| self.put(rank, F, 0));
                }
            }
            self.put(rank, F, 1);
        }
        // Each rank gets at least as many forwards as the one before it, the chunks in turn.
        let mut chunk = 0;
        for rank in 1..n {
            let count = |search: &Self, rank: usize| search.done[rank][F][0] + search.done[rank][F][1];
            let ups = |search: &Self, rank: usize| search.done[rank][F][1];
            while count(self, rank) < count(self, rank - 1)
                || (ups(self, rank) <= ups(self, rank - 1) && ups(self, rank - 1) < m)
            {
                (rank..n).rev().for_each(|rank| self.put(rank, F, chunk));
                chunk = 1 - chunk;
            }
        }
    }

    fn round_of_backwards(&mut self) {
        let n = self.n_ranks();
        let is_second = |search: &Self, rank: usize| {
            let [first, second] = search.done[rank][I];
            second < first
                && (rank == n - 1 || search.made(rank, I, 1).is_some() || first >= search.n_micro_batches)
        };
        let (second, first): (Vec<usize>, Vec<usize>) = (0..n).partition(|rank| is_second(self, *rank));
        let turns =
            second.into_iter().rev().map(|rank| (rank, 1)).chain(first.into_iter().map(|rank| (rank, 0)));
        for (rank, chunk) in turns.collect::<Vec<_>>() {
            self.fill_wait(rank, I, chunk, chunk == 1 || self.fill_before_backward);
            self.put(rank, I, chunk);
        }
    }

    fn round_of_forwards(&mut self) {
        for rank in 0..self.n_ranks() {
            let [first, second] = self.done[rank][F];
            if second >= self.n_micro_batches {
                continue;
            }
            let chunk = if second >= first {
                0
            } else if rank == self.n_ranks() - 1 || self.made(rank, F, 1).is_some() {
                1
            } else if first < self.n_micro_batches && (rank == 0 || self.made(rank, F, 0).is_some()) {
                0
            } else {
                continue;
            };
            while self.memory[rank] + FORWARD_MEMORY > self.limit && self.put_weight(rank) {}
            self.fill_wait(rank, F, chunk, self.fill_before_forward);
            self.put(rank, F, chunk);
        }
    }

    /// Puts weight gradients into the wait before an operation.
    fn fill_wait(&mut self, rank: usize, kind: usize, chunk: usize, fills_short_wait: bool) {
        if self.feeder(rank, kind, chunk).is_none() {
            return;
        }
        let Some(made) = self.made(rank, kind, chunk) else { return };
        let arrival = made + self.hop;
        while arrival >= self.free[rank] + self.cost[W] && self.put_weight(rank) {}
        if arrival - self.free[rank] > self.allowed_bubble(rank) - self.bubble[rank] && fills_short_wait {
            self.put_weight(rank);
        }
    }
}
