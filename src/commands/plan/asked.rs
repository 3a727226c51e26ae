//! The planner's question about a model on a cluster, and its answer.

use std::collections::BTreeSet;

use cost_model::TimeSource;
use partitioner::{
    BoundBy, Change, CutSpace, Effort, Grain, Machine, MicroBatches, ONE_MORE, OperatorSeconds, PlanError,
    Problem, Sliceable, Solution, Strategy, Training, forward_only, from_graph, to_plan, what_if,
};
use schema::{
    Assumed, Bytes, Cluster, Constraints, LossAnswer, MemoryPart, MicroBatchSizeTried, ModelReference,
    PlanAnswer, RecomputePolicy, RunnerUp, StageAnswer, WhatIf,
};
use sha2::{Digest, Sha256};
use simulator::Timeline;

use super::{
    answer,
    arguments::is_meant,
    bound_of::BoundOf,
    constraints, costs,
    groups::Groups,
    inference::{self, Forward},
    loss::LossCost,
    pins, recomputed,
    request::PlanRequest,
    step_size::{Rates, StepSize},
    subject::Subject,
};
use crate::{
    commands::simulate,
    failure::Failure,
    files, model,
    nearest::meant,
    program::PROGRAM,
    sharing::Way,
    workspace::{TRACE_FOR_TRAINING, Workspace, without_derivative},
};

/// The bottleneck of a stage whose time is spent on the host.
const HOST: &str = "host";

/// A model on a cluster, not yet divided into blocks.
pub(super) struct Question<'a> {
    request: &'a PlanRequest,
    subject: Subject<'a>,
    machine: Machine,
    training: Training,
    /// Times of operators; `None` for a profile, which has times of its own.
    times: Option<costs::Times>,
    /// The size of one micro-batch, if the model tells it.
    size: Option<StepSize>,
    loss: Option<LossCost>,
    /// Costs of the forward pass, if only that is planned.
    forward: Option<Forward>,
    /// The first operators of the second and later stages, if cuts are given.
    starts: Option<Vec<u32>>,
    /// Identifies the model: a trace by its code and tensors, whose weights may change, a profile by its file.
    model: ModelReference,
}

/// The plan that is written, and the parts of each device's memory at its peak, if the step was simulated.
pub struct PlanFile {
    /// The plan.
    pub plan: schema::Plan,
    /// Bytes that devices send each other in a step, summed; `None` if the step is too large to simulate here.
    pub sent: Option<Bytes>,
    memory: Vec<Vec<MemoryPart>>,
}

/// A model divided into blocks, on a cluster.
pub struct Asked {
    /// The planner's problem.
    pub problem: Problem,
    size: Option<StepSize>,
    loss: Option<LossCost>,
    forward: Option<Forward>,
    model: ModelReference,
    cluster: Cluster,
    uncertain: Option<(costs::Ends, schema::TimesFrom)>,
    /// Operators that take time, if the model is made of operators.
    n_operators: Option<u64>,
    /// The devices that share each layer, if any do.
    groups: Option<Groups>,
    /// The constraints on its stages.
    constraints: Constraints,
    /// Optimizer, loss and rounding that were asked for.
    assumed: Assumed,
    /// The plans that the lower bound holds for.
    bound_of: BoundOf,
    /// The model with its micro-batch size, if that is not the trace's, and all sizes that were tried.
    sized: (Option<Workspace>, Vec<MicroBatchSizeTried>),
}

