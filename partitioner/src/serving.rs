//! Plans for inference: the forward pass alone, for the most samples a second or the least time of one request.
//!
//! Throughput: copies of a pipeline side by side, each of as many stages, on a stream of micro-batches without an end; the slowest
//! stage decides. Exact over the states: `A(k, j) = min over i of max(A(k-1, i), stage(i..j))`. Latency: stages one after the other,
//! devices left out where they are of no use; what they compute and what they hand on adds up: `L(k, j) = min over i, k' of
//! L(k', i) + hop(k', k) + stage(i..j)`. Either is O(k·Q²) stages, and less: none is looked at that cannot beat the best known.
//!
//! Memory: parameters, keys and values of all micro-batches in flight (`Block::activations`, which is nothing else here), what is
//! alive while the fullest operator runs (`Block::workspace`), values on their way. A micro-batch may wait in front of any stage,
//! so each stage has room for what all of them bring.

use schema::{Execution, Inference, InferenceObjective};
use simulator::order::Schedule;

use crate::{
    Machine, MicroBatches, Problem, Solution, SolutionStage,
    cut_space::Ways,
    dag::cut_states::States,
    device_orders::other_orders,
    error::PlanError,
    plan_file::{placed::Placed, simulate::state_memory},
    planner::memory_needed::nearest,
    solution::{MadeBy, Objective},
    stage::{
        in_flight::InFlight,
        place::Neighbours,
        run::Run,
        score::{Rules, Scorer, StageScore},
    },
};

/// Devices up to which copies that leave some of them out are tried where devices differ.
const FEW_DEVICES: usize = 64;
/// Share by which a plan must be better to be another.
const ROUNDING: f64 = 1e-12;

/// Finds the best plan for inference, and all that is known of others.
///
/// # Errors
/// When nothing fits, or the micro-batches in flight are fewer than the stages.
pub(crate) fn serve(problem: &Problem, ways: &Ways, aim: Inference) -> Result<Solution, PlanError> {
    match in_any_order(problem, ways, aim) {
        Ok(mut best) => {
            state_memory(problem, &mut best);
            Ok(best)
        }
        Err(PlanError::NothingFits) => {
            Err(nearest(problem, &[&|roomier| in_any_order(roomier, ways, aim).ok()]))
        }
        Err(error) => Err(error),
    }
}

/// Tells whether there is a plan at all.
pub(crate) fn can_serve(problem: &Problem, ways: &Ways, aim: Inference) -> bool {
    in_any_order(problem, ways, aim).is_ok()
}

/// Tries several orders of devices that differ.
fn in_any_order(problem: &Problem, ways: &Ways, aim: Inference) -> Result<Solution, PlanError> {
    let (orders, is_all) = other_orders(&problem.machine);
    let mut best = in_order(problem, ways, aim);
    for order in orders {
        let mut ordered = problem.clone();
        let devices = order.iter().map(|&device| problem.machine.devices[device].clone());
        ordered.machine.devices = devices.collect();
        let Ok(found) = in_order(&ordered, ways, aim) else { continue };
        if best.as_ref().map_or(true, |best| found.seconds() < best.seconds() * (1.0 - ROUNDING)) {
            best = Ok(Solution { order, ..found });
        }
    }
    let mut best = best?;
    // Another order of the blocks, or of devices that were not tried, may be better, and so may branches side by side for one request.
    let is_any_cut = match aim.objective {
        InferenceObjective::Throughput => ways.is_complete,
        InferenceObjective::Latency => ways.is_chain,
    };
    let is_proven = is_all && (is_any_cut || problem.begins.is_some());
    if !is_proven {
        best.lower_bound = floor(problem, aim).min(best.seconds());
    }
    Ok(best)
}

/// Seconds that no plan takes less than, whatever its cuts: the work of all devices together, or of the longest path.
pub(crate) fn floor(problem: &Problem, aim: Inference) -> f64 {
    match aim.objective {
        InferenceObjective::Throughput => problem.seconds() / problem.machine.total_speed(),
        InferenceObjective::Latency => {
            let speeds = problem.machine.devices.iter().map(|device| device.speed);
            longest_path(problem) / speeds.fold(f64::MIN_POSITIVE, f64::max)
        }
    }
}

/// Seconds of the forward pass along the longest path from block to block.
fn longest_path(problem: &Problem) -> f64 {
    let mut starts = vec![0.0_f64; problem.blocks.len()];
    let mut takers = vec![Vec::new(); problem.blocks.len()];
    for value in &problem.values {
        value.from.into_iter().for_each(|from| takers[from].extend(&value.to));
    }
    let mut longest = 0.0_f64;
    for (index, block) in problem.blocks.iter().enumerate() {
        let end = starts[index] + block.forward.0;
        longest = longest.max(end);
        takers[index].iter().for_each(|&taker: &usize| starts[taker] = starts[taker].max(end));
    }
    longest
}

