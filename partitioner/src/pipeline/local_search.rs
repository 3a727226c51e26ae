//! Improves a pipeline on a graph too wide for its ideals: single blocks move to a neighbouring stage.
//!
//! The slowest stage gives a block away, or two stages exchange what lies between them, as long as the stages' times, slowest
//! first, get smaller. A block may move back when nobody behind it in its stage makes its inputs, and forward when nobody in
//! its stage takes its outputs: stages stay ideals. Hill climbing, O(moves · border blocks).

use crate::{
    Problem,
    dag::cut_states::States,
    solution::SolutionStage,
    stage::{score::Rules, scorer::Scorer},
};

/// Moves blocks between neighbouring stages while that makes the slowest stage faster.
pub(crate) fn improve(problem: &Problem, rules: Rules, stages: Vec<SolutionStage>) -> Vec<SolutionStage> {
    let mut inputs = vec![Vec::new(); problem.blocks.len()];
    let mut outputs = vec![Vec::new(); problem.blocks.len()];
    for value in &problem.values {
        for (&to, from) in value.to.iter().zip(std::iter::repeat(value.from)) {
            if let Some(from) = from {
                inputs[to].push(from);
                outputs[from].push(to);
            }
        }
    }
    let mut best = stages;
    let mut stage_of = vec![0; problem.blocks.len()];
    let mut n_tries = 0;
    loop {
        for (index, stage) in best.iter().enumerate() {
            stage.blocks.iter().for_each(|&block| stage_of[block] = index);
        }
        let slowest = (0..best.len())
            .max_by(|&a, &b| best[a].score.seconds.total_cmp(&best[b].score.seconds))
            .unwrap_or(0);
        let mut moves: Vec<(usize, usize)> = Vec::new();
        for &block in &best[slowest].blocks {
            if slowest > 0 && inputs[block].iter().all(|&input| stage_of[input] < slowest) {
                moves.push((block, slowest - 1));
            }
            if slowest + 1 < best.len() && outputs[block].iter().all(|&output| stage_of[output] > slowest) {
                moves.push((block, slowest + 1));
            }
        }
        let current = times(&best);
        let mut better: Option<Vec<SolutionStage>> = None;
        for (block, to) in moves {
            n_tries += 1;
            if n_tries > problem.training.limits.sizes.moved_blocks || best[slowest].blocks.len() < 2 {
                return best;
            }
            let mut parts: Vec<Vec<usize>> = best.iter().map(|stage| stage.blocks.clone()).collect();
            parts[slowest].retain(|&other| other != block);
            parts[to].push(block);
            parts[to].sort_unstable();
            if let Some(moved) = rescore(problem, rules, &best, &parts)
                && times(&moved) < better.as_ref().map_or_else(|| current.clone(), |found| times(found))
            {
                better = Some(moved);
            }
        }
        match better {
            Some(found) => best = found,
            None => return best,
        }
    }
}

/// Stages' times, slowest first.
fn times(stages: &[SolutionStage]) -> Vec<f64> {
    let mut times: Vec<f64> = stages.iter().map(|stage| stage.score.seconds).collect();
    times.sort_by(|a, b| b.total_cmp(a));
    times
}

/// Scores given parts on the devices of given stages; `None` where one does not fit.
pub(crate) fn rescore(
    problem: &Problem,
    rules: Rules,
    stages: &[SolutionStage],
    parts: &[Vec<usize>],
) -> Option<Vec<SolutionStage>> {
    let order: Vec<usize> = parts.iter().flatten().copied().collect();
    let states = States::line(problem, order);
    let scorer = Scorer::new(problem, &states, rules);
    let mut behind: usize = stages.iter().map(|stage| stage.run.count).sum();
    let mut start = 0;
    let mut scored = Vec::with_capacity(parts.len());
    for (stage, part) in stages.iter().zip(parts) {
        let end = start + part.len();
        let score = scorer.on(stage.run, behind).score(start, end)?;
        scored.push(SolutionStage { blocks: part.clone(), run: stage.run, score });
        behind -= stage.run.count;
        start = end;
    }
    Some(scored)
}
