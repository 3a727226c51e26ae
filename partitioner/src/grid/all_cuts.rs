//! All cuts of a grid, if there are few: the fastest plan as the simulator times it, so that its gap is zero.
//!
//! Branch and bound, depth first over chains of states. Chosen stages bound the step from below: under 1F1B and GPipe stage `s` begins
//! after `Σ_{t<s} F_t`, and its gradients then take `Σ_{t<s} B_t` more to the first stage, transfers each way included; under
//! zero-bubble only the former holds; without pipelining all passes and transfers of a micro-batch add up. A lower bound for the
//! remaining stages, without a memory limit, is in a table filled from the last stage to the first, O(p·Q²). Prunes prefixes that
//! are no better than the best plan and takes the most promising first. Exponential at worst; gives up at a limit, and says so.

use simulator::order::Schedule;

use crate::{
    Solution,
    grid::{shape::Grid, stage_times::stage_times, step_time::StageTimes},
    pinned::Pinned,
    solution::SolutionStage,
    stage::{costs::StageCosts, memo::Memo, run::of_rank, scorer::Scorer},
};

/// Most seconds that rounding to whole nanoseconds takes off a transfer.
const ROUNDING: f64 = 1e-9;

/// Where a stage of a prefix ends, and its times.
type Timed = (usize, StageTimes);

/// Makes a plan of stages with these times, and has it simulated.
type Finish<'a> = &'a dyn Fn(Vec<SolutionStage>, &[StageTimes]) -> Option<Solution>;

/// A search over all cuts of one grid.
pub(crate) struct AllCuts<'a> {
    pub(crate) scorer: &'a Scorer<'a>,
    pub(crate) grid: Grid,
    /// Micro-batches of one replica.
    pub(crate) each: usize,
    /// Costs on the devices of each stage.
    costs: &'a [StageCosts<'a>],
    /// Makes a plan of stages and has it simulated.
    pub(crate) finish: Finish<'a>,
    /// Times of stages by index and ends; `None` where one does not fit. Most belong to many prefixes.
    known: Memo<(usize, usize, usize), Option<StageTimes>>,
    /// The best plan so far.
    pub(crate) best: Option<Solution>,
    /// Seconds of a step below which plans are looked for.
    pub(crate) bound: f64,
    /// Plans that may still be simulated.
    pub(crate) left: usize,
    /// The fastest link between the stages before and behind each boundary.
    links: Vec<LinkCost>,
    /// Lower bound of the time for a micro-batch of the stages from one on, by the state where it begins: of all of them together
    /// without pipelining, of the slowest otherwise.
    rest: Vec<Vec<f64>>,
    /// Which blocks may be in which stage.
    pinned: Pinned,
    n_beginnings: usize,
    n_scored: usize,
}

/// Seconds for each byte of a transfer, and its latency.
#[derive(Clone, Copy, Debug, Default)]
struct LinkCost {
    rate: f64,
    latency: f64,
}

/// Lower bounds from the stages before a boundary.
#[derive(Clone, Copy, Debug)]
struct Beginning {
    /// Lower bound of the step.
    least_step: f64,
    /// Seconds before and behind each micro-batch of later stages, without the transfers of this boundary.
    head: f64,
}

/// The next stage, and what else runs on its rank, if that has several chunks.
#[derive(Clone, Copy, Debug)]
struct OnRank {
    index: usize,
    /// Seconds before its first pass.
    head: f64,
    /// Seconds of its earlier chunks in a step.
    earlier: f64,
}

/// Seconds of a stage for each micro-batch; a lower bound if it is not scored yet.
#[derive(Clone, Copy, Debug)]
struct Own {
    forward: f64,
    compute: f64,
    /// Seconds of adding up gradients, in all micro-batches but the first.
    accumulation: f64,
}

impl Own {
    fn passes(self, micro_batches: f64) -> f64 {
        micro_batches * self.compute + (micro_batches - 1.0) * self.accumulation
    }
}