/// Finds the best plan with the devices as they stand.
fn in_order(problem: &Problem, ways: &Ways, aim: Inference) -> Result<Solution, PlanError> {
    let states = if problem.begins.is_some() { ways.line(problem) } else { &ways.states };
    let solver = Solver::new(problem, states);
    match aim.objective {
        InferenceObjective::Throughput => solver.throughput(),
        InferenceObjective::Latency => solver.latency(),
    }
}

/// Micro-batches of all copies together whose keys and values are there, where they are given.
fn given(problem: &Problem) -> Option<usize> {
    match problem.training.micro_batches {
        MicroBatches::Enough => None,
        MicroBatches::About(count) | MicroBatches::Exactly(count) => Some(count as usize),
    }
}

struct Solver<'a> {
    problem: &'a Problem,
    states: &'a States,
    /// States at which stages may begin and end.
    borders: Vec<usize>,
    /// Bytes that a link takes in before the first of them arrives, at the most.
    on_wires: f64,
    scorer: Scorer<'a>,
}

/// What a stage has room for.
#[derive(Clone, Copy)]
struct Room {
    memory: f64,
    /// Micro-batches whose keys and values it holds.
    in_flight: f64,
}

impl<'a> Solver<'a> {
    fn new(problem: &'a Problem, states: &'a States) -> Self {
        let rules = Rules {
            is_asynchronous: false,
            in_flight: InFlight::UntilEnd(1),
            neighbours: Neighbours::Paired,
        };
        let last = states.len() - 1;
        let borders = match &problem.begins {
            Some(begins) => std::iter::once(0).chain(begins.iter().copied()).chain([last]).collect(),
            None => (0..=last).collect(),
        };
        let machine = &problem.machine;
        let levels = machine.levels.iter().chain(machine.links.iter().map(|(.., level)| level));
        let on_wires = levels.map(|level| level.latency.0 * level.bandwidth.0).fold(0.0, f64::max);
        Self { problem, states, borders, on_wires, scorer: Scorer::new(problem, states, rules) }
    }

    /// Returns the stages that there may be at the most.
    fn most_stages(&self) -> usize {
        let working = self.problem.blocks.iter().filter(|block| block.forward.0 > 0.0).count().max(1);
        self.problem.machine.devices.len().min(working)
    }

    /// Returns the numbers of stages to try.
    fn stages(&self) -> Result<Vec<usize>, PlanError> {
        let wanted = self.problem.begins.as_ref().map(|begins| begins.len() + 1);
        let wanted = wanted.or(self.problem.training.stages.map(|stages| stages as usize));
        let (devices, blocks) = (self.problem.machine.devices.len(), self.problem.blocks.len());
        match wanted {
            None => Ok((1..=self.most_stages()).collect()),
            Some(stages) if stages > devices => Err(PlanError::TooFewDevices { stages, devices }),
            Some(stages) if stages > blocks => Err(PlanError::TooManyStages { stages, blocks }),
            Some(stages) => Ok(vec![stages]),
        }
    }

    /// Bytes of a stage at its fullest moment.
    fn memory(&self, start: usize, end: usize, in_flight: f64) -> f64 {
        let blocks = self.states.blocks(start, end);
        let workspace = blocks.iter().map(|&block| self.problem.blocks[block].workspace.0).max();
        self.resident(start, end, in_flight) + workspace.unwrap_or(0) as f64
    }

    /// The same but for what is alive while an operator runs.
    fn resident(&self, start: usize, end: usize, in_flight: f64) -> f64 {
        let states = self.states;
        let caches = states.activations[end] - states.activations[start];
        let waiting = states.crossing[start] + caches;
        // One is sent while the one before is still on its way.
        let out = states.crossing[end];
        let sent = (2.0 * out + self.on_wires).min(in_flight * out);
        self.scorer.parameters(start, end) + waiting * in_flight + sent
    }

    fn fits(&self, start: usize, end: usize, room: Room) -> bool {
        let resident = self.resident(start, end, room.in_flight);
        resident <= room.memory
            && (resident + self.scorer.largest_workspace <= room.memory
                || self.memory(start, end, room.in_flight) <= room.memory)
    }

    /// Seconds that a stage waits until what it sent is there, beside those of the bytes, of each micro-batch.
    fn sending(&self, run: Run) -> f64 {
        let machine = &self.problem.machine;
        if machine.overlaps {
            return 0.0;
        }
        let latency = |device: usize| {
            let next = Some(device + run.step()).filter(|next| *next < machine.devices.len());
            next.and_then(|next| machine.level(device, next)).map_or(0.0, |level| level.latency.0)
        };
        run.devices().map(latency).fold(0.0, f64::max) / run.count as f64
    }

