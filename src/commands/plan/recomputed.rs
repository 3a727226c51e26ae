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
    for own in all.iter().filter(|own| own.policy == RecomputePolicy::Always) {
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
            .with_hint(format!("--recompute '{}=always' recomputes all of it", whole.path)));
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
    let with = |policy| all.iter().filter(move |own| own.policy == policy);
    for always in with(RecomputePolicy::Always) {
        for never in with(RecomputePolicy::Never) {
            let never_operators = operators(never, graph);
            let is_both = |own: Range<u32>| {
                never_operators.iter().any(|other| own.start < other.end && other.start < own.end)
            };
            if operators(always, graph).into_iter().any(is_both) {
                return Err(Failure::input(format!(
                    "--recompute {always} and --recompute {never} are about the same calls"
                ))
                .with_hint(
                    "a call that is always recomputed is recomputed as one unit, with all that it calls",
                ));
            }
        }
    }
    Ok(())
}

/// Checks the recomputed blocks of a plan against its policies.
pub(super) fn check_kept(model: &Sliceable<'_>, graph: &ModelGraph, plan: &Plan) -> Result<(), Failure> {
    let all = plan.constraints.iter().flat_map(|constraints| &constraints.recompute);
    let again = plan.stages.iter().flat_map(|stage| &stage.recompute);
    let mut is_again = vec![false; graph.operators.len()];
    for operator in again.flat_map(|name| operators_of(name, model, graph)) {
        is_again[operator as usize] = true;
    }
    for own in all {
        let wanted = own.policy == RecomputePolicy::Always;
        let is_kept = |operator: u32| {
            let works = model.working_before(operator + 1) > model.working_before(operator);
            !works || is_again[operator as usize] == wanted
        };
        if let Some(operator) =
            operators(own, graph).into_iter().flatten().find(|operator| !is_kept(*operator))
        {
            let call = &graph.block(graph.operators[operator as usize].block).path;
            let what = if wanted { "is not recomputed" } else { "is recomputed" };
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
