//! Scores a solution with the simulator, so that what is planned is what is simulated.
//!
//! Solvers use formulas; a formula takes transfers that hide behind compute for hidden, while a pipeline with few micro-batches in
//! flight may wait for them. The last word is the simulator's, where the step is small enough to ask.

use indexmap::{IndexMap, IndexSet};
use schema::{Cluster, Device, DeviceType, Level, Link, ModelReference, OffloadMode};
use simulator::{PlanOptions, PlannedStep, Timeline, from_plan, simulate, simulate_below, step_time};

use crate::{Machine, MachineDevice, Objective, Problem, Solution, SolutionStage, plan_file::write::to_plan};

/// The most operations of a step that are simulated while planning.
const OPERATIONS: usize = 300_000;
/// The most devices.
const DEVICES: usize = 256;

/// Takes the simulator's time for a solution's objective, where the simulator can tell.
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

/// Settles a step and tells its [`excess`]: of one simulation, where memory has to be looked at.
///
/// `None` where the simulator's time is not below so many seconds: then nobody asks for its memory.
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

/// Makes seconds and bubble those of the simulator.
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
    // Each name is one device of the simulator's.
    let devices = &problem.machine.devices;
    let names: IndexSet<&str> = devices.iter().map(|device| device.name.as_str()).collect();
    let at = |device: &MachineDevice| names.get_index_of(device.name.as_str()).unwrap_or(0);
    devices.iter().map(|device| timeline.memory[at(device)].peak as f64).collect()
}

/// How many times as much as it has the fullest device needs in the simulation, where that is more than once.
///
/// What is far below a device's memory by formula is not simulated.
pub(crate) fn excess(problem: &Problem, solution: &Solution) -> Option<f64> {
    if !may_exceed(problem, solution) {
        return None;
    }
    excess_of(problem, solution, &all_peaks(problem, solution)?)
}

/// Bytes at the peak of each device: those that are known, where devices stand in the order of the simulation, or those of another one.
fn all_peaks(problem: &Problem, solution: &Solution) -> Option<Vec<f64>> {
    let known = solution.peaks.clone().filter(|_| solution.order.is_empty());
    known.or_else(|| Some(device_peaks(problem, &timeline(problem, solution)?)))
}

fn excess_of(problem: &Problem, solution: &Solution, peaks: &[f64]) -> Option<f64> {
    let memory = |device: usize| problem.machine.devices[device].memory.0 as f64;
    let used = solution.stages.iter().flat_map(|stage| stage.run.devices());
    let most = used.map(|device| peaks[device] / memory(device)).fold(0.0, f64::max);
    (most > 1.0).then_some(most)
}

/// Raises what stages are said to hold where the simulator finds more: formulas think of one value at a time on its way to the
/// next stage, which may have several replicas.
pub(crate) fn raise_memory(problem: &Problem, solution: &mut Solution) {
    scale_memory(problem, solution, 1.0);
}

/// Says of stages that they hold what the simulator finds, where it can tell: formulas count everything that may be there at once,
/// though it may come one after the other.
pub(crate) fn state_memory(problem: &Problem, solution: &mut Solution) {
    scale_memory(problem, solution, 0.0);
}

/// Makes what the stages of a device hold together its peak in the simulation, but no less than a share of what formulas say.
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

/// A solution as the simulator takes it; `None` where it is too large or has stages without work.
pub(crate) fn planned(problem: &Problem, solution: &Solution) -> Option<PlannedStep> {
    taken(problem, solution)?.ok()
}

/// The same, or why the simulator does not take it; `None` where it is too large to ask.
pub(crate) fn taken(
    problem: &Problem,
    solution: &Solution,
) -> Option<Result<PlannedStep, simulator::PlanError>> {
    let n_devices: usize = solution.stages.iter().map(|stage| stage.run.count).sum();
    if !is_simulated(solution.stages.len(), solution.micro_batches as usize, n_devices) {
        return None;
    }
    let model = ModelReference { name: String::new(), digest: String::new() };
    let plan = to_plan(problem, solution, &cluster(&problem.machine), model, "");
    Some(from_plan(&plan, &PlanOptions::default()))
}

/// Tells whether a step is small enough to be simulated while planning.
pub(crate) fn is_simulated(n_stages: usize, micro_batches: usize, n_devices: usize) -> bool {
    n_stages * micro_batches * 2 <= OPERATIONS && n_devices <= DEVICES
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

/// The machine as a cluster; speeds are in the stages' costs already.
pub(crate) fn cluster(machine: &Machine) -> Cluster {
    let mut types = IndexMap::new();
    let mut devices: IndexMap<&str, Device> = IndexMap::new();
    for device in &machine.devices {
        let type_ = format!("{} {} {}", device.memory.0, device.host_bandwidth.0, device.memory_bandwidth.0);
        types.entry(type_.clone()).or_insert_with(|| DeviceType {
            memory: device.memory,
            memory_bandwidth: device.memory_bandwidth,
            host_bandwidth: Some(device.host_bandwidth),
            ..DeviceType::default()
        });
        let place = device.place.clone();
        devices.entry(&device.name).or_insert_with(|| Device { name: device.name.clone(), type_, place });
    }
    let levels = machine.levels.iter().enumerate().map(|(index, level)| Level {
        name: index.to_string(),
        bandwidth: level.bandwidth,
        latency: level.latency,
    });
    let links = machine.links.iter().map(|(from, to, level)| Link {
        from: from.clone(),
        to: to.clone(),
        bandwidth: level.bandwidth,
        latency: level.latency,
    });
    Cluster {
        types,
        devices: devices.into_values().collect(),
        levels: levels.collect(),
        links: links.collect(),
    }
}
