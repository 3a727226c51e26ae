//! GEMS (Jain et al., 2020): a second copy of the model in reverse, its forward behind the first one's backward.
//!
//! ```text
//! copy 1 in stages 0-2, copy 2 in stages 3-5 from the other end
//! rank 0  0F0                 0B0        5F0 5B0
//! rank 1      1F0         1B0        4F0         4B0
//! rank 2          2F0 2B0        3F0                 3B0
//! ```
//!
//! Each rank finishes one pass before it starts the next, so one set of activations is alive (the memory that the
//! design is for) and both copies' weights. MAST is one pair of passes, MASTER repeats the pair. Time for `k` passes
//! `p(F+B) + (k−1)(p·max(F,B) + min(F,B))`.
//!
//! It is the program of the authors' MPI4DL (`gems_master.py`): a pass of one copy, forward and backward, then one of the
//! other. There a pass may run in several parts, all forward before all backward; here a pass is one micro-batch, since
//! parts would hold as many sets of activations as GPipe does. The copies' one all-reduce at the end of a step is the
//! workload's sync, over the two ranks that hold a stage.

use super::{Op, Order, vshape::stage};

/// Makes the order: one pass a micro-batch, the copies in turn.
pub(super) fn order(ranks: u32, micro_batches: u32) -> Order {
    let program = |rank: u32| {
        (0..micro_batches)
            .flat_map(|pass| {
                let stage = stage(rank, ranks, (pass % 2) as usize);
                [Op::forward(stage, pass / 2), Op::backward(stage, pass / 2)]
            })
            .collect()
    };
    Order { ranks: (0..ranks).map(program).collect(), chain: ranks }
}
