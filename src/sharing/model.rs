//! The model as one device of a group runs it, and a cluster whose devices are such groups.

use std::collections::BTreeMap;

use codegen::Shards;
use cost_model::{PredictOptions, predict};
use graph::{
    ModelGraph, OperatorCosts, OperatorId, TensorId,
    layout::{Collective, Exchange, Layout, Look, Slice, sharded},
};
use schema::{Cluster, Cut, Device};
use simulator::{
    Link,
    collective::{self, Algorithm},
};
use tracer::{NodeId, Program};

use super::{Group, choose};
use crate::{cost_models::CostModels, failure::Failure, nearest, workspace::operations};

/// A model that devices share.
#[derive(Clone)]
pub struct SharedModel {
    /// What one device runs; stored tensors have the sizes of a part.
    pub program: Program,
    /// How many devices share it.
    pub degree: u64,
    /// Where stored tensors are cut.
    pub cuts: BTreeMap<TensorId, Slice>,
    /// Exchanges by their node.
    pub exchanges: BTreeMap<NodeId, Exchange>,
    /// Share of the FLOPs that devices share; the rest each of them does.
    pub split_share: f64,
    /// Operations of the whole model there and back, and the data type of most of them; none where some are not counted.
    pub operations: Option<(f64, String)>,
    /// What strategies cost by the times that they were chosen by, and the least that any cost.
    pub seconds: (f64, f64),
}

/// Seconds that an optimizer's step takes for each byte of parameters: these, their gradients and its state are read and written.
const TOUCHED: f64 = 7.0;

/// What all operators that have FLOPs would cost more if none were shared, in times of the whole model.
const INSISTENCE: f64 = 10.0;

/// Chooses how so many devices of a cluster share a model. Stored tensors in `given` are cut so, all others as serves best.
///
/// # Errors
/// When the devices cannot be grouped so, or the model cannot be shared.
pub fn shared_by(
    program: &Program,
    graph: &ModelGraph,
    costs: &OperatorCosts,
    (cluster, models): (&Cluster, &CostModels),
    degree: u32,
    given: Option<&indexmap::IndexMap<String, Cut>>,
) -> Result<SharedModel, Failure> {
    let look = Look::new(graph, u64::from(degree));
    let name = cluster.devices.first().map(|device| device.type_.as_str()).unwrap_or_default();
    let figures = cluster.types.get(name).ok_or_else(|| Failure::input("the cluster has no device types"))?;
    let predicted = predict(graph, costs, &models.of(name, figures), &PredictOptions::default());
    let seconds = |id: OperatorId| {
        let one = predicted.operator(id);
        let whole = one.forward.seconds + one.input_gradient.seconds + one.weight_gradient.seconds;
        // What a host or a launch takes does not become less with smaller parts.
        (whole, if one.is_launch_bound { 0.0 } else { whole })
    };
    let flops = |id: OperatorId| costs.operator(id).forward_flops as f64;
    let all = || (0..graph.operators.len() as u32).map(OperatorId);
    let (total_seconds, total_flops) =
        (all().map(|id| seconds(id).0).sum::<f64>(), all().map(flops).sum::<f64>());
    let link = inner_link(cluster);
    let group = Group {
        whole: &|id| {
            if total_flops > 0.0 { INSISTENCE * total_seconds * flops(id) / total_flops } else { 0.0 }
        },
        degree: u64::from(degree),
        seconds: &|collective, bytes| exchange_seconds(collective, bytes, degree, link),
        launch: figures
            .launch
            .map_or(1e-6, |launch| launch.0)
            .max(figures.host_call.map_or(0.0, |call| call.0)),
        per_byte: TOUCHED / figures.memory_bandwidth.0,
    };
    let given = given.map(|cuts| named(graph, cuts, degree)).transpose()?.unwrap_or_default();
    let no = || {
        Failure::no(format!("no way was found for {degree} devices to share this model"))
            .with_hint("leave out --tensor-parallel")
    };
    let chosen = choose(&look, &group, &seconds, &given).ok_or_else(no)?;
    let made = sharded(program, &look, &chosen.choice).map_err(|error| Failure::no(error.to_string()))?;
    let sum = |only_split: bool| -> f64 {
        let ids = (0..graph.operators.len()).filter(|at| !only_split || made.is_split[*at]);
        ids.map(|at| flops(OperatorId(at as u32))).sum()
    };
    let total = sum(false);
    Ok(SharedModel {
        split_share: if total > 0.0 { sum(true) / total } else { 0.0 },
        operations: operations(graph, costs),
        program: made.program,
        degree: made.degree,
        cuts: made.cuts,
        exchanges: made.exchanges,
        seconds: (chosen.seconds, chosen.bound),
    })
}

