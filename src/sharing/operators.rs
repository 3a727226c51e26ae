//! Each operator in its own way, as OptCNN and FlexFlow choose: by times of operators at their parts' own sizes.
//!
//! The space is what stages can be written of: all devices of a group share each operator in one of its strategies
//! (equal slices of a dimension, terms of a sum, bands of rows or columns), each does all of it, or the first does.
//! Parts are timed in programs of one device, as the plan will time the one that is chosen; these programs are chosen so
//! that few of them have all strategies.

use std::collections::BTreeMap;

use codegen::starred;
use graph::{
    BuildOptions, ModelGraph, OperatorId, Role,
    layout::{Choice, Context, Layout, Slice, Strategy},
};
use indexmap::IndexMap;
use partitioner::inside::{Choices, Cost, Limits, NoSplit, eliminate, split, walk};
use schema::Cut;

use super::{
    choice::{Chosen, Group, Prices, Tables},
    model::{
        INSISTENCE, OperatorSearch, SharedModel, Subject, Way, by_pattern, launch, named,
    },
    words::{OwnSplit, WHOLE, words},
};
use crate::{
    failure::{self, Failure},
    nearest,
};

/// The most programs in which parts are timed.
const MOST_PROGRAMS: usize = 200;

/// Finds the fastest splits of a model's operators.
///
/// # Errors
/// If none fit the devices' memory.
pub fn searched(subject: &Subject<'_>, search: OperatorSearch) -> Result<SharedModel, Failure> {
    let context = Context::of_all(subject.graph, u64::from(subject.degree));
    let ways = ways(&context);
    let costs = at_parts(subject, &context, &ways)?;
    let mut tables = tabled(subject, &context, &costs, search)?;
    let known = known(subject, &ways, &tables);
    let found = best(subject, &context, &ways, &tables, search, &known)?;
    if let Some(found) = &found
        && found.shared.split_share > 0.0
    {
        return Ok(found.shared.clone());
    }
    let alone = found.map_or(f64::INFINITY, |found| found.seconds);
    // Who asks for splits wants some: whole operators are charged with more than they take.
    let share = shares(subject);
    for (node, ways) in ways.iter().enumerate() {
        for (cost, _) in tables.choices.nodes[node].iter_mut().zip(ways).filter(|(_, way)| !way.is_split) {
            cost.seconds += INSISTENCE * alone.min(1e3) * share[node];
        }
    }
    let found = best(subject, &context, &ways, &tables, search, &known)?;
    let Some(found) = found.filter(|found| found.shared.split_share > 0.0) else {
        return Err(Failure::no(format!(
            "no operator of this model can be split over {} devices",
            subject.degree
        )));
    };
    failure::note(format!(
        "one device alone is faster than any split of the operators: {} per micro-batch, and {} split",
        schema::Seconds(alone),
        schema::Seconds(found.seconds)
    ));
    Ok(found.shared)
}

/// Returns the choices of a model whose parts cost this.
pub(super) fn tabled(
    subject: &Subject<'_>,
    context: &Context<'_>,
    costs: &[Vec<Cost>],
    search: OperatorSearch,
) -> Result<Tables, Failure> {
    let (_, figures) = subject.figures()?;
    let group = Group {
        degree: u64::from(subject.degree),
        seconds: &|collective, bytes| subject.exchange(collective, bytes),
        launch: launch(figures),
        per_byte: search.update(figures),
        prices: Prices::AtParts(costs),
        held: 2.0 + search.optimizer_factor,
        sequences: None,
        keeps_weights: false,
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
        let keys = [key(&path, &name), key(&starred(&path), &name)];
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
    let tensors = subject.graph.tensors.iter().map(|tensor| given.get(&tensor.id).copied().unwrap_or_default());
    let choice = Choice { strategies, tensors: tensors.collect() };
    finished(subject, &context, &ways, &Chosen { choice, seconds: 0.0, bound: 0.0 })
}

/// Returns the splits that a plan records: those that are not whole.
pub fn recorded(operators: &[OwnSplit]) -> IndexMap<String, String> {
    by_pattern(operators.iter().map(|own| {
        let split = Some(own.split.clone()).filter(|split| split != WHOLE);
        (key(&starred(&own.path), &own.name), key(&own.path, &own.name), split)
    }))
}

fn key(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_string() } else { format!("{path} {name}") }
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
}

