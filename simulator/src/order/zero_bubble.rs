//! ZB1P and ZB2P: zero-bubble orders of one stage a rank, searched for given costs and a memory limit
//! (Qi et al., 2024, arXiv:2401.10241, §3.2, "Automatic pipeline scheduling").
//!
//! ```text
//! memory of 1F1B (ZB1P)             twice that (ZB2P)
//! rank 0  F0 F1 I0 W0 F2 I1 W1 …    F0 F1 F2 F3 I0 W0 F4 I1 …
//! rank 1     F0 I0 F1 I1 W0 F2 …       F0 I0 F1 I1 F2 I2 …
//! ```
//!
//! The search lays out one micro-batch's backward after the other, fills every wait with postponed weight gradients,
//! and never lets a rank's memory exceed the limit. Three yes/no choices are tried in all eight combinations; the
//! order with the shortest longest stage span wins. O(8·p·m). Memory is counted in halves of an activation: a
//! forward takes two, input and weight gradient give back one each.

use super::{InFlight, Kind, Op, Order, row::Row};
use crate::cost::Cost;

/// With 1F1B's memory.
pub(super) const ONCE: Row = Row {
    is_searched: true,
    ..Row::new("zb1p", |shape, cost| order(shape.ranks, shape.micro_batches, cost, 1))
};

/// With twice that.
pub(super) const TWICE: Row = Row {
    is_searched: true,
    // The search counts an activation in halves, one for each of its gradients, and takes no more than `2·2p` of them.
    in_flight: |share| InFlight::SplitAtMost((4 * share.ranks).min(share.each) as u32),
    ..Row::new("zb2p", |shape, cost| order(shape.ranks, shape.micro_batches, cost, 2))
};

const FORWARD_MEMORY: i64 = 2;

/// Makes the order; `memory` is the limit in units of 1F1B's peak.
fn order(ranks: u32, micro_batches: u32, cost: Cost, memory: u32) -> Order {
    let limit = FORWARD_MEMORY * i64::from(ranks) * i64::from(memory);
    let mut best: Option<(i64, Vec<Vec<Op>>)> = None;
    for wait_before_first_backward in [true, false] {
        for prefer_backward in [true, false] {
            for fill_greedily in [true, false] {
                let choices = Choices { wait_before_first_backward, prefer_backward, fill_greedily };
                let mut search = Search::new(ranks as usize, micro_batches as usize, cost, limit);
                search.run(choices);
                let span = search.longest_span();
                if best.as_ref().is_none_or(|(best, _)| span < *best) {
                    best = Some((span, search.programs));
                }
            }
        }
    }
    let ranks_ops = best.map(|(_, programs)| programs).unwrap_or_default();
    Order { ranks: ranks_ops, chain: ranks }
}

/// The heuristic's yes/no choices.
#[derive(Clone, Copy)]
struct Choices {
    /// One more forward in the warm-up even when the first backward then waits for it.
    wait_before_first_backward: bool,
    /// Leave out a forward that would make the next rank's backward late.
    prefer_backward: bool,
    /// Fill a wait that is too short for a weight gradient even when others' bubbles would cover it.
    fill_greedily: bool,
}

const F: usize = 0;
const I: usize = 1;
const W: usize = 2;

/// The state of all ranks while the order grows.
struct Search {
    n_micro_batches: usize,
    cost: [i64; 3],
    hop: i64,
    limit: i64,
    /// Micro-batches done, by rank and kind.
    done: Vec<[usize; 3]>,
    /// When each rank is free.
    free: Vec<i64>,
    memory: Vec<i64>,
    /// Time each rank has waited since its first forward.
    bubble: Vec<i64>,
    /// The longest of these; none ever gets shorter.
    longest_bubble: i64,
    /// When each operation ends, by rank, kind and micro-batch.
    end: Vec<[Vec<i64>; 3]>,
    programs: Vec<Vec<Op>>,
}

impl Search {
    fn new(n_ranks: usize, n_micro_batches: usize, cost: Cost, limit: i64) -> Self {
        let time = |value: u64| i64::try_from(value).unwrap_or(i64::MAX).min(1 << 40);
        Self {
            n_micro_batches,
            cost: [time(cost.forward), time(cost.input_gradient), time(cost.weight_gradient)],
            hop: time(cost.hop),
            limit,
            done: vec![[0; 3]; n_ranks],
            free: vec![0; n_ranks],
            memory: vec![0; n_ranks],
            bubble: vec![0; n_ranks],
            longest_bubble: 0,
            end: vec![Default::default(); n_ranks],
            programs: vec![Vec::with_capacity(3 * n_micro_batches); n_ranks],
        }
    }

    fn n_ranks(&self) -> usize {
        self.free.len()
    }

    /// When what the next operation of a kind needs from another rank is there.
    fn arrival(&self, rank: usize, kind: usize) -> Option<i64> {
        let from = match kind {
            F => rank.checked_sub(1)?,
            I => Some(rank + 1).filter(|next| *next < self.n_ranks())?,
            _ => return None,
        };
        self.end[from][kind].get(self.done[rank][kind]).map(|end| end + self.hop)
    }

