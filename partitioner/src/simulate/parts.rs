//! A solution as the simulator's input: costs of stages, transfers between them, tied parameters.
//!
//! Searches have it simulated as it stands here; `plan_file::write` puts the same numbers into a file. O(blocks + values) and
//! O(devices · levels) for the machine.

use std::collections::{HashMap, HashSet};

use indexmap::IndexSet;
use schema::{Bytes, Execution, LayerCost, RecomputeUnit, Seconds, StageCost};
use simulator::{Device, PartDevice, PartStage, PlanError, PlanParts, Tie, Transfer};

use crate::{
    dag::cut_states::States,
    problem::{Again, Machine, Problem},
    solution::{Solution, SolutionStage},
};

/// Returns a solution as the simulator's input.
///
/// # Errors
/// When a link has an impossible bandwidth or latency.
pub(crate) fn parts(problem: &Problem, solution: &Solution) -> Result<PlanParts, PlanError> {
    let positions = positions(&problem.machine);
    let mut stages = stages(problem, solution);
    stages.iter_mut().flat_map(|stage| &mut stage.devices).for_each(|device| *device = positions[*device]);
    let (mut machine, devices) = machine(&problem.machine, &positions)?;
    let nanoseconds = |seconds: Seconds| (seconds.0 * 1e9).round() as u64;
    for device in &mut machine.devices {
        device.host_overhead = nanoseconds(problem.training.host_overhead);
        device.split_overhead = nanoseconds(problem.training.split_overhead);
    }
    Ok(PlanParts {
        schedule: solution.schedule,
        micro_batches: solution.micro_batches,
        machine,
        devices,
        stages,
        transfers: transfers(problem, solution),
        ties: ties(problem, solution),
        execution: execution(problem, solution),
        is_inference: problem.training.inference.is_some(),
    })
}

/// Returns the position of each device among the distinct names: a device is listed once for each of its chunks.
pub(crate) fn positions(machine: &Machine) -> Vec<usize> {
    let mut names: IndexSet<&str> = IndexSet::new();
    machine.devices.iter().map(|device| names.insert_full(&device.name).0).collect()
}

/// Returns the machine; speeds are in the stages' costs already.
fn machine(
    machine: &Machine,
    positions: &[usize],
) -> Result<(simulator::Machine, Vec<PartDevice>), PlanError> {
    let mut joined = simulator::Machine::default();
    let mut devices: Vec<PartDevice> = Vec::new();
    for (device, &position) in machine.devices.iter().zip(positions) {
        if position < devices.len() {
            continue;
        }
        joined.devices.push(Device {
            memory: Some(device.memory.0),
            host_bandwidth: device.host_bandwidth.0,
            place: device.place.clone(),
            ..Device::default()
        });
        let (name, memory_bandwidth) = (device.name.clone(), device.memory_bandwidth);
        devices.push(PartDevice { name, type_: 0, memory_bandwidth });
    }
    for (index, level) in machine.levels.iter().enumerate() {
        joined.levels.push(PlanParts::link(level.bandwidth, level.latency, || format!("`{index}`"))?);
    }
    let position = |name: &str| devices.iter().position(|device| device.name == name);
    for (from, to, level) in &machine.links {
        let (Some(one), Some(other)) = (position(from), position(to)) else {
            return Err(PlanError::UnknownLink { from: from.clone(), to: to.clone() });
        };
        let name = || format!("the link `{from}` to `{to}`");
        joined.links.insert((one, other), PlanParts::link(level.bandwidth, level.latency, name)?);
    }
    Ok((joined, devices))
}

