//! `plan MODEL` by our own objective: a profile graph or a traced model on a cluster.

use std::{collections::BTreeSet, path::Path};

use partitioner::{
    CheckError, MadeBy, MicroBatches, PlanError, Planned, Problem, Solution, Strategy, check_plan, plan_with,
};
use schema::{PipedreamProfile, to_yaml};
use tracer::Program;

use super::{
    Plan, PlanRequest, answer,
    answer::Unit,
    asked::{Asked, Question},
    clusters::machines,
    groups,
    inseparable::Inseparable,
    micro_batch,
    no_plan::{NotFound, Unplanned},
    refine,
    request::Degree,
    why::why,
};
use crate::{
    failure::{self, Failure},
    files::{self, Opened},
    output::Output,
    plan_file,
    sharing::Way,
    workspace::Workspace,
};

/// What is planned.
#[derive(Clone, Copy)]
pub enum Subject<'a> {
    /// A profile graph and its file.
    Profile(&'a Path, &'a PipedreamProfile),
    /// A traced model.
    Model(&'a Workspace),
}

impl Subject<'_> {
    fn path(&self) -> &Path {
        match self {
            Self::Profile(path, _) => path,
            Self::Model(workspace) => workspace.file.path(),
        }
    }

    /// Returns the name of the model.
    pub(super) fn name(&self) -> String {
        super::name_of(self.path())
    }

    /// Returns what stages are cut from; none where that is no archive.
    fn archive(&self) -> Option<&Program> {
        match self {
            Self::Profile(..) => None,
            Self::Model(workspace) => {
                Some(&workspace.file.program).filter(|program| program.archive.is_some())
            }
        }
    }
}

/// Plans a profile graph on a cluster, or checks a plan of it.
pub fn run_profile(plan: &Plan, profile: &PipedreamProfile, output: &mut Output) -> Result<(), Failure> {
    let (request, given) = request(plan, plan.asking.strategy()?)?;
    run(plan, Subject::Profile(&plan.model, profile), &request, given, output)
}

/// Plans a traced model on a cluster, or checks a plan of it; the model is read once the rest is known to make sense.
pub fn run_trace(plan: &Plan, file: Opened, output: &mut Output) -> Result<(), Failure> {
    let (request, given) = request(plan, plan.asking.strategy()?)?;
    request.cost_models.require_used(&request.cluster)?;
    let mut workspace = Workspace::of(file, &plan.asking.input)?;
    // A plan may be of other micro-batches than the trace's.
    if let Some(samples) = given.as_ref().and_then(|given| given.micro_batch_size) {
        workspace = micro_batch::resized(&workspace, samples)
            .map_err(|reason| micro_batch::not_followed(&workspace, samples, &reason))?;
    }
    run(plan, Subject::Model(&workspace), &request, given, output)
}

/// Returns what the arguments ask for, and the plan that is to be checked.
pub(super) fn request(
    plan: &Plan,
    strategy: Option<Strategy>,
) -> Result<(PlanRequest, Option<schema::Plan>), Failure> {
    let given = plan.check.as_deref().map(plan_file::read).transpose()?;
    let request = plan.asking.request(strategy, || match &given {
        // A plan brings its cluster along.
        Some(given) if plan.machines.is_empty() => Ok(given.cluster.clone()),
        _ => machines(plan),
    })?;
    let cluster_file = match (&plan.check, &plan.asking.cluster) {
        (Some(path), None) | (None, Some(path)) => Some(path.clone()),
        _ => None,
    };
    // A plan says itself what it is for.
    let inference = match &given {
        Some(given) => given.inference,
        None => plan.aim.of_trace()?,
    };
    let micro_batch_size = plan.micro_batch_size;
    let overlap = !plan.no_overlap;
    let request = PlanRequest { inference, micro_batch_size, overlap, cluster_file, ..request };
    request.check()?;
    Ok((request, given))
}

fn run(
    plan: &Plan,
    subject: Subject<'_>,
    request: &PlanRequest,
    given: Option<schema::Plan>,
    output: &mut Output,
) -> Result<(), Failure> {
    if let Some(given) = given {
        let (asked, checked) = checked(subject, request, &given)?;
        let problem = &asked.problem;
        let solution = checked.map_err(|error| {
            let failure = match error {
                CheckError::Plan(PlanError::Memory { .. }) => Failure::no(error),
                CheckError::UnknownBlock { .. } | CheckError::UnknownDevice { .. } => {
                    Failure::input(error).with_hint("blocks and devices are named as `plan -o` writes them")
                }
                _ => Failure::input(error),
            };
            plan.check.iter().fold(failure, |failure, path| failure.in_file(path))
        })?;
        let answer = asked.answer(request, None, &solution, (&[], &[]), &asked.file(&solution));
        let why = why(problem, &solution, &answer);
        return answer::print(plan, &answer, Unit::MicroBatch, &why, output);
    }
    let (asked, mut solved) = match (subject, request.micro_batch_size) {
        (Subject::Model(workspace), Some(sizes)) => micro_batch::planned(workspace, request, sizes)?,
        _ => planned(subject, request)?,
    };
    if plan.compare {
        with_all(&asked.problem, &mut solved);
    }
    let file = asked.file(&solved.best);
    let beside = (&solved.others[..], &solved.failed[..]);
    let mut answer = asked.answer(request, Some(&solved.cut_space), &solved.best, beside, &file);
    answer.micro_batches_tried = solved.tried;
    if let Some(path) = &plan.output {
        files::write(path, to_yaml(&file.plan).as_bytes())?;
    }
    let why = why(&asked.problem, &solved.best, &answer);
    answer::print(plan, &answer, Unit::MicroBatch, &why, output)
}

