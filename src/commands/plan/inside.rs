//! `plan --strategy optcnn|flexflow`: each operator is split over all devices in its own way.
//!
//! What stages can be written of is planned as for every other strategy (`sharing`). Beside it stands what the papers'
//! searches find, which have more to choose from: several dimensions of one operator at once, and some of the devices.
//! That is only predicted.

pub(super) mod answer;
mod layers;
pub(super) mod method;
mod prices;

use partitioner::{
    Machine,
    inside::{Limits, NoSplit, Space, split, walk},
};
use schema::{Bytes, InsideAnswer};

use self::{
    layers::Layers,
    method::{Method, WALK},
    prices::Predicted,
};
use super::{costs, flags::Plan, model, no_plan::Unplanned, request::PlanRequest};
use crate::{failure::Failure, files::Opened, output::Output, workspace::Workspace};

/// The most devices: with this many, an operator already has hundreds of splits.
const DEVICES: usize = 256;

/// Splits the operators of a traced model, and prints how.
pub fn run(plan: &Plan, method: Method, file: Opened, output: &mut Output) -> Result<(), Failure> {
    let arguments = [("--compare", plan.compare), ("--no-overlap", plan.no_overlap)];
    if let Some((name, _)) = arguments.iter().find(|(_, is_given)| *is_given) {
        return Err(Failure::input(format!("--strategy {} does not take {name}", method.name())));
    }
    let (request, _) = plan.request(None)?;
    request.check_operators(method)?;
    request.cost_models.require_used(&request.cluster)?;
    check(method, &request)?;
    let workspace = Workspace::of(file, &plan.asking.input)?;
    let inside = predicted(method, &workspace, &request)?;
    model::run_operators(plan, &workspace, &request, inside, output)
}

/// Refuses clusters that this method does not support.
fn check(method: Method, request: &PlanRequest) -> Result<(), Failure> {
    let cluster = &request.cluster;
    let first = cluster.devices.first().ok_or_else(|| Failure::input("the cluster has no devices"))?;
    if cluster.devices.iter().any(|device| device.type_ != first.type_) {
        return Err(Failure::input(format!("--strategy {} needs devices of one type", method.name()))
            .with_hint("--leave-out excludes the others"));
    }
    if cluster.devices.len() > DEVICES {
        return Err(Failure::input(format!(
            "--strategy {} supports at most {DEVICES} devices, the cluster has {}",
            method.name(),
            cluster.devices.len()
        )));
    }
    Ok(())
}

/// Predicts what the paper's search finds for a traced model.
fn predicted(
    method: Method,
    workspace: &Workspace,
    request: &PlanRequest,
) -> Result<InsideAnswer, Unplanned> {
    let cluster = &request.cluster;
    let no_types = || Failure::input("the cluster has no device types");
    let name = &cluster.devices.first().ok_or_else(no_types)?.type_;
    let type_ = cluster.types.get(name).ok_or_else(no_types)?;
    let layers = Layers::of(&workspace.graph, &workspace.costs);
    let machine: Machine = request.machine();
    let model = request.cost_models.of(name, type_);
    let options = costs::options(request.rounding(), &model);
    let state = request.state_factor(&workspace.graph);
    let predicted = Predicted::new(workspace, &layers, (&model, options), &machine, state);
    let space = Space::new(&layers.layers, machine.devices.len(), &predicted);
    // Gradients exist only from the backward pass on: the forward pass hides none of their sums.
    let exposed = if request.overlap { predicted.forward_share() } else { 1.0 };
    let limits = Limits { exposed, bytes: type_.usable().0 as f64 };
    let even = space.data_parallel();
    let found = split(&space.choices, limits, std::slice::from_ref(&even)).map_err(|error| match error {
        NoSplit::Memory { needed, limit } => {
            Unplanned::Inside { needed: Bytes(needed as u64), limit: Bytes(limit as u64) }
        }
        NoSplit::Contradiction => Failure::no(error).into(),
    })?;
    let walked = match method {
        Method::Exact => None,
        Method::Random => {
            let starts = [found.picks.clone(), even.clone()];
            walk(&space.choices, limits, &starts, WALK, space.choices.nodes.len())
        }
    };
    Ok(answer::Inside {
        workspace,
        layers: &layers,
        space: &space,
        limits,
        found: &found,
        walked: walked.as_ref(),
        even: &even,
    }
    .answer())
}
