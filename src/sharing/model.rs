//! One device's share of a model, and a cluster whose devices are groups.

use std::collections::{BTreeMap, BTreeSet};

use codegen::{Shards, starred};
use cost_model::{Costs, Rounding, predict};
use graph::{
    BlockId, DType, InputShape, ModelGraph, OperatorCosts, OperatorId, TensorId, ValueId, differentiated,
    layout::{
        Choice, Collective, Context, Exchange, Inside, Layout, Proof, Slice, check, is_summed_later, sharded,
    },
};
use partitioner::inside::Walk;
use schema::{Cluster, Cut, DeviceType, LayerSharing, Plan, Proved, SequenceParallel};
use simulator::collective::{self, Algorithm};
use tracer::{NodeId, Program};

use super::{
    choice::{Chosen, Group, Prices, choose},
    experts, first,
    links::{exchange_seconds, in_simulator, rows},
    words::OwnSplit,
};
use crate::{cost_models::CostModels, failure::Failure, nearest, operations::operations};

/// A model that devices share.
#[derive(Clone)]
pub struct SharedModel {
    /// The program of one device; stored tensors have the sizes of a part.
    pub program: Program,
    /// Number of devices that share it, of a group.
    pub degree: u64,
    /// What joins them.
    pub links: collective::Group,
    /// What groups share first, if devices are in several; all else is of the devices of a group.
    pub outer: Option<Outer>,
    /// The dimension along which images are in bands; `None` if weights and values are cut into equal slices.
    pub bands: Option<usize>,
    /// The cuts of stored tensors.
    pub cuts: BTreeMap<TensorId, Slice>,
    /// Whether the matrices of experts, and nothing else, are cut, and devices have their own samples or positions.
    pub by_expert: bool,
    /// Stored tensors that only the first device has.
    pub on_first: BTreeSet<TensorId>,
    /// Exchanges by their node.
    pub exchanges: BTreeMap<NodeId, Exchange>,
    /// Exchanges inside operators, by their node.
    pub inside: BTreeMap<NodeId, Inside>,
    /// Values with unequal numbers of rows on devices.
    pub uneven: BTreeSet<ValueId>,
    /// The split of each operator that is not whole, by name, if each has its own.
    pub operators: Option<Vec<OwnSplit>>,
    /// The proof of the program.
    pub proof: Proof,
    /// Share of the FLOPs that is divided; every device does the rest.
    pub split_share: f64,
    /// Operations of the whole model in both passes, and the data type of most of them; `None` if some are not counted.
    pub operations: Option<(f64, String)>,
    /// The cost of the strategies by the times of the choice, and a lower bound on it.
    pub seconds: (f64, f64),
    /// Seconds of a micro-batch on one device alone, if no split of operators is as fast.
    pub alone: Option<f64>,
}

/// What several groups of devices share: each has a part of the samples or positions.
#[derive(Clone)]
pub struct Outer {
    /// Number of groups.
    pub groups: u64,
    /// What joins them.
    pub links: collective::Group,
    /// Exchanges between devices of the same place in their groups, by their node.
    pub exchanges: BTreeMap<NodeId, Exchange>,
    /// Exchanges inside operators, by their node.
    pub inside: BTreeMap<NodeId, Inside>,
    /// The cuts of stored tensors, whose parts the devices of a group cut further.
    pub cuts: BTreeMap<TensorId, Slice>,
}

/// What groups of devices share first, before those of a group share its part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Around {
    /// Number of groups, each of which has a part of the samples or positions.
    pub groups: u32,
    /// Whether each has a part of the experts as well.
    pub by_expert: bool,
}

/// Accesses to each byte of parameters in an optimizer's step: parameters, gradients and state are read and written.
const TOUCHED: f64 = 7.0;

/// The penalty, in times of the whole model, if no operator with FLOPs, or that makes images, is shared.
pub(super) const INSISTENCE: f64 = 10.0;

/// The ways to share a model.
#[derive(Clone, Copy, PartialEq)]
pub enum Way<'a> {
    /// Layers: weights and values are cut in the fastest way, by the devices of each group.
    Layers(Option<SequenceParallel>, Around),
    /// Images, in bands of rows or of columns, whichever is faster.
    Bands,
    /// Samples, or positions of their sequences, whichever is faster; weights are whole, except those of calls that
    /// only the first device runs.
    Positions(&'a [String]),
    /// Samples or positions, and the experts of mixtures; all other weights are whole.
    Experts,
    /// The cuts of a plan, by the devices of each group.
    Cuts(&'a indexmap::IndexMap<String, Cut>, Option<SequenceParallel>, Around),
    /// Each operator in its own way, as this search finds.
    Operators(OperatorSearch),
    /// The same as a plan has it: the splits of operators, and the cuts of parameters.
    Given(&'a indexmap::IndexMap<String, String>, &'a indexmap::IndexMap<String, Cut>),
}

/// A search for the split of each operator: the variants have the settings of training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OperatorSearch {
    /// The name of its strategy: `optcnn`, `flexflow`.
    pub name: &'static str,
    /// Random changes instead of elimination.
    pub random: Option<Walk>,
    /// Bytes of optimizer state per byte of parameters.
    pub optimizer_factor: f64,
    /// Micro-batches of a step, which share the optimizer's time.
    pub micro_batches: u32,
}

