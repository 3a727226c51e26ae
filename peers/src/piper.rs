//! Piper's objective: stages with data and tensor parallelism and a choice of implementation for each layer.
//!
//! Tarnawski et al., "Piper: multidimensional planner for DNN parallelization", NeurIPS 2021. A stage of `d` replicas over
//! `t` devices each takes `Σ compute/d + (2·Σ cut/d + 4(d-1)w/(d·N))/bandwidth` for each micro-batch; its memory is
//! `Σ A·y + B` with `y = ceil(D/d)`, `D` the replicas of this stage and all later ones; `d` divides `N`.
//!
//! Where Piper fills a table over (ideal, devices, replicas) and picks implementations greedily, we ask "can every stage keep
//! within T?" for a few T. Under one T, more devices or more replicas behind a stage never help the stages before it, so each
//! ideal keeps only the frontier of (replicas, devices), each stage takes the smallest `d` that keeps within T, and
//! implementations are picked exactly. Cost: O(probes · Q² · |t| · frontier) time, O(Q · frontier) memory: a stage is built on
//! demand, after sums over ideals have not ruled it out ([`Sums`]), and kept while there is room ([`Recent`]).

use std::collections::{BTreeMap, HashMap};

use partitioner::{
    Ideals, Limits,
    knapsack::{Choice, Items, Picked, pick},
};
use schema::{PiperImplementation, PiperWorkload};

use crate::{piper_recent::Recent, piper_sums::Sums};

/// Which kinds of parallelism and implementations a plan may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PiperOptions {
    /// Stages with replicas.
    pub data_parallel: bool,
    /// Stages over several devices.
    pub tensor_parallel: bool,
    /// Implementations called `activation recomp`.
    pub recompute: bool,
}

impl Default for PiperOptions {
    fn default() -> Self {
        Self { data_parallel: true, tensor_parallel: true, recompute: true }
    }
}

/// A plan and how good it is.
#[derive(Clone, Debug, PartialEq)]
pub struct PiperPlan {
    /// Seconds for each micro-batch: the slowest stage.
    pub period: f64,
    /// Lower bound of the period.
    pub lower_bound: f64,
    /// Stages in the order of the model.
    pub stages: Vec<PiperStage>,
    /// Ideals of the graph.
    pub n_ideals: usize,
}

/// One stage.
#[derive(Clone, Debug, PartialEq)]
pub struct PiperStage {
    /// Positions of its nodes in the workload.
    pub nodes: Vec<usize>,
    /// Replicas.
    pub data_parallel: u32,
    /// Devices of each replica.
    pub tensor_parallel: u32,
    /// Name of each node's implementation.
    pub implementations: Vec<String>,
    /// Seconds for each micro-batch.
    pub seconds: f64,
    /// Seconds of that which are compute.
    pub compute: f64,
    /// Bytes on each device.
    pub memory: f64,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PiperError {
    /// More ideals than can be looked at.
    #[error("the graph has more than {0} ideals")]
    TooWide(usize),
    /// More pairs of ideals than can be looked at.
    #[error(
        "the graph has {ideals} ideals, and pairs of them were looked at {visits} times without finding any plan"
    )]
    TooLong {
        /// Ideals.
        ideals: usize,
        /// Pairs looked at.
        visits: u64,
    },
    /// A layer without implementations.
    #[error("node `{0}` has no implementation that may be used")]
    NoImplementation(String),
    /// A layer that is too large by itself.
    #[error("no plan fits: node `{node}` alone needs {needed} bytes, a device has {available}")]
    Node {
        /// Its name.
        node: String,
        /// Bytes at the least.
        needed: f64,
        /// Bytes of a device.
        available: f64,
    },
    /// The layers do not fit together.
    #[error(
        "no plan fits: {devices} devices of {available} bytes are too few; about {would_fit} bytes each would do"
    )]
    Memory {
        /// Devices.
        devices: u32,
        /// Bytes of a device.
        available: f64,
        /// Bytes of a device at which a plan exists.
        would_fit: f64,
    },
}

/// The most ideals; pairs of them are looked at.
const IDEALS: usize = 40_000;
/// The most nodes of all ideals together, as bits.
const BITS: usize = 1 << 28;
/// Pairs of ideals after which the best plan so far is the answer; picking implementations counts as many.
const VISITS: u64 = 20_000_000_000;
/// What picking implementations for one node counts as.
const VISITS_OF_A_PICK: u64 = 50;

