//! The best plan of one grid: `p` stages in a row, each on `d` devices, under a schedule.
//!
//! 1. Lower bounds: `bound::grid`, and the slowest stage on an idealized machine; a grid that cannot win is given up.
//! 2. The cut whose slowest stage is fastest, exact over the states (`pipeline::best`); further cuts as seeds.
//! 3. Hill climbing by the timed order of operations (`hill_climb`), memory of chunks shared out (`chunk_memory`).
//! 4. The simulator's time and memory; with less memory again if it finds too much.
//! 5. All cuts, if there are few (`all_cuts`).
//!
//! Cuts that are given, or made by a rule, are timed as they are. Cost: that of the parts.

use std::cell::Cell;

use schema::Bytes;
use simulator::{Cost, order::make_for_costs};

use crate::{
    MachineDevice, Problem,
    bound::{crossing::Ordered, grid::GridBounds},
    dag::cut_states::States,
    device_orders::tries_all_orders,
    error::PlanError,
    goal::Goal,
    grid::{
        all_cuts::AllCuts,
        chunk_memory::share_out,
        hill_climb::{Climbed, Places, Seed, polish, timed},
        shape::Grid,
        stage_times::shared_out,
        step_time::{StageTimes, StepTime, step_time},
    },
    pipeline::{
        best::{Sharing, best_pipeline, least_between, stages_of},
        cache::PipelineCache,
    },
    plan_file::simulate::settle_step,
    solution::{MadeBy, Objective, Solution, SolutionStage, share_memory},
    stage::{
        in_flight::in_flight_of,
        place::Neighbours,
        run::{Cut, Run},
        score::{Rules, Scorer},
    },
    strategy::{Strategy, deepspeed::least_bound, row::Search, torchgpipe::torchgpipe},
};

/// Shares of a device's memory that a chunk may take, where an equal one is too little.
const SHARES: [f64; 6] = [1.0, 0.8, 0.65, 0.5, 0.4, 0.3];

/// How often stages that run out of memory in the simulation are given less.
const ROUNDS: usize = 3;

/// Operations that plans of all cuts may have together.
const OPERATIONS: usize = 50_000;
/// The most of such plans; and of those that prove nothing, of more than a few states.
const PLANS: usize = 200;
const UNSURE: usize = 8;
const FEW_STATES: usize = 40;

/// The most pairs of states that searches for chunks look at.
const CHUNKED: usize = 150_000_000;

/// Why a grid has no plan, and what bounds one that was not found.
pub(crate) struct NoGrid {
    pub(crate) error: PlanError,
    /// Seconds of a step; infinite where nothing fits however memory is counted.
    pub(crate) lower_bound: f64,
}

/// Finds the best plan of one grid.
pub(crate) struct GridSolver<'a> {
    pub(crate) problem: &'a Problem,
    pub(crate) states: &'a States,
    /// Whether all ways to cut are among the states.
    pub(crate) is_complete: bool,
    /// Best pipelines over the states of strategies that cut by no rule.
    pub(crate) pipelines: &'a PipelineCache,
    pub(crate) bounds: &'a GridBounds<'a>,
    pub(crate) strategy: Strategy,
    pub(crate) goal: Goal,
    /// Grids that share the time there is.
    pub(crate) n_grids: usize,
    /// Pairs of states that searches looked at, at the most.
    pub(crate) spent: Cell<usize>,
}