impl OperatorSearch {
    /// Returns the seconds of the optimizer for each byte of parameters and micro-batch: parameters, gradients and state
    /// are read, parameters and state are written.
    pub(super) fn update(&self, figures: &DeviceType) -> f64 {
        let touched = 3.0 + 2.0 * self.optimizer_factor;
        touched / figures.memory_bandwidth.0 * self.each()
    }

    /// Returns the share of what is done once a step that each micro-batch bears.
    pub(super) fn each(&self) -> f64 {
        1.0 / f64::from(self.micro_batches.max(1))
    }
}

impl Around {
    /// One group.
    pub const NONE: Self = Self { groups: 1, by_expert: false };

    /// Returns those of a plan.
    fn of_plan(plan: &Plan) -> Self {
        let groups = plan.expert_parallel.or(plan.context_parallel).unwrap_or(1);
        Self { groups, by_expert: plan.expert_parallel.is_some() }
    }

    /// Returns the groups that have a part of the samples or positions each, if there are several.
    pub fn context_parallel(self) -> Option<u32> {
        (self.groups > 1 && !self.by_expert).then_some(self.groups)
    }

    /// The same if they have a part of the experts each as well.
    pub fn expert_parallel(self) -> Option<u32> {
        (self.groups > 1 && self.by_expert).then_some(self.groups)
    }
}

impl<'a> Way<'a> {
    /// Refuses what no plan of groups with a part of the samples or positions each can have.
    ///
    /// # Errors
    /// Names it.
    pub fn check_groups(plan: &Plan) -> Result<(), Failure> {
        let (name, groups) = match (plan.context_parallel, plan.expert_parallel) {
            (None, None) => return Ok(()),
            (Some(groups), None) => ("context_parallel", groups),
            (None, Some(groups)) => ("expert_parallel", groups),
            (Some(_), Some(_)) => {
                let message = "the plan has `context_parallel` and `expert_parallel`: groups of devices are of one kind";
                return Err(Failure::input(message));
            }
        };
        let said = |why: &str| Err(Failure::input(format!("`{name}: {groups}` of the plan: {why}")));
        let cut = |has: fn(&Cut) -> bool| plan.cuts.iter().find(|(_, cut)| has(cut)).map(|(name, _)| name);
        if !plan.operators.is_empty() {
            return said("each operator has a split of its own (`operators`)");
        }
        if let Some(name) = cut(|cut| cut.bands) {
            return said(&format!("`{name}` is in bands"));
        }
        if let Some(name) = cut(|cut| cut.on_first) {
            return said(&format!("`{name}` is on the first device only"));
        }
        match plan.sharing() {
            LayerSharing::ByCuts(degree) if degree % groups.max(1) == 0 && groups > 1 && degree > groups => {
                Ok(())
            }
            LayerSharing::ByCuts(degree) => said(&format!(
                "{degree} devices share layers (`tensor_parallel`), which are not as many groups of several devices each"
            )),
            _ => said("no devices share layers (`tensor_parallel`)"),
        }
    }

    /// Returns the way of a plan whose devices share layers.
    pub fn of_plan(plan: &'a Plan) -> Self {
        if plan.operators.is_empty() {
            Self::Cuts(&plan.cuts, plan.sequence_parallel, Around::of_plan(plan))
        } else {
            Self::Given(&plan.operators, &plan.cuts)
        }
    }

    /// Tells whether each device has all weights: so it is in a plan without cuts.
    fn keeps_weights(self) -> bool {
        match self {
            Way::Positions(_) => true,
            Way::Cuts(cuts, ..) => cuts.values().all(|cut| cut.on_first),
            Way::Layers(..) | Way::Bands | Way::Experts | Way::Operators(_) | Way::Given(..) => false,
        }
    }

    /// Returns the option that requests it.
    pub fn option(self) -> &'static str {
        match self {
            Way::Bands => "--spatial",
            Way::Positions(_) => "--context-parallel",
            Way::Experts => "--expert-parallel",
            Way::Layers(..) | Way::Cuts(..) => "--tensor-parallel",
            Way::Operators(_) | Way::Given(..) => "--strategy",
        }
    }

    /// Returns what groups of devices share first.
    pub fn around(self) -> Around {
        match self {
            Way::Layers(_, around) | Way::Cuts(_, _, around) => around,
            _ => Around::NONE,
        }
    }

    /// Returns how the devices of one group share its part.
    pub fn in_group(self) -> Self {
        match self {
            Way::Layers(held, _) => Way::Layers(held, Around::NONE),
            Way::Cuts(cuts, held, _) => Way::Cuts(cuts, held, Around::NONE),
            other => other,
        }
    }

    /// Returns the form of values between shared layers.
    pub fn sequence_parallel(self) -> Option<SequenceParallel> {
        match self {
            Way::Layers(held, _) | Way::Cuts(_, held, _) => held,
            Way::Bands | Way::Positions(_) | Way::Experts | Way::Operators(_) | Way::Given(..) => None,
        }
    }
}

/// A model, and the devices that are to share it.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// Its program.
    pub program: &'a Program,
    /// Its graph.
    pub graph: &'a ModelGraph,
    /// FLOPs and bytes of its operators.
    pub costs: &'a OperatorCosts,
    /// The inputs that the graph was built for.
    pub inputs: &'a [InputShape],
    /// The devices.
    pub cluster: &'a Cluster,
    /// Their cost models.
    pub models: &'a CostModels,
    /// How products are rounded.
    pub rounding: Rounding,
    /// Number of devices that share each layer.
    pub degree: u32,
    /// What joins them.
    pub links: collective::Group,
    /// Whether each is a group of devices, which share its part further.
    pub of_groups: bool,
    /// What groups of devices have shared already, if this is the part of one.
    pub part: Option<&'a SharedModel>,
}

