//! Writes a solution as `plan.yaml`.

use schema::{
    Bytes, Cluster, DeviceMemory, Execution, ModelReference, PLAN_VERSION, Plan, PlanStage, PlanTie,
    Predicted, Seconds, Transfer,
};

use crate::{
    problem::Problem,
    simulate::parts,
    solution::{Objective, Solution},
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
    let device = |&device: &usize| problem.machine.devices[device].name.clone();
    let stages =
        solution.stages.iter().zip(parts::stages(problem, solution)).map(|(stage, part)| PlanStage {
            blocks: stage.blocks.iter().flat_map(paths).collect(),
            devices: part.devices.iter().map(device).collect(),
            recompute: stage.score.recompute.iter().flat_map(paths).collect(),
            recompute_light: stage.score.light.iter().flat_map(paths).collect(),
            recompute_unit: stage.score.recompute_unit,
            offload: stage.score.offload.iter().flat_map(paths).collect(),
            tensor_parallel: None,
            layers: part.layers,
            cost: part.cost,
            band: None,
        });
    let transfers = parts::transfers(problem, solution).into_iter().map(|transfer| Transfer {
        from: transfer.from as u32,
        to: transfer.to as u32,
        forward: Bytes(transfer.forward),
        backward: Bytes(transfer.backward),
    });
    let ties = parts::ties(problem, solution).into_iter().map(|tie| PlanTie {
        stages: tie.stages.into_iter().map(|stage| stage as u32).collect(),
        parameters: Bytes(tie.bytes),
    });
    let peaks = solution.held(problem.machine.devices.len());
    let memory = problem.machine.devices.iter().zip(&peaks).map(|(device, &peak)| DeviceMemory {
        device: device.name.clone(),
        peak: Bytes(peak.round() as u64),
        limit: device.memory,
    });
    let execution = parts::execution(problem, solution);
    let mut cluster = cluster.clone();
    let charged = |overhead: Seconds| Some(overhead).filter(|overhead| overhead.0 > 0.0);
    for type_ in cluster.types.values_mut() {
        type_.host_overhead = charged(problem.training.host_overhead);
        type_.split_overhead = charged(problem.training.split_overhead);
    }
    let (step, period) = match solution.objective {
        Objective::Step(seconds) => (Some(Seconds(seconds)), None),
        Objective::Period(seconds) => (None, Some(Seconds(seconds))),
    };
    Plan {
        kind: "plan".to_string(),
        version: PLAN_VERSION,
        written_by: written_by.to_string(),
        model,
        cluster,
        strategy: solution.made_by.name().to_string(),
        schedule: solution.schedule.name().to_string(),
        micro_batches: solution.micro_batches,
        micro_batch_size: None,
        stages: stages.collect(),
        transfers: transfers.collect(),
        cuts: indexmap::IndexMap::new(),
        operators: indexmap::IndexMap::new(),
        sequence_parallel: None,
        context_parallel: None,
        expert_parallel: None,
        inference: problem.training.inference,
        assumed: None,
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