    fn work(&self, start: usize, end: usize) -> f64 {
        self.states.work[end] - self.states.work[start]
    }

    /// Tells whether something is computed between two states, where anything is at all.
    fn is_stage(&self, start: usize, end: usize) -> bool {
        let total = self.states.work[self.states.len() - 1];
        (self.work(start, end) > 0.0 || total == 0.0 || self.problem.begins.is_some())
            && self.states.is_before(start, end)
    }

    /// The most micro-batches a second.
    fn throughput(&self) -> Result<Solution, PlanError> {
        let n_devices = self.problem.machine.devices.len();
        let is_uniform = self.problem.machine.is_uniform();
        let mut best: Option<Solution> = None;
        let mut refused = None;
        let mut is_tried = false;
        for stages in self.stages()? {
            let most = n_devices / stages;
            // Each copy has as many micro-batches as stages at the least, or stages wait.
            let allowed = given(self.problem).map_or(most, |count| most.min(count / stages));
            if allowed == 0 {
                refused = refused.or(Some(stages));
                continue;
            }
            is_tried = true;
            let few = !is_uniform && n_devices <= FEW_DEVICES;
            let copies = if few { 1..=allowed } else { allowed..=allowed };
            for copies in copies {
                // Copies side by side have links of their own; a stage's replicas side by side may be alike where devices differ.
                let layouts: &[bool] = if is_uniform || copies == 1 { &[false] } else { &[false, true] };
                for &replicas_together in layouts {
                    let below = best.as_ref().map_or(f64::INFINITY, Solution::seconds);
                    let found = self.copies(stages, copies, replicas_together, below * (1.0 - ROUNDING));
                    best = found.or(best);
                }
            }
        }
        match (best, refused, is_tried) {
            (Some(best), ..) => Ok(best),
            (None, Some(stages), false) => {
                let count = given(self.problem).unwrap_or(0);
                let reason = format!(
                    "{stages} stages need as many micro-batches in flight to be busy, and {count} are asked for"
                );
                Err(PlanError::Schedule {
                    strategy: MadeBy::Inference(InferenceObjective::Throughput).name(),
                    reason,
                })
            }
            (None, ..) => Err(PlanError::NothingFits),
        }
    }

    /// Finds the cuts of copies of a pipeline whose slowest stage is fastest, below so many seconds for each micro-batch.
    fn copies(&self, stages: usize, copies: usize, replicas_together: bool, below: f64) -> Option<Solution> {
        let in_flight = given(self.problem).map_or(stages, |count| count.div_ceil(copies));
        let run = |stage: usize| {
            if replicas_together {
                Run { first: stage * copies, count: copies, stride: 1 }
            } else {
                Run { first: stage, count: copies, stride: stages }
            }
        };
        let (borders, last) = (&self.borders, self.states.len() - 1);
        // Work that the stages from each one on do within a second, all copies together.
        let mut power = vec![0.0; stages + 1];
        for stage in (0..stages).rev() {
            power[stage] = power[stage + 1] + self.scorer.place(run(stage)).speed * copies as f64;
        }
        let mut least = vec![f64::INFINITY; borders.len()];
        least[0] = 0.0;
        let mut came: Vec<Vec<u32>> = Vec::with_capacity(stages);
        for stage in 0..stages {
            let place = self.scorer.place(run(stage));
            let room = Room { memory: place.limit, in_flight: in_flight as f64 };
            let sending = self.sending(run(stage));
            let mut next = vec![f64::INFINITY; borders.len()];
            let mut from = vec![u32::MAX; borders.len()];
            for (i, &start) in borders.iter().enumerate() {
                let before = least[i];
                if before >= below {
                    continue;
                }
                for (j, &end) in borders.iter().enumerate().skip(i + 1) {
                    let compute = self.work(start, end) / (place.speed * copies as f64);
                    let smallest = next[j].min(below);
                    // Borders stand by growing work.
                    if compute >= below {
                        break;
                    }
                    let is_last = stage + 1 == stages;
                    let rest = self.work(end, last);
                    let is_hopeless =
                        rest > below * power[stage + 1] * (1.0 + 1e-9) || is_last && end != last;
                    if is_hopeless || before.max(compute) >= smallest || !self.is_stage(start, end) {
                        continue;
                    }
                    let sending = if is_last { 0.0 } else { sending };
                    let seconds = before.max(self.scorer.least(start, end, &place) + sending);
                    if seconds < smallest && self.fits(start, end, room) {
                        (next[j], from[j]) = (seconds, i as u32);
                    }
                }
            }
            least = next;
            came.push(from);
        }
        let seconds = *least.last()?;
        if seconds >= below {
            return None;
        }
        let mut at = borders.len() - 1;
        let mut cuts = Vec::with_capacity(stages);
        for stage in (0..stages).rev() {
            let before = came[stage][at] as usize;
            cuts.push((borders[before], borders[at], run(stage)));
            at = before;
        }
        cuts.reverse();
        let micro_batches = given(self.problem).unwrap_or(in_flight * copies);
        Some(self.solution(&cuts, in_flight, Objective::Period(seconds), micro_batches))
    }