impl<'a> AllCuts<'a> {
    pub(crate) fn new(
        scorer: &'a Scorer<'a>,
        grid: Grid,
        each: usize,
        costs: &'a [StageCosts<'a>],
        finish: Finish<'a>,
    ) -> Self {
        Self {
            scorer,
            grid,
            each,
            costs,
            finish,
            known: Memo::default(),
            best: None,
            bound: f64::INFINITY,
            left: 0,
            links: costs.iter().map(|costs| link_before(costs)).collect(),
            rest: Vec::new(),
            pinned: Pinned::new(scorer.problem, scorer.states, costs.iter().map(|costs| costs.place.run)),
            n_beginnings: 0,
            n_scored: 0,
        }
    }

    /// Looks for a better plan than `best` and `bound`; tells whether the search was complete.
    pub(crate) fn search(&mut self) -> bool {
        let most = self.scorer.problem.training.limits.sizes.all_cuts_states;
        if self.scorer.states.len() > most && self.costs.len() > 1 {
            return false;
        }
        self.look_ahead();
        self.go(&mut Vec::new(), 0, Beginning { least_step: 0.0, head: 0.0 })
    }

    /// Seconds that a plan must take less than.
    fn limit(&self) -> f64 {
        self.best.as_ref().map_or(self.bound, |best| best.seconds().min(self.bound))
    }

    fn is_layer(&self) -> bool {
        self.grid.schedule == Schedule::LayerParallel
    }

    /// Extends a prefix of stages that ends at a state; tells whether all extensions were searched or pruned.
    fn go(&mut self, stages: &mut Vec<Timed>, start: usize, before: Beginning) -> bool {
        self.n_beginnings += 1;
        if self.n_beginnings > self.scorer.problem.training.limits.beginnings {
            return false;
        }
        let index = stages.len();
        if index == self.costs.len() {
            if self.left == 0 {
                return false;
            }
            self.left -= 1;
            if let Some(found) = self.finished(stages)
                && self.best.as_ref().is_none_or(|best| found.seconds() < best.seconds())
            {
                self.best = Some(found);
            }
            return true;
        }
        let on_rank = self.on_rank(stages);
        for (least_step, end) in self.ends(on_rank, start, before) {
            if least_step >= self.limit() {
                break;
            }
            self.n_scored += end - start;
            if self.n_scored > self.scorer.problem.training.limits.scored_blocks {
                return false;
            }
            let find = || {
                let stage = self.stage(index, start, end)?;
                Some(stage_times(&self.costs[index], start, end, &stage))
            };
            let Some(times) = self.known.get((index, start, end), find) else { continue };
            let own = Own { forward: times.there(), compute: times.both(), accumulation: times.accumulation };
            let next = self.beginning(on_rank, before, (start, end), own);
            if next.least_step >= self.limit() {
                continue;
            }
            stages.push((end, times));
            let is_done = self.go(stages, end, next);
            stages.pop();
            if !is_done {
                return false;
            }
        }
        true
    }

    /// Scores a stage; `None` where it does not fit.
    fn stage(&self, index: usize, start: usize, end: usize) -> Option<SolutionStage> {
        let costs = &self.costs[index];
        let score = costs.score(start, end)?;
        Some(SolutionStage { blocks: self.scorer.states.blocks(start, end), run: costs.place.run, score })
    }

    /// Makes a plan of stages that all fit.
    fn finished(&self, stages: &[Timed]) -> Option<Solution> {
        let (ends, times): (Vec<usize>, Vec<StageTimes>) = stages.iter().copied().unzip();
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let scored =
            starts.zip(&ends).enumerate().map(|(index, (start, end))| self.stage(index, start, *end));
        (self.finish)(scored.collect::<Option<Vec<SolutionStage>>>()?, &times)
    }

    /// Returns ends of the next stage that may lead to a better plan, with the lower bound of each, the least first.
    fn ends(&self, on_rank: OnRank, start: usize, before: Beginning) -> Vec<(f64, usize)> {
        let states = self.scorer.states;
        let last = states.len() - 1;
        let index = on_rank.index;
        let speed = self.costs[index].place.speed;
        let limit = self.limit();
        let mut ends = Vec::new();
        for end in if index + 1 == self.costs.len() { last..last + 1 } else { start + 1..last } {
            let work = states.work[end] - states.work[start];
            let compute = work / speed;
            // Prune: states are sorted by work, so later ones have no less.
            if self.each as f64 * compute >= limit {
                break;
            }
            if work <= 0.0 || !states.is_before(start, end) || !self.pinned.allows(index, start, end) {
                continue;
            }
            let own = Own { forward: 0.0, compute, accumulation: 0.0 };
            let least_step = self.beginning(on_rank, before, (start, end), own).least_step;
            if least_step < limit {
                ends.push((least_step, end));
            }
        }
        ends.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        ends
    }

    /// Returns what the rank of the next stage does besides.
    fn on_rank(&self, stages: &[Timed]) -> OnRank {
        let index = stages.len();
        if self.grid.chunks == 1 || index == self.costs.len() {
            return OnRank { index, head: 0.0, earlier: 0.0 };
        }
        let rank = self.grid.rank_of(index);
        // A rank computes all of its chunks.
        let earlier = of_rank(stages, self.grid.schedule, self.grid.ranks, rank);
        let earlier = earlier.map(|(_, times)| times.passes(self.each as f64)).sum();
        // Its first pass runs behind the forward passes of the ranks before.
        let head = stages.iter().take(rank).map(|(_, times)| times.there()).sum();
        OnRank { index, head, earlier }
    }

    /// Returns the bounds of a prefix with one more stage.
    fn beginning(
        &self,
        OnRank { index, head: ahead, earlier }: OnRank,
        before: Beginning,
        (start, end): (usize, usize),
        own: Own,
    ) -> Beginning {
        let each = self.each as f64;
        let Beginning { least_step, head } = before;
        if self.grid.chunks > 1 {
            let least = ahead + own.passes(each) + earlier;
            return Beginning { least_step: least_step.max(least), head: 0.0 };
        }
        let rest = self.rest[index + 1][end];
        let (there, back) = self.border(index, start);
        match self.grid.schedule {
            Schedule::LayerParallel => {
                let head = head + each * (there + back) + own.passes(each);
                Beginning { least_step: least_step.max(head + each * rest), head }
            }
            Schedule::GPipe | Schedule::OneForwardOneBackward => {
                let here = head + there + back;
                let next = here + own.compute;
                Beginning {
                    least_step: least_step.max(here + own.passes(each)).max(next + each * rest),
                    head: next,
                }
            }
            // Under any order, a stage begins behind the forward passes of those before it.
            _ => {
                let here = head + there;
                let next = here + own.forward;
                Beginning {
                    least_step: least_step.max(here + own.passes(each)).max(next + each * rest),
                    head: next,
                }
            }
        }
    }

    /// Lower bound of the seconds of transfers at the boundary before a stage, forward and back.
    fn border(&self, index: usize, start: usize) -> (f64, f64) {
        let (states, link) = (self.scorer.states, self.links[index]);
        let time = |bytes: f64| match index {
            0 => 0.0,
            _ => (bytes * link.rate + link.latency - ROUNDING).max(0.0),
        };
        (time(states.crossing[start]), time(states.crossing_back[start]))
    }

    /// Fills the table of lower bounds for the remaining stages.
    fn look_ahead(&mut self) {
        let states = self.scorer.states;
        let n_states = states.len();
        let last = n_states - 1;
        let n_stages = self.costs.len();
        self.rest = vec![Vec::new(); n_stages + 1];
        if self.grid.chunks > 1 {
            return;
        }
        let limit = self.limit() / self.each as f64;
        let mut rest = vec![f64::INFINITY; n_states];
        rest[last] = 0.0;
        for index in (0..n_stages).rev() {
            let costs = &self.costs[index];
            let place = &costs.place;
            let mut own = vec![f64::INFINITY; n_states];
            for start in if index == 0 { 0..1 } else { 1..last } {
                let (there, back) = self.border(index, start);
                for (end, &rest) in rest.iter().enumerate().skip(start + 1) {
                    let work = states.work[end] - states.work[start];
                    if work / place.speed >= limit {
                        break;
                    }
                    if rest >= own[start] || work <= 0.0 {
                        continue;
                    }
                    let least = costs.least(start, end);
                    if least == f64::INFINITY {
                        continue;
                    }
                    let time = if self.is_layer() {
                        there + work / place.speed + back + rest
                    } else {
                        // A port carries the transfers of all replicas of a stage. The first micro-batch's gradients are added
                        // to none.
                        let added = costs.accumulation(start, end) / self.each as f64;
                        (least * place.run.count as f64 - added).max(rest)
                    };
                    own[start] = own[start].min(time);
                }
            }
            self.rest[index + 1] = std::mem::replace(&mut rest, own);
        }
        self.rest[0] = rest;
    }
}

/// The fastest link from any replica of a stage to the stage before; a free one if that is not known.
fn link_before(costs: &StageCosts) -> LinkCost {
    let (machine, run) = (&costs.scorer.problem.machine, costs.place.run);
    let levels = run.devices().map(|device| machine.level(device.checked_sub(run.step())?, device));
    // A replica without a link waits for no transfer.
    let least = levels.map(|level| {
        level.map_or(LinkCost::default(), |level| LinkCost {
            rate: 1.0 / level.bandwidth.0,
            latency: level.latency.0,
        })
    });
    least
        .reduce(|a, b| LinkCost { rate: a.rate.min(b.rate), latency: a.latency.min(b.latency) })
        .unwrap_or_default()
}