impl<'a> Question<'a> {
    /// Predicts the operators of a model.
    pub(super) fn new(request: &'a PlanRequest, subject: Subject<'a>) -> Result<Self, Failure> {
        let (mut training, mut machine) = (request.training(), request.machine());
        let (times, digest, size) = match subject {
            Subject::Profile(..) if !request.cost_models.is_empty() => {
                return Err(Failure::input(
                    "a profile graph has its own times; --cost-model is for traced models",
                ));
            }
            Subject::Profile(path, _) => {
                let digest = Sha256::digest(&files::read_bytes(path)?[..]);
                (None, digest.iter().map(|byte| format!("{byte:02x}")).collect(), None)
            }
            Subject::Model(workspace) => {
                check_patterns(workspace, request)?;
                if request.inference.is_none() {
                    if let Some(reason) = without_derivative(&workspace.graph) {
                        return Err(Failure::input(format!("the model cannot be trained: {reason}"))
                            .with_hint(TRACE_FOR_TRAINING));
                    }
                    training.optimizer_factor = request.state_factor(&workspace.graph);
                }
                let times = times(workspace, request, &mut machine)?;
                let size = match request.inference {
                    Some(_) => StepSize::of_forward(workspace),
                    None => StepSize::of(workspace),
                };
                (Some(times), workspace.file.digest().to_string(), Some(size))
            }
        };
        let samples = size.as_ref().and_then(|size| size.samples);
        if let Some(batch) = request.batch {
            training.micro_batches = MicroBatches::Exactly(shared(batch, samples)?);
        }
        if let Some((most, _)) = size.as_ref().and_then(StepSize::limit) {
            training.most_micro_batches = most;
        }
        if let Subject::Model(Workspace { shared: Some(shared), .. }) = subject {
            training.devices_each = u32::try_from(shared.devices()).unwrap_or(u32::MAX);
        }
        let model = ModelReference { name: subject.name(), digest };
        let (loss, forward) = match (subject, request.inference) {
            (Subject::Model(workspace), Some(inference)) => {
                (None, Some(Forward::of(&workspace.graph, inference)?))
            }
            (Subject::Model(workspace), None) => (loss(workspace, request), None),
            (Subject::Profile(..), _) => (None, None),
        };
        let mut question =
            Self { request, subject, machine, training, times, size, loss, forward, starts: None, model };
        if let (Some(model), Subject::Model(workspace)) = (question.sliceable(), subject) {
            question.starts = constraints::starts(&model, &workspace.graph, &request.constraints)?;
        }
        Ok(question)
    }

    /// Returns the grain that has a block boundary at each given cut; `None` if cuts are to be searched.
    pub(super) fn given(&self, joined: &BTreeSet<String>) -> Result<Option<Grain>, Failure> {
        let (Some(starts), Some(model), Subject::Model(workspace)) =
            (&self.starts, self.sliceable(), self.subject)
        else {
            return Ok(None);
        };
        let found = model.beginning_at(starts, joined);
        found.map(Some).map_err(|start| constraints::no_boundary(self.request, &workspace.graph, start))
    }

    /// Tells whether cuts are given.
    pub(super) fn is_given(&self) -> bool {
        self.starts.is_some()
    }

    /// Checks a plan against its own constraints.
    pub(super) fn check(&self, plan: &schema::Plan) -> Result<(), Failure> {
        match (self.sliceable(), self.subject) {
            (Some(model), Subject::Model(workspace)) => {
                let samples = self.size.as_ref().and_then(|size| size.samples);
                constraints::check(&model, &workspace.graph, plan, samples)
            }
            _ => Ok(()),
        }
    }