impl<'a> Subject<'a> {
    /// Names those that share, for messages.
    pub(super) fn sharers(&self) -> &'static str {
        if self.of_groups { "groups of devices" } else { "devices" }
    }

    /// Returns the figures of the devices.
    pub(super) fn figures(&self) -> Result<(&'a str, &'a DeviceType), Failure> {
        let name = self.cluster.devices.first().map(|device| device.type_.as_str()).unwrap_or_default();
        let figures = self.cluster.types.get(name);
        Ok((name, figures.ok_or_else(|| Failure::input("the cluster has no device types"))?))
    }

    /// Predicts the operators of a graph on one device.
    pub(super) fn predicted(&self, graph: &ModelGraph, costs: &OperatorCosts) -> Result<Costs, Failure> {
        let (name, figures) = self.figures()?;
        let model = self.models.of(name, figures);
        Ok(predict(graph, costs, &model, &CostModels::options(self.rounding, &model)))
    }

    /// Seconds of an exchange of a value of the given bytes over all devices.
    pub(super) fn exchange(&self, what: Collective, bytes: u64) -> f64 {
        exchange_seconds(what, bytes, &self.links)
    }

    /// Returns the strategies that are fastest by the times of whole operators, dealt out, and the view of the model
    /// that has them.
    pub(super) fn dealt_out(&self, way: Way<'_>) -> Result<(Context<'a>, Chosen), Failure> {
        let Self { graph, costs, degree, .. } = *self;
        let mut contexts = contexts(self, way)?;
        for context in &mut contexts {
            context.of_groups = self.of_groups;
            context.uneven = self.part.map(|part| part.uneven.clone()).unwrap_or_default();
        }
        let (_, figures) = self.figures()?;
        let predicted = self.predicted(graph, costs)?;
        // What groups exchange takes less time if each device of a group sends a part.
        let exchanged = self.part.map(|part| part.exchange_seconds(graph)).unwrap_or_default();
        let seconds = |id: OperatorId| {
            let one = predicted.operator(id);
            let whole = one.forward.seconds + one.input_gradient.seconds + one.weight_gradient.seconds;
            let sent = exchanged.get(&id).map_or(0.0, |(forward, backward)| forward + backward);
            // The time of the host or of a launch does not shrink with the parts.
            (whole + sent, if one.is_launch_bound { 0.0 } else { whole } + sent)
        };
        let flops = |id: OperatorId| costs.operator(id).forward_flops as f64;
        let all = || (0..graph.operators.len() as u32).map(OperatorId);
        let (total_seconds, total_flops) =
            (all().map(|id| seconds(id).0).sum::<f64>(), all().map(flops).sum::<f64>());
        let given = given(graph, &mut contexts, degree, way)?;
        let in_bands = contexts.iter().any(|context| context.images.is_some());
        let bytes = |id: OperatorId| -> f64 {
            let results =
                graph.operator(id).outputs.iter().flat_map(|value| graph.value(*value).fact.tensors());
            results.into_iter().filter_map(|tensor| tensor.bytes()).sum::<u64>() as f64
        };
        let total_bytes: f64 = if in_bands { all().map(bytes).sum() } else { 0.0 };
        let group = Group {
            prices: Prices::DealtOut {
                seconds: &seconds,
                whole: &|id| {
                    let share = |own: f64, total: f64| if total > 0.0 { own / total } else { 0.0 };
                    // With bands, no image may stay whole, either.
                    let of_bytes = if total_bytes > 0.0 { share(bytes(id), total_bytes) } else { 0.0 };
                    INSISTENCE * total_seconds * share(flops(id), total_flops).max(of_bytes)
                },
            },
            degree: u64::from(degree),
            seconds: &|collective, bytes| self.exchange(collective, bytes),
            launch: launch(figures),
            per_byte: TOUCHED / figures.memory_bandwidth.0,
            held: 0.0,
            keeps_weights: way.keeps_weights(),
            summed: 1.0,
            wanted: &|_, _| true,
            given: &given,
            sequences: way.sequence_parallel().map(|held| (held, INSISTENCE * total_seconds)),
        };
        let mut found: Option<(usize, Chosen)> = None;
        for (at, context) in contexts.iter().enumerate() {
            let chosen = choose(context, &group);
            let is_faster =
                |chosen: &Chosen| found.as_ref().is_none_or(|(_, known)| chosen.seconds < known.seconds);
            if let Some(chosen) = chosen.filter(is_faster) {
                found = Some((at, chosen));
            }
        }
        let (at, chosen) = found.ok_or_else(|| {
            Failure::no(format!("{degree} devices cannot share this model"))
                .with_hint(format!("leave out {}", way.option()))
        })?;
        Ok((contexts.swap_remove(at), chosen))
    }

    /// Returns one device's share under the chosen strategies; whether each operator is split follows.
    pub(super) fn made(
        &self,
        context: &Context<'_>,
        chosen: &Chosen,
    ) -> Result<(SharedModel, Vec<bool>), Failure> {
        let Self { program, graph, costs, .. } = *self;
        let mut made =
            sharded(program, context, &chosen.choice).map_err(|error| Failure::no(error.to_string()))?;
        let proof = check(program, context, &chosen.choice, &made).map_err(|error| {
            Failure::bug(format!("the program of one device does not match the whole model: {error}"))
        })?;
        first::check(&made, graph)?;
        made.sum_later(graph);
        let flops = |at: usize| costs.operator(OperatorId(at as u32)).forward_flops as f64;
        let all = || 0..graph.operators.len();
        let total: f64 = all().map(flops).sum();
        let split: f64 = all().filter(|at| made.is_split[*at]).map(flops).sum();
        let shared = SharedModel {
            split_share: if total > 0.0 { split / total } else { 0.0 },
            operations: operations(graph, costs),
            program: made.program,
            degree: made.degree,
            links: self.links,
            outer: None,
            bands: context.images.as_ref().map(|images| 2 + images.along),
            exchanges: made.exchanges,
            inside: made.inside,
            by_expert: experts::are_cut(context, &made.cuts)
                && experts::share_samples(context, &made.is_split),
            cuts: made.cuts,
            on_first: made.on_first.into_keys().collect(),
            uneven: made.uneven,
            operators: None,
            proof,
            seconds: (chosen.seconds, chosen.bound),
            alone: None,
        };
        Ok((shared, made.is_split))
    }
}