    /// The least time of one request.
    fn latency(&self) -> Result<Solution, PlanError> {
        let wanted = match self.stages()?[..] {
            [only] if self.problem.begins.is_some() || self.problem.training.stages.is_some() => Some(only),
            _ => None,
        };
        let machine = &self.problem.machine;
        let (borders, last) = (&self.borders, self.states.len() - 1);
        let n_devices = machine.devices.len();
        let fastest = machine.devices.iter().map(|device| device.speed).fold(0.0, f64::max);
        let befores = befores(machine);
        // Where a number of stages is asked for, it is counted along.
        let most = wanted.unwrap_or(1);
        let at =
            |device: usize, used: usize, border: usize| (device * (most + 1) + used) * borders.len() + border;
        let mut least = vec![f64::INFINITY; at(n_devices, 0, 0)];
        let mut came = vec![(u32::MAX, u32::MAX, u32::MAX); least.len()];
        let mut best: (f64, usize) = (f64::INFINITY, usize::MAX);
        // From the start every kind of device may be the first.
        let entries: Vec<usize> = entries(machine);
        for (device, befores) in befores.iter().enumerate() {
            let speed = machine.devices[device].speed;
            let room = Room { memory: machine.devices[device].memory.0 as f64, in_flight: 1.0 };
            for used in 1..=most {
                // Where the stage on this device may begin, and from where it comes.
                let mut begin = vec![(f64::INFINITY, u32::MAX, u32::MAX); borders.len()];
                if entries.contains(&device) && (wanted.is_none() || used == 1) {
                    begin[0] = (0.0, u32::MAX, u32::MAX);
                }
                let before = if wanted.is_some() { used - 1 } else { used };
                for &earlier in befores {
                    if before == 0 {
                        break;
                    }
                    for (border, begin) in begin.iter_mut().enumerate() {
                        let there = least[at(earlier, before, border)];
                        let there =
                            there + hop(machine, earlier, device, self.states.crossing[borders[border]]);
                        if there < begin.0 {
                            *begin = (there, earlier as u32, before as u32);
                        }
                    }
                }
                for i in 0..borders.len() {
                    let (there, ..) = begin[i];
                    let start = borders[i];
                    if there + self.work(start, last) / fastest >= best.0 {
                        continue;
                    }
                    for (j, &end) in borders.iter().enumerate().skip(i + 1) {
                        let seconds = there + self.work(start, end) / speed;
                        let own = at(device, used, j);
                        if seconds >= least[own]
                            || seconds + self.work(end, last) / fastest >= best.0
                            || !self.is_stage(start, end)
                            || !self.fits(start, end, room)
                        {
                            continue;
                        }
                        least[own] = seconds;
                        came[own] = (begin[i].1, begin[i].2, i as u32);
                        if end == last && wanted.is_none_or(|wanted| wanted == used) {
                            best = (seconds, own);
                        }
                    }
                }
            }
        }
        if best.1 == usize::MAX {
            return Err(PlanError::NothingFits);
        }
        let mut cuts = Vec::new();
        let mut own = best.1;
        loop {
            let device = own / ((most + 1) * borders.len());
            let end = own % borders.len();
            let (earlier, used, start) = came[own];
            let run = Run { first: device, count: 1, stride: 1 };
            cuts.push((borders[start as usize], borders[end], run));
            if earlier == u32::MAX {
                break;
            }
            own = at(earlier as usize, used as usize, start as usize);
        }
        cuts.reverse();
        Ok(self.one_after_the_other(&cuts))
    }

    /// Makes a plan of one request's stages: each computes, and sends on what it made.
    fn one_after_the_other(&self, cuts: &[(usize, usize, Run)]) -> Solution {
        let mut found = self.solution(cuts, 1, Objective::Step(0.0), 1);
        for (index, stage) in found.stages.iter_mut().enumerate() {
            let next = cuts.get(index + 1);
            let sends = |&(start, _, run): &(usize, usize, Run)| {
                hop(&self.problem.machine, stage.run.first, run.first, self.states.crossing[start])
            };
            stage.score.transfer = next.map_or(0.0, sends);
            stage.score.settle(false);
        }
        let seconds = found.stages.iter().map(|stage| stage.score.seconds).sum();
        (found.objective, found.lower_bound) = (Objective::Step(seconds), seconds);
        found
    }