/// Finds the best plan.
///
/// # Errors
/// When no plan fits into memory, or the graph is too wide.
pub fn piper_plan(workload: &PiperWorkload, options: PiperOptions) -> Result<PiperPlan, PiperError> {
    let mut solver = Solver::new(workload, options)?;
    let mut best = match solver.within(f64::INFINITY) {
        Within::Plan(plan) => plan,
        Within::None => return Err(solver.why_not()),
        Within::Unfinished => return Err(solver.too_long()),
    };
    let mut low = solver.lower_bound();
    while low < best.period * (1.0 - 1e-12) {
        // Close to the bound, probe just below the best period.
        let is_near = best.period - low < best.period * 1e-3;
        let target = if is_near { best.period * (1.0 - 1e-12) } else { (low + best.period) / 2.0 };
        match solver.within(target) {
            Within::Plan(better) => best = better,
            Within::None => low = target,
            Within::Unfinished => {
                best.lower_bound = low.min(best.period * (1.0 - solver.doubt));
                return Ok(best);
            }
        }
    }
    // An implementation pick that met its limit leaves a gap of this size.
    best.lower_bound = best.period * (1.0 - solver.doubt);
    Ok(best)
}

/// The result of a probe.
enum Within {
    Plan(PiperPlan),
    None,
    /// The limit on the work was met first.
    Unfinished,
}

struct Solver<'a> {
    workload: &'a PiperWorkload,
    /// Bytes of a device: the workload's, or more in the search for the memory that would fit.
    memory: f64,
    ideals: Ideals,
    /// Degrees of tensor parallelism that are tried.
    degrees: Vec<u32>,
    /// Replica counts that divide the batch.
    replicas: Vec<u32>,
    /// By degree, then node: the implementations.
    implementations: Vec<Vec<Vec<&'a PiperImplementation>>>,
    /// Edges by node: other end, bytes, whether it comes in.
    edges: Vec<Vec<(usize, f64, bool)>>,
    ids: Vec<i64>,
    /// Least device-seconds of each ideal.
    work: Vec<f64>,
    sums: Sums,
    recent: Recent,
    doubt: f64,
    visits: u64,
}

/// A stage between two ideals at one degree, whatever its replicas: nodes with (compute, bytes cut, parameters, A, B).
pub(crate) struct Stage {
    nodes: Vec<usize>,
    choices: Vec<Vec<[f64; 5]>>,
}

impl Stage {
    /// Counts what it holds.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }
}

/// A point of a frontier: replicas and devices of the stages from here to the end.
#[derive(Clone, Copy)]
struct Point {
    replicas: u32,
    devices: u32,
    /// Ideal, point, degree and replicas of the stage that led here.
    came: (u32, u32, u8, u32),
}

/// Points of which none dominates another: devices fall as replicas rise.
#[derive(Clone, Default)]
struct Frontier(Vec<Point>);

impl Frontier {
    /// Tells whether a point has no more replicas and no more devices.
    fn has(&self, replicas: u32, devices: u32) -> bool {
        let after = self.0.partition_point(|point| point.replicas <= replicas);
        after > 0 && self.0[after - 1].devices <= devices
    }

    /// Adds a point that no other dominates, and drops those that it dominates.
    fn insert(&mut self, point: Point) {
        let first = self.0.partition_point(|other| other.replicas < point.replicas);
        let n_worse = self.0[first..].iter().take_while(|other| other.devices >= point.devices).count();
        self.0.splice(first..first + n_worse, [point]);
    }
}

