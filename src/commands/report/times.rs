//! Predicted seconds of each operator on the device that its stage runs on.

use std::collections::HashMap;

use graph::{ModelGraph, OperatorCosts};
use schema::Plan;

use crate::commands::plan::costs;

/// Predicts operators, forward and backward, each on its stage's first device; those between stages' blocks on the
/// cluster's first.
///
/// # Errors
/// Says whose times the plan believes, where they are others than these: a page must not mix the two.
pub fn of_plan(
    plan: &Plan,
    stages: &[Option<u32>],
    graph: &ModelGraph,
    operators: &OperatorCosts,
) -> Result<Vec<f64>, String> {
    let type_of = |name: &str| {
        let device = plan.cluster.devices.iter().find(|device| device.name == name);
        device.map(|device| device.type_.as_str()).ok_or_else(|| format!("`{name}` is not in the cluster"))
    };
    let times_of = |name: &str| {
        let figures = plan.cluster.types.get(name).ok_or_else(|| format!("`{name}` is not described"))?;
        Ok::<_, String>(costs::times(graph, operators, name, figures))
    };
    let each = |times: &costs::Times| -> Vec<f64> {
        times.seconds.iter().map(|one| one.forward + one.input_gradient + one.weight_gradient).collect()
    };
    let base = plan.cluster.devices.first().ok_or("the cluster is empty")?.type_.as_str();
    let times = times_of(base)?;
    let theirs = plan.predicted.times.as_ref().ok_or("the plan does not say whose times it believes")?;
    if theirs.cost_model != times.from.cost_model {
        return Err(format!("the plan believes {}, this page {}", theirs.cost_model, times.from.cost_model));
    }
    let mut by_type: HashMap<&str, Vec<f64>> = HashMap::from([(base, each(&times))]);
    let mut types = Vec::with_capacity(plan.stages.len());
    for (index, stage) in plan.stages.iter().enumerate() {
        let device = stage.devices.first().ok_or_else(|| format!("stage {index} has no device"))?;
        let type_ = type_of(device)?;
        if !by_type.contains_key(type_) {
            by_type.insert(type_, each(&times_of(type_)?));
        }
        types.push(type_);
    }
    let type_at = |stage: &Option<u32>| stage.map_or(base, |stage| types[stage as usize]);
    Ok(stages.iter().enumerate().map(|(operator, stage)| by_type[type_at(stage)][operator]).collect())
}