    /// Makes a plan of cuts.
    fn solution(
        &self,
        cuts: &[(usize, usize, Run)],
        in_flight: usize,
        objective: Objective,
        micro_batches: usize,
    ) -> Solution {
        let stage = |&(start, end, run): &(usize, usize, Run)| {
            let blocks = self.states.blocks(start, end);
            SolutionStage { blocks, run, score: self.score(start, end, run, in_flight) }
        };
        let stages: Vec<SolutionStage> = cuts.iter().map(stage).collect();
        solution(stages, objective, micro_batches)
    }

    fn score(&self, start: usize, end: usize, run: Run, in_flight: usize) -> StageScore {
        let place = self.scorer.place(run);
        let again = crate::stage::memory_plan::Again {
            seconds: 0.0,
            memory: self.memory(start, end, in_flight as f64),
            recompute: Vec::new(),
            offload: Vec::new(),
        };
        let cut = crate::stage::run::Cut { start, end, run, behind: 0 };
        let mut score = self.scorer.scored(&cut, again, place.limit);
        if end + 1 < self.states.len() {
            score.transfer += self.sending(run);
            score.settle(self.problem.machine.overlaps);
        }
        score
    }
}

fn solution(stages: Vec<SolutionStage>, objective: Objective, micro_batches: usize) -> Solution {
    let (aim, schedule) = match objective {
        Objective::Period(_) => (InferenceObjective::Throughput, Schedule::GPipe),
        Objective::Step(_) => (InferenceObjective::Latency, Schedule::LayerParallel),
    };
    let mut solution = Solution {
        made_by: MadeBy::Inference(aim),
        schedule,
        micro_batches: micro_batches as u32,
        stages,
        execution: Execution::default(),
        objective,
        lower_bound: 0.0,
        bubble: None,
        order: Vec::new(),
    };
    solution.lower_bound = solution.seconds();
    let devices = solution.stages.iter().map(|stage| stage.run.count).sum::<usize>() as f64;
    let busy = solution.stages.iter().map(|stage| stage.score.compute * stage.run.count as f64).sum::<f64>();
    let all = solution.seconds() * devices;
    if matches!(objective, Objective::Period(_)) && all > 0.0 {
        solution.bubble = Some((1.0 - busy / all).clamp(0.0, 1.0));
    }
    solution
}

/// Scores stages that a plan gives, in the order of their devices.
pub(crate) fn score_placed(
    problem: &Problem,
    placed: &[Placed],
    n_ranks: usize,
    micro_batches: u32,
    aim: Inference,
) -> Result<Solution, PlanError> {
    problem.validate()?;
    let strategy = MadeBy::Inference(aim.objective).name();
    let refused = |reason: &str| PlanError::Schedule { strategy, reason: reason.to_string() };
    let copies = placed[0].devices.len();
    if n_ranks != placed.len() || placed.iter().any(|stage| stage.devices.len() != copies) {
        return Err(refused("each stage has devices of its own, as many as the others"));
    }
    if placed.iter().any(|stage| !stage.recompute.is_empty() || !stage.offload.is_empty()) {
        return Err(refused("nothing is computed again or offloaded in a forward pass"));
    }
    let in_flight = (micro_batches as usize).div_ceil(copies);
    if aim.objective == InferenceObjective::Throughput && in_flight < placed.len() {
        return Err(refused("there are fewer micro-batches for each copy than stages"));
    }
    if aim.objective == InferenceObjective::Latency && (micro_batches, copies) != (1, 1) {
        return Err(refused("one request is on its way, on one device at a time"));
    }
    // Copies side by side: stage by stage, the first devices are the first copy's.
    let mut ordered = problem.clone();
    let of_copy = |copy: usize| placed.iter().map(move |stage| stage.devices[copy]);
    let devices: Vec<usize> = (0..copies).flat_map(of_copy).collect();
    ordered.machine.devices = devices.iter().map(|&device| problem.machine.devices[device].clone()).collect();
    let order: Vec<usize> = placed.iter().flat_map(|stage| stage.blocks.iter().copied()).collect();
    let states = States::line(&ordered, order);
    let solver = Solver::new(&ordered, &states);
    let mut start = 0;
    let mut cuts = Vec::with_capacity(placed.len());
    for (index, stage) in placed.iter().enumerate() {
        let end = start + stage.blocks.len();
        cuts.push((start, end, Run { first: index, count: copies, stride: placed.len() }));
        start = end;
    }
    let scores: Vec<StageScore> =
        cuts.iter().map(|&(start, end, run)| solver.score(start, end, run, in_flight)).collect();
    for (score, stage) in scores.iter().zip(placed) {
        if score.memory > score.limit {
            let size =
                |block: &&usize| problem.blocks[**block].parameters.0 + problem.blocks[**block].activations.0;
            let largest = stage.blocks.iter().max_by_key(size);
            return Err(PlanError::Memory {
                block: largest.map_or_else(String::new, |&block| problem.blocks[block].path.clone()),
                needed: score.memory as u64,
                device: problem.machine.devices[stage.devices[0]].name.clone(),
                limit: score.limit as u64,
            });
        }
    }
    let slowest = scores.iter().map(|score| score.seconds).fold(0.0, f64::max);
    let mut found = match aim.objective {
        InferenceObjective::Throughput => {
            solver.solution(&cuts, in_flight, Objective::Period(slowest), micro_batches as usize)
        }
        InferenceObjective::Latency => solver.one_after_the_other(&cuts),
    };
    found.stages.iter_mut().zip(placed).for_each(|(stage, placed)| stage.blocks.clone_from(&placed.blocks));
    found.made_by = MadeBy::AsGiven;
    found.lower_bound = floor(problem, aim).min(found.seconds());
    found.order = devices;
    state_memory(problem, &mut found);
    Ok(found)
}

