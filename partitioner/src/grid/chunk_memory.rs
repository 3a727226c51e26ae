//! Chunks of one device share its memory: what they recompute and offload is chosen for all of them together.
//!
//! A chunk may need much more than an equal share while another leaves most of its own. For each chunk the trades of memory for time are
//! listed, up to a limit, and a multiple-choice knapsack picks one of each: exact for small chunks. O(trades) knapsacks of a stage, and
//! one of all chunks.

use crate::{
    Problem,
    dag::cut_states::States,
    grid::{stage_times::stage_times, step_time::StageTimes},
    solution::SolutionStage,
    stage::{
        knapsack::{Choice, Items, pick},
        memory_plan::MemoryPlan,
        run::{Cut, Run},
        score::{Rules, Scorer},
    },
};

/// The most trades of a chunk that are listed.
const TRADES: usize = 256;
/// Blocks of a chunk whose trades may save a single byte each; more blocks trade parts of the device's memory.
const FEW_BLOCKS: usize = 8;
/// Such parts of a device's memory.
const PARTS: f64 = 32.0;

/// Chooses again what the chunks of devices that are too full throw away, and times all stages; `None` where nothing fits.
///
/// In `problem` every stage stands on a device of its own; stage `s` is on device `s mod memory.len()` of those with `memory`.
pub(crate) fn share_out(
    problem: &Problem,
    rules: Rules,
    places: &[(Run, usize)],
    stages: &mut [SolutionStage],
    memory: &[f64],
) -> Option<Vec<StageTimes>> {
    let line = stages.iter().flat_map(|stage| stage.blocks.iter().copied()).collect();
    let states = States::line(problem, line);
    let scorer = Scorer::new(problem, &states, rules);
    let mut end = 0;
    let cuts: Vec<Cut> = stages
        .iter()
        .zip(places)
        .map(|(stage, &(run, behind))| {
            let start = end;
            end += stage.blocks.len();
            Cut { start, end, run, behind }
        })
        .collect();
    let n_ranks = memory.len();
    for (rank, &limit) in memory.iter().enumerate() {
        let chunks = || (rank..cuts.len()).step_by(n_ranks);
        if chunks().map(|chunk| stages[chunk].score.memory).sum::<f64>() <= limit {
            continue;
        }
        // A chunk that is alone takes what it can get.
        let most = if cuts.len() == n_ranks { 1 } else { TRADES };
        let mut trades: Vec<Vec<MemoryPlan>> =
            chunks().map(|chunk| trades(&scorer, &cuts[chunk], limit, most)).collect();
        let choice = |again: &MemoryPlan| Choice { time: again.seconds, memory: again.memory };
        let items: Items = trades.iter().map(|trades| trades.iter().map(choice).collect()).collect();
        let picked = pick(&items, limit, 0.0)?;
        for ((chunk, trades), choice) in chunks().zip(&mut trades).zip(picked.choices) {
            stages[chunk].score = scorer.scored(&cuts[chunk], trades.swap_remove(choice), limit);
        }
    }
    Some(cuts.iter().zip(stages.iter()).map(|(cut, stage)| stage_times(&scorer, cut, stage)).collect())
}

/// What a chunk may take of a device's memory and the seconds that costs, the most memory first.
fn trades(scorer: &Scorer, cut: &Cut, limit: f64, most: usize) -> Vec<MemoryPlan> {
    let least = if cut.end - cut.start <= FEW_BLOCKS { 1.0 } else { (limit / PARTS).max(1.0) };
    let with = |limit: &f64| scorer.memory_plan_within(cut, *limit);
    std::iter::successors(with(&limit), |last| with(&(last.memory - least))).take(most).collect()
}
