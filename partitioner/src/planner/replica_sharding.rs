//! Plans whose replicas shard optimizer state, gradients or parameters.
//!
//! ZeRO's levels (Rajbhandari et al., SC 2020, arXiv:1910.02054); the last is PyTorch's FSDP. Level by level, strategies with
//! replicas are planned again with less memory for a stage and more traffic, among all replicas of a stage or inside nodes
//! (hybrid sharding). Each level sends what the one before sends, and more: once every device could hold the whole model at one
//! level, higher levels are not searched. Cost: that of the strategies' own searches, once a level.

use schema::{MicroBatchesTried, ShardingLevel};

use crate::{
    MicroBatches, PlanError, Problem, Solution, Strategy,
    cut_space::CutSpace,
    goal::Goal,
    planner::{
        micro_batches::{ENOUGH, counts},
        planned::Tried,
        solve,
    },
    simulate::state_memory,
    strategy::asked_or_all,
};

/// Share by which a plan that shards more must be faster: predicted times are no more certain, and more can go wrong.
const WORTH: f64 = 0.01;

/// Returns the plans of a problem, or better ones with as much sharding as the training allows.
///
/// Plans that take `below` seconds for each micro-batch are of no use. The problem is left with the level, and the number of
/// micro-batches, that the best plan has.
pub(crate) fn or_better(
    problem: &mut Problem,
    cut_space: &CutSpace,
    asked: Option<Strategy>,
    whole: Result<Tried, PlanError>,
    below: f64,
) -> Result<Tried, PlanError> {
    let (own, most) = (problem.training.sharding, problem.training.sharding_up_to);
    let mut plans = whole;
    // A level that was asked for may also be used inside nodes.
    let is_open = own != ShardingLevel::None && groups(problem).len() > 1;
    let is_candidate = |level: &ShardingLevel| (*level > own || *level == own && is_open) && *level <= most;
    for level in ShardingLevel::ALL.into_iter().filter(is_candidate) {
        let fastest = plans.as_ref().ok().map(|((best, ..), _)| best);
        let mut shared = at(problem, level, fastest);
        let groups = groups(&shared);
        let (found, least) = at_level(&mut shared, cut_space, asked, (fastest, below), &groups);
        if let Some(best) = found {
            problem.clone_from(&shared);
            problem.training.sharding_up_to = most;
            plans = Ok(in_place_of(plans.ok(), best));
        }
        if let Ok(((best, ..), _)) = &mut plans {
            best.bound_by(least);
            // Higher levels would only add traffic.
            if holds_whole(&shared) {
                break;
            }
        }
    }
    plans
}

/// Returns the problem at a level, with a plan's number of micro-batches if the planner chose it: with another number the work
/// differs.
fn at(problem: &Problem, level: ShardingLevel, plan: Option<&Solution>) -> Problem {
    let mut shared = problem.clone();
    (shared.training.sharding, shared.training.sharding_up_to) = (level, level);
    if let (MicroBatches::Enough, Some(plan)) = (problem.training.micro_batches, plan) {
        shared.training.micro_batches = MicroBatches::About(plan.micro_batches);
    }
    shared
}

/// Tells whether each device could hold the whole model as one of all replicas, and so any stage of it.
fn holds_whole(problem: &Problem) -> bool {
    let n_devices = problem.machine.devices.len();
    // One more copy, for gradients that are being summed.
    let parameters = problem.parameters() * (1.0 + problem.training.copies(n_devices));
    let activations: f64 = problem.blocks.iter().map(|block| block.activations.0 as f64).sum();
    let workspace = problem.blocks.iter().map(|block| block.workspace.0 as f64).fold(0.0, f64::max);
    let needed = parameters + activations + workspace;
    problem.machine.devices.iter().all(|device| needed <= device.memory.0 as f64)
}

/// Puts a plan before those that it beats.
fn in_place_of(beaten: Option<Tried>, mut best: Solution) -> Tried {
    let Some(((second, mut others, mut failed), mut tried)) = beaten else {
        return ((best, Vec::new(), Vec::new()), Vec::new());
    };
    best.bound_by(second.lower_bound_each());
    failed.retain(|(strategy, _)| Some(*strategy) != best.made_by.strategy());
    let seconds = best.seconds_each();
    if !tried.is_empty() {
        tried.retain(|one| one.micro_batches != best.micro_batches);
        tried.push(MicroBatchesTried { micro_batches: best.micro_batches, seconds_each: seconds });
        tried.sort_by_key(|one| one.micro_batches);
    }
    others.insert(0, second);
    ((best, others, failed), tried)
}

