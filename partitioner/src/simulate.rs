//! Scores a solution with the simulator, so that what is planned is what is simulated.
//!
//! Solvers use formulas, which treat a transfer that can hide behind compute as hidden, while a pipeline with few micro-batches
//! in flight may wait for it. If the step is small enough, the simulator's time replaces the formula's.

pub(crate) mod parts;

use schema::OffloadMode;
use simulator::{PlannedStep, Timeline, simulate, simulate_below, step_time};

use self::parts::{parts, positions};
use crate::{Objective, Problem, Solution, SolutionStage};

/// Replaces a solution's objective by the simulator's time, if the step can be simulated.
///
/// Offloaded activations travel while the device waits, or beside compute where that is faster and their buffers fit.
pub(crate) fn settle(problem: &Problem, mut solution: Solution) -> Solution {
    let is_open = solution.offloads() && solution.execution.offload.is_none();
    if is_open {
        solution.execution.offload = Some(OffloadMode::Pinned);
    }
    let Some(mut time) = simulated(problem, &solution) else { return solution };
    if is_open
        && let Some((beside, faster)) = copies_beside(problem, &solution)
        && faster.0 < time.0
    {
        (solution, time) = (beside, faster);
    }
    take_time(&mut solution, time);
    solution
}

/// Replaces a step's time by the simulator's and returns its [`excess`], from one simulation.
///
/// `None` if the time is not below `below` seconds: the memory does not matter then.
pub(crate) fn settle_step(
    problem: &Problem,
    mut solution: Solution,
    below: f64,
) -> Option<(Solution, Option<f64>)> {
    if solution.offloads() || !may_exceed(problem, &solution) {
        let solution = settle(problem, solution);
        let excess = if solution.seconds() < below { excess(problem, &solution) } else { return None };
        return Some((solution, excess));
    }
    let Some(step) = planned(problem, &solution) else { return Some((solution, None)) };
    let limit = if below.is_finite() { (below * 1e9).ceil() as u64 } else { u64::MAX };
    let timeline = match simulate_below(&step.workload, &step.order, &step.machine, limit) {
        Ok(timeline) => timeline?,
        Err(_) => return Some((solution, None)),
    };
    let seconds = timeline.step as f64 * 1e-9;
    let time = (seconds, idle(&solution, seconds));
    take_time(&mut solution, time);
    let peaks = device_peaks(problem, &timeline);
    let excess = excess_of(problem, &solution, &peaks);
    solution.peaks = Some(peaks);
    Some((solution, excess))
}

/// Sets the step time and the bubble to the simulator's.
fn take_time(solution: &mut Solution, (seconds, bubble): (f64, f64)) {
    solution.objective = match solution.objective {
        Objective::Period(_) => Objective::Period(seconds),
        Objective::Step(_) => Objective::Step(seconds),
    };
    solution.bubble = solution.bubble.map(|_| bubble);
    solution.lower_bound = solution.lower_bound.min(seconds);
}

/// The same plan with copies on streams of their own; `None` where a device runs out of memory.
fn copies_beside(problem: &Problem, solution: &Solution) -> Option<(Solution, (f64, f64))> {
    let mut beside = solution.clone();
    beside.execution.offload = Some(OffloadMode::Both);
    let devices = &problem.machine.devices;
    for stage in &mut beside.stages {
        let bytes = stage.score.offload.iter().map(|&block| problem.blocks[block].activations.0 as f64);
        let host = stage.run.devices().map(|device| devices[device].host_bandwidth.0);
        let copies = 2.0 * bytes.sum::<f64>() / host.fold(f64::INFINITY, f64::min) / stage.run.count as f64;
        stage.score.compute -= copies;
        stage.score.overhead = (stage.score.overhead - copies).max(0.0);
        stage.score.settle(problem.machine.overlaps);
    }
    let peaks = peaks(problem, &beside)?;
    for (stage, peak) in beside.stages.iter_mut().zip(peaks) {
        stage.score.memory = peak;
        if peak > stage.score.limit {
            return None;
        }
    }
    let time = simulated(problem, &beside)?;
    Some((beside, time))
}

/// Bytes at the peak of each stage's fullest device, shared by the stages on it, as the simulator finds them.
pub(crate) fn peaks(problem: &Problem, solution: &Solution) -> Option<Vec<f64>> {
    let peaks = device_peaks(problem, &timeline(problem, solution)?);
    let chunks = solution.chunks() as f64;
    let of = |stage: &SolutionStage| stage.run.devices().map(|device| peaks[device]).fold(0.0, f64::max);
    Some(solution.stages.iter().map(|stage| of(stage) / chunks).collect())
}

fn timeline(problem: &Problem, solution: &Solution) -> Option<Timeline> {
    let step = planned(problem, solution)?;
    simulate(&step.workload, &step.order, &step.machine).ok()
}

/// Bytes at the peak of each device, as the simulator finds them.
fn device_peaks(problem: &Problem, timeline: &Timeline) -> Vec<f64> {
    positions(&problem.machine).into_iter().map(|device| timeline.memory[device].peak as f64).collect()
}