/// Scores a plan of a model, whose blocks may be calls of any depth, and operators.
fn checked(
    subject: Subject<'_>,
    request: &PlanRequest,
    given: &schema::Plan,
) -> Result<(Asked, Result<Solution, CheckError>), Failure> {
    let question = Question::new(request, subject)?;
    question.check(given)?;
    let named = given.stages.iter().flat_map(|stage| &stage.blocks).map(String::as_str);
    let grain = question.sliceable().map(|model| model.named(named)).unwrap_or_default();
    let mut asked = question.asked(&grain);
    // A plan says itself whether stages wait for what they send.
    let waits = given.execution.is_some_and(|execution| execution.blocking_sends == Some(true));
    asked.problem.machine.overlaps &= !waits;
    let found = check_plan(&asked.problem, given);
    Ok((asked, found))
}

/// Adds the strategies that were not asked for, best first: cuts by a rule and pipelines without an end among them.
fn with_all(problem: &Problem, solved: &mut Planned) {
    // The same number of micro-batches, or the comparison would be of different work.
    let mut problem = problem.clone();
    problem.training.micro_batches = MicroBatches::About(solved.best.micro_batches);
    for strategy in partitioner::STRATEGIES {
        let is_known = |plan: &Solution| plan.made_by == MadeBy::Strategy(strategy);
        if is_known(&solved.best)
            || solved.others.iter().any(is_known)
            || solved.failed.iter().any(|(other, _)| *other == strategy)
        {
            continue;
        }
        match plan_with(&problem, strategy) {
            Ok(other) => solved.others.push(other),
            Err(error) => solved.failed.push((strategy, error)),
        }
    }
    solved.others.sort_by(|a, b| a.seconds_each().total_cmp(&b.seconds_each()));
}

/// Times that blocks are joined: where they become too few for the cluster, smaller ones are taken and asked again.
const MAX_ROUNDS: usize = 4;

/// Finds the best plan of a model whose stages can be written; chooses the number of micro-batches where none is asked for.
pub fn planned(subject: Subject<'_>, request: &PlanRequest) -> Result<(Asked, Planned), Failure> {
    attempt(subject, request).map_err(Failure::from)
}

/// The same for whoever only wants to know why there is none, without a search for what would have to change.
pub fn attempt(subject: Subject<'_>, request: &PlanRequest) -> Result<(Asked, Planned), Unplanned> {
    let unshared = |request: &PlanRequest| planned_alone(subject, request);
    let ways = [
        (request.spatial, Way::Bands),
        (request.context_parallel, Way::Positions),
        (request.tensor_parallel, Way::Layers),
    ];
    let mut asked = ways.into_iter().filter(|(degree, _)| !matches!(degree, Degree::IfNeeded | Degree::Of(1)));
    if let Some((degree, way)) = asked.next() {
        let option = way.option();
        if let Some((_, other)) = asked.next() {
            return Err(Failure::input(format!(
                "--tensor-parallel cuts weights, --spatial images and --context-parallel sequences: give {option} or {}",
                other.option()
            ))
            .into());
        }
        let Subject::Model(whole) = subject else {
            return Err(
                Failure::input(format!("a profile's blocks are given: {option} is for traced models")).into()
            );
        };
        return match degree {
            Degree::Of(degree) => groups::planned_by(whole, request, degree, way),
            _ => groups::planned_best(whole, request, unshared(request), way),
        };
    }
    let mut found = unshared(request);
    let Subject::Model(whole) = subject else { return found };
    for (degree, way) in [(request.tensor_parallel, Way::Layers), (request.spatial, Way::Bands)] {
        found = match found {
            Err(reason) if degree == Degree::IfNeeded && reason.is_no() && request.strategy.is_none() => {
                groups::planned_best(whole, request, Err(reason), way)
            }
            found => found,
        };
    }
    found
}

/// The same where each device has layers of its own.
fn planned_alone(subject: Subject<'_>, request: &PlanRequest) -> Result<(Asked, Planned), Unplanned> {
    let question = Question::new(request, subject)?;
    let mut joined = BTreeSet::new();
    let mut reason: Option<String> = None;
    for _ in 0..MAX_ROUNDS {
        let given = question.given(&joined)?;
        let found = refine::planned(&question, request.strategy, &joined, given.as_ref());
        let (asked, solved) = found.map_err(|(problem, error)| {
            let (request, model, reason) = (request.clone(), subject.path().to_path_buf(), reason.take());
            Unplanned::NotFound(Box::new(NotFound { request, model, problem: *problem, error, reason }))
        })?;
        let found =
            subject.archive().and_then(|program| Inseparable::of(program, &asked.problem, &solved.best));
        let Some(Inseparable { paths, reason: why }) = found else {
            if let Some(reason) = reason {
                failure::note(format!("not every cut can be ({reason}); planned with those that can"));
            }
            return Ok((asked, solved));
        };
        if question.is_given() {
            let failure = Failure::no(format!("stages with these cuts cannot be written: {why}"));
            let hint = "`model-analyze emit --cut` tells which cuts near a given one can be";
            return Err(failure.with_hint(hint).into());
        }
        joined.extend(paths);
        reason.get_or_insert(why);
    }
    let message = format!("no stages were found that can be written: {}", reason.unwrap_or_default());
    let failure = Failure::no(message);
    Err(failure.with_hint("`model-analyze emit --cut` tells which cuts near a given one can be").into())
}