    /// Returns the view of the model for cutting; `None` if its blocks are given.
    pub(super) fn sliceable(&self) -> Option<Sliceable<'_>> {
        match (self.subject, &self.times) {
            (Subject::Model(workspace), Some(times)) => Some(sliceable(workspace, times, self.request)),
            _ => None,
        }
    }

    /// Returns the least seconds that one request takes, wherever the model is cut; `None` for other objectives.
    pub(super) fn longest_path(&self) -> Option<f64> {
        let aim = self.request.inference?.objective;
        let (Subject::Model(workspace), Some(times)) = (self.subject, &self.times) else { return None };
        let fastest = self.machine.devices.iter().map(|device| device.speed).fold(0.0, f64::max);
        let forward = |operator: usize| times.seconds[operator].forward;
        let is_latency = aim == schema::InferenceObjective::Latency;
        is_latency.then(|| inference::longest_path(&workspace.graph, forward) / fastest)
    }

    /// Returns the seconds for each micro-batch that all devices together take for the work alone: no plan takes less.
    pub(super) fn least_seconds(&self) -> f64 {
        self.asked(&Grain::default()).problem.seconds() / self.machine.total_speed()
    }

    /// Returns the devices of the cluster.
    pub(super) fn n_devices(&self) -> usize {
        self.machine.devices.len()
    }

    /// Returns the effort of the search.
    pub(super) fn effort(&self) -> Effort {
        self.request.effort
    }

    /// Returns the requested number of stages.
    pub(super) fn stages(&self) -> Option<u32> {
        self.request.stages
    }

    /// Divides the model into blocks.
    pub(super) fn asked(&self, grain: &Grain) -> Asked {
        let (problem, n_operators) = match (self.subject, &self.times) {
            (Subject::Profile(_, profile), _) => {
                (Problem::from_profile(profile, self.machine.clone(), self.training), None)
            }
            (Subject::Model(workspace), times) => {
                let times = times.as_ref().expect("a traced model has times");
                let model = sliceable(workspace, times, self.request);
                (self.problem((workspace, &model), grain, &times.seconds), Some(model.n_working() as u64))
            }
        };
        let (model, cluster) = (self.model.clone(), self.request.cluster.clone());
        Asked {
            problem,
            size: self.size.clone(),
            loss: self.loss.clone(),
            forward: self.forward.clone(),
            model,
            cluster,
            uncertain: None,
            n_operators,
            groups: None,
            constraints: self.request.constraints.clone(),
            assumed: self.request.assumed,
            bound_of: BoundOf::of(self.request),
            sized: (None, Vec::new()),
        }
    }

    /// Adds to a model divided at a grain what the band of a plan's time needs: its blocks' times at their lower and upper ends.
    pub(super) fn with_bands(&self, asked: Asked, grain: &Grain) -> Asked {
        let (Subject::Model(workspace), Some(times)) = (self.subject, &self.times) else { return asked };
        let model = sliceable(workspace, times, self.request);
        let ends = times.ends.each_ref().map(|end| self.problem((workspace, &model), grain, end));
        Asked { uncertain: Some((costs::Ends(ends), times.from.clone())), ..asked }
    }

    /// Returns the blocks of a grain whose operators take these seconds.
    fn problem(
        &self,
        (workspace, model): (&Workspace, &Sliceable<'_>),
        grain: &Grain,
        seconds: &[OperatorSeconds],
    ) -> Problem {
        let (graph, constraints) = (&workspace.graph, &self.request.constraints);
        let machine = self.machine.clone();
        let mut problem = from_graph(model, grain, &workspace.costs, seconds, machine, self.training);
        if let Some(loss) = &self.loss {
            loss.add_to(&mut problem, graph, &workspace.costs, || model.last_block(grain));
        }
        self.forward.iter().for_each(|forward| forward_only(&mut problem, model, grain, &forward.operators));
        problem.begins = self.starts.as_ref().map(|starts| {
            model.begins(grain, starts).expect("the grain is one at which stages can begin there")
        });
        recomputed::mark(&mut problem, model, grain, graph, &constraints.recompute);
        problem.pins = pins::pins(model, grain, graph, &constraints.pin, &self.request.cluster);
        problem
    }
}

impl Asked {
    /// Records that each of its devices is a group that shares each layer.
    pub(super) fn of_groups(self, groups: Groups) -> Self {
        Self { groups: Some(groups), ..self }
    }

    /// Returns the model that was planned, if it is not the requested one: one device's share of it if devices share
    /// layers, or the model with another micro-batch size.
    pub fn into_own(self) -> Option<Workspace> {
        self.groups.map(|groups| groups.own).or(self.sized.0)
    }

