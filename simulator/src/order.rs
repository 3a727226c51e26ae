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
    by_rank::Order,
    csv::{CsvError, from_csv, to_csv},
    op::{Kind, Op},
    program::{Program, Regular},
    replicas::{for_replicas, replicated, round_robin},
    schedule::{ALL, OrderError, Schedule, Shape, make, make_for_costs, normalise},
};
