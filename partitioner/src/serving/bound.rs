//! Lower bounds of plans for inference, over all cuts.

use schema::{Inference, InferenceObjective};

use crate::problem::Problem;

/// Returns a lower bound in seconds over all cuts: the work of all devices together, or of the longest path.
pub(crate) fn lower_bound(problem: &Problem, aim: Inference) -> f64 {
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
