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
    stage::{costs::StageCosts, lines::Lines, memo::Memo, run::Run, scorer::Scorer},
};

/// Up to this many grids divide the budget of timed passes evenly; with more grids, each still gets this share.
const SHARES: usize = 8;

/// Cuts that take this many times as long as a plan may are not moved: moves rarely make a step a tenth shorter.
const FAR: f64 = 1.15;

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

/// Cuts of a line, and the time of their step.
type Cuts = (Vec<usize>, StepTime);

/// Times of stages over one line, by stage and its ends; `None` where one does not fit. Climbs ask for the same ones again and again.
type Known = Memo<(usize, usize, usize), Option<StageTimes>>;

/// Finds the best cuts near given ones, or, for `Goal::Any` and where they are far from taking less than `limit` seconds, the best of
/// the given ones; `None` if none of those fits.
pub(crate) fn polish(
    (scorer, lines): (&Scorer, &Lines),
    order: &Order,
    places: &Places,
    seeds: &[Seed],
    n_grids: usize,
    (goal, limit): (Goal, f64),
) -> Option<Climbed> {
    let mut timer = Timer::new(order, places.len(), scorer.problem.machine.overlaps);
    let known: Vec<Known> = seeds.iter().map(|_| Known::default()).collect();
    let mut climb_from = |(line, borders): &Seed, moves: usize| {
        let first = seeds.iter().position(|other| other.0 == *line)?;
        lines.with(scorer, line, |scorer| climb(scorer, (&mut timer, &known[first]), places, borders, moves))
    };
    let mut found: Vec<(&Seed, Cuts)> =
        seeds.iter().filter_map(|seed| Some((seed, climb_from(seed, 0)?))).collect();
    // Stable sort: of equally fast seeds, those found by the solver come first.
    found.sort_by(|a, b| a.1.1.seconds.total_cmp(&b.1.1.seconds));
    let limits = scorer.problem.training.limits;
    found.truncate(limits.moved_cuts);
    let is_far = found.first().is_some_and(|(_, (_, time))| time.seconds > FAR * limit);
    if goal != Goal::Any && !is_far {
        let share =
            limits.timed_passes / order.n_ops().max(1) / found.len().max(1) / n_grids.clamp(1, SHARES);
        for index in 0..found.len() {
            let seed = found[index].0;
            // Rules and the solver often make the same cuts.
            let same = found[..index].iter().find(|other| other.0 == seed);
            found[index].1 = match same {
                Some((_, same)) => same.clone(),
                None => climb_from(seed, share.max(1))?,
            };
        }
    }
    let ((line, _), (borders, time)) =
        found.into_iter().min_by(|a, b| a.1.1.seconds.total_cmp(&b.1.1.seconds))?;
    lines.with(scorer, line, |scorer| staged(scorer, places, &borders, time))
}

/// Times given cuts as they are; `None` where a stage does not fit.
pub(crate) fn timed(
    (scorer, lines): (&Scorer, &Lines),
    order: &Order,
    places: &Places,
    line: &[usize],
    borders: &[usize],
) -> Option<Climbed> {
    let mut timer = Timer::new(order, places.len(), scorer.problem.machine.overlaps);
    lines.with(scorer, line, |scorer| {
        let (_, time) = climb(scorer, (&mut timer, &Known::default()), places, borders, 0)?;
        staged(scorer, places, borders, time)
    })
}

/// Scores the stages of cuts that fit.
fn staged(scorer: &Scorer, places: &Places, borders: &[usize], time: StepTime) -> Option<Climbed> {
    let stage = |(&(run, behind), ends): (&(Run, usize), &[usize])| {
        let score = scorer.on(run, behind).score(ends[0], ends[1])?;
        Some(SolutionStage { blocks: scorer.states.blocks(ends[0], ends[1]), run, score })
    };
    let stages = places.iter().zip(borders.windows(2)).map(stage).collect::<Option<Vec<_>>>()?;
    Some(Climbed { stages, time })
}

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
    (timer, known): (&mut Timer, &Known),
    places: &Places,
    borders: &[usize],
    mut left: usize,
) -> Option<Cuts> {
    let mut borders = borders.to_vec();
    let pinned = Pinned::new(scorer.problem, scorer.states, places.iter().map(|place| place.0));
    let costs: Vec<StageCosts> = places.iter().map(|&(run, behind)| scorer.on(run, behind)).collect();
    let find = |index: usize, start: usize, end: usize| -> Option<StageTimes> {
        if !pinned.allows(index, start, end) {
            return None;
        }
        let score = costs[index].score(start, end)?;
        let stage = SolutionStage { blocks: scorer.states.blocks(start, end), run: places[index].0, score };
        Some(stage_times(&costs[index], start, end, &stage))
    };
    let stage = |borders: &[usize], index: usize| {
        let (start, end) = (borders[index], borders[index + 1]);
        known.get((index, start, end), || find(index, start, end))
    };
    let each = timer.n_micro_batches() as f64;
    let n_stages = places.len();
    // `None` if a lower bound shows that the step is not below `below`.
    let mut time = |times: &[StageTimes], below: f64| {
        if timer.least(times) * (1.0 - 1e-9) >= below { None } else { timer.time(times, below) }
    };
    let mut times = (0..n_stages).map(|index| stage(&borders, index)).collect::<Option<Vec<StageTimes>>>()?;
    let mut best = time(&times, f64::INFINITY)?;
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
                    return Some((borders, best));
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
                let old = [times[border - 1], times[border]];
                (times[border - 1], times[border]) = (one, other);
                match time(&times, best.seconds) {
                    Some(found) if found.seconds < best.seconds * (1.0 - 1e-9) => {
                        best = found;
                        has_moved = true;
                    }
                    _ => {
                        borders[border] = before;
                        [times[border - 1], times[border]] = old;
                    }
                }
            }
        }
    }
    Some((borders, best))
}
