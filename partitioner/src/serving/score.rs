//! Scores given plans for inference.

use schema::{Inference, InferenceObjective};

use crate::{
    dag::cut_states::States,
    error::PlanError,
    plan_file::placed::GivenStage,
    problem::Problem,
    serving::{bound::lower_bound, stages::Solver},
    simulate::state_memory,
    solution::{MadeBy, Objective, Solution},
    stage::{run::Run, score::StageScore},
};

/// Scores stages that a plan gives, in the order of their devices.
pub(crate) fn score_placed(
    problem: &Problem,
    placed: &[GivenStage],
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
    // Copy by copy: the first device of each stage belongs to the first copy.
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
    found.lower_bound = lower_bound(problem, aim).min(found.seconds());
    found.order = devices;
    state_memory(problem, &mut found);
    Ok(found)
}

/// Returns by which factor the keys and values of each sequence may grow before a plan's memory is full; `None` if there are
/// none.
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
