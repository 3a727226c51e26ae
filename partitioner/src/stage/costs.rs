//! What stages cost on one device run: their time for each micro-batch, and its lower bounds.
//!
//! With `r` replicas each takes every r-th micro-batch, so compute is divided by `r`. The port of one device carries, each way, the
//! activations of one boundary and the gradients of the other: `max(f_out/b + g_in/b', f_in/b' + g_out/b)/r`. If transfers do not overlap
//! compute, sending takes the device's own time and receiving none. Adding gradients up counts for each micro-batch, for the first of
//! a step, too, which adds to none: that is left to the simulator. Replicas that synchronize after every round (asynchronous training) add an all-reduce and the
//! optimizer's step, once for r micro-batches. Overlapping machines take the largest of the three, others the sum: the last bucket of
//! gradients, which nothing hides, is the simulator's to time. O(ties) a stage, O(1) where a table has it; memory is in `recompute`.

use std::rc::Rc;

use schema::RecomputePolicy;

use crate::stage::{
    memory_plan::MemoryPlan,
    place::{Place, Wire},
    run::Run,
    score::{BoundBy, StageScore, total},
    scorer::Scorer,
    time_table::TimeTable,
};

/// Costs of stages on one device run.
pub(crate) struct StageCosts<'a> {
    pub(crate) scorer: &'a Scorer<'a>,
    pub(crate) place: Rc<Place>,
    /// Micro-batches that a stage there has in flight.
    pub(crate) in_flight: usize,
    /// Those of them whose weights' gradients may wait.
    pub(crate) waiting: usize,
    times: Times,
}

/// Seconds of a stage for each micro-batch: of computing, of summing gradients and of the port, and those of a round in which
/// some of them follow each other.
struct Parts {
    compute: f64,
    sync: f64,
    transfer: f64,
    round: f64,
}

/// Tables of stage times, for stages that are asked for many times.
#[derive(Default)]
struct Times {
    /// Seconds without a memory limit; infinite if no stage lies between the states.
    least: Option<Rc<TimeTable>>,
    /// Seconds within memory; a negative entry is a lower bound.
    within: Option<Rc<TimeTable>>,
}

impl Scorer<'_> {
    /// Returns the costs on a run of devices; `behind` devices stand from there to the end.
    pub(crate) fn on(&self, run: Run, behind: usize) -> StageCosts<'_> {
        let in_flight = self.rules.in_flight.count(run.count, behind);
        let waiting = if self.is_bound { 0 } else { self.rules.in_flight.waiting(run.count, behind) };
        StageCosts { scorer: self, place: self.place(run), in_flight, waiting, times: Times::default() }
    }
}

