//! Each operator in its own way, as OptCNN and FlexFlow choose: by times of operators at their parts' own sizes.
//!
//! The space is what stages can be written of: all devices of a group share each operator in one of its strategies
//! (equal slices of a dimension, terms of a sum, bands of rows or columns), each does all of it, or the first does.
//! Parts are timed in programs of one device, as the plan will time the one that is chosen; these programs are chosen so
//! that few of them have all strategies. Where a pass is as long as the host's calls, not as its kernels, an operator's
//! time depends on all others, and tables are about right: what is found is timed as a whole, beside what other options
//! choose.

use std::collections::BTreeMap;

use codegen::starred;
use graph::{
    BuildOptions, ModelGraph, OperatorId, Role,
    layout::{Choice, Context, Exchange, Layout, Slice, Source, Strategy},
};
use indexmap::IndexMap;
use partitioner::inside::{Choices, Cost, Limits, NoSplit, eliminate, split, walk};
use schema::Cut;
use tracer::{NodeId, Operand};

use super::{
    choice::{Chosen, Group, Prices, Tables},
    model::{Around, INSISTENCE, OperatorSearch, SharedModel, Subject, Way, by_pattern, launch, named},
    words::{OwnSplit, WHOLE, words},
};
use crate::{failure::Failure, nearest};

/// The most programs in which parts are timed.
const MOST_PROGRAMS: usize = 200;
/// The most searches, each with more exchanges timed.
const MOST_ROUNDS: usize = 8;

/// Finds the fastest splits of a model's operators.
///
/// # Errors
/// If none fit the devices' memory.
pub fn searched(subject: &Subject<'_>, search: OperatorSearch) -> Result<SharedModel, Failure> {
    let context = Context::of_all(subject.graph, u64::from(subject.degree));
    let ways = ways(&context);
    let mut parts = Parts::of(subject, &context, &ways)?;
    let found = best(subject, &context, &ways, &mut parts, (search, false))?;
    if let Some(found) = &found
        && found.shared.split_share > 0.0
    {
        return Ok(found.shared.clone());
    }
    let (alone, bound) = found.map_or((f64::INFINITY, 0.0), |found| (found.seconds, found.shared.seconds.1));
    // Who asks for splits wants some: whole operators are charged with more than they take.
    let share = shares(subject);
    for (node, ways) in ways.iter().enumerate() {
        for (cost, _) in parts.costs[node].iter_mut().zip(ways).filter(|(_, way)| !way.is_split) {
            cost.seconds += INSISTENCE * alone.min(1e3) * share[node];
        }
    }
    let Some(found) = best(subject, &context, &ways, &mut parts, (search, true))? else {
        return Err(Failure::no(format!(
            "no operator of this model can be split over {} devices",
            subject.degree
        )));
    };
    Ok(SharedModel { seconds: (found.seconds, bound), alone: Some(alone), ..found.shared })
}

/// Returns the choices of a model whose parts cost this.
fn tabled(
    subject: &Subject<'_>,
    context: &Context<'_>,
    parts: &Parts,
    search: OperatorSearch,
) -> Result<Tables, Failure> {
    let (_, figures) = subject.figures()?;
    let group = Group {
        degree: u64::from(subject.degree),
        seconds: &|collective, bytes| subject.exchange(collective, bytes),
        launch: launch(figures),
        per_byte: search.update(figures),
        prices: Prices::AtParts(&parts.costs, &|step, bytes, has_gradient| {
            parts.exchange(subject, step, bytes, has_gradient)
        }),
        held: 2.0 + search.optimizer_factor,
        sequences: None,
        keeps_weights: false,
        summed: search.each(),
        wanted: &|id, way| is_wanted(context, id, way),
        given: &BTreeMap::new(),
    };
    Ok(Tables::of(context, &group))
}