/// Returns the fastest of the choices that the search finds, and of those that are known; `None` if none is possible.
pub(super) fn best(
    subject: &Subject<'_>,
    context: &Context<'_>,
    ways: &[Vec<Strategy>],
    tables: &Tables,
    search: OperatorSearch,
    known: &[Vec<usize>],
) -> Result<Option<Candidate>, Failure> {
    let choices = &tables.choices;
    let (_, figures) = subject.figures()?;
    let mut limits = Limits { exposed: 1.0, bytes: figures.usable().0 as f64 };
    let found = match split(choices, limits, known) {
        // What no split leaves room for, the plan may compute again.
        Err(NoSplit::Memory { .. }) => {
            limits.bytes = f64::INFINITY;
            split(choices, limits, known)
        }
        found => found,
    };
    let Ok(found) = found else { return Ok(None) };
    let mut all: Vec<Vec<usize>> = vec![found.picks.clone()];
    if let Some(settings) = search.random {
        let starts = [found.picks.clone(), by_samples(ways, choices)];
        let walked = walk(choices, limits, &starts, settings, tables.n_operators);
        all = walked.into_iter().map(|walked| walked.picks).collect();
    }
    all.extend(known.iter().filter(|picks| choices.totals(picks).bytes <= limits.bytes).cloned());
    let mut best: Option<Candidate> = None;
    for picks in all {
        let seconds = choices.totals(&picks).seconds;
        let chosen =
            Chosen { choice: tables.choice(&picks), seconds, bound: found.bound.min(seconds) };
        let shared = finished(subject, context, ways, &chosen)?;
        let seconds = micro_batch(subject, &shared, search)?;
        if best.as_ref().is_none_or(|best| seconds < best.seconds) {
            best = Some(Candidate { shared, seconds });
        }
    }
    Ok(best)
}

/// Returns the picks of data parallelism: samples wherever that is possible.
fn by_samples(ways: &[Vec<Strategy>], choices: &Choices) -> Vec<usize> {
    let samples = Layout::Even(Slice { dim: 0, blocks: 1 });
    let mut nodes = choices.nodes.clone();
    let total: f64 = 1.0 + nodes.iter().flatten().map(|cost| cost.seconds).filter(|s| s.is_finite()).sum::<f64>();
    for (node, ways) in nodes.iter_mut().zip(ways) {
        for (cost, _) in node.iter_mut().zip(ways).filter(|(_, way)| way.gives != samples) {
            cost.seconds += total;
        }
    }
    eliminate(&Choices { nodes, edges: choices.edges.clone() }, |cost| cost.seconds).picks
}

/// Returns what other options choose, as picks: the search is never slower than they are.
fn known(
    subject: &Subject<'_>,
    ways: &[Vec<Strategy>],
    tables: &Tables,
) -> Vec<Vec<usize>> {
    let auto = ["auto".to_string()];
    let others = [Way::Layers(None), Way::Bands, Way::Positions(&[]), Way::Positions(&auto)];
    let picks = |way: &Way<'_>| {
        let (view, chosen) = subject.dealt_out(*way).ok()?;
        let same = |(index, pick): (usize, &usize)| {
            let own = view.strategies(OperatorId(index as u32)).swap_remove(*pick);
            ways[index].iter().position(|way| *way == own)
        };
        let strategies: Option<Vec<usize>> = chosen.choice.strategies.iter().enumerate().map(same).collect();
        tables.picks(&Choice { strategies: strategies?, tensors: chosen.choice.tensors })
    };
    others.iter().filter_map(picks).collect()
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

/// Returns the seconds of a micro-batch on one device, as plans add them up, with its part of the optimizer's.
pub(super) fn micro_batch(
    subject: &Subject<'_>,
    shared: &SharedModel,
    search: OperatorSearch,
) -> Result<f64, Failure> {
    let graph = built(subject, shared)?;
    let predicted = subject.predicted(&graph, &graph::costs(&graph))?.total();
    let exchanged: f64 =
        shared.exchange_seconds(&graph, subject.cluster).values().map(|(there, back)| there + back).sum();
    let (_, figures) = subject.figures()?;
    let parameters = graph.tensors.iter().filter(|own| own.role == Role::Parameter && own.first == own.id);
    let updated = parameters.map(|own| own.bytes).sum::<u64>() as f64 * search.update(figures);
    Ok(predicted.forward.seconds + predicted.backward().seconds + exchanged + updated)
}

