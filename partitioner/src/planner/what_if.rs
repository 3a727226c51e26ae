//! What a change of the cluster would give.
//!
//! Each question is planned again on a machine that differs in one thing, with the strategy that was asked for, or any. The plan
//! at hand runs there as well, so only faster ones are searched for.

use schema::{Bytes, BytesPerSecond};

use crate::{
    Machine, MicroBatches, Problem, Solution, Strategy, cut_space::CutSpace, goal::Goal, planner::solve,
    strategy::candidates,
};

/// The change that adds a device.
pub const ONE_MORE: &str = "one more device";

/// A change of the machine, and each micro-batch's seconds after it.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The change in words.
    pub change: &'static str,
    /// Seconds for each micro-batch.
    pub seconds: f64,
}

/// Tries one more device, links twice as fast, and twice the memory: with the strategy that was asked for, or the best of all.
///
/// Ways to cut are those of the same model, whatever its machine.
pub fn what_if(
    problem: &Problem,
    cut_space: &CutSpace,
    solution: &Solution,
    asked: Option<Strategy>,
) -> Vec<Change> {
    let Some(strategy) = solution.made_by.strategy() else { return Vec::new() };
    // A fixed number of micro-batches, so that times compare.
    let mut problem = problem.clone();
    if !matches!(problem.training.micro_batches, MicroBatches::Exactly(_)) {
        problem.training.micro_batches = MicroBatches::About(solution.micro_batches);
    }
    let own = solution.seconds_each();
    // The plan's own strategy first: its time prunes the others. Chunks take longest to search and are seldom much faster than
    // zero-bubble schedules.
    let mut strategies = vec![strategy];
    if asked.is_none() {
        let is_quick = |other: &Strategy| *other != strategy && !other.row().is_slow;
        strategies.extend(candidates(&problem).filter(is_quick));
    }
    let ask = |change: &'static str, machine: Machine, needs: &dyn Fn(&Solution) -> bool| {
        let changed = Problem { machine, ..problem.clone() };
        changed.validate().ok()?;
        if strategy.is_rule() {
            let found = solve(&changed, cut_space, strategy, Goal::Best).ok()?;
            return Some(Change { change, seconds: found.seconds_each() });
        }
        let mut seconds = own;
        for &strategy in &strategies {
            let found = solve(&changed, cut_space, strategy, Goal::Below(seconds)).ok();
            seconds = found.filter(needs).map_or(seconds, |found| found.seconds_each().min(seconds));
        }
        Some(Change { change, seconds })
    };
    let machine = &problem.machine;
    let larger = machine.grown(machine.devices.len() + 1);
    let mut faster = machine.clone();
    let levels = faster.levels.iter_mut().chain(faster.links.iter_mut().map(|(.., level)| level));
    levels.for_each(|level| level.bandwidth = BytesPerSecond(level.bandwidth.0 * 2.0));
    let mut roomier = machine.clone();
    roomier.devices.iter_mut().for_each(|device| device.memory = Bytes(device.memory.0.saturating_mul(2)));
    let mut changes = Vec::new();
    if !machine.levels.is_empty() {
        changes.extend(ask(ONE_MORE, larger, &|_| true));
        changes.extend(ask("twice the bandwidth", faster, &|_| true));
    }
    // A plan that fits half the memory owes nothing to the change.
    changes.extend(ask("twice the memory", roomier, &Solution::is_tight));
    changes
}
