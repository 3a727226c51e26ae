//! One attempt at a grid: each chunk may take a given share of its device's memory.
//!
//! 1. Lower bounds: `bound::grid`, and the slowest stage on an idealized machine; prunes a grid that cannot win.
//! 2. The cut whose slowest stage is fastest, exact over the states (`pipeline::best`) but for chunks, which may recompute a fraction
//!    of a block as long as they fit; further cuts as seeds.
//! 3. Hill climbing by the timed order of operations (`hill_climb`), memory of chunks shared out (`chunk_memory`).
//! 4. The simulator's time and memory; with less memory again if it finds too much.
//! 5. All cuts, if there are few (`all_cuts`).
//!
//! Cuts that are given, or made by a rule, are timed as they are. Cost: that of the parts.

use std::{
    borrow::Cow,
    cell::{Cell, OnceCell},
    rc::Rc,
};

use schema::Bytes;
use simulator::order::{Order, Schedule, make_for_costs};

use crate::{
    MachineDevice, Problem,
    bound::crossing::Ordered,
    device_orders::tries_all_orders,
    error::PlanError,
    goal::Goal,
    grid::{
        all_cuts::AllCuts,
        chunk_memory::share_out,
        hill_climb::{Climbed, Places, Seed, polish, timed},
        question::{GridSolver, NoGrid},
        shape::Grid,
        stage_times::{average_cost, passes_alone, shared_out},
        step_time::{StageTimes, StepTime, step_time},
    },
    pipeline::best::{Sharing, best_pipeline, best_within_memory, relaxed_pipeline},
    simulate::{is_simulated, settle_step},
    solution::{MadeBy, Objective, Solution, SolutionStage, share_memory},
    stage::{
        costs::StageCosts,
        lines::Lines,
        place::Neighbours,
        run::{Cut, Run, of_rank},
        score::Rules,
        scorer::Scorer,
    },
    strategy::{deepspeed::least_bound, row::Search, torchgpipe::torchgpipe},
};

/// How often stages that run out of memory in the simulation are planned again with less.
const ROUNDS: usize = 3;

/// The most cuts that are simulated if the result proves nothing, unless there are few states; none over more than some.
const UNSURE: usize = 8;
const FEW_STATES: usize = 40;
const SOME_STATES: usize = 100;

/// A grid, and what all of its plans share: order of operations, rules, devices, memory.
pub(crate) struct Attempt<'a> {
    solver: &'a GridSolver<'a>,
    /// The problem; if devices have several chunks, with a smaller device in place of each chunk.
    problem: Cow<'a, Problem>,
    grid: Grid,
    /// Micro-batches of one replica.
    each: usize,
    /// Seconds for each micro-batch that a plan must take less than.
    below: f64,
    /// The order of operations: made for grids that no bound prunes.
    order: OnceCell<Order>,
    rules: Rules,
    places: Places,
    /// Bytes of the devices of each rank.
    memory: Vec<f64>,
    /// Whether stages were given less memory than they have: their recomputation and offload may then not be optimal.
    has_less: Cell<bool>,
    /// Whether no cuts at all fit by formula.
    is_hopeless: Cell<bool>,
    known: &'a Known,
}

/// What attempts with other shares of the memory know of each other.
#[derive(Default)]
pub(crate) struct Known {
    /// The lower bound of the slowest stage, once one attempt has found it: it holds for every division of the memory.
    bottleneck: Cell<Option<f64>>,
    /// Whether the cuts of the last attempt save nothing, and so need no larger share.
    pub(crate) has_room: Cell<bool>,
    /// The least time of a plan by formula, over the limit.
    pub(crate) nearest: Cell<Option<f64>>,
}

