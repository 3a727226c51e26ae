//! The best plan where groups of devices share each layer: each group is planned as one device.

use std::collections::BTreeMap;

use partitioner::{ENOUGH, Planned, Solution};
use schema::{Cluster, LayerSharing, Plan, ShardingLevel, SharedTried};

use super::{
    alone::planned_alone,
    asked::{Asked, Question},
    costs::is_without_flush,
    groups::Groups,
    inside::method::Method,
    no_plan::Unplanned,
    pins,
    request::{self, Degree, PlanRequest},
    step_size::StepSize,
    subject::Subject,
};
use crate::{
    failure::{self, Failure},
    sharing::{self, Way},
    workspace::Workspace,
};

/// The most devices per layer when the number is chosen: those that fast links join.
const MOST: u32 = 8;

/// Groups of devices, and the request for a plan of one device's share of the model.
pub(super) type Shared = (Groups, PlanRequest);

/// Plans a model whose layers are shared by the given number of devices.
pub(super) fn planned_by(
    whole: &Workspace,
    request: &PlanRequest,
    degree: u32,
    way: Way<'_>,
) -> Result<(Asked, Planned), Unplanned> {
    let shared = shared(whole, request, degree, way)?;
    shared.0.say_left_out();
    let (asked, planned) = planned_of(shared, f64::INFINITY)?;
    Ok((asked.sharing_asked(way), planned))
}

/// Shares a model's layers among the given number of devices.
fn shared(whole: &Workspace, request: &PlanRequest, degree: u32, way: Way<'_>) -> Result<Shared, Unplanned> {
    if let Some(pin) = pins::to_devices(&request.constraints.pin) {
        let message = format!("--pin {pin}: devices that share layers cannot be pinned one by one");
        return Err(Failure::input(message).with_hint("pin to a stage instead").into());
    }
    let (groups, cluster) = Groups::of(whole, request, degree, way)?;
    let sharding_up_to = if groups.has_first() {
        ShardingLevel::None
    } else {
        request::CARRIED_OUT_SHARED.min(request.sharding_up_to)
    };
    let alone = PlanRequest {
        cluster,
        sharding_up_to,
        tensor_parallel: Degree::Of(1),
        sequence_parallel: None,
        spatial: Degree::Of(1),
        context_parallel: Degree::Of(1),
        expert_parallel: Degree::Of(1),
        on_first: Vec::new(),
        from: None,
        ..request.clone()
    };
    Ok((groups, alone))
}

/// Returns the groups of a plan whose devices share layers, and what to ask of one device's share of the model; `None` for other
/// plans.
pub(super) fn of_plan(
    whole: &Workspace,
    request: &PlanRequest,
    given: &Plan,
) -> Result<Option<Shared>, Failure> {
    let LayerSharing::ByCuts(degree) = given.sharing() else { return Ok(None) };
    let (groups, alone) = shared(whole, request, degree, Way::of_plan(given))?;
    let is_endless = is_without_flush(&given.schedule);
    Ok(Some((groups, PlanRequest { is_endless, ..alone })))
}

/// Returns the seconds for each micro-batch that the work of all groups together takes: no plan takes less.
fn least_seconds((groups, alone): &Shared) -> Option<f64> {
    Some(Question::new(alone, Subject::Model(&groups.own)).ok()?.least_seconds())
}

/// Plans one device's share of a model; plans that take `below` seconds for each micro-batch are of no use.
fn planned_of((groups, request): Shared, below: f64) -> Result<(Asked, Planned), Unplanned> {
    let (asked, mut solved) = planned_alone(Subject::Model(&groups.own), &request, below)?;
    if request.strategy.is_none() && !runs(&solved.best) {
        run_if_possible(&mut solved);
    }
    Ok((asked.of_groups(groups), solved))
}

/// Puts the best plan that `train.py` can run first.
fn run_if_possible(solved: &mut Planned) {
    solved.rank();
    if runs(&solved.best) {
        return;
    }
    match solved.others.iter().position(runs) {
        Some(position) => std::mem::swap(&mut solved.best, &mut solved.others[position]),
        None => failure::note(
            "train.py cannot run this plan: it needs the same number of replicas for every shared stage",
        ),
    }
}

