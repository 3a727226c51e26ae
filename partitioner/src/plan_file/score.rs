//! Scores stages that somebody placed by hand, by the objective that planning uses.

use schema::{Execution, OffloadMode, ShardingLevel};
use simulator::{
    Cost, Updates, kept,
    order::{Schedule, Shape, make_for_costs},
};

use crate::{
    Problem,
    dag::cut_states::States,
    error::PlanError,
    grid::{
        stage_times::stage_times,
        step_time::{StageTimes, step_time},
        two_copies,
    },
    pipeline::transfers::settle_transfers,
    plan_file::{
        placed::GivenStage,
        simulate::{excess, peaks, settle, state_memory, taken},
    },
    solution::{MadeBy, Objective, Solution, SolutionStage, share_memory},
    stage::{
        in_flight::{InFlight, in_flight_of},
        place::Neighbours,
        run::{Cut, Run},
        score::{Rules, Scorer},
    },
};

/// Micro-batches on their way that copies beside compute hold at the most: two buffers each way.
const COPIES: usize = 4;

/// Scores given stages under a schedule; stage `s` runs where stage `s - n_ranks` does.
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
    // What else a plan wants is the simulator's to count.
    let plain = Execution { vertical_sync: None, offload: None, blocking_sends: None, ..execution };
    // What replicas share out, formulas know of pipelines with a flush.
    let is_asynchronous = schedule.is_asynchronous();
    let shared = |plain: Execution| Execution { sharding: None, sharding_group: None, ..plain };
    let plain = if is_asynchronous { plain } else { shared(plain) };
    let is_plain = plain == Execution::default();
    // Put the devices in the order of the stages: runs are then side by side.
    let mut ordered = problem.clone();
    ordered.training.sharding = execution.sharding.unwrap_or_default();
    let chunks = placed.len() / n_ranks;
    ordered.machine.devices = placed
        .iter()
        .flat_map(|stage| stage.devices.iter())
        .map(|&device| problem.machine.devices[device].clone())
        .collect();
    let order: Vec<usize> = placed.iter().flat_map(|stage| stage.blocks.iter().copied()).collect();
    let states = States::line(&ordered, order);
    let replicas = placed[0].devices.len();
    let is_grid = placed.iter().all(|stage| stage.devices.len() == replicas);
    if !is_asynchronous && !is_grid {
        let reason = "stages with different numbers of devices need an asynchronous schedule".to_string();
        return Err(PlanError::Schedule { strategy: schedule.name(), reason });
    }
    let each = (micro_batches as usize).div_ceil(replicas).max(1);
    let in_flight = if is_asynchronous {
        InFlight::UntilEnd(u32::MAX)
    } else {
        in_flight_of(schedule, n_ranks, chunks, each, replicas)
    };
    let neighbours = if is_asynchronous { Neighbours::Adjacent } else { Neighbours::Paired };
    let mut scorer = Scorer::new(&ordered, &states, Rules { is_asynchronous, in_flight, neighbours });
    let n_devices = ordered.machine.devices.len();
    if is_asynchronous {
        let mut first = 0;
        for pair in placed.windows(2) {
            first += pair[0].devices.len();
            scorer.before.insert(first, pair[0].devices.len());
        }
        scorer.shares_updates = execution.sharding.is_some_and(|level| level != ShardingLevel::None);
        let replicas: Vec<u32> = placed.iter().map(|stage| stage.devices.len() as u32).collect();
        let vertical = execution.vertical_sync.unwrap_or(false).then(|| schedule.vertical_sync().ok());
        let updates = vertical.flatten().or_else(|| schedule.updates(micro_batches));
        if let Some(Updates::DoubleBuffered { period }) = updates {
            scorer.period = period as usize;
        }
        let mut first = 0;
        for (kept, replicas) in
            updates.map_or_else(Vec::new, |updates| kept(&replicas, updates)).iter().zip(&replicas)
        {
            scorer.versions.insert(first, kept.versions);
            first += *replicas as usize;
        }
    }
    let (mut start, mut first) = (0, 0);
    let mut cuts = Vec::with_capacity(placed.len());
    for stage in placed {
        let end = start + stage.blocks.len();
        let run = Run { first, count: stage.devices.len(), stride: 1 };
        cuts.push(Cut { start, end, run, behind: n_devices - first });
        start = end;
        first += stage.devices.len();
    }
    let scored = |scorer: &Scorer| -> Vec<SolutionStage> {
        let stage = |(cut, placed): (&Cut, &GivenStage)| SolutionStage {
            blocks: placed.blocks.clone(),
            run: cut.run,
            score: scorer.score_given(cut, (&placed.recompute, placed.unit), &placed.offload),
        };
        cuts.iter().zip(placed).map(stage).collect()
    };
    let mut stages = scored(&scorer);
    // A device has the stage at the other end, too, and what it holds of both at once the simulator tells.
    let is_two_way = schedule.copies() > 1;
    let name = |stage: &SolutionStage| ordered.machine.devices[stage.run.first].name.clone();
    if offload == OffloadMode::Both && is_plain && !is_two_way {
        // A plan fits as planning counts, with copies that wait for each other, and as the simulator counts.
        fits(problem, &mut stages.clone(), n_ranks, name)?;
        // Copies beside compute are on their way in several buffers.
        scorer.copies = COPIES;
        stages = scored(&scorer);
    }
    if is_asynchronous {
        settle_transfers(&ordered, &mut stages);
    }
    let floor = problem.seconds() / problem.machine.total_speed();
    let (objective, bubble) = match is_asynchronous {
        true => {
            let slowest = stages.iter().map(|stage| stage.score.seconds).fold(0.0, f64::max);
            (Objective::Period(slowest), None)
        }
        // The simulator's alone to tell.
        false if is_two_way => (Objective::Step(f64::INFINITY), Some(0.0)),
        false => {
            let shape = Shape { ranks: n_ranks as u32, chunks: chunks as u32, micro_batches: each as u32 };
            let reason = |reason: String| PlanError::Schedule { strategy: schedule.name(), reason };
            let order =
                make_for_costs(schedule, shape, Cost::EQUAL).map_err(|error| reason(error.to_string()))?;
            let times: Vec<StageTimes> =
                cuts.iter().zip(&stages).map(|(cut, stage)| stage_times(&scorer, cut, stage)).collect();
            let time = step_time(&order, &times, problem.machine.overlaps)
                .ok_or_else(|| reason("the order deadlocks".into()))?;
            (Objective::Step(time.seconds), Some(time.bubble))
        }
    };
    if is_two_way {
        two_copies::join(&mut stages);
    }
    let micro_batches = if is_asynchronous { micro_batches } else { (each * replicas) as u32 };
    let mut solution = Solution {
        made_by: MadeBy::AsGiven,
        schedule,
        micro_batches,
        stages,
        execution,
        objective,
        lower_bound: 0.0,
        bubble,
        order: Vec::new(),
    };
    solution.lower_bound = (floor * solution.micro_batches_of_objective()).min(solution.seconds());
    // Stages of one rank share its devices: all turns stand on the first.
    let n_first: usize = placed[..n_ranks].iter().map(|stage| stage.devices.len()).sum();
    let mut turned = solution.clone();
    turned.stages.iter_mut().for_each(|stage| stage.run.first %= n_first);
    if let Some(Err(error)) = taken(&ordered, &turned).filter(|_| !is_plain) {
        return Err(PlanError::Schedule { strategy: schedule.name(), reason: error.to_string() });
    }
    if (offload == OffloadMode::Both && turned.offloads() || !is_plain || is_two_way)
        && let Some(peaks) = peaks(&ordered, &turned)
    {
        solution.stages.iter_mut().zip(peaks).for_each(|(stage, peak)| stage.score.memory = peak);
    }
    fits(problem, &mut solution.stages, n_ranks, name)?;
    // Rare orders of arrival need more than formulas say.
    if let Some(share) = excess(&ordered, &turned) {
        let fuller = |stage: &&SolutionStage| stage.score.memory / stage.score.limit;
        let fullest = solution.stages.iter().max_by(|a, b| fuller(a).total_cmp(&fuller(b)));
        let stage = fullest.expect("a plan has stages");
        let limit = ordered.machine.devices[stage.run.first].memory.0;
        return Err(PlanError::Memory {
            block: problem.blocks[stage.blocks[0]].path.clone(),
            needed: (limit as f64 * share) as u64,
            device: name(stage),
            limit,
        });
    }
    let mut settled = settle(&ordered, turned);
    if !settled.seconds().is_finite() {
        let reason = "the simulator, which alone times two copies, does not take so large a step".to_string();
        return Err(PlanError::Schedule { strategy: schedule.name(), reason });
    }
    let memory = |from: &[SolutionStage], to: &mut [SolutionStage]| {
        to.iter_mut().zip(from).for_each(|(to, from)| to.score.memory = from.score.memory);
    };
    memory(&solution.stages, &mut settled.stages);
    state_memory(&ordered, &mut settled);
    memory(&settled.stages, &mut solution.stages);
    Ok(Solution { stages: solution.stages, ..settled })
}

/// Leaves each stage what the others on its devices do not need; an error where they need more than there is.
fn fits(
    problem: &Problem,
    stages: &mut [SolutionStage],
    n_ranks: usize,
    device: impl Fn(&SolutionStage) -> String,
) -> Result<(), PlanError> {
    let Err(rank) = share_memory(stages, n_ranks) else { return Ok(()) };
    let size = |block: &&usize| problem.blocks[**block].parameters.0 + problem.blocks[**block].activations.0;
    let of_rank = || stages.iter().skip(rank).step_by(n_ranks);
    let largest = of_rank().flat_map(|stage| stage.blocks.iter()).max_by_key(size);
    Err(PlanError::Memory {
        block: largest.map_or_else(String::new, |&block| problem.blocks[block].path.clone()),
        needed: of_rank().map(|stage| stage.score.memory).sum::<f64>() as u64,
        device: device(&stages[rank]),
        limit: stages[rank].score.limit as u64,
    })
}
