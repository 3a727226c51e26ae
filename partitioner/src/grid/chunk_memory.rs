//! Chunks of one device share its memory: what they recompute and offload is chosen for all of them together.
//!
//! A chunk may need much more than an equal share while another needs less than its own. For each chunk a list of trades of
//! memory for time is made, up to a limit, and a multiple-choice knapsack picks one of each: exact for small chunks. O(trades)
//! knapsacks of a stage, and one of all chunks.

use crate::{
    grid::{shape::Grid, stage_times::stage_times, step_time::StageTimes},
    solution::SolutionStage,
    stage::{
        costs::StageCosts,
        knapsack::{Choice, Items, pick},
        lines::Lines,
        memory_plan::MemoryPlan,
        run::Run,
        scorer::Scorer,
    },
};

/// Chunks of up to this many blocks trade single bytes; larger ones trade parts of the device's memory.
const FEW_BLOCKS: usize = 8;
/// Number of these parts.
const PARTS: f64 = 32.0;

/// Chooses what the chunks of overfull devices recompute or offload, and times all stages; `None` if nothing fits.
///
/// For the scorer every stage has a device of its own; `grid` maps it to its rank, which has `memory` bytes.
pub(crate) fn share_out(
    (scorer, lines): (&Scorer, &Lines),
    grid: Grid,
    places: &[(Run, usize)],
    stages: &mut [SolutionStage],
    memory: &[f64],
) -> Option<Vec<StageTimes>> {
    let line: Vec<usize> = stages.iter().flat_map(|stage| stage.blocks.iter().copied()).collect();
    lines.with(scorer, &line, |scorer| share_out_over(scorer, grid, places, stages, memory))
}

/// The same with a scorer over the line of the stages' blocks.
fn share_out_over(
    scorer: &Scorer,
    grid: Grid,
    places: &[(Run, usize)],
    stages: &mut [SolutionStage],
    memory: &[f64],
) -> Option<Vec<StageTimes>> {
    let mut end = 0;
    let chunks: Vec<Chunk> = stages
        .iter()
        .zip(places)
        .map(|(stage, &(run, behind))| {
            let start = end;
            end += stage.blocks.len();
            Chunk { costs: scorer.on(run, behind), start, end }
        })
        .collect();
    let sizes = scorer.problem.training.limits.sizes;
    for (rank, &limit) in memory.iter().enumerate() {
        let own = || (0..chunks.len()).filter(|&chunk| grid.rank_of(chunk) == rank);
        if own().map(|chunk| stages[chunk].score.memory).sum::<f64>() <= limit {
            continue;
        }
        // A chunk alone on its rank takes the fastest choice that fits.
        let most = if grid.chunks == 1 { 1 } else { sizes.chunk_choices };
        let mut trades: Vec<Vec<MemoryPlan>> = own().map(|chunk| chunks[chunk].trades(limit, most)).collect();
        let choice = |plan: &MemoryPlan| Choice { time: plan.seconds, memory: plan.memory };
        let items: Items = trades.iter().map(|trades| trades.iter().map(choice).collect()).collect();
        let picked = pick(&items, limit, 0.0, sizes.knapsack_nodes)?;
        for ((chunk, trades), choice) in own().zip(&mut trades).zip(picked.choices) {
            let Chunk { costs, start, end } = &chunks[chunk];
            stages[chunk].score = costs.scored(*start, *end, trades.swap_remove(choice), limit);
        }
    }
    let times =
        |(chunk, stage): (&Chunk, &SolutionStage)| stage_times(&chunk.costs, chunk.start, chunk.end, stage);
    Some(chunks.iter().zip(stages.iter()).map(times).collect())
}

/// A chunk: the states between which it lies, and costs on its device.
struct Chunk<'a> {
    costs: StageCosts<'a>,
    start: usize,
    end: usize,
}

impl Chunk<'_> {
    /// Returns memory plans of less and less memory, the most memory first.
    fn trades(&self, limit: f64, most: usize) -> Vec<MemoryPlan> {
        let least = if self.end - self.start <= FEW_BLOCKS { 1.0 } else { (limit / PARTS).max(1.0) };
        let with = |limit: &f64| self.costs.memory_plan(self.start, self.end, *limit);
        std::iter::successors(with(&limit), |last| with(&(last.memory - least))).take(most).collect()
    }
}
