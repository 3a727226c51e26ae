//! Which grids a strategy tries, and the best plan of them: stages in a row, chunks of each, replicas.
//!
//! Devices may be left over: where links are slow, fewer stages or replicas are faster. Grids are solved in the order of what bounds
//! them from below; one whose bound is above the best plan found cannot be better and is left out.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, HashMap},
};

use simulator::order::{OrderError, Schedule, Shape};

use crate::{
    MicroBatches, Problem,
    floor::Steps,
    grid::{GridSolver, in_flight_of},
    narrowest::{Ordered, Question},
    simulated::is_simulated,
    solution::Solution,
    states::States,
    strategy::{Goal, InOrder, PlanError, Strategy, candidates, each},
    two_way::schedule_of,
    ways::Ways,
};

/// Up to this many devices, all numbers of stages and replicas are tried; beyond, those that use all devices, and halves.
const FEW_DEVICES: usize = 16;
/// The most chunks of a device.
const MOST_CHUNKS: usize = 8;

/// Stages in a row, each of as many chunks and replicas, under a schedule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) schedule: Schedule,
    pub(crate) ranks: usize,
    pub(crate) chunks: usize,
    pub(crate) replicas: usize,
    /// Whether replicas of a stage sit side by side, or whole pipelines do.
    pub(crate) replicas_together: bool,
}

impl Grid {
    /// Returns how many parts the model is cut into.
    pub(crate) fn n_stages(self) -> usize {
        self.ranks * self.chunks
    }

    /// Returns the micro-batches of each replica.
    ///
    /// # Errors
    /// When exactly so many were asked for as replicas cannot share evenly or the schedule does not take.
    fn micro_batches(self, problem: &Problem, strategy: Strategy) -> Result<usize, PlanError> {
        let wanted = problem.training.wanted(&problem.machine) as usize;
        let is_exact = matches!(problem.training.micro_batches, MicroBatches::Exactly(_));
        let refused = |reason: String| PlanError::Schedule { strategy: strategy.name(), reason };
        if is_exact && !wanted.is_multiple_of(self.replicas) {
            let replicas = self.replicas;
            return Err(refused(format!(
                "{wanted} micro-batches cannot be shared evenly by {replicas} replicas"
            )));
        }
        let each = wanted.div_ceil(self.replicas).max(1);
        match self.schedule.check(self.shape(each)) {
            Ok(()) => Ok(each),
            // Some schedules take micro-batches in rounds: a few more, then.
            Err(OrderError::MicroBatches { smallest: Some(next), .. }) if !is_exact => Ok(next as usize),
            Err(error) => Err(refused(error.to_string())),
        }
    }

    pub(crate) fn shape(self, each: usize) -> Shape {
        Shape { ranks: self.ranks as u32, chunks: self.chunks as u32, micro_batches: each as u32 }
    }
}

/// Numbers of stages or replicas to try, the most first.
pub(crate) fn counts(least: usize, most: usize) -> Vec<usize> {
    if most <= FEW_DEVICES {
        return (least.min(most)..=most).rev().collect();
    }
    std::iter::successors(Some(most), |&count| Some(count / 2)).take_while(|&count| count >= least).collect()
}

