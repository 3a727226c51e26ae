//! Calls that are pinned to stages and devices: `--pin`, and `pin` of a plan's constraints.

use std::{collections::BTreeSet, ops::Range};

use graph::ModelGraph;
use partitioner::{Grain, Pin, PinnedTo, Problem, Sliceable, Strategy};
use schema::{Cluster, PinTo, PinnedCalls, Plan};

use super::{
    arguments::{is_meant, matches},
    fits::fits,
    operators_of::operators_of,
};
use crate::{failure::Failure, nearest::meant, workspace::Workspace};

/// The name of the last stage.
const LAST: &str = "last";

/// Returns the pins as blocks of a grain.
pub(super) fn pins(
    model: &Sliceable<'_>,
    grain: &Grain,
    graph: &ModelGraph,
    pinned: &[PinnedCalls],
    cluster: &Cluster,
) -> Vec<Pin> {
    let pin = |pin: &PinnedCalls| Pin {
        name: pin.calls.clone(),
        blocks: model.blocks_of(grain, &operators(pin, graph)),
        to: match &pin.to {
            PinTo::Stage(stage) => PinnedTo::Stage(*stage as usize),
            PinTo::Named(name) if name == LAST => PinnedTo::LastStage,
            PinTo::Named(name) => PinnedTo::Devices(devices(name, cluster)),
        },
    };
    pinned.iter().map(pin).collect()
}

/// Returns a pin to devices, if there is one.
pub(super) fn to_devices(pinned: &[PinnedCalls]) -> Option<&PinnedCalls> {
    pinned.iter().find(|pin| matches!(&pin.to, PinTo::Named(name) if name != LAST))
}

/// Refuses unknown calls and devices.
pub(super) fn check(pin: &PinnedCalls, workspace: &Workspace, cluster: &Cluster) -> Result<(), Failure> {
    let graph = &workspace.graph;
    if operators(pin, graph).iter().all(Range::is_empty) {
        let names = graph.blocks.iter().flat_map(|block| [block.path.as_str(), block.kind.as_str()]);
        let meant = meant(&pin.calls, names, 3);
        return Err(Failure::input(format!("--pin {pin}: no call and no class is `{}`{meant}", pin.calls))
            .with_hint("`model-analyze inspect` lists calls and their classes"));
    }
    match &pin.to {
        PinTo::Named(name) if name != LAST && devices(name, cluster).is_empty() => {
            let names: Vec<&str> =
                cluster.devices.iter().take(4).map(|device| device.name.as_str()).collect();
            Err(Failure::input(format!("--pin {pin}: no device is called `{name}`"))
                .with_hint(format!("a stage is a number, or `{LAST}`; devices are {}, …", names.join(", "))))
        }
        _ => Ok(()),
    }
}

/// Checks the stages of a plan against its pins.
pub(super) fn check_kept(model: &Sliceable<'_>, graph: &ModelGraph, plan: &Plan) -> Result<(), Failure> {
    let pinned = plan.constraints.iter().flat_map(|constraints| &constraints.pin);
    let mut stage_of: Vec<Option<usize>> = vec![None; graph.operators.len()];
    for (index, stage) in plan.stages.iter().enumerate() {
        for name in &stage.blocks {
            operators_of(name, model, graph).for_each(|operator| stage_of[operator as usize] = Some(index));
        }
    }
    for pin in pinned {
        let is_there = |stage: usize| match &pin.to {
            PinTo::Stage(own) => stage == *own as usize,
            PinTo::Named(name) if name == LAST => stage + 1 == plan.stages.len(),
            PinTo::Named(name) => plan.stages[stage].devices.iter().all(|device| matches(name, device)),
        };
        let own = operators(pin, graph).into_iter().flatten();
        if let Some(stage) =
            own.filter_map(|operator| stage_of[operator as usize]).find(|stage| !is_there(*stage))
        {
            let devices = plan.stages[stage].devices.join(", ");
            return Err(Failure::input(format!(
                "calls of `{}` are in stage {stage} on {devices}, which `pin: {pin}` does not allow",
                pin.calls
            ))
            .with_hint("change the stages or the plan's `constraints`"));
        }
    }
    Ok(())
}

/// Names another pin that has a plan: of the one stage nearest to the requested one, or none at all, with the rest
/// unchanged.
///
/// Large problems are skipped.
pub(super) fn nearest(problem: &Problem, asked: Option<Strategy>) -> Option<String> {
    const SMALL: usize = 2000;
    let n_devices = problem.machine.devices.len();
    if problem.blocks.len() * n_devices > SMALL {
        return None;
    }
    let with = |index: usize, to: PinnedTo| {
        let mut changed = problem.clone();
        changed.pins[index].to = to;
        changed
    };
    for (index, pin) in problem.pins.iter().enumerate() {
        let PinnedTo::Stage(own) = pin.to else { continue };
        let mut others: Vec<usize> = (0..n_devices).filter(|stage| *stage != own).collect();
        others.sort_by_key(|stage| stage.abs_diff(own));
        if let Some(stage) =
            others.into_iter().find(|&stage| fits(&with(index, PinnedTo::Stage(stage)), asked))
        {
            return Some(format!("--pin {}={stage} has a plan", pin.name));
        }
    }
    let without = |index: &usize| {
        let mut changed = problem.clone();
        changed.pins.remove(*index);
        fits(&changed, asked)
    };
    let index = (0..problem.pins.len()).find(without)?;
    Some(format!("there is a plan if `{}` is not pinned", problem.pins[index].name))
}

/// Refuses calls that two pins place in different stages.
pub(super) fn check_together(pinned: &[PinnedCalls], graph: &ModelGraph) -> Result<(), Failure> {
    let numbered = || pinned.iter().filter(|pin| matches!(pin.to, PinTo::Stage(_)));
    for (index, pin) in numbered().enumerate() {
        for other in numbered().skip(index + 1).filter(|other| other.to != pin.to) {
            let own: BTreeSet<u32> = operators(pin, graph).into_iter().flatten().collect();
            if operators(other, graph).into_iter().flatten().any(|operator| own.contains(&operator)) {
                return Err(Failure::input(format!(
                    "--pin {pin} and --pin {other} are about the same calls"
                )));
            }
        }
    }
    Ok(())
}

/// Returns the operators of the calls that are pinned.
fn operators(pin: &PinnedCalls, graph: &ModelGraph) -> Vec<Range<u32>> {
    let calls = graph.blocks.iter().filter(|block| is_meant(&pin.calls, block));
    calls.map(|block| block.operators.clone()).collect()
}

fn devices(name: &str, cluster: &Cluster) -> Vec<String> {
    let devices = cluster.devices.iter().filter(|device| matches(name, &device.name));
    devices.map(|device| device.name.clone()).collect()
}
