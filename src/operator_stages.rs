//! Which stage an operator belongs to: the same answer for pictures, tables and what is emitted.

use std::collections::HashSet;

use schema::Plan;
use tracer::Program;

use crate::failure::Failure;

/// Returns the stage of each of a program's operators under a plan.
///
/// Stages name blocks, and operators that stand between a block's calls: `layer1.0/add_`. Where a block is named by its
/// parts, what stands between them goes with the operator before it, as the planner counts it and `emit` writes it.
/// Nothing else is without a stage but blocks that the plan does not name.
///
/// # Errors
/// When the model has no such block.
pub fn of_plan(name: &str, plan: &Plan, program: &Program) -> Result<Vec<Option<u32>>, Failure> {
    let owners = codegen::owners(program, blocks(plan)).map_err(|(stage, block)| {
        Failure::input(format!("{name}: the model has no block `{block}`, which stage {stage} names"))
            .with_hint(format!("the plan was made for `{}`", plan.model.name))
    })?;
    Ok(owners.iter().map(|owner| owner.map(|(stage, _)| stage)).collect())
}

/// Tells for each operator whether its stage computes it again in the backward pass.
pub fn again(plan: &Plan, program: &Program) -> Vec<bool> {
    let Ok(owners) = codegen::owners(program, blocks(plan)) else { return vec![false; program.nodes.len()] };
    let is_again: Vec<HashSet<&str>> =
        plan.stages.iter().map(|stage| stage.recompute.iter().map(String::as_str).collect()).collect();
    let one = |owner: &Option<codegen::Owner>| {
        owner.is_some_and(|(stage, path)| is_again[stage as usize].contains(path))
    };
    owners.iter().map(one).collect()
}

fn blocks(plan: &Plan) -> impl Iterator<Item = &[String]> {
    plan.stages.iter().map(|stage| stage.blocks.as_slice())
}
