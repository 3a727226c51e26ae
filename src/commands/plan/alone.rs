//! The best plan of a model where each device has layers of its own: if stages cannot be written with a cut, blocks are
//! joined and the model is planned again.

use std::collections::BTreeSet;

use partitioner::Planned;

use super::{
    asked::{Asked, Question},
    carried,
    inseparable::Inseparable,
    no_plan::{NotFound, Unplanned},
    refine,
    request::PlanRequest,
    subject::Subject,
};
use crate::failure::{self, Failure};

/// How often blocks are joined: when they become too few for the cluster, smaller ones are taken and planned again.
const MAX_ROUNDS: usize = 4;

/// Finds the best plan of a model whose stages can be written, where each device has layers of its own; plans that take `below`
/// seconds for each micro-batch are of no use.
pub(super) fn planned_alone(
    subject: Subject<'_>,
    request: &PlanRequest,
    below: f64,
) -> Result<(Asked, Planned), Unplanned> {
    let question = Question::new(request, subject)?;
    let found = searched(&question, subject, request, below);
    match &request.from {
        Some((path, given)) => {
            carried::or_better((&question, subject), request, (path, given), found.map(ranked))
        }
        None => found,
    }
}

/// Adds the other strategies' plans.
pub(super) fn ranked((asked, mut solved): (Asked, Planned)) -> (Asked, Planned) {
    solved.rank();
    (asked, solved)
}

/// The same among the plans that are searched.
fn searched(
    question: &Question<'_>,
    subject: Subject<'_>,
    request: &PlanRequest,
    below: f64,
) -> Result<(Asked, Planned), Unplanned> {
    let mut joined = BTreeSet::new();
    let mut reason: Option<String> = None;
    for _ in 0..MAX_ROUNDS {
        let given = question.given(&joined)?;
        let found = refine::planned(question, request.strategy, &joined, given.as_ref(), below);
        let (asked, solved) = found.map_err(|failed| {
            let (request, model) = (request.clone(), subject.path().to_path_buf());
            Unplanned::NotFound(Box::new(NotFound::new(request, model, failed, reason.take())))
        })?;
        let found =
            subject.archive().and_then(|program| Inseparable::of(program, &asked.problem, &solved.best));
        let Some(Inseparable { paths, reason: why }) = found else {
            if let Some(reason) = reason {
                failure::note(format!("some cuts cannot be written ({reason}); planned with the others"));
            }
            return Ok((asked, solved));
        };
        if question.is_given() {
            let failure = Failure::no(format!("stages with these cuts cannot be written: {why}"));
            let hint = "`model-analyze emit --cut` names the nearest cuts that can be written";
            return Err(failure.with_hint(hint).into());
        }
        joined.extend(paths);
        reason.get_or_insert(why);
    }
    let message = format!("no stages were found that can be written: {}", reason.unwrap_or_default());
    let failure = Failure::no(message);
    Err(failure.with_hint("`model-analyze emit --cut` names the nearest cuts that can be written").into())
}