/// Returns one device's share under the splits of a plan.
///
/// # Errors
/// If they are none of this model.
pub fn given(
    subject: &Subject<'_>,
    operators: &IndexMap<String, String>,
    cuts: &IndexMap<String, Cut>,
) -> Result<SharedModel, Failure> {
    let context = Context::of_all(subject.graph, u64::from(subject.degree));
    let ways = ways(&context);
    let mut left: Vec<&String> = operators.keys().collect();
    let mut strategies = Vec::with_capacity(ways.len());
    for (index, (path, name)) in places(subject.graph).into_iter().enumerate() {
        let keys = [key(&path, &name), pattern(&path, &name)];
        let own = keys.iter().find_map(|key| operators.get_key_value(key));
        let words = words(&context, OperatorId(index as u32), &ways[index]);
        let Some((found, split)) = own else {
            strategies.push(0);
            continue;
        };
        left.retain(|other| *other != found);
        strategies.push(words.iter().position(|own| own == split).ok_or_else(|| {
            Failure::input(format!("the plan splits `{}` by `{split}`", keys[0]))
                .with_hint(format!("it can be split by {}", words.join("; ")))
        })?);
    }
    if let Some(other) = left.first() {
        let all: Vec<String> =
            places(subject.graph).into_iter().map(|(path, name)| key(&path, &name)).collect();
        let meant = nearest::meant(other, all.iter().map(String::as_str), 3);
        return Err(Failure::input(format!(
            "the plan splits `{other}`, which the model does not have{meant}"
        )));
    }
    let given = named(subject.graph, cuts, subject.degree)?;
    let tensors =
        subject.graph.tensors.iter().map(|tensor| given.get(&tensor.id).copied().unwrap_or_default());
    let choice = Choice { strategies, tensors: tensors.collect() };
    finished(subject, &context, &ways, &Chosen { choice, seconds: 0.0, bound: 0.0 })
}

/// Returns the splits that a plan records: those that are not whole.
pub fn recorded(operators: &[OwnSplit]) -> IndexMap<String, String> {
    by_pattern(operators.iter().map(|own| {
        let split = Some(own.split.clone()).filter(|split| split != WHOLE);
        (pattern(&own.path, &own.name), key(&own.path, &own.name), split)
    }))
}

fn key(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_string() } else { format!("{path} {name}") }
}

/// Returns the same of all equal layers.
fn pattern(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_string() } else { key(&starred(path), name) }
}

/// Returns the call and the name of each operator: a name that a call has several times is numbered.
fn places(graph: &ModelGraph) -> Vec<(String, String)> {
    let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    let place = |operator: &graph::Operator| {
        let (path, name) = (graph.block(operator.block).path.clone(), operator.short_name().to_string());
        let count = counts.entry((path.clone(), name.clone())).or_default();
        *count += 1;
        (path, if *count == 1 { name } else { format!("{name} {count}") })
    };
    graph.operators.iter().map(place).collect()
}

pub(super) fn ways(context: &Context<'_>) -> Vec<Vec<Strategy>> {
    (0..context.graph.operators.len() as u32).map(|id| context.strategies(OperatorId(id))).collect()
}

/// Returns each operator's share of the FLOPs.
fn shares(subject: &Subject<'_>) -> Vec<f64> {
    let flops = |id: u32| subject.costs.operator(OperatorId(id)).forward_flops as f64;
    let all: Vec<f64> = (0..subject.graph.operators.len() as u32).map(flops).collect();
    let total: f64 = all.iter().sum();
    all.into_iter().map(|own| if total > 0.0 { own / total } else { 1.0 }).collect()
}

/// A choice, and the seconds of its micro-batch as a plan predicts them.
pub(super) struct Candidate {
    pub(super) shared: SharedModel,
    pub(super) seconds: f64,
    /// Whether a device has room for it, if nothing is computed again.
    fits: bool,
    choice: Choice,
}

/// Returns the fastest of the choices that the search finds, and of those that other options make; `None` if none is
/// possible. Exchanges that were not timed before are timed in what is found, which is then searched again.
pub(super) fn best(
    subject: &Subject<'_>,
    context: &Context<'_>,
    ways: &[Vec<Strategy>],
    parts: &mut Parts,
    (search, only_split): (OperatorSearch, bool),
) -> Result<Option<Candidate>, Failure> {
    let mut best: Option<Candidate> = None;
    let usable = subject.figures()?.1.usable().0 as f64;
    for round in 0..MOST_ROUNDS {
        let tables = tabled(subject, context, parts, search)?;
        let others = match &best {
            Some(best) if round > 0 => vec![best.choice.clone()],
            _ => known(subject, ways),
        };
        let (mut all, bound) = candidates(subject, ways, &tables, search, &others)?;
        all.extend(others);
        let before = parts.exchanges.len();
        for choice in all {
            let chosen = Chosen { choice, seconds: 0.0, bound: 0.0 };
            let shared = finished(subject, context, ways, &chosen)?;
            if only_split && shared.split_share <= 0.0 {
                continue;
            }
            let graph = built(subject, &shared)?;
            let own = timed(subject, &shared, &graph)?;
            parts.learn(subject, &shared, &own);
            let seconds = own.micro_batch + updated(subject, &shared, &graph, search)?;
            let picks = tables.picks(&chosen.choice);
            let fits = picks.is_none_or(|picks| tables.choices.totals(&picks).bytes <= usable);
            // What fits comes first.
            let is_better = |best: &Candidate| (!fits, seconds) < (!best.fits, best.seconds);
            if best.as_ref().is_none_or(is_better) {
                best = Some(Candidate { shared, seconds, fits, choice: chosen.choice });
            }
        }
        if let Some(best) = &mut best {
            // The bound is by the times of the tables, in which all exchanges are known at last.
            let own = tables.picks(&best.choice).map(|picks| tables.choices.totals(&picks).seconds);
            let own = own.unwrap_or(best.seconds);
            best.shared.seconds = (own, bound.min(own));
        }
        if parts.exchanges.len() == before {
            break;
        }
    }
    Ok(best)
}

