//! Asynchronous PipeDream with its formulas put right: the slowest stage is as fast as can be.
//!
//! Narayanan et al., SOSP 2019. Unlike the released optimizer (see `compat`): the larger of compute and synchronisation, an
//! all-reduce as NCCL runs it, transfers both ways, the first stage checked, weight versions in memory. Exact over all ideals, or by
//! walking a chain; wider graphs are put in line and bettered block by block, with the shared work as the bound.

use simulator::order::Schedule;

use crate::{
    Problem,
    chain::{best_chain, can_walk},
    handover::settle_transfers,
    local_search::improve,
    pipeline::{Cut, Sharing, best_pipeline},
    simulated::settle,
    solution::{Objective, Solution, SolutionStage},
    stage::{InFlight, Neighbours, Rules, Scorer},
    states::States,
    strategy::{IDEALS, PlanError, Strategy, default_micro_batches, shortage, stages_of},
};

/// Asynchronous PipeDream: the slowest stage is as fast as can be.
///
/// Where links differ, a stage's neighbours matter and are not known while it is chosen: two guesses are solved and then scored
/// as they stand, and a third, that every link is the fastest, bounds what is possible.
pub(crate) fn pipedream(problem: &Problem) -> Result<Solution, PlanError> {
    let line = States::line(problem, (0..problem.blocks.len()).collect());
    let is_chain = line.is_complete(problem);
    let states = if is_chain { line } else { States::ideals(problem, IDEALS).unwrap_or(line) };
    let is_exact = states.is_complete(problem);
    let is_uniform = problem.machine.is_uniform();
    let slowest =
        |stages: &[SolutionStage]| stages.iter().map(|stage| stage.score.seconds).fold(0.0, f64::max);
    let solution = |stages: Vec<SolutionStage>| Solution {
        strategy: Strategy::PipeDream.name(),
        schedule: Schedule::PipeDream.name(),
        micro_batches: problem.training.micro_batches.unwrap_or(default_micro_batches(problem)),
        objective: Objective::Period(slowest(&stages)),
        stages,
        offload: None,
        lower_bound: f64::INFINITY,
        bubble: None,
    };
    // A plan that would be good if nothing overlapped waits less for transfers.
    let mut serial = problem.clone();
    serial.machine.overlaps = false;
    let guesses =
        [(problem, Neighbours::Adjacent), (problem, Neighbours::Wide), (&serial, Neighbours::Adjacent)];
    let mut best: Option<Solution> = None;
    let mut by_formula = f64::INFINITY;
    for (guess, neighbours) in guesses {
        if is_uniform && neighbours == Neighbours::Wide {
            continue;
        }
        let rules = asynchronous(neighbours);
        let scorer = Scorer::new(guess, &states, rules);
        let Some(cuts) = free_pipeline(&scorer, is_chain) else { continue };
        let mut stages = stages_of(&scorer, &cuts);
        if !is_exact {
            stages = improve(guess, rules, stages);
        }
        stages.iter_mut().for_each(|stage| stage.score.settle(problem.machine.overlaps));
        if !is_uniform {
            settle_transfers(problem, &mut stages);
        }
        by_formula = by_formula.min(slowest(&stages));
        let found = settle(problem, solution(stages));
        // The formula's best is the simulator's best as well, unless pipelines wait.
        let waits = found.seconds() > by_formula * (1.0 + 1e-6);
        if best.as_ref().is_none_or(|best| found.seconds() < best.seconds()) {
            best = Some(found);
        }
        if is_uniform && !waits {
            break;
        }
    }
    let mut best = best.ok_or_else(|| shortage(problem))?;
    let floor = problem.seconds() / problem.machine.total_speed();
    let bound = match (is_exact, is_uniform && !problem.training.offload) {
        (true, true) => by_formula,
        (true, false) => {
            // Copies to the host may run beside compute.
            let mut ideal = problem.clone();
            ideal.machine.devices.iter_mut().for_each(|device| device.host_bandwidth.0 = f64::INFINITY);
            let scorer = Scorer::new(&ideal, &states, asynchronous(Neighbours::Fastest));
            best_pipeline(&scorer, Sharing::Free, f64::INFINITY).map_or(floor, |found| found.0)
        }
        _ => floor,
    };
    best.lower_bound = bound.min(best.seconds());
    Ok(best)
}

/// The rules of training without a flush.
fn asynchronous(neighbours: Neighbours) -> Rules {
    Rules { is_asynchronous: true, in_flight: InFlight::UntilEnd(u32::MAX), neighbours }
}

/// The best pipeline with any number of devices a stage.
fn free_pipeline(scorer: &Scorer, is_chain: bool) -> Option<Vec<Cut>> {
    let n_devices = scorer.problem.machine.devices.len();
    // Long chains: walk, and keep the answer if it fits into memory.
    let is_long = is_chain && (scorer.problem.blocks.len() as f64) * (n_devices as f64).powi(2) > 2e7;
    let walked = if is_long && can_walk(scorer) { best_chain(scorer) } else { None };
    let fits =
        |cuts: &[Cut]| cuts.iter().all(|cut| scorer.score(cut.start, cut.end, cut.run, cut.behind).is_some());
    match walked {
        Some((_, cuts)) if fits(&cuts) => Some(cuts),
        _ => Some(best_pipeline(scorer, Sharing::Free, f64::INFINITY)?.1),
    }
}
