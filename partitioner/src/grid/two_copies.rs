//! Two copies of the model from both ends of the devices: GEMS, Chimera, DualPipe.
//!
//! Stage `s` of one copy and stage `p − 1 − s` of the other are on the same device: devices have to be alike, and each holds two
//! stages and does half of the work of both. Step time and peak memory follow from the order alone, so cuts are scored by the
//! simulator. If the blocks in their own order have few cuts, all are tried; if not, cuts by rules of thumb are improved boundary
//! by boundary. The bound is the work of all devices together. O(cuts · operations of a step).

use simulator::order::{OrderError, Schedule, Shape};

use crate::{
    MicroBatches, Problem,
    cut_space::CutSpace,
    error::PlanError,
    goal::{Goal, InOrder},
    grid::{shape::counts, stage_times::shared_out},
    simulate::{is_simulated, settle_step},
    solution::{MadeBy, Objective, Solution, SolutionStage},
    stage::{place::Neighbours, run::Run, score::Rules, scorer::Scorer},
    strategy::{
        Strategy, deepspeed::deepspeed, even_layers::even_layers, even_parameters::even_parameters,
        torchgpipe::torchgpipe,
    },
};

/// Shares of a device's memory that a stage may take by formula; with a smaller share, more is recomputed.
const SHARES: [f64; 4] = [1.0, 0.75, 0.5, 0.3];

/// Gives each stage the memory and time of its device, which also has the stage at the other end.
pub(crate) fn join(stages: &mut [SolutionStage]) {
    let own: Vec<[f64; 3]> =
        stages.iter().map(|stage| [stage.score.memory, stage.score.compute, stage.score.overhead]).collect();
    for (stage, (own, other)) in stages.iter_mut().zip(own.iter().zip(own.iter().rev())) {
        stage.score.memory = own[0] + other[0];
        (stage.score.compute, stage.score.overhead) = ((own[1] + other[1]) / 2.0, (own[2] + other[2]) / 2.0);
    }
}

/// Finds the best plan with two copies of the model, as the simulator times it.
pub(crate) fn two_way(
    problem: &Problem,
    cut_space: &CutSpace,
    (strategy, schedule): (Strategy, Schedule),
    goal: Goal,
) -> InOrder {
    let least = problem.seconds() / problem.machine.total_speed();
    let refused =
        |reason: &str| PlanError::Schedule { strategy: strategy.name(), reason: reason.to_string() };
    let devices = &problem.machine.devices;
    if devices.iter().any(|device| device.speed != devices[0].speed || device.memory != devices[0].memory) {
        let reason = "a device has stages of both ends of the model, so devices have to be alike";
        return Err((refused(reason), f64::INFINITY));
    }
    if !problem.pins.is_empty() {
        let reason = "a device has stages of both ends of the model, and blocks are pinned";
        return Err((refused(reason), f64::INFINITY));
    }
    let n_blocks = problem.blocks.iter().filter(|block| block.seconds() > 0.0).count().max(1);
    let given = problem.begins.as_ref().map(|begins| begins.len() + 1);
    let wanted = given.or(problem.training.stages.map(|stages| stages as usize));
    match wanted {
        Some(stages) if stages > n_blocks => {
            return Err((PlanError::TooManyWorking { stages, blocks: n_blocks }, f64::INFINITY));
        }
        Some(stages) if stages > devices.len() => {
            return Err((PlanError::TooFewDevices { stages, devices: devices.len() }, f64::INFINITY));
        }
        _ => {}
    }
    let ranks = wanted.map_or_else(|| counts(2, devices.len().min(n_blocks)), |wanted| vec![wanted]);
    let (mut best, mut error): (Option<Solution>, Option<PlanError>) = (None, None);
    for ranks in ranks {
        // Prune: so few ranks cannot beat the plan found.
        let by_work = problem.seconds() / (devices[0].speed * ranks as f64);
        if best.as_ref().is_some_and(|best| best.seconds_each() <= by_work) {
            continue;
        }
        let search = match Search::new(problem, cut_space, (strategy, schedule), ranks) {
            Ok(search) => search,
            Err(reason) => {
                error = error.or(Some(refused(&reason)));
                continue;
            }
        };
        match search.best(goal) {
            Some(found) if best.as_ref().is_none_or(|best| found.seconds_each() < best.seconds_each()) => {
                best = Some(found);
            }
            Some(_) => {}
            None => error = Some(PlanError::NothingFits),
        }
        if goal == Goal::Any && best.is_some() {
            break;
        }
    }
    match best {
        Some(best) => Ok((best, least)),
        None => Err((error.unwrap_or(PlanError::NothingFits), least)),
    }
}