/// Returns how many times as large the keys and values of each sequence may be on a plan's stages; none where there are none.
pub fn cache_growth(problem: &Problem, solution: &Solution) -> Option<f64> {
    let order = solution.stages.iter().flat_map(|stage| stage.blocks.iter().copied()).collect();
    let states = States::line(problem, order);
    let solver = Solver::new(problem, &states);
    let mut start = 0;
    let mut least: Option<f64> = None;
    for stage in &solution.stages {
        let end = start + stage.blocks.len();
        let in_flight = (solution.micro_batches as usize).div_ceil(stage.run.count) as f64;
        let caches = (states.activations[end] - states.activations[start]) * in_flight;
        if caches > 0.0 {
            let own = (stage.score.limit - solver.memory(start, end, in_flight)) / caches + 1.0;
            least = Some(least.map_or(own, |least| least.min(own)));
        }
        start = end;
    }
    least
}

/// Seconds that so many bytes take from one device to another.
fn hop(machine: &Machine, from: usize, to: usize, bytes: f64) -> f64 {
    machine.level(from, to).map_or(0.0, |level| level.latency.0 + bytes / level.bandwidth.0)
}

/// Returns the devices that a request may come from to each one.
///
/// All earlier ones where these are few; else of those that are alike and as far away the last one before the device alone, for
/// what stands in between would be left out for nothing.
fn befores(machine: &Machine) -> Vec<Vec<usize>> {
    let devices = &machine.devices;
    let of = |device: usize| -> Vec<usize> {
        if devices.len() <= FEW_DEVICES && !machine.is_uniform() {
            return (0..device).collect();
        }
        let mut found: Vec<usize> = Vec::new();
        for earlier in (0..device).rev() {
            let kind = |other: usize| {
                let one = &devices[other];
                (one.speed.to_bits(), one.memory, machine.level_index(other, device))
            };
            if !found.iter().any(|&known| kind(known) == kind(earlier)) {
                found.push(earlier);
            }
        }
        found
    };
    (0..devices.len()).map(of).collect()
}

/// Returns the devices that a request may begin at: of those that are alike the first.
fn entries(machine: &Machine) -> Vec<usize> {
    let kind = |device: usize| (machine.devices[device].speed.to_bits(), machine.devices[device].memory);
    let is_first = |device: &usize| {
        !machine.links.is_empty() || (0..*device).all(|earlier| kind(earlier) != kind(*device))
    };
    (0..machine.devices.len())
        .filter(|device| machine.devices.len() <= FEW_DEVICES && !machine.is_uniform() || is_first(device))
        .collect()
}

#[cfg(test)]
mod tests {
    use schema::{Bytes, Cluster, ModelReference, Seconds};
    use simulator::{PlanOptions, from_plan, simulate, step_time};

    use super::*;
    use crate::{
        check_plan,
        dag::ideals::Ideals,
        oracle::random_problems::{Dice, cases, problem},
        plan_file::simulate::cluster,
        plan_model, to_plan,
    };

    fn aim(objective: InferenceObjective) -> Inference {
        Inference { objective, kv_cache: None }
    }

    /// A problem whose blocks run forward alone; activations are keys and values.
    fn forward(dice: &mut Dice, case: usize) -> Problem {
        let (n_blocks, n_devices) = (1 + dice.below(5) as usize, 1 + dice.below(4) as usize);
        let mut problem = problem(dice, n_blocks, n_devices, case.is_multiple_of(3), case.is_multiple_of(2));
        for block in &mut problem.blocks {
            (block.input_gradient, block.weight_gradient) = (Seconds(0.0), Seconds(0.0));
            block.forward.0 += 0.5;
            block.kept = block.activations;
        }
        problem.values.iter_mut().for_each(|value| value.backward = Bytes(0));
        // Devices that are alike stay so.
        let (is_uniform, all) = (problem.machine.is_uniform(), 40 + dice.below(250));
        for device in &mut problem.machine.devices {
            device.memory = Bytes(if is_uniform { all } else { 40 + dice.below(250) });
        }
        if dice.flip() {
            problem.training.micro_batches = MicroBatches::Exactly(1 + dice.below(8) as u32);
        }
        problem
    }