/// Returns the stages, on devices by their position in the machine.
pub(crate) fn stages(problem: &Problem, solution: &Solution) -> Vec<PartStage> {
    let flow = Flow::new(problem);
    let stage = |stage: &SolutionStage| {
        let devices: Vec<usize> = solution.devices(stage).collect();
        // A stage is as fast as the slowest of its devices.
        let speeds = devices.iter().map(|&device| problem.machine.devices[device].speed);
        let slowest = speeds.fold(f64::INFINITY, f64::min);
        PartStage {
            devices,
            cost: stage_cost(problem, &flow, stage, slowest),
            layers: layers(problem, &flow, stage, slowest),
            tensor_parallel: None,
            n_blocks: stage.blocks.len(),
        }
    };
    solution.stages.iter().map(stage).collect()
}

/// Returns the bytes from each stage to the next: every stage that a skip connection crosses hands it on.
pub(crate) fn transfers(problem: &Problem, solution: &Solution) -> Vec<Transfer> {
    let order: Vec<usize> = solution.stages.iter().flat_map(|stage| stage.blocks.iter().copied()).collect();
    let states = States::line(problem, order);
    let mut cut = 0;
    let transfer = |(from, stage): (usize, &SolutionStage)| {
        cut += stage.blocks.len();
        let (forward, backward) = (states.crossing[cut] as u64, states.crossing_back[cut] as u64);
        Transfer { from, to: from + 1, forward, backward }
    };
    let last = solution.stages.len().saturating_sub(1);
    solution.stages[..last].iter().enumerate().map(transfer).collect()
}

/// Returns the parameters that several stages hold.
pub(crate) fn ties(problem: &Problem, solution: &Solution) -> Vec<Tie> {
    let tie = |tie: &crate::Tie| {
        let holds = |stage: &SolutionStage| tie.blocks.iter().any(|block| stage.blocks.contains(block));
        let stages: Vec<usize> =
            (0..solution.stages.len()).filter(|&stage| holds(&solution.stages[stage])).collect();
        (stages.len() > 1).then_some(Tie { stages, bytes: tie.parameters.0 })
    };
    problem.ties.iter().filter_map(tie).collect()
}

/// Returns how a solution is carried out beyond its stages.
pub(crate) fn execution(problem: &Problem, solution: &Solution) -> Execution {
    let offload = solution.execution.offload.filter(|_| solution.offloads());
    let blocking_sends = (!problem.machine.overlaps).then_some(true);
    Execution { offload, blocking_sends, ..solution.execution }
}

/// Bytes of one micro-batch by block: outputs that others need for their gradients, and all inputs.
struct Flow {
    made: Vec<u64>,
    taken: Vec<u64>,
}

impl Flow {
    fn new(problem: &Problem) -> Self {
        let n_blocks = problem.blocks.len();
        let mut flow = Self { made: vec![0; n_blocks], taken: vec![0; n_blocks] };
        for value in &problem.values {
            if let Some(from) = value.from.filter(|_| value.backward.0 > 0) {
                flow.made[from] = flow.made[from].saturating_add(value.forward.0);
            }
            value.to.iter().for_each(|&to| flow.taken[to] = flow.taken[to].saturating_add(value.forward.0));
        }
        flow
    }
}

/// The layers of a stage on several devices: when each block's gradients exist, and what it makes.
///
/// A tied parameter belongs to the first of its blocks. Nothing for a stage on one device, which exchanges nothing, or without
/// training.
fn layers(problem: &Problem, flow: &Flow, stage: &SolutionStage, speed: f64) -> Vec<LayerCost> {
    if stage.run.count < 2 || problem.training.inference.is_some() {
        return Vec::new();
    }
    let mut tied: HashMap<usize, u64> = HashMap::new();
    for tie in &problem.ties {
        if let Some(first) = stage.blocks.iter().find(|block| tie.blocks.contains(block)) {
            *tied.entry(*first).or_default() += tie.parameters.0;
        }
    }
    let recomputed: HashMap<usize, Again> = stage.score.again(problem).collect();
    let layer = |&index: &usize| {
        let block = &problem.blocks[index];
        let forward_again = recomputed.get(&index).map_or(0.0, |again| again.forward.0);
        LayerCost {
            forward: Seconds(block.forward.0 / speed),
            backward: Seconds((block.input_gradient.0 + block.weight_gradient.0 + forward_again) / speed),
            gradients: Bytes(block.parameters.0 + tied.get(&index).copied().unwrap_or(0)),
            output: Bytes(flow.made[index]),
        }
    };
    stage.blocks.iter().map(layer).collect()
}

