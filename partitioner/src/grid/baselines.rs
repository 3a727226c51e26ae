//! Where people cut today, to compare with: none looks at transfers, replicas or memory.

use crate::Problem;

/// Cuts into stages with the same number of blocks: torchtitan's and accelerate's habit.
pub(crate) fn even_layers(n_blocks: usize, n_stages: usize) -> Vec<usize> {
    (0..=n_stages).map(|stage| stage * n_blocks / n_stages).collect()
}

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

/// DeepSpeed's `partition_method: parameters`: the least difference between the largest and smallest stage.
///
/// Their search, on prefix sums: the least bound for which greedy filling needs no more stages; O(n log n).
pub(crate) fn deepspeed(problem: &Problem, n_stages: usize) -> Vec<usize> {
    let weights: Vec<f64> = problem.blocks.iter().map(|block| block.parameters.0 as f64).collect();
    least_bound(&weights, n_stages)
}

/// torchgpipe's `balance_by_time`: block partitions of a sequence (Bárány and Grinberg), from an even cut by moves of single
/// blocks between neighbours while the largest stage shrinks.
pub(crate) fn torchgpipe(problem: &Problem, n_stages: usize) -> Vec<usize> {
    let weights: Vec<f64> = problem.blocks.iter().map(|block| block.seconds()).collect();
    let mut cuts = even_layers(weights.len(), n_stages);
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

    #[test]
    fn cuts_rise_from_the_first_block_to_the_last() {
        assert_eq!(even_layers(10, 4), [0, 2, 5, 7, 10]);
        assert_eq!(least_bound(&[5.0, 1.0, 1.0, 1.0, 2.0], 3), [0, 1, 4, 5]);
        assert_eq!(least_bound(&[1.0, 1.0], 2), [0, 1, 2]);
    }
}
