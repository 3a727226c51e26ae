//! Scores given stages by the objective that planning uses.

use schema::{Execution, OffloadMode, ShardingLevel};
use simulator::{
    Updates, kept_versions,
    order::{InFlight, Schedule, make_for_costs},
};

use crate::{
    Problem,
    dag::cut_states::States,
    error::PlanError,
    grid::{
        shape::Grid,
        stage_times::{average_cost, stage_times},
        step_time::{StageTimes, StepTime, step_time},
        two_copies,
    },
    pipeline::transfers::settle_transfers,
    plan_file::placed::GivenStage,
    simulate::{excess, peaks, settle, state_memory, taken},
    solution::{MadeBy, Objective, Solution, SolutionStage, share_memory},
    stage::{
        place::Neighbours,
        run::{Cut, Run, of_rank, rank_of},
        score::Rules,
        scorer::Scorer,
    },
};

/// Most micro-batches that copies beside compute hold on the device: two buffers each way.
const COPIES: usize = 4;

/// Scores given stages under a schedule, which says which of them run on the devices of another.
pub(crate) fn score_placed(
    problem: &Problem,
    placed: &[GivenStage],
    n_ranks: usize,
    schedule: Schedule,
    micro_batches: u32,
    execution: Execution,
) -> Result<Solution, PlanError> {
    problem.validate()?;
    let offload = execution.offload.unwrap_or(OffloadMode::Both);
    let execution = Execution { offload: Some(offload), ..execution };
    let replicas = placed[0].devices.len();
    let is_grid = placed.iter().all(|stage| stage.devices.len() == replicas);
    if !schedule.is_asynchronous() && !is_grid {
        let reason = "stages with different numbers of devices need an asynchronous schedule".to_string();
        return Err(PlanError::Schedule { strategy: schedule.name(), reason });
    }
    let each = (micro_batches as usize).div_ceil(replicas).max(1);
    let ordered = in_order(problem, placed, execution);
    let order: Vec<usize> = placed.iter().flat_map(|stage| stage.blocks.iter().copied()).collect();
    let states = States::line(&ordered, order);
    let given =
        Given { problem, placed, n_ranks, schedule, execution, each, micro_batches, ordered: &ordered };
    let solution = given.by_formula(&states)?;
    given.simulated(solution)
}

/// Returns a problem whose devices stand in the order of the stages: runs are then side by side.
fn in_order(problem: &Problem, placed: &[GivenStage], execution: Execution) -> Problem {
    let mut ordered = problem.clone();
    ordered.training.sharding = execution.sharding.unwrap_or_default();
    ordered.machine.devices = placed
        .iter()
        .flat_map(|stage| stage.devices.iter())
        .map(|&device| problem.machine.devices[device].clone())
        .collect();
    ordered
}

/// Given stages, and how they run.
struct Given<'a> {
    problem: &'a Problem,
    placed: &'a [GivenStage],
    n_ranks: usize,
    schedule: Schedule,
    execution: Execution,
    /// Micro-batches of one replica, where all stages have as many.
    each: usize,
    micro_batches: u32,
    /// The problem with its devices in the order of the stages.
    ordered: &'a Problem,
}

