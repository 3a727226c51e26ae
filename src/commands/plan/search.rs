//! The best plan of a model on a cluster, where devices may share layers or images.

use partitioner::Planned;

use super::{
    alone::planned_alone,
    asked::Asked,
    group_search,
    no_plan::Unplanned,
    request::{Degree, PlanRequest},
    subject::Subject,
};
use crate::{failure::Failure, sharing::Way};

/// Finds the best plan of a model whose stages can be written; chooses the number of micro-batches where none is asked for.
pub fn planned(subject: Subject<'_>, request: &PlanRequest) -> Result<(Asked, Planned), Failure> {
    attempt(subject, request).map_err(Failure::from)
}

/// The same for whoever only wants to know why there is none, without a search for what would have to change.
pub fn attempt(subject: Subject<'_>, request: &PlanRequest) -> Result<(Asked, Planned), Unplanned> {
    let unshared = |request: &PlanRequest| planned_alone(subject, request);
    let is_asked = |degree: Degree| !matches!(degree, Degree::IfNeeded | Degree::Of(1));
    if is_asked(request.spatial) {
        if is_asked(request.tensor_parallel) {
            return Err(Failure::input(
                "--tensor-parallel cuts weights and --spatial images: give one of them",
            )
            .into());
        }
        let Subject::Model(whole) = subject else {
            return Err(Failure::input("a profile's blocks are given: --spatial is for traced models").into());
        };
        return match request.spatial {
            Degree::Of(degree) => group_search::planned_by(whole, request, degree, Way::Bands),
            _ => group_search::planned_best(whole, request, unshared(request), Way::Bands),
        };
    }
    match (request.tensor_parallel, subject) {
        (Degree::IfNeeded, Subject::Profile(..)) | (Degree::Of(1), Subject::Profile(..)) => unshared(request),
        (_, Subject::Profile(..)) => {
            Err(Failure::input("a profile's blocks are given: --tensor-parallel is for traced models").into())
        }
        (Degree::Of(degree), Subject::Model(whole)) if degree > 1 => {
            group_search::planned_by(whole, request, degree, Way::Layers)
        }
        (Degree::Best, Subject::Model(whole)) => {
            group_search::planned_best(whole, request, unshared(request), Way::Layers)
        }
        (_, Subject::Model(whole)) => {
            let mut found = unshared(request);
            for (degree, way) in [(request.tensor_parallel, Way::Layers), (request.spatial, Way::Bands)] {
                found = match found {
                    Err(reason)
                        if degree == Degree::IfNeeded && reason.is_no() && request.strategy.is_none() =>
                    {
                        group_search::planned_best(whole, request, Err(reason), way)
                    }
                    found => found,
                };
            }
            found
        }
    }
}