impl GridSolver<'_> {
    /// Finds the best cuts, `each` being the micro-batches of one replica; also returns the lower bound with the devices in this
    /// order.
    ///
    /// Grids that cannot take less than `below` seconds for each micro-batch may be given up.
    pub(crate) fn solve(&self, grid: Grid, each: usize, below: f64) -> Result<(Solution, f64), NoGrid> {
        if !self.has_room(grid, each) {
            return Err(NoGrid { error: PlanError::NothingFits, lower_bound: f64::INFINITY });
        }
        let mut best = self.solve_sharing(grid, each, 1.0 / grid.chunks as f64, below);
        let step = below * (each * grid.replicas) as f64;
        let is_tight = |found: &Result<(Solution, f64), NoGrid>| match found {
            Ok((found, least)) => {
                self.goal != Goal::Any
                    && found.stages.iter().any(|stage| stage.score.overhead > 0.0)
                    && found.seconds() > *least
            }
            // However memory is shared, it is too little or nothing is faster than what is asked for.
            Err(none) => none.lower_bound < step,
        };
        if grid.chunks == 1 || !is_tight(&best) {
            return best;
        }
        // One chunk may need more than an equal share of its device's memory.
        for share in SHARES.into_iter().filter(|share| share * grid.chunks as f64 > 1.0) {
            if self.is_spent(grid) {
                break;
            }
            let below = best.as_ref().map_or(below, |(best, _)| best.seconds_each().min(below));
            let other = self.solve_sharing(grid, each, share, below);
            best = match (best, other) {
                (Ok((best, a)), Ok((other, b))) if best.seconds() <= other.seconds() => Ok((best, a.min(b))),
                (Ok((_, a)), Ok((other, b))) => Ok((other, a.min(b))),
                (Err(_), other) => other,
                (best, Err(_)) => best,
            };
        }
        best
    }

    /// Tells whether the budget for searches with several chunks a rank is spent.
    pub(crate) fn is_spent(&self, grid: Grid) -> bool {
        grid.chunks > 1 && self.spent.get() > CHUNKED
    }

    /// Tells whether all devices together have room for what all chunks hold at the least.
    fn has_room(&self, grid: Grid, each: usize) -> bool {
        if grid.chunks == 1 {
            return true;
        }
        let in_flight = in_flight_of(grid.schedule, grid.ranks, grid.chunks, each, grid.replicas);
        let rules = Rules { is_asynchronous: false, in_flight, neighbours: Neighbours::Paired };
        let scorer = Scorer::new(self.problem, self.states, rules);
        let count = in_flight.count(grid.replicas, grid.replicas);
        let needed = least_between(&scorer, 0, self.states.len() - 1, count);
        let devices = &self.problem.machine.devices[..grid.ranks];
        needed <= devices.iter().map(|device| device.memory.0 as f64).sum::<f64>() * (1.0 + 1e-9)
    }

    /// Finds the best cuts if each chunk may take this share of its device's memory.
    fn solve_sharing(
        &self,
        grid: Grid,
        each: usize,
        share: f64,
        below: f64,
    ) -> Result<(Solution, f64), NoGrid> {
        let Self { problem: whole, states, strategy, goal, .. } = *self;
        self.spent.set(self.spent.get() + states.len() * states.len() * grid.n_stages());
        // A step of all replicas' micro-batches, of which plans are to take less.
        let n_micro_batches = (each * grid.replicas) as f64;
        let limit = below * n_micro_batches;
        let n_stages = grid.n_stages();
        // A single stage has one cut: none.
        let is_complete = self.is_complete || n_stages == 1;
        let bound = if goal == Goal::Any { 0.0 } else { self.bounds.floor(grid, each, limit) };
        let order = make_for_costs(grid.schedule, grid.shape(each), Cost::EQUAL).map_err(|error| NoGrid {
            error: PlanError::Schedule { strategy: strategy.name(), reason: error.to_string() },
            lower_bound: f64::INFINITY,
        })?;
        let in_flight = in_flight_of(grid.schedule, grid.ranks, grid.chunks, each, grid.replicas);
        let rules = Rules { is_asynchronous: false, in_flight, neighbours: Neighbours::Paired };
        let chunked;
        let problem = match grid.chunks {
            1 => whole,
            // Chunks share their device: it stands for as many smaller ones.
            _ => {
                let mut smaller = whole.clone();
                let part = |stage: usize| {
                    let device = &whole.machine.devices[stage % grid.ranks];
                    MachineDevice { memory: Bytes((device.memory.0 as f64 * share) as u64), ..device.clone() }
                };
                smaller.machine.devices = (0..n_stages).map(part).collect();
                chunked = smaller;
                &chunked
            }
        };
        let scorer = Scorer::new(problem, states, rules);
        let sharing = Sharing::Equal {
            stages: n_stages,
            replicas: grid.replicas,
            replicas_together: grid.replicas_together,
        };
        let begins = problem.begins.as_ref();
        let given = match strategy.row().search {
            _ if begins.is_some() => begins.map(|begins| {
                let end = problem.blocks.len();
                std::iter::once(0).chain(begins.iter().copied()).chain([end]).collect()
            }),
            Search::Rule(rule) => Some(rule(problem, n_stages)),
            _ => None,
        };
        let place = |index: usize| {
            let run = if grid.replicas_together {
                Run { first: index * grid.replicas, count: grid.replicas, stride: 1 }
            } else {
                Run { first: index, count: grid.replicas, stride: n_stages }
            };
            (run, (n_stages - index) * grid.replicas)
        };
        let places: Places = (0..n_stages).map(place).collect();
        let natural: Vec<usize> = (0..problem.blocks.len()).collect();
        let mut lower_bound = bound;
        let is_given = given.is_some();
        let polished = match given {
            // Given cuts, and cuts made by a rule, stand for no others.
            Some(borders) => timed(problem, rules, &order, &places, natural, &borders),
            None => {
                // It counts all replicas' micro-batches, of every chunk of a rank.
                let is_asked = goal != Goal::Any && is_complete;
                let is_plain = whole.machine.is_uniform() && grid.chunks == 1 && scorer.is_roomy();
                // Chunks have machines of their own, and are asked for once.
                let best = |scorer: &Scorer, below: f64| match grid.chunks {
                    1 => self.pipelines.best_pipeline(scorer, sharing, below),
                    _ => best_pipeline(scorer, sharing, below),
                };
                if is_asked && !is_plain {
                    let bottleneck = least_bottleneck(&scorer, grid.chunks, below, best);
                    lower_bound = lower_bound.max(n_micro_batches * bottleneck);
                    if lower_bound >= limit {
                        return Err(NoGrid { error: PlanError::NothingFits, lower_bound });
                    }
                }
                // With offload, copies overlap compute and the formula overestimates: do not prune by it.
                let own = if whole.training.offload { f64::INFINITY } else { below };
                let found = best(&scorer, own);
                if is_asked && is_plain {
                    let bottleneck = found.as_ref().map_or(below, |best| best.0);
                    lower_bound = lower_bound.max(n_micro_batches * bottleneck);
                    if lower_bound >= limit {
                        return Err(NoGrid { error: PlanError::NothingFits, lower_bound });
                    }
                }
                let mut seeds: Vec<Seed> = Vec::new();
                if let Some((_, cuts)) = found {
                    let (line, borders) = seed_of(&scorer, &cuts);
                    let times: Vec<f64> = line.iter().map(|&block| problem.blocks[block].seconds()).collect();
                    seeds.push((line.clone(), borders));
                    seeds.push((line, least_bound(&times, n_stages)));
                    seeds.push((natural, torchgpipe(problem, n_stages)));
                }
                if goal != Goal::Any || seeds.is_empty() {
                    let lines = self.bounds.narrow_orders(grid, each);
                    add_lines(&mut seeds, lines, (problem, rules), &places, &|scorer| {
                        best_pipeline(scorer, sharing, own).map(|found| found.1)
                    });
                }
                polish(problem, rules, &order, &places, &seeds, self.n_grids, goal)
            }
        };
        let memory = |(run, _): &(Run, usize)| {
            let devices = run.devices().map(|device| whole.machine.devices[device].memory.0);
            devices.min().unwrap_or(0) as f64
        };
        let memory: Vec<f64> = places[..grid.ranks].iter().map(memory).collect();
        // Which of several numbers of chunks gains is told by their times, be they above the limit.
        let most = if grid.chunks == 1 { limit } else { f64::INFINITY };
        // Makes a plan that takes this share of the memory by formula.
        let finish_within = |share: f64, mut stages: Vec<SolutionStage>, mut time: StepTime| {
            let limits: Vec<f64> = memory.iter().map(|bytes| bytes * share).collect();
            let held = |rank: usize| -> f64 {
                stages.iter().skip(rank).step_by(grid.ranks).map(|stage| stage.score.memory).sum()
            };
            let is_open = grid.chunks > 1 || share < 1.0;
            if is_open && (0..grid.ranks).any(|rank| held(rank) > limits[rank]) {
                let times = share_out(problem, rules, &places, &mut stages, &limits)?;
                time = step_time(&order, &times, problem.machine.overlaps)?;
            }
            for (index, stage) in stages.iter_mut().enumerate() {
                if grid.chunks > 1 {
                    stage.run.first = index % grid.ranks;
                }
                stage.score.limit = memory[index % grid.ranks];
            }
            share_memory(&mut stages, grid.ranks).ok()?;
            let solution = Solution {
                made_by: MadeBy::Strategy(strategy),
                schedule: grid.schedule,
                micro_batches: (each * grid.replicas) as u32,
                stages,
                execution: shared_out(whole, grid.replicas),
                objective: Objective::Step(time.seconds),
                lower_bound,
                bubble: Some(time.bubble),
                order: Vec::new(),
            };
            Some(solution)
        };
        // Whether stages were left with less than formulas allow: they throw away enough, perhaps not what is best.
        let has_less = Cell::new(false);
        let finish = |stages: Vec<SolutionStage>, time: StepTime| {
            let whole_share = finish_within(1.0, stages.clone(), time)?;
            let (found, mut excess) = settle_step(whole, whole_share, most)?;
            if strategy.is_rule() || !(whole.training.recompute || whole.training.offload) {
                return Some((found, excess.is_none()));
            }
            let mut share = 1.0;
            for _ in 0..ROUNDS {
                let Some(over) = excess else { break };
                has_less.set(true);
                share /= over.max(1.01);
                let Some(less) = finish_within(share, stages.clone(), time) else { break };
                // What then fits may not be below the limit any more.
                let (less, still) = settle_step(whole, less, most)?;
                if still.is_none() {
                    return Some((less, true));
                }
                excess = still;
            }
            Some((found, excess.is_none()))
        };
        let found = polished.and_then(|Climbed { stages, time }| finish(stages, time));
        // What runs out of memory in the simulation is for the caller to plan again with less, unless there is something else.
        let (mut best, excessive) = match found {
            Some((found, false)) if !strategy.is_rule() => (None, Some(found)),
            found => (found.map(|found| found.0), None),
        };
        let mut is_exact = false;
        let is_asked = goal != Goal::Any && !is_given;
        if is_asked && is_complete && tries_all_orders(&whole.machine) {
            let simulate = |stages: Vec<(SolutionStage, StageTimes)>| {
                let (stages, times): (Vec<_>, Vec<_>) = stages.into_iter().unzip();
                let time = step_time(&order, &times, problem.machine.overlaps)?;
                finish(stages, time).filter(|found| found.1).map(|found| found.0)
            };
            let mut cuts = AllCuts::new(&scorer, grid, each, &places, &simulate);
            (cuts.best, cuts.bound) = (best, limit);
            let n_ops: usize = order.ranks.iter().map(Vec::len).sum();
            // What is offloaded, and which chunk of a device takes how much of its memory, is chosen by formulas.
            let is_sure = scorer.is_roomy() || grid.chunks == 1 && !problem.training.offload;
            let most = if is_sure || states.len() <= FEW_STATES { PLANS } else { UNSURE };
            cuts.left = (OPERATIONS / n_ops / self.n_grids.clamp(1, 4)).min(most);
            is_exact = cuts.search() && is_sure && !has_less.get();
            best = cuts.best;
        }
        let proven = |most: f64| {
            if is_exact { lower_bound.max(limit.min(most) * (1.0 - scorer.gap.get())) } else { lower_bound }
        };
        match best.or(excessive.filter(|_| !is_exact)) {
            None => Err(NoGrid { error: PlanError::NothingFits, lower_bound: proven(f64::INFINITY) }),
            Some(mut best) => {
                let least = proven(best.seconds()).min(best.seconds());
                if whole.machine.is_uniform() {
                    best.lower_bound = least;
                }
                Ok((best, least))
            }
        }
    }
}