impl<'a> Solver<'a> {
    fn new(workload: &'a PiperWorkload, options: PiperOptions) -> Result<Self, PiperError> {
        let n_nodes = workload.nodes.len();
        let position: HashMap<i64, usize> =
            workload.nodes.iter().enumerate().map(|(index, node)| (node.id, index)).collect();
        let mut edges = vec![Vec::new(); n_nodes];
        // Ideals are enumerated from the end of the model, so a node's takers come before it.
        let mut outputs = vec![Vec::new(); n_nodes];
        for edge in &workload.edges {
            let (from, to) = (position[&edge.source], position[&edge.target]);
            edges[from].push((to, edge.bytes, false));
            edges[to].push((from, edge.bytes, true));
            outputs[from].push(to);
        }
        let limit = IDEALS.min(BITS / n_nodes.max(1));
        let ideals = Ideals::enumerate(&outputs, limit).ok_or(PiperError::TooWide(limit))?;
        let (degrees, implementations) = implementations(workload, options)?;
        let most = workload.n_devices.min(workload.micro_batches);
        let replicas = (1..=if options.data_parallel { most } else { 1 })
            .filter(|count| workload.micro_batches.is_multiple_of(*count))
            .collect();
        let least: Vec<f64> = (0..n_nodes)
            .map(|node| {
                let times = degrees.iter().zip(&implementations).flat_map(|(&degree, by_node)| {
                    by_node[node].iter().map(move |implementation| implementation.time * f64::from(degree))
                });
                times.fold(f64::INFINITY, f64::min)
            })
            .collect();
        let work = (0..ideals.len()).map(|ideal| ideals.nodes(ideal).map(|node| least[node]).sum()).collect();
        let ids = workload.nodes.iter().map(|node| node.id).collect();
        let sums = Sums::new(&ideals, &implementations);
        Ok(Self {
            workload,
            memory: workload.memory,
            ideals,
            degrees,
            replicas,
            implementations,
            edges,
            ids,
            work,
            sums,
            recent: Recent::default(),
            doubt: 0.0,
            visits: 0,
        })
    }

    fn lower_bound(&self) -> f64 {
        self.work[self.work.len() - 1] / f64::from(self.workload.n_devices)
    }

    /// Returns the stage between two ideals; every node has an implementation at the degree.
    fn stage_between(&self, start: usize, end: usize, degree: usize) -> Stage {
        let nodes: Vec<usize> = self.ideals.between(start, end).collect();
        let is_inside = |node: usize| self.ideals.is_between(start, end, node);
        let choices = nodes.iter().map(|&node| {
            let numbers = self.implementations[degree][node].iter().map(|implementation| {
                let outside = self.edges[node].iter().filter(|(other, ..)| !is_inside(*other));
                let cut = outside.map(|&(other, bytes, comes_in)| {
                    let syncs =
                        if comes_in { &implementation.sync_forward } else { &implementation.sync_backward };
                    2.0 * (bytes + syncs.get(&self.ids[other]).copied().unwrap_or(0.0))
                });
                let cut: f64 = cut.sum();
                let memory = (implementation.memory_in_flight, implementation.memory_fixed);
                [implementation.time, cut, implementation.parameters, memory.0, memory.1]
            });
            numbers.collect()
        });
        Stage { choices: choices.collect(), nodes }
    }

    /// Picks implementations for a stage of `replicas` with `in_flight` micro-batches.
    fn picks(&self, stage: &Stage, replicas: u32, in_flight: u32) -> Option<Picked> {
        let (d, y) = (f64::from(replicas), f64::from(in_flight));
        let batch = f64::from(self.workload.micro_batches);
        let item = |choices: &Vec<[f64; 5]>| {
            let choice = |&[compute, cut, parameters, flying, fixed]: &[f64; 5]| Choice {
                time: (cut / d + 4.0 * (d - 1.0) * parameters / d / batch) / self.workload.bandwidth
                    + compute / d,
                memory: flying * y + fixed,
            };
            choices.iter().map(choice).collect()
        };
        let items: Items = stage.choices.iter().map(item).collect();
        pick(&items, self.memory, 0.0, Limits::NORMAL.sizes.knapsack_nodes)
    }

    fn time(&mut self, key: (u32, u32, u8), replicas: u32, in_flight: u32) -> f64 {
        if let Some(time) = self.recent.time(key, replicas, in_flight) {
            return time;
        }
        let stage = self
            .recent
            .stage(key)
            .unwrap_or_else(|| self.stage_between(key.0 as usize, key.1 as usize, usize::from(key.2)).into());
        self.visits += stage.len() as u64 * VISITS_OF_A_PICK;
        let picked = self.picks(&stage, replicas, in_flight);
        let time = picked.as_ref().map_or(f64::INFINITY, |picked| picked.time);
        if let Some(picked) = picked.filter(|picked| picked.lower_bound < picked.time) {
            self.doubt = self.doubt.max(1.0 - picked.lower_bound / picked.time);
        }
        self.recent.keep(key, replicas, in_flight, time, stage);
        time
    }

