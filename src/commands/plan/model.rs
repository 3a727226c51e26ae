//! `plan MODEL` by our own objective: a profile graph or a traced model on a cluster.

use std::collections::BTreeSet;

use partitioner::{
    CheckError, MicroBatches, PlanError, Planned, Problem, Solution, Strategy, check_plan, plan_with,
};
use schema::{Cluster, to_yaml};

use super::{
    Plan, answer,
    answer::Unit,
    asked::{Asked, Question},
    clusters::cluster,
    input::Input,
    inseparable::Inseparable,
    no_plan::no_plan,
    refine,
    why::why,
};
use crate::{
    cost_models::CostModels,
    failure::{self, Failure},
    files,
    nearest::nearest,
    output::Output,
    plan_file,
};

/// Plans a model on a cluster, or checks a plan.
pub fn run(plan: &Plan, input: &Input, output: &mut Output) -> Result<(), Failure> {
    let given = plan.check.as_deref().map(plan_file::read).transpose()?;
    let has_cluster = plan.devices.is_some() || plan.cluster.is_some() || !plan.machines.is_empty();
    let models = CostModels::read(&plan.cost_models)?;
    let cluster = match &given {
        // A plan brings its cluster along.
        Some(given) if !has_cluster => given.cluster.clone(),
        _ => cluster(plan, &models)?,
    };
    if let Some(given) = given {
        let (asked, checked) = checked(plan, input, &cluster, &models, &given)?;
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
        let answer = asked.answer(plan, None, &solution, (&[], &[]), &asked.file(&solution));
        let why = why(problem, &solution, &answer);
        return answer::print(plan, &answer, Unit::MicroBatch, &why, output);
    }
    let strategy = if plan.strategy == "auto" { None } else { Some(strategy(&plan.strategy)?) };
    let (asked, mut solved) = planned(plan, input, cluster, &models, strategy)?;
    if plan.compare {
        with_all(&asked.problem, &mut solved);
    }
    let file = asked.file(&solved.best);
    let beside = (&solved.others[..], &solved.failed[..]);
    let mut answer = asked.answer(plan, Some(&solved.ways), &solved.best, beside, &file);
    answer.micro_batches_tried = solved.tried;
    if let Some(path) = &plan.output {
        files::write(path, to_yaml(&file).as_bytes())?;
    }
    let why = why(&asked.problem, &solved.best, &answer);
    answer::print(plan, &answer, Unit::MicroBatch, &why, output)
}

/// Reads a model and scores a plan of it, whose blocks may be calls of any depth, and operators.
fn checked(
    plan: &Plan,
    input: &Input,
    cluster: &Cluster,
    models: &CostModels,
    given: &schema::Plan,
) -> Result<(Asked, Result<Solution, CheckError>), Failure> {
    let question = Question::new(plan, input, cluster.clone(), models)?;
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
        let is_known = |name: &str| name == strategy.name();
        if is_known(solved.best.strategy)
            || solved.others.iter().any(|other| is_known(other.strategy))
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

/// Reads a model and finds its best plan, whose stages can be written; chooses the number of micro-batches where none is
/// asked for.
pub fn planned(
    plan: &Plan,
    input: &Input,
    cluster: Cluster,
    models: &CostModels,
    strategy: Option<Strategy>,
) -> Result<(Asked, Planned), Failure> {
    let question = Question::new(plan, input, cluster, models)?;
    let mut joined = BTreeSet::new();
    let mut reason: Option<String> = None;
    for _ in 0..MAX_ROUNDS {
        let (asked, solved) = refine::planned(&question, strategy, &joined).map_err(|(problem, error)| {
            let failure = no_plan(plan, &problem, error);
            match &reason {
                Some(reason) => failure.with_hint(format!("not every cut can be: {reason}")),
                None => failure,
            }
        })?;
        let found = asked.program.as_ref();
        let found = found.and_then(|program| Inseparable::of(program, &asked.problem, &solved.best));
        let Some(Inseparable { paths, reason: why }) = found else {
            if let Some(reason) = reason {
                failure::note(format!("not every cut can be ({reason}); planned with those that can"));
            }
            return Ok((asked, solved));
        };
        joined.extend(paths);
        reason.get_or_insert(why);
    }
    let message = format!("no stages were found that can be written: {}", reason.unwrap_or_default());
    Err(Failure::no(message).with_hint("`model-analyze emit --cut` tells which cuts near a given one can be"))
}

/// Returns the strategy of this name, or the names that there are.
pub fn strategy(name: &str) -> Result<Strategy, Failure> {
    Strategy::from_name(name).ok_or_else(|| {
        let names = || ["auto"].into_iter().chain(partitioner::STRATEGIES.iter().map(|one| one.name()));
        let meant =
            nearest(name, names(), 3).map_or_else(String::new, |near| format!(", did you mean `{near}`?"));
        Failure::input(format!("no strategy is called `{name}`{meant}"))
            .with_hint(format!("strategies are {}", names().collect::<Vec<_>>().join(", ")))
    })
}
