//! torchgpipe's balance by time (Kim et al., arXiv:2004.09910): no stage is much slower than the mean.
//!
//! Block partitions of a sequence (Bárány and Grinberg). O(blocks · stages²).

use crate::{
    problem::Problem,
    strategy::{
        even_layers::even,
        row::{Row, Search},
    },
};

pub(crate) const ROW: Row =
    Row { name: "torchgpipe", aliases: &[], search: Search::Rule(torchgpipe), ..Row::PLAIN };

/// torchgpipe's `balance_by_time`: block partitions of a sequence (Bárány and Grinberg), from an even cut by moves of single
/// blocks between neighbours while the largest stage shrinks.
pub(crate) fn torchgpipe(problem: &Problem, n_stages: usize) -> Vec<usize> {
    let weights: Vec<f64> = problem.blocks.iter().map(|block| block.seconds()).collect();
    let mut cuts = even(weights.len(), n_stages);
    let sum = |cuts: &[usize], stage: usize| weights[cuts[stage]..cuts[stage + 1]].iter().sum::<f64>();
    for _ in 0..weights.len() * n_stages {
        let sums: Vec<f64> = (0..n_stages).map(|stage| sum(&cuts, stage)).collect();
        let largest = (0..n_stages).max_by(|&a, &b| sums[a].total_cmp(&sums[b])).unwrap_or(0);
        // Hand a block over to the lighter neighbour, if that leaves it lighter than this stage was.
        let mut moves: Vec<(f64, usize, usize)> = Vec::new();
        if cuts[largest + 1] - cuts[largest] > 1 {
            if largest > 0 {
                moves.push((sums[largest - 1] + weights[cuts[largest]], largest, cuts[largest] + 1));
            }
            if largest + 1 < n_stages {
                let block = cuts[largest + 1] - 1;
                moves.push((sums[largest + 1] + weights[block], largest + 1, block));
            }
        }
        match moves.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)) {
            Some((after, cut, position)) if after < sums[largest] => cuts[cut] = position,
            _ => break,
        }
    }
    cuts
}