    /// Finds a plan whose stages all take at most `target`.
    fn within(&mut self, target: f64) -> Within {
        let n_ideals = self.ideals.len();
        let total = self.work[n_ideals - 1];
        let mut frontiers = vec![Frontier::default(); n_ideals];
        frontiers[0].insert(Point { replicas: 0, devices: 0, came: (0, 0, 0, 0) });
        // Ideals at which some stage ends, and the least devices of the stages behind.
        let mut reached = vec![(0_usize, 0_u32)];
        for end in 1..n_ideals {
            // Lower bound of the devices for the rest of the model.
            let rest = ((total - self.work[end]) / target * (1.0 - 1e-9)).ceil();
            let rest = if rest.is_finite() { rest as u32 } else { 0 };
            let mut frontier = Frontier::default();
            for &(start, devices) in reached.iter().rev() {
                for degree in 0..self.degrees.len() {
                    let key = (start, end, degree);
                    let Some(first) = self.fewest(key, target, devices.saturating_add(rest)) else {
                        continue;
                    };
                    self.grow(&frontiers[start], key, first, target, rest, &mut frontier);
                }
            }
            self.visits += reached.len() as u64;
            if self.visits > VISITS {
                return Within::Unfinished;
            }
            if let Some(fewest) = frontier.0.last() {
                reached.push((end, fewest.devices));
                frontiers[end] = frontier;
            }
        }
        self.plan(&frontiers).map_or(Within::None, Within::Plan)
    }

    /// Returns the index of the least replicas that a stage from `start` to `end` needs; `None` if these are too many beside the
    /// other stages' devices, or if there is no such stage.
    fn fewest(&self, (start, end, degree): (usize, usize, usize), target: f64, others: u32) -> Option<usize> {
        let least = self.sums.compute(degree, start, end)? / target * (1.0 - 1e-9);
        let (width, n_devices) = (self.degrees[degree], self.workload.n_devices);
        if least * f64::from(width) + f64::from(others) > f64::from(n_devices)
            || !self.ideals.is_subset(start, end)
        {
            return None;
        }
        let first = self.replicas.partition_point(|&count| f64::from(count) < least);
        let fewest = *self.replicas.get(first)?;
        (others.saturating_add(fewest * width) <= n_devices).then_some(first)
    }

    /// Extends the points at one end of a stage from `start` to `end` by it; `first` is the least number of replicas that it
    /// needs.
    fn grow(
        &mut self,
        points: &Frontier,
        (start, end, degree): (usize, usize, usize),
        first: usize,
        target: f64,
        rest: u32,
        frontier: &mut Frontier,
    ) {
        let (width, n_devices) = (self.degrees[degree], self.workload.n_devices);
        let most_replicas = n_devices.min(self.workload.micro_batches);
        let key = (start as u32, end as u32, degree as u8);
        for (index, point) in points.0.iter().enumerate() {
            for which in first..self.replicas.len() {
                let count = self.replicas[which];
                let (replicas, devices) = (point.replicas + count, point.devices + count * width);
                if replicas > most_replicas
                    || devices.saturating_add(rest) > n_devices
                    || frontier.has(replicas, devices)
                {
                    break;
                }
                let in_flight = replicas.div_ceil(count);
                let memory =
                    self.sums.memory(&self.ideals, &self.implementations, degree, in_flight, start, end);
                if memory > self.memory {
                    continue;
                }
                let time = self.time(key, count, in_flight);
                if time <= target && time.is_finite() {
                    let came = (start as u32, index as u32, degree as u8, count);
                    frontier.insert(Point { replicas, devices, came });
                    break;
                }
            }
        }
    }

    /// Follows the points back from the whole model.
    fn plan(&self, frontiers: &[Frontier]) -> Option<PiperPlan> {
        let mut ideal = frontiers.len() - 1;
        let mut point = *frontiers[ideal].0.first()?;
        let mut stages = Vec::new();
        while ideal != 0 {
            let (start, index, degree, count) = point.came;
            let stage = self.stage_between(start as usize, ideal, usize::from(degree));
            stages.push(self.stage(&stage, usize::from(degree), count, point.replicas.div_ceil(count))?);
            ideal = start as usize;
            point = frontiers[ideal].0[index as usize];
        }
        let period = stages.iter().map(|stage: &PiperStage| stage.seconds).fold(0.0, f64::max);
        Some(PiperPlan { period, lower_bound: 0.0, stages, n_ideals: frontiers.len() })
    }