/// Returns the grids of a strategy on this machine.
fn grids(problem: &Problem, strategy: Strategy) -> Result<Vec<Grid>, PlanError> {
    let n_devices = problem.machine.devices.len();
    let n_blocks = problem.blocks.iter().filter(|block| block.seconds() > 0.0).count().max(1);
    let given = problem.begins.as_ref().map(|begins| begins.len() + 1);
    let wanted = given.or(problem.training.stages.map(|stages| stages as usize));
    if let Some(stages) = wanted {
        if stages > n_blocks {
            return Err(PlanError::TooManyWorking { stages, blocks: n_blocks });
        }
        if stages > n_devices {
            return Err(PlanError::TooFewDevices { stages, devices: n_devices });
        }
    }
    let grid = |schedule, ranks, chunks, replicas| Grid {
        schedule,
        ranks,
        chunks,
        replicas,
        replicas_together: true,
    };
    let straight = |schedule, chunks: usize| {
        let most = n_devices.min(n_blocks / chunks);
        let ranks = wanted.map_or_else(|| counts(2, most), |wanted| vec![wanted]);
        ranks
            .into_iter()
            .filter(move |ranks| (1..=n_blocks / chunks).contains(ranks))
            .map(move |ranks| grid(schedule, ranks, chunks, 1))
    };
    let refused =
        |reason: &str| PlanError::Schedule { strategy: strategy.name(), reason: reason.to_string() };
    if given.is_some() && (strategy.is_rule() || strategy == Strategy::Interleaved) {
        return Err(refused(if strategy.is_rule() {
            "it makes its own cuts, and others are given"
        } else {
            "it makes several parts of each stage, and all cuts are given"
        }));
    }
    let is_one_stage = wanted.is_none_or(|stages| stages == 1);
    Ok(match strategy {
        // Nothing runs side by side: the fewer stages the better.
        Strategy::Layer => straight(Schedule::LayerParallel, 1).rev().collect(),
        Strategy::GPipe => straight(Schedule::GPipe, 1).collect(),
        Strategy::ZeroBubble => straight(Schedule::InterleavedZeroBubble, 1).collect(),
        Strategy::OneForwardOneBackward => straight(Schedule::OneForwardOneBackward, 1).collect(),
        Strategy::Interleaved => {
            let grids = (2..=MOST_CHUNKS).flat_map(|chunks| straight(Schedule::Interleaved1F1B, chunks));
            let grids: Vec<Grid> = grids.filter(|grid| grid.ranks > 1).collect();
            if grids.is_empty() {
                return Err(refused("two chunks on each of two devices need four blocks"));
            }
            grids
        }
        Strategy::OneDevice | Strategy::DataParallel if !is_one_stage => {
            return Err(refused("the whole model is one stage; more were asked for"));
        }
        Strategy::OneDevice => vec![grid(Schedule::OneForwardOneBackward, 1, 1, 1)],
        Strategy::DataParallel => counts(2, n_devices)
            .into_iter()
            .map(|replicas| grid(Schedule::OneForwardOneBackward, 1, 1, replicas))
            .collect(),
        Strategy::Hybrid => {
            let grids = mixed(problem, n_blocks, wanted);
            if grids.is_empty() {
                return Err(refused("two stages of two replicas need two blocks and four devices"));
            }
            grids
        }
        // Cuts by a rule take all devices, as people do.
        _ => vec![grid(Schedule::OneForwardOneBackward, wanted.unwrap_or(n_devices.min(n_blocks)), 1, 1)],
    })
}

/// Several stages, each of several replicas.
fn mixed(problem: &Problem, n_blocks: usize, wanted: Option<usize>) -> Vec<Grid> {
    let n_devices = problem.machine.devices.len();
    let most = (n_devices / 2).min(n_blocks);
    let is_uniform = problem.machine.is_uniform();
    let mut grids = Vec::new();
    for ranks in (2..=most).filter(|&ranks| wanted.is_none_or(|wanted| ranks == wanted)) {
        let all = n_devices / ranks;
        // Fewer ranks with the same replicas leave devices idle.
        let is_wasteful = ranks < most && n_devices / (ranks + 1) == all && wanted.is_none();
        let replicas = match n_devices <= FEW_DEVICES {
            true => (2..=all).rev().collect(),
            false if is_wasteful => Vec::new(),
            false => vec![all],
        };
        for replicas in replicas {
            for replicas_together in [true, false] {
                // Where all devices are alike, one way is as good as the other.
                if replicas_together || !is_uniform {
                    let schedule = Schedule::OneForwardOneBackward;
                    grids.push(Grid { schedule, ranks, chunks: 1, replicas, replicas_together });
                }
            }
        }
    }
    grids
}

