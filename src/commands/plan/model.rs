//! `plan MODEL` by this planner's own objective: a profile graph or a traced model on a cluster.

use std::borrow::Cow;

use partitioner::{
    CheckError, MadeBy, MicroBatches, PlanError, Planned, Problem, Solution, check_plan, plan_with,
};
use schema::{InsideAnswer, PipedreamProfile, PlanAnswer, to_yaml};

use super::{
    answer,
    answer::Unit,
    arguments::is_meant,
    asked::{Asked, Question},
    flags::Plan,
    group_search::of_plan,
    inside,
    request::PlanRequest,
    search::planned,
    subject::Subject,
    why::why,
};
use crate::{
    commands::emit::tell_own_buffers,
    failure::Failure,
    files::{self, Opened},
    output::Output,
    sharing::Way,
    workspace::Workspace,
};

/// Plans a profile graph on a cluster, or checks a plan of it.
pub fn run_profile(plan: &Plan, profile: &PipedreamProfile, output: &mut Output) -> Result<(), Failure> {
    let (request, given) = plan.request(plan.asking.strategy()?)?;
    run(plan, Subject::Profile(&plan.model, profile), &request, given, output)
}

/// Plans a traced model on a cluster, or checks a plan of it; the model is read after the arguments have been checked.
pub fn run_trace(plan: &Plan, file: Opened, output: &mut Output) -> Result<(), Failure> {
    let (request, given) = plan.request(plan.asking.strategy()?)?;
    request.cost_models.require_used(&request.cluster)?;
    let workspace = Workspace::of(file, &plan.asking.input)?;
    // A plan may have another micro-batch size than the trace.
    let workspace = match &given {
        Some(given) => workspace.of_plan(given)?,
        None => Cow::Borrowed(&workspace),
    };
    run(plan, Subject::Model(&workspace), &request, given, output)
}

fn run(
    plan: &Plan,
    subject: Subject<'_>,
    request: &PlanRequest,
    given: Option<schema::Plan>,
    output: &mut Output,
) -> Result<(), Failure> {
    if let Some(given) = given {
        // What a plan was asked to recompute does not make room, and policies open no call that it keeps and names whole.
        let mut request = request.clone();
        let own = given.constraints.clone().unwrap_or_default();
        let blocks = given.stages.iter().flat_map(|stage| &stage.blocks);
        let kept = |path: &&String| match subject {
            Subject::Model(workspace) => workspace.graph.blocks.iter().any(|block| {
                block.path == **path && own.keep_together.iter().any(|pattern| is_meant(pattern, block))
            }),
            Subject::Profile(..) => false,
        };
        request.constraints.keep_together.extend(blocks.filter(kept).cloned());
        request.constraints.recompute = own.recompute;
        let request = &request;
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
    let (asked, mut solved) = planned(subject, request)?;
    if plan.compare {
        with_all(&asked.problem, &mut solved);
    }
    let file = asked.file(&solved.best);
    if let Subject::Model(workspace) = subject {
        tell_own_buffers(workspace.program(), &file.plan);
    }
    let beside = (&solved.others[..], &solved.failed[..]);
    let mut answer = asked.answer(request, Some(&solved.cut_space), &solved.best, beside, &file);
    answer.micro_batches_tried = solved.tried;
    if let Some(path) = &plan.output {
        files::write(path, to_yaml(&file.plan).as_bytes())?;
    }
    let why = why(&asked.problem, &solved.best, &answer);
    answer::print(plan, &answer, Unit::MicroBatch, &why, output)
}

/// Plans the splits of operators that stages can be written of, and prints them with what the paper's search finds.
pub fn run_operators(
    plan: &Plan,
    workspace: &Workspace,
    request: &PlanRequest,
    inside: InsideAnswer,
    output: &mut Output,
) -> Result<(), Failure> {
    let (asked, solved) = match planned(Subject::Model(workspace), request) {
        Ok(found) => found,
        Err(failure) if plan.output.is_none() => {
            let not_carried_out = Some(failure.to_string());
            let inside = InsideAnswer { not_carried_out, ..inside };
            let predicted = inside::answer::text(&inside, None);
            let answer = PlanAnswer {
                schema_version: answer::SCHEMA_VERSION,
                model: Subject::Model(workspace).name(),
                strategy: plan.asking.strategy.to_ascii_lowercase(),
                inside: Some(inside),
                ..PlanAnswer::default()
            };
            return answer::print_operators(plan, &answer, ("", &predicted), output);
        }
        Err(failure) => return Err(failure),
    };
    let file = asked.file(&solved.best);
    tell_own_buffers(workspace.program(), &file.plan);
    let mut answer = asked.answer(request, None, &solved.best, (&[], &[]), &file);
    let predicted = inside::answer::text(&inside, Some(solved.best.seconds_each()));
    answer.inside = Some(inside);
    if let Some(path) = &plan.output {
        files::write(path, to_yaml(&file.plan).as_bytes())?;
    }
    let why = why(&asked.problem, &solved.best, &answer);
    answer::print_operators(plan, &answer, (&why, &predicted), output)
}

/// Scores a plan of a model; where devices share layers, as a plan of groups of them.
fn checked(
    subject: Subject<'_>,
    request: &PlanRequest,
    given: &schema::Plan,
) -> Result<(Asked, Result<Solution, CheckError>), Failure> {
    let groups = match subject {
        Subject::Model(whole) => of_plan(whole, request, given)?,
        Subject::Profile(..) => None,
    };
    let Some((groups, alone)) = groups else { return checked_alone(subject, request, given) };
    let of_groups = groups.contracted(given)?;
    let (asked, found) = checked_alone(Subject::Model(&groups.own), &alone, &of_groups)?;
    Ok((asked.of_groups(groups).sharing_asked(Way::of_plan(given)), found))
}

/// Scores a plan of a model, whose blocks may be calls of any depth, and operators.
fn checked_alone(
    subject: Subject<'_>,
    request: &PlanRequest,
    given: &schema::Plan,
) -> Result<(Asked, Result<Solution, CheckError>), Failure> {
    let question = Question::new(request, subject)?;
    question.check(given)?;
    let named = given.stages.iter().flat_map(|stage| &stage.blocks).map(String::as_str);
    let grain = question.sliceable().map(|model| model.named(named)).unwrap_or_default();
    let mut asked = question.with_bands(question.asked(&grain), &grain);
    // A plan states itself whether stages wait for their sends.
    let waits = given.execution.is_some_and(|execution| execution.blocking_sends == Some(true));
    asked.problem.machine.overlaps &= !waits;
    let found = check_plan(&asked.problem, given);
    Ok((asked, found))
}

/// Adds the strategies that were not requested, best first: including rule-of-thumb cuts and pipelines without a flush.
fn with_all(problem: &Problem, solved: &mut Planned) {
    // With the same number of micro-batches, so that the same work is compared.
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