/// Finds the best plan with the training's sharding, and the lower bound in seconds for each micro-batch.
///
/// If there is a plan to beat, only plans faster by a margin are searched for. The fewest micro-batches that come near the best
/// are taken.
fn at_level(
    problem: &mut Problem,
    cut_space: &CutSpace,
    asked: Option<Strategy>,
    (to_beat, below): (Option<&Solution>, f64),
    groups: &[Option<u32>],
) -> (Option<Solution>, f64) {
    let is_free = problem.training.micro_batches == MicroBatches::Enough;
    let counts = if is_free {
        counts(problem).into_iter().map(MicroBatches::About).collect()
    } else {
        vec![problem.training.micro_batches]
    };
    let mut strategies = asked_or_all(problem, asked);
    strategies.retain(|strategy| strategy.row().has_replicas);
    // The plan to beat is the best of all, among them those without replicas; below the limit, if none was found there.
    let is_open = to_beat.is_none() && below == f64::INFINITY;
    problem.training.only_replicas = !is_open;
    let to_beat = to_beat.map_or(below, |plan| below.min(plan.seconds_each() * (1.0 - WORTH)));
    let to_beat = (!is_open).then_some(to_beat);
    let mut found: Vec<Solution> = Vec::new();
    let mut least = f64::INFINITY;
    for count in counts {
        problem.training.micro_batches = count;
        let mut best: Option<Solution> = None;
        for (&strategy, &group) in
            strategies.iter().flat_map(|one| groups.iter().map(move |group| (one, group)))
        {
            // Only stages with more than one group are new.
            (problem.training.sharding_group, problem.training.only_groups) = (group, group.is_some());
            let limit = best.as_ref().map(Solution::seconds_each).or(to_beat);
            match solve(problem, cut_space, strategy, limit.map_or(Goal::Best, Goal::Below)) {
                Ok(plan) => {
                    least = least.min(plan.lower_bound_each());
                    if limit.is_none_or(|limit| plan.seconds_each() < limit) {
                        best = Some(plan);
                    }
                }
                Err((_, bound)) => least = least.min(bound),
            }
        }
        found.extend(best);
    }
    (problem.training.only_groups, problem.training.only_replicas) = (false, false);
    let fastest = found.iter().map(Solution::seconds_each).fold(f64::INFINITY, f64::min);
    let Some(mut plan) = found.into_iter().find(|plan| plan.seconds_each() <= ENOUGH * fastest) else {
        return (None, least);
    };
    if is_free {
        problem.training.micro_batches = MicroBatches::About(plan.micro_batches);
    }
    problem.training.sharding_group = plan.execution.sharding_group;
    state_memory(problem, &mut plan);
    (Some(plan), least)
}

/// Returns the groups that may shard together: all replicas of a stage, or those in a node if links between nodes differ.
fn groups(problem: &Problem) -> Vec<Option<u32>> {
    let devices = &problem.machine.devices;
    let own = devices.iter().take_while(|device| device.place == devices[0].place).count();
    let is_one_of_many = problem.training.sharding_inside
        && problem.machine.levels.len() > 1
        && own > 1
        && own < devices.len();
    let node = is_one_of_many.then_some(Some(own as u32));
    std::iter::once(None).chain(node).collect()
}

#[cfg(test)]
mod tests {
    use schema::Bytes;

    use super::*;
    use crate::oracle::random_problems::{Dice, cases, is_skipped, problem};

    /// With sharding in groups, only stages with more than one group are new: the others are planned without groups.
    #[test]
    fn stages_of_one_group_are_known() {
        let mut dice = Dice(53);
        let (mut n_plans, mut n_grouped) = (0, 0);
        for case in 0..cases(400) {
            let n_blocks = 2 + dice.below(4) as usize;
            let mut problem = problem(&mut dice, n_blocks, 6, true, true);
            let memory = 60 + dice.below(400);
            problem.machine.devices.iter_mut().for_each(|device| device.memory = Bytes(memory));
            problem.training.micro_batches = MicroBatches::About(1 + dice.below(8) as u32);
            problem.training.sharding = ShardingLevel::ALL[1 + dice.below(3) as usize];
            if is_skipped(case) {
                continue;
            }
            let cut_space = CutSpace::of(&problem);
            for strategy in [Strategy::DataParallel, Strategy::Hybrid] {
                let mut seconds = |group, only_groups| {
                    (problem.training.sharding_group, problem.training.only_groups) = (group, only_groups);
                    let found = solve(&problem, &cut_space, strategy, Goal::Best);
                    found.map_or(f64::INFINITY, |plan| plan.seconds_each())
                };
                let (together, inside, only) =
                    (seconds(None, false), seconds(Some(2), false), seconds(Some(2), true));
                assert_eq!(together.min(inside), together.min(only), "case {case}, {strategy:?}");
                n_plans += u32::from(only.is_finite());
                n_grouped += u32::from(only < together);
            }
        }
        assert!(is_skipped(0) || n_plans > 10 && n_grouped > 0, "{n_plans} plans, {n_grouped} faster");
    }
}
