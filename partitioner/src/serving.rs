//! Plans for inference: the forward pass alone, for the most samples a second or the least time of one request.

pub(crate) mod bound;
mod latency;
pub(crate) mod score;
pub(crate) mod stages;
mod throughput;

use schema::{Inference, InferenceObjective};

use crate::{
    Problem, Solution,
    cut_space::CutSpace,
    device_orders::other_orders,
    error::PlanError,
    planner::memory_needed::nearest,
    serving::{
        bound::lower_bound,
        stages::{ROUNDING, Solver},
    },
    simulate::state_memory,
};

/// Finds the best plan for inference.
///
/// # Errors
/// When nothing fits, or the micro-batches in flight are fewer than the stages.
pub(crate) fn serve(problem: &Problem, cut_space: &CutSpace, aim: Inference) -> Result<Solution, PlanError> {
    match in_any_order(problem, cut_space, aim) {
        Ok(mut best) => {
            state_memory(problem, &mut best);
            Ok(best)
        }
        Err(PlanError::NothingFits) => {
            Err(nearest(problem, &[&|roomier| in_any_order(roomier, cut_space, aim).ok()]))
        }
        Err(error) => Err(error),
    }
}

/// Tells whether there is a plan at all.
pub(crate) fn can_serve(problem: &Problem, cut_space: &CutSpace, aim: Inference) -> bool {
    in_any_order(problem, cut_space, aim).is_ok()
}

/// Finds the best plan over several orders of devices, if they differ.
pub(crate) fn in_any_order(
    problem: &Problem,
    cut_space: &CutSpace,
    aim: Inference,
) -> Result<Solution, PlanError> {
    let (orders, is_all) = other_orders(&problem.machine);
    let mut best = in_order(problem, cut_space, aim);
    for order in orders {
        let mut ordered = problem.clone();
        let devices = order.iter().map(|&device| problem.machine.devices[device].clone());
        ordered.machine.devices = devices.collect();
        let Ok(found) = in_order(&ordered, cut_space, aim) else { continue };
        if best.as_ref().map_or(true, |best| found.seconds() < best.seconds() * (1.0 - ROUNDING)) {
            best = Ok(Solution { order, ..found });
        }
    }
    let mut best = best?;
    // Other orders of the blocks or of untried devices may be better; so may parallel branches for one request.
    let is_any_cut = match aim.objective {
        InferenceObjective::Throughput => cut_space.is_complete,
        InferenceObjective::Latency => cut_space.is_chain,
    };
    let is_proven = is_all && (is_any_cut || problem.begins.is_some());
    if !is_proven {
        best.lower_bound = lower_bound(problem, aim).min(best.seconds());
    }
    Ok(best)
}

/// Finds the best plan with the devices as they stand.
fn in_order(problem: &Problem, cut_space: &CutSpace, aim: Inference) -> Result<Solution, PlanError> {
    let states = if problem.begins.is_some() { cut_space.line(problem) } else { &cut_space.states };
    let solver = Solver::new(problem, states);
    match aim.objective {
        InferenceObjective::Throughput => solver.throughput(),
        InferenceObjective::Latency => solver.latency(),
    }
}
