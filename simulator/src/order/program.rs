//! A rank's program without writing it down: the n-th operation by arithmetic, for schedules that are regular.
//!
//! Ten million operations need no memory this way; [`crate::clock()`] times either form.

use super::{Kind, Op, Order, interleaved::Rounds};

/// What each rank runs, operation by operation.
pub trait Program {
    /// Returns the number of ranks.
    fn n_ranks(&self) -> usize;
    /// Returns the number of stages, all copies of the model counted.
    fn n_stages(&self) -> usize;
    /// Returns one more than the largest micro-batch.
    fn n_micro_batches(&self) -> usize;
    /// Returns the number of stages in one copy of the model.
    fn chain(&self) -> u32;
    /// Returns the number of operations of a rank.
    fn len(&self, rank: usize) -> usize;
    /// Returns an operation of a rank.
    fn op(&self, rank: usize, position: usize) -> Op;
    /// Returns the rank of every stage; `u32::MAX` where there is none.
    fn stage_ranks(&self) -> Vec<u32>;
}

impl Program for Order {
    fn n_ranks(&self) -> usize {
        self.ranks.len()
    }

    fn n_stages(&self) -> usize {
        Order::n_stages(self)
    }

    fn n_micro_batches(&self) -> usize {
        Order::n_micro_batches(self)
    }

    fn chain(&self) -> u32 {
        self.chain
    }

    fn len(&self, rank: usize) -> usize {
        self.ranks[rank].len()
    }

    #[inline]
    fn op(&self, rank: usize, position: usize) -> Op {
        self.ranks[rank][position]
    }

    fn stage_ranks(&self) -> Vec<u32> {
        Order::stage_ranks(self).into_iter().map(|rank| rank.map_or(u32::MAX, |rank| rank as u32)).collect()
    }
}

/// Regular schedules whose n-th operation is known by arithmetic.
pub enum Regular {
    /// All forward passes, then all backward passes.
    GPipe {
        /// Ranks, one stage each.
        ranks: u32,
        /// Micro-batches.
        micro_batches: u32,
    },
    /// One forward, one backward, with a flush.
    OneForwardOneBackward {
        /// Ranks, one stage each.
        ranks: u32,
        /// Micro-batches.
        micro_batches: u32,
    },
    /// Interleaved 1F1B.
    Interleaved(Interleaved),
}

/// The parameters of an interleaved program.
pub struct Interleaved {
    ranks: u32,
    chunks: u32,
    micro_batches: u32,
    rounds: Rounds,
}

impl Regular {
    /// Returns an interleaved program; micro-batches must be a multiple of the rounds, as `Schedule::check` says.
    pub fn interleaved(ranks: u32, chunks: u32, micro_batches: u32) -> Self {
        let rounds = Rounds::new(ranks, chunks, micro_batches);
        Regular::Interleaved(Interleaved { ranks, chunks, micro_batches, rounds })
    }

    fn size(&self) -> (u32, u32, u32) {
        match self {
            Regular::GPipe { ranks, micro_batches } => (*ranks, 1, *micro_batches),
            Regular::OneForwardOneBackward { ranks, micro_batches } => (*ranks, 1, *micro_batches),
            Regular::Interleaved(shape) => (shape.ranks, shape.chunks, shape.micro_batches),
        }
    }
}

impl Program for Regular {
    fn n_ranks(&self) -> usize {
        self.size().0 as usize
    }

    fn n_stages(&self) -> usize {
        let (ranks, chunks, _) = self.size();
        ranks as usize * chunks as usize
    }

    fn n_micro_batches(&self) -> usize {
        self.size().2 as usize
    }

    fn chain(&self) -> u32 {
        let (ranks, chunks, _) = self.size();
        ranks * chunks
    }

    fn len(&self, _: usize) -> usize {
        let (_, chunks, micro_batches) = self.size();
        2 * chunks as usize * micro_batches as usize
    }