    fn stage(&self, stage: &Stage, degree: usize, replicas: u32, in_flight: u32) -> Option<PiperStage> {
        let picked = self.picks(stage, replicas, in_flight)?;
        let chosen = || stage.choices.iter().zip(&picked.choices).map(|(choices, &choice)| choices[choice]);
        let names = stage.nodes.iter().zip(&picked.choices);
        Some(PiperStage {
            nodes: stage.nodes.clone(),
            data_parallel: replicas,
            tensor_parallel: self.degrees[degree],
            implementations: names
                .map(|(&node, &choice)| self.implementations[degree][node][choice].id.clone())
                .collect(),
            seconds: picked.time,
            compute: chosen().map(|choice| choice[0]).sum::<f64>() / f64::from(replicas),
            memory: chosen().map(|choice| choice[3] * f64::from(in_flight) + choice[4]).sum(),
        })
    }

    fn too_long(&self) -> PiperError {
        PiperError::TooLong { ideals: self.ideals.len(), visits: self.visits }
    }

    /// Returns the reason why nothing fits.
    fn why_not(&mut self) -> PiperError {
        let available = self.workload.memory;
        for (index, node) in self.workload.nodes.iter().enumerate() {
            let implementations = self.implementations.iter().flat_map(|by_node| by_node[index].iter());
            let memory = implementations.map(|choice| choice.memory_in_flight + choice.memory_fixed);
            let needed = memory.fold(f64::INFINITY, f64::min);
            if needed > available {
                let node = name(self.workload, index, &node.name);
                return PiperError::Node { node, needed, available };
            }
        }
        let mut fits = |memory: f64| {
            (self.memory, self.recent) = (memory, Recent::default());
            matches!(self.within(f64::INFINITY), Within::Plan(_))
        };
        let (mut low, mut high) = (available, available * 2.0);
        while !fits(high) && high < 1e30 {
            (low, high) = (high, high * 2.0);
        }
        for _ in 0..10 {
            let middle = (low + high) / 2.0;
            if fits(middle) { high = middle } else { low = middle }
        }
        if self.visits > VISITS {
            return self.too_long();
        }
        PiperError::Memory { devices: self.workload.n_devices, available, would_fit: high }
    }
}

/// Finds the degrees that may be used, and by degree, then node, the implementations.
#[allow(clippy::type_complexity)]
fn implementations(
    workload: &PiperWorkload,
    options: PiperOptions,
) -> Result<(Vec<u32>, Vec<Vec<Vec<&PiperImplementation>>>), PiperError> {
    let n_nodes = workload.nodes.len();
    let is_usable =
        |implementation: &&PiperImplementation| options.recompute || implementation.id != "activation recomp";
    let mut by_degree: BTreeMap<u32, Vec<Vec<&PiperImplementation>>> = BTreeMap::new();
    for (index, node) in workload.nodes.iter().enumerate() {
        for (&degree, implementations) in &node.implementations {
            if degree >= 1 && degree <= workload.n_devices && (degree == 1 || options.tensor_parallel) {
                by_degree.entry(degree).or_insert_with(|| vec![Vec::new(); n_nodes])[index] =
                    implementations.iter().filter(is_usable).collect();
            }
        }
    }
    let (degrees, implementations): (Vec<u32>, Vec<_>) = by_degree.into_iter().unzip();
    for (index, node) in workload.nodes.iter().enumerate() {
        if implementations.iter().all(|by_node: &Vec<Vec<_>>| by_node[index].is_empty()) {
            return Err(PiperError::NoImplementation(name(workload, index, &node.name)));
        }
    }
    Ok((degrees, implementations))
}

fn name(workload: &PiperWorkload, index: usize, name: &str) -> String {
    if name.is_empty() { workload.nodes[index].id.to_string() } else { name.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_without_an_end_ends() {
        let node = |id: i64| {
            let ways = vec![PiperImplementation {
                id: "vanilla".into(),
                time: 1.0,
                parameters: 0.0,
                memory_in_flight: 0.0,
                memory_fixed: 0.0,
                sync_forward: BTreeMap::new(),
                sync_backward: BTreeMap::new(),
            }];
            schema::PiperNode { id, name: String::new(), implementations: [(1, ways)].into() }
        };
        let workload = PiperWorkload {
            n_devices: 2,
            memory: 1.0,
            bandwidth: 1.0,
            micro_batches: 2,
            nodes: vec![node(0), node(1)],
            edges: vec![],
        };
        let mut solver = Solver::new(&workload, PiperOptions::default()).unwrap();
        assert!(matches!(solver.within(1.0), Within::Plan(_)));
        solver.visits = VISITS;
        assert!(matches!(solver.within(1.0), Within::Unfinished));
    }
}