impl Given<'_> {
    /// Tells whether formulas cover the plan's execution options; if not, the simulator must time it.
    fn is_plain(&self) -> bool {
        let plain = Execution { vertical_sync: None, offload: None, blocking_sends: None, ..self.execution };
        // Formulas cover sharding, for pipelines with a flush.
        let shared = |plain: Execution| Execution { sharding: None, sharding_group: None, ..plain };
        let plain = if self.schedule.is_asynchronous() { plain } else { shared(plain) };
        plain == Execution::default()
    }

    /// Tells whether each device has two stages, one of each copy: only the simulator knows its peak memory.
    fn is_two_way(&self) -> bool {
        self.schedule.copies() > 1
    }

    /// Tells whether activations travel to the host beside compute.
    fn copies_beside(&self) -> bool {
        self.execution.offload == Some(OffloadMode::Both)
    }

    fn chunks(&self) -> usize {
        self.placed.len() / self.n_ranks
    }

    /// Returns the first device of a stage.
    fn device(&self, stage: &SolutionStage) -> String {
        self.ordered.machine.devices[stage.run.first].name.clone()
    }

    fn refused(&self, reason: String) -> PlanError {
        PlanError::Schedule { strategy: self.schedule.name(), reason }
    }

    /// Returns what scores the stages.
    fn scorer<'s>(&'s self, states: &'s States) -> Scorer<'s> {
        let is_asynchronous = self.schedule.is_asynchronous();
        let (in_flight, neighbours) = if is_asynchronous {
            (InFlight::UntilEnd(u32::MAX), Neighbours::Adjacent)
        } else {
            let replicas = self.placed[0].devices.len();
            let in_flight = self.schedule.in_flight(self.n_ranks, self.chunks(), self.each, replicas);
            (in_flight, Neighbours::Paired)
        };
        let mut scorer = Scorer::new(self.ordered, states, Rules { is_asynchronous, in_flight, neighbours });
        if is_asynchronous {
            self.set_versions(&mut scorer);
        }
        scorer
    }

    /// Sets, for a pipeline without a flush, the replicas before each stage and its weight versions.
    fn set_versions(&self, scorer: &mut Scorer) {
        let replicas: Vec<u32> = self.placed.iter().map(|stage| stage.devices.len() as u32).collect();
        scorer.shares_updates = self.execution.sharding.is_some_and(|level| level != ShardingLevel::None);
        let vertical = self.execution.vertical_sync.unwrap_or(false);
        let vertical = vertical.then(|| self.schedule.vertical_sync().ok());
        let updates = vertical.flatten().or_else(|| self.schedule.updates(self.micro_batches));
        if let Some(Updates::DoubleBuffered { period }) = updates {
            scorer.period = period as usize;
        }
        let mut kept = updates.map_or_else(Vec::new, |updates| kept_versions(&replicas, updates)).into_iter();
        let mut first = 0;
        let mut before = None;
        for &own in &replicas {
            scorer.before.extend(before.map(|before| (first, before)));
            scorer.versions.extend(kept.next().map(|kept| (first, kept.versions)));
            before = Some(own as usize);
            first += own as usize;
        }
    }

    /// Returns where stages lie in the line of their blocks and of their devices.
    fn cuts(&self) -> Vec<Cut> {
        let n_devices = self.ordered.machine.devices.len();
        let (mut start, mut first) = (0, 0);
        let cut = |stage: &GivenStage| {
            let run = Run { first, count: stage.devices.len(), stride: 1 };
            let cut = Cut { start, end: start + stage.blocks.len(), run, behind: n_devices - first };
            start = cut.end;
            first += run.count;
            cut
        };
        self.placed.iter().map(cut).collect()
    }

    /// Scores stages and their step by formula.
    fn by_formula(&self, states: &States) -> Result<Solution, PlanError> {
        let mut scorer = self.scorer(states);
        let cuts = self.cuts();
        let scored = |scorer: &Scorer| -> Vec<SolutionStage> {
            let stage = |(cut, placed): (&Cut, &GivenStage)| SolutionStage {
                blocks: placed.blocks.clone(),
                run: cut.run,
                score: scorer.on(cut.run, cut.behind).score_given(
                    cut.start,
                    cut.end,
                    (&placed.recompute, &placed.light, placed.unit),
                    &placed.offload,
                ),
            };
            cuts.iter().zip(self.placed).map(stage).collect()
        };
        let mut stages = scored(&scorer);
        if self.copies_beside() && self.is_plain() && !self.is_two_way() {
            // A plan must fit by formula, with a device that waits for its copies; the simulator checks again.
            self.fits(&mut stages.clone())?;
            // Copies beside compute use several buffers.
            scorer.copies = COPIES;
            stages = scored(&scorer);
        }
        let is_asynchronous = self.schedule.is_asynchronous();
        if is_asynchronous {
            settle_transfers(self.ordered, &mut stages);
        }
        let (objective, bubble) = if is_asynchronous {
            let slowest = stages.iter().map(|stage| stage.score.seconds).fold(0.0, f64::max);
            (Objective::Period(slowest), None)
        } else if self.is_two_way() {
            // Only the simulator can time it.
            (Objective::Step(f64::INFINITY), Some(0.0))
        } else {
            let time = self.step(&scorer, &cuts, &stages)?;
            (Objective::Step(time.seconds), Some(time.bubble))
        };
        if self.is_two_way() {
            two_copies::join(&mut stages);
        }
        let replicas = self.placed[0].devices.len();
        let micro_batches = if is_asynchronous { self.micro_batches } else { (self.each * replicas) as u32 };
        let mut solution = Solution {
            made_by: MadeBy::AsGiven,
            schedule: self.schedule,
            micro_batches,
            stages,
            execution: self.execution,
            objective,
            lower_bound: 0.0,
            bubble,
            order: Vec::new(),
            peaks: None,
        };
        let by_work = self.problem.seconds() / self.problem.machine.total_speed();
        solution.lower_bound = (by_work * solution.micro_batches_of_objective()).min(solution.seconds());
        Ok(solution)
    }

    /// Times a step of the schedule's order.
    fn step(&self, scorer: &Scorer, cuts: &[Cut], stages: &[SolutionStage]) -> Result<StepTime, PlanError> {
        let (ranks, chunks, replicas) = (self.n_ranks, self.chunks(), self.placed[0].devices.len());
        let grid = Grid { schedule: self.schedule, ranks, chunks, replicas, replicas_together: true };
        let order = make_for_costs(self.schedule, grid.shape(self.each), average_cost(self.ordered, grid))
            .map_err(|error| self.refused(error.to_string()))?;
        let times = |(cut, stage): (&Cut, &SolutionStage)| {
            stage_times(&scorer.on(cut.run, cut.behind), cut.start, cut.end, stage)
        };
        let times: Vec<StageTimes> = cuts.iter().zip(stages).map(times).collect();
        step_time(&order, &times, self.problem.machine.overlaps)
            .ok_or_else(|| self.refused("the order deadlocks".into()))
    }

    /// Takes the simulator's time and memory, where it can tell; an error where the plan does not fit by either count.
    fn simulated(&self, mut solution: Solution) -> Result<Solution, PlanError> {
        let ordered = self.ordered;
        // Stages of one rank share its devices: all stand on those of the first.
        let runs: Vec<Run> = solution.stages.iter().map(|stage| stage.run).collect();
        let mut turned = solution.clone();
        for (index, stage) in turned.stages.iter_mut().enumerate() {
            stage.run = runs[rank_of(self.schedule, index, self.n_ranks)];
        }
        let is_plain = self.is_plain();
        if let Some(Err(error)) = taken(ordered, &turned).filter(|_| !is_plain) {
            return Err(self.refused(error.to_string()));
        }
        if (self.copies_beside() && turned.offloads() || !is_plain || self.is_two_way())
            && let Some(peaks) = peaks(ordered, &turned)
        {
            solution.stages.iter_mut().zip(peaks).for_each(|(stage, peak)| stage.score.memory = peak);
        }
        self.fits(&mut solution.stages)?;
        // In rare orders of arrival a stage needs more memory than the formulas say.
        if let Some(share) = excess(ordered, &turned) {
            let fuller = |stage: &&SolutionStage| stage.score.memory / stage.score.limit;
            let fullest = solution.stages.iter().max_by(|a, b| fuller(a).total_cmp(&fuller(b)));
            let stage = fullest.expect("a plan has stages");
            let limit = ordered.machine.devices[stage.run.first].memory.0;
            return Err(PlanError::Memory {
                block: self.problem.blocks[stage.blocks[0]].path.clone(),
                needed: (limit as f64 * share) as u64,
                device: self.device(stage),
                limit,
            });
        }
        let mut settled = settle(ordered, turned);
        if !settled.seconds().is_finite() {
            let reason = "the simulator, which alone times two copies, does not take so large a step";
            return Err(self.refused(reason.into()));
        }
        let memory = |from: &[SolutionStage], to: &mut [SolutionStage]| {
            to.iter_mut().zip(from).for_each(|(to, from)| to.score.memory = from.score.memory);
        };
        memory(&solution.stages, &mut settled.stages);
        state_memory(ordered, &mut settled);
        memory(&settled.stages, &mut solution.stages);
        Ok(Solution { stages: solution.stages, ..settled })
    }

    /// Sets each stage's limit to what the other stages of its devices leave; an error if they do not fit.
    fn fits(&self, stages: &mut [SolutionStage]) -> Result<(), PlanError> {
        let Err(rank) = share_memory(stages, self.schedule, self.n_ranks) else { return Ok(()) };
        let blocks = &self.problem.blocks;
        let size = |block: &&usize| blocks[**block].parameters.0 + blocks[**block].activations.0;
        let own = || of_rank(stages, self.schedule, self.n_ranks, rank);
        let largest = own().flat_map(|stage| stage.blocks.iter()).max_by_key(size);
        Err(PlanError::Memory {
            block: largest.map_or_else(String::new, |&block| blocks[block].path.clone()),
            needed: own().map(|stage| stage.score.memory).sum::<f64>() as u64,
            device: self.device(&stages[rank]),
            limit: stages[rank].score.limit as u64,
        })
    }
}