/// Returns the choices that a search finds, from others that are known, and a lower bound.
fn candidates(
    subject: &Subject<'_>,
    ways: &[Vec<Strategy>],
    tables: &Tables,
    search: OperatorSearch,
    known: &[Choice],
) -> Result<(Vec<Choice>, f64), Failure> {
    let choices = &tables.choices;
    let (_, figures) = subject.figures()?;
    let mut limits = Limits { exposed: 1.0, bytes: figures.usable().0 as f64 };
    let known: Vec<Vec<usize>> = known.iter().filter_map(|choice| tables.picks(choice)).collect();
    let found = match split(choices, limits, &known) {
        // What no split leaves room for, the plan may compute again.
        Err(NoSplit::Memory { .. }) => {
            limits.bytes = f64::INFINITY;
            split(choices, limits, &known)
        }
        found => found,
    };
    let Ok(found) = found else { return Ok((Vec::new(), 0.0)) };
    let picks = match search.random {
        Some(settings) => {
            let starts = [found.picks, by_samples(ways, tables)];
            walk(choices, limits, &starts, settings, tables.n_operators).map(|walked| walked.picks)
        }
        None => Some(found.picks),
    };
    Ok((picks.iter().map(|picks| tables.choice(picks)).collect(), found.bound))
}

/// Tells whether a strategy is searched: images are cut along their rows and columns in bands alone, and their channels
/// in one block, for operators around them take nothing else.
fn is_wanted(context: &Context<'_>, id: OperatorId, way: &Strategy) -> bool {
    let is_image = |source: Source| matches!(source, Source::Value(value) if context.is_image(value));
    let is_odd = |layout: Layout| matches!(layout, Layout::Even(slice) if slice.dim > 1 || slice.blocks > 1);
    let results = context.graph.operator(id).outputs.iter().map(|value| (Source::Value(*value), way.gives));
    let leaves = context.leaves(id);
    let taken =
        leaves.iter().zip(&way.needs).map(|(leaf, need)| (leaf.source, need.layout().unwrap_or_default()));
    !results.chain(taken).any(|(source, layout)| is_image(source) && is_odd(layout))
}

/// Returns the picks of data parallelism: samples wherever that is possible.
fn by_samples(ways: &[Vec<Strategy>], tables: &Tables) -> Vec<usize> {
    let choices = &tables.choices;
    let samples = Layout::Even(Slice { dim: 0, blocks: 1 });
    let mut nodes = choices.nodes.clone();
    let total: f64 =
        1.0 + nodes.iter().flatten().map(|cost| cost.seconds).filter(|s| s.is_finite()).sum::<f64>();
    for ((node, kept), ways) in nodes.iter_mut().zip(&tables.kept).zip(ways) {
        for (cost, _) in node.iter_mut().zip(kept).filter(|(_, own)| ways[**own].gives != samples) {
            cost.seconds += total;
        }
    }
    eliminate(&Choices { nodes, edges: choices.edges.clone() }, |cost| cost.seconds).picks
}

/// Returns what other options choose: the search is never slower than they are.
fn known(subject: &Subject<'_>, ways: &[Vec<Strategy>]) -> Vec<Choice> {
    let auto = ["auto".to_string()];
    let others = [Way::Layers(None, Around::NONE), Way::Bands, Way::Positions(&[]), Way::Positions(&auto)];
    let choice = |way: &Way<'_>| {
        let (view, chosen) = subject.dealt_out(*way).ok()?;
        let same = |(index, pick): (usize, &usize)| {
            let own = view.strategies(OperatorId(index as u32)).swap_remove(*pick);
            ways[index].iter().position(|way| *way == own)
        };
        let strategies: Option<Vec<usize>> = chosen.choice.strategies.iter().enumerate().map(same).collect();
        Some(Choice { strategies: strategies?, tensors: chosen.choice.tensors })
    };
    others.iter().filter_map(choice).collect()
}

