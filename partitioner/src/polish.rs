//! Betters the cuts of a synchronous grid by what a step really takes.
//!
//! The slowest stage as fast as can be is the best cut for an endless pipeline. A step also fills and drains, and its first and last stages
//! weigh differently: borders move by one, two and four blocks along the line of the stages while the timed order of
//! operations gets shorter. Hill climbing from several cuts; O(moves · (operations + blocks of two stages)).

use simulator::order::Order;

use crate::{
    Problem,
    grid::stage_times,
    pipeline::Cut,
    solution::SolutionStage,
    stage::{Rules, Run, Scorer},
    states::States,
    step::{StageTimes, StepTime, step_time},
    strategy::Goal,
};

/// Operations that may be timed in all.
const OPERATIONS: usize = 20_000_000;

/// Grids that share those operations evenly; more of them get as much as these.
const SHARES: usize = 8;

/// Which devices stages stand on, and the devices from there to the end.
pub(crate) type Places = Vec<(Run, usize)>;

/// Stages of a line of blocks and how long their step takes.
pub(crate) struct Polished {
    pub(crate) stages: Vec<SolutionStage>,
    pub(crate) time: StepTime,
}

/// Finds the best cuts near given ones, or the best of those where any will do; `None` where none of those fits.
pub(crate) fn polish(
    problem: &Problem,
    rules: Rules,
    order: &Order,
    places: &Places,
    seeds: &[(Vec<usize>, Vec<usize>)],
    n_grids: usize,
    goal: Goal,
) -> Option<Polished> {
    let n_ops: usize = order.ranks.iter().map(Vec::len).sum();
    let share = OPERATIONS / n_ops.max(1) / seeds.len().max(1) / n_grids.clamp(1, SHARES);
    let each = if goal == Goal::Any { 0 } else { share.max(1) };
    let mut best: Option<Polished> = None;
    for (line, borders) in seeds {
        let states = States::line(problem, line.clone());
        let scorer = Scorer::new(problem, &states, rules);
        let Some(found) = climb(&scorer, order, places, borders.clone(), each) else { continue };
        if best.as_ref().is_none_or(|best| found.time.seconds < best.time.seconds) {
            best = Some(found);
        }
    }
    best
}

/// Times given cuts as they are; `None` where a stage does not fit.
pub(crate) fn timed(
    problem: &Problem,
    rules: Rules,
    order: &Order,
    places: &Places,
    line: Vec<usize>,
    borders: &[usize],
) -> Option<Polished> {
    let states = States::line(problem, line);
    climb(&Scorer::new(problem, &states, rules), order, places, borders.to_vec(), 0)
}

type Timed = (SolutionStage, StageTimes);

fn climb(
    scorer: &Scorer,
    order: &Order,
    places: &Places,
    mut borders: Vec<usize>,
    mut left: usize,
) -> Option<Polished> {
    let overlaps = scorer.problem.machine.overlaps;
    let stage = |borders: &[usize], index: usize| -> Option<Timed> {
        let (run, behind) = places[index];
        let (start, end) = (borders[index], borders[index + 1]);
        let cut = Cut { start, end, run, behind };
        let score = scorer.score(start, end, run, behind)?;
        let stage = SolutionStage { blocks: scorer.states.blocks(start, end), run, score };
        let times = stage_times(scorer, &cut, &stage);
        Some((stage, times))
    };
    let time = |stages: &[Timed]| {
        let times: Vec<StageTimes> = stages.iter().map(|stage| stage.1).collect();
        step_time(order, &times, overlaps)
    };
    let each = order.n_micro_batches() as f64;
    let n_stages = places.len();
    let mut stages: Vec<Timed> =
        (0..n_stages).map(|index| stage(&borders, index)).collect::<Option<Vec<Timed>>>()?;
    let mut best = time(&stages)?;
    let mut has_moved = true;
    while has_moved {
        has_moved = false;
        for border in 1..n_stages {
            for step in [1_isize, -1, 2, -2, 4, -4] {
                let moved = borders[border].saturating_add_signed(step);
                if moved <= borders[border - 1] || moved >= borders[border + 1] {
                    continue;
                }
                if left == 0 {
                    return Some(Polished {
                        stages: stages.into_iter().map(|stage| stage.0).collect(),
                        time: best,
                    });
                }
                left -= 1;
                // A stage that alone takes as long as the best step has no place in a better one.
                let is_slow = |index: usize, start: usize, end: usize| {
                    let work = scorer.states.work[end] - scorer.states.work[start];
                    each * work / scorer.place(places[index].0).speed >= best.seconds
                };
                if is_slow(border - 1, borders[border - 1], moved)
                    || is_slow(border, moved, borders[border + 1])
                {
                    continue;
                }
                let before = std::mem::replace(&mut borders[border], moved);
                let (Some(one), Some(other)) = (stage(&borders, border - 1), stage(&borders, border)) else {
                    borders[border] = before;
                    continue;
                };
                let old = [
                    std::mem::replace(&mut stages[border - 1], one),
                    std::mem::replace(&mut stages[border], other),
                ];
                match time(&stages) {
                    Some(found) if found.seconds < best.seconds * (1.0 - 1e-9) => {
                        best = found;
                        has_moved = true;
                    }
                    _ => {
                        borders[border] = before;
                        let [one, other] = old;
                        (stages[border - 1], stages[border]) = (one, other);
                    }
                }
            }
        }
    }
    Some(Polished { stages: stages.into_iter().map(|stage| stage.0).collect(), time: best })
}
