//! The most samples a second: copies of a pipeline side by side, each of as many stages, on a stream of micro-batches without an end.
//!
//! The slowest stage decides. Exact over the states: `A(k, j) = min over i of max(A(k-1, i), stage(i..j))`, in O(k·Q²) stages,
//! and fewer: prunes those that cannot beat the best known.

use schema::InferenceObjective;

use crate::{
    error::PlanError,
    serving::stages::{FEW_DEVICES, ROUNDING, Room, Solver, given},
    solution::{MadeBy, Objective, Solution},
    stage::run::Run,
};

impl Solver<'_> {
    /// The most micro-batches a second.
    pub(crate) fn throughput(&self) -> Result<Solution, PlanError> {
        let n_devices = self.problem.machine.devices.len();
        let is_uniform = self.problem.machine.is_uniform();
        let mut best: Option<Solution> = None;
        let mut refused = None;
        let mut is_tried = false;
        for stages in self.stages()? {
            let most = n_devices / stages;
            // A copy with fewer micro-batches than stages leaves stages idle.
            let allowed = given(self.problem).map_or(most, |count| most.min(count / stages));
            if allowed == 0 {
                refused = refused.or(Some(stages));
                continue;
            }
            is_tried = true;
            let few = !is_uniform && n_devices <= FEW_DEVICES;
            let copies = if few { 1..=allowed } else { allowed..=allowed };
            for copies in copies {
                // If the devices of each copy are adjacent, copies have links of their own; if those of each stage are, replicas
                // may be alike where devices differ.
                let layouts: &[bool] = if is_uniform || copies == 1 { &[false] } else { &[false, true] };
                for &replicas_together in layouts {
                    let below = best.as_ref().map_or(f64::INFINITY, Solution::seconds);
                    let found = self.copies(stages, copies, replicas_together, below * (1.0 - ROUNDING));
                    best = found.or(best);
                }
            }
        }
        match (best, refused, is_tried) {
            (Some(best), ..) => Ok(best),
            (None, Some(stages), false) => {
                let count = given(self.problem).unwrap_or(0);
                let reason = format!(
                    "{stages} stages need as many micro-batches in flight to be busy, and {count} are asked for"
                );
                Err(PlanError::Schedule {
                    strategy: MadeBy::Inference(InferenceObjective::Throughput).name(),
                    reason,
                })
            }
            (None, ..) => Err(PlanError::NothingFits),
        }
    }

    /// Finds the cuts whose slowest stage is fastest, for several copies of a pipeline, below `below` seconds for each micro-batch.
    fn copies(&self, stages: usize, copies: usize, replicas_together: bool, below: f64) -> Option<Solution> {
        let in_flight = given(self.problem).map_or(stages, |count| count.div_ceil(copies));
        let run = |stage: usize| {
            if replicas_together {
                Run { first: stage * copies, count: copies, stride: 1 }
            } else {
                Run { first: stage, count: copies, stride: stages }
            }
        };
        let (borders, last) = (&self.borders, self.states.len() - 1);
        // Work that the stages from each one on do in a second, in all copies.
        let mut power = vec![0.0; stages + 1];
        for stage in (0..stages).rev() {
            power[stage] = power[stage + 1] + self.scorer.place(run(stage)).speed * copies as f64;
        }
        let mut least = vec![f64::INFINITY; borders.len()];
        least[0] = 0.0;
        let mut came: Vec<Vec<u32>> = Vec::with_capacity(stages);
        for stage in 0..stages {
            let costs = self.scorer.on(run(stage), 0);
            let room = Room { memory: costs.place.limit, in_flight: in_flight as f64 };
            let sending = self.sending(run(stage));
            let mut next = vec![f64::INFINITY; borders.len()];
            let mut from = vec![u32::MAX; borders.len()];
            for (i, &start) in borders.iter().enumerate() {
                let before = least[i];
                if before >= below {
                    continue;
                }
                for (j, &end) in borders.iter().enumerate().skip(i + 1) {
                    let compute = self.work(start, end) / (costs.place.speed * copies as f64);
                    let smallest = next[j].min(below);
                    // Borders stand by growing work.
                    if compute >= below {
                        break;
                    }
                    let is_last = stage + 1 == stages;
                    let rest = self.work(end, last);
                    let is_hopeless =
                        rest > below * power[stage + 1] * (1.0 + 1e-9) || is_last && end != last;
                    if is_hopeless || before.max(compute) >= smallest || !self.is_stage(start, end) {
                        continue;
                    }
                    let sending = if is_last { 0.0 } else { sending };
                    let seconds = before.max(costs.least(start, end) + sending);
                    if seconds < smallest && self.fits(start, end, room) {
                        (next[j], from[j]) = (seconds, i as u32);
                    }
                }
            }
            least = next;
            came.push(from);
        }
        let seconds = *least.last()?;
        if seconds >= below {
            return None;
        }
        let mut at = borders.len() - 1;
        let mut cuts = Vec::with_capacity(stages);
        for stage in (0..stages).rev() {
            let before = came[stage][at] as usize;
            cuts.push((borders[before], borders[at], run(stage)));
            at = before;
        }
        cuts.reverse();
        let micro_batches = given(self.problem).unwrap_or(in_flight * copies);
        Some(self.solution(&cuts, in_flight, Objective::Period(seconds), micro_batches))
    }
}
