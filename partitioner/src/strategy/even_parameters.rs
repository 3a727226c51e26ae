//! The same parameters to each stage, first fit: PiPPy's autosplit. O(blocks).

use crate::{
    problem::Problem,
    strategy::row::{Row, Search},
};

pub(crate) const ROW: Row =
    Row { name: "even-parameters", aliases: &[], search: Search::Rule(even_parameters), ..Row::PLAIN };

/// Cuts where the next block would lead further from an equal share of the parameters: first fit, as PiPPy's autosplit.
pub(crate) fn even_parameters(problem: &Problem, n_stages: usize) -> Vec<usize> {
    let weights: Vec<f64> = problem.blocks.iter().map(|block| block.parameters.0 as f64).collect();
    let share = weights.iter().sum::<f64>() / n_stages as f64;
    let n_blocks = weights.len();
    let mut cuts = vec![0];
    let mut sum = 0.0;
    for (index, weight) in weights.iter().enumerate() {
        let left = n_blocks - index;
        let stages_left = n_stages - cuts.len();
        let is_full = sum > 0.0 && sum + weight > share * (1.0 + 1e-9);
        let has_begun = index > *cuts.last().expect("begins with 0");
        if stages_left > 0 && has_begun && (is_full || left == stages_left) {
            cuts.push(index);
            sum = 0.0;
        }
        sum += weight;
    }
    cuts.push(n_blocks);
    cuts
}