/// Returns one device's share, with the split of each operator.
pub(super) fn finished(
    subject: &Subject<'_>,
    context: &Context<'_>,
    ways: &[Vec<Strategy>],
    chosen: &Chosen,
) -> Result<SharedModel, Failure> {
    let (shared, _) = subject.made(context, chosen)?;
    let own = |(index, (path, name)): (usize, (String, String))| {
        let id = OperatorId(index as u32);
        let split = words(context, id, &ways[index]).swap_remove(chosen.choice.strategies[index]);
        let makes_tensors =
            subject.graph.operator(id).outputs.iter().any(|value| context.sizes(*value).is_some());
        OwnSplit { path, name, split, makes_tensors }
    };
    let operators = places(subject.graph).into_iter().enumerate().map(own).collect();
    Ok(SharedModel { operators: Some(operators), ..shared })
}

/// Returns a micro-batch's part of what one device does once a step: the optimizer's step, and sums before it.
fn updated(
    subject: &Subject<'_>,
    shared: &SharedModel,
    graph: &ModelGraph,
    search: OperatorSearch,
) -> Result<f64, Failure> {
    let (_, figures) = subject.figures()?;
    let parameters = graph.tensors.iter().filter(|own| own.role == Role::Parameter && own.first == own.id);
    let sums: f64 = shared.seconds_once(graph).into_values().sum();
    Ok(parameters.map(|own| own.bytes).sum::<u64>() as f64 * search.update(figures) + sums * search.each())
}

/// Returns the seconds of a micro-batch on one device, as plans add them up, with its part of the optimizer's.
#[cfg(test)]
pub(super) fn micro_batch(
    subject: &Subject<'_>,
    shared: &SharedModel,
    search: OperatorSearch,
) -> Result<f64, Failure> {
    let graph = built(subject, shared)?;
    Ok(timed(subject, shared, &graph)?.micro_batch + updated(subject, shared, &graph, search)?)
}

fn built(subject: &Subject<'_>, shared: &SharedModel) -> Result<ModelGraph, Failure> {
    let options = BuildOptions { inputs: subject.inputs.to_vec() };
    graph::build(&shared.program, &options)
        .map_err(|errors| Failure::bug(format!("sizes of a device's part are inconsistent: {}", errors.0[0])))
}

/// What parts cost at their own sizes.
pub(super) struct Parts {
    /// Each strategy of each operator; infinite for those that no program has.
    costs: Vec<Vec<Cost>>,
    /// Seconds of exchanges beside those of links, by the bytes of the whole value and whether it has a gradient.
    exchanges: BTreeMap<(Exchange, bool, u64), f64>,
}

impl Parts {
    /// Times them in programs of one device, each of which has strategies that no other has.
    pub(super) fn of(
        subject: &Subject<'_>,
        context: &Context<'_>,
        ways: &[Vec<Strategy>],
    ) -> Result<Self, Failure> {
        let group = Group {
            degree: u64::from(subject.degree),
            seconds: &|_, _| 0.0,
            launch: 0.0,
            per_byte: 0.0,
            prices: Prices::None,
            held: 0.0,
            sequences: None,
            keeps_weights: false,
            summed: 1.0,
            wanted: &|id, way| is_wanted(context, id, way),
            given: &BTreeMap::new(),
        };
        let mut tables = Tables::of(context, &group);
        let mut found: Vec<Vec<Option<Cost>>> = ways.iter().map(|ways| vec![None; ways.len()]).collect();
        let mut parts = Self { costs: Vec::new(), exchanges: BTreeMap::new() };
        for _ in 0..MOST_PROGRAMS {
            let picked = eliminate(&tables.choices, |cost| cost.seconds);
            let choice = tables.choice(&picked.picks);
            let mut all = choice.strategies.iter().enumerate();
            if !picked.value.is_finite() || !all.any(|(node, own)| found[node][*own].is_none()) {
                break;
            }
            let chosen = Chosen { choice, seconds: 0.0, bound: 0.0 };
            let (shared, _) = subject.made(context, &chosen)?;
            let own = timed(subject, &shared, &built(subject, &shared)?)?;
            parts.learn(subject, &shared, &own);
            for (node, cost) in own.operators.into_iter().enumerate() {
                found[node][chosen.choice.strategies[node]].get_or_insert(cost);
                // Strategies that were timed cost more than those that were not.
                tables.choices.nodes[node][picked.picks[node]].seconds = 1.0;
            }
        }
        let impossible = Cost { seconds: f64::INFINITY, ..Cost::default() };
        let costs =
            |node: Vec<Option<Cost>>| node.into_iter().map(|cost| cost.unwrap_or(impossible)).collect();
        parts.costs = found.into_iter().map(costs).collect();
        Ok(parts)
    }

