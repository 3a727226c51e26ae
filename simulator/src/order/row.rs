//! What a schedule is: everything that differs from one to the next, said in the schedule's own file.

use super::{InFlight, Order};
use crate::{cost::Cost, versions::Updates};

/// How large an order is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Pipeline ranks.
    pub ranks: u32,
    /// Stages of one copy of the model on each rank.
    pub chunks: u32,
    /// Micro-batches of the step, over all copies of the model.
    pub micro_batches: u32,
}

/// A schedule.
pub(super) struct Row {
    /// The name that `--schedule` takes.
    pub(super) name: &'static str,
    /// What papers and PyTorch call it, without case and punctuation.
    pub(super) aliases: &'static [&'static str],
    /// Makes the order of a shape that `needs` allows.
    pub(super) order: fn(Shape, Cost) -> Order,
    /// Whether the order is searched for the costs, and not fixed by its shape alone.
    pub(super) is_searched: bool,
    /// Copies of the model; the second starts at the other end.
    pub(super) copies: u32,
    pub(super) chunks: Chunks,
    /// When weights change while micro-batches of so many a step are under way; none where a step ends with a flush.
    pub(super) updates: Option<fn(u32) -> Updates>,
    /// The same with vertical sync, or why that changes nothing.
    pub(super) vertical_sync: Result<Updates, &'static str>,
    /// Which ranks and micro-batches it takes.
    pub(super) needs: fn(Shape) -> Result<(), Need>,
    /// Micro-batches whose activations a stage holds.
    pub(super) in_flight: fn(&Share) -> InFlight,
    /// The exact time of a step, under the condition that the file's head names; none outside of it.
    pub(super) makespan: fn(&Terms) -> Option<i128>,
}

impl Row {
    /// One stage a rank, any number of micro-batches, a flush, no closed form.
    pub(super) const fn new(name: &'static str, order: fn(Shape, Cost) -> Order) -> Self {
        Self {
            name,
            aliases: &[],
            order,
            is_searched: false,
            copies: 1,
            chunks: Chunks::One,
            updates: None,
            vertical_sync: Err("its steps end with a flush, and every stage has one version of its weights"),
            needs: |_| Ok(()),
            in_flight: |share| InFlight::Split((2 * share.ranks).min(share.each) as u32),
            makespan: |_| None,
        }
    }
}

/// Stages that a rank holds of one copy of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chunks {
    One,
    /// As many as are asked for, dealt in turn.
    Any,
    /// One on the way down through the ranks and one on the way back.
    V,
}

/// What a shape lacks.
pub(super) enum Need {
    /// Another number of ranks: the rule in words.
    Ranks(&'static str),
    /// Another number of micro-batches: the rule in words, and the smallest legal number that is no smaller.
    MicroBatches(String, Option<u32>),
}

/// Who shares the micro-batches of a step.
pub(super) struct Share {
    pub(super) ranks: usize,
    pub(super) chunks: usize,
    pub(super) replicas: usize,
    /// Micro-batches of one replica.
    pub(super) each: usize,
}

/// Ranks, chunks, micro-batches, and a stage's times as formulas write them; `b` is `i + w`, `c` a hop's latency.
pub(super) struct Terms {
    pub(super) p: i128,
    pub(super) v: i128,
    pub(super) m: i128,
    pub(super) f: i128,
    pub(super) i: i128,
    pub(super) w: i128,
    pub(super) b: i128,
    pub(super) c: i128,
}

impl Terms {
    pub(super) fn new(shape: Shape, cost: &Cost) -> Self {
        let [p, v, m] = [shape.ranks, shape.chunks, shape.micro_batches].map(i128::from);
        let Cost { forward, input_gradient, weight_gradient, hop } = *cost;
        let [f, i, w, c] = [forward, input_gradient, weight_gradient, hop].map(i128::from);
        Self { p, v, m, f, i, w, b: i + w, c }
    }

    pub(super) fn is_without_latency(&self) -> bool {
        self.c == 0
    }
}