/// A line of blocks through some cuts, and where these lie in it.
fn seed_of(scorer: &Scorer, cuts: &[Cut]) -> Seed {
    let found = stages_of(scorer, cuts);
    let line = found.iter().flat_map(|stage| stage.blocks.iter().copied()).collect();
    let mut borders = vec![0];
    found.iter().for_each(|stage| borders.push(borders[borders.len() - 1] + stage.blocks.len()));
    (line, borders)
}

/// Adds lines of blocks and where stages could end in them.
fn add_lines(
    seeds: &mut Vec<Seed>,
    lines: Vec<Ordered>,
    (problem, rules): (&Problem, Rules),
    places: &Places,
    best: &dyn Fn(&Scorer) -> Option<Vec<Cut>>,
) {
    for (line, borders) in lines {
        let states = States::line(problem, line.clone());
        let scorer = Scorer::new(problem, &states, rules);
        let fits = |borders: &Vec<usize>| {
            let mut stages = borders.windows(2).zip(places);
            stages.all(|(pair, &(run, behind))| {
                states.work[pair[0]] < states.work[pair[1]]
                    && scorer.score(pair[0], pair[1], run, behind).is_some()
            })
        };
        match borders.filter(fits) {
            Some(borders) => seeds.push((line, borders)),
            // Where cuts fall together or memory decides, the line alone does not say where stages end.
            None if seeds.is_empty() => seeds.extend(best(&scorer).map(|cuts| seed_of(&scorer, &cuts))),
            None => {}
        }
    }
}

/// Seconds for each micro-batch that the slowest stage takes at the least, whatever the cuts, or `below` where that is no more;
/// infinite where nothing fits.
///
/// Cuts found by formula for devices as they stand are the best only where all devices are alike and have room. Others may beat them
/// where devices or links differ and could be taken in another order, where copies to the host run beside compute, and where memory
/// is counted from above.
fn least_bottleneck(
    scorer: &Scorer,
    chunks: usize,
    below: f64,
    best: impl Fn(&Scorer, f64) -> Option<(f64, Vec<Cut>)>,
) -> f64 {
    let problem = scorer.problem;
    let is_uniform = problem.machine.is_uniform();
    let mut ideal = problem.ideal();
    if chunks > 1 {
        // A device's memory need not be shared evenly.
        let largest =
            |device: &mut MachineDevice| device.memory.0 = device.memory.0.saturating_mul(chunks as u64);
        ideal.machine.devices.iter_mut().for_each(largest);
    }
    let neighbours = if is_uniform { scorer.rules.neighbours } else { Neighbours::Fastest };
    let mut scorer = Scorer::new(&ideal, scorer.states, Rules { neighbours, ..scorer.rules });
    scorer.is_bound = true;
    best(&scorer, below).map_or(below, |best| best.0)
}
