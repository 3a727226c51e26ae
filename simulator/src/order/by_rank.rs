//! The order as lists: what each rank runs.

use super::op::Op;

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
