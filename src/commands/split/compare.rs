//! The alternatives: the best of each family, rule-of-thumb cuts, and the savings of the chosen plan.

use partitioner::{
    MadeBy, MicroBatches, PlanError, Planned, Problem, STRATEGIES, Solution, Strategy, plan_with,
};
use schema::{ComparedPlan, Seconds, SimulatedPlan, StepSplit};

use crate::{commands::simulate, failure::Failure};

/// The family of a plan, whichever strategy made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    OneDevice,
    Whole,
    Pipeline,
    Hybrid,
}

fn family(solution: &Solution) -> Family {
    match solution.stages.len() {
        1 if solution.stages[0].run.count == 1 => Family::OneDevice,
        1 => Family::Whole,
        _ if solution.stages.iter().all(|stage| stage.run.count == 1) => Family::Pipeline,
        _ => Family::Hybrid,
    }
}

/// A plan to compare with, simulated.
pub struct Row {
    pub answer: ComparedPlan,
    split: Option<StepSplit>,
}

/// The comparison: the best of each family and rule-of-thumb cuts; then every strategy.
pub struct Comparison {
    pub families: Vec<Row>,
    pub strategies: Vec<Row>,
}

/// Simulates the alternatives; `every` strategy, or the best of each family.
pub fn compare(
    problem: &Problem,
    solved: &Planned,
    simulated: &SimulatedPlan,
    every: bool,
    plan: impl Fn(&Solution) -> schema::Plan,
) -> Comparison {
    // With the same number of micro-batches, so that the same work is compared.
    let mut problem = problem.clone();
    problem.training.micro_batches = MicroBatches::About(solved.best.micro_batches);
    let row = |name: &str, solution: &Solution| -> Result<Row, Failure> {
        let is_ours = *solution == solved.best;
        let (step, split, n) = if is_ours {
            (simulated.step_seconds, simulated.split, simulated.micro_batches)
        } else {
            let other = simulate::step(name, &plan(solution))?;
            (other.step, other.split, other.micro_batches)
        };
        // With replicas, the number of micro-batches may differ slightly.
        let scale = f64::from(simulated.micro_batches) / f64::from(n.max(1));
        Ok(Row {
            answer: ComparedPlan {
                name: name.to_string(),
                strategy: Some(solution.title()),
                schedule: Some(solution.schedule.name().to_string()),
                stages: Some(solution.stages.len() as u32),
                chunks: Some(solution.chunks() as u32).filter(|&chunks| chunks > 1),
                step_seconds: Some(step.0 * scale),
                slower: Some(step.0 * scale / simulated.step_seconds.0 - 1.0),
                fails: None,
                is_chosen: is_ours,
            },
            split: Some(scaled(split, scale)),
        })
    };
    // Some schedules cannot run a plan.
    let row = |name: &str, solution: &Solution| {
        row(name, solution).unwrap_or_else(|failure| {
            let reason = failure.to_string();
            no(name, reason.strip_prefix(&format!("{name}: ")).unwrap_or(&reason).to_string())
        })
    };
    let all: Vec<&Solution> = std::iter::once(&solved.best).chain(&solved.others).collect();
    let best_of = |wanted: Family| {
        let own = all.iter().filter(|one| {
            family(one) == wanted && one.made_by.strategy().is_some_and(Strategy::is_candidate)
        });
        own.min_by(|a, b| a.seconds_each().total_cmp(&b.seconds_each())).copied()
    };
    let mut without_stages = problem.clone();
    without_stages.training.stages = None;
    let mut families = Vec::new();
    for (name, wanted, strategies) in [
        ("best pipeline", Family::Pipeline, [Strategy::OneForwardOneBackward, Strategy::GPipe]),
        ("data parallel", Family::Whole, [Strategy::DataParallel, Strategy::DataParallel]),
        ("best hybrid", Family::Hybrid, [Strategy::Hybrid, Strategy::Hybrid]),
    ] {
        // A user who requests a number of stages also sees the plan without stages.
        let is_left_out = wanted == Family::Whole && problem.training.stages.is_some_and(|n| n > 1);
        families.push(match best_of(wanted) {
            Some(solution) => row(name, solution),
            None if is_left_out => match plan_with(&without_stages, Strategy::DataParallel) {
                Ok(solution) => row(name, &solution),
                Err(error) => no(name, words(&error)),
            },
            None => no(name, why_not(&problem, solved, wanted, &strategies)),
        });
    }
    for (name, strategy) in [
        ("even layers, by hand", Strategy::EvenLayers),
        ("even parameters, by hand", Strategy::EvenParameters),
    ] {
        families.push(match plan_with(&problem, strategy) {
            Ok(solution) => row(name, &solution),
            Err(error) => no(name, words(&error)),
        });
    }
    // The plan of a named strategy may be the best of no family.
    if !families.iter().any(|row| row.answer.is_chosen) {
        families.push(row(solved.best.made_by.name(), &solved.best));
    }
    let mut strategies = Vec::new();
    for strategy in STRATEGIES.into_iter().filter(|_| every) {
        let known =
            all.iter().find(|one| one.made_by == MadeBy::Strategy(strategy)).map(|one| Ok((*one).clone()));
        let found = known.unwrap_or_else(|| plan_with(&problem, strategy));
        strategies.push(match found {
            Ok(solution) => row(strategy.name(), &solution),
            Err(error) => no(strategy.name(), words(&error)),
        });
    }
    let order = |rows: &mut Vec<Row>| {
        let key = |row: &Row| row.answer.step_seconds.unwrap_or(f64::INFINITY);
        rows.sort_by(|a, b| key(a).total_cmp(&key(b)).then(b.answer.is_chosen.cmp(&a.answer.is_chosen)));
    };
    order(&mut families);
    order(&mut strategies);
    Comparison { families, strategies }
}