/// Finds the best plan of a strategy that ends each step together, as the simulator times it.
///
/// Also returns the seconds for each micro-batch that no plan beats with the devices in this order.
pub(crate) fn synchronous(problem: &Problem, ways: &Ways, strategy: Strategy, goal: Goal) -> InOrder {
    let states = if strategy.is_rule() { ways.line(problem) } else { &ways.states };
    let is_complete = if strategy.is_rule() { ways.is_chain } else { ways.is_complete };
    let floors = Floors::new(problem, ways, (states, is_complete), strategy);
    // Why what was solved has no plan, and why others were not.
    let (mut error, mut refused) = (None, None);
    let mut open = Vec::new();
    let is_known = |grid: &Grid| {
        problem.training.only_groups && problem.training.sharers(grid.replicas) == grid.replicas
    };
    let grids = grids(problem, strategy).map_err(|error| (error, f64::INFINITY))?;
    for grid in grids.into_iter().filter(|grid| !is_known(grid)) {
        match grid.micro_batches(problem, strategy) {
            Ok(each) => {
                let floor = floors.by_work(grid, each) / (each * grid.replicas) as f64;
                open.push((floor, each, grid));
            }
            Err(why) => refused = refused.or(Some(why)),
        }
    }
    open.sort_by(|a, b| a.0.total_cmp(&b.0));
    // What was not tried has fewer stages or replicas than what was: it is bounded by the same floors.
    let is_all = problem.machine.devices.len() <= FEW_DEVICES || strategy.is_rule();
    let untried = open.first().filter(|_| !is_all).map_or(f64::INFINITY, |first| first.0);
    let mut best: Option<Solution> = None;
    let (mut bound, mut least) = (untried, untried);
    let solver = GridSolver {
        problem,
        states,
        is_complete,
        pipelines: &ways.pipelines,
        floors: &floors,
        strategy,
        goal,
        n_grids: open.len(),
        spent: Cell::new(0),
    };
    // Seconds with as many chunks as gained last, by ranks; nothing once more of them do not gain.
    let mut chunked: BTreeMap<usize, f64> = BTreeMap::new();
    for (by_work, each_replica, grid) in open {
        let gains = grid.chunks == 1 || chunked.get(&grid.ranks).is_none_or(|seconds| *seconds > 0.0);
        let below = best.as_ref().map_or(goal.below(), |best| best.seconds_each().min(goal.below()));
        // What must cross cuts is looked for where the work alone does not decide.
        let floor = match below > by_work && goal != Goal::Any {
            true => {
                let n_micro_batches = (each_replica * grid.replicas) as f64;
                floors.floor(grid, each_replica, below * n_micro_batches) / n_micro_batches
            }
            false => by_work,
        };
        if solver.is_spent(grid) && below > floor {
            let reason = "no plan that fits was found; not all numbers of chunks were tried".to_string();
            refused = Some(PlanError::Schedule { strategy: strategy.name(), reason });
            error = None;
            (bound, least) = (bound.min(floor), least.min(floor));
            continue;
        }
        if !gains || below <= floor {
            (bound, least) = (bound.min(floor), least.min(floor));
            continue;
        }
        match solver.solve(grid, each_replica, below) {
            Ok((solution, own)) => {
                bound = bound.min(solution.lower_bound / each(&solution));
                least = least.min(own / each(&solution));
                let seconds = solution.seconds_each();
                let before = chunked.get(&grid.ranks).copied().unwrap_or(f64::INFINITY);
                chunked.insert(grid.ranks, if seconds < before { seconds } else { 0.0 });
                if best.as_ref().is_none_or(|best| seconds < best.seconds_each()) {
                    best = Some(solution);
                }
                if goal == Goal::Any {
                    break;
                }
            }
            Err(none) => {
                let own = none.lower_bound / (each_replica * grid.replicas) as f64;
                (bound, least) = (bound.min(own), least.min(own));
                error = error.or(Some(none.error));
            }
        }
    }
    let Some(mut best) = best else {
        return Err((error.or(refused).unwrap_or(PlanError::NothingFits), least));
    };
    best.lower_bound = (bound * each(&best)).min(best.seconds());
    let least = least.min(best.seconds_each());
    Ok((best, least))
}

/// Returns the seconds for each micro-batch that no plan of a strategy beats, or of all that `auto` chooses from, be the model cut
/// at any operator: by its work and the order of its passes alone.
pub fn bound_of_any_cut(problem: &Problem, ways: &Ways, strategy: Option<Strategy>) -> f64 {
    let by_work = problem.seconds() / problem.machine.total_speed();
    if problem.training.inference.is_some() {
        return by_work;
    }
    let of = |strategy: Strategy| -> f64 {
        if strategy == Strategy::PipeDream || schedule_of(strategy).is_some() {
            return by_work;
        }
        // Without its states a cut may lie anywhere, in the middle of an operator even.
        let floors = Floors::new(problem, ways, (&ways.states, false), strategy);
        let least = |grid: Grid| {
            let each = grid.micro_batches(problem, strategy).ok()?;
            Some(floors.by_work(grid, each) / (each * grid.replicas) as f64)
        };
        grids(problem, strategy).into_iter().flatten().filter_map(least).fold(f64::INFINITY, f64::min)
    };
    let least = match strategy {
        Some(strategy) => of(strategy),
        None => candidates(problem).map(of).fold(f64::INFINITY, f64::min),
    };
    if least.is_finite() { least } else { by_work }
}

/// What bounds grids from below whatever their cuts and whichever devices they stand on.
pub(crate) struct Floors<'a> {
    problem: &'a Problem,
    /// Work and forward work before each state, where all are known.
    known: Vec<(f64, f64)>,
    /// Seconds of one micro-batch on the fastest device.
    total: f64,
    /// The same without the weights' gradients.
    there_and_back: f64,
    /// The same of the forward pass alone.
    forward: f64,
    /// Speeds, the fastest first, added up.
    power: Vec<f64>,
    ways: &'a Ways,
    /// Whether what must cross cuts is asked for: where cuts follow no rule.
    is_open: bool,
    /// What is bounded by work already, by schedule, ranks, chunks, replicas and micro-batches.
    by_work: RefCell<HashMap<(Schedule, [usize; 4]), f64>>,
}

