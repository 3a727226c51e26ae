//! The same number of blocks to each stage: torchtitan's and accelerate's habit. O(stages).

use crate::{
    problem::Problem,
    strategy::row::{Row, Search},
};

pub(crate) const ROW: Row =
    Row { name: "even-layers", aliases: &[], search: Search::Rule(even_layers), ..Row::PLAIN };

/// Cuts into stages with the same number of blocks.
pub(crate) fn even_layers(problem: &Problem, n_stages: usize) -> Vec<usize> {
    even(problem.blocks.len(), n_stages)
}

/// Cuts a number of blocks into stages of as many.
pub(crate) fn even(n_blocks: usize, n_stages: usize) -> Vec<usize> {
    (0..=n_stages).map(|stage| stage * n_blocks / n_stages).collect()
}