impl<'a> Attempt<'a> {
    /// Makes an attempt in which each chunk may take this share of its device's memory.
    ///
    /// # Errors
    /// When the schedule does not take the grid.
    pub(crate) fn new(
        solver: &'a GridSolver<'a>,
        grid: Grid,
        each: usize,
        below: f64,
        (share, known): (f64, &'a Known),
    ) -> Result<Self, NoGrid> {
        let whole = solver.problem;
        grid.schedule.check(grid.shape(each)).map_err(|error| NoGrid {
            error: PlanError::Schedule { strategy: solver.strategy.name(), reason: error.to_string() },
            lower_bound: f64::INFINITY,
        })?;
        let in_flight = grid.schedule.in_flight(grid.ranks, grid.chunks, each, grid.replicas);
        let rules = Rules { is_asynchronous: false, in_flight, neighbours: Neighbours::Paired };
        let problem =
            if grid.chunks == 1 { Cow::Borrowed(whole) } else { Cow::Owned(in_chunks(whole, grid, share)) };
        let places = places(grid);
        let memory = |rank: usize| {
            let devices = grid.devices(rank).devices().map(|device| whole.machine.devices[device].memory.0);
            devices.min().unwrap_or(0) as f64
        };
        let memory = (0..grid.ranks).map(memory).collect();
        let (order, has_less, is_hopeless) = (OnceCell::new(), Cell::new(false), Cell::new(false));
        Ok(Self {
            solver,
            problem,
            grid,
            each,
            below,
            order,
            rules,
            places,
            memory,
            has_less,
            is_hopeless,
            known,
        })
    }

    fn order(&self) -> &Order {
        let Self { solver, grid, each, .. } = self;
        let make = || make_for_costs(grid.schedule, grid.shape(*each), average_cost(solver.problem, *grid));
        self.order.get_or_init(|| make().expect("the schedule takes the grid"))
    }

    /// Finds the best cuts.
    pub(crate) fn solve(&self) -> Result<(Solution, f64), NoGrid> {
        let Self { solver: GridSolver { problem: whole, states, goal, strategy, .. }, .. } = self;
        let mut scorer = Scorer::new(&self.problem, states, self.rules);
        scorer.memory_plans = Rc::clone(&self.solver.memory_plans);
        if self.grid.chunks == 1 {
            scorer.runs = Rc::clone(&self.solver.runs);
        }
        let is_open = *goal != Goal::Any;
        let mut lower_bound =
            if is_open { self.solver.bounds.least_step(self.grid, self.each, self.limit()) } else { 0.0 };
        let given = self.given();
        let is_given = given.is_some();
        let climbed = match given {
            // Given cuts, and cuts made by a rule, prove nothing of other cuts.
            Some(borders) => {
                timed((&scorer, self.solver.lines), self.order(), &self.places, &self.natural(), &borders)
            }
            None => self.climbed(&scorer, &mut lower_bound)?,
        };
        let saves_nothing = |found: &Climbed| found.stages.iter().all(|stage| stage.score.overhead == 0.0);
        self.known.has_room.set(climbed.as_ref().is_some_and(saves_nothing));
        let found = climbed.and_then(|Climbed { stages, time }| self.finish(stages, time, lower_bound));
        // A plan that runs out of memory in the simulation is kept only if no other fits: the caller plans again with less.
        let (mut best, excessive) = match found {
            Some((found, false)) if !strategy.is_rule() => (None, Some(found)),
            found => (found.map(|found| found.0), None),
        };
        let mut is_exact = false;
        let is_tried = self.is_complete() && tries_all_orders(whole) && !self.is_hopeless.get();
        if is_open && !is_given && is_tried {
            (best, is_exact) = self.all_cuts(&scorer, best, lower_bound);
        }
        let proven = |most: f64| {
            let gap = 1.0 - scorer.gap.get();
            if is_exact { lower_bound.max(self.limit().min(most) * gap) } else { lower_bound }
        };
        match best.or(excessive.filter(|_| !is_exact)) {
            None => Err(NoGrid { error: self.none(&scorer), lower_bound: proven(f64::INFINITY) }),
            Some(mut best) => {
                let least = proven(best.seconds()).min(best.seconds());
                if self.solver.is_uniform {
                    best.lower_bound = least;
                }
                Ok((best, least))
            }
        }
    }

    /// Returns why there is no plan; if memory was overestimated, that one may still exist.
    fn none(&self, scorer: &Scorer) -> PlanError {
        if self.rules.in_flight.is_upper_bound() && !scorer.is_roomy() {
            let reason = "no plan that surely fits was found: how many micro-batches a stage holds is known of its order alone";
            return PlanError::Schedule { strategy: self.solver.strategy.name(), reason: reason.into() };
        }
        PlanError::NothingFits
    }

    /// Returns the micro-batches of all replicas.
    fn n_micro_batches(&self) -> f64 {
        (self.each * self.grid.replicas) as f64
    }

    /// Returns the seconds of a step that plans are to take less than.
    fn limit(&self) -> f64 {
        self.below * self.n_micro_batches()
    }

    /// Tells whether all cuts are among the states; a single stage has none.
    fn is_complete(&self) -> bool {
        self.solver.is_complete || self.grid.n_stages() == 1
    }

    fn natural(&self) -> Vec<usize> {
        (0..self.problem.blocks.len()).collect()
    }

    fn sharing(&self) -> Sharing {
        Sharing::Equal {
            stages: self.grid.n_stages(),
            replicas: self.grid.replicas,
            replicas_together: self.grid.replicas_together,
        }
    }

    /// Returns the boundaries, with both ends, if they are given or made by a rule.
    fn given(&self) -> Option<Vec<usize>> {
        match (&self.problem.begins, self.solver.strategy.row().search) {
            (Some(begins), _) => {
                let end = self.problem.blocks.len();
                Some(std::iter::once(0).chain(begins.iter().copied()).chain([end]).collect())
            }
            (None, Search::Rule(rule)) => Some(rule(&self.problem, self.grid.n_stages())),
            _ => None,
        }
    }

    /// Finds the pipeline whose slowest stage is fastest, below `below` seconds for each micro-batch.
    fn best_pipeline(
        &self,
        scorer: &Scorer,
        sharing: Sharing,
        least: f64,
        below: f64,
    ) -> Option<(f64, Vec<Cut>)> {
        match self.grid.chunks {
            1 => self.solver.pipelines.best_pipeline(scorer, sharing, least, below),
            // Each chunked grid is a machine of its own and is asked for once: nothing to cache. The slowest of several chunks on a
            // device bounds little and only begins a climb: it is not worth knapsacks while stages fit without, or another cut that
            // the climb begins from does.
            _ => {
                let relaxed = relaxed_pipeline(scorer, sharing, below)?;
                let fits = |cut: &Cut| scorer.on(cut.run, cut.behind).score(cut.start, cut.end).is_some();
                if scorer.is_bound || relaxed.1.iter().all(fits) || self.has_even_cut(scorer, &relaxed.1) {
                    return Some(relaxed);
                }
                best_within_memory(scorer, sharing, relaxed.0, below)
            }
        }
    }

    /// Tells whether the stages of a cut by a rule fit.
    fn has_even_cut(&self, scorer: &Scorer, cuts: &[Cut]) -> bool {
        let mut seeds = self.seeds(scorer, cuts).into_iter().skip(1);
        seeds.any(|(line, borders)| {
            self.solver.lines.with(scorer, &line, |scorer| {
                let mut stages = borders.windows(2).zip(&self.places);
                stages.all(|(ends, &(run, behind))| scorer.on(run, behind).score(ends[0], ends[1]).is_some())
            })
        })
    }

    /// Returns the cuts that a climb begins from: those that were found, and those by two rules.
    fn seeds(&self, scorer: &Scorer, cuts: &[Cut]) -> Vec<Seed> {
        let (line, borders) = seed_of(scorer, cuts);
        let times: Vec<f64> = line.iter().map(|&block| self.problem.blocks[block].seconds()).collect();
        let n_stages = self.grid.n_stages();
        vec![
            (line.clone(), borders),
            (line, least_bound(&times, n_stages)),
            (self.natural(), torchgpipe(&self.problem, n_stages)),
        ]
    }

    /// Finds cuts by the slowest stage, and moves them while the step becomes shorter; raises the lower bound on the way.
    ///
    /// # Errors
    /// When no plan is below the limit.
    fn climbed(&self, scorer: &Scorer, lower_bound: &mut f64) -> Result<Option<Climbed>, NoGrid> {
        let Self { solver, grid, places, below, .. } = self;
        let whole = solver.problem;
        // No bound where the turn of a V, which crosses no link, would be charged for the fastest one, or where memory is
        // overestimated.
        let is_known = (solver.is_uniform || !grid.schedule.is_in_v())
            && (scorer.is_roomy() || !self.rules.in_flight.is_upper_bound());
        let is_asked = solver.goal != Goal::Any && self.is_complete() && is_known;
        let is_plain = solver.is_uniform && grid.chunks == 1 && scorer.is_roomy();
        // A step is no shorter than its slowest stage's seconds for each micro-batch, times all micro-batches, but for the
        // gradients of the first ones, which are added to none.
        let added = whole.accumulation();
        let raise = |lower_bound: &mut f64, bottleneck: f64| {
            *lower_bound = lower_bound.max(self.n_micro_batches() * bottleneck - added);
            if bottleneck < *below {
                let step = solver.bounds.fill(*grid, self.each, bottleneck * grid.replicas as f64);
                *lower_bound = lower_bound.max(step);
            }
            let none = NoGrid { error: PlanError::NothingFits, lower_bound: *lower_bound };
            if *lower_bound >= self.limit() { Err(none) } else { Ok(()) }
        };
        let mut least = 0.0;
        if is_asked && !is_plain {
            least = self.known.bottleneck.get().unwrap_or_else(|| self.least_bottleneck(scorer));
            self.known.bottleneck.set(Some(least));
            raise(lower_bound, least)?;
        }
        // With offload, copies overlap compute and the formula overestimates: do not prune by it.
        let own = if whole.training.offload { f64::INFINITY } else { *below };
        let found = self.best_pipeline(scorer, self.sharing(), least, own);
        if grid.chunks > 1 && found.is_none() && !whole.training.offload && !scorer.is_roomy() {
            let any = relaxed_pipeline(scorer, self.sharing(), f64::INFINITY);
            self.is_hopeless.set(any.is_none());
        }
        if is_asked && is_plain {
            raise(lower_bound, found.as_ref().map_or(*below, |best| best.0))?;
        }
        let mut seeds = found.map_or_else(Vec::new, |(_, cuts)| self.seeds(scorer, &cuts));
        if solver.goal != Goal::Any || seeds.is_empty() {
            let lines = solver.bounds.narrow_orders(*grid, self.each);
            add_lines(&mut seeds, lines, (scorer, solver.lines), places, &|scorer| {
                best_pipeline(scorer, self.sharing(), own).map(|found| found.1)
            });
        }
        let goal = (solver.goal, self.limit());
        Ok(polish((scorer, solver.lines), self.order(), places, &seeds, solver.n_grids, goal))
    }

    /// Returns a lower bound of the slowest stage's seconds for each micro-batch over all cuts, or `below` if it is not less;
    /// infinite if nothing fits.
    ///
    /// Solved on an ideal machine. The formula on the real devices is not a lower bound if they differ (another order may be
    /// better), if copies to the host run beside compute, or if memory is overestimated.
    fn least_bottleneck(&self, scorer: &Scorer) -> f64 {
        let chunks = self.grid.chunks;
        let in_chunks = || {
            // Chunks need not divide their device's memory evenly: one may have all of it.
            let whole = self.solver.problem.machine.devices.iter().map(|device| device.memory).max();
            let mut ideal = scorer.problem.ideal();
            let largest = |device: &mut MachineDevice| device.memory = whole.unwrap_or(device.memory);
            ideal.machine.devices.iter_mut().for_each(largest);
            ideal
        };
        let ideal = if chunks == 1 { Cow::Borrowed(self.solver.ideal()) } else { Cow::Owned(in_chunks()) };
        let is_uniform =
            if chunks == 1 { self.solver.is_uniform } else { scorer.problem.machine.is_uniform() };
        let neighbours = if is_uniform { scorer.rules.neighbours } else { Neighbours::Fastest };
        // On an ideal machine replicas may as well be adjacent: one answer serves both arrangements.
        let sharing = match self.sharing() {
            Sharing::Equal { stages, replicas, .. } if !is_uniform => {
                Sharing::Equal { stages, replicas, replicas_together: true }
            }
            sharing => sharing,
        };
        let mut bound = Scorer::new(&ideal, scorer.states, Rules { neighbours, ..scorer.rules });
        bound.is_bound = true;
        bound.memory_plans = Rc::clone(&scorer.memory_plans);
        if chunks == 1 {
            bound.runs = Rc::clone(&self.solver.ideal_runs);
        }
        self.best_pipeline(&bound, sharing, 0.0, self.below).map_or(self.below, |best| best.0)
    }

    /// Makes a plan whose stages use this share of the memory by formula; `None` if they cannot.
    fn finish_within(
        &self,
        share: f64,
        mut stages: Vec<SolutionStage>,
        mut time: StepTime,
        lower_bound: f64,
    ) -> Option<Solution> {
        let Self { solver, grid, problem, .. } = self;
        let limits: Vec<f64> = self.memory.iter().map(|bytes| bytes * share).collect();
        let held = |rank: usize| -> f64 {
            of_rank(&stages, grid.schedule, grid.ranks, rank).map(|stage| stage.score.memory).sum()
        };
        let is_open = grid.chunks > 1 || share < 1.0;
        if is_open && (0..grid.ranks).any(|rank| held(rank) > limits[rank]) {
            let scorer = Scorer::new(problem, solver.states, self.rules);
            let times = share_out((&scorer, solver.lines), *grid, &self.places, &mut stages, &limits)?;
            time = step_time(self.order(), &times, problem.machine.overlaps)?;
        }
        for (index, stage) in stages.iter_mut().enumerate() {
            stage.run = grid.devices(index);
            stage.score.limit = self.memory[grid.rank_of(index)];
        }
        share_memory(&mut stages, grid.schedule, grid.ranks).ok()?;
        Some(Solution {
            made_by: MadeBy::Strategy(solver.strategy),
            schedule: grid.schedule,
            micro_batches: self.n_micro_batches() as u32,
            stages,
            execution: shared_out(solver.problem, grid.replicas),
            objective: Objective::Step(time.seconds),
            lower_bound,
            bubble: Some(time.bubble),
            order: Vec::new(),
            peaks: None,
        })
    }

    /// Makes a plan of stages and simulates it; tells whether it fits. `None` if it is not below the limit, or does not fit by
    /// formula.
    fn finish(
        &self,
        stages: Vec<SolutionStage>,
        time: StepTime,
        lower_bound: f64,
    ) -> Option<(Solution, bool)> {
        let Self { solver: GridSolver { problem: whole, strategy, .. }, grid, .. } = self;
        // The search compares numbers of chunks by their times, also above the limit; a V has two.
        let is_compared = grid.chunks > 1 && !grid.schedule.is_in_v();
        let most = if is_compared { f64::INFINITY } else { self.limit() };
        let whole_share = self.finish_within(1.0, stages.clone(), time, lower_bound)?;
        if grid.chunks > 1 {
            let over = whole_share.seconds() / self.limit();
            self.known.nearest.set(Some(self.known.nearest.get().map_or(over, |nearest| nearest.min(over))));
        }
        let least = self.seconds_alone(&whole_share, self.limit()).unwrap_or(0.0);
        if least >= self.limit() {
            return is_compared.then_some((whole_share, true));
        }
        let (found, mut excess) = settle_step(whole, whole_share, most)?;
        debug_assert!(found.seconds() >= least, "{} < {least}", found.seconds());
        if strategy.is_rule() || !(whole.training.recompute || whole.training.offload) {
            return Some((found, excess.is_none()));
        }
        let mut share = 1.0;
        for _ in 0..ROUNDS {
            let Some(over) = excess else { break };
            self.has_less.set(true);
            share /= over.max(1.01);
            let Some(less) = self.finish_within(share, stages.clone(), time, lower_bound) else { break };
            // With less memory the plan may be above the limit.
            let (less, still) = settle_step(whole, less, most)?;
            if still.is_none() {
                return Some((less, true));
            }
            excess = still;
        }
        Some((found, excess.is_none()))
    }

    /// Returns the seconds of a plan's passes alone, without transfers, which the simulator does not fall below; `None` where that is
    /// not known, or nobody asks: a plan above the limit is not simulated.
    fn seconds_alone(&self, plan: &Solution, limit: f64) -> Option<f64> {
        let is_in_order = matches!(self.grid.schedule, Schedule::OneForwardOneBackward | Schedule::GPipe);
        let n_devices = self.grid.ranks * self.grid.replicas;
        let (n_stages, count) = (self.grid.n_stages(), plan.micro_batches as usize);
        if !(is_in_order || self.grid.chunks > 1)
            || limit == f64::INFINITY
            || plan.offloads()
            || !is_simulated(self.solver.problem, n_stages, count, n_devices)
        {
            return None;
        }
        let passes: Vec<StageTimes> =
            plan.stages.iter().map(|stage| passes_alone(self.solver.problem, stage)).collect();
        // The simulator rounds to whole nanoseconds.
        let rounding = (3 * self.each * self.grid.chunks + 6 * n_stages) as f64 * 1e-9;
        let alone = step_time(self.order(), &passes, true)?;
        Some(alone.seconds * (1.0 - 1e-9) - rounding)
    }

    /// Searches all cuts for a better plan; also tells whether that proves the best.
    fn all_cuts(
        &self,
        scorer: &Scorer,
        best: Option<Solution>,
        lower_bound: f64,
    ) -> (Option<Solution>, bool) {
        let Self { solver, problem, grid, .. } = self;
        let simulate = |stages: Vec<SolutionStage>, times: &[StageTimes]| {
            let time = step_time(self.order(), times, problem.machine.overlaps)?;
            self.finish(stages, time, lower_bound).filter(|found| found.1).map(|found| found.0)
        };
        let on = |&(run, behind): &(Run, usize)| scorer.on(run, behind).with_tables(false);
        let costs: Vec<StageCosts> = self.places.iter().map(on).collect();
        let mut cuts = AllCuts::new(scorer, *grid, self.each, &costs, &simulate);
        (cuts.best, cuts.bound) = (best, self.limit());
        let n_ops: usize = self.order().ranks.iter().map(Vec::len).sum();
        // Offload, and the division of a device's memory among chunks, are chosen by formula, so other choices remain untried.
        let is_alone = grid.chunks == 1 && !self.rules.in_flight.is_upper_bound();
        let is_sure = scorer.is_roomy() || is_alone && !problem.training.offload;
        // Where nothing is proven, the climb has found as much as trying cuts one by one does over many states.
        if !is_sure && solver.states.len() > SOME_STATES {
            return (cuts.best, false);
        }
        let limits = problem.training.limits;
        let most = if is_sure || solver.states.len() <= FEW_STATES { limits.simulated_plans } else { UNSURE };
        cuts.left = (limits.simulated_passes / n_ops / solver.n_grids.clamp(1, 4)).min(most);
        let is_exact = cuts.search() && is_sure && !self.has_less.get();
        (cuts.best, is_exact)
    }
}

/// Returns a problem in which each chunk has a smaller device of its own.
fn in_chunks(whole: &Problem, grid: Grid, share: f64) -> Problem {
    let mut smaller = whole.clone();
    let n_stages = grid.n_stages();
    let mut parts = vec![None; n_stages * grid.replicas];
    for stage in 0..n_stages {
        for (part, device) in grid.run(stage, n_stages).devices().zip(grid.devices(stage).devices()) {
            let device = &whole.machine.devices[device];
            let memory = Bytes((device.memory.0 as f64 * share) as u64);
            parts[part] = Some(MachineDevice { memory, ..device.clone() });
        }
    }
    smaller.machine.devices = parts.into_iter().flatten().collect();
    smaller
}

/// Returns the device run of each stage, and the number of devices from it to the end.
fn places(grid: Grid) -> Places {
    let n_stages = grid.n_stages();
    let place = |index: usize| (grid.run(index, n_stages), (n_stages - index) * grid.replicas);
    (0..n_stages).map(place).collect()
}

/// The order of the blocks through some cuts, and the boundaries in it.
fn seed_of(scorer: &Scorer, cuts: &[Cut]) -> Seed {
    let (mut line, mut borders) = (Vec::new(), vec![0]);
    for cut in cuts {
        line.extend(scorer.states.blocks(cut.start, cut.end));
        borders.push(line.len());
    }
    (line, borders)
}

/// Adds block orders as seeds, with their boundaries.
fn add_lines(
    seeds: &mut Vec<Seed>,
    orders: Vec<Ordered>,
    (scorer, lines): (&Scorer, &Lines),
    places: &Places,
    best: &dyn Fn(&Scorer) -> Option<Vec<Cut>>,
) {
    for (line, borders) in orders {
        let is_first = seeds.is_empty();
        let seed = lines.with(scorer, &line, |scorer| {
            let work = &scorer.states.work;
            let fits = |borders: &Vec<usize>| {
                let mut stages = borders.windows(2).zip(places);
                stages.all(|(pair, &(run, behind))| {
                    work[pair[0]] < work[pair[1]] && scorer.on(run, behind).score(pair[0], pair[1]).is_some()
                })
            };
            match borders.filter(fits) {
                Some(borders) => Some((line.clone(), borders)),
                // If cuts coincide or a stage does not fit, the boundaries have to be found anew.
                None if is_first => best(scorer).map(|cuts| seed_of(scorer, &cuts)),
                None => None,
            }
        });
        seeds.extend(seed);
    }
}
