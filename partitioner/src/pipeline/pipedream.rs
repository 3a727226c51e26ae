//! PipeDream's objective: training without a flush, where the slowest stage decides.
//!
//! The dynamic program of Narayanan et al. (SOSP 2019) with corrected formulas. Unlike the released optimizer (`compat` of the crate
//! `peers`): the larger of compute and synchronization, an all-reduce as NCCL runs it, transfers both ways, the first stage checked,
//! weight versions in memory. Exact over all ideals, O(Q²·M²) for Q states and M devices, or by walking a chain (`long_chain`); wider
//! graphs are planned over one order and improved block by block, with the shared work as the bound.

use std::rc::Rc;

use schema::Execution;
use simulator::order::{InFlight, Schedule};

use crate::{
    Problem,
    cut_space::CutSpace,
    error::PlanError,
    goal::{Goal, InOrder},
    pipeline::{
        best::{Sharing, best_pipeline, best_with_before, has_few_with_before, stages_of},
        local_search::improve,
        long_chain::{best_chain, can_walk},
        transfers::settle_transfers,
    },
    simulate::settle,
    solution::{MadeBy, Objective, Solution, SolutionStage},
    stage::{place::Neighbours, rounds::Rounds, run::Cut, score::Rules, scorer::Scorer},
    strategy::Strategy,
};

/// The most devices and states for which stages of equal replicas are tried beside the best by formula.
const FEW_DEVICES: usize = 64;
const FEW_STATES: usize = 1024;

/// Asynchronous PipeDream: finds the pipeline whose slowest stage is fastest.
///
/// If links differ, a stage's time depends on neighbours that are not known while it is chosen: two guesses of them are solved
/// and then scored with their real neighbours; a third, with the fastest link everywhere, gives the lower bound.
pub(crate) fn pipedream(problem: &Problem, cut_space: &CutSpace, strategy: Strategy, goal: Goal) -> InOrder {
    let CutSpace { states, is_complete: is_exact, is_chain, .. } = cut_space;
    let (is_exact, is_chain) = (*is_exact, *is_chain);
    let is_uniform = problem.machine.is_uniform();
    let slowest =
        |stages: &[SolutionStage]| stages.iter().map(|stage| stage.score.seconds).fold(0.0, f64::max);
    let solution = |stages: Vec<SolutionStage>| Solution {
        made_by: MadeBy::Strategy(strategy),
        schedule: Schedule::PipeDream,
        micro_batches: problem.training.wanted(&problem.machine),
        objective: Objective::Period(slowest(&stages)),
        stages,
        execution: Execution::default(),
        lower_bound: f64::INFINITY,
        bubble: None,
        order: Vec::new(),
        peaks: None,
    };
    // The best plan without overlap waits less for transfers.
    let mut serial = problem.clone();
    serial.machine.overlaps = false;
    let scorer = Scorer::new(problem, states, asynchronous(Neighbours::Adjacent));
    let is_roomy = scorer.is_roomy();
    // The walk along a long chain knows no rounds.
    let is_walked = is_chain && is_long(&scorer) && can_walk(&scorer);
    let rounds = (!is_walked).then(|| Rc::new(Rounds::of(problem, states)));
    // The replicas of the stage before are not known while a stage is chosen: first underestimate memory, if it matters. Gradient
    // sums hide behind the backward pass except for the last bucket, and a small stage has no other.
    let free = Sharing::Free;
    let mut guesses = vec![
        (problem, Neighbours::Adjacent, true, false, free),
        (problem, Neighbours::Adjacent, false, false, free),
        (problem, Neighbours::Adjacent, false, true, free),
        (problem, Neighbours::Wide, false, false, free),
        (&serial, Neighbours::Adjacent, false, false, free),
    ];
    // Stages of equal replicas have rounds of equal length and wait least for each other.
    let n_devices = problem.machine.devices.len();
    if n_devices <= FEW_DEVICES && states.len() <= FEW_STATES {
        let divides = |stages: &usize| n_devices.is_multiple_of(*stages);
        let equal = |stages| Sharing::Equal { stages, replicas: n_devices / stages, replicas_together: true };
        guesses.extend(
            (1..=n_devices)
                .filter(divides)
                .map(|stages| (problem, Neighbours::Adjacent, false, true, equal(stages))),
        );
    }
    let mut best: Option<Solution> = None;
    let mut by_formula = f64::INFINITY;
    for (guess, neighbours, is_bound, waits_for_sums, sharing) in guesses {
        if is_uniform && neighbours == Neighbours::Wide || is_roomy && is_bound {
            continue;
        }
        let rules = asynchronous(neighbours);
        let mut scorer = Scorer::new(guess, states, rules);
        (scorer.is_bound, scorer.waits_for_sums) = (is_bound, waits_for_sums);
        scorer.rounds.clone_from(&rounds);
        let found = if sharing != free {
            best_pipeline(&scorer, sharing, f64::INFINITY).map(|best| best.1)
        } else if is_bound || is_roomy || !has_few_with_before(&scorer) {
            free_pipeline(&scorer, is_chain)
        } else {
            best_with_before(&mut scorer).map(|best| best.1)
        };
        let Some(cuts) = found else { continue };
        let mut scorer = Scorer::new(guess, states, rules);
        scorer.rounds.clone_from(&rounds);
        scorer.before = cuts.windows(2).map(|pair| (pair[1].run.first, pair[0].run.count)).collect();
        let mut stages = stages_of(&scorer, &cuts);
        if stages.len() < cuts.len() {
            continue;
        }
        if !is_exact {
            stages = improve(guess, rules, stages);
        }
        stages.iter_mut().for_each(|stage| stage.score.settle(problem.machine.overlaps));
        if !is_uniform {
            settle_transfers(problem, &mut stages);
        }
        by_formula = by_formula.min(slowest(&stages));
        let found = settle(problem, solution(stages));
        // By formula no pipeline is faster; only waiting, which the simulator sees, may make another one better.
        let waits = found.seconds() > by_formula * (1.0 + 1e-6);
        if best.as_ref().is_none_or(|best| found.seconds() < best.seconds()) {
            best = Some(found);
        }
        if is_uniform && !waits && !is_bound || goal == Goal::Any {
            break;
        }
    }
    let by_work = problem.seconds() / problem.machine.total_speed();
    let bound = if goal == Goal::Any {
        0.0
    } else if !is_exact {
        by_work
    } else if is_uniform && is_roomy {
        by_formula
    } else {
        least_period(&scorer, rounds, is_chain)
    };
    let bound = bound.max(by_work);
    let mut best = best.ok_or((PlanError::NothingFits, bound))?;
    best.lower_bound = bound.min(best.seconds());
    let least = best.lower_bound;
    Ok((best, least))
}

