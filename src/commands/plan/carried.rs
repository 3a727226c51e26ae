//! A plan that was made for other devices, carried to those that are asked about: `--from`.
//!
//! Stages, what they compute again, schedule and sharding stay as they are; each stage gets as many replicas as there are devices
//! for. What comes of that is scored as `--check` scores it and stands among the candidates, so the answer is never slower.

use std::path::Path;

use partitioner::{
    CheckError, CutSpace, MadeBy, MicroBatches, PlanError, Planned, Solution, Strategy, check_plan,
    plan_model,
};
use schema::{Plan, Seconds, ShardingLevel};
use simulator::order::Schedule;

use super::{
    asked::{Asked, Question},
    inseparable::Inseparable,
    no_plan::Unplanned,
    request::PlanRequest,
    subject::Subject,
};
use crate::failure::{self, Failure};

/// The share by which plans must differ to be told apart.
const SAME: f64 = 1e-9;

/// Where the stages of a carried plan stand: the replicas of each rank, side by side or each pipeline by itself.
struct Layout {
    replicas: Vec<usize>,
    is_together: bool,
}

/// Returns what was found, or the plan that was given where that is faster on these devices.
pub(super) fn or_better(
    (question, subject): (&Question<'_>, Subject<'_>),
    request: &PlanRequest,
    (path, given): (&Path, &Plan),
    found: Result<(Asked, Planned), Unplanned>,
) -> Result<(Asked, Planned), Unplanned> {
    let is_asked_wrong = matches!(&found, Err(reason) if !reason.is_no());
    if is_asked_wrong {
        return found;
    }
    check(request, given).map_err(|failure| failure.in_file(path))?;
    let known = found.as_ref().ok().map(|(_, solved)| &solved.best);
    let scored = carried(question, request, given, known).map_err(|failure| failure.in_file(path))?;
    let (mut asked, mut own) = match scored {
        Ok(scored) => scored,
        Err(reason) => {
            failure::note(format!("the plan of --from does not run on these devices: {reason}"));
            return found;
        }
    };
    if let Some(reason) = not_written(subject, &asked, &own) {
        failure::note(format!("stages of the plan of --from cannot be written: {reason}"));
        return found;
    }
    let each = own.seconds_each();
    // Lower bounds are of any cut, whoever found it.
    let mut bound = own.lower_bound / counted(&own);
    let mut tried = Vec::new();
    if let Ok((asked, mut solved)) = found {
        let best = solved.best.seconds_each();
        if best <= each * (1.0 + SAME) {
            let (each, more) = (Seconds(each), (each / best - 1.0) * 100.0);
            failure::note(format!("the plan of --from takes {each} a micro-batch here, {more:.1} % more"));
            let place = solved.others.partition_point(|other| other.seconds_each() < own.seconds_each());
            solved.others.insert(place, own);
            return Ok((asked, solved));
        }
        bound = bound.max(solved.best.lower_bound / counted(&solved.best)).min(each);
        tried = solved.tried;
    }
    own.lower_bound = bound * counted(&own);
    own.made_by = strategy_of(&own).map_or(MadeBy::AsGiven, MadeBy::Strategy);
    let own_training = asked.problem.training;
    if !matches!(own_training.micro_batches, MicroBatches::Exactly(_)) {
        asked.problem.training.micro_batches = MicroBatches::About(own.micro_batches);
    }
    // Other strategies are planned in its blocks: what is compared is cut alike, and may turn out to be faster still.
    let planned = plan_model(&mut asked.problem, request.strategy, Some(&own));
    let is_better = |planned: &Planned| {
        planned.best.seconds_each() < each * (1.0 - SAME)
            && not_written(subject, &asked, &planned.best).is_none()
    };
    let planned = match planned {
        Ok(mut planned) if is_better(&planned) => {
            failure::note("the blocks of the plan of --from are planned in");
            planned.best.bound_by(bound);
            return Ok((asked, Planned { tried, ..planned }));
        }
        Ok(mut planned) => {
            planned.others.retain(|other| other.made_by != own.made_by);
            if planned.best.made_by != own.made_by {
                planned.others.insert(0, planned.best);
            }
            Planned { best: own, tried, ..planned }
        }
        Err(_) => {
            let cut_space = CutSpace::of(&asked.problem);
            Planned { best: own, others: Vec::new(), failed: Vec::new(), tried, cut_space, unranked: None }
        }
    };
    failure::note("the plan of --from is the fastest that was found for these devices");
    let (best, training) = (&planned.best, &mut asked.problem.training);
    (training.sharding, training.sharding_group) = (best.sharding(), best.execution.sharding_group);
    Ok((asked, planned))
}