    /// All chains of sets of blocks, each with all that it needs, from nothing to everything.
    fn chains(problem: &Problem, stages: usize) -> Vec<Vec<Vec<usize>>> {
        let mut inputs = vec![Vec::new(); problem.blocks.len()];
        for value in &problem.values {
            value.to.iter().for_each(|&to| inputs[to].extend(value.from));
        }
        let ideals = Ideals::enumerate(&inputs, 10_000).unwrap();
        let all: Vec<Vec<usize>> = (0..ideals.len()).map(|ideal| ideals.nodes(ideal).collect()).collect();
        let mut found: Vec<Vec<Vec<usize>>> = vec![vec![Vec::new()]];
        for _ in 0..stages {
            let longer = found.iter().flat_map(|chain| {
                let last = &chain[chain.len() - 1];
                let is_more = move |set: &&Vec<usize>| {
                    set.len() > last.len() && last.iter().all(|block| set.contains(block))
                };
                all.iter().filter(is_more).map(|set| [chain.clone(), vec![set.clone()]].concat())
            });
            found = longer.collect();
        }
        found.retain(|chain| chain[stages].len() == problem.blocks.len());
        found
    }

    /// What crosses behind a set.
    fn crossing(problem: &Problem, set: &[usize]) -> f64 {
        let crosses = |value: &&crate::Value| {
            value.from.is_some_and(|from| set.contains(&from)) && value.to.iter().any(|to| !set.contains(to))
        };
        problem.values.iter().filter(crosses).map(|value| value.forward.0 as f64).sum()
    }

    /// Seconds of the work between two sets, and whether they fit a device with so many micro-batches in flight.
    fn stage(problem: &Problem, before: &[usize], after: &[usize], in_flight: f64) -> (f64, f64) {
        let own: Vec<usize> = after.iter().copied().filter(|block| !before.contains(block)).collect();
        let sum = |field: &dyn Fn(&crate::Block) -> f64| -> f64 {
            own.iter().map(|&block| field(&problem.blocks[block])).sum()
        };
        let ties = problem.ties.iter().filter(|tie| tie.blocks.iter().any(|block| own.contains(block)));
        let ties: f64 = ties.map(|tie| tie.parameters.0 as f64).sum();
        let workspace = own.iter().map(|&block| problem.blocks[block].workspace.0).max().unwrap() as f64;
        let caches = sum(&|block| block.activations.0 as f64);
        let waiting = (caches + crossing(problem, before)) * in_flight;
        let memory = sum(&|block| block.parameters.0 as f64) + ties;
        let wires = problem.machine.levels.iter().map(|level| level.latency.0 * level.bandwidth.0);
        let out = crossing(problem, after);
        let sent = (2.0 * out + wires.fold(0.0, f64::max)).min(out * in_flight);
        (sum(&|block| block.forward.0), memory + waiting + workspace + sent)
    }

    fn orders(n_devices: usize) -> Vec<Vec<usize>> {
        let mut all = vec![Vec::new()];
        for _ in 0..n_devices {
            all = all
                .into_iter()
                .flat_map(|order: Vec<usize>| {
                    let free = (0..n_devices).filter(|device| !order.contains(device)).collect::<Vec<_>>();
                    free.into_iter().map(move |device| [order.clone(), vec![device]].concat())
                })
                .collect();
        }
        all
    }

    fn least_latency(problem: &Problem) -> f64 {
        let devices = &problem.machine.devices;
        let mut least = f64::INFINITY;
        for stages in 1..=devices.len().min(problem.blocks.len()) {
            for (chain, order) in chains(problem, stages)
                .iter()
                .flat_map(|chain| orders(devices.len()).into_iter().map(move |order| (chain, order)))
            {
                let mut seconds = 0.0;
                for (index, pair) in chain.windows(2).enumerate() {
                    let device = &devices[order[index]];
                    let (work, memory) = stage(problem, &pair[0], &pair[1], 1.0);
                    let hops = index > 0;
                    let way = hops.then(|| problem.machine.level(order[index - 1], order[index])).flatten();
                    let bytes = crossing(problem, &pair[0]);
                    let way = way.map_or(0.0, |level| level.latency.0 + bytes / level.bandwidth.0);
                    let fits = memory <= device.memory.0 as f64;
                    seconds += if fits { work / device.speed + way } else { f64::INFINITY };
                }
                least = least.min(seconds);
            }
        }
        least
    }