fn built(subject: &Subject<'_>, shared: &SharedModel) -> Result<ModelGraph, Failure> {
    let options = BuildOptions { inputs: subject.inputs.to_vec() };
    graph::build(&shared.program, &options)
        .map_err(|errors| Failure::bug(format!("sizes of a device's part are inconsistent: {}", errors.0[0])))
}

/// Returns the cost of each strategy of each operator at its parts' own sizes; infinite for those that no program has.
pub(super) fn at_parts(
    subject: &Subject<'_>,
    context: &Context<'_>,
    ways: &[Vec<Strategy>],
) -> Result<Vec<Vec<Cost>>, Failure> {
    let free: Vec<Vec<Cost>> = ways.iter().map(|ways| vec![Cost::default(); ways.len()]).collect();
    // Seconds in these tables only tell what is possible.
    let group = Group {
        degree: u64::from(subject.degree),
        seconds: &|_, _| 0.0,
        launch: 0.0,
        per_byte: 0.0,
        prices: Prices::AtParts(&free),
        held: 0.0,
        sequences: None,
        keeps_weights: false,
        given: &BTreeMap::new(),
    };
    let mut tables = Tables::of(context, &group);
    let mut found: Vec<Vec<Option<Cost>>> = ways.iter().map(|ways| vec![None; ways.len()]).collect();
    for _ in 0..MOST_PROGRAMS {
        let picked = eliminate(&tables.choices, |cost| cost.seconds);
        let is_new = |(node, pick): (usize, &usize)| found[node][*pick].is_none();
        let mut picks = picked.picks[..ways.len()].iter().enumerate();
        if !picked.value.is_finite() || !picks.any(is_new) {
            break;
        }
        for (node, cost) in timed(subject, context, &tables.choice(&picked.picks))?.into_iter().enumerate() {
            let pick = picked.picks[node];
            found[node][pick].get_or_insert(cost);
            tables.choices.nodes[node][pick].seconds = 1.0;
        }
    }
    let impossible = Cost { seconds: f64::INFINITY, ..Cost::default() };
    Ok(found.into_iter().map(|node| node.into_iter().map(|cost| cost.unwrap_or(impossible)).collect()).collect())
}

/// Returns the cost of each operator of the whole model in the program of one device.
fn timed(subject: &Subject<'_>, context: &Context<'_>, choice: &Choice) -> Result<Vec<Cost>, Failure> {
    let chosen = Chosen { choice: choice.clone(), seconds: 0.0, bound: 0.0 };
    let (shared, _) = subject.made(context, &chosen)?;
    let graph = built(subject, &shared)?;
    let bytes = graph::costs(&graph);
    let predicted = subject.predicted(&graph, &bytes)?;
    let exchanged = shared.exchange_seconds(&graph, subject.cluster);
    let mut all: Vec<Cost> = Vec::with_capacity(subject.graph.operators.len());
    for (operator, node) in graph.operators.iter().zip(&shared.program.nodes) {
        let is_ours =
            node.outputs.first().is_some_and(|value| value.index() >= subject.program.values.len());
        let is_exchange = shared.exchanges.keys().any(|id| id.index() == operator.id.index());
        if is_exchange {
            continue;
        }
        let one = predicted.operator(operator.id);
        let (there, back) = exchanged.get(&operator.id).copied().unwrap_or_default();
        let cost = Cost {
            seconds: one.forward.seconds + one.backward().seconds + there + back,
            hidden: 0.0,
            bytes: bytes.operator(operator.id).saved_bytes as f64,
        };
        // What follows a result belongs to the operator that made it.
        match all.last_mut().filter(|_| is_ours) {
            Some(last) => {
                last.seconds += cost.seconds;
                last.bytes += cost.bytes;
            }
            None if is_ours => {}
            None => all.push(cost),
        }
    }
    Ok(all)
}