/// Plans a model each of whose operators is split over all devices that the fastest links join.
pub(super) fn planned_operators(
    whole: &Workspace,
    request: &PlanRequest,
    method: Method,
) -> Result<(Asked, Planned), Unplanned> {
    let mut joined: BTreeMap<&[u32], u32> = BTreeMap::new();
    for device in &request.cluster.devices {
        *joined.entry(&device.place).or_default() += 1;
    }
    let degree = joined.values().copied().reduce(common).unwrap_or(1);
    if degree < 2 {
        let message = format!("--strategy {} needs devices that the fastest links join", method.name());
        return Err(Failure::no(message).into());
    }
    let samples = StepSize::of(whole).samples.filter(|samples| *samples > 0);
    let of_batch = request.batch.zip(samples).map(|(batch, samples)| (batch / samples) as u32);
    let micro_batches = request.micro_batches.or(of_batch).unwrap_or(1);
    let search = method.search(request.state_factor(&whole.graph), micro_batches);
    let request = PlanRequest { operators: None, ..request.clone() };
    planned_by(whole, &request, degree, Way::Operators(search))
}

/// Returns the greatest common divisor.
fn common(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { common(b, a % b) }
}

/// Tells whether `train.py` can run a plan whose layers devices share: it needs the same number of replicas for every
/// stage.
fn runs(solution: &Solution) -> bool {
    solution.stages.windows(2).all(|pair| pair[0].run.count == pair[1].run.count)
}

/// Tells whether a plan is better than another, given the micro-batches of a step and the seconds of each, and the least seconds
/// of all: as where numbers of micro-batches are compared, the fewest are taken whose time comes near the least.
fn is_better(own: (u32, f64), other: (u32, f64), least: f64) -> bool {
    let is_near = |(_, seconds): (u32, f64)| seconds <= ENOUGH * least;
    match (is_near(own), is_near(other)) {
        (true, true) => own < other,
        (own, other) => own && !other,
    }
}

/// Tells whether sharing layers within nodes makes no more than so many groups of a cluster's devices, or cannot be.
pub(super) fn has_few_groups(cluster: &Cluster, most_groups: usize) -> bool {
    let most = MOST.min(sharing::smallest_node(cluster));
    most < 2 || cluster.devices.len().div_ceil(most as usize) <= most_groups
}

