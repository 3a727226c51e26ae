//! A plan's stages in whole nanoseconds and bytes.

use schema::{Bytes, BytesPerSecond, Seconds};

use super::{
    PlanError,
    numbers::{nanoseconds, rate},
    parts::{PartStage, PlanParts},
};
use crate::workload::{Layer, Stage, StageMemory, Transfer};

pub(super) fn stages(parts: &PlanParts) -> Result<Vec<Stage>, PlanError> {
    let mut stages = Vec::with_capacity(parts.stages.len());
    for (idx, part) in parts.stages.iter().enumerate() {
        let cost = &part.cost;
        // Costs are for the stage's own devices; the machine scales them by speed, so they are given at speed 1.
        let first = part.devices[0];
        let speed = parts.machine.devices[first].speed;
        let time =
            |seconds: Seconds, name: &str| nanoseconds(seconds * speed, || format!("{name} of stage {idx}"));
        let forward = time(cost.forward, "forward")?;
        let input_gradient = time(cost.input_gradient, "input_gradient")?;
        let weight_gradient = time(cost.weight_gradient, "weight_gradient")?;
        // The step reads parameters, gradients and state, and writes parameters and state.
        let touched =
            Bytes(cost.parameters.0.saturating_mul(3).saturating_add(cost.optimizer.0.saturating_mul(2)));
        let bandwidth = BytesPerSecond(rate(parts.devices[first].memory_bandwidth, || {
            "the memory bandwidth of a device type".to_string()
        })?);
        // Gradients of a pass and those before it are read, their sum is written.
        let added_up = Bytes(cost.parameters.0.saturating_mul(schema::ACCUMULATION_ACCESSES));
        stages.push(Stage {
            forward,
            input_gradient,
            weight_gradient,
            accumulation: time(added_up / bandwidth, "the sum of gradients")?,
            recompute: 0,
            // Sums over the devices of a group come before it, and take as long on any.
            optimizer_step: time(touched / bandwidth + cost.once, "the optimizer step")?,
            memory: StageMemory {
                parameters: cost.parameters.0,
                gradients: cost.parameters.0,
                optimizer: cost.optimizer.0,
                older_versions: 0,
                activations: cost.activations.0,
                recomputed: cost.recomputed.0,
                waiting: cost.waiting.0,
                workspace: cost.workspace.0,
                // A copy that stays on the device is not an offload.
                offloaded: cost.offloaded.0.min(cost.activations.0),
            },
            tensor_parallel: None,
            layers: layers_of(idx, part)?,
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

fn layers_of(idx: usize, part: &PartStage) -> Result<Vec<Layer>, PlanError> {
    let layer = |layer: &schema::LayerCost| {
        Ok(Layer {
            forward: nanoseconds(layer.forward, || format!("forward of a layer of stage {idx}"))?,
            backward: nanoseconds(layer.backward, || format!("backward of a layer of stage {idx}"))?,
            gradients: layer.gradients.0,
        })
    };
    let layers = part.layers.iter().map(layer).collect::<Result<Vec<_>, PlanError>>()?;
    let gradients = layers.iter().fold(0, |sum: u64, layer| sum.saturating_add(layer.gradients));
    if !layers.is_empty() && gradients != part.cost.parameters.0 {
        let parameters = part.cost.parameters;
        return Err(PlanError::Layers { stage: idx, layers: Bytes(gradients), parameters });
    }
    Ok(layers)
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
            accumulation: stage.accumulation / n,
            recompute: stage.recompute / n,
            optimizer_step: stage.optimizer_step / n,
            memory: StageMemory {
                parameters: memory.parameters / n,
                gradients: memory.gradients / n,
                optimizer: memory.optimizer / n,
                older_versions: memory.older_versions / n,
                activations: memory.activations / n,
                recomputed: memory.recomputed / n,
                waiting: memory.waiting / n,
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