/// Returns why the stages of a plan cannot be written, where they cannot.
fn not_written(subject: Subject<'_>, asked: &Asked, own: &Solution) -> Option<String> {
    Inseparable::of(subject.archive()?, &asked.problem, own).map(|found| found.reason)
}

/// Returns how many micro-batches the seconds of a plan are for.
fn counted(solution: &Solution) -> f64 {
    solution.seconds() / solution.seconds_each()
}

/// Refuses a plan that says otherwise than the arguments beside it, or of which this does not know how to run elsewhere.
fn check(request: &PlanRequest, given: &Plan) -> Result<(), Failure> {
    let stages = &given.stages;
    let sharding = given.execution.and_then(|execution| execution.sharding).unwrap_or(ShardingLevel::None);
    let n_ranks = given.n_ranks() as u32;
    let is_two_way = Schedule::from_name(&given.schedule).is_ok_and(|schedule| schedule.copies() > 1);
    let unlike = [
        (given.inference.is_some(), "is for a forward pass alone".to_string()),
        (
            !given.cuts.is_empty() || stages.iter().any(|stage| stage.tensor_parallel.is_some()),
            "has layers that devices share".to_string(),
        ),
        (is_two_way, "has two copies of the model".to_string()),
        (
            !(request.constraints.cut_at.is_empty() && request.constraints.layers.is_empty()),
            "has cuts of its own, and others are given".to_string(),
        ),
        (
            request.stages.is_some_and(|asked| asked != n_ranks),
            format!("has {n_ranks} stages in a row, --stages asks for others"),
        ),
        (
            request.sharding.is_some_and(|asked| asked != sharding),
            format!("shares out {}, --sharding asks for another level", sharding.name()),
        ),
        (
            !request.recompute && stages.iter().any(|stage| !stage.recompute.is_empty()),
            "computes activations again, and there is --no-recompute".to_string(),
        ),
        (
            !request.offload && stages.iter().any(|stage| !stage.offload.is_empty()),
            "lets activations wait in host memory, and there is no --offload".to_string(),
        ),
    ];
    match unlike.into_iter().find(|(is_unlike, _)| *is_unlike) {
        None => Ok(()),
        Some((_, what)) => Err(Failure::input(format!("--from: the plan {what}"))),
    }
}

/// Scores a plan on the devices that are asked about, in each layout; returns the fastest, or why there is none.
///
/// Its micro-batches are those of the plan that is known, so that times compare.
///
/// # Errors
/// When it is no plan of this model, or needs more devices.
fn carried(
    question: &Question<'_>,
    request: &PlanRequest,
    given: &Plan,
    known: Option<&Solution>,
) -> Result<Result<(Asked, Solution), String>, Failure> {
    let named = given.stages.iter().flat_map(|stage| &stage.blocks).map(String::as_str);
    let grain = question.sliceable().map(|model| model.named(named)).unwrap_or_default();
    let asked = question.with_bands(question.asked(&grain), &grain);
    let mut best: Option<Solution> = None;
    let mut reason = None;
    for layout in layouts(request, given)? {
        let replicas = layout.replicas.iter().copied().max().unwrap_or(1) as u32;
        let own = own_count(given, &layout);
        let counts = match (asked.problem.training.micro_batches, known) {
            (MicroBatches::Exactly(count), _) => vec![count],
            (_, Some(known)) => vec![known.micro_batches, own],
            (_, None) => vec![own],
        };
        for count in counts {
            let plan = Plan { micro_batches: count, ..placed(request, given, &layout) };
            if let Err(failure) = question.check(&plan) {
                reason.get_or_insert(failure.to_string());
                break;
            }
            let scored = match check_plan(&asked.problem, &plan) {
                Err(CheckError::Plan(error)) => Err(error),
                Err(other) => return Err(Failure::input(other)),
                Ok(scored) => Ok(scored),
            };
            match scored.map(|scored| (is_as_asked(&scored, request, count, replicas), scored)) {
                Ok((Ok(()), scored)) => {
                    let each = scored.seconds_each();
                    if best.as_ref().is_none_or(|best| each < best.seconds_each() * (1.0 - SAME)) {
                        best = Some(scored);
                    }
                    break;
                }
                Ok((Err(other), _)) => {
                    reason.get_or_insert(other);
                }
                // Its schedule may take micro-batches in rounds: so many as it had are some.
                Err(PlanError::Schedule { reason: other, .. }) => {
                    reason.get_or_insert(other);
                }
                Err(other) => {
                    reason.get_or_insert(other.to_string());
                    break;
                }
            }
        }
    }
    let none = || reason.unwrap_or_else(|| "it has no layout here".to_string());
    Ok(best.map(|best| (asked, best)).ok_or_else(none))
}