    /// Records the micro-batch size that was planned, if it is not the trace's, and the other sizes tried.
    pub(super) fn of_size(mut self, model: Option<Workspace>, tried: Vec<MicroBatchSizeTried>) -> Self {
        if let Some(samples) = self.samples().filter(|_| tried.len() > 1) {
            self.bound_of.add(format!("micro-batches of {samples} samples"));
        }
        Self { sized: (model, tried), ..self }
    }

    /// Records that no plans were looked for in which devices share layers; where there is a stage for each device, there is none.
    pub(super) fn of_whole_layers(mut self) -> Self {
        let stages = self.problem.begins.as_ref().map(|begins| begins.len() as u32 + 1);
        let stages = stages.or(self.problem.training.stages).unwrap_or(1) as usize;
        if self.groups.is_none() && self.problem.machine.devices.len() >= 2 * stages {
            self.bound_of.add_once("whole layers");
        }
        self
    }

    /// Records that plans in which devices share layers were looked for in so many groups at most.
    pub(super) fn of_few_groups(mut self, most: usize) -> Self {
        self.bound_of.add_once(&format!("whole layers, or shared ones in at most {most} groups"));
        self
    }

    /// Records that all plans that were looked for share layers in the requested way.
    pub(super) fn sharing_asked(mut self, way: Way<'_>) -> Self {
        if let Some(groups) = &self.groups {
            self.bound_of.add_sharing(groups.degree(), way);
        }
        self
    }

    /// Records the tried numbers of devices that share each layer.
    pub(super) fn having_tried(mut self, tried: Vec<schema::SharedTried>) -> Self {
        self.groups.iter_mut().for_each(|groups| groups.having_tried(tried.clone()));
        self
    }

    /// Tells which devices are in no group that shares layers.
    pub(super) fn say_left_out(&self) {
        self.groups.iter().for_each(Groups::say_left_out);
    }

    /// Tells whether devices share each layer.
    pub(super) fn is_shared(&self) -> bool {
        self.groups.is_some()
    }

    /// Returns a solution as a plan that can be simulated.
    pub fn plan(&self, solution: &Solution) -> schema::Plan {
        to_plan(&self.problem, solution, &self.cluster, self.model.clone(), PROGRAM)
    }

    /// Returns the samples of one micro-batch, if the model tells them.
    pub fn samples(&self) -> Option<u64> {
        self.size.as_ref()?.samples
    }

    /// Returns a solution as the plan to write: with its optimality gap and the simulated bubble.
    pub fn file(&self, solution: &Solution) -> PlanFile {
        let mut plan = self.plan(solution);
        plan.predicted.bound_of = self.bound_of.words(solution);
        plan.micro_batch_size = self.sized.0.as_ref().and_then(|_| self.samples());
        plan.assumed = Some(self.assumed).filter(|own| *own != Assumed::default());
        plan.constraints = Some(self.constraints.clone()).filter(|own| *own != Constraints::default());
        if let Some((ends, from)) = &self.uncertain {
            ends.set_bands(&self.problem, &mut plan);
            plan.predicted.times = Some(from.clone());
        }
        if let Some(groups) = &self.groups {
            groups.expand(&mut plan);
        }
        let timeline = simulated(&plan);
        if let (Some(bubble), Some(timeline), None) = (&mut plan.predicted.bubble, &timeline, plan.inference)
        {
            *bubble = timeline.bubble();
        }
        // Exchanges within layers are part of the stages' own times, and no task of the simulation.
        let is_shared_out = plan.execution.is_some_and(|execution| execution.sharding.is_some());
        let inside = self.groups.as_ref().map_or(0, |groups| {
            let holders = plan.stages.first().map_or(0, |stage| stage.devices.len()) as u64;
            // Replicas that share out the update sum their shares alone.
            let replicas = if is_shared_out { 1 } else { holders / u64::from(groups.degree()) };
            groups.exchange_bytes(u64::from(plan.micro_batches), replicas)
        });
        let sent = timeline.as_ref().map(|timeline| Bytes(timeline.sent.saturating_add(inside)));
        let memory = timeline.map_or_else(Vec::new, |timeline| {
            timeline.memory.iter().map(|memory| simulate::memory_parts(&memory.parts)).collect()
        });
        let memory = if plan.inference.is_some() { inference::renamed(memory) } else { memory };
        PlanFile { plan, sent, memory }
    }

