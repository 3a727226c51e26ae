//! Improves the cuts of a synchronous grid by the time of a whole step.
//!
//! The fastest slowest stage is the best cut for an endless pipeline. A step also fills and drains, and its first and last stages
//! weigh differently: boundaries move by one, two and four blocks along the order of the blocks, or to a place with less traffic,
//! while the timed order of operations gets shorter. Hill climbing from several cuts; O(moves · (operations + blocks of two
//! stages)).

use simulator::order::Order;

use crate::{
    dag::cut_states::States,
    goal::Goal,
    grid::{
        stage_times::stage_times,
        step_time::{StageTimes, StepTime, Timer},
    },
    pinned::Pinned,
    solution::SolutionStage,
    stage::{costs::StageCosts, lines::Lines, run::Run, scorer::Scorer},
};

/// Up to this many grids divide the budget of timed passes evenly; with more grids, each still gets this share.
const SHARES: usize = 8;

/// Low-traffic places tried on either side of a boundary: this many of the nearest, and up to `PLACES` with those of less
/// traffic.
const NEAREST: usize = 2;
const PLACES: usize = 4;

/// The device run of each stage, and the number of devices from there to the end.
pub(crate) type Places = Vec<(Run, usize)>;

/// An order of blocks, and the stage boundaries in it with both ends.
pub(crate) type Seed = (Vec<usize>, Vec<usize>);

/// Stages over an order of blocks, and the time of their step.
pub(crate) struct Climbed {
    pub(crate) stages: Vec<SolutionStage>,
    pub(crate) time: StepTime,
}

/// Finds the best cuts near given ones, or, for `Goal::Any`, the best of the given ones; `None` if none of those fits.
pub(crate) fn polish(
    (scorer, lines): (&Scorer, &Lines),
    order: &Order,
    places: &Places,
    seeds: &[Seed],
    n_grids: usize,
    goal: Goal,
) -> Option<Climbed> {
    let climb_from = |(line, borders): &Seed, moves: usize| {
        lines.with(scorer, line, |scorer| climb(scorer, order, places, borders.clone(), moves))
    };
    let mut found: Vec<(&Seed, Climbed)> =
        seeds.iter().filter_map(|seed| Some((seed, climb_from(seed, 0)?))).collect();
    // Stable sort: of equally fast seeds, those found by the solver come first.
    found.sort_by(|a, b| a.1.time.seconds.total_cmp(&b.1.time.seconds));
    let limits = scorer.problem.training.limits;
    found.truncate(limits.moved_cuts);
    if goal != Goal::Any {
        let n_ops: usize = order.ranks.iter().map(Vec::len).sum();
        let share = limits.timed_passes / n_ops.max(1) / found.len().max(1) / n_grids.clamp(1, SHARES);
        for (seed, polished) in &mut found {
            *polished = climb_from(seed, share.max(1))?;
        }
    }
    let found = found.into_iter().map(|(_, polished)| polished);
    found.min_by(|a, b| a.time.seconds.total_cmp(&b.time.seconds))
}

/// Times given cuts as they are; `None` where a stage does not fit.
pub(crate) fn timed(
    (scorer, lines): (&Scorer, &Lines),
    order: &Order,
    places: &Places,
    line: &[usize],
    borders: &[usize],
) -> Option<Climbed> {
    lines.with(scorer, line, |scorer| climb(scorer, order, places, borders.to_vec(), 0))
}

type Timed = (SolutionStage, StageTimes);

/// Returns low-traffic places on either side of a boundary that moves of a few blocks would not reach: the nearest, and those
/// behind it with less traffic.
fn narrow_places(states: &States, borders: &[usize], border: usize) -> Vec<usize> {
    let bytes = |at: usize| states.crossing[at] + states.crossing_back[at];
    let is_narrow = |at: &usize| bytes(*at) <= bytes(at - 1) && bytes(*at) < bytes(at + 1);
    let own = borders[border];
    let mut found = Vec::new();
    let mut take = |places: &mut dyn Iterator<Item = usize>| {
        let (mut count, mut least) = (0, f64::INFINITY);
        for place in places.filter(is_narrow) {
            if count < NEAREST || bytes(place) < least {
                found.push(place);
                count += 1;
            }
            least = least.min(bytes(place));
            if count == PLACES {
                break;
            }
        }
    };
    take(&mut (own + 1..borders[border + 1]));
    take(&mut (borders[border - 1] + 1..own).rev());
    found
}

fn climb(
    scorer: &Scorer,
    order: &Order,
    places: &Places,
    mut borders: Vec<usize>,
    mut left: usize,
) -> Option<Climbed> {
    let overlaps = scorer.problem.machine.overlaps;
    let pinned = Pinned::new(scorer.problem, scorer.states, places.iter().map(|place| place.0));
    let costs: Vec<StageCosts> = places.iter().map(|&(run, behind)| scorer.on(run, behind)).collect();
    let stage = |borders: &[usize], index: usize| -> Option<Timed> {
        let (start, end) = (borders[index], borders[index + 1]);
        if !pinned.allows(index, start, end) {
            return None;
        }
        let score = costs[index].score(start, end)?;
        let stage = SolutionStage { blocks: scorer.states.blocks(start, end), run: places[index].0, score };
        let times = stage_times(&costs[index], start, end, &stage);
        Some((stage, times))
    };
    let each = order.n_micro_batches() as f64;
    let n_stages = places.len();
    let mut timer = Timer::new(order, n_stages, overlaps);
    // `None` if a lower bound shows that the step is not below `below`.
    let mut time = |stages: &[Timed], below: f64| {
        let times: Vec<StageTimes> = stages.iter().map(|stage| stage.1).collect();
        if timer.least(&times) * (1.0 - 1e-9) >= below { None } else { timer.time(&times, below) }
    };
    let mut stages: Vec<Timed> =
        (0..n_stages).map(|index| stage(&borders, index)).collect::<Option<Vec<Timed>>>()?;
    let mut best = time(&stages, f64::INFINITY)?;
    let mut has_moved = true;
    while has_moved {
        has_moved = false;
        for border in 1..n_stages {
            let near = [1_isize, -1, 2, -2, 4, -4].map(|step| borders[border].saturating_add_signed(step));
            for moved in near.into_iter().chain(narrow_places(scorer.states, &borders, border)) {
                if moved <= borders[border - 1] || moved >= borders[border + 1] || moved == borders[border] {
                    continue;
                }
                if left == 0 {
                    return Some(Climbed {
                        stages: stages.into_iter().map(|stage| stage.0).collect(),
                        time: best,
                    });
                }
                left -= 1;
                // Prune: a stage whose passes alone take as long as the best step.
                let is_slow = |index: usize, start: usize, end: usize| {
                    let work = scorer.states.work[end] - scorer.states.work[start];
                    each * work / costs[index].place.speed >= best.seconds
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
                match time(&stages, best.seconds) {
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
    Some(Climbed { stages: stages.into_iter().map(|stage| stage.0).collect(), time: best })
}
