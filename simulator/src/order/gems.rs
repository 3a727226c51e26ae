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

use super::{
    InFlight, Op, Order, Shape,
    row::{Need, Row},
    vshape::stage,
};

/// One pair of passes.
pub(super) const MAST: Row = Row {
    name: "gems",
    aliases: &["gemsmast", "mast"],
    needs: |Shape { micro_batches, .. }| {
        if micro_batches == 2 {
            return Ok(());
        }
        let rule = "exactly 2 micro-batches, one for each copy".to_string();
        Err(Need::MicroBatches(rule, (micro_batches < 2).then_some(2)))
    },
    ..MASTER
};

pub(super) const MASTER: Row = Row {
    aliases: &["master"],
    copies: 2,
    in_flight: |_| InFlight::Depth(1),
    makespan: |t| {
        let pairs = || t.p * (t.f + t.b) + (t.m - 1) * (t.p * t.f.max(t.b) + t.f.min(t.b));
        t.is_without_latency().then(pairs)
    },
    ..Row::new("gems-master", |shape, _| order(shape.ranks, shape.micro_batches))
};

/// Makes the order: one pass a micro-batch, the copies in turn.
fn order(ranks: u32, micro_batches: u32) -> Order {
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