impl SharedModel {
    /// Returns the seconds of each exchange in the forward and in the backward pass, by operator of the shared graph.
    pub fn exchange_seconds(
        &self,
        graph: &ModelGraph,
        cluster: &Cluster,
    ) -> BTreeMap<OperatorId, (f64, f64)> {
        let link = inner_link(cluster);
        let degree = self.degree as u32;
        let of = |exchanged: Exchanged| {
            let seconds = |collective: Option<Collective>| {
                collective
                    .map_or(0.0, |collective| exchange_seconds(collective, exchanged.whole, degree, link))
            };
            (exchanged.operator, (seconds(exchanged.forward), seconds(exchanged.backward)))
        };
        self.exchanged(graph).map(of).collect()
    }

    /// Returns the bytes that the devices send each other for one micro-batch, there and back, all of them together.
    pub fn exchange_bytes(&self, graph: &ModelGraph) -> u64 {
        let bytes = |collective: Collective, whole: u64| {
            let (collective, own) = in_simulator(collective, whole, self.degree);
            collective::sent(collective, Algorithm::Fastest, own, self.degree)
        };
        let of = |exchanged: Exchanged| {
            [exchanged.forward, exchanged.backward]
                .into_iter()
                .flatten()
                .map(|one| bytes(one, exchanged.whole))
                .sum::<u64>()
        };
        self.exchanged(graph).map(of).fold(0, u64::saturating_add)
    }

    /// Returns what is exchanged, by operator of the shared graph.
    fn exchanged<'a>(&'a self, graph: &'a ModelGraph) -> impl Iterator<Item = Exchanged> + 'a {
        let of = |(node, exchange): (&NodeId, &Exchange)| {
            let operator = graph.operator(OperatorId(node.0));
            let bytes = |values: &[graph::ValueId]| -> u64 {
                let facts = values.iter().flat_map(|value| graph.value(*value).fact.tensors());
                facts.filter_map(|tensor| tensor.bytes()).max().unwrap_or(0)
            };
            let read: u64 = operator.tensors.iter().map(|id| graph.tensor(*id).bytes).max().unwrap_or(0);
            let inputs = bytes(&operator.inputs).max(read);
            // Either end is the whole value, but for an exchange of one dimension for another, whose ends are parts.
            let whole = match exchange {
                Exchange::Exchange { .. } => inputs.saturating_mul(self.degree),
                _ => inputs.max(bytes(&operator.outputs)),
            };
            let results = operator.outputs.iter().flat_map(|value| graph.value(*value).fact.tensors());
            let has_gradient = results.into_iter().any(|tensor| tensor.requires_grad);
            let backward = exchange.backward().filter(|_| has_gradient);
            Exchanged { operator: operator.id, whole, forward: exchange.forward(), backward }
        };
        self.exchanges.iter().map(of)
    }

    /// Returns what stages are told of it.
    pub fn shards(&self, program: &Program) -> Shards {
        let cut = |(id, slice): (&TensorId, &Slice)| {
            (program.tensors[id.index()].path.clone(), (slice.dim, slice.blocks as u32))
        };
        Shards { degree: self.degree as u32, cuts: self.cuts.iter().map(cut).collect() }
    }

    /// Returns the cuts by the names of what is cut; numbers of layers that are cut alike are a star.
    pub fn named_cuts(&self, program: &Program) -> indexmap::IndexMap<String, Cut> {
        let mut by_pattern: indexmap::IndexMap<String, Vec<(String, Option<Slice>)>> = Default::default();
        for (index, tensor) in program.tensors.iter().enumerate() {
            let cut = self.cuts.get(&TensorId(index as u32)).copied();
            by_pattern.entry(pattern(&tensor.path)).or_default().push((tensor.path.clone(), cut));
        }
        let mut named = indexmap::IndexMap::new();
        for (pattern, all) in by_pattern {
            let first = all[0].1;
            if all.iter().all(|(_, cut)| *cut == first) {
                named.extend(first.map(|cut| (pattern, written(cut))));
            } else {
                named.extend(all.into_iter().filter_map(|(path, cut)| Some((path, written(cut?)))));
            }
        }
        named
    }
}

