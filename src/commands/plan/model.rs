//! `plan MODEL` by our own objective: a profile graph or a traced model on a cluster.

use std::collections::BTreeSet;

use partitioner::{
    Change, CheckError, Machine, MicroBatches, OperatorSeconds, PlanError, Planned, Problem, ProblemError,
    Solution, Strategy, Training, Ways, check_plan, from_graph, plan_model, plan_with, to_plan, what_if,
};
use schema::{
    Bytes, BytesPerSecond, Cluster, ClusterError, Device, DeviceType, Level, ModelReference, PlanAnswer,
    RunnerUp, Seconds, StageAnswer, WhatIf, read_cluster, short_cluster, to_yaml,
};
use sha2::{Digest, Sha256};
use tracer::Program;

use super::{Plan, answer, answer::Unit, costs, input::Input, inseparable::Inseparable, why::why};
use crate::{
    PROGRAM,
    commands::simulate,
    cost_models::CostModels,
    failure::{self, Failure},
    files, model,
    nearest::nearest,
    output::Output,
    plan_file,
};

/// The most micro-batches of a step that are planned: each of their passes is timed.
const MICRO_BATCHES: u32 = 1_000_000;

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

/// Reads a model and scores a plan of it. Its blocks may be smaller ones than would be taken for its cluster.
fn checked(
    plan: &Plan,
    input: &Input,
    cluster: &Cluster,
    models: &CostModels,
    given: &schema::Plan,
) -> Result<(Asked, Result<Solution, CheckError>), Failure> {
    // A plan says itself whether stages wait for what they send.
    let waits = given.execution.is_some_and(|execution| execution.blocking_sends == Some(true));
    let asked = |n_blocks: usize| -> Result<Asked, Failure> {
        let grain = Grain { n_blocks, ..Grain::default() };
        let mut asked = Asked::new(plan, input, cluster.clone(), models, &grain)?;
        asked.problem.machine.overlaps &= !waits;
        Ok(asked)
    };
    let is_known =
        |found: &Result<Solution, CheckError>| !matches!(found, Err(CheckError::UnknownBlock { .. }));
    let first = asked(0)?;
    let found = check_plan(&first.problem, given);
    let mut n_blocks = first.problem.blocks.len();
    if is_known(&found) {
        return Ok((first, found));
    }
    loop {
        let finer = asked(n_blocks + 1)?;
        if finer.problem.blocks.len() <= n_blocks {
            return Ok((first, found));
        }
        n_blocks = finer.problem.blocks.len();
        let other = check_plan(&finer.problem, given);
        if is_known(&other) {
            return Ok((finer, other));
        }
    }
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

/// A model on a cluster, ready to be planned.
pub struct Asked {
    /// What the planner is asked.
    pub problem: Problem,
    /// Samples in one micro-batch, where the model tells.
    pub batch: Option<u64>,
    /// Tells models apart: a trace by its code and tensors, whose weights may change, a profile by its file.
    model: ModelReference,
    cluster: Cluster,
    uncertain: Option<(costs::Ends, schema::TimesFrom)>,
    /// What stages are cut from; none where that is no archive.
    program: Option<Program>,
}

/// How a traced model is taken apart.
#[derive(Default)]
struct Grain {
    /// Blocks that go with the ones before them.
    joined: BTreeSet<String>,
    /// So many blocks, and twice as many as devices, where the model has as many.
    n_blocks: usize,
}

/// A traced model's problem, and what else is known of it.
struct Traced {
    problem: Problem,
    uncertain: (costs::Ends, schema::TimesFrom),
    batch: Option<u64>,
    program: Program,
}

impl Asked {
    /// Reads the model and predicts its blocks.
    fn new(
        plan: &Plan,
        input: &Input,
        cluster: Cluster,
        models: &CostModels,
        grain: &Grain,
    ) -> Result<Self, Failure> {
        cluster.validate().map_err(|error| match (&plan.check, &plan.cluster) {
            (Some(path), None) | (None, Some(path)) => cluster_failure(error).in_file(path),
            _ => cluster_failure(error),
        })?;
        let training = Training {
            micro_batches: plan.micro_batches.map_or(MicroBatches::Enough, MicroBatches::Exactly),
            stages: plan.stages,
            optimizer_factor: plan.optimizer.factor(),
            recompute: !plan.no_recompute,
            offload: plan.offload,
            ..Training::default()
        };
        if plan.stages == Some(0) {
            return Err(Failure::input("--stages is 0; a pipeline has one at least"));
        }
        if let Some(count) = plan.micro_batches.filter(|&count| count > MICRO_BATCHES) {
            return Err(Failure::input(format!(
                "--micro-batches is {count}; steps of {MICRO_BATCHES} at the most are planned"
            )));
        }
        let machine = Machine::from_cluster(&cluster, !plan.no_overlap);
        let of_file = || -> Result<String, Failure> {
            let digest = Sha256::digest(&files::map(&plan.model)?[..]);
            Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
        };
        let (mut problem, uncertain, digest, batch, program) = match input {
            Input::Pipedream(_) if !plan.cost_models.is_empty() => {
                return Err(Failure::input(
                    "a profile graph brings its own times; --cost-model is for traced models",
                ));
            }
            Input::Pipedream(profile) => {
                (Problem::from_profile(profile, machine, training), None, of_file()?, None, None)
            }
            _ => {
                let Traced { problem, uncertain, batch, program } =
                    traced((plan, models), &cluster, machine, training, grain)?;
                let digest = tracer::digest(&program);
                let program = Some(program).filter(|program| program.archive.is_some());
                (problem, Some(uncertain), digest, batch, program)
            }
        };
        if let Some(samples) = plan.batch {
            problem.training.micro_batches = MicroBatches::Exactly(shared(samples, batch)?);
        }
        let model = ModelReference { name: plan.model_name(), digest };
        Ok(Self { problem, batch, model, cluster, uncertain, program })
    }

    /// Returns a solution as a plan that can be simulated.
    pub fn plan(&self, solution: &Solution) -> schema::Plan {
        to_plan(&self.problem, solution, &self.cluster, self.model.clone(), PROGRAM)
    }

    /// Returns a solution as the plan that is written: with how sure it is, and the simulator's bubble.
    pub fn file(&self, solution: &Solution) -> schema::Plan {
        let mut file = self.plan(solution);
        if let Some((ends, from)) = &self.uncertain {
            ends.set_bands(&self.problem, &mut file);
            file.predicted.times = Some(from.clone());
        }
        set_bubble(&mut file);
        file
    }

    /// Returns the answer about a solution: its stages, what came next, and what would help.
    pub fn answer(
        &self,
        plan: &Plan,
        ways: Option<&Ways>,
        solution: &Solution,
        (others, failed): (&[Solution], &[(Strategy, PlanError)]),
        file: &schema::Plan,
    ) -> PlanAnswer {
        let problem = &self.problem;
        let is_small = problem.blocks.len() * problem.machine.devices.len() <= 20_000;
        let changes = match ways {
            Some(ways) if is_small => what_if(problem, ways, solution, Strategy::from_name(&plan.strategy)),
            _ => Vec::new(),
        };
        let mut answer = answer_of(plan, problem, solution, others, failed, &changes);
        answer.samples = self.batch.map(|samples| samples * u64::from(solution.micro_batches));
        answer.bubble = file.predicted.bubble;
        answer.band = file.predicted.band;
        answer.times.clone_from(&file.predicted.times);
        answer
    }
}

/// Takes the simulator's word for the bubble, so that `plan`, `simulate` and `report` say the same of a plan.
///
/// A step too large to be simulated in passing keeps the planner's own sum.
fn set_bubble(plan: &mut schema::Plan) {
    const MOST_OPERATIONS: usize = 300_000;
    let is_small = plan.stages.len() * plan.micro_batches as usize * 3 <= MOST_OPERATIONS;
    if is_small
        && plan.predicted.bubble.is_some()
        && let Ok(bubble) = simulate::bubble(plan)
    {
        plan.predicted.bubble = Some(bubble);
    }
}

/// Reads a traced model and predicts its blocks on the cluster's devices.
fn traced(
    (plan, models): (&Plan, &CostModels),
    cluster: &Cluster,
    mut machine: Machine,
    training: Training,
    grain: &Grain,
) -> Result<Traced, Failure> {
    models.require_used(cluster)?;
    let model = model::load(&plan.model, &plan.input)?;
    let operators = graph::costs(&model.graph);
    // Times are for the first device's type; others are faster or slower as a whole.
    let whole = |name: &str| {
        let times = costs::times(&model.graph, &operators, &models.of(name, cluster.types.get(name)?));
        let sum = times.seconds.iter().map(|time| time.forward + time.input_gradient + time.weight_gradient);
        let total = sum.sum::<f64>();
        Some((times, total))
    };
    let missing = || Failure::input("the cluster has no device types");
    let (times, total) = whole(&cluster.devices[0].type_).ok_or_else(missing)?;
    if total <= 0.0 {
        let hint = match model::notes(&model.program).next() {
            Some(note) => format!("what takes time may be hidden; {note}: trace the model without branches"),
            None => {
                "are the shapes right? give others with --input, or trace with `model-analyze trace`".into()
            }
        };
        let failure = Failure::input("no operator is known to take time").in_file(&plan.model);
        return Err(failure.with_hint(hint));
    }
    for (name, type_) in &cluster.types {
        let Some((_, other)) = whole(name) else { continue };
        let relative = if other > 0.0 { total / other } else { 1.0 };
        for (device, placed) in machine.devices.iter_mut().zip(&cluster.devices) {
            if placed.type_ == *name {
                device.speed = type_.speed.unwrap_or(1.0) * relative;
            }
        }
    }
    let wanted = grain.n_blocks.max(2 * machine.devices.len().min(64));
    let problem = |seconds: &[OperatorSeconds]| {
        from_graph(&model.graph, &operators, seconds, machine.clone(), training, wanted, &grain.joined)
    };
    let ends = costs::Ends(times.ends.each_ref().map(|end| problem(end)));
    Ok(Traced {
        problem: problem(&times.seconds),
        uncertain: (ends, times.from),
        batch: batch(&model.graph),
        program: model.program,
    })
}

/// Samples in one micro-batch: the first size of the first input.
fn batch(graph: &graph::ModelGraph) -> Option<u64> {
    let tensors = graph.values[graph.inputs.first()?.index()].fact.tensors();
    *tensors.first()?.shape.as_ref()?.first()?
}

/// Returns the micro-batches of a batch of so many samples.
fn shared(batch: u64, samples: Option<u64>) -> Result<u32, Failure> {
    let Some(samples) = samples.filter(|&samples| samples > 0) else {
        return Err(Failure::input("nothing says how many samples a micro-batch of this model has")
            .with_hint("--micro-batches counts batches as large as the model's inputs or the profile's"));
    };
    let count = batch / samples;
    if batch == 0 || !batch.is_multiple_of(samples) {
        let near: Vec<String> =
            [count, count + 1].iter().filter(|&&n| n > 0).map(|n| (n * samples).to_string()).collect();
        return Err(Failure::input(format!(
            "a batch of {batch} cannot be made of micro-batches of {samples}, the size of the model's inputs"
        ))
        .with_hint(format!(
            "{} can; another --input or trace has micro-batches of another size",
            near.join(" or ")
        )));
    }
    u32::try_from(count).map_err(|_| Failure::input(format!("--batch {batch} is too large")))
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
    let mut grain = Grain::default();
    let mut reason: Option<String> = None;
    for _ in 0..MAX_ROUNDS {
        let mut asked = Asked::new(plan, input, cluster.clone(), models, &grain)?;
        let solved = plan_model(&mut asked.problem, strategy).map_err(|error| {
            let failure = no_plan(plan, &asked.problem, error);
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
        grain.joined.extend(paths);
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

/// Returns by which share something is more than another; a model without known work takes no time at all.
fn more(one: f64, other: f64) -> f64 {
    match one == other {
        true => 0.0,
        false => one / other - 1.0,
    }
}

/// Says why there is no plan, in which file, and what would have to change.
fn no_plan(plan: &Plan, problem: &Problem, error: PlanError) -> Failure {
    match (&error, &plan.cluster) {
        (PlanError::Problem(ProblemError::NoBlocks | ProblemError::BadNumber { .. }), _) => {
            changes(plan, problem, error).in_file(&plan.model)
        }
        (
            PlanError::TooManyStages { .. }
            | PlanError::TooManyWorking { .. }
            | PlanError::TooFewDevices { .. },
            _,
        ) => changes(plan, problem, error).in_file(&plan.model),
        (PlanError::Problem(_), Some(cluster)) => changes(plan, problem, error).in_file(cluster),
        _ => changes(plan, problem, error),
    }
}

/// Says what would have to change: each change alone, and only those that were tried and do.
fn changes(plan: &Plan, problem: &Problem, error: PlanError) -> Failure {
    match &error {
        PlanError::Memory { needed, limit, .. } => {
            let (needed, limit) = (Bytes(*needed), Bytes(*limit));
            let short = rounded_up(Bytes(needed.0.saturating_sub(limit.0)));
            let needed = rounded_up(needed);
            let mut changes = vec![format!("{short} more on each device ({needed} instead of {limit})")];
            changes.extend(smaller_changes(problem, Strategy::from_name(&plan.strategy)));
            Failure::no(&error).with_hint(format!("one of these would do: {}", changes.join("; ")))
        }
        PlanError::NothingFits => Failure::no(error),
        PlanError::TooManyStages { .. } | PlanError::TooManyWorking { .. } => {
            Failure::input(error).with_hint("ask for fewer stages")
        }
        PlanError::TooFewDevices { .. } => Failure::input(error)
            .with_hint("a stage has devices of its own; --strategy interleaved makes several parts of each"),
        PlanError::Schedule { .. } | PlanError::Problem(_) => Failure::input(error),
    }
}

/// Returns no less, with the three digits that are shown: who adds what is shown adds enough.
fn rounded_up(bytes: Bytes) -> Bytes {
    let mut unit = 1.0;
    while bytes.0 as f64 / unit >= 1000.0 {
        unit *= 1024.0;
    }
    let step = match bytes.0 as f64 / unit {
        value if value < 10.0 => unit / 100.0,
        value if value < 100.0 => unit / 10.0,
        _ => unit,
    };
    // A byte less than a whole one is none.
    Bytes(((bytes.0 as f64 / step.max(1.0)).ceil() * step.max(1.0)).ceil() as u64)
}

/// Tries more devices and the options that save memory, for the strategy that was asked for or for all; searches of large problems are left out.
fn smaller_changes(problem: &Problem, asked: Option<Strategy>) -> Vec<String> {
    const SMALL: usize = 4000;
    let n_devices = problem.machine.devices.len();
    if problem.blocks.len() * n_devices > SMALL {
        return Vec::new();
    }
    let fits = |problem: &Problem| {
        let serves = |strategy: &Strategy| match asked {
            Some(asked) => *strategy == asked,
            None => strategy.is_candidate(),
        };
        partitioner::STRATEGIES
            .into_iter()
            .filter(serves)
            .any(|strategy| partitioner::fits(problem, strategy))
    };
    let mut changes = Vec::new();
    let with_devices = |count: usize| Problem { machine: problem.machine.grown(count), ..problem.clone() };
    if !problem.machine.levels.is_empty() {
        // What fits fits more devices as well: halve what lies between.
        let (mut few, mut enough) = (n_devices, 4 * n_devices.max(2));
        if fits(&with_devices(enough)) {
            while enough - few > 1 {
                let middle = (few + enough) / 2;
                if fits(&with_devices(middle)) { enough = middle } else { few = middle }
            }
            changes.push(format!("{enough} devices instead of {n_devices}"));
        }
    }
    let training = &problem.training;
    let few = match training.micro_batches {
        MicroBatches::Exactly(count) => count,
        _ => 1,
    };
    let mut fewer =
        std::iter::successors(Some(few / 2), |count| Some(count / 2)).take_while(|&count| count > 0);
    let with = |count: u32| {
        let training = Training { micro_batches: MicroBatches::Exactly(count), ..problem.training };
        Problem { training, ..problem.clone() }
    };
    let enough = fewer.find(|&count| fits(&with(count)));
    changes.extend(enough.map(|count| format!("--micro-batches {count}")));
    let mut option = |is_open: bool, words: &str, change: fn(&mut Training)| {
        let mut changed = problem.clone();
        change(&mut changed.training);
        if is_open && fits(&changed) {
            changes.push(words.to_string());
        }
    };
    option(!training.recompute, "computing activations again (leave --no-recompute out)", |training| {
        training.recompute = true;
    });
    option(!training.offload, "--offload", |training| training.offload = true);
    option(training.optimizer_factor > 1.0, "--optimizer momentum", |training| {
        training.optimizer_factor = 1.0;
    });
    option(training.optimizer_factor > 0.0, "--optimizer sgd", |training| training.optimizer_factor = 0.0);
    changes
}

fn cluster_failure(error: ClusterError) -> Failure {
    let hint = match &error {
        ClusterError::UnknownType(unknown) if !unknown.similar.is_empty() => {
            format!("did you mean {}?", unknown.similar.join(" or "))
        }
        ClusterError::UnknownType(_) => "describe it under `types` in a cluster file".to_string(),
        ClusterError::Short { .. } => "write 4xh100, 2x8xa100 or 4xa100+4xv100".to_string(),
        _ => return Failure::input(error),
    };
    Failure::input(error).with_hint(hint)
}

/// Returns the cluster that the arguments describe; devices of the user's cost models are known by their names.
pub fn cluster(plan: &Plan, models: &CostModels) -> Result<Cluster, Failure> {
    if let Some(text) = &plan.devices {
        return short_cluster(text, &models.devices()).map_err(cluster_failure);
    }
    if let Some(path) = &plan.cluster {
        let text = files::read_text(path)?;
        let name = path.display().to_string();
        return read_cluster(&text, &models.devices()).map_err(|error| match &error {
            ClusterError::Yaml(yaml) => {
                let failure = Failure::input(format!("{name}: {}", yaml.message));
                let start = yaml.place.map(|(line, column)| {
                    let lines = text.split_inclusive('\n').take(line.saturating_sub(1));
                    (lines.map(str::len).sum::<usize>() + column.saturating_sub(1)).min(text.len())
                });
                match start {
                    Some(start) if text.is_char_boundary(start) => {
                        failure.at(&name, &text, start..start, "here")
                    }
                    _ => failure,
                }
            }
            _ => cluster_failure(error).in_file(path),
        });
    }
    if plan.machines.is_empty() {
        return Err(Failure::input("a plan needs a cluster: --devices 4xh100, or --cluster FILE")
            .with_hint("profile graphs also take --machines 8,2 --bandwidth 30e9,3.125e9"));
    }
    machines(plan)
}

/// Makes a cluster of `--machines`, `--bandwidth` and `--memory`.
fn machines(plan: &Plan) -> Result<Cluster, Failure> {
    let bandwidths =
        if plan.bandwidth.is_empty() { vec![1e9; plan.machines.len()] } else { plan.bandwidth.clone() };
    if bandwidths.len() != plan.machines.len() {
        return Err(Failure::input(format!(
            "--machines has {} levels, --bandwidth {}; each level needs one of each",
            plan.machines.len(),
            bandwidths.len()
        )));
    }
    let total: u64 = plan.machines.iter().map(|&count| u64::from(count)).fold(1, u64::saturating_mul);
    if total == 0 || total > 100_000 {
        return Err(Failure::input(format!("--machines come to {total}; 1 to 100000 can be planned for")));
    }
    let type_ = DeviceType {
        memory: Bytes(plan.memory.unwrap_or(16e9).clamp(1.0, 1e18) as u64),
        memory_bandwidth: BytesPerSecond(1e12),
        ..DeviceType::default()
    };
    let device = |index: u64| {
        let mut size = 1;
        let inner = plan.machines[..plan.machines.len() - 1].iter();
        let place = inner.map(|&count| {
            size *= u64::from(count);
            (index / size) as u32
        });
        Device { name: format!("machine{index}"), type_: "machine".to_string(), place: place.collect() }
    };
    let level = |(index, &bandwidth): (usize, &f64)| Level {
        name: format!("level{index}"),
        bandwidth: BytesPerSecond(bandwidth),
        latency: Seconds(0.0),
    };
    Ok(Cluster {
        types: [("machine".to_string(), type_)].into_iter().collect(),
        devices: (0..total).map(device).collect(),
        levels: bandwidths.iter().enumerate().map(level).collect(),
        links: Vec::new(),
    })
}

fn answer_of(
    plan: &Plan,
    problem: &Problem,
    solution: &Solution,
    others: &[Solution],
    failed: &[(Strategy, PlanError)],
    changes: &[Change],
) -> PlanAnswer {
    let paths = |&block: &usize| problem.blocks[block].paths().cloned();
    let each = solution.seconds_each();
    let stages = solution.stages.iter().map(|stage| StageAnswer {
        blocks: stage.blocks.iter().flat_map(paths).collect(),
        devices: solution.devices(stage).map(|device| problem.machine.devices[device].name.clone()).collect(),
        replicas: stage.run.count as u32,
        seconds: stage.score.seconds,
        compute_seconds: stage.score.compute,
        sync_seconds: stage.score.sync,
        transfer_seconds: stage.score.transfer,
        memory_bytes: stage.score.memory as u64,
        bound_by: stage.score.bound_by.name().to_string(),
        recompute: stage.score.recompute.iter().flat_map(paths).collect(),
        offload: stage.score.offload.iter().flat_map(paths).collect(),
    });
    // Bytes of the fullest device.
    let fullest = |solution: &Solution| {
        solution.held(problem.machine.devices.len()).into_iter().fold(0.0, f64::max) as u64
    };
    let others = others.iter().map(|other| RunnerUp {
        strategy: other.strategy.to_string(),
        seconds: Some(other.seconds_each()),
        loses: Some(more(other.seconds_each(), each)),
        schedule: Some(other.schedule.to_string()),
        stages: Some(other.stages.len() as u32),
        chunks: Some(other.chunks() as u32).filter(|&chunks| chunks > 1),
        memory_bytes: Some(fullest(other)),
        fails: None,
    });
    let failed = failed.iter().map(|(strategy, error)| RunnerUp {
        strategy: strategy.name().to_string(),
        seconds: None,
        loses: None,
        schedule: None,
        stages: None,
        chunks: None,
        memory_bytes: None,
        fails: Some(match error {
            PlanError::Schedule { reason, .. } => reason.clone(),
            other => other.to_string(),
        }),
    });
    let (period, step) = match solution.objective {
        partitioner::Objective::Period(seconds) => (Some(seconds), None),
        partitioner::Objective::Step(seconds) => (None, Some(seconds)),
    };
    PlanAnswer {
        schema_version: answer::SCHEMA_VERSION,
        model: plan.model_name(),
        strategy: solution.strategy.to_string(),
        schedule: Some(solution.schedule.to_string()),
        micro_batches: Some(solution.micro_batches),
        samples: None,
        period_seconds: period,
        step_seconds: step,
        data_parallel_seconds: None,
        lower_bound_seconds: solution.lower_bound,
        gap: solution.gap(),
        optimal: solution.is_optimal(),
        bubble: solution.bubble,
        band: None,
        times: None,
        memory_bytes: Some(fullest(solution)),
        stages: stages.collect(),
        runners_up: others.chain(failed).collect(),
        what_if: changes
            .iter()
            .map(|change| WhatIf {
                change: change.change.to_string(),
                seconds: change.seconds,
                gains: more(each, change.seconds),
            })
            .collect(),
        micro_batches_tried: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_enough() {
        let check = |bytes: u64, expected: &str| {
            let up = rounded_up(Bytes(bytes));
            assert!(up.0 >= bytes && up.0 as f64 <= bytes as f64 * 1.011 + 1.0, "{bytes}: {}", up.0);
            assert_eq!(up.to_string(), expected);
        };
        check(0, "0 B");
        check(43, "43 B");
        check(111_400_000, "107 MiB");
        check(1_868_000_000, "1.74 GiB");
        check(106 << 20, "106 MiB");
        check((106 << 20) + 1, "107 MiB");
        check(15_938_355, "15.2 MiB");
        check(15_938_356, "15.3 MiB");
    }
}