/// Simulated peak of the fullest device as a multiple of its memory, if above 1.
///
/// A plan far below its devices' memory by formula is not simulated.
pub(crate) fn excess(problem: &Problem, solution: &Solution) -> Option<f64> {
    if !may_exceed(problem, solution) {
        return None;
    }
    excess_of(problem, solution, &all_peaks(problem, solution)?)
}

/// Peak bytes of each device: those of the simulation that was kept, or of another one if devices were reordered.
fn all_peaks(problem: &Problem, solution: &Solution) -> Option<Vec<f64>> {
    let own = solution.peaks.clone().filter(|_| solution.order.is_empty());
    own.or_else(|| Some(device_peaks(problem, &timeline(problem, solution)?)))
}

fn excess_of(problem: &Problem, solution: &Solution, peaks: &[f64]) -> Option<f64> {
    let memory = |device: usize| problem.machine.devices[device].memory.0 as f64;
    let used = solution.stages.iter().flat_map(|stage| stage.run.devices());
    let most = used.map(|device| peaks[device] / memory(device)).fold(0.0, f64::max);
    (most > 1.0).then_some(most)
}

/// Raises stages' memory to the simulator's where that is more: the formula counts one value in transfer to the next stage, which
/// may have several replicas.
pub(crate) fn raise_memory(problem: &Problem, solution: &mut Solution) {
    scale_memory(problem, solution, 1.0);
}

/// Sets stages' memory to the simulator's, if the plan can be simulated: the formula counts all buffers at once, though they may
/// be used one after the other.
pub(crate) fn state_memory(problem: &Problem, solution: &mut Solution) {
    scale_memory(problem, solution, 0.0);
}

/// Scales the memory of the stages on a device to its simulated peak, but not below `least` times the formula.
fn scale_memory(problem: &Problem, solution: &mut Solution, least: f64) {
    let Some(peaks) = all_peaks(problem, solution) else { return };
    let held = solution.held(problem.machine.devices.len());
    let scale = |device: usize| if held[device] > 0.0 { peaks[device] / held[device] } else { 1.0 };
    let scales: Vec<f64> = solution
        .stages
        .iter()
        .map(|stage| solution.devices(stage).map(scale).fold(least, f64::max))
        .collect();
    solution.stages.iter_mut().zip(scales).for_each(|(stage, scale)| stage.score.memory *= scale);
}

/// Tells whether a device is so full by formula that the simulator might find it too full.
fn may_exceed(problem: &Problem, solution: &Solution) -> bool {
    let held = solution.held(problem.machine.devices.len());
    held.iter().zip(&problem.machine.devices).any(|(held, device)| *held > 0.5 * device.memory.0 as f64)
}

/// Returns a solution as the simulator's input; `None` if it is too large or has stages without work.
pub(crate) fn planned(problem: &Problem, solution: &Solution) -> Option<PlannedStep> {
    taken(problem, solution)?.ok()
}

/// The same, or why the simulator refuses it; `None` if it is too large.
pub(crate) fn taken(
    problem: &Problem,
    solution: &Solution,
) -> Option<Result<PlannedStep, simulator::PlanError>> {
    let n_devices: usize = solution.stages.iter().map(|stage| stage.run.count).sum();
    if !is_simulated(problem, solution.stages.len(), solution.micro_batches as usize, n_devices) {
        return None;
    }
    Some(parts(problem, solution).and_then(PlannedStep::of))
}

/// Tells whether a step is small enough to be simulated while planning.
pub(crate) fn is_simulated(
    problem: &Problem,
    n_stages: usize,
    micro_batches: usize,
    n_devices: usize,
) -> bool {
    let sizes = problem.training.limits.sizes;
    n_stages * micro_batches * 2 <= sizes.simulated_step && n_devices <= sizes.simulated_devices
}

/// Seconds of the objective, and the share of device time that is idle.
fn simulated(problem: &Problem, solution: &Solution) -> Option<(f64, f64)> {
    let step = planned(problem, solution)?;
    match solution.objective {
        Objective::Period(_) => {
            let period = step.period().ok()? as f64 * 1e-9;
            Some((period / f64::from(step.shape.micro_batches), 0.0))
        }
        Objective::Step(_) => {
            let seconds = step_time(&step.workload, &step.order, &step.machine).ok()? as f64 * 1e-9;
            Some((seconds, idle(solution, seconds)))
        }
    }
}

/// The share of device time in which nothing is computed.
fn idle(solution: &Solution, seconds: f64) -> f64 {
    let micro_batches = f64::from(solution.micro_batches);
    let stages = &solution.stages;
    let busy = stages.iter().map(|stage| stage.score.compute * stage.run.count as f64 * micro_batches);
    let mut devices: Vec<usize> = stages.iter().flat_map(|stage| stage.run.devices()).collect();
    devices.sort_unstable();
    devices.dedup();
    (1.0 - busy.sum::<f64>() / (seconds * devices.len() as f64)).clamp(0.0, 1.0)
}
