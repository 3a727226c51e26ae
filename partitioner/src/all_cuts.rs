//! All cuts of a grid, where there are few: the fastest as the simulator times it, and nothing left to doubt.
//!
//! Depth first over chains of states. Stages that are chosen bound the step from below: under 1F1B and GPipe stage `s` begins after
//! `Σ_{t<s} F_t` and what it has sent back takes `Σ_{t<s} B_t` more, under zero-bubble only the former holds, and
//! work that is left keeps the ranks that are left busy. A beginning that is no better than the best plan is given up.

use simulator::order::Schedule;

use crate::{
    Solution,
    grid::stage_times,
    grids::Grid,
    pipeline::Cut,
    solution::SolutionStage,
    stage::{Run, Scorer},
    step::StageTimes,
};

/// The most states that cuts are made of.
const STATES: usize = 500;
/// The most beginnings that are looked at.
const BEGINNINGS: usize = 100_000;
/// The most states that scored stages span, all together: scoring one takes as long as it has blocks.
const WORK: usize = 400_000;

/// A stage, scored and timed.
type Timed = (SolutionStage, StageTimes);

/// A search over all cuts of one grid.
pub(crate) struct AllCuts<'a> {
    pub(crate) scorer: &'a Scorer<'a>,
    pub(crate) grid: Grid,
    /// Micro-batches of one replica.
    pub(crate) each: usize,
    pub(crate) places: &'a [(Run, usize)],
    /// Makes a plan of stages and has it simulated.
    pub(crate) finish: &'a dyn Fn(Vec<Timed>) -> Option<Solution>,
    /// The best plan so far.
    pub(crate) best: Option<Solution>,
    /// Plans that may still be simulated.
    pub(crate) left: usize,
    n_beginnings: usize,
    n_scored: usize,
}

impl<'a> AllCuts<'a> {
    pub(crate) fn new(
        scorer: &'a Scorer<'a>,
        grid: Grid,
        each: usize,
        places: &'a [(Run, usize)],
        finish: &'a dyn Fn(Vec<Timed>) -> Option<Solution>,
    ) -> Self {
        Self { scorer, grid, each, places, finish, best: None, left: 0, n_beginnings: 0, n_scored: 0 }
    }

    /// Looks for a better plan than `best`; tells whether all cuts were looked at.
    pub(crate) fn search(&mut self) -> bool {
        self.scorer.states.len() <= STATES && self.go(&mut Vec::new(), 0, 0.0, 0.0)
    }

    /// Goes on from a state, stages before which take `head` before and behind each micro-batch of later ones.
    fn go(&mut self, stages: &mut Vec<Timed>, start: usize, head: f64, floor: f64) -> bool {
        self.n_beginnings += 1;
        if self.n_beginnings > BEGINNINGS {
            return false;
        }
        let states = self.scorer.states;
        let last = states.len() - 1;
        let index = stages.len();
        if index == self.places.len() {
            if self.left == 0 {
                return false;
            }
            self.left -= 1;
            if let Some(found) = (self.finish)(stages.clone())
                && self.best.as_ref().is_none_or(|best| found.seconds() < best.seconds())
            {
                self.best = Some(found);
            }
            return true;
        }
        let (run, behind) = self.places[index];
        let is_last = index + 1 == self.places.len();
        for end in if is_last { last..last + 1 } else { start + 1..last } {
            let is_empty = states.work[end] <= states.work[start];
            if is_empty || !states.is_before(start, end) {
                continue;
            }
            self.n_scored += end - start;
            if self.n_scored > WORK {
                return false;
            }
            let cut = Cut { start, end, run, behind };
            let Some(score) = self.scorer.score(start, end, run, behind) else { continue };
            let stage = SolutionStage { blocks: states.blocks(start, end), run, score };
            let times = stage_times(self.scorer, &cut, &stage);
            let (floor, head) = self.floors((floor, head), &times, start, end, index);
            if self.best.as_ref().is_some_and(|best| floor >= best.seconds()) {
                continue;
            }
            stages.push((stage, times));
            let is_done = self.go(stages, end, head, floor);
            stages.pop();
            if !is_done {
                return false;
            }
        }
        true
    }

    /// Seconds of a step at the least, and before and behind later stages, once a stage is added.
    fn floors(
        &self,
        (floor, head): (f64, f64),
        times: &StageTimes,
        start: usize,
        end: usize,
        index: usize,
    ) -> (f64, f64) {
        let states = self.scorer.states;
        let each = self.each as f64;
        let own = times.forward + times.input_gradient + times.weight_gradient;
        if self.grid.chunks > 1 {
            return (floor.max(each * own), 0.0);
        }
        let fastest = self.places[index..].iter().flat_map(|(run, _)| run.devices());
        let speed =
            fastest.map(|device| self.scorer.problem.machine.devices[device].speed).fold(0.0, f64::max);
        let n_left = (self.places.len() - index - 1) as f64;
        let work = states.work[states.len() - 1] - states.work[end];
        let rest = |head: f64| if n_left > 0.0 { head + each * work / speed / n_left } else { 0.0 };
        debug_assert!(start < end);
        match self.grid.schedule {
            Schedule::LayerParallel => {
                let head = head + each * own;
                (floor.max(head + each * work / speed), head)
            }
            Schedule::GPipe | Schedule::OneForwardOneBackward => {
                (floor.max(head + each * own).max(rest(head + own)), head + own)
            }
            Schedule::InterleavedZeroBubble => {
                let behind = head + times.forward;
                (floor.max(head + each * own).max(rest(behind)), behind)
            }
            _ => (floor.max(each * own), 0.0),
        }
    }
}