    /// Notes what the exchanges of a program take.
    fn learn(&mut self, subject: &Subject<'_>, shared: &SharedModel, own: &Timed) {
        for (node, seconds) in &own.exchanges {
            let (bytes, has_gradient) = source(subject, shared, *node);
            self.exchanges.insert((shared.exchanges[node], has_gradient, bytes), *seconds);
        }
    }

    /// Returns the seconds of an exchange: those of the links, and those of the calls, which are known of the same value
    /// or of one of nearly its size.
    fn exchange(&self, subject: &Subject<'_>, step: Exchange, bytes: u64, has_gradient: bool) -> f64 {
        let degree = u64::from(subject.degree);
        let back = if has_gradient { step.backward(degree) } else { None };
        let links: f64 =
            [step.forward(degree), back].into_iter().flatten().map(|one| subject.exchange(one, bytes)).sum();
        let of = |step: Exchange, bytes: u64| (step, has_gradient, bytes);
        let kind = std::mem::discriminant(&step);
        let near = |(known, _): &(&(Exchange, bool, u64), &f64)| known.2.abs_diff(bytes);
        let alike = || {
            let all = self.exchanges.iter();
            all.filter(|(known, _)| known.1 == has_gradient && std::mem::discriminant(&known.0) == kind)
        };
        let known = self.exchanges.get(&of(step, bytes)).or_else(|| Some(alike().min_by_key(near)?.1));
        links
            + known.copied().unwrap_or_else(|| subject.figures().map_or(0.0, |(_, figures)| launch(figures)))
    }
}

/// Returns the bytes of the whole value that an exchange starts from, and whether it has a gradient.
fn source(subject: &Subject<'_>, shared: &SharedModel, node: NodeId) -> (u64, bool) {
    let program = &shared.program;
    let mut operand = program.nodes[node.index()].arguments.first().map(|argument| &argument.operand);
    while let Some(Operand::Value(value)) = operand
        && value.index() >= subject.program.values.len()
    {
        let maker = program.values[value.index()].producer;
        operand = maker.and_then(|maker| Some(&program.nodes[maker.index()].arguments.first()?.operand));
    }
    match operand {
        Some(Operand::Value(value)) => {
            let tensors = subject.graph.value(*value).fact.tensors();
            let bytes = tensors.iter().filter_map(|tensor| tensor.bytes()).sum();
            (bytes, tensors.iter().any(|tensor| tensor.requires_grad))
        }
        Some(Operand::Tensor(id)) => {
            let tensor = subject.graph.tensor(*id);
            (tensor.bytes, tensor.fact().requires_grad)
        }
        _ => (0, false),
    }
}

/// The times of a program of one device.
struct Timed {
    /// Of each operator of the whole model, with the collectives inside it and what follows its results.
    operators: Vec<Cost>,
    /// Of each exchange, beside those of links.
    exchanges: BTreeMap<NodeId, f64>,
    /// Of both passes, with exchanges.
    micro_batch: f64,
}

fn timed(subject: &Subject<'_>, shared: &SharedModel, graph: &ModelGraph) -> Result<Timed, Failure> {
    let bytes = graph::costs(graph);
    let predicted = subject.predicted(graph, &bytes)?;
    let sent = shared.exchange_seconds(graph);
    let mut operators: Vec<Cost> = Vec::with_capacity(subject.graph.operators.len());
    let (mut exchanges, mut micro_batch) = (BTreeMap::new(), 0.0);
    for (operator, node) in graph.operators.iter().zip(&shared.program.nodes) {
        let id = NodeId(operator.id.0);
        let one = predicted.operator(operator.id);
        let own = one.forward.seconds + one.backward().seconds;
        let (there, back) = sent.get(&operator.id).copied().unwrap_or_default();
        micro_batch += own + there + back;
        if shared.exchanges.contains_key(&id) {
            exchanges.insert(id, own);
            continue;
        }
        let bytes = bytes.operator(operator.id).saved_bytes as f64;
        let is_ours = node.outputs.first().is_some_and(|value| value.index() >= subject.program.values.len());
        match operators.last_mut().filter(|_| is_ours) {
            Some(last) => {
                last.seconds += own + there + back;
                last.bytes += bytes;
            }
            None if is_ours => {}
            None => operators.push(Cost { seconds: own + there + back, hidden: 0.0, bytes }),
        }
    }
    Ok(Timed { operators, exchanges, micro_batch })
}
