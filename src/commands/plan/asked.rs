//! What the planner is asked of a model on a cluster, and the answer to it.

use graph::ModelGraph;
use partitioner::{
    Change, Grain, Machine, MicroBatches, OperatorSeconds, PlanError, Problem, Sliceable, Solution, Strategy,
    Training, Ways, from_graph, to_plan, what_if,
};
use schema::{Cluster, ModelReference, PlanAnswer, RunnerUp, StageAnswer, WhatIf};
use sha2::{Digest, Sha256};

use super::{PlanRequest, Subject, answer, costs};
use crate::{PROGRAM, commands::simulate, failure::Failure, files, model, workspace::Workspace};

/// A model on a cluster, not yet taken apart into blocks.
pub(super) struct Question<'a> {
    request: &'a PlanRequest,
    subject: Subject<'a>,
    machine: Machine,
    training: Training,
    /// What operators take; none where a profile brings its own times.
    times: Option<costs::Times>,
    /// Samples in one micro-batch, where the model tells.
    batch: Option<u64>,
    /// Tells models apart: a trace by its code and tensors, whose weights may change, a profile by its file.
    model: ModelReference,
}

/// A model taken apart into blocks, on a cluster.
pub struct Asked {
    /// What the planner is asked.
    pub problem: Problem,
    /// Samples in one micro-batch, where the model tells.
    pub batch: Option<u64>,
    model: ModelReference,
    cluster: Cluster,
    uncertain: Option<(costs::Ends, schema::TimesFrom)>,
    /// Operators that take time, where the model is made of operators.
    n_operators: Option<u64>,
}

impl<'a> Question<'a> {
    /// Predicts the operators of a model.
    pub(super) fn new(request: &'a PlanRequest, subject: Subject<'a>) -> Result<Self, Failure> {
        let (mut training, mut machine) = (request.training(), request.machine());
        let (times, digest, batch) = match subject {
            Subject::Profile(..) if !request.cost_models.is_empty() => {
                return Err(Failure::input(
                    "a profile graph brings its own times; --cost-model is for traced models",
                ));
            }
            Subject::Profile(path, _) => {
                let digest = Sha256::digest(&files::read_bytes(path)?[..]);
                (None, digest.iter().map(|byte| format!("{byte:02x}")).collect(), None)
            }
            Subject::Model(workspace) => {
                let times = times(workspace, request, &mut machine)?;
                (Some(times), workspace.file.digest().to_string(), batch(&workspace.graph))
            }
        };
        if let Some(samples) = request.batch {
            training.micro_batches = MicroBatches::Exactly(shared(samples, batch)?);
        }
        let model = ModelReference { name: subject.name(), digest };
        Ok(Self { request, subject, machine, training, times, batch, model })
    }

    /// Returns the model as far as cutting it is concerned; nothing where its blocks are given.
    pub(super) fn sliceable(&self) -> Option<Sliceable<'_>> {
        match (self.subject, &self.times) {
            (Subject::Model(workspace), Some(times)) => {
                Some(Sliceable::new(&workspace.graph, &times.seconds))
            }
            _ => None,
        }
    }

    /// Returns the devices of the cluster.
    pub(super) fn n_devices(&self) -> usize {
        self.machine.devices.len()
    }

    /// Returns the number of stages that is asked for.
    pub(super) fn stages(&self) -> Option<u32> {
        self.request.stages
    }

    /// Takes the model apart.
    pub(super) fn asked(&self, grain: &Grain) -> Asked {
        let (machine, training) = (|| self.machine.clone(), self.training);
        let (problem, uncertain, n_operators) = match (self.subject, &self.times) {
            (Subject::Profile(_, profile), _) => {
                (Problem::from_profile(profile, machine(), training), None, None)
            }
            (Subject::Model(workspace), times) => {
                let times = times.as_ref().expect("a traced model has times");
                let model = Sliceable::new(&workspace.graph, &times.seconds);
                let problem = |seconds: &[OperatorSeconds]| {
                    from_graph(&model, grain, &workspace.costs, seconds, machine(), training)
                };
                let ends = costs::Ends(times.ends.each_ref().map(|end| problem(end)));
                let n_operators = Some(model.n_working() as u64);
                (problem(&times.seconds), Some((ends, times.from.clone())), n_operators)
            }
        };
        let (model, cluster) = (self.model.clone(), self.request.cluster.clone());
        Asked { problem, batch: self.batch, model, cluster, uncertain, n_operators }
    }
}

impl Asked {
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
        request: &PlanRequest,
        ways: Option<&Ways>,
        solution: &Solution,
        (others, failed): (&[Solution], &[(Strategy, PlanError)]),
        file: &schema::Plan,
    ) -> PlanAnswer {
        let problem = &self.problem;
        let is_small = problem.blocks.len() * problem.machine.devices.len() <= 20_000;
        let changes = match ways {
            Some(ways) if is_small => what_if(problem, ways, solution, request.alternatives),
            _ => Vec::new(),
        };
        let mut answer = answer_of(&self.model.name, problem, solution, others, failed, &changes);
        answer.samples = self.batch.map(|samples| samples * u64::from(solution.micro_batches));
        answer.bubble = file.predicted.bubble;
        answer.operators = self.n_operators;
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

/// Predicts what operators take on the cluster's devices, and tells the machine how fast these are for the model.
fn times(
    workspace: &Workspace,
    request: &PlanRequest,
    machine: &mut Machine,
) -> Result<costs::Times, Failure> {
    let Workspace { file: model, graph, costs: operators } = workspace;
    let (cluster, models) = (&request.cluster, &request.cost_models);
    // Times are for the first device's type; others are faster or slower as a whole.
    let whole = |name: &str| {
        let times = costs::times(graph, operators, &models.of(name, cluster.types.get(name)?));
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
        let failure = Failure::input("no operator is known to take time").in_file(model.path());
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
    Ok(times)
}

/// Samples in one micro-batch: the first size of the first input.
fn batch(graph: &ModelGraph) -> Option<u64> {
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

fn answer_of(
    model: &str,
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
        model: model.to_string(),
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
        blocks: Some(problem.blocks.iter().filter(|block| block.seconds() > 0.0).count() as u64),
        operators: None,
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

/// Returns by which share something is more than another; a model without known work takes no time at all.
fn more(one: f64, other: f64) -> f64 {
    match one == other {
        true => 0.0,
        false => one / other - 1.0,
    }
}
