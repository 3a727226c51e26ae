//! DeepSpeed's balance by parameters: `partition_method: parameters`.
//!
//! The least bound for which greedy filling needs no more stages, by bisection: O(blocks) each of 60 times.

use crate::{
    problem::Problem,
    strategy::row::{Row, Search},
};

pub(crate) const ROW: Row =
    Row { name: "deepspeed", aliases: &[], search: Search::Rule(deepspeed), ..Row::PLAIN };

/// DeepSpeed's `partition_method: parameters`: the least difference between the largest and smallest stage.
///
/// Their search, on prefix sums: the least bound for which greedy filling needs no more stages; O(n log n).
pub(crate) fn deepspeed(problem: &Problem, n_stages: usize) -> Vec<usize> {
    let weights: Vec<f64> = problem.blocks.iter().map(|block| block.parameters.0 as f64).collect();
    least_bound(&weights, n_stages)
}

/// Cuts so that the largest sum is least, each stage with at least one block.
pub(crate) fn least_bound(weights: &[f64], n_stages: usize) -> Vec<usize> {
    let fill = |bound: f64| {
        let mut cuts = vec![0];
        let mut sum = 0.0;
        for (index, &weight) in weights.iter().enumerate() {
            let must = weights.len() - index == n_stages - cuts.len();
            if index > cuts[cuts.len() - 1] && (sum + weight > bound || must) && cuts.len() < n_stages {
                cuts.push(index);
                sum = 0.0;
            }
            sum += weight;
        }
        cuts.push(weights.len());
        cuts
    };
    let largest = |cuts: &[usize]| {
        cuts.windows(2).map(|pair| weights[pair[0]..pair[1]].iter().sum::<f64>()).fold(0.0, f64::max)
    };
    let total: f64 = weights.iter().sum();
    let (mut low, mut high) = (total / n_stages as f64, total);
    let mut best = fill(high);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        let cuts = fill(middle);
        if largest(&cuts) < largest(&best) {
            best = cuts.clone();
        }
        if largest(&cuts) <= middle * (1.0 + 1e-12) { high = middle } else { low = middle }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::even_layers::even;

    #[test]
    fn cuts_rise_from_the_first_block_to_the_last() {
        assert_eq!(even(10, 4), [0, 2, 5, 7, 10]);
        assert_eq!(least_bound(&[5.0, 1.0, 1.0, 1.0, 2.0], 3), [0, 1, 4, 5]);
        assert_eq!(least_bound(&[1.0, 1.0], 2), [0, 1, 2]);
    }
}
