//! How far stages reach within a time limit, by costs that only grow with a stage.
//!
//! A stage's compute, what it adds up, and the least that it must recompute to fit its memory grow with its blocks; transfers are
//! left out, and buffers are those of the narrowest cut. With such costs the chain whose stages each take all that they may gets
//! farthest, so one walk from either end bounds where each stage of any chain can begin (`docs/bounds.md`, "Slowest stage").
//!
//! Over one order of the blocks: O(stages · log(blocks)) costs a walk.

use crate::stage::costs::StageCosts;

/// Share by which the least limit may be too low.
const NEAR: f64 = 1e-3;

/// Sums are rounded.
const SLACK: f64 = 1.0 + 1e-9;

/// Costs of stages, the last one first, over one order of the blocks.
pub(crate) struct Stages<'a> {
    costs: Vec<StageCosts<'a>>,
    counts_memory: bool,
    /// The state with all blocks before it.
    last: usize,
    /// Fewest bytes that cross a cut, forward and back.
    narrowest: (f64, f64),
}

/// The first and the last state at which a stage may begin, by the number of stages from there to the end.
#[derive(Clone)]
pub(crate) struct Reach(Vec<(usize, usize)>);

impl Reach {
    /// Returns these states for the stage from which so many are left.
    pub(crate) fn begins(&self, n_left: usize) -> (usize, usize) {
        self.0[n_left]
    }
}

impl<'a> Stages<'a> {
    /// Takes the costs of stages, the last one first.
    pub(crate) fn new(costs: Vec<StageCosts<'a>>, counts_memory: bool) -> Option<Self> {
        let states = costs.first()?.scorer.states;
        let last = states.len() - 1;
        let least = |bytes: &[f64]| bytes[1..last.max(1)].iter().copied().fold(f64::INFINITY, f64::min);
        let narrowest = (least(&states.crossing), least(&states.crossing_back));
        Some(Self { costs, counts_memory, last, narrowest })
    }

    /// Tells whether the blocks between two states may be a stage within the limit.
    fn fits(&self, layer: usize, (start, end): (usize, usize), limit: f64) -> bool {
        if start == end {
            return true;
        }
        let costs = &self.costs[layer - 1];
        // Bytes of the narrowest cut, which only a stage at the end of the model lacks.
        let of = |has: bool, bytes: f64| if has { bytes } else { 0.0 };
        let (is_after, is_before) = (start > 0, end < self.last);
        let (forward, back) = self.narrowest;
        let buffers = of(is_after, forward + back) + of(is_before, forward + back * costs.in_flight as f64);
        let memory = self.counts_memory.then_some(buffers);
        let seconds = costs.relaxed(start, end, memory);
        seconds < f64::INFINITY && seconds <= limit * SLACK
    }

    /// Returns the first state from which a stage of this layer reaches an end.
    fn earliest(&self, layer: usize, end: usize, limit: f64) -> usize {
        if self.fits(layer, (0, end), limit) {
            return 0;
        }
        let (mut low, mut high) = (0, end);
        while high - low > 1 {
            let middle = low.midpoint(high);
            if self.fits(layer, (middle, end), limit) { high = middle } else { low = middle }
        }
        high
    }

    /// Returns the last state that a stage of this layer reaches from a start.
    fn latest(&self, layer: usize, start: usize, limit: f64) -> usize {
        if self.fits(layer, (start, self.last), limit) {
            return self.last;
        }
        let (mut low, mut high) = (start, self.last);
        while high - low > 1 {
            let middle = low.midpoint(high);
            if self.fits(layer, (start, middle), limit) { low = middle } else { high = middle }
        }
        low
    }

    /// Returns the first state from which stages reach the end, by their number; `None` if all of them do not take all blocks.
    fn back(&self, limit: f64) -> Option<Vec<usize>> {
        let mut first = vec![self.last];
        for layer in 1..=self.costs.len() {
            let end = first[layer - 1];
            // No stage is empty.
            if end == self.last && layer > 1 {
                return None;
            }
            first.push(if end == 0 { 0 } else { self.earliest(layer, end, limit) });
        }
        (first[self.costs.len()] == 0).then_some(first)
    }

    /// Returns where the stages of chains within the limit may begin; `None` if there is no such chain.
    pub(crate) fn reach(&self, limit: f64) -> Option<Reach> {
        let first = self.back(limit)?;
        let n_stages = self.costs.len();
        let mut last = vec![0; n_stages + 1];
        for layer in (1..=n_stages).rev() {
            let start = last[layer];
            last[layer - 1] = if start == self.last { start } else { self.latest(layer, start, limit) };
        }
        Some(Reach(first.into_iter().zip(last).collect()))
    }

    /// Returns a lower bound of the slowest stage's time, at least `least`; `None` if it is above `most`.
    pub(crate) fn least(&self, least: f64, most: f64) -> Option<f64> {
        if least == f64::INFINITY {
            return Some(least);
        }
        self.back(most)?;
        let (mut low, mut high) = (least, least * (1.0 + NEAR));
        while high < most && self.back(high).is_none() {
            (low, high) = (high, least + 2.0 * (high - least));
        }
        let mut high = high.min(most);
        while low > least && high - low > NEAR * low {
            let middle = low.midpoint(high);
            match self.back(middle) {
                Some(_) => high = middle,
                None => low = middle,
            }
        }
        Some(low)
    }
}