    #[inline]
    fn op(&self, rank: usize, position: usize) -> Op {
        let (rank, n) = (rank as u32, position as u32);
        match self {
            Regular::GPipe { micro_batches, .. } => {
                if n < *micro_batches {
                    Op::forward(rank, n)
                } else {
                    Op::backward(rank, n - micro_batches)
                }
            }
            Regular::OneForwardOneBackward { ranks, micro_batches } => {
                let warm_up = (ranks - rank).min(*micro_batches);
                let (kind, mb) = turn(n, warm_up, *micro_batches, Kind::Backward);
                Op::new(rank, kind, mb)
            }
            Regular::Interleaved(shape) => {
                let total = shape.chunks * shape.micro_batches;
                // The steady state begins with a forward, so one forward more stands before the first backward.
                let warm_up = (shape.rounds.warm_up(rank, 2) + 1).min(total);
                let (kind, nth) = turn(n, warm_up, total, Kind::Backward);
                let (stage, mb) = match kind {
                    Kind::Forward => shape.rounds.forward(rank, nth),
                    _ => shape.rounds.backward(rank, nth),
                };
                Op::new(stage, kind, mb)
            }
        }
    }

    fn stage_ranks(&self) -> Vec<u32> {
        let (ranks, chunks, _) = self.size();
        (0..ranks * chunks).map(|stage| stage % ranks).collect()
    }
}

/// Returns the n-th operation of `warm_up` forwards, then backward and forward in turn, then backwards alone.
#[inline]
fn turn(n: u32, warm_up: u32, total: u32, backward: Kind) -> (Kind, u32) {
    let pairs_end = warm_up + 2 * (total - warm_up);
    if n < warm_up {
        (Kind::Forward, n)
    } else if n < pairs_end {
        let pair = (n - warm_up) / 2;
        if (n - warm_up).is_multiple_of(2) { (backward, pair) } else { (Kind::Forward, warm_up + pair) }
    } else {
        (backward, n - total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::make;

    #[test]
    fn regular_schedules_are_those_that_are_written() {
        for schedule in crate::order::ALL {
            for (ranks, chunks, micro_batches) in [(1, 1, 3), (3, 1, 6), (4, 2, 8), (4, 1, 2), (2, 3, 4)] {
                let shape = crate::order::Shape { ranks, chunks, micro_batches };
                let Some(program) = schedule.regular(shape) else { continue };
                let order = make(schedule.name(), ranks, chunks, micro_batches).unwrap();
                let times = |found: Result<crate::Clock, crate::ClockError>| found.unwrap();
                let cost = crate::Cost { forward: 3, input_gradient: 4, weight_gradient: 2, hop: 1 };
                assert_eq!(times(crate::clock(&program, &cost)), times(crate::clock(&order, &cost)));
                assert_eq!((program.n_stages(), Program::chain(&program)), (order.n_stages(), order.chain));
                // Nothing is to be said of them that a check would find.
                assert!(crate::lint(&order).findings.is_empty(), "{} {shape:?}", schedule.name());
            }
        }
    }

    #[test]
    fn arithmetic_programs_equal_the_written_ones() {
        let check = |program: Regular, name: &str, ranks: u32, chunks: u32, micro_batches: u32| {
            let order = make(name, ranks, chunks, micro_batches).unwrap();
            for rank in 0..ranks as usize {
                assert_eq!(program.len(rank), order.ranks[rank].len());
                let ops: Vec<Op> = (0..program.len(rank)).map(|n| program.op(rank, n)).collect();
                assert_eq!(ops, order.ranks[rank], "{name} {ranks} {chunks} {micro_batches}, rank {rank}");
            }
        };
        for ranks in 1..6 {
            for micro_batches in 1..14 {
                check(Regular::GPipe { ranks, micro_batches }, "gpipe", ranks, 1, micro_batches);
                if micro_batches >= ranks {
                    let program = Regular::OneForwardOneBackward { ranks, micro_batches };
                    check(program, "1f1b", ranks, 1, micro_batches);
                }
                for chunks in 1..4 {
                    if micro_batches % (micro_batches / ranks).max(1) == 0 {
                        let program = Regular::interleaved(ranks, chunks, micro_batches);
                        check(program, "interleaved-1f1b", ranks, chunks, micro_batches);
                    }
                }
            }
        }
    }
}
