//! Rounds of replicas that sum their gradients after each of them: a lower bound of their time, for training without a flush.
//!
//! Between the beginnings of two backward passes of a device lie the sums of the first, the update and a forward pass: sums begin
//! behind the first gradients, the update waits for the sums, and the next pass for the update. Gradients appear from the last block
//! to the first, so what the blocks up to one have to sum waits for the backward passes of all from it on. `docs/bounds.md`,
//! "Rounds", derives it. O(blocks) to prepare, O(1) for a stage.

use crate::{Problem, dag::cut_states::States, stage::costs::StageCosts};

/// The blocks with the most parameters, whose sums are looked at one by one.
const HEAVY: usize = 8;

/// What rounds of stages over some states take.
pub(crate) struct Rounds {
    /// Seconds of the forward pass before each state.
    forward: Vec<f64>,
    /// Positions of the blocks with the most parameters, where states are positions of an order.
    heavy: Vec<usize>,
}

impl Rounds {
    pub(crate) fn of(problem: &Problem, states: &States) -> Self {
        let forward = states.sums(|block| problem.blocks[block].forward.0);
        let mut heavy: Vec<usize> =
            if states.is_line() { (0..states.len() - 1).collect() } else { Vec::new() };
        let bytes = |position: usize| states.parameters[position + 1] - states.parameters[position];
        heavy.sort_by(|&a, &b| bytes(b).total_cmp(&bytes(a)).then(a.cmp(&b)));
        heavy.truncate(HEAVY);
        Self { forward, heavy }
    }
}

impl StageCosts<'_> {
    /// Returns a lower bound of a round's seconds for each micro-batch, `update` being those of the update; 0 where replicas do not
    /// sum after every round.
    pub(crate) fn round(&self, start: usize, end: usize, update: f64) -> f64 {
        let Self { scorer, place, .. } = self;
        let (states, count) = (scorer.states, place.run.count);
        let Some(rounds) = &scorer.rounds else { return 0.0 };
        let all = if scorer.period > count { 0.0 } else { self.all_reduce(start, end) };
        if all == 0.0 {
            return 0.0;
        }
        let forward = |from: usize| (rounds.forward[end] - rounds.forward[from]) / place.speed;
        let own = rounds.heavy.iter().filter(|position| (start..end).contains(*position));
        let least = own.fold(all, |least, &position| {
            let behind = (states.work[end] - states.work[position]) / place.speed - forward(position);
            least.max(behind + place.all_reduce(states.parameters[position + 1] - states.parameters[start]))
        });
        (forward(start) + least + update) / count as f64
    }
}