    /// Returns samples and tokens per second, and the model FLOPs as a share of the used devices' peak, for a plan with
    /// the given seconds per micro-batch.
    pub fn rates(&self, seconds_each: f64, plan: &schema::Plan) -> Rates {
        let used = plan.stages.iter().flat_map(|stage| &stage.devices).map(String::as_str);
        let used: BTreeSet<&str> = used.collect();
        self.size.as_ref().map(|size| size.rates(seconds_each, &plan.cluster, &used)).unwrap_or_default()
    }

    /// Returns the answer for a solution: its stages, the next best, and what would help.
    pub fn answer(
        &self,
        request: &PlanRequest,
        cut_space: Option<&CutSpace>,
        solution: &Solution,
        (others, failed): (&[Solution], &[(Strategy, PlanError)]),
        file: &PlanFile,
    ) -> PlanAnswer {
        let problem = &self.problem;
        let is_small = problem.blocks.len() * problem.machine.devices.len() <= 20_000;
        let changes = match cut_space {
            Some(cut_space) if is_small => what_if(problem, cut_space, solution, request.strategy),
            _ => Vec::new(),
        };
        let mut answer = answer_of(&self.model.name, problem, solution, others, failed, &changes);
        let predicted = &file.plan.predicted;
        answer.bubble = predicted.bubble;
        answer.bound_of.clone_from(&predicted.bound_of);
        answer.operators = self.n_operators;
        answer.effort = Some(request.effort.name().to_string()).filter(|_| request.effort != Effort::Normal);
        answer.micro_batch_sizes_tried.clone_from(&self.sized.1);
        answer.shared = self.groups.as_ref().map(Groups::answer);
        if answer.shared.is_some() {
            let more = format!("one more {}", answer::holder(&answer));
            for what in answer.what_if.iter_mut().filter(|what| what.change == ONE_MORE) {
                what.change.clone_from(&more);
            }
        }
        if let Some(name) = self.groups.as_ref().and_then(Groups::strategy) {
            answer.strategy = name.to_string();
        }
        answer.band = predicted.band;
        answer.times.clone_from(&predicted.times);
        answer.loss = self
            .loss
            .as_ref()
            .map(|loss| LossAnswer { what: loss.words.clone(), bytes: Bytes(loss.bytes()) });
        answer.inference = self.forward.as_ref().map(|forward| {
            forward.answer(problem, solution, self.size.as_ref().and_then(|size| size.samples))
        });
        answer.pins = self.constraints.pin.iter().map(ToString::to_string).collect();
        if let Some(size) = &self.size {
            answer.samples = size.samples.map(|samples| samples * u64::from(solution.micro_batches));
            let rates = self.rates(solution.seconds_each(), &file.plan);
            answer.samples_per_second = rates.samples;
            (answer.tokens_per_second, answer.mfu) = (rates.tokens, rates.mfu);
            // Printed only if the search would have tried more of them.
            let is_free =
                request.micro_batches.is_none() && request.batch.is_none() && request.inference.is_none();
            let wanted = 8 * problem.machine.devices.len() as u64;
            let holds = |most: u32| u64::from(most) < wanted && solution.micro_batches <= most;
            let limit = size.limit().filter(|(most, _)| is_free && holds(*most));
            answer.step_limit = limit.map(|(_, why)| why);
        }
        let is_called = is_bound_by_host(answer.times.as_ref());
        for (index, stage) in answer.stages.iter_mut().enumerate() {
            if let Some(groups) = &self.groups {
                stage.devices = stage
                    .devices
                    .iter()
                    .flat_map(|leader| groups.members(leader))
                    .map(String::from)
                    .collect();
                stage.shared_by = Some(groups.degree());
            }
            if is_called && stage.bound_by == BoundBy::Compute.name() {
                stage.bound_by = HOST.to_string();
            }
            self.set_memory(stage, file);
            let sent = file.plan.transfers.iter().find(|transfer| transfer.from as usize == index);
            stage.sends = sent.map(|transfer| transfer.forward);
        }
        answer
    }

