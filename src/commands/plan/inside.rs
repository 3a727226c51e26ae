//! `plan --strategy optcnn|flexflow`: each operator is split over all devices in its own way.
//!
//! The plan is only predicted: no stages and no plan file are written.

mod answer;
mod layers;
mod method;
mod prices;

use partitioner::{
    Machine,
    inside::{Limits, NoSplit, Space, Walk, split, walk},
};
use schema::{Bytes, PlanAnswer};

pub use self::method::Method;
use self::{layers::Layers, prices::Predicted};
use super::{costs, flags::Plan, no_plan::Unplanned, request::PlanRequest, subject::name_of};
use crate::{
    failure::{self, Failure},
    files::Opened,
    output::Output,
    workspace::Workspace,
};

/// The most devices: with this many, an operator already has hundreds of splits.
const DEVICES: usize = 256;
/// The settings of FlexFlow's search: proposals per start, how rarely a worse one is accepted, and the random seed.
const WALK: Walk = Walk { budget: 25_000, alpha: 100.0, seed: 0 };

/// Splits the operators of a traced model, and prints how.
pub fn run(plan: &Plan, method: Method, file: Opened, output: &mut Output) -> Result<(), Failure> {
    refuse(plan, method)?;
    let (request, _) = plan.request(None)?;
    request.cost_models.require_used(&request.cluster)?;
    check(method, &request)?;
    let workspace = Workspace::of(file, &plan.asking.input)?;
    answer::print(plan, &answered(method, &workspace, &request, &name_of(&plan.model))?, output)
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

/// Splits the operators of a traced model.
pub fn answered(
    method: Method,
    workspace: &Workspace,
    request: &PlanRequest,
    model_name: &str,
) -> Result<PlanAnswer, Unplanned> {
    check(method, request)?;
    let cluster = &request.cluster;
    let no_types = || Failure::input("the cluster has no device types");
    let name = &cluster.devices.first().ok_or_else(no_types)?.type_;
    let type_ = cluster.types.get(name).ok_or_else(no_types)?;
    let layers = Layers::of(&workspace.graph, &workspace.costs);
    let machine: Machine = request.machine();
    let model = request.cost_models.of(name, type_);
    let options = costs::options(request.rounding, &model);
    let predicted = Predicted::new(workspace, &layers, (&model, options), &machine, request.optimizer_factor);
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
        Method::Random => walk(&space.choices, limits, &[found.picks.clone(), even.clone()], WALK),
    };
    if space.choices.totals(&even).bytes > limits.bytes {
        failure::note("data parallelism does not fit the devices' memory");
    }
    let answer = answer::Inside {
        method,
        workspace,
        layers: &layers,
        space: &space,
        limits,
        found: &found,
        walked: walked.as_ref(),
        even: &even,
        request,
        times: predicted.times_from(),
    };
    Ok(answer.answer(model_name))
}

/// Refuses arguments without a meaning for splits inside operators.
fn refuse(plan: &Plan, method: Method) -> Result<(), Failure> {
    let asking = &plan.asking;
    let arguments = [
        ("--stages", asking.stages.is_some()),
        ("--batch", asking.batch.is_some()),
        ("--micro-batches", asking.micro_batches.is_some()),
        ("--keep-together", !asking.keep_together.is_empty()),
        ("--cut-at", !asking.cut_at.is_empty()),
        ("--layers", !asking.layers.is_empty()),
        ("--pin", !asking.pin.is_empty()),
        ("--recompute", !asking.recompute.is_empty()),
        ("--constraints", asking.constraints.is_some()),
        ("--from", asking.from.is_some()),
        ("--sharding", asking.sharding.is_some()),
        ("--loss", asking.loss.is_some()),
        ("--offload", asking.offload),
        ("--no-recompute", asking.no_recompute),
        ("--host-overhead", asking.host_overhead.is_some()),
        ("--split-overhead", asking.split_overhead.is_some()),
        ("--compare", plan.compare),
        ("--check", plan.check.is_some()),
        ("--output", plan.output.is_some()),
    ];
    let given: Vec<&str> =
        arguments.iter().filter(|(_, is_given)| *is_given).map(|(name, _)| *name).collect();
    if given.is_empty() {
        return Ok(());
    }
    Err(Failure::input(format!("--strategy {} does not take {}", method.name(), given.join(", "))).with_hint(
        "it predicts one step of the model's own inputs (--input sets others), and writes no plan: train.py cannot \
         run it yet",
    ))
}