impl StageCosts<'_> {
    /// Keeps times in tables that all device runs like this one share.
    pub(crate) fn with_tables(mut self, counts_memory: bool) -> Self {
        let within = if counts_memory { Some((self.in_flight, self.waiting)) } else { None };
        self.times.least = self.scorer.time_table(&self.place, None);
        self.times.within = within.and_then(|_| self.scorer.time_table(&self.place, within));
        self
    }

    /// Returns the seconds for each micro-batch without a memory limit; infinite if no stage lies between the states.
    pub(crate) fn least(&self, start: usize, end: usize) -> f64 {
        let find = || {
            let is_stage = self.scorer.states.is_before(start, end);
            if is_stage { self.seconds_with(start, end, 0.0) } else { f64::INFINITY }
        };
        let Some(table) = &self.times.least else { return find() };
        table.get(start, end).unwrap_or_else(|| {
            let seconds = find();
            table.set(start, end, seconds);
            seconds
        })
    }

    /// Returns a lower bound of the seconds for each micro-batch, infinite if the stage cannot fit, and whether it is exact: the
    /// recompute knapsack is not solved.
    pub(crate) fn at_least(&self, start: usize, end: usize) -> (f64, bool) {
        let find = || match self.least_overhead(start, end) {
            None => (f64::INFINITY, true),
            Some((overhead, is_exact)) => (self.seconds_with(start, end, overhead), is_exact),
        };
        let Some(table) = &self.times.within else { return find() };
        let least = self.least(start, end);
        if least == f64::INFINITY {
            return (least, true);
        }
        match table.get(start, end) {
            Some(seconds) => (seconds.abs(), seconds > 0.0),
            None => {
                let (seconds, is_exact) = find();
                table.set(start, end, if is_exact { seconds } else { -seconds });
                (seconds, is_exact)
            }
        }
    }

    /// Returns the seconds for each micro-batch of a stage that must recompute or offload, infinite if it does not fit.
    pub(crate) fn within_memory(&self, start: usize, end: usize) -> f64 {
        let overhead = self.seconds_to_fit(start, end);
        let seconds = overhead.map_or(f64::INFINITY, |overhead| self.seconds_with(start, end, overhead));
        if let Some(table) = &self.times.within {
            table.set(start, end, seconds);
        }
        seconds
    }

    /// Returns the seconds for each micro-batch, infinite if the stage does not fit. If they are not below `bound`, the result
    /// may be a lower bound that is not below it either: the recompute knapsack is then not solved.
    pub(crate) fn below(&self, start: usize, end: usize, bound: f64) -> f64 {
        let least = self.least(start, end);
        if least >= bound {
            return least;
        }
        match self.at_least(start, end) {
            (least, is_exact) if is_exact || least >= bound => least,
            _ => self.within_memory(start, end),
        }
    }

    /// Scores a stage; `None` where it does not fit.
    pub(crate) fn score(&self, start: usize, end: usize) -> Option<StageScore> {
        let limit = self.place.limit;
        Some(self.scored(start, end, self.memory_plan(start, end, limit)?, limit))
    }

    /// Scores a stage with a given choice of what is recomputed and offloaded.
    pub(crate) fn scored(&self, start: usize, end: usize, plan: MemoryPlan, limit: f64) -> StageScore {
        let Parts { compute, sync, transfer, round } = self.parts(start, end, plan.seconds);
        let policy = |block: &usize| self.scorer.problem.blocks[*block].recompute;
        let is_asked = |block: &usize| policy(block).is_some_and(RecomputePolicy::is_again);
        let is_as_asked = plan.offload.is_empty() && plan.recompute.iter().all(is_asked);
        let mut score = StageScore {
            seconds: 0.0,
            compute,
            overhead: plan.seconds / self.place.run.count as f64,
            sync,
            transfer,
            round,
            memory: plan.memory,
            limit,
            recompute: plan.recompute,
            light: plan.light,
            recompute_unit: plan.unit,
            offload: plan.offload,
            is_as_asked,
            bound_by: BoundBy::Compute,
        };
        score.settle(self.scorer.problem.machine.overlaps);
        score
    }

    /// Seconds of one all-reduce over the replicas.
    pub(crate) fn all_reduce(&self, start: usize, end: usize) -> f64 {
        let scorer = self.scorer;
        let own = self.place.all_reduce(scorer.parameters(start, end));
        let shared = scorer.shared(start, end);
        if shared == 0.0 {
            return own;
        }
        // The other holders are not known yet: assume one device over the fastest link.
        own + shared * scorer.problem.machine.least_seconds_per_byte()
    }

    /// Returns the seconds for each micro-batch, with `overhead` for recomputation and offload.
    fn seconds_with(&self, start: usize, end: usize, overhead: f64) -> f64 {
        let Parts { compute, sync, transfer, round } = self.parts(start, end, overhead);
        total(self.scorer.problem.machine.overlaps, compute, sync, transfer).max(round)
    }

    /// Seconds of a stage for each micro-batch.
    fn parts(&self, start: usize, end: usize, overhead: f64) -> Parts {
        let Self { scorer, place, .. } = self;
        let replicas = place.run.count as f64;
        let work = scorer.states.work[end] - scorer.states.work[start];
        let training = &scorer.problem.training;
        // Each micro-batch of a replica but the first of an update adds its gradients to those before it.
        let accumulation = self.accumulation(start, end);
        let (sync, update, accumulation) = if scorer.rules.is_asynchronous {
            let every = place.run.count.max(scorer.period) as f64;
            let sharers = if scorer.shares_updates { replicas } else { 1.0 };
            let touched = scorer.parameters(start, end) * training.touched();
            let update = touched / place.memory_bandwidth / sharers * (replicas / every);
            (self.all_reduce(start, end) / every, update, accumulation * (1.0 - replicas / every))
        } else {
            (0.0, 0.0, accumulation)
        };
        let passes = work / place.speed + overhead + accumulation + scorer.problem.host_of_two();
        let compute = (passes + update) / replicas;
        let compute = if scorer.waits_for_sums { compute + sync } else { compute };
        let round = self.round(start, end, update);
        Parts { compute, sync, transfer: self.transfer(start, end), round }
    }

    /// Seconds of adding the gradients of a micro-batch to those before it.
    pub(crate) fn accumulation(&self, start: usize, end: usize) -> f64 {
        let Self { scorer, place, .. } = self;
        scorer.parameters(start, end) * scorer.problem.training.accumulated() / place.memory_bandwidth
    }

    /// Seconds of the fuller direction of the port.
    fn transfer(&self, start: usize, end: usize) -> f64 {
        let (states, place) = (self.scorer.states, &self.place);
        let is_first = start == 0;
        let is_last = end + 1 == states.len();
        let (f_in, g_in) =
            if is_first { (0.0, 0.0) } else { (states.crossing[start], states.crossing_back[start]) };
        let (f_out, g_out) =
            if is_last { (0.0, 0.0) } else { (states.crossing[end], states.crossing_back[end]) };
        // Beside compute, the fuller direction of a port counts; without overlap, all that it sends.
        let port = |((before, inner), (after, outer)): (Wire, Wire)| {
            let sum = |a: f64, b: f64| if inner == outer { a + b } else { a.max(b) };
            if self.scorer.problem.machine.overlaps {
                sum(f_out * after, g_in * before).max(sum(f_in * before, g_out * after))
            } else {
                f_out * after + g_in * before
            }
        };
        place.wires.iter().map(|wires| port(*wires)).fold(0.0, f64::max) / place.run.count as f64
    }
}