    /// Adds to a stage's answer the memory of its fullest device and the parts of it.
    fn set_memory(&self, stage: &mut StageAnswer, file: &PlanFile) {
        let names: BTreeSet<&str> = stage.devices.iter().map(String::as_str).collect();
        let own = || {
            let devices = file.plan.cluster.devices.iter().enumerate();
            devices.filter(|(_, device)| names.contains(device.name.as_str()))
        };
        let types = own().filter_map(|(_, device)| self.cluster.types.get(&device.type_));
        let smallest = types.min_by_key(|type_| type_.usable());
        let parts = own().filter_map(|(index, _)| file.memory.get(index));
        let sum = |parts: &&Vec<MemoryPart>| parts.iter().map(|part| part.bytes.0).sum::<u64>();
        let fullest = parts.max_by_key(sum).cloned().unwrap_or_default();
        let limits = smallest.map(|type_| (type_.usable(), type_.memory));
        stage.memory_usable = limits.map(|limits| limits.0);
        stage.memory_limit = limits.map(|limits| limits.1);
        stage.memory_parts = fullest.into_iter().filter(|part| part.bytes.0 > 0).collect();
    }
}

/// Simulates a plan, so that `plan`, `simulate` and `report` print the same numbers.
///
/// For a step too large to simulate here, the planner's own numbers stay.
fn simulated(plan: &schema::Plan) -> Option<Timeline> {
    const MOST_OPERATIONS: usize = 300_000;
    let is_small = plan.stages.len() * plan.micro_batches as usize * 3 <= MOST_OPERATIONS;
    if is_small { simulate::timeline(plan).ok() } else { None }
}

/// Predicts the operators' times on the cluster's devices, and sets the devices' relative speeds for this model.
fn times(
    workspace: &Workspace,
    request: &PlanRequest,
    machine: &mut Machine,
) -> Result<costs::Times, Failure> {
    let Workspace { file: model, graph, costs: operators, .. } = workspace;
    let (cluster, models) = (&request.cluster, &request.cost_models);
    // Times are those of the first device's type; other types scale them by one factor.
    let whole = |name: &str| {
        let figures = cluster.types.get(name)?;
        let times = workspace.times.borrow().iter().find_map(|((of, own, by, rounding), times)| {
            let is_known = of == name && own == figures && by == models && *rounding == request.rounding();
            is_known.then(|| times.clone())
        });
        let times = times.unwrap_or_else(|| {
            let model = models.of(name, figures);
            let times = costs::times(graph, operators, &model, &costs::options(request.rounding(), &model));
            let key = (name.to_string(), figures.clone(), models.clone(), request.rounding());
            workspace.times.borrow_mut().push((key, times.clone()));
            times
        });
        let sum = times.seconds.iter().map(|time| time.forward + time.input_gradient + time.weight_gradient);
        let total = sum.sum::<f64>();
        Some((times, total))
    };
    let missing = || Failure::input("the cluster has no device types");
    let (mut times, total) = whole(&cluster.devices[0].type_).ok_or_else(missing)?;
    if total <= 0.0 {
        let hint = match model::notes(&model.program).next() {
            Some(note) => format!("costly operators may be hidden; {note}: trace the model without branches"),
            None => "check the shapes; set others with --input, or trace with `model-analyze trace`".into(),
        };
        let failure = Failure::input("no operator has a known cost").in_file(model.path());
        return Err(failure.with_hint(hint));
    }
    for (name, type_) in &cluster.types {
        let Some((_, other)) = whole(name) else { continue };
        let relative = if other > 0.0 { total / other } else { 1.0 };
        if *name != cluster.devices[0].type_ && cluster.devices.iter().any(|placed| placed.type_ == *name) {
            times.from.others.insert(name.clone(), 1.0 / (type_.speed.unwrap_or(1.0) * relative));
        }
        for (device, placed) in machine.devices.iter_mut().zip(&cluster.devices) {
            if placed.type_ == *name {
                device.speed = type_.speed.unwrap_or(1.0) * relative;
            }
        }
    }
    if let Some(shared) = &workspace.shared {
        let is_endless = request.is_endless || request.strategy.is_some_and(Strategy::is_asynchronous);
        times.add_exchanges(shared, graph, is_endless);
    }
    Ok(times)
}

