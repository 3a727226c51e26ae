//! The best plan of one grid: `p` stages in a row, each on `d` devices, under a schedule.
//!
//! Chunks of a device divide its memory: equal shares are tried first, larger ones if these are too small. `attempt` solves the
//! grid for one share. Cost: that of its parts, once for each share.

use std::rc::Rc;

use crate::{
    error::PlanError,
    goal::Goal,
    grid::{
        attempt::{Attempt, Known},
        question::{GridSolver, NoGrid},
        shape::Grid,
    },
    pipeline::best::least_between,
    solution::Solution,
    stage::{place::Neighbours, score::Rules, scorer::Scorer},
};

/// Shares of a device's memory that one chunk may take if an equal one is too small.
const SHARES: [f64; 6] = [1.0, 0.8, 0.65, 0.5, 0.4, 0.3];

/// A plan by formula that takes this many times the limit comes near it.
const NEAR: f64 = 1.03;

impl GridSolver<'_> {
    /// Finds the best cuts, `each` being the micro-batches of one replica; also returns the lower bound with the devices in this
    /// order.
    ///
    /// A grid that cannot take less than `below` seconds for each micro-batch may be pruned.
    pub(crate) fn solve(&self, grid: Grid, each: usize, below: f64) -> Result<(Solution, f64), NoGrid> {
        if !self.has_room(grid, each) {
            return Err(NoGrid { error: PlanError::NothingFits, lower_bound: f64::INFINITY });
        }
        let known = Known::default();
        let share = |share: f64, below: f64| {
            let pairs = self.states.len() * self.states.len() * grid.n_stages();
            self.spent.set(self.spent.get() + pairs);
            Attempt::new(self, grid, each, below, (share, &known)).and_then(|attempt| attempt.solve())
        };
        // In a V the first chunk always needs more than an equal share: it may take all, and the rest is divided afterwards. Equal
        // shares are tried, too, where that comes near.
        let is_in_v = grid.chunks > 1 && grid.schedule.is_in_v();
        let equal = 1.0 / grid.chunks as f64;
        let mut best = share(if is_in_v { 1.0 } else { equal }, below);
        if is_in_v && known.nearest.get().is_some_and(|nearest| nearest > NEAR) {
            return best;
        }
        let step = below * (each * grid.replicas) as f64;
        let is_tight = |found: &Result<(Solution, f64), NoGrid>| match found {
            Ok((found, least)) => {
                self.goal != Goal::Any
                    && found.stages.iter().any(|stage| stage.score.overhead > 0.0)
                    && found.seconds() > *least
            }
            // A bound above the limit holds for every division of the memory.
            Err(none) => none.lower_bound < step && !known.has_room.get(),
        };
        if grid.chunks == 1 || !is_tight(&best) {
            return best;
        }
        // Outside of a V one chunk may need more than an equal share of its device's memory.
        let larger = SHARES.into_iter().filter(|larger| *larger > equal);
        let others: Vec<f64> = if is_in_v { vec![equal] } else { larger.collect() };
        for other in others {
            if self.is_spent(grid) {
                break;
            }
            let below = best.as_ref().map_or(below, |(best, _)| best.seconds_each().min(below));
            let other = share(other, below);
            best = match (best, other) {
                (Ok((best, a)), Ok((other, b))) if best.seconds() <= other.seconds() => Ok((best, a.min(b))),
                (Ok((_, a)), Ok((other, b))) => Ok((other, a.min(b))),
                (Err(_), other) => other,
                (best, Err(_)) => best,
            };
        }
        best
    }

    /// Tells whether the budget for searches with several chunks a rank is spent.
    pub(crate) fn is_spent(&self, grid: Grid) -> bool {
        grid.chunks > 1 && self.spent.get() > self.problem.training.limits.chunked_stages
    }

    /// Tells whether all devices together have room for the least bytes that all chunks hold.
    fn has_room(&self, grid: Grid, each: usize) -> bool {
        if grid.chunks == 1 {
            return true;
        }
        let in_flight = grid.schedule.in_flight(grid.ranks, grid.chunks, each, grid.replicas);
        let rules = Rules { is_asynchronous: false, in_flight, neighbours: Neighbours::Paired };
        let mut scorer = Scorer::new(self.problem, self.states, rules);
        scorer.memory_plans = Rc::clone(&self.memory_plans);
        let count = in_flight.count(grid.replicas, grid.replicas);
        let needed = least_between(&scorer, 0, self.states.len() - 1, count);
        // Replicas hold the same, so the smallest device of a rank decides.
        let memory = |device: usize| self.problem.machine.devices[device].memory.0 as f64;
        let room = |rank: usize| grid.devices(rank).devices().map(memory).fold(f64::INFINITY, f64::min);
        needed <= (0..grid.ranks).map(room).sum::<f64>() * (1.0 + 1e-9)
    }
}

#[cfg(test)]
mod tests {
    use schema::{Bytes, Seconds};

    use crate::{
        MicroBatches, Strategy,
        oracle::random_problems::{Dice, problem},
        planner::plan_with,
        simulate::peaks,
    };

    /// The loss of a language model keeps far more than any layer, and the last chunk holds one micro-batch of it at a time.
    #[test]
    fn a_large_loss_fits_interleaved_stages() {
        let mut large = problem(&mut Dice(3), 16, 4, true, true);
        for block in &mut large.blocks {
            (block.forward, block.input_gradient, block.weight_gradient) =
                (Seconds(1.0), Seconds(1.0), Seconds(1.0));
            (block.parameters, block.activations, block.workspace) = (Bytes(10), Bytes(10), Bytes(0));
        }
        (large.blocks[15].activations, large.blocks[15].kept) = (Bytes(300), Bytes(300));
        large.values.iter_mut().for_each(|value| (value.forward, value.backward) = (Bytes(1), Bytes(1)));
        large.training.micro_batches = MicroBatches::Exactly(16);
        (large.training.recompute, large.training.offload) = (false, false);
        large.machine.devices.iter_mut().for_each(|device| device.memory = Bytes(1000));
        let plan = plan_with(&large, Strategy::Interleaved).expect("it fits");
        assert_eq!(plan.stages.len() / plan.chunks(), 4);
        let held: Vec<f64> = peaks(&large, &plan).expect("it is small enough to be simulated");
        let on_rank = |rank: usize| held.iter().skip(rank).step_by(4).sum::<f64>();
        assert!((0..4).all(|rank| on_rank(rank) <= 1000.0), "{held:?}");
        assert!(on_rank(3) > 300.0, "{held:?}");
    }
}
