//! Scores a solution with the simulator, so that what is planned is what is simulated.
//!
//! Solvers use formulas; a formula takes transfers that hide behind compute for hidden, while a pipeline with few micro-batches in
//! flight may wait for them. The last word is the simulator's, where the step is small enough to ask.

use indexmap::IndexMap;
use schema::{Cluster, Device, DeviceType, Level, Link, ModelReference};
use simulator::{PlanOptions, Sends, from_plan, step_time};

use crate::{Machine, Objective, Problem, Solution, plan_file::to_plan};

/// The most operations of a step that are simulated while planning.
const OPERATIONS: usize = 300_000;
/// The most devices.
const DEVICES: usize = 256;

/// Takes the simulator's time for a solution's objective, where the simulator can tell.
pub(crate) fn settle(problem: &Problem, mut solution: Solution) -> Solution {
    let Some((seconds, bubble)) = simulated(problem, &solution) else { return solution };
    solution.objective = match solution.objective {
        Objective::Period(_) => Objective::Period(seconds),
        Objective::Step(_) => Objective::Step(seconds),
    };
    solution.bubble = solution.bubble.map(|_| bubble);
    solution.lower_bound = solution.lower_bound.min(seconds);
    solution
}

fn simulated(problem: &Problem, solution: &Solution) -> Option<(f64, f64)> {
    let n_devices: usize = solution.stages.iter().map(|stage| stage.run.count).sum();
    if solution.stages.len() * solution.micro_batches as usize * 2 > OPERATIONS || n_devices > DEVICES {
        return None;
    }
    let model = ModelReference { name: String::new(), digest: String::new() };
    let plan = to_plan(problem, solution, &cluster(&problem.machine), model, "");
    let sends = if problem.machine.overlaps { Sends::default() } else { Sends::Blocking };
    let step = from_plan(&plan, &PlanOptions { sends, ..PlanOptions::default() }).ok()?;
    match solution.objective {
        Objective::Period(_) => {
            let period = step.period().ok()? as f64 * 1e-9;
            Some((period / f64::from(step.shape.micro_batches), 0.0))
        }
        Objective::Step(_) => {
            let seconds = step_time(&step.workload, &step.order, &step.machine).ok()? as f64 * 1e-9;
            let busy: f64 = solution
                .stages
                .iter()
                .map(|stage| stage.score.compute * stage.run.count as f64 * f64::from(solution.micro_batches))
                .sum();
            let mut devices: Vec<usize> =
                solution.stages.iter().flat_map(|stage| stage.run.devices()).collect();
            devices.sort_unstable();
            devices.dedup();
            Some((seconds, (1.0 - busy / (seconds * devices.len() as f64)).clamp(0.0, 1.0)))
        }
    }
}

/// The machine as a cluster; speeds are in the stages' costs already.
fn cluster(machine: &Machine) -> Cluster {
    let mut types = IndexMap::new();
    let mut devices: IndexMap<&str, Device> = IndexMap::new();
    for device in &machine.devices {
        let type_ = format!("{} {}", device.memory.0, device.host_bandwidth.0);
        types.entry(type_.clone()).or_insert_with(|| DeviceType {
            memory: device.memory,
            memory_bandwidth: schema::BytesPerSecond(1e12),
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
