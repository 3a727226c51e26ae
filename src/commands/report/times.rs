//! Predicted seconds of each operator on the device that its stage runs on.

use schema::Plan;

use crate::{commands::plan::costs, cost_models::CostModels, operator_stages, workspace::Workspace};

/// Predicts operators, forward and backward, each on its stage's first device; blocks without a stage on the cluster's
/// first. The sums over stages are the plan's.
///
/// # Errors
/// Names the source of the plan's times, if it is not the source of these: a page must not mix the two.
pub fn of_plan(
    plan: &Plan,
    stages: &[Option<u32>],
    workspace: &Workspace,
    models: &CostModels,
) -> Result<Vec<f64>, String> {
    let theirs = plan.predicted.times.as_ref().ok_or("the plan does not name the source of its times")?;
    let options = costs::options_of(theirs);
    let type_of = |name: &str| {
        let device = plan.cluster.devices.iter().find(|device| device.name == name);
        device.map(|device| device.type_.as_str()).ok_or_else(|| format!("`{name}` is not in the cluster"))
    };
    let times_of = |name: &str| {
        let figures = plan.cluster.types.get(name).ok_or_else(|| format!("`{name}` has no description"))?;
        let mut times = costs::times(&workspace.graph, &workspace.costs, &models.of(name, figures), &options);
        if let Some(shared) = &workspace.shared {
            times.add_exchanges(shared, &workspace.graph, costs::is_without_flush(&plan.schedule));
        }
        Ok::<_, String>(times)
    };
    let each = |times: &costs::Times| -> Vec<f64> {
        times.seconds.iter().map(|one| one.forward + one.input_gradient + one.weight_gradient).collect()
    };
    let base = plan.cluster.devices.first().ok_or("the cluster is empty")?.type_.as_str();
    let times = times_of(base)?;
    if theirs.cost_model != times.from.cost_model {
        return Err(format!(
            "the plan's times are from {}, this page's from {}",
            theirs.cost_model, times.from.cost_model
        ));
    }
    let mut types = Vec::with_capacity(plan.stages.len());
    for (index, stage) in plan.stages.iter().enumerate() {
        let device = stage.devices.first().ok_or_else(|| format!("stage {index} has no device"))?;
        types.push(type_of(device)?);
    }
    let mut seconds = each(&times);
    for (operator, _) in operator_stages::recomputed(plan, workspace.program())
        .iter()
        .enumerate()
        .filter(|(_, is_recomputed)| **is_recomputed)
    {
        seconds[operator] += times.seconds[operator].forward;
    }
    // A plan scales another type of device by one factor: its operators share the stage's time in proportion.
    let mut sums = vec![0.0; plan.stages.len()];
    for (stage, seconds) in stages.iter().zip(&seconds) {
        if let Some(stage) = stage {
            sums[*stage as usize] += seconds;
        }
    }
    for (stage, seconds) in stages.iter().zip(&mut seconds) {
        let Some(stage) = stage.map(|stage| stage as usize) else { continue };
        if types[stage] != base && sums[stage] > 0.0 {
            let cost = plan.stages[stage].cost;
            *seconds *= (cost.forward.0 + cost.input_gradient.0 + cost.weight_gradient.0) / sums[stage];
        }
    }
    Ok(seconds)
}