/// Lower bound of the slowest stage over all orders of the devices, with memory underestimated.
fn least_period(scorer: &Scorer, rounds: Option<Rc<Rounds>>, is_chain: bool) -> f64 {
    let ideal = scorer.problem.ideal();
    let is_uniform = scorer.problem.machine.is_uniform();
    let neighbours = if is_uniform { Neighbours::Adjacent } else { Neighbours::Fastest };
    let mut scorer = Scorer::new(&ideal, scorer.states, asynchronous(neighbours));
    (scorer.is_bound, scorer.rounds) = (true, rounds);
    if is_chain && is_long(&scorer) && can_walk(&scorer) {
        return best_chain(&scorer).map_or(0.0, |best| best.0);
    }
    best_pipeline(&scorer, Sharing::Free, f64::INFINITY).map_or(f64::INFINITY, |best| best.0)
}

/// Tells whether a table over positions and devices would take long.
fn is_long(scorer: &Scorer) -> bool {
    let n_devices = scorer.problem.machine.devices.len();
    (scorer.problem.blocks.len() as f64) * (n_devices as f64).powi(2) > 2e7
}

/// The rules of training without a flush.
fn asynchronous(neighbours: Neighbours) -> Rules {
    Rules { is_asynchronous: true, in_flight: InFlight::UntilEnd(u32::MAX), neighbours }
}

/// The best pipeline with any number of devices for each stage.
fn free_pipeline(scorer: &Scorer, is_chain: bool) -> Option<Vec<Cut>> {
    // Long chains: walk without a memory limit, and keep the plan if it fits.
    let walked = if is_chain && is_long(scorer) && can_walk(scorer) { best_chain(scorer) } else { None };
    let fits = |cuts: &[Cut]| {
        cuts.iter().all(|cut| scorer.on(cut.run, cut.behind).score(cut.start, cut.end).is_some())
    };
    match walked {
        Some((_, cuts)) if fits(&cuts) => Some(cuts),
        _ => Some(best_pipeline(scorer, Sharing::Free, f64::INFINITY)?.1),
    }
}
