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
        let paths: BTreeSet<String> =
            later.iter().map(|block| &block.path).filter(|path| is_part(path)).cloned().collect();
        // Wrong is then what blocks out of the trace's order do to each other.
        let reason = errors.first().filter(|_| !paths.is_empty())?.to_string();
        Some(Self { paths, reason })
    }
}