/// A search for cuts into as many stages as ranks.
struct Search<'a> {
    problem: &'a Problem,
    strategy: Strategy,
    schedule: Schedule,
    ranks: usize,
    micro_batches: usize,
    scorer: Scorer<'a>,
    /// Shares of a device's memory that a stage is scored with, in turn.
    shares: &'static [f64],
    /// How many cuts may be simulated.
    budget: usize,
}

/// Where stages begin, and the end of the last one.
type Borders = Vec<usize>;

impl<'a> Search<'a> {
    fn new(
        problem: &'a Problem,
        cut_space: &'a CutSpace,
        (strategy, schedule): (Strategy, Schedule),
        ranks: usize,
    ) -> Result<Self, String> {
        let micro_batches = micro_batches(problem, schedule, ranks)?;
        if !is_simulated(problem, 2 * ranks, micro_batches, ranks) {
            return Err("a step is too large to be simulated while planning".into());
        }
        let in_flight = schedule.in_flight(ranks, 1, micro_batches, 1);
        let rules = Rules { is_asynchronous: false, in_flight, neighbours: Neighbours::Paired };
        let scorer = Scorer::new(problem, cut_space.line(problem), rules);
        let is_open = problem.training.recompute || problem.training.offload;
        let shares = if is_open { &SHARES[..] } else { &SHARES[..1] };
        let sizes = problem.training.limits.sizes;
        let budget =
            (sizes.two_copies_passes / (4 * ranks * micro_batches)).clamp(20, 2 * sizes.two_copies_cuts);
        Ok(Self { problem, strategy, schedule, ranks, micro_batches, scorer, shares, budget })
    }

    fn best(&self, goal: Goal) -> Option<Solution> {
        let n_blocks = self.problem.blocks.len();
        if let Some(begins) = &self.problem.begins {
            return self.timed(&[&[0], begins.as_slice(), &[n_blocks]].concat());
        }
        let most = self.problem.training.limits.sizes.two_copies_cuts;
        let all = all_borders(n_blocks, self.ranks, most.min(self.budget));
        let is_open = all.is_none() && goal != Goal::Any;
        let by_hand = || {
            let (problem, ranks) = (self.problem, self.ranks);
            [torchgpipe, even_layers, even_parameters, deepspeed].map(|rule| rule(problem, ranks)).to_vec()
        };
        let mut best: Option<(Solution, Borders)> = None;
        for borders in all.unwrap_or_else(by_hand) {
            self.better(&mut best, borders);
            if goal == Goal::Any && best.is_some() {
                break;
            }
        }
        let mut left = if is_open { self.budget } else { 0 };
        while let Some(before) = best.as_ref().map(|best| best.1.clone()).filter(|_| left > 0) {
            for (border, step) in (1..self.ranks).flat_map(|border| [1, -1, 3, -3].map(|step| (border, step)))
            {
                let at = before[border].saturating_add_signed(step);
                if left > 0 && before[border - 1] < at && at < before[border + 1] {
                    left -= 1;
                    let mut moved = before.clone();
                    moved[border] = at;
                    self.better(&mut best, moved);
                }
            }
            if best.as_ref().is_some_and(|best| best.1 == before) {
                break;
            }
        }
        best.map(|best| best.0)
    }

    /// Keeps cuts that are faster than the best so far.
    fn better(&self, best: &mut Option<(Solution, Borders)>, borders: Borders) {
        if let Some(found) = self.timed(&borders)
            && best.as_ref().is_none_or(|best| found.seconds() < best.0.seconds())
        {
            *best = Some((found, borders));
        }
    }

