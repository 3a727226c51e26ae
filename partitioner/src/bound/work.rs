//! A lower bound of the step from the order of its passes, over all cuts into `p` stages. Assumes that transfers take no time.
//! `docs/bounds.md` derives it step by step.
//!
//! With `T_s = F_s + B_s` the time of stage `s` for one micro-batch, a step `X` of `m` micro-batches takes at the least
//!
//! - GPipe: `ΣF + (m-1)·max F + ΣB + (m-1)·max B ≥ ΣT + (m-1)·max T`: the last stage begins its backward passes behind its last
//!   forward pass, and each half is a flow shop.
//! - 1F1B: `Σ_{t<s} T_t + m·T_s + i + j` for each `s`. Micro-batch 0 comes back to `s` after `R = Σ_{t>s} T_t`, and `s` has only
//!   `k = p-s-1` forward passes to do meanwhile: `i ≥ R - k·F_s`. The last one likewise: `j ≥ R - k·B_s`. Where
//!   `m > p-s` these waits lie apart, so together `i + j ≥ 2R - k·T_s`.
//! - Zero-bubble, whatever its order: `Σ_{t<s} F_t + m·T_s`.
//!
//! The least `X` for which stages exist is found by bisection: for a given `X`, filling each stage in turn up to its limit gets
//! farthest, because the next stage's limit falls by less than the stage before gained. Ends of stages are rounded down to the
//! work of a state if all states are known. O(log(1/ε) · p · log Q).

use simulator::order::Schedule;

/// The grid and the work that the bound is for.
pub(crate) struct Steps<'a> {
    pub(crate) schedule: Schedule,
    pub(crate) ranks: usize,
    pub(crate) micro_batches: usize,
    /// Work before each state in ascending order, and the least forward work before it; empty if not all states are known.
    pub(crate) states: &'a [(f64, f64)],
    /// Work of all blocks, at the speed of the fastest device.
    pub(crate) total: f64,
    /// Host overhead of each pass; a stage runs at least two passes for each micro-batch.
    pub(crate) host: f64,
}