/// Tells why a carried plan is not what the arguments ask for.
fn is_as_asked(own: &Solution, request: &PlanRequest, count: u32, replicas: u32) -> Result<(), String> {
    let is_exact = request.micro_batches.is_some() || request.batch.is_some();
    if is_exact && own.micro_batches != count {
        return Err(format!("{count} micro-batches cannot be shared evenly by {replicas} replicas"));
    }
    match (request.strategy, strategy_of(own)) {
        (Some(asked), Some(strategy)) if asked != strategy => {
            Err(format!("it is {} there, and --strategy {} is asked for", strategy.name(), asked.name()))
        }
        _ => Ok(()),
    }
}

/// Returns the strategy that makes plans of this form.
fn strategy_of(own: &Solution) -> Option<Strategy> {
    let replicas = own.stages.iter().map(|stage| stage.run.count).max().unwrap_or(1);
    match (own.schedule, own.stages.len(), replicas) {
        (Schedule::OneForwardOneBackward, 1, 1) => Some(Strategy::OneDevice),
        (Schedule::OneForwardOneBackward, 1, _) => Some(Strategy::DataParallel),
        (Schedule::OneForwardOneBackward, _, 2..) => Some(Strategy::Hybrid),
        (schedule, ..) => Strategy::of_schedule(schedule),
    }
}

/// Returns the replicas of each rank.
fn replicas(given: &Plan) -> Vec<usize> {
    let ranks = given.ranks();
    let first = |rank: usize| ranks.iter().position(|own| *own == rank);
    (0..given.n_ranks()).filter_map(first).map(|stage| given.stages[stage].devices.len().max(1)).collect()
}

/// Returns the layouts of a plan's stages on the devices that are asked about.
fn layouts(request: &PlanRequest, given: &Plan) -> Result<Vec<Layout>, Failure> {
    let own = replicas(given);
    let (n_devices, n_used) = (request.cluster.devices.len(), own.iter().sum::<usize>());
    if own.len() > n_devices {
        return Err(Failure::input(format!(
            "--from: the plan has {} stages on devices of their own, and there are {n_devices} devices",
            own.len()
        ))
        .with_hint("plan without --from"));
    }
    let is_even = own.iter().all(|count| *count == own[0]);
    if !is_even {
        // As many times as many for each, and never none.
        let times = |count: &usize| (count * n_devices / n_used).max(1);
        let scaled: Vec<usize> = own.iter().map(times).collect();
        let fits = |replicas: &Vec<usize>| replicas.iter().sum::<usize>() <= n_devices;
        let all = [scaled, own].into_iter().filter(fits);
        return Ok(all.map(|replicas| Layout { replicas, is_together: true }).collect());
    }
    let most = n_devices / own.len();
    let mut counts = vec![most, own[0] * (most / own[0]), own[0]];
    counts.retain(|count| (1..=most).contains(count));
    counts.dedup();
    let layout = |is_together: bool| {
        let n_ranks = own.len();
        move |count: &usize| Layout { replicas: vec![*count; n_ranks], is_together }
    };
    let apart = counts.iter().filter(|count| **count > 1 && own.len() > 1).map(layout(false));
    Ok(counts.iter().map(layout(true)).chain(apart).collect())
}

/// Returns the micro-batches of a step in which each replica has as many as the plan gives it.
fn own_count(given: &Plan, layout: &Layout) -> u32 {
    let most = |replicas: &[usize]| replicas.iter().copied().max().unwrap_or(1) as u32;
    given.micro_batches.div_ceil(most(&replicas(given))).saturating_mul(most(&layout.replicas))
}

/// Returns the plan with its stages in a layout.
fn placed(request: &PlanRequest, given: &Plan, layout: &Layout) -> Plan {
    let devices = &request.cluster.devices;
    let n_ranks = layout.replicas.len();
    let of_rank = |rank: usize| -> Vec<String> {
        let count = layout.replicas[rank];
        let first: usize = layout.replicas[..rank].iter().sum();
        let at = |replica: usize| if layout.is_together { first + replica } else { rank + replica * n_ranks };
        (0..count).map(|replica| devices[at(replica)].name.clone()).collect()
    };
    let mut plan = given.clone();
    plan.cluster = request.cluster.clone();
    plan.constraints = Some(request.constraints.clone());
    for (stage, rank) in plan.stages.iter_mut().zip(given.ranks()) {
        stage.devices = of_rank(rank);
    }
    plan
}