/// Returns the seconds of a launch, on the device or on the host.
pub(super) fn launch(figures: &DeviceType) -> f64 {
    figures.launch.map_or(1e-6, |launch| launch.0).max(figures.host_call.map_or(0.0, |call| call.0))
}

/// Chooses how devices of a cluster share a model, by the times of whole operators.
///
/// # Errors
/// If the devices cannot be grouped so, or the model cannot be shared.
pub fn shared_by_parts(subject: &Subject<'_>, way: Way<'_>) -> Result<SharedModel, Failure> {
    let degree = subject.degree;
    let (context, chosen) = subject.dealt_out(way)?;
    let (made, is_split) = subject.made(&context, &chosen)?;
    if context.images.is_some() && !is_in_bands(&context, &chosen.choice) {
        return Err(no_bands(&context));
    }
    if let Some(held) = way.sequence_parallel() {
        held_as_asked(&made.exchanges, held, degree)?;
    }
    if way == Way::Experts && !experts::share_samples(&context, &is_split) {
        let who = subject.sharers();
        return Err(Failure::no(format!(
            "{degree} {who} cannot have a part of this model's samples or positions each, beside their experts"
        ))
        .with_hint(format!(
            "choose sizes that the number of {who} divides, or --tensor-parallel alone, where each device has all samples"
        )));
    }
    if matches!(way, Way::Layers(..)) && context.images.is_none() && made.cuts.is_empty() {
        // The plan will have no cuts, and must mean the same when it is read.
        return shared_by_parts(subject, Way::Positions(&[])).map_err(|_| {
            Failure::no(format!("no operator of this model can be divided among {degree} devices"))
                .with_hint("choose a number that divides features, heads or samples")
        });
    }
    let is_read_from_cuts = matches!(way, Way::Layers(..)) || !made.on_first.is_empty();
    if is_read_from_cuts && !matches!(way, Way::Cuts(..)) {
        // Who reads the plan knows the cuts alone. Of ways that are equally fast with these, the one that it finds is planned.
        let cuts = made.named_cuts(subject.program);
        let read = shared_by_parts(subject, Way::Cuts(&cuts, way.sequence_parallel(), Around::NONE))?;
        return Ok(SharedModel { seconds: (read.seconds.0, made.seconds.1), ..read });
    }
    if way.keeps_weights() && !is_split.contains(&true) {
        return Err(Failure::no(format!(
            "no operator of this model can work on one of {degree} parts of its samples or sequences"
        ))
        .with_hint(if subject.of_groups {
            "choose sizes that this number divides, or --tensor-parallel without --context-parallel"
        } else {
            "choose sizes that the number of devices divides, or --tensor-parallel, which cuts weights"
        }));
    }
    Ok(made)
}

/// Returns the views of a model that are tried.
fn contexts<'g>(subject: &Subject<'g>, way: Way<'_>) -> Result<Vec<Context<'g>>, Failure> {
    let Subject { graph, program, .. } = *subject;
    let n = u64::from(subject.degree);
    let along = match way {
        Way::Cuts(cuts, ..) => bands_in(cuts, program)?,
        Way::Layers(..) | Way::Positions(_) | Way::Experts => None,
        Way::Operators(_) | Way::Given(..) => return Ok(vec![Context::of_all(graph, n)]),
        Way::Bands => {
            let all = (0..3).map(|along| Context::in_bands(graph, n, along));
            let with_images =
                |context: &Context<'_>| context.images.as_ref().is_some_and(|images| images.size > 0);
            let found: Vec<Context<'_>> = all.filter(with_images).collect();
            if found.is_empty() {
                return Err(Failure::no("the model has no images: no convolution, pool or resampling")
                    .with_hint("--tensor-parallel shares other layers"));
            }
            return Ok(found);
        }
    };
    Ok(vec![match along {
        Some(along) => Context::in_bands(graph, n, along),
        None if way.keeps_weights() => Context::of_positions(graph, n),
        None => {
            let context = Context::new(graph, n);
            if cuts_experts(subject, &context, way)? { Context::of_positions(graph, n) } else { context }
        }
    }])
}

/// Tells whether nothing but the experts of mixtures is cut.
///
/// # Errors
/// When there are none where they are asked for.
fn cuts_experts(subject: &Subject<'_>, context: &Context<'_>, way: Way<'_>) -> Result<bool, Failure> {
    match way {
        Way::Experts => experts::check(context, subject.sharers()).map(|()| true),
        Way::Cuts(cuts, ..) => {
            Ok(experts::are_all(context, &named(context.graph, cuts, context.degree as u32)?))
        }
        _ => Ok(false),
    }
}