/// Plans a model with each possible number of devices per layer that makes no more than so many groups, in each of some ways, and
/// keeps the best plan; `first` is the plan without sharing.
pub(super) fn planned_best(
    whole: &Workspace,
    request: &PlanRequest,
    first: Result<(Asked, Planned), Unplanned>,
    ways: &[Way<'_>],
    most_groups: usize,
) -> Result<(Asked, Planned), Unplanned> {
    // Groups over several nodes are for models that have no plan otherwise, and for those who ask for them.
    let most = if first.is_ok() { MOST.min(sharing::smallest_node(&request.cluster)) } else { MOST };
    let degrees = sharing::sizes_to_try(&request.cluster, most);
    let is_few = |degree: &u32| request.cluster.devices.len().div_ceil(*degree as usize) <= most_groups;
    let is_all = degrees.iter().all(is_few);
    let all =
        degrees.into_iter().filter(is_few).flat_map(|degree| ways.iter().map(move |way| (degree, *way)));
    // Groups have several devices each.
    let all = all.filter(|(degree, way)| {
        let groups = way.around().groups;
        groups == 1 || *degree > groups && degree.is_multiple_of(groups)
    });
    let fits = all.filter(|(degree, way)| sharing::grouped(&request.cluster, *degree, way.option()).is_ok());
    let size = |found: &Result<(Asked, Planned), Unplanned>| {
        found.as_ref().ok().map(|(_, plan)| (plan.best.micro_batches, plan.best.seconds_each()))
    };
    let bound_of = |found: &Result<(Asked, Planned), Unplanned>| {
        found.as_ref().map_or(f64::INFINITY, |(_, plan)| plan.best.lower_bound_each())
    };
    let seconds_of = |found: &Result<(Asked, Planned), Unplanned>| size(found).map(|(_, seconds)| seconds);
    let with_plan = |degree: u32, found: &Result<(Asked, Planned), Unplanned>| SharedTried {
        degree,
        seconds_each: seconds_of(found),
        micro_batches: size(found).map(|(count, _)| count),
        ..SharedTried::default()
    };
    let mut tried = vec![with_plan(1, &first)];
    // Numbers for which there is a plan, or none that is of use; for others the request leaves none.
    let mut looked_at: Vec<u32> = Vec::new();
    let mut least = seconds_of(&first).unwrap_or(f64::INFINITY);
    let mut bound = bound_of(&first);
    let mut best = first;
    // Groups of devices that share something first are seldom faster: they come last, and are only of use if they are.
    let (single, grouped): (Vec<_>, Vec<_>) = fits.partition(|(_, way)| way.around().groups == 1);
    for (degree, way) in single.into_iter().chain(grouped) {
        let groups = way.around().expert_parallel();
        let enough = if groups.is_some() { 1.0 } else { ENOUGH };
        let by_expert = way == Way::Experts || groups.is_some();
        let shared = shared(whole, request, degree, way);
        let is_slower = |bound: &f64| *bound > enough * least;
        let by_work = shared.as_ref().ok().and_then(least_seconds);
        let at_least = by_work.filter(is_slower);
        if let Some(least) = at_least {
            bound = bound.min(least);
            tried.push(SharedTried { degree, by_expert, groups, at_least, ..SharedTried::default() });
            looked_at.push(degree);
            continue;
        }
        let is_limited = least < f64::INFINITY;
        let found = shared.and_then(|shared| planned_of(shared, enough * least));
        // Without a plan near the best, the work bounds those that were not looked for.
        let unseen = by_work.filter(|_| is_limited && found.is_err());
        bound = bound.min(unseen.unwrap_or_else(|| bound_of(&found)));
        tried.push(SharedTried { by_expert, groups, ..with_plan(degree, &found) });
        if found.as_ref().err().is_none_or(Unplanned::is_no) {
            looked_at.push(degree);
        }
        least = least.min(seconds_of(&found).unwrap_or(f64::INFINITY));
        let is_taken = match (size(&found), size(&best)) {
            (Some(own), Some(other)) => is_better(own, other, least),
            (own, None) => own.is_some(),
            (None, _) => false,
        };
        if is_taken {
            best = found;
        }
    }
    let (asked, mut plan) = best?;
    if asked.is_shared() && request.strategy.is_none() && plan.unranked.is_some() {
        run_if_possible(&mut plan);
    }
    plan.best.bound_by(bound);
    asked.say_left_out();
    if !asked.is_shared() && request.tensor_parallel == Degree::IfNeeded && !looked_at.is_empty() {
        looked_at.dedup();
        let others: Vec<String> = looked_at.iter().map(u32::to_string).collect();
        failure::note(format!(
            "layers on {} devices each were looked at, too, and are no better",
            others.join(", ")
        ));
    }
    let asked = if is_all { asked } else { asked.of_few_groups(most_groups) };
    Ok((asked.having_tried(tried), plan))
}

#[cfg(test)]
mod tests {
    use super::is_better;

    #[test]
    fn few_micro_batches_near_the_least_seconds_beat_many() {
        for (own, other, expected) in [
            ((64, 140.0), (512, 138.0), true),
            ((512, 138.0), (64, 140.0), false),
            // Too far from the least.
            ((64, 146.0), (512, 138.0), false),
            ((512, 138.0), (64, 146.0), true),
            ((64, 139.0), (64, 140.0), true),
            ((64, 140.0), (64, 140.0), false),
        ] {
            assert_eq!(is_better(own, other, 138.0), expected, "{own:?} {other:?}");
        }
    }
}