impl<'a> Floors<'a> {
    fn new(
        problem: &'a Problem,
        ways: &'a Ways,
        (states, is_complete): (&States, bool),
        strategy: Strategy,
    ) -> Self {
        let mut speeds: Vec<f64> = problem.machine.devices.iter().map(|device| device.speed).collect();
        speeds.sort_by(|a, b| b.total_cmp(a));
        let fastest = speeds[0];
        let mut sum = 0.0;
        let power = speeds.iter().map(|speed| {
            sum += speed;
            sum
        });
        let power = power.collect();
        let known = if is_complete { states.work_and_forward(problem, fastest) } else { Vec::new() };
        let weights: f64 = problem.blocks.iter().map(|block| block.weight_gradient.0).sum();
        let total = problem.seconds() / fastest;
        let is_open = !strategy.is_rule() && problem.begins.is_none();
        let there_and_back = total - weights / fastest;
        let forward = problem.blocks.iter().map(|block| block.forward.0).sum::<f64>() / fastest;
        let by_work = RefCell::default();
        Self { problem, known, total, there_and_back, forward, power, ways, is_open, by_work }
    }

    /// No step of this grid is shorter: its order of operations, the work of its devices and what must cross cuts bound it.
    ///
    /// What is `enough` is not bettered.
    pub(crate) fn floor(&self, grid: Grid, micro_batches: usize, enough: f64) -> f64 {
        let floor = self.by_work(grid, micro_batches);
        // Without pipelining the fewest cuts are the best, and what they carry is little beside all work.
        let is_asked = self.is_open && grid.schedule != Schedule::LayerParallel && grid.ranks > 1;
        match is_asked && floor < enough {
            true => {
                let question = self.question(grid, micro_batches);
                floor.max(self.ways.narrowest(self.problem).step(&question, enough))
            }
            false => floor,
        }
    }

    /// The same but for what must cross cuts.
    fn by_work(&self, grid: Grid, micro_batches: usize) -> f64 {
        let Grid { schedule, ranks, chunks, replicas, .. } = grid;
        let key = (schedule, [ranks, chunks, replicas, micro_batches]);
        let known = self.by_work.borrow().get(&key).copied();
        known.unwrap_or_else(|| {
            let floor = self.find_by_work(grid, micro_batches);
            self.by_work.borrow_mut().insert(key, floor);
            floor
        })
    }

    fn find_by_work(&self, grid: Grid, micro_batches: usize) -> f64 {
        let known = if grid.chunks == 1 { &self.known[..] } else { &[] };
        let Grid { schedule, ranks, replicas, .. } = grid;
        let steps = Steps { schedule, ranks, micro_batches, states: known, total: self.total };
        // All devices together do no more than they can, however unlike they are.
        let n_devices = (ranks * replicas).min(self.power.len());
        let all = (micro_batches * replicas) as f64 * self.problem.seconds() / self.power[n_devices - 1];
        // One micro-batch goes through all stages and back; weight gradients may wait for that, side by side.
        let one = match schedule {
            Schedule::InterleavedZeroBubble => self.there_and_back,
            _ => self.total,
        };
        // No stage's replicas add up gradients before its last backward pass begins: on average of the stages.
        let sums = match replicas {
            1 => 0.0,
            _ => {
                let (n, rate) = (replicas as f64, self.problem.machine.least_seconds_per_byte());
                let sums = 2.0 * (n - 1.0) / n * self.problem.parameters() * rate;
                ((micro_batches - 1) as f64 * self.total + self.forward + sums) / ranks as f64
            }
        };
        steps.floor().max(all).max(one).max(sums)
    }

    /// Returns orders of the blocks that go through narrow cuts, and those cuts; none where all cuts are known anyway.
    pub(crate) fn narrow_lines(&self, grid: Grid, micro_batches: usize) -> Vec<Ordered> {
        match self.is_open && grid.chunks == 1 && grid.ranks > 1 {
            true => self.ways.narrowest(self.problem).lines(&self.question(grid, micro_batches)),
            false => Vec::new(),
        }
    }

    fn question(&self, grid: Grid, micro_batches: usize) -> Question {
        let Grid { schedule, ranks, chunks, replicas, .. } = grid;
        let floor = self.by_work(grid, micro_batches);
        let machine = &self.problem.machine;
        // Neighbours on one level share ports; what is too large to be simulated is timed as if they did not.
        let shares_ports = machine.levels.len() == 1
            && machine.links.is_empty()
            && is_simulated(grid.n_stages(), micro_batches * replicas, ranks * replicas);
        // Power begins with the fastest device's.
        let (speed, rate) = (self.power[0], machine.least_seconds_per_byte());
        let limit = machine.devices.iter().map(|device| device.memory.0 as f64).fold(0.0, f64::max);
        let in_flight = in_flight_of(schedule, ranks, chunks, micro_batches, 1);
        Question {
            schedule,
            speed,
            rate,
            ranks,
            chunks,
            micro_batches,
            shares_ports,
            limit,
            copies: self.problem.training.copies(replicas),
            in_flight,
            floor,
        }
    }
}
