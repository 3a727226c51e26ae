//! Blocks that no cut may separate: found if the stages of a plan cannot be written.
//!
//! Most models can be cut before any of their blocks, so this runs only for a plan that fails: a module that is called
//! twice and counts its batches, a tensor that is written to in place, a list that would have to be transferred.

use std::collections::BTreeSet;

use codegen::{CutOptions, Names, Skips, Tied};
use partitioner::{Problem, Solution};
use tracer::Program;

/// The most cuts that are tried: each takes some milliseconds.
const MAX_CUTS: usize = 400;

/// Blocks that must be in one stage with those before them.
pub struct Inseparable {
    /// Their paths.
    pub paths: BTreeSet<String>,
    /// Why the plan's stages could not be written.
    pub reason: String,
}

impl Inseparable {
    /// Returns them if a plan's stages cannot be written; `None` if they can be, or if joining blocks would not help.
    pub fn of(program: &Program, problem: &Problem, solution: &Solution) -> Option<Self> {
        let names = Names::new(program);
        let options = CutOptions { skips: Skips::Relay, tied: Tied::Replicate };
        let stages: Vec<Vec<String>> = solution
            .stages
            .iter()
            .map(|stage| {
                stage.blocks.iter().flat_map(|&block| problem.blocks[block].paths().cloned()).collect()
            })
            .collect();
        let cut = |assignment| codegen::cut(program, &assignment, &names, &options);
        let errors = codegen::assign(program, &stages).and_then(cut).err()?;
        let later = problem.blocks.get(1..).unwrap_or_default();
        if later.len() > MAX_CUTS || cut(codegen::even(program, 1)).is_err() {
            return None;
        }
        let is_part =
            |path: &String| codegen::cut_before(program, std::slice::from_ref(path)).and_then(cut).is_err();
        let mut paths: BTreeSet<String> =
            later.iter().map(|block| &block.path).filter(|path| is_part(path)).cloned().collect();
        if paths.is_empty() {
            // Then the cause is the dependencies of blocks that are out of the trace's order.
            let mut stages = vec![0; problem.blocks.len()];
            for (index, stage) in solution.stages.iter().enumerate() {
                stage.blocks.iter().for_each(|&block| stages[block] = index);
            }
            let tangled = tangled(&stages);
            paths.extend(tangled.into_iter().map(|block| problem.blocks[block].path.clone()));
        }
        let reason = errors.first().filter(|_| !paths.is_empty())?.to_string();
        Some(Self { paths, reason })
    }
}

/// Returns the positions, except the first of each run, between which a later number precedes an earlier one.
fn tangled(stages: &[usize]) -> BTreeSet<usize> {
    let mut places = BTreeSet::new();
    // The first position of each number that is the largest so far.
    let mut largest: Vec<(usize, usize)> = Vec::new();
    for (place, &stage) in stages.iter().enumerate() {
        if let Some(&(_, first)) = largest.iter().find(|(number, _)| *number > stage) {
            places.extend(first + 1..=place);
        }
        if largest.last().is_none_or(|(number, _)| stage > *number) {
            largest.push((stage, place));
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_out_of_order_is_found() {
        for (stages, expected) in [
            (&[0, 0, 1, 2][..], &[][..]),
            (&[0, 1, 0, 2], &[2]),
            (&[0, 1, 1, 0, 2, 1, 3], &[2, 3, 5]),
            (&[2, 0, 1], &[1, 2]),
            (&[], &[]),
        ] {
            assert_eq!(tangled(stages), expected.iter().copied().collect(), "{stages:?}");
        }
    }
}
