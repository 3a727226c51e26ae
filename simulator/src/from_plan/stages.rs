//! A plan's stages, what crosses between them and what they share, as numbers.

use schema::{Bytes, BytesPerSecond, Plan, Seconds};

use super::{
    PlanError,
    numbers::{nanoseconds, rate},
};
use crate::{
    machine::Machine,
    workload::{Layer, Stage, StageMemory, Tie, Transfer},
};

pub(super) fn stages(
    plan: &Plan,
    stage_devices: &[Vec<usize>],
    machine: &Machine,
) -> Result<Vec<Stage>, PlanError> {
    let mut stages = Vec::with_capacity(plan.stages.len());
    for (idx, planned) in plan.stages.iter().enumerate() {
        let cost = &planned.cost;
        // Costs are for the stage's own devices; the machine scales them by speed, so they are given at speed 1.
        let first = stage_devices[idx][0];
        let speed = machine.devices[first].speed;
        let time =
            |seconds: Seconds, name: &str| nanoseconds(seconds * speed, || format!("{name} of stage {idx}"));
        let forward = time(cost.forward, "forward")?;
        let input_gradient = time(cost.input_gradient, "input_gradient")?;
        let weight_gradient = time(cost.weight_gradient, "weight_gradient")?;
        let type_ = &plan.cluster.types[&plan.cluster.devices[first].type_];
        // The step reads parameters, gradients and state, and writes parameters and state.
        let touched =
            Bytes(cost.parameters.0.saturating_mul(3).saturating_add(cost.optimizer.0.saturating_mul(2)));
        let bandwidth = BytesPerSecond(rate(type_.memory_bandwidth, || {
            "the memory bandwidth of a device type".to_string()
        })?);
        stages.push(Stage {
            forward,
            input_gradient,
            weight_gradient,
            recompute: 0,
            optimizer_step: time(touched / bandwidth, "the optimizer step")?,
            memory: StageMemory {
                parameters: cost.parameters.0,
                gradients: cost.parameters.0,
                optimizer: cost.optimizer.0,
                older_versions: 0,
                activations: cost.activations.0,
                recomputed: cost.recomputed.0,
                workspace: cost.workspace.0,
                // A copy that stays on the device is no offload.
                offloaded: cost.offloaded.0.min(cost.activations.0),
            },
            tensor_parallel: None,
            layers: layers_of(idx, planned)?,
        });
    }
    // A stage of views and dropouts may take none; a plan without any has no times in it.
    if stages
        .iter()
        .all(|stage| stage.forward == 0 && stage.input_gradient == 0 && stage.weight_gradient == 0)
    {
        Err(PlanError::NoCost)
    } else {
        Ok(stages)
    }
}

fn layers_of(idx: usize, planned: &schema::PlanStage) -> Result<Vec<Layer>, PlanError> {
    let layer = |layer: &schema::LayerCost| {
        Ok(Layer {
            forward: nanoseconds(layer.forward, || format!("forward of a layer of stage {idx}"))?,
            backward: nanoseconds(layer.backward, || format!("backward of a layer of stage {idx}"))?,
            gradients: layer.gradients.0,
        })
    };
    let layers = planned.layers.iter().map(layer).collect::<Result<Vec<_>, PlanError>>()?;
    let gradients = layers.iter().fold(0, |sum: u64, layer| sum.saturating_add(layer.gradients));
    if !layers.is_empty() && gradients != planned.cost.parameters.0 {
        let parameters = planned.cost.parameters;
        return Err(PlanError::Layers { stage: idx, layers: Bytes(gradients), parameters });
    }
    Ok(layers)
}

pub(super) fn transfers(plan: &Plan) -> Result<Vec<Transfer>, PlanError> {
    let n_stages = plan.stages.len();
    let transfer = |transfer: &schema::Transfer| {
        let (from, to) = (transfer.from as usize, transfer.to as usize);
        if from >= to || to >= n_stages {
            return Err(PlanError::Transfer { from: transfer.from, to: transfer.to, n_stages });
        }
        Ok(Transfer { from, to, forward: transfer.forward.0, backward: transfer.backward.0 })
    };
    plan.transfers.iter().map(transfer).collect()
}

pub(super) fn ties(plan: &Plan) -> Result<Vec<Tie>, PlanError> {
    let n_stages = plan.stages.len();
    let tie = |tie: &schema::PlanTie| match tie.stages.iter().find(|stage| **stage as usize >= n_stages) {
        Some(&stage) => Err(PlanError::Tie { stage, n_stages }),
        None => {
            let stages = tie.stages.iter().map(|stage| *stage as usize).collect();
            Ok(Tie { stages, bytes: tie.parameters.0 })
        }
    };
    plan.ties.iter().map(tie).collect()
}

/// Cuts every stage into equal parts; what crosses a new cut is taken to be what leaves the stage.
pub(super) fn cut(stages: &[Stage], transfers: &[Transfer], parts: usize) -> (Vec<Stage>, Vec<Transfer>) {
    let n = parts as u64;
    let part = |stage: &Stage| {
        let memory = stage.memory;
        Stage {
            forward: stage.forward / n,
            input_gradient: stage.input_gradient / n,
            weight_gradient: stage.weight_gradient / n,
            recompute: stage.recompute / n,
            optimizer_step: stage.optimizer_step / n,
            memory: StageMemory {
                parameters: memory.parameters / n,
                gradients: memory.gradients / n,
                optimizer: memory.optimizer / n,
                older_versions: memory.older_versions / n,
                activations: memory.activations / n,
                recomputed: memory.recomputed / n,
                workspace: memory.workspace,
                offloaded: memory.offloaded / n,
            },
            tensor_parallel: stage.tensor_parallel.map(|group| crate::workload::TensorParallel {
                per_pass: group.per_pass.div_ceil(parts as u32),
                ..group
            }),
            // Which layers fall into which part is not known: their gradients appear evenly.
            layers: Vec::new(),
        }
    };
    let cut_stages = stages.iter().flat_map(|stage| vec![part(stage); parts]).collect();
    let mut all: Vec<Transfer> = transfers
        .iter()
        .map(|transfer| Transfer {
            from: transfer.from * parts + parts - 1,
            to: transfer.to * parts,
            ..*transfer
        })
        .collect();
    for stage in 0..stages.len() {
        let near = transfers.iter().filter(|transfer| transfer.from == stage || transfer.to == stage);
        let (forward, backward) =
            near.fold((0, 0), |most, transfer| (most.0.max(transfer.forward), most.1.max(transfer.backward)));
        for inner in 1..parts {
            let to = stage * parts + inner;
            all.push(Transfer { from: to - 1, to, forward, backward });
        }
    }
    (cut_stages, all)
}