/// Returns the fixed layouts of stored tensors, and marks the operators of the first device if requested.
fn given(
    graph: &ModelGraph,
    contexts: &mut [Context<'_>],
    degree: u32,
    way: Way<'_>,
) -> Result<BTreeMap<TensorId, Layout>, Failure> {
    let given = match way {
        Way::Cuts(cuts, ..) if contexts[0].images.is_none() => named(graph, cuts, degree)?,
        Way::Positions(calls) => first::given(graph, calls)?,
        Way::Experts => experts::given(&contexts[0]),
        _ => BTreeMap::new(),
    };
    let is_auto = matches!(way, Way::Positions(calls) if first::is_auto(calls));
    if is_auto || given.values().any(|layout| matches!(layout, Layout::First(_))) {
        contexts.iter_mut().for_each(|context| context.on_first = true);
    }
    Ok(given)
}

/// Refuses layouts that contradict `--sequence-parallel`.
fn held_as_asked(
    exchanges: &BTreeMap<NodeId, Exchange>,
    held: SequenceParallel,
    degree: u32,
) -> Result<(), Failure> {
    let in_parts = exchanges
        .values()
        .filter(|one| matches!(one, Exchange::ReduceScatter(_) | Exchange::GatherSplit(_)))
        .count();
    match held {
        SequenceParallel::On if in_parts == 0 => Err(Failure::no(format!(
            "--sequence-parallel on: no value between this model's shared layers can be in {degree} parts of its samples or positions"
        ))
        .with_hint("choose sizes that the number of devices divides, or --sequence-parallel off")),
        SequenceParallel::Off if in_parts > 0 => Err(Failure::no(format!(
            "--sequence-parallel off: {in_parts} exchanges of this model's layers are possible only in parts of samples or positions"
        ))
        .with_hint("omit it, or use --sequence-parallel on")),
        _ => Ok(()),
    }
}

fn is_in_bands(context: &Context<'_>, choice: &Choice) -> bool {
    let mut all = choice.strategies.iter().enumerate();
    all.any(|(at, pick)| {
        *pick > 0 && matches!(context.strategies(OperatorId(at as u32))[*pick].gives, Layout::Bands(_))
    })
}

fn no_bands(context: &Context<'_>) -> Failure {
    let degree = context.degree;
    let most = context.images.as_ref().map_or(0, |images| images.size);
    if most == 0 {
        let dim = context.images.as_ref().map_or(0, |images| 2 + images.along);
        return Failure::input(format!("the model has no images with a dimension {dim} for bands"));
    }
    if most < degree {
        return Failure::no(format!("{degree} devices cannot have a band each of images of {most} rows"))
            .with_hint(format!("{most} could"));
    }
    Failure::no(format!("no operator of this model can work on {degree} bands of its images"))
}

/// Returns the dimension of images along which a plan's bands are.
fn bands_in(cuts: &indexmap::IndexMap<String, Cut>, program: &Program) -> Result<Option<usize>, Failure> {
    let Some((first, own)) = cuts.iter().find(|(_, cut)| cut.bands) else { return Ok(None) };
    let names: Vec<&str> = program.inputs.iter().map(|id| program.values[id.index()].name.as_str()).collect();
    for (name, cut) in cuts {
        if !cut.bands {
            return Err(Failure::input(format!(
                "the plan has bands of `{first}` and cuts `{name}`: with images in bands, parameters must be whole"
            )));
        }
        if name != "*" && !names.contains(&name.as_str()) {
            let meant = nearest::meant(name, names.iter().copied(), 3);
            return Err(Failure::input(format!(
                "the plan has bands of `{name}`, which is not an input of the model{meant}"
            )));
        }
        if cut.dim != own.dim || cut.blocks != 1 || !(2..5).contains(&cut.dim) {
            return Err(Failure::input(format!(
                "the plan has bands of `{name}` along {}: bands must be along 2, 3 or 4, the same for all, in one block",
                cut.dim
            )));
        }
    }
    Ok(Some(own.dim as usize - 2))
}

impl SharedModel {
    /// Returns the seconds of exchanges in the forward and in the backward pass of each micro-batch, by operator of the shared
    /// graph.
    pub fn exchange_seconds(&self, graph: &ModelGraph) -> BTreeMap<OperatorId, (f64, f64)> {
        let mut found: BTreeMap<OperatorId, (f64, f64)> = BTreeMap::new();
        for sent in self.sent(graph).into_iter().filter(|sent| !sent.is_late) {
            let links =
                self.outer.as_ref().filter(|_| sent.is_outer).map_or(&self.links, |outer| &outer.links);
            let seconds = exchange_seconds(sent.collective, sent.whole, links);
            let (forward, backward) = found.entry(sent.operator).or_default();
            match sent.pass {
                Pass::Forward => *forward += seconds,
                Pass::Backward => *backward += seconds,
            }
        }
        found
    }

    /// Returns the seconds of exchanges once a step, by operator of the shared graph: sums of gradients of weights that are
    /// whole on each device.
    pub fn seconds_once(&self, graph: &ModelGraph) -> BTreeMap<OperatorId, f64> {
        let mut found: BTreeMap<OperatorId, f64> = BTreeMap::new();
        for sent in self.sent(graph).into_iter().filter(|sent| sent.is_late) {
            let links =
                self.outer.as_ref().filter(|_| sent.is_outer).map_or(&self.links, |outer| &outer.links);
            *found.entry(sent.operator).or_default() += exchange_seconds(sent.collective, sent.whole, links);
        }
        found
    }

    /// Returns the bytes that the devices exchange, summed over all of them: per micro-batch in both passes, and once a step.
    pub fn exchange_bytes(&self, graph: &ModelGraph) -> (u64, u64) {
        let bytes = |sent: Sent| {
            let once = match sent.collective {
                Collective::Neighbours(moved, size) => rows(sent.whole, moved.total, size),
                other => {
                    let (kind, own) = in_simulator(other, sent.whole, sent.degree);
                    collective::sent(kind, Algorithm::Fastest, own, sent.degree)
                }
            };
            once.saturating_mul(self.devices() / sent.degree)
        };
        let sum = |is_late: bool| {
            let all = self.sent(graph).into_iter().filter(|sent| sent.is_late == is_late);
            all.map(bytes).fold(0, u64::saturating_add)
        };
        (sum(false), sum(true))
    }

    /// Returns the number of devices that share the model, over all groups.
    pub fn devices(&self) -> u64 {
        self.degree * self.outer.as_ref().map_or(1, |outer| outer.groups)
    }

    /// Returns the number of parts of the experts, each with a part of the samples or positions; 1 if they are not shared out so.
    pub fn expert_parallel(&self) -> u64 {
        let groups = self.outer.as_ref().map_or(self.degree, |outer| outer.groups);
        if self.by_expert { groups } else { 1 }
    }

    /// Adds what groups of devices share first, of which this is one group's part.
    pub fn in_groups(self, outer: &SharedModel) -> Self {
        // Values keep their numbers, nodes do not.
        let node = |old: &NodeId| {
            let value = outer.program.nodes[old.index()].outputs[0];
            self.program.values[value.index()].producer.expect("it is made by an operator")
        };
        let exchanges = outer.exchanges.iter().map(|(old, exchange)| (node(old), *exchange)).collect();
        let inside = outer.inside.iter().map(|(old, inside)| (node(old), *inside)).collect();
        Self {
            outer: Some(Outer {
                groups: outer.degree,
                links: outer.links,
                exchanges,
                inside,
                cuts: outer.cuts.clone(),
            }),
            by_expert: outer.by_expert,
            uneven: self.uneven.union(&outer.uneven).copied().collect(),
            proof: Proof { exchanges: self.proof.exchanges + outer.proof.exchanges, ..self.proof },
            split_share: self.split_share.min(outer.split_share),
            operations: outer.operations.clone(),
            seconds: (self.seconds.0 + outer.seconds.0, self.seconds.1 + outer.seconds.1),
            ..self
        }
    }

    /// Returns all exchanges of a micro-batch, by operator of the shared graph.
    fn sent(&self, graph: &ModelGraph) -> Vec<Sent> {
        let mut found = Self::sent_by(graph, self.degree, &self.exchanges, &self.inside);
        if let Some(Outer { groups, exchanges, inside, .. }) = &self.outer {
            let between = Self::sent_by(graph, *groups, exchanges, inside);
            found.extend(between.into_iter().map(|sent| Sent { is_outer: true, ..sent }));
        }
        found
    }

    fn sent_by(
        graph: &ModelGraph,
        degree: u64,
        exchanges: &BTreeMap<NodeId, Exchange>,
        inside: &BTreeMap<NodeId, Inside>,
    ) -> Vec<Sent> {
        let tensors = |operator: OperatorId| {
            graph.operator(operator).outputs.iter().flat_map(|value| graph.value(*value).fact.tensors())
        };
        // What only positions are computed from gets no gradient, and sends none back.
        let differentiated = differentiated(graph);
        let mut found = Vec::new();
        let mut add =
            |operator: OperatorId, dtype: Option<DType>, pass, collective: Option<Collective>, whole| {
                let has_gradient = || {
                    differentiated[operator.index()] && tensors(operator).any(|tensor| tensor.requires_grad)
                };
                if let Some(collective) = collective
                    && (pass == Pass::Forward || has_gradient())
                {
                    let is_late = pass == Pass::Backward && is_summed_later(graph.operator(operator));
                    found.push(Sent {
                        operator,
                        dtype,
                        pass,
                        collective,
                        whole,
                        degree,
                        is_outer: false,
                        is_late,
                    });
                }
            };
        for (node, exchange) in exchanges {
            let operator = graph.operator(OperatorId(node.0));
            let bytes = |values: &[ValueId]| -> u64 {
                let facts = values.iter().flat_map(|value| graph.value(*value).fact.tensors());
                facts.filter_map(|tensor| tensor.bytes()).max().unwrap_or(0)
            };
            // One value is exchanged, the first; positions and ends of experts, which follow it, say where rows go.
            let read: u64 = operator.tensors.iter().map(|id| graph.tensor(*id).bytes).max().unwrap_or(0);
            let inputs = bytes(operator.inputs.get(..1).unwrap_or_default()).max(read);
            // One end is the whole value, except for an exchange of one dimension for another, which has parts at both
            // ends.
            let whole = match exchange {
                Exchange::Exchange { .. } | Exchange::Dispatch(..) => inputs.saturating_mul(degree),
                // The first device has at least as many rows as any.
                Exchange::Rows(taken) => rows(inputs, taken.from.size, taken.from.most(degree)),
                _ => inputs.max(bytes(&operator.outputs)),
            };
            let dtype = tensors(operator.id).next().and_then(|tensor| tensor.dtype);
            add(operator.id, dtype, Pass::Forward, exchange.forward(degree), whole);
            add(operator.id, dtype, Pass::Backward, exchange.backward(degree), whole);
        }
        for (node, inside) in inside {
            let operator = OperatorId(node.0);
            let taken = graph.operator(operator).inputs.first().map(|value| graph.value(*value));
            let Some(tensor) = taken.and_then(|value| value.fact.tensors().first().copied()) else {
                continue;
            };
            let sizes = tensor.sizes().unwrap_or_default();
            // Statistics are in float32 at least.
            let dtype = tensor.dtype.map(|own| if own.bytes() < 4 { DType::Float32 } else { own });
            let bytes = dtype.map_or(4, |own| own.bytes());
            let sum = Some(Collective::AllReduce);
            if *inside == Inside::Targets {
                add(operator, Some(DType::Int64), Pass::Forward, sum, DType::Int64.bytes());
                continue;
            }
            if *inside == Inside::Rows {
                // As many rows come to each device as it gives results.
                let made: u64 = tensors(operator).filter_map(|tensor| tensor.bytes()).sum();
                let whole = made.saturating_mul(degree);
                let dtype = tensors(operator).next().and_then(|tensor| tensor.dtype);
                for pass in [Pass::Forward, Pass::Backward] {
                    add(operator, dtype, pass, Some(Collective::AllToAll), whole);
                }
                continue;
            }
            let bytes = match (*inside, &sizes[..]) {
                (Inside::Channels, [_, channels, ..]) => channels * bytes,
                (Inside::Groups(groups), [samples, ..]) => samples * groups * bytes,
                (Inside::Scores, sizes) => {
                    let classes = sizes.get(usize::from(sizes.len() > 1)).copied().unwrap_or(1).max(1);
                    let rows = sizes.iter().product::<u64>() / classes * bytes;
                    add(operator, dtype, Pass::Forward, sum, rows); // largest
                    add(operator, dtype, Pass::Forward, sum, 2 * rows); // sums, and targets
                    continue;
                }
                _ => continue,
            };
            add(operator, dtype, Pass::Forward, sum, bytes); // means
            add(operator, dtype, Pass::Forward, sum, bytes); // variances
            add(operator, dtype, Pass::Backward, sum, 2 * bytes);
        }
        found
    }

    /// Returns the facts about sharing that stages need.
    pub fn shards(&self, graph: &ModelGraph) -> Shards {
        let program = &self.program;
        let cut = |(id, slice): (&TensorId, &Slice)| {
            (program.tensors[id.index()].path.clone(), (slice.dim, slice.blocks as u32))
        };
        let mut sent: BTreeMap<ValueId, Vec<schema::Exchanged>> = BTreeMap::new();
        for one in self.sent(graph) {
            let Some(value) = graph.operator(one.operator).outputs.first() else { continue };
            sent.entry(*value).or_default().push(one.counted(self.devices() / one.degree));
        }
        // No blocks: the first shard has all of it.
        let whole = self.on_first.iter().map(|id| (program.tensors[id.index()].path.clone(), (0, 0)));
        let cuts = self.cuts.iter().map(cut).chain(whole).collect();
        let groups = self.outer.as_ref().map_or(1, |outer| outer.groups as u32);
        let of_groups = self.outer.iter().flat_map(|outer| outer.cuts.iter().map(cut));
        let group_cuts = of_groups.map(|(path, (dim, _))| (path, dim)).collect();
        let degree = self.devices() as u32;
        Shards { degree, groups, cuts, group_cuts, sent, stays: self.uneven.clone() }
    }

    /// Returns the calls inside which devices have unequal numbers of rows: stages can send only values of equal sizes,
    /// so none begins there.
    pub fn kept_whole(&self, graph: &ModelGraph) -> BTreeSet<BlockId> {
        let holder = |operator: OperatorId| graph.operator(operator).block;
        let around = |block: BlockId| std::iter::successors(Some(block), |own| graph.block(*own).parent);
        let mut found = BTreeSet::new();
        for operator in &graph.operators {
            for value in operator.inputs.iter().filter(|value| self.uneven.contains(value)) {
                let Some(maker) = graph.value(*value).producer else { continue };
                let outer: BTreeSet<BlockId> = around(holder(maker)).collect();
                found.extend(around(holder(operator.id)).find(|block| outer.contains(block)));
            }
        }
        found
    }

    /// Returns the inputs in bands, or a star if only values made of them are.
    fn named_bands(&self) -> indexmap::IndexMap<String, Cut> {
        let Some(dim) = self.bands else { return Default::default() };
        let program = &self.program;
        let is_cut = |id: &&ValueId| {
            self.exchanges.iter().any(|(node, exchange)| {
                let operand = &program.nodes[node.index()].arguments[0].operand;
                matches!(exchange, Exchange::ToBands(_)) && *operand == tracer::Operand::Value(**id)
            })
        };
        let mut names: Vec<String> =
            program.inputs.iter().filter(is_cut).map(|id| program.values[id.index()].name.clone()).collect();
        if names.is_empty() {
            names.push("*".into());
        }
        let cut = Cut { dim: dim as u32, blocks: 1, bands: true, on_first: false };
        names.into_iter().map(|name| (name, cut)).collect()
    }

    /// Returns the cuts by parameter names; layer numbers with equal cuts become a star.
    pub fn named_cuts(&self, program: &Program) -> indexmap::IndexMap<String, Cut> {
        let all = program.tensors.iter().enumerate().map(|(index, tensor)| {
            let id = TensorId(index as u32);
            let cut = self.cuts.get(&id).map(|cut| written(*cut));
            let cut = cut.or_else(|| self.on_first.contains(&id).then_some(ON_FIRST));
            (starred(&tensor.path), tensor.path.clone(), cut)
        });
        let mut named = self.named_bands();
        named.extend(by_pattern(all));
        named
    }
}

/// Returns what has a value under its pattern where all of the pattern have the same, else under its own name.
pub(super) fn by_pattern<T: PartialEq + Clone>(
    all: impl Iterator<Item = (String, String, Option<T>)>,
) -> indexmap::IndexMap<String, T> {
    let mut patterns: indexmap::IndexMap<String, Vec<(String, Option<T>)>> = Default::default();
    for (pattern, name, value) in all {
        patterns.entry(pattern).or_default().push((name, value));
    }
    let mut named = indexmap::IndexMap::new();
    for (pattern, all) in patterns {
        let first = all[0].1.clone();
        if all.iter().all(|(_, value)| *value == first) {
            named.extend(first.map(|value| (pattern, value)));
        } else {
            named.extend(all.into_iter().filter_map(|(name, value)| Some((name, value?))));
        }
    }
    named
}

/// All of a parameter on the first device of a group.
const ON_FIRST: Cut = Cut { dim: 0, blocks: 1, bands: false, on_first: true };

fn written(cut: Slice) -> Cut {
    Cut { dim: cut.dim as u32, blocks: cut.blocks, bands: false, on_first: false }
}

/// Resolves the cuts of a plan; all other parameters are whole.
pub(super) fn named(
    graph: &ModelGraph,
    cuts: &indexmap::IndexMap<String, Cut>,
    degree: u32,
) -> Result<BTreeMap<TensorId, Layout>, Failure> {
    let mut found = BTreeMap::new();
    for tensor in &graph.tensors {
        let cut = cuts.get(&tensor.path).or_else(|| cuts.get(&starred(&tensor.path)));
        let layout = match cut {
            None => Layout::Whole,
            Some(cut) if cut.on_first && (cut.dim, cut.blocks) != (0, 1) => {
                return Err(Failure::input(format!(
                    "`{}` is on the first device only, and cut: give `on_first`, with `dim: 0`, or a cut",
                    tensor.path
                )));
            }
            Some(cut) if cut.on_first => first::layout(tensor)?,
            Some(cut) => {
                let slice = Slice { dim: cut.dim as usize, blocks: cut.blocks };
                if !slice.fits(&tensor.shape, u64::from(degree)) {
                    return Err(Failure::input(format!(
                        "`{}` has sizes {:?}; {degree} devices cannot cut its dimension {} in {} blocks",
                        tensor.path, tensor.shape, cut.dim, cut.blocks
                    )));
                }
                Layout::Even(slice)
            }
        };
        found.insert(tensor.id, layout);
    }
    for name in cuts.keys() {
        if !graph.tensors.iter().any(|tensor| tensor.path == *name || starred(&tensor.path) == *name) {
            let paths = graph.tensors.iter().map(|tensor| tensor.path.as_str());
            let meant = nearest::meant(name, paths, 3);
            return Err(Failure::input(format!(
                "the plan cuts `{name}`, which the model does not have{meant}"
            )));
        }
    }
    Ok(found)
}

/// Returns the proof in the form of answers.
pub fn proved(proof: Proof) -> Proved {
    let Proof { operators, exchanges, parts } = proof;
    Proved { operators: operators as u64, exchanges: exchanges as u64, parts: parts as u64 }
}

/// Describes it in a line.
pub fn proved_text(proved: &Proved) -> String {
    let Proved { operators, exchanges, parts } = proved;
    format!(
        "operands and gradients of {operators} operators have the layouts that their rules need, by {exchanges} exchanges; \
         {parts} results are in parts"
    )
}

/// An exchange of one pass of an operator.
#[derive(Clone, Copy, Debug)]
struct Sent {
    operator: OperatorId,
    dtype: Option<DType>,
    pass: Pass,
    collective: Collective,
    /// Bytes of the whole value.
    whole: u64,
    /// The devices that take part.
    degree: u64,
    /// Whether they are those of one place in their groups, not of one group.
    is_outer: bool,
    /// Whether it may be done once a step.
    is_late: bool,
}

/// The pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    Forward,
    Backward,
}

impl Sent {
    /// Returns it in the form of the manifest, where so many times as many devices do the same. Messages are counted where they
    /// are sent, other bytes once for all that take part.
    fn counted(self, times: u64) -> schema::Exchanged {
        let (collective, bytes) = match self.collective {
            Collective::AllReduce => ("all-reduce", self.whole),
            Collective::AllGather => ("all-gather", self.whole),
            Collective::ReduceScatter => ("reduce-scatter", self.whole),
            Collective::AllToAll => ("all-to-all", self.whole),
            Collective::Neighbours(moved, size) => ("point-to-point", rows(self.whole, moved.total, size)),
        };
        let bytes = bytes.saturating_mul(times);
        schema::Exchanged {
            phase: if self.pass == Pass::Forward { "forward" } else { "backward" }.into(),
            collective: collective.into(),
            dtype: self.dtype.map(|dtype| dtype.name().to_string()),
            calls: 1,
            bytes,
        }
    }
}