/// Returns the view of a model for cutting, with the calls kept whole that the request names.
fn sliceable<'a>(workspace: &'a Workspace, times: &costs::Times, request: &PlanRequest) -> Sliceable<'a> {
    let whole = |block: &graph::Block| {
        request.constraints.keep_together.iter().any(|pattern| is_meant(pattern, block))
    };
    let pinned = |block: &graph::Block| request.constraints.pin.iter().any(|pin| is_meant(&pin.calls, block));
    let with =
        |policy| move |block: &graph::Block| recomputed::is(&request.constraints.recompute, policy, block);
    let with_experts = workspace.shared.as_ref().map(|shared| shared.kept_whole(&workspace.graph));
    let holds_experts =
        |block: &graph::Block| with_experts.as_ref().is_some_and(|kept| kept.contains(&block.id));
    let model = Sliceable::new(&workspace.graph, &times.seconds).keeping(whole).keeping(holds_experts);
    // A call that is always recomputed is one block; a call that never is may not be part of a larger block.
    let model = model.keeping(with(RecomputePolicy::Always)).opening(with(RecomputePolicy::Always));
    let model = model.keeping(with(RecomputePolicy::Light)).opening(with(RecomputePolicy::Light));
    model.opening(with(RecomputePolicy::Never)).opening(pinned)
}

/// Refuses patterns that match no call.
fn check_patterns(workspace: &Workspace, request: &PlanRequest) -> Result<(), Failure> {
    let blocks = &workspace.graph.blocks;
    for pattern in &request.constraints.keep_together {
        if !blocks.iter().any(|block| is_meant(pattern, block)) {
            let names = blocks.iter().flat_map(|block| [block.path.as_str(), block.kind.as_str()]);
            let meant = meant(pattern, names, 3);
            return Err(Failure::input(format!(
                "--keep-together: no call and no class is `{pattern}`{meant}"
            ))
            .with_hint("`model-analyze inspect` lists calls and their classes"));
        }
    }
    for pin in &request.constraints.pin {
        pins::check(pin, workspace, &request.cluster)?;
    }
    pins::check_together(&request.constraints.pin, &workspace.graph)?;
    recomputed::check(&request.constraints.recompute, &request.constraints.keep_together, workspace)?;
    match &request.constraints.recompute[..] {
        [own, ..] if request.inference.is_some() => {
            return Err(Failure::input(format!(
                "--recompute {own}: a forward pass alone saves no activations"
            )));
        }
        _ => {}
    }
    match &request.constraints.pin[..] {
        [pin, ..] if request.inference.is_some() => {
            Err(Failure::input(format!("--pin {pin}: a plan of the forward pass alone does not take pins"))
                .with_hint("--cut-at sets where stages begin, --leave-out excludes devices"))
        }
        _ => Ok(()),
    }
}