    /// The same of copies side by side on devices that are alike.
    fn least_period(problem: &Problem) -> f64 {
        let n_devices = problem.machine.devices.len();
        let (memory, rate) =
            (problem.machine.devices[0].memory.0 as f64, 1.0 / problem.machine.levels[0].bandwidth.0);
        let mut least = f64::INFINITY;
        for stages in 1..=n_devices.min(problem.blocks.len()) {
            for copies in 1..=n_devices / stages {
                let in_flight = given(problem).map_or(stages, |count| count.div_ceil(copies));
                if given(problem).is_some_and(|count| count < stages * copies) {
                    continue;
                }
                for chain in chains(problem, stages) {
                    let one = |pair: &[Vec<usize>]| {
                        let (work, needed) = stage(problem, &pair[0], &pair[1], in_flight as f64);
                        let (into, out) = (crossing(problem, &pair[0]), crossing(problem, &pair[1]));
                        let seconds = if problem.machine.overlaps {
                            work.max(into * rate).max(out * rate)
                        } else {
                            work + out * rate
                        };
                        if needed <= memory { seconds / copies as f64 } else { f64::INFINITY }
                    };
                    least = least.min(chain.windows(2).map(one).fold(0.0, f64::max));
                }
            }
        }
        least
    }

    fn planned(problem: &Problem, objective: InferenceObjective) -> f64 {
        let mut asked = problem.clone();
        asked.training.inference = Some(aim(objective));
        plan_model(&mut asked, None).map_or(f64::INFINITY, |found| {
            assert!(found.best.lower_bound <= found.best.seconds());
            found.best.seconds()
        })
    }

    fn assert_near(found: f64, expected: f64, case: usize) {
        let is_near = found == expected || (found - expected).abs() <= 1e-9 * expected;
        assert!(is_near, "case {case}: {found} is not {expected}");
    }

    #[test]
    fn the_least_latency_is_that_of_all_cuts_on_all_orders_of_devices() {
        let mut dice = Dice(35);
        for case in 0..cases(400) {
            let mut problem = forward(&mut dice, case);
            problem.training.micro_batches = MicroBatches::Enough;
            assert_near(planned(&problem, InferenceObjective::Latency), least_latency(&problem), case);
        }
    }

    #[test]
    fn the_highest_throughput_is_that_of_all_cuts_and_copies() {
        let mut dice = Dice(36);
        for case in 0..cases(600) {
            let problem = forward(&mut dice, 2 * case);
            assert!(problem.machine.is_uniform());
            let found = planned(&problem, InferenceObjective::Throughput);
            assert_near(found, least_period(&problem), case);
        }
    }

    #[test]
    fn the_simulator_finds_the_same_times_and_no_more_memory() {
        let mut dice = Dice(37);
        for case in 0..cases(400) {
            let mut problem = forward(&mut dice, case);
            let objective =
                if dice.flip() { InferenceObjective::Latency } else { InferenceObjective::Throughput };
            if objective == InferenceObjective::Latency {
                problem.training.micro_batches = MicroBatches::Enough;
            }
            problem.training.inference = Some(aim(objective));
            let ways = Ways::of(&problem);
            let Ok(found) = in_any_order(&problem, &ways, aim(objective)) else { continue };
            let cluster: Cluster = cluster(&problem.machine);
            let model = ModelReference { name: String::new(), digest: String::new() };
            let plan = to_plan(&problem, &found, &cluster, model, "");
            let step = from_plan(&plan, &PlanOptions::default()).unwrap();
            let seconds = |micro_batches: u32| {
                let order = step.order_for(micro_batches).unwrap();
                step_time(&step.workload, &order, &step.machine).unwrap() as f64 * 1e-9
            };
            match objective {
                InferenceObjective::Latency => {
                    let whole = step_time(&step.workload, &step.order, &step.machine).unwrap();
                    assert!((whole as f64 * 1e-9 - found.seconds()).abs() <= 1e-6, "case {case}");
                }
                InferenceObjective::Throughput => {
                    let copies = found.stages[0].run.count as u32;
                    let long = (seconds(40 * copies) - seconds(20 * copies)) / f64::from(20 * copies);
                    let is_near = (long - found.seconds()).abs() <= 1e-6 * found.seconds();
                    assert!(is_near, "case {case}: {long} is not {}", found.seconds());
                }
            }
            let timeline = simulate(&step.workload, &step.order, &step.machine).unwrap();
            for stage in &found.stages {
                for device in found.devices(stage) {
                    let peak = timeline.memory[device].peak as f64;
                    assert!(
                        peak <= stage.score.memory + 1.0,
                        "case {case}: {peak} of {}",
                        stage.score.memory
                    );
                }
            }
            // What is written is scored as it was planned.
            let checked = check_plan(&problem, &plan).unwrap();
            assert_near(checked.seconds(), found.seconds(), case);
        }
    }
}