impl Steps<'_> {
    /// Returns a lower bound of the step of this schedule.
    pub(crate) fn least_step(&self) -> f64 {
        let m = self.micro_batches as f64;
        let whole = self.total + 2.0 * self.host * self.ranks as f64;
        match self.schedule {
            Schedule::LayerParallel => m * whole,
            Schedule::GPipe => {
                let slowest = self.least(&|most, _, _| most);
                whole + (m - 1.0) * slowest
            }
            Schedule::OneForwardOneBackward => self.least(&|step, stage, before| {
                let (work, _) = before;
                let own = (step - work) / m;
                let behind = self.ranks - stage - 1;
                let turns = m - 2.0 - behind as f64;
                let spare = step + work - 2.0 * whole;
                match (self.micro_batches > behind + 1, turns > 0.0) {
                    // The two waits are not disjoint, so they do not add up.
                    (false, _) => own,
                    (true, true) => own.min(spare / turns),
                    // A larger stage waits less: if the largest one does not fit the step, none does.
                    (true, false) if own * turns <= spare + 1e-9 * whole => own,
                    (true, false) => f64::NAN,
                }
            }),
            // Whatever the order, a stage begins behind the forward passes of those before it.
            _ if !self.states.is_empty() => self.least(&|step, _, (_, forward)| (step - forward) / m),
            _ => m * whole / self.ranks as f64,
        }
    }

    /// Returns the least step in which stages do all the work, none of them above its limit.
    ///
    /// `allowed` gives a stage's limit in seconds for each micro-batch, from the step, the stage, and the time of the stages
    /// before it; all with host overhead.
    fn least(&self, allowed: &dyn Fn(f64, usize, (f64, f64)) -> f64) -> f64 {
        let slack = 1.0 + 1e-12;
        // Of all states within reach, the one from which the next stage gets farthest: on a DAG not always the one with most work.
        let m = self.micro_batches as f64;
        let is_by_forward = !matches!(self.schedule, Schedule::GPipe | Schedule::OneForwardOneBackward);
        let mut farthest = self.states.to_vec();
        for index in 1..farthest.len() {
            let (one, other) = (farthest[index - 1], farthest[index]);
            if is_by_forward && one.0 - one.1 / m > other.0 - other.1 / m {
                farthest[index] = one;
            }
        }
        let is_enough = |time: f64| {
            let mut before = (0.0, 0.0);
            for stage in 0..self.ranks {
                let passes = stage as f64 * self.host;
                let own = allowed(time, stage, (before.0 + 2.0 * passes, before.1 + passes));
                if own.is_nan() {
                    return false;
                }
                let reach = before.0 + (own - 2.0 * self.host).max(0.0) * slack;
                let most;
                (most, before) = match self.states {
                    [] => (reach, (reach, 0.0)),
                    states => {
                        let index = states.partition_point(|state| state.0 <= reach * slack).max(1) - 1;
                        (states[index].0, farthest[index])
                    }
                };
                if most >= self.total * (1.0 - 1e-12) {
                    return true;
                }
            }
            false
        };
        let (mut low, mut high) = (0.0, self.total);
        while !is_enough(high) && high < self.total * 1e12 {
            (low, high) = (high, high * 2.0);
        }
        for _ in 0..60 {
            let middle = (low + high) / 2.0;
            if is_enough(middle) { high = middle } else { low = middle }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use simulator::{
        Cost,
        order::{Shape, make_for_costs},
    };

    use super::*;
    use crate::{
        grid::step_time::{StageTimes, step_time},
        oracle::random_problems::{Dice, cases, is_skipped},
    };

    /// All ways to cut `n` blocks into `p` stages.
    fn cuts(n: usize, p: usize, visit: &mut dyn FnMut(&[usize])) {
        fn go(cuts: &mut Vec<usize>, n: usize, p: usize, visit: &mut dyn FnMut(&[usize])) {
            if cuts.len() == p {
                cuts.push(n);
                visit(cuts);
                cuts.pop();
                return;
            }
            for next in cuts[cuts.len() - 1] + 1..n {
                cuts.push(next);
                go(cuts, n, p, visit);
                cuts.pop();
            }
        }
        go(&mut vec![0], n, p, visit);
    }

    #[test]
    fn no_cut_of_a_chain_is_faster() {
        let mut dice = Dice(31);
        let (mut sum, mut n) = (0.0, 0.0);
        for case in 0..cases(300) {
            let n_blocks = 1 + dice.below(8) as usize;
            let ranks = 1 + dice.below(n_blocks.min(5) as u64) as usize;
            let micro_batches = 1 + dice.below(9) as usize;
            let host = [0.0, 0.0, 1.0, 5.0][case % 4];
            let blocks: Vec<[f64; 3]> = (0..n_blocks)
                .map(|_| [dice.below(12) as f64, dice.below(9) as f64, 1.0 + dice.below(9) as f64])
                .collect();
            if is_skipped(case) {
                continue;
            }
            let mut states = vec![(0.0, 0.0)];
            for block in &blocks {
                let (work, forward) = states[states.len() - 1];
                states.push((work + block.iter().sum::<f64>(), forward + block[0]));
            }
            for schedule in [
                Schedule::GPipe,
                Schedule::OneForwardOneBackward,
                Schedule::InterleavedZeroBubble,
                Schedule::Zb2p,
                Schedule::LayerParallel,
            ] {
                let shape = Shape { ranks: ranks as u32, chunks: 1, micro_batches: micro_batches as u32 };
                let Ok(order) = make_for_costs(schedule, shape, Cost::EQUAL) else { continue };
                let mut best = f64::INFINITY;
                cuts(n_blocks, ranks, &mut |cuts| {
                    let stage = |pair: &[usize]| {
                        let sum = |kind: usize| blocks[pair[0]..pair[1]].iter().map(|b| b[kind]).sum::<f64>();
                        StageTimes {
                            forward: sum(0),
                            input_gradient: sum(1),
                            weight_gradient: sum(2),
                            accumulation: 0.0,
                            host,
                            split: 0.0,
                            send: (0.0, 0.0),
                            send_back: (0.0, 0.0),
                            buckets: (0, 0.0),
                            once: 0.0,
                        }
                    };
                    let stages: Vec<StageTimes> = cuts.windows(2).map(stage).collect();
                    best = best.min(step_time(&order, &stages, true).unwrap().seconds);
                });
                let total = states[n_blocks].0;
                let least_step =
                    |states| Steps { schedule, ranks, micro_batches, states, total, host }.least_step();
                let (exact, loose) = (least_step(&states[..]), least_step(&[]));
                assert!(
                    exact <= best * (1.0 + 1e-9) && loose <= exact * (1.0 + 1e-9),
                    "case {case}: {schedule:?} {shape:?} {blocks:?}: {loose} {exact} {best}"
                );
                sum += exact / best;
                n += 1.0;
            }
        }
        // A bound of 0 would pass as well: ask that it be tight.
        assert!(is_skipped(0) || sum / n > 0.85, "{}", sum / n);
    }

    #[test]
    fn equal_stages_are_bounded_by_the_closed_form() {
        for (ranks, micro_batches) in [(2, 4), (4, 16), (8, 64), (3, 4)] {
            for schedule in [Schedule::GPipe, Schedule::OneForwardOneBackward] {
                let (states, total, host) = (&[][..], ranks as f64, 0.0);
                let least_step = Steps { schedule, ranks, micro_batches, states, total, host }.least_step();
                let exact = (micro_batches + ranks - 1) as f64;
                assert!(
                    (least_step - exact).abs() < 1e-6 * exact,
                    "{schedule:?} {ranks} {micro_batches}: {least_step}"
                );
            }
        }
    }
}