    /// Times cuts with the simulator; `None` if a stage has no work, or does not fit whatever it recomputes.
    fn timed(&self, borders: &[usize]) -> Option<Solution> {
        let limit = self.problem.machine.devices[0].memory.0 as f64;
        for share in self.shares {
            let stage = |(index, pair): (usize, &[usize])| {
                let run = Run { first: index, count: 1, stride: 1 };
                let costs = self.scorer.on(run, self.ranks - index);
                let plan = costs.memory_plan(pair[0], pair[1], share * limit)?;
                let score = costs.scored(pair[0], pair[1], plan, limit);
                let blocks = self.scorer.states.blocks(pair[0], pair[1]);
                let is_working = self.scorer.states.work[pair[0]] < self.scorer.states.work[pair[1]];
                is_working.then_some(SolutionStage { blocks, run, score })
            };
            let mut stages: Vec<SolutionStage> =
                borders.windows(2).enumerate().map(stage).collect::<Option<_>>()?;
            join(&mut stages);
            let solution = Solution {
                made_by: MadeBy::Strategy(self.strategy),
                schedule: self.schedule,
                micro_batches: self.micro_batches as u32,
                stages,
                execution: shared_out(self.problem, 1),
                objective: Objective::Step(f64::INFINITY),
                lower_bound: self.problem.seconds() / self.problem.machine.total_speed()
                    * self.micro_batches as f64,
                bubble: Some(0.0),
                order: Vec::new(),
                peaks: None,
            };
            let (found, excess) = settle_step(self.problem, solution, f64::INFINITY)?;
            if excess.is_none() && found.seconds().is_finite() {
                return Some(found);
            }
        }
        None
    }
}

/// Returns the micro-batches of a step, half for each copy.
fn micro_batches(problem: &Problem, schedule: Schedule, ranks: usize) -> Result<usize, String> {
    let wanted = problem.training.wanted(&problem.machine);
    let is_exact = matches!(problem.training.micro_batches, MicroBatches::Exactly(_));
    if is_exact && !wanted.is_multiple_of(2) {
        return Err(format!(
            "both copies of the model take as many micro-batches, of which {wanted} are asked for"
        ));
    }
    let shape = |micro_batches| Shape { ranks: ranks as u32, chunks: 1, micro_batches };
    let even = wanted.next_multiple_of(2);
    match schedule.check(shape(even)) {
        Ok(()) => Ok(even as usize),
        Err(OrderError::MicroBatches { smallest: Some(next), .. }) if !is_exact => {
            Ok(next.next_multiple_of(2) as usize)
        }
        Err(error) => Err(error.to_string()),
    }
}

/// Returns all cuts into `n_stages` stages; `None` if there are more than `most`.
fn all_borders(n_blocks: usize, n_stages: usize, most: usize) -> Option<Vec<Borders>> {
    let mut open: Vec<Borders> = vec![vec![0]];
    for stage in 1..n_stages {
        let longer = open.iter().flat_map(|borders| {
            let first = borders[borders.len() - 1] + 1;
            (first..=n_blocks.saturating_sub(n_stages - stage)).map(|at| [borders.as_slice(), &[at]].concat())
        });
        open = longer.take(most + 1).collect();
        if open.len() > most {
            return None;
        }
    }
    open.iter_mut().for_each(|borders| borders.push(n_blocks));
    Some(open)
}

#[cfg(test)]
mod tests {
    use schema::ModelReference;
    use simulator::{PlanOptions, from_plan, simulate};

    use super::*;
    use crate::{
        check_plan,
        oracle::random_problems::{Dice, cases, cluster, problem},
        plan_file::write::to_plan,
        plan_with,
    };