    fn put(&mut self, rank: usize, kind: usize) {
        let unhindered = self.free[rank] + self.cost[kind];
        let end = self.arrival(rank, kind).map_or(unhindered, |at| unhindered.max(at + self.cost[kind]));
        if self.done[rank][F] > 0 {
            self.bubble[rank] += end - unhindered;
            self.longest_bubble = self.longest_bubble.max(self.bubble[rank]);
        }
        let op_kind = [Kind::Forward, Kind::InputGradient, Kind::WeightGradient][kind];
        self.programs[rank].push(Op::new(rank as u32, op_kind, self.done[rank][kind] as u32));
        self.free[rank] = end;
        self.end[rank][kind].push(end);
        self.memory[rank] += [FORWARD_MEMORY, -1, -1][kind];
        self.done[rank][kind] += 1;
    }

    fn has_weight(&self, rank: usize) -> bool {
        self.done[rank][W] < self.done[rank][I]
    }

    fn run(&mut self, choices: Choices) {
        self.first_backward(choices);
        for _ in 1..self.n_micro_batches {
            let forward = self.wanted_forwards(choices);
            for rank in (0..self.n_ranks()).filter(|rank| forward[*rank]) {
                while self.memory[rank] + FORWARD_MEMORY > self.limit && self.has_weight(rank) {
                    self.put(rank, W);
                }
                self.fill_wait(rank, F, choices);
                self.put(rank, F);
            }
            for rank in (0..self.n_ranks()).rev() {
                self.fill_wait(rank, I, choices);
                if rank == 0 && self.done[0][F] == self.n_micro_batches {
                    while self.has_weight(0) {
                        self.put(0, W);
                    }
                }
                self.put(rank, I);
            }
        }
        for rank in 0..self.n_ranks() {
            while self.done[rank][W] < self.n_micro_batches {
                self.put(rank, W);
            }
        }
    }

    /// Lays out the warm-up and the first micro-batch's backward.
    fn first_backward(&mut self, choices: Choices) {
        let n = self.n_ranks();
        (0..n).for_each(|rank| self.put(rank, F));
        // How many forwards more fit before the first backward arrives, from the last rank to the first.
        let mut extra = vec![0; n];
        let mut backward_end = self.free[n - 1] + self.cost[I];
        for rank in (0..n - 1).rev() {
            let mut time = self.free[rank];
            let mut memory = self.memory[rank];
            while self.done[rank][F] + extra[rank] < self.n_micro_batches
                && memory + FORWARD_MEMORY <= self.limit
            {
                let is_full = if choices.wait_before_first_backward {
                    time + self.cost[F] > backward_end + self.hop
                } else {
                    time >= backward_end + self.hop
                };
                if is_full {
                    break;
                }
                memory += FORWARD_MEMORY;
                time += self.cost[F];
                extra[rank] += 1;
            }
            backward_end = time.max(backward_end + self.hop) + self.cost[I];
        }
        // A rank needs at least one forward less in its warm-up than the rank before it.
        for rank in 1..n {
            while extra[rank] > 0
                && extra[rank] >= extra[rank - 1]
                && self.done[rank][F] + extra[rank] < self.n_micro_batches
            {
                extra[rank] -= 1;
            }
        }
        for (rank, extra) in extra.into_iter().enumerate() {
            (0..extra).for_each(|_| self.put(rank, F));
        }
        (0..n).rev().for_each(|rank| self.put(rank, I));
    }

    /// Decides which ranks run a forward before the next backward.
    fn wanted_forwards(&self, choices: Choices) -> Vec<bool> {
        let n = self.n_ranks();
        let mut wanted: Vec<bool> = (0..n)
            .map(|rank| {
                let done = self.done[rank];
                if done[F] >= self.n_micro_batches {
                    return false;
                }
                let is_ahead = rank + 1 < n && done[F] >= self.done[rank + 1][F] + 2;
                !(choices.prefer_backward && is_ahead) || self.fits_before_backward(rank)
            })
            .collect();
        // A forward that the next rank does not take up yet can wait.
        for rank in (0..n - 1).rev() {
            wanted[rank] &= wanted[rank + 1];
        }
        wanted
    }

    /// Tells whether one more forward ends before the next rank's backward can arrive, or its delay hides in others' bubbles.
    fn fits_before_backward(&self, rank: usize) -> bool {
        let arrival = self.free[rank + 1] + self.cost[F] + self.cost[I] + self.hop;
        if self.free[rank] >= arrival {
            return false;
        }
        let mut memory = self.memory[rank] + FORWARD_MEMORY;
        let mut weights = 0;
        while memory > self.limit && self.done[rank][W] + weights < self.done[rank][I] {
            memory -= 1;
            weights += 1;
        }
        if self.free[rank] + self.cost[F] + weights as i64 * self.cost[W] <= arrival {
            return true;
        }
        arrival - self.free[rank] > self.longest_bubble - self.bubble[rank]
    }

    /// Puts weight gradients into the wait before the next operation of a kind.
    fn fill_wait(&mut self, rank: usize, kind: usize, choices: Choices) {
        let Some(arrival) = self.arrival(rank, kind) else { return };
        while self.has_weight(rank) && self.free[rank] + self.cost[W] <= arrival {
            self.put(rank, W);
        }
        if self.has_weight(rank) && self.free[rank] < arrival {
            let is_hidden = arrival - self.free[rank] <= self.longest_bubble - self.bubble[rank];
            if !is_hidden || choices.fill_greedily {
                self.put(rank, W);
            }
        }
    }

    fn longest_span(&self) -> i64 {
        let span = |rank: usize| Some(self.end[rank][W].last()? - self.end[rank][F].first()? + self.cost[F]);
        (0..self.n_ranks()).filter_map(span).max().unwrap_or(0)
    }
}
