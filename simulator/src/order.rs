//! In which order each rank runs which operations: the schedule as a value.
//!
//! An [`Order`] is what `simulate` times, what `codegen` writes and what the runtime executes; there is no other
//! description of a schedule. One file a schedule below, each with its picture, its constraint and its source.
//!
//! Stages of a second copy of the model (GEMS, Chimera, DualPipe) are numbered after the first: stage `s` sits at
//! position `s % chain` of its copy.

mod by_rank;
mod chimera;
mod controllable;
mod csv;
mod dualpipe;
mod gems;
mod gpipe;
mod in_flight;
mod interleaved;
mod layer_parallel;
mod looped_bfs;
mod one_f_one_b;
mod op;
mod pipedream;
mod program;
mod replicas;
mod row;
mod schedule;
mod table;
mod v1f1b;
mod vshape;
mod zbv;
mod zbv_search;
mod zero_bubble;

pub use self::{
    by_rank::Order,
    csv::{CsvError, from_csv, to_csv},
    in_flight::InFlight,
    interleaved::Rounds,
    op::{Kind, Op},
    program::{Program, Regular},
    replicas::{for_replicas, replicated, round_robin},
    row::Shape,
    schedule::{OrderError, make, make_for_costs, normalise},
};

table::schedules! {
    LayerParallel: layer_parallel::ROW, "one micro-batch after the other through all stages";
    GPipe: gpipe::ROW, "all forward passes, then all backward passes";
    OneForwardOneBackward: one_f_one_b::ROW, "one forward, one backward; flush at the end";
    PipeDream: pipedream::ROW, "1F1B without a flush, weight versions stashed";
    PipeDream2Bw: pipedream::DOUBLE_BUFFERED, "1F1B without a flush, two weight versions";
    Interleaved1F1B: interleaved::ROW, "1F1B over several stages a rank, depth first";
    Vpp: interleaved::VPP, "interleaved 1F1B in Megatron's grouping";
    LoopedBfs: looped_bfs::ROW, "GPipe over several stages a rank, breadth first";
    InterleavedZeroBubble: interleaved::ZERO_BUBBLE, "interleaved 1F1B, weight gradients fill the bubble; ZB-H1";
    Zb1p: zero_bubble::ONCE, "zero bubble searched for the costs, memory of 1F1B";
    Zb2p: zero_bubble::TWICE, "zero bubble searched for the costs, twice the memory";
    Zbv: zbv::ROW, "V-shaped zero bubble, fixed pattern";
    ZbvSearch: zbv_search::ROW, "V-shaped zero bubble searched for the costs";
    VHalf: controllable::HALF, "V-shaped, half the memory of 1F1B";
    VMin: controllable::MIN, "V-shaped, a third of the memory of 1F1B";
    V1f1b: v1f1b::ROW, "V-shaped 1F1B, whole backward passes";
    DualPipe: dualpipe::TWO_COPIES, "two copies from both ends, forward over backward";
    DualPipeV: dualpipe::FOLDED, "DualPipe folded into a V, one copy";
    Chimera: chimera::ROW, "two copies from both ends, merged";
    Gems: gems::MAST, "two copies, the second behind the first";
    GemsMaster: gems::MASTER, "GEMS, several pairs of passes";
}