/// Costs of one micro-batch on one replica.
fn stage_cost(problem: &Problem, flow: &Flow, stage: &SolutionStage, speed: f64) -> StageCost {
    let sum = |field: &dyn Fn(&crate::Block) -> f64| {
        stage.blocks.iter().map(|&block| field(&problem.blocks[block])).sum::<f64>()
    };
    let bytes = |field: &dyn Fn(&crate::Block) -> u64| {
        Bytes(stage.blocks.iter().map(|&block| field(&problem.blocks[block])).sum())
    };
    let forward_again: f64 = stage.score.again(problem).map(|(_, again)| again.forward.0).sum();
    let gone: HashSet<usize> = stage.score.recompute.iter().chain(&stage.score.offload).copied().collect();
    let offloaded: u64 = stage.score.offload.iter().map(|&block| problem.blocks[block].activations.0).sum();
    let held = stage.blocks.iter().filter(|block| !gone.contains(block));
    let ties: u64 = problem
        .ties
        .iter()
        .filter(|tie| tie.blocks.iter().any(|block| stage.blocks.contains(block)))
        .map(|tie| tie.parameters.0)
        .sum();
    let parameters = bytes(&|block| block.parameters.0) + Bytes(ties);
    let bytes_kept = |(block, again): (usize, Again)| {
        (block, flow.taken[block] + problem.blocks[block].kept.0 + again.held.0)
    };
    let kept: HashMap<usize, u64> = stage.score.again(problem).map(bytes_kept).collect();
    let recomputed = || stage.score.again(problem).map(|(_, again)| again.once_more.0);
    let (inputs, recomputed): (u64, u64) = match stage.score.recompute_unit {
        RecomputeUnit::Block => (kept.values().sum(), recomputed().max().unwrap_or(0)),
        RecomputeUnit::Stage => (given(problem, stage), recomputed().sum()),
    };
    let activations =
        held.map(|&block| problem.blocks[block].activations.0).sum::<u64>() + inputs + offloaded;
    StageCost {
        // On top of what is kept until then.
        waiting: Bytes(bytes(&|block| block.waiting.0).0.saturating_sub(activations)),
        forward: Seconds(sum(&|block| block.forward.0) / speed),
        input_gradient: Seconds((sum(&|block| block.input_gradient.0) + forward_again) / speed),
        weight_gradient: Seconds(sum(&|block| block.weight_gradient.0) / speed),
        once: Seconds(sum(&|block| block.once.0)),
        parameters,
        optimizer: Bytes((parameters.0 as f64 * problem.training.optimizer_factor) as u64),
        activations: Bytes(activations),
        workspace: Bytes(
            stage.blocks.iter().map(|&block| problem.blocks[block].workspace.0).max().unwrap_or(0),
        ),
        recomputed: Bytes(recomputed),
        offloaded: Bytes(offloaded),
    }
}

/// Bytes of one micro-batch of a stage's inputs, each value once, and of activations that its blocks keep whatever is recomputed.
fn given(problem: &Problem, stage: &SolutionStage) -> u64 {
    let own: HashSet<usize> = stage.blocks.iter().copied().collect();
    let is_given = |value: &&crate::Value| {
        value.from.is_none_or(|from| !own.contains(&from)) && value.to.iter().any(|to| own.contains(to))
    };
    let values: u64 = problem.values.iter().filter(is_given).map(|value| value.forward.0).sum();
    values + stage.blocks.iter().map(|&block| problem.blocks[block].kept.0).sum::<u64>()
}
