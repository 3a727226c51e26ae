//! Writes a solution as `plan.yaml`.

use std::collections::{HashMap, HashSet};

use schema::{
    Bytes, Cluster, DeviceMemory, Execution, LayerCost, ModelReference, PLAN_VERSION, Plan, PlanStage,
    PlanTie, Predicted, RecomputeUnit, Seconds, StageCost, Transfer,
};

use crate::{
    dag::cut_states::States,
    problem::Problem,
    solution::{Objective, Solution, SolutionStage},
};

/// Makes the file of a solution.
pub fn to_plan(
    problem: &Problem,
    solution: &Solution,
    cluster: &Cluster,
    model: ModelReference,
    written_by: &str,
) -> Plan {
    let paths = |&block: &usize| problem.blocks[block].paths().cloned();
    let device = |device: usize| problem.machine.devices[device].name.clone();
    let order: Vec<usize> = solution.stages.iter().flat_map(|stage| stage.blocks.iter().copied()).collect();
    let states = States::line(problem, order);
    // A stage is as fast as the slowest of its devices.
    let slowest = |stage: &SolutionStage| {
        let speeds = solution.devices(stage).map(|device| problem.machine.devices[device].speed);
        speeds.fold(f64::INFINITY, f64::min)
    };
    let mut cuts = vec![0];
    for stage in &solution.stages {
        cuts.push(cuts[cuts.len() - 1] + stage.blocks.len());
    }
    let flow = Flow::new(problem);
    let stages = solution.stages.iter().map(|stage| PlanStage {
        blocks: stage.blocks.iter().flat_map(paths).collect(),
        devices: solution.devices(stage).map(device).collect(),
        recompute: stage.score.recompute.iter().flat_map(paths).collect(),
        recompute_unit: stage.score.recompute_unit,
        offload: stage.score.offload.iter().flat_map(paths).collect(),
        tensor_parallel: None,
        layers: layers(problem, &flow, stage, slowest(stage)),
        cost: stage_cost(problem, &flow, stage, slowest(stage)),
        band: None,
    });
    // A skip is handed on by every stage that it crosses.
    let transfers = (1..solution.stages.len()).map(|stage| Transfer {
        from: stage as u32 - 1,
        to: stage as u32,
        forward: Bytes(states.crossing[cuts[stage]] as u64),
        backward: Bytes(states.crossing_back[cuts[stage]] as u64),
    });
    let ties = problem.ties.iter().filter_map(|tie| {
        let holds = |stage: &SolutionStage| tie.blocks.iter().any(|block| stage.blocks.contains(block));
        let stages = (0..solution.stages.len()).filter(|&stage| holds(&solution.stages[stage]));
        let stages: Vec<u32> = stages.map(|stage| stage as u32).collect();
        (stages.len() > 1).then_some(PlanTie { stages, parameters: tie.parameters })
    });
    let peaks = solution.held(problem.machine.devices.len());
    let memory = problem.machine.devices.iter().zip(&peaks).map(|(device, &peak)| DeviceMemory {
        device: device.name.clone(),
        peak: Bytes(peak.round() as u64),
        limit: device.memory,
    });
    let offload = solution.execution.offload.filter(|_| solution.offloads());
    let blocking_sends = (!problem.machine.overlaps).then_some(true);
    let execution = Execution { offload, blocking_sends, ..solution.execution };
    let (step, period) = match solution.objective {
        Objective::Step(seconds) => (Some(Seconds(seconds)), None),
        Objective::Period(seconds) => (None, Some(Seconds(seconds))),
    };
    Plan {
        kind: "plan".to_string(),
        version: PLAN_VERSION,
        written_by: written_by.to_string(),
        model,
        cluster: cluster.clone(),
        strategy: solution.made_by.name().to_string(),
        schedule: solution.schedule.name().to_string(),
        micro_batches: solution.micro_batches,
        micro_batch_size: None,
        stages: stages.collect(),
        transfers: transfers.collect(),
        cuts: indexmap::IndexMap::new(),
        inference: problem.training.inference,
        constraints: None,
        ties: ties.collect(),
        execution: (execution != Execution::default()).then_some(execution),
        predicted: Predicted {
            step,
            period,
            lower_bound: Some(Seconds(solution.lower_bound)),
            bubble: solution.bubble,
            memory: memory.collect(),
            ..Predicted::default()
        },
    }
}

/// Bytes of one micro-batch by block: what it makes for others to be trained by, and all that it takes.
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
/// Parameters of several blocks are with the first of them. A stage on one device has nobody to exchange with, and one that is not
/// trained nothing.
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
    let recomputed: HashSet<usize> = stage.score.recompute.iter().copied().collect();
    let layer = |&index: &usize| {
        let block = &problem.blocks[index];
        let again = if recomputed.contains(&index) { block.forward.0 } else { 0.0 };
        LayerCost {
            forward: Seconds(block.forward.0 / speed),
            backward: Seconds((block.input_gradient.0 + block.weight_gradient.0 + again) / speed),
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
    let forward_again: f64 = stage.score.recompute.iter().map(|&block| problem.blocks[block].forward.0).sum();
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
    let inputs = stage.score.recompute.iter().map(|&block| flow.taken[block] + problem.blocks[block].kept.0);
    let once_more = |block: &crate::Block| block.activations.0.saturating_sub(block.kept.0);
    let again = || stage.score.recompute.iter().map(|&block| once_more(&problem.blocks[block]));
    let (inputs, recomputed): (u64, u64) = match stage.score.recompute_unit {
        RecomputeUnit::Block => (inputs.sum(), again().max().unwrap_or(0)),
        RecomputeUnit::Stage => (given(problem, stage), again().sum()),
    };
    StageCost {
        forward: Seconds(sum(&|block| block.forward.0) / speed),
        input_gradient: Seconds((sum(&|block| block.input_gradient.0) + forward_again) / speed),
        weight_gradient: Seconds(sum(&|block| block.weight_gradient.0) / speed),
        parameters,
        optimizer: Bytes((parameters.0 as f64 * problem.training.optimizer_factor) as u64),
        activations: Bytes(
            held.map(|&block| problem.blocks[block].activations.0).sum::<u64>() + inputs + offloaded,
        ),
        workspace: Bytes(
            stage.blocks.iter().map(|&block| problem.blocks[block].workspace.0).max().unwrap_or(0),
        ),
        recomputed: Bytes(recomputed),
        offloaded: Bytes(offloaded),
    }
}

/// Bytes of one micro-batch that a stage is given, each value once, and that its blocks keep whatever is computed again.
fn given(problem: &Problem, stage: &SolutionStage) -> u64 {
    let own: HashSet<usize> = stage.blocks.iter().copied().collect();
    let is_given = |value: &&crate::Value| {
        value.from.is_none_or(|from| !own.contains(&from)) && value.to.iter().any(|to| own.contains(to))
    };
    let values: u64 = problem.values.iter().filter(is_given).map(|value| value.forward.0).sum();
    values + stage.blocks.iter().map(|&block| problem.blocks[block].kept.0).sum::<u64>()
}