/// Computes the cost of the loss on the first device.
fn loss(workspace: &Workspace, request: &PlanRequest) -> Option<LossCost> {
    let type_ = request.cluster.types.get(&request.cluster.devices.first()?.type_)?;
    LossCost::of(&workspace.graph, request.loss(), type_.memory_bandwidth, type_.copy_slowdown)
}

/// Returns how many micro-batches make up a batch.
fn shared(batch: u64, samples: Option<u64>) -> Result<u32, Failure> {
    let Some(samples) = samples.filter(|&samples| samples > 0) else {
        return Err(Failure::input("the number of samples in a micro-batch of this model is unknown")
            .with_hint(
                "use --micro-batches, the number of batches as large as the model's inputs or the profile's",
            ));
    };
    let count = batch / samples;
    if batch == 0 || !batch.is_multiple_of(samples) {
        let near: Vec<String> =
            [count, count + 1].iter().filter(|&&n| n > 0).map(|n| (n * samples).to_string()).collect();
        return Err(Failure::input(format!(
            "a batch of {batch} cannot be made of micro-batches of {samples}, the size of the model's inputs"
        ))
        .with_hint(format!("{} can; other sizes need another --input or trace", near.join(" or "))));
    }
    u32::try_from(count).map_err(|_| Failure::input(format!("--batch {batch} is too large")))
}

/// Tells whether most of the time is spent on the host, which calls operators one by one while the device waits.
fn is_bound_by_host(times: Option<&schema::TimesFrom>) -> bool {
    let share = |times: &schema::TimesFrom| times.shares.get(TimeSource::Host.name()).copied();
    times.and_then(share).is_some_and(|share| share > 0.5)
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
        recompute_light: stage.score.light.iter().flat_map(paths).collect(),
        recompute_unit: stage.score.recompute_unit,
        offload: stage.score.offload.iter().flat_map(paths).collect(),
        ..StageAnswer::default()
    });
    // Bytes of the fullest device.
    let fullest = |solution: &Solution| {
        solution.held(problem.machine.devices.len()).into_iter().fold(0.0, f64::max) as u64
    };
    let others = others.iter().map(|other| RunnerUp {
        strategy: other.made_by.name().to_string(),
        sharding: other.sharing(),
        seconds: Some(other.seconds_each()),
        loses: Some(more(other.seconds_each(), each)),
        schedule: Some(other.schedule.name().to_string()),
        stages: Some(other.stages.len() as u32),
        chunks: Some(other.chunks() as u32).filter(|&chunks| chunks > 1),
        memory_bytes: Some(fullest(other)),
        fails: None,
    });
    let failed = failed.iter().map(|(strategy, error)| RunnerUp {
        strategy: strategy.name().to_string(),
        sharding: None,
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
        strategy: solution.made_by.name().to_string(),
        sharding: solution.sharing(),
        schedule: Some(solution.schedule.name().to_string()),
        micro_batches: Some(solution.micro_batches),
        period_seconds: period,
        step_seconds: step,
        lower_bound_seconds: solution.lower_bound,
        gap: solution.gap(),
        optimal: solution.is_optimal(),
        // No cuts are searched if they are given.
        blocks: problem
            .begins
            .is_none()
            .then(|| problem.blocks.iter().filter(|block| block.seconds() > 0.0).count() as u64),
        bubble: solution.bubble,
        host_overhead_seconds: Some(problem.training.host_overhead.0).filter(|seconds| *seconds > 0.0),
        split_overhead_seconds: Some(problem.training.split_overhead.0).filter(|seconds| *seconds > 0.0),
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
        ..PlanAnswer::default()
    }
}

/// Returns by which share one number exceeds another; a model without known work takes no time at all.
fn more(one: f64, other: f64) -> f64 {
    if one == other { 0.0 } else { one / other - 1.0 }
}