    /// If nothing is recomputed, the plan is as fast as the fastest cut that the simulator times and that fits; each device holds
    /// two stages.
    #[test]
    fn plans_are_the_fastest_of_all_cuts() {
        let (mut dice, mut n_plans, mut n_full) = (Dice(51), 0, 0);
        for case in 0..cases(15) {
            let (n_blocks, n_devices) = (2 + dice.below(6) as usize, 2 + dice.below(3) as usize);
            let mut problem = problem(&mut dice, n_blocks, n_devices, true, true);
            (problem.training.recompute, problem.training.offload) = (false, false);
            let memory = if dice.flip() { 80 + dice.below(300) } else { 1_000_000 };
            problem.machine.devices.iter_mut().for_each(|device| device.memory.0 = memory);
            problem.training.micro_batches = MicroBatches::About(2 + dice.below(8) as u32);
            for strategy in [Strategy::Gems, Strategy::Chimera, Strategy::DualPipe] {
                let found = plan_with(&problem, strategy);
                let schedule = strategy.two_copies().unwrap();
                let mut best = f64::INFINITY;
                for ranks in 2..=n_devices.min(n_blocks) {
                    let Ok(count) = micro_batches(&problem, schedule, ranks) else { continue };
                    for borders in all_borders(n_blocks, ranks, usize::MAX - 1).unwrap() {
                        let stage = |(first, pair): (usize, &[usize])| SolutionStage {
                            blocks: (pair[0]..pair[1]).collect(),
                            run: Run { first, count: 1, stride: 1 },
                            score: found
                                .as_ref()
                                .map_or_else(|_| nothing(), |found| found.stages[0].score.clone()),
                        };
                        let mut stages: Vec<SolutionStage> =
                            borders.windows(2).enumerate().map(stage).collect();
                        for stage in &mut stages {
                            (stage.score.recompute, stage.score.offload) = (Vec::new(), Vec::new());
                        }
                        let solution = Solution {
                            made_by: MadeBy::AsGiven,
                            schedule,
                            micro_batches: count as u32,
                            stages,
                            execution: schema::Execution::default(),
                            objective: Objective::Step(0.0),
                            lower_bound: 0.0,
                            bubble: None,
                            order: Vec::new(),
                            peaks: None,
                        };
                        let model = ModelReference { name: String::new(), digest: String::new() };
                        let plan = to_plan(&problem, &solution, &cluster(&problem.machine), model, "");
                        let Ok(step) = from_plan(&plan, &PlanOptions::default()) else { continue };
                        let timeline = simulate(&step.workload, &step.order, &step.machine).unwrap();
                        if timeline.memory.iter().all(|device| device.exceeded.is_none()) {
                            best = best.min(timeline.step as f64 * 1e-9 / count as f64);
                        }
                    }
                }
                match found {
                    Ok(found) => {
                        let ours = found.seconds_each();
                        assert!(
                            (ours - best).abs() <= 1e-6 * best,
                            "case {case}, {strategy:?}: {ours}, {best} exists"
                        );
                        assert!(found.lower_bound <= found.seconds() && found.micro_batches % 2 == 0);
                        let model = ModelReference { name: String::new(), digest: String::new() };
                        let plan = to_plan(&problem, &found, &cluster(&problem.machine), model, "");
                        let checked = check_plan(&problem, &plan).unwrap();
                        assert!((checked.seconds() - found.seconds()).abs() <= 1e-6 * found.seconds());
                        n_plans += 1;
                    }
                    Err(error) => {
                        assert!(best.is_infinite(), "case {case}, {strategy:?}: {error}, but {best} exists");
                        n_full += 1;
                    }
                }
            }
        }
        assert!(
            crate::oracle::random_problems::is_skipped(0) || n_plans > 20 && n_full > 2,
            "{n_plans} plans, {n_full} without"
        );
    }

    fn nothing() -> crate::StageScore {
        crate::StageScore {
            seconds: 0.0,
            compute: 0.0,
            overhead: 0.0,
            sync: 0.0,
            transfer: 0.0,
            round: 0.0,
            memory: 0.0,
            limit: 0.0,
            recompute: Vec::new(),
            light: Vec::new(),
            recompute_unit: schema::RecomputeUnit::Block,
            offload: Vec::new(),
            is_as_asked: true,
            bound_by: crate::BoundBy::Compute,
        }
    }

    #[test]
    fn devices_that_differ_are_refused() {
        let mut problem = problem(&mut Dice(3), 4, 2, true, true);
        problem.machine.devices[1].speed = 2.0;
        let error = plan_with(&problem, Strategy::Chimera).unwrap_err().to_string();
        assert_eq!(
            error,
            "chimera: a device has stages of both ends of the model, so devices have to be alike"
        );
        problem.machine.devices[1].speed = 1.0;
        problem.training.micro_batches = MicroBatches::Exactly(3);
        let error = plan_with(&problem, Strategy::Gems).unwrap_err().to_string();
        assert_eq!(
            error,
            "gems-master: both copies of the model take as many micro-batches, of which 3 are asked for"
        );
    }
}