fn written(cut: Slice) -> Cut {
    Cut { dim: cut.dim as u32, blocks: cut.blocks }
}

/// A path with a star for each number.
fn pattern(path: &str) -> String {
    let part = |part: &str| {
        if part.bytes().all(|byte| byte.is_ascii_digit()) { "*".into() } else { part.to_string() }
    };
    path.split('.').map(part).collect::<Vec<String>>().join(".")
}

/// Finds what a plan says to be cut; all else is whole.
fn named(
    graph: &ModelGraph,
    cuts: &indexmap::IndexMap<String, Cut>,
    degree: u32,
) -> Result<BTreeMap<TensorId, Layout>, Failure> {
    let mut found = BTreeMap::new();
    for tensor in &graph.tensors {
        let cut = cuts.get(&tensor.path).or_else(|| cuts.get(&pattern(&tensor.path)));
        let layout = match cut {
            None => Layout::Whole,
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
        if !graph.tensors.iter().any(|tensor| tensor.path == *name || pattern(&tensor.path) == *name) {
            let paths = graph.tensors.iter().map(|tensor| tensor.path.as_str());
            let meant = nearest::meant(name, paths, 3);
            return Err(Failure::input(format!(
                "the plan cuts `{name}`, which the model does not have{meant}"
            )));
        }
    }
    Ok(found)
}

fn inner_link(cluster: &Cluster) -> Link {
    let level = cluster.levels.first();
    Link {
        latency: level.map_or(0, |level| (level.latency.0 * 1e9).round() as u64),
        bandwidth: level.map_or(f64::INFINITY, |level| level.bandwidth.0),
    }
}

fn exchange_seconds(what: Collective, bytes: u64, degree: u32, link: Link) -> f64 {
    let group = collective::Group::flat(degree, link);
    let (kind, bytes) = in_simulator(what, bytes, u64::from(degree));
    collective::time(kind, Algorithm::Fastest, bytes, &group) as f64 * 1e-9
}

/// Returns an exchange as the simulator knows it, and the bytes that it counts it by.
fn in_simulator(what: Collective, whole: u64, degree: u64) -> (collective::Collective, u64) {
    match what {
        Collective::AllReduce => (collective::Collective::AllReduce, whole),
        Collective::AllGather => (collective::Collective::AllGather, whole),
        Collective::ReduceScatter => (collective::Collective::ReduceScatter, whole),
        // Each sends all but its own part of what it holds.
        Collective::AllToAll => (collective::Collective::AllToAll, whole / degree),
    }
}

/// An exchange of a value, and where it is made.
struct Exchanged {
    operator: OperatorId,
    /// Bytes of the whole value.
    whole: u64,
    forward: Option<Collective>,
    backward: Option<Collective>,
}

/// Returns a cluster with a device for each group of so many neighbours, and the names of the members of each.
///
/// # Errors
/// When groups do not fill what the fastest links join.
pub fn grouped(cluster: &Cluster, degree: u32) -> Result<(Cluster, BTreeMap<String, Vec<String>>), Failure> {
    let mut by_place: indexmap::IndexMap<&[u32], Vec<&Device>> = Default::default();
    for device in &cluster.devices {
        by_place.entry(&device.place).or_default().push(device);
    }
    let degree = degree as usize;
    let mut members: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for devices in by_place.values() {
        if devices.len() % degree != 0 {
            let fits: Vec<String> = (2..=devices.len())
                .filter(|n| devices.len().is_multiple_of(*n))
                .map(|n| n.to_string())
                .collect();
            let failure = Failure::input(format!(
                "--tensor-parallel {degree} does not divide the {} devices that the fastest links join",
                devices.len()
            ));
            return Err(if fits.is_empty() {
                failure.with_hint("one device cannot share its work with others over slower links")
            } else {
                failure.with_hint(format!("{} would", fits.join(", ")))
            });
        }
        for group in devices.chunks(degree) {
            if let Some(other) = group.iter().find(|device| device.type_ != group[0].type_) {
                return Err(Failure::input(format!(
                    "{} and {} would share layers and are of different types, {} and {}",
                    group[0].name, other.name, group[0].type_, other.type_
                )));
            }
            members.insert(group[0].name.clone(), group.iter().map(|device| device.name.clone()).collect());
        }
    }
    // In the order of the cluster, which stages follow.
    let leaders = cluster.devices.iter().filter(|device| members.contains_key(&device.name));
    Ok((Cluster { devices: leaders.cloned().collect(), ..cluster.clone() }, members))
}
