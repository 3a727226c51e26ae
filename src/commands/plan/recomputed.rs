//! Calls that are always or never recomputed: `--recompute`, and `recompute` of a plan's constraints.

use std::ops::Range;

use graph::ModelGraph;
use partitioner::{Grain, Problem, Sliceable};
use schema::{Plan, RecomputePolicy, RecomputedCalls};

use super::{arguments::is_meant, operators_of::operators_of};
use crate::{failure::Failure, nearest::meant, workspace::Workspace};

/// Tells whether a call has a policy.
pub(super) fn is(all: &[RecomputedCalls], policy: RecomputePolicy, block: &graph::Block) -> bool {
    all.iter().any(|own| own.policy == policy && is_meant(&own.calls, block))
}

/// Marks the blocks of a grain that are always recomputed, and those that never are.
pub(super) fn mark(
    problem: &mut Problem,
    model: &Sliceable<'_>,
    grain: &Grain,
    graph: &ModelGraph,
    all: &[RecomputedCalls],
) {
    for own in all {
        for block in model.blocks_of(grain, &operators(own, graph)) {
            problem.blocks[block].recompute = Some(own.policy);
        }
    }
}

/// Refuses unknown calls, calls of both policies, and parts of calls that are kept whole: these are recomputed whole, too.
pub(super) fn check(
    all: &[RecomputedCalls],
    keep_together: &[String],
    workspace: &Workspace,
) -> Result<(), Failure> {
    let graph = &workspace.graph;
    let is_kept = |block: &&graph::Block| {
        block.parent.is_some() && keep_together.iter().any(|pattern| is_meant(pattern, block))
    };
    let kept: Vec<&graph::Block> = graph.blocks.iter().filter(is_kept).collect();
    for own in all.iter().filter(|own| own.policy.is_again()) {
        let holds = |part: &Range<u32>, whole: &graph::Block| {
            let whole = &whole.operators;
            !part.is_empty() && whole.start <= part.start && part.end <= whole.end && *part != *whole
        };
        let holder = |part: &Range<u32>| kept.iter().find(|whole| holds(part, whole));
        if let Some(whole) = operators(own, graph).iter().find_map(holder) {
            return Err(Failure::input(format!(
                "--recompute {own} is about a part of `{}`, which --keep-together keeps whole",
                whole.path
            ))
            .with_hint(format!(
                "--recompute '{}={}' is about all of it",
                whole.path,
                own.policy.name()
            )));
        }
    }
    for own in all {
        if operators(own, graph).iter().all(Range::is_empty) {
            let names = graph.blocks.iter().flat_map(|block| [block.path.as_str(), block.kind.as_str()]);
            let meant = meant(&own.calls, names, 3);
            return Err(Failure::input(format!(
                "--recompute {own}: no call and no class is `{}`{meant}",
                own.calls
            ))
            .with_hint("`model-analyze inspect` lists calls and their classes"));
        }
    }
    for (index, again) in all.iter().enumerate().filter(|(_, own)| own.policy.is_again()) {
        // Two that are both recomputed are told once.
        let differs = |(other, own): &(usize, &RecomputedCalls)| {
            own.policy != again.policy && (own.policy == RecomputePolicy::Never || *other > index)
        };
        for (_, other) in all.iter().enumerate().filter(differs) {
            let others = operators(other, graph);
            let is_both =
                |own: Range<u32>| others.iter().any(|other| own.start < other.end && other.start < own.end);
            if operators(again, graph).into_iter().any(is_both) {
                return Err(Failure::input(format!(
                    "--recompute {again} and --recompute {other} are about the same calls"
                ))
                .with_hint("a call that is recomputed is recomputed as one unit, with all that it calls"));
            }
        }
    }
    Ok(())
}

/// Checks the recomputed blocks of a plan against its policies.
pub(super) fn check_kept(model: &Sliceable<'_>, graph: &ModelGraph, plan: &Plan) -> Result<(), Failure> {
    let all = plan.constraints.iter().flat_map(|constraints| &constraints.recompute);
    let mut done = vec![RecomputePolicy::Never; graph.operators.len()];
    // A block without a product has nothing to keep: both policies come to the same.
    let mut is_alike = vec![false; graph.operators.len()];
    let costs = graph::costs(graph);
    for stage in &plan.stages {
        for name in &stage.recompute {
            let own = operators_of(name, model, graph);
            let is_light = stage.recompute_light.contains(name);
            let policy = if is_light { RecomputePolicy::Light } else { RecomputePolicy::Always };
            let products = costs.dear_results(&costs.computed_again(&own)).all;
            let own = own.start as usize..own.end as usize;
            done[own.clone()].fill(policy);
            is_alike[own].fill(products == 0);
        }
    }
    for own in all {
        let is_kept = |operator: u32| {
            let works = model.working_before(operator + 1) > model.working_before(operator);
            let is_alike = is_alike[operator as usize] && own.policy.is_again();
            !works || is_alike || done[operator as usize] == own.policy
        };
        if let Some(operator) =
            operators(own, graph).into_iter().flatten().find(|operator| !is_kept(*operator))
        {
            let call = &graph.block(graph.operators[operator as usize].block).path;
            let what = match done[operator as usize] {
                RecomputePolicy::Never => "is not recomputed",
                RecomputePolicy::Always => "is recomputed",
                RecomputePolicy::Light => "is recomputed but for its products",
            };
            return Err(Failure::input(format!("`{call}` {what}, which `recompute: {own}` does not allow"))
                .with_hint("change the stages or the plan's `constraints`"));
        }
    }
    Ok(())
}

/// Returns the operators of calls.
fn operators(own: &RecomputedCalls, graph: &ModelGraph) -> Vec<Range<u32>> {
    let calls = graph.blocks.iter().filter(|block| is_meant(&own.calls, block));
    calls.map(|block| block.operators.clone()).collect()
}
