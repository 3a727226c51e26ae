//! What no cut may part: where the stages of a plan could not be written, it is found which blocks have to stay together.
//!
//! Most models can be cut before any of their blocks, so this is asked only of a plan that fails: a module that is called
//! twice and counts its batches, a tensor that is written to in place, a list that would have to travel.

use std::collections::BTreeSet;

use codegen::{CutOptions, Names, Skips, Tied};
use partitioner::{Problem, Solution};
use tracer::Program;

/// Cuts tried at most: each takes some milliseconds.
const MAX_CUTS: usize = 400;

/// Blocks that have to stay with those before them.
pub struct Inseparable {
    /// Their paths.
    pub paths: BTreeSet<String>,
    /// Why the plan's stages could not be written.
    pub reason: String,
}

impl Inseparable {
    /// Finds them where a plan's stages cannot be written; nothing where they can, or where joining blocks would not help.
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
            // Wrong is then what blocks out of the trace's order do to each other.
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

/// Returns the places, but the first of each run, between which a later number stands before an earlier one.
fn tangled(stages: &[usize]) -> BTreeSet<usize> {
    let mut places = BTreeSet::new();
    // Where each number that is the largest so far first stood.
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