fn no(name: &str, reason: String) -> Row {
    let answer = ComparedPlan {
        name: name.to_string(),
        strategy: None,
        schedule: None,
        stages: None,
        chunks: None,
        step_seconds: None,
        slower: None,
        fails: Some(reason),
        is_chosen: false,
    };
    Row { answer, split: None }
}

/// Returns why a family has no plan.
fn why_not(problem: &Problem, solved: &Planned, wanted: Family, strategies: &[Strategy]) -> String {
    if let Some((_, error)) = solved.failed.iter().find(|(strategy, _)| strategies.contains(strategy)) {
        return words(error);
    }
    let n_devices = problem.machine.devices.len();
    match wanted {
        Family::Hybrid if n_devices < 4 => "two stages of two replicas need four devices".to_string(),
        _ if n_devices < 2 => "there is one device".to_string(),
        _ => "it was not requested".to_string(),
    }
}

/// A planner's error, short enough for a line.
fn words(error: &PlanError) -> String {
    match error {
        PlanError::Memory { block, needed, device, limit } => {
            let (needed, limit) = (schema::Bytes(*needed), schema::Bytes(*limit));
            format!("does not fit: the stage of `{block}` needs {needed}, {device} has {limit}")
        }
        PlanError::NothingFits => "does not fit".to_string(),
        PlanError::Schedule { reason, .. } => reason.clone(),
        other => other.to_string(),
    }
}

fn scaled(split: StepSplit, by: f64) -> StepSplit {
    let StepSplit { compute, imbalance, bubble, latency, bandwidth, host, optimizer } = split;
    let [compute, imbalance, bubble, latency, bandwidth, host, optimizer] =
        [compute, imbalance, bubble, latency, bandwidth, host, optimizer].map(|part| part * by);
    StepSplit { compute, imbalance, bubble, latency, bandwidth, host, optimizer }
}

/// Explains the choice: the savings against the best other family, and against the best split by hand.
pub fn why(simulated: &SimulatedPlan, comparison: &Comparison) -> Vec<String> {
    let is_by_hand = |row: &Row| row.answer.name.ends_with("by hand");
    let next = |by_hand: bool| {
        let others = comparison.families.iter().filter(|row| !row.answer.is_chosen && row.split.is_some());
        others
            .filter(|row| is_by_hand(row) == by_hand)
            .find(|row| row.answer.slower.is_some_and(|by| by > 1e-4))
    };
    [next(false), next(true)].into_iter().flatten().filter_map(|row| reason(simulated, row)).collect()
}

fn reason(simulated: &SimulatedPlan, row: &Row) -> Option<String> {
    let parts = |split: &StepSplit| {
        [
            ("computing", split.compute.0),
            ("imbalance", split.imbalance.0),
            ("bubble", split.bubble.0),
            ("transfers", split.latency.0 + split.bandwidth.0),
            ("host overhead", split.host.0),
            ("optimizer", split.optimizer.0),
        ]
    };
    let step = simulated.step_seconds.0;
    let theirs = parts(row.split.as_ref()?);
    let mut saved: Vec<(&str, f64)> =
        parts(&simulated.split).iter().zip(theirs).map(|(ours, other)| (ours.0, other.1 - ours.1)).collect();
    // Less than 0.5 % of the step explains nothing.
    saved.retain(|(_, seconds)| seconds.abs() > 0.005 * step);
    saved.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
    let say = |parts: Vec<&(&str, f64)>| {
        let parts =
            parts.into_iter().take(3).map(|(name, seconds)| format!("{} of {name}", Seconds(seconds.abs())));
        match parts.collect::<Vec<_>>().as_slice() {
            [] => None,
            [one] => Some(one.clone()),
            [first @ .., last] => Some(format!("{} and {last}", first.join(", "))),
        }
    };
    let gains = say(saved.iter().filter(|part| part.1 > 0.0).collect())?;
    let losses = say(saved.iter().filter(|part| part.1 < 0.0).collect());
    let losses = losses.map_or_else(String::new, |losses| format!(", for {losses} more"));
    Some(format!("against {}: saves {gains}{losses}", row.answer.name))
}
