//! The best plan of a model on a cluster, over sharing of layers or images and over micro-batch sizes.

use partitioner::{Planned, Problem, Solution, times_ideal};

use super::{
    alone::{planned_alone, ranked},
    asked::Asked,
    group_search, micro_batch,
    no_plan::Unplanned,
    request::{Degree, PlanRequest},
    subject::Subject,
};
use crate::{
    failure::{self, Failure},
    sharing::{self, Around, Way},
};

/// The most groups for which sharing of layers is searched unasked: a search takes time by their number, one of so many as long as
/// all else on 64 devices.
const MOST_GROUPS: usize = 32;

/// The most values that an operator may take for it: where layers take all before them, as DenseNet's do, it takes a minute.
const MOST_INPUTS: usize = 12;
/// A plan is slow if it takes this many times its lower bound, or the time of all devices for the work alone.
const SLOW: f64 = 1.5;

/// Finds the best plan of a model whose stages can be written; chooses the number of micro-batches if none is
/// requested.
pub fn planned(subject: Subject<'_>, request: &PlanRequest) -> Result<(Asked, Planned), Failure> {
    attempt(subject, request).map_err(Failure::from)
}

/// The same for callers that need only the reason of a failure, without a search for changes that would help.
pub fn attempt(subject: Subject<'_>, request: &PlanRequest) -> Result<(Asked, Planned), Unplanned> {
    let found = match (subject, request.micro_batch_size) {
        (Subject::Model(workspace), Some(sizes)) => {
            micro_batch::of_best_size(workspace, request, sizes, of_one_size)
        }
        _ => of_one_size(subject, request),
    };
    found.map(ranked)
}

/// Tells whether devices are to share something.
fn is_asked(degree: Degree) -> bool {
    !matches!(degree, Degree::IfNeeded | Degree::Of(1))
}

/// Returns how many devices of each group are to share layers, and what the groups share, if both are asked for in numbers.
fn layers_of_groups(request: &PlanRequest) -> Option<(u32, Around)> {
    let Degree::Of(each @ 2..) = request.tensor_parallel else { return None };
    let (groups, by_expert) = match (request.context_parallel, request.expert_parallel) {
        (Degree::Of(groups @ 2..), other) if !is_asked(other) => (groups, false),
        (other, Degree::Of(groups @ 2..)) if !is_asked(other) => (groups, true),
        _ => return None,
    };
    let is_free = request.on_first.is_empty() && !is_asked(request.spatial);
    is_free.then_some((each, Around { groups, by_expert }))
}

/// Plans with micro-batches as large as the model's inputs.
fn of_one_size(subject: Subject<'_>, request: &PlanRequest) -> Result<(Asked, Planned), Unplanned> {
    if let Some(method) = request.operators {
        request.check_operators(method)?;
        let Subject::Model(whole) = subject else {
            let message = format!("--strategy {} splits the operators of traced models", method.name());
            return Err(Failure::input(message).into());
        };
        return group_search::planned_operators(whole, request, method);
    }
    let unshared = |request: &PlanRequest| planned_alone(subject, request, f64::INFINITY);
    let layers = Way::Layers(request.sequence_parallel, Around::NONE);
    let ways = [
        (request.spatial, Way::Bands),
        (request.context_parallel, Way::Positions(&request.on_first)),
        (request.expert_parallel, Way::Experts),
        (request.tensor_parallel, layers),
    ];
    if request.sequence_parallel.is_some() && !is_asked(request.tensor_parallel) {
        let message = "--sequence-parallel needs devices that share layers";
        return Err(Failure::input(message).with_hint("add --tensor-parallel N, or auto").into());
    }
    if !request.on_first.is_empty() && !is_asked(request.context_parallel) {
        let message = "--on-first needs devices that share sequences";
        return Err(Failure::input(message).with_hint("add --context-parallel N, or auto").into());
    }
    if let Some((each, around)) = layers_of_groups(request) {
        let Subject::Model(whole) = subject else {
            return Err(Failure::input("--tensor-parallel is for traced models, not for profiles").into());
        };
        let way = Way::Layers(request.sequence_parallel, around);
        return group_search::planned_by(whole, request, each.saturating_mul(around.groups), way);
    }
    let mut asked = ways.into_iter().filter(|(degree, _)| is_asked(*degree));
    if let Some((degree, way)) = asked.next() {
        let option = way.option();
        if let Some((_, other)) = asked.next() {
            return Err(Failure::input(format!(
                "{option} and {}: layers can be shared in only one of these ways",
                other.option()
            ))
            .with_hint(
                "--tensor-parallel goes with --context-parallel or --expert-parallel, each with a number",
            )
            .into());
        }
        let Subject::Model(whole) = subject else {
            let message = format!("{option} is for traced models, not for profiles");
            return Err(Failure::input(message).into());
        };
        return match degree {
            Degree::Of(degree) => group_search::planned_by(whole, request, degree, way),
            _ => group_search::planned_best(whole, request, unshared(request), &[way], usize::MAX),
        };
    }
    let mut found = unshared(request);
    let Subject::Model(whole) = subject else { return found };
    let of_whole_layers = |(asked, solved): (Asked, Planned)| (asked.of_whole_layers(), solved);
    if request.strategy.is_some() {
        return found.map(of_whole_layers);
    }
    let mut shared = vec![layers];
    if sharing::has_experts(&whole.graph) {
        let of_groups = |groups| Way::Layers(request.sequence_parallel, Around { groups, by_expert: true });
        shared.extend([Way::Experts, of_groups(2), of_groups(4)]);
    }
    // Where one device has room for all, sharing layers seldom pays, and a search for each number would take its time; unless
    // memory, sums of gradients, or one part of the model make the plan slow.
    let is_slow = |problem: &Problem, best: &Solution| {
        best.seconds() > SLOW * best.lower_bound || times_ideal(problem, best) > SLOW
    };
    if let (Ok((asked, solved)), Degree::IfNeeded) = (&found, request.tensor_parallel)
        && (!asked.problem.fits_one_device() || is_slow(&asked.problem, &solved.best))
    {
        let inputs = whole.graph.operators.iter().map(|operator| operator.inputs.len());
        let is_dense = asked.problem.fits_one_device() && inputs.max() > Some(MOST_INPUTS);
        if !is_dense && group_search::has_few_groups(&request.cluster, MOST_GROUPS) {
            return group_search::planned_best(whole, request, found, &shared, MOST_GROUPS);
        }
        failure::note(
            "layers on several devices each were not tried: --tensor-parallel auto does, in several times the time",
        );
    }
    for (degree, ways) in [(request.tensor_parallel, &shared[..]), (request.spatial, &[Way::Bands][..])] {
        found = match found {
            Err(reason) if degree == Degree::IfNeeded && reason.is_no() => {
                group_search::planned_best(whole, request, Err(reason), ways, usize::MAX)
            }
            found => found.map(of_whole_layers),
        };
    }
    found
}
