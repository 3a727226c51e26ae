//! In which order each rank runs which operations: the schedule as a value.
//!
//! An [`Order`] is what `simulate` times, what `codegen` writes and what the runtime executes; there is no other
//! description of a schedule. One file a schedule below, each with its picture, its constraint and its source.
//!
//! Stages of a second copy of the model (GEMS, Chimera, DualPipe) are numbered after the first: stage `s` sits at
//! position `s % chain` of its copy.

mod chimera;
mod controllable;
mod csv;
mod dualpipe;
mod gems;
mod gpipe;
mod interleaved;
mod layer_parallel;
mod looped_bfs;
mod one_f_one_b;
mod op;
mod pipedream;
mod program;
mod replicas;
mod schedule;
mod v1f1b;
mod vshape;
mod zbv;
mod zbv_search;
mod zero_bubble;

pub use self::{
    csv::{CsvError, from_csv, to_csv},
    op::{Kind, Op},
    program::{Program, Regular},
    replicas::{for_replicas, replicated, round_robin},
    schedule::{ALL, OrderError, Schedule, Shape, make, make_for_costs, normalise},
};

/// What each rank runs, in program order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Operations by rank.
    pub ranks: Vec<Vec<Op>>,
    /// Stages of one copy of the model; stage `s` is at position `s % chain`.
    pub chain: u32,
}

impl Order {
    /// Returns the number of stages, all copies of the model counted.
    pub fn n_stages(&self) -> usize {
        self.ops().map(|op| op.stage as usize + 1).max().unwrap_or(0)
    }

    /// Returns one more than the largest micro-batch of any stage.
    pub fn n_micro_batches(&self) -> usize {
        self.ops().map(|op| op.micro_batch as usize + 1).max().unwrap_or(0)
    }

    /// Returns the number of operations of all ranks.
    pub fn n_ops(&self) -> usize {
        self.ranks.iter().map(Vec::len).sum()
    }

    /// Returns the rank of every stage; `None` for a number that no rank runs.
    ///
    /// Where several ranks share a stage (replicas), it is the first of them.
    pub fn stage_ranks(&self) -> Vec<Option<usize>> {
        let mut ranks = vec![None; self.n_stages()];
        for (rank, ops) in self.ranks.iter().enumerate() {
            for op in ops {
                ranks[op.stage as usize].get_or_insert(rank);
            }
        }
        ranks
    }

    /// Repeats the order, each time with fresh micro-batches: several steps of training without a pause.
    pub fn repeated(&self, times: usize) -> Self {
        let n_micro_batches = self.n_micro_batches() as u32;
        let ranks = self
            .ranks
            .iter()
            .map(|ops| {
                (0..times as u32)
                    .flat_map(|round| {
                        ops.iter().map(move |op| Op {
                            micro_batch: op.micro_batch + round * n_micro_batches,
                            ..*op
                        })
                    })
                    .collect()
            })
            .collect();
        Self { ranks, chain: self.chain }
    }

    fn ops(&self) -> impl Iterator<Item = &Op> {
        self.ranks.iter().flatten()
    }
}
