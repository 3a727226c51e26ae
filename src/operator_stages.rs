//! The stage of each operator: the same for pictures, tables and emitted files.

use std::collections::HashSet;

use schema::Plan;
use tracer::Program;

use crate::failure::Failure;

/// Returns the stage of each of a program's operators under a plan.
///
/// Stages name blocks, and operators between a block's calls: `layer1.0/add_`. If a block is named by its parts,
/// operators between them belong to the stage of the preceding operator, as the planner counts them and `emit` writes
/// them. Only blocks that the plan does not name have no stage.
///
/// # Errors
/// If the model has no such block.
pub fn of_plan(name: &str, plan: &Plan, program: &Program) -> Result<Vec<Option<u32>>, Failure> {
    let owners = codegen::owners(program, blocks(plan)).map_err(|(stage, block)| {
        Failure::input(format!("{name}: the model has no block `{block}`, which stage {stage} names"))
            .with_hint(format!("the plan was made for `{}`", plan.model.name))
    })?;
    Ok(owners.iter().map(|owner| owner.map(|(stage, _)| stage)).collect())
}

/// Returns for each operator whether its stage recomputes it in the backward pass.
pub fn recomputed(plan: &Plan, program: &Program) -> Vec<bool> {
    let Ok(owners) = codegen::owners(program, blocks(plan)) else { return vec![false; program.nodes.len()] };
    let is_recomputed: Vec<HashSet<&str>> =
        plan.stages.iter().map(|stage| stage.recompute.iter().map(String::as_str).collect()).collect();
    let one = |owner: &Option<codegen::Owner>| {
        owner.is_some_and(|(stage, path)| is_recomputed[stage as usize].contains(path))
    };
    owners.iter().map(one).collect()
}

fn blocks(plan: &Plan) -> impl Iterator<Item = &[String]> {
    plan.stages.iter().map(|stage| stage.blocks.as_slice())
}
