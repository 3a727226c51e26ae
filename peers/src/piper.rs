//! Piper's objective: stages with data and tensor parallelism and a choice of implementation for each layer.
//!
//! Tarnawski et al., "Piper: multidimensional planner for DNN parallelization", NeurIPS 2021. A stage of `d` replicas over
//! `t` devices each takes `Σ compute/d + (2·Σ cut/d + 4(d-1)w/(d·N))/bandwidth` for each micro-batch; its memory is
//! `Σ A·y + B` with `y = ceil(D/d)`, `D` the replicas of this stage and all later ones; `d` divides `N`.
//!
//! Where Piper fills a table over (ideal, devices, replicas) and picks implementations greedily, we ask "can every stage
//! keep within T?" for a few T. Under one T, more devices or more replicas behind a stage never help those before it, so
//! each ideal keeps only the frontier of (replicas, devices), each stage takes the smallest `d` that
//! keeps within T, and implementations are picked exactly. Cost: O(probes · Q² · |t| · frontier).

use std::collections::{BTreeMap, HashMap};

use partitioner::{
    Ideals,
    knapsack::{Choice, Items, Picked, pick},
};
use schema::{PiperImplementation, PiperWorkload};

/// What may be used.
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
    /// No plan is faster.
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

/// Finds the best plan.
///
/// # Errors
/// When no plan fits into memory, or the graph is too wide.
pub fn piper_plan(workload: &PiperWorkload, options: PiperOptions) -> Result<PiperPlan, PiperError> {
    let mut solver = Solver::new(workload, options)?;
    let Some(mut best) = solver.within(f64::INFINITY) else {
        return Err(solver.why_not(workload, options));
    };
    let mut low = solver.lower_bound();
    while low < best.period * (1.0 - 1e-12) {
        // Near the end, ask whether anything at all is better than what we have.
        let is_near = best.period - low < best.period * 1e-3;
        let target = if is_near { best.period * (1.0 - 1e-12) } else { (low + best.period) / 2.0 };
        match solver.within(target) {
            Some(better) => best = better,
            None => low = target,
        }
    }
    // Picks that were cut short leave a doubt of this size.
    best.lower_bound = best.period * (1.0 - solver.doubt);
    Ok(best)
}

/// A node's way to run, as numbers.
struct Solver<'a> {
    workload: &'a PiperWorkload,
    ideals: Ideals,
    n_nodes: usize,
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
    pairs: HashMap<(u32, u32, u8), Pair>,
    doubt: f64,
}

/// A stage between two ideals at one degree, whatever its replicas: nodes with (compute, bytes cut, parameters, A, B).
struct Pair {
    nodes: Vec<usize>,
    /// Least compute and least bytes cut of all nodes: a quick bound.
    least_compute: f64,
    choices: Vec<Vec<[f64; 5]>>,
    /// Time by replicas and micro-batches in flight.
    known: HashMap<(u32, u32), f64>,
}

/// A point of a frontier: what the stages from here to the end take.
#[derive(Clone, Copy)]
struct Point {
    replicas: u32,
    devices: u32,
    /// Ideal, point, degree and replicas of the stage that led here.
    came: (u32, u32, u8, u32),
}

impl<'a> Solver<'a> {
    fn new(workload: &'a PiperWorkload, options: PiperOptions) -> Result<Self, PiperError> {
        let n_nodes = workload.nodes.len();
        let position: HashMap<i64, usize> =
            workload.nodes.iter().enumerate().map(|(index, node)| (node.id, index)).collect();
        let mut edges = vec![Vec::new(); n_nodes];
        // Ideals are taken from the end of the model: what a node leads to must be in already.
        let mut outputs = vec![Vec::new(); n_nodes];
        for edge in &workload.edges {
            let (from, to) = (position[&edge.source], position[&edge.target]);
            edges[from].push((to, edge.bytes, false));
            edges[to].push((from, edge.bytes, true));
            outputs[from].push(to);
        }
        let ideals = Ideals::enumerate(&outputs, IDEALS).ok_or(PiperError::TooWide(IDEALS))?;
        let is_usable = |implementation: &&PiperImplementation| {
            options.recompute || implementation.id != "activation recomp"
        };
        let n_devices = workload.n_devices;
        let mut by_degree: BTreeMap<u32, Vec<Vec<&PiperImplementation>>> = BTreeMap::new();
        for (index, node) in workload.nodes.iter().enumerate() {
            for (&degree, implementations) in &node.implementations {
                if degree >= 1 && degree <= n_devices && (degree == 1 || options.tensor_parallel) {
                    by_degree.entry(degree).or_insert_with(|| vec![Vec::new(); n_nodes])[index] =
                        implementations.iter().filter(is_usable).collect();
                }
            }
        }
        let (degrees, implementations): (Vec<u32>, Vec<_>) = by_degree.into_iter().unzip();
        for (index, node) in workload.nodes.iter().enumerate() {
            if implementations.iter().all(|by_node| by_node[index].is_empty()) {
                return Err(PiperError::NoImplementation(name(workload, index, &node.name)));
            }
        }
        let most = n_devices.min(workload.micro_batches);
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
        Ok(Self {
            workload,
            ideals,
            n_nodes,
            degrees,
            replicas,
            implementations,
            edges,
            ids,
            work,
            pairs: HashMap::new(),
            doubt: 0.0,
        })
    }

    fn lower_bound(&self) -> f64 {
        self.work[self.work.len() - 1] / f64::from(self.workload.n_devices)
    }

    fn pair(&self, start: usize, end: usize, degree: usize) -> Option<Pair> {
        let nodes: Vec<usize> = self.ideals.between(start, end).collect();
        let is_inside = |node: usize| self.ideals.is_between(start, end, node);
        let mut choices = Vec::with_capacity(nodes.len());
        for &node in &nodes {
            let implementations = &self.implementations[degree][node];
            if implementations.is_empty() {
                return None;
            }
            let numbers = implementations.iter().map(|implementation| {
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
            choices.push(numbers.collect::<Vec<_>>());
        }
        let least_compute = choices
            .iter()
            .map(|choices| choices.iter().map(|choice| choice[0]).fold(f64::INFINITY, f64::min))
            .sum();
        Some(Pair { nodes, least_compute, choices, known: HashMap::new() })
    }

    /// Picks implementations for a stage of `replicas` with `in_flight` micro-batches.
    fn picks(&self, pair: &Pair, replicas: u32, in_flight: u32) -> Option<Picked> {
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
        let items: Items = pair.choices.iter().map(item).collect();
        pick(&items, self.workload.memory, 0.0)
    }

    fn time(&mut self, key: (u32, u32, u8), replicas: u32, in_flight: u32) -> f64 {
        let pair = &self.pairs[&key];
        if let Some(&time) = pair.known.get(&(replicas, in_flight)) {
            return time;
        }
        let picked = self.picks(pair, replicas, in_flight);
        let time = picked.as_ref().map_or(f64::INFINITY, |picked| picked.time);
        if let Some(picked) = picked.filter(|picked| picked.lower_bound < picked.time) {
            self.doubt = self.doubt.max(1.0 - picked.lower_bound / picked.time);
        }
        let pair = self.pairs.get_mut(&key).expect("looked up above");
        pair.known.insert((replicas, in_flight), time);
        time
    }

    /// Finds a plan whose stages all take at most `target`.
    fn within(&mut self, target: f64) -> Option<PiperPlan> {
        let n_ideals = self.ideals.len();
        let n_devices = self.workload.n_devices;
        let most_replicas = n_devices.min(self.workload.micro_batches);
        let total = self.work[n_ideals - 1];
        let mut frontiers: Vec<Vec<Point>> = vec![Vec::new(); n_ideals];
        frontiers[0].push(Point { replicas: 0, devices: 0, came: (0, 0, 0, 0) });
        for end in 1..n_ideals {
            // Devices that the rest of the model needs at the least.
            let rest = ((total - self.work[end]) / target * (1.0 - 1e-9)).ceil();
            let rest = if rest.is_finite() { rest as u32 } else { 0 };
            let mut points: Vec<Point> = Vec::new();
            for start in (0..end).rev() {
                if frontiers[start].is_empty() || !self.ideals.is_subset(start, end) {
                    continue;
                }
                for degree in 0..self.degrees.len() {
                    let key = (start as u32, end as u32, degree as u8);
                    if !self.pairs.contains_key(&key) {
                        let pair = self.pair(start, end, degree);
                        let none = Pair {
                            nodes: vec![],
                            least_compute: f64::INFINITY,
                            choices: vec![],
                            known: HashMap::new(),
                        };
                        self.pairs.insert(key, pair.unwrap_or(none));
                    }
                    let least_compute = self.pairs[&key].least_compute;
                    if least_compute == f64::INFINITY {
                        continue;
                    }
                    let least = least_compute / target * (1.0 - 1e-9);
                    let first = self.replicas.partition_point(|&count| f64::from(count) < least);
                    for (index, point) in frontiers[start].iter().enumerate() {
                        for which in first..self.replicas.len() {
                            let count = self.replicas[which];
                            let replicas = point.replicas + count;
                            let devices = point.devices + count * self.degrees[degree];
                            if replicas > most_replicas || devices.saturating_add(rest) > n_devices {
                                break;
                            }
                            let time = self.time(key, count, replicas.div_ceil(count));
                            if time <= target && time.is_finite() {
                                let came = (start as u32, index as u32, degree as u8, count);
                                points.push(Point { replicas, devices, came });
                                break;
                            }
                        }
                    }
                }
            }
            points.sort_by_key(|point| (point.replicas, point.devices));
            let frontier = &mut frontiers[end];
            for point in points {
                if frontier.last().is_none_or(|last| point.devices < last.devices) {
                    frontier.push(point);
                }
            }
        }
        let mut ideal = n_ideals - 1;
        let mut point = *frontiers[ideal].first()?;
        let mut stages = Vec::new();
        while ideal != 0 {
            let (start, index, degree, count) = point.came;
            let pair = &self.pairs[&(start, ideal as u32, degree)];
            stages.push(self.stage(pair, degree as usize, count, point.replicas.div_ceil(count))?);
            ideal = start as usize;
            point = frontiers[ideal][index as usize];
        }
        let period = stages.iter().map(|stage: &PiperStage| stage.seconds).fold(0.0, f64::max);
        debug_assert_eq!(stages.iter().map(|stage| stage.nodes.len()).sum::<usize>(), self.n_nodes);
        Some(PiperPlan { period, lower_bound: 0.0, stages, n_ideals })
    }

    fn stage(&self, pair: &Pair, degree: usize, replicas: u32, in_flight: u32) -> Option<PiperStage> {
        let picked = self.picks(pair, replicas, in_flight)?;
        let chosen = || pair.choices.iter().zip(&picked.choices).map(|(choices, &choice)| choices[choice]);
        let names = pair.nodes.iter().zip(&picked.choices);
        Some(PiperStage {
            nodes: pair.nodes.clone(),
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

    /// Finds what is in the way when nothing fits.
    fn why_not(&self, workload: &PiperWorkload, options: PiperOptions) -> PiperError {
        let available = workload.memory;
        for (index, node) in workload.nodes.iter().enumerate() {
            let implementations = self.implementations.iter().flat_map(|by_node| by_node[index].iter());
            let memory = implementations.map(|choice| choice.memory_in_flight + choice.memory_fixed);
            let needed = memory.fold(f64::INFINITY, f64::min);
            if needed > available {
                let node = name(workload, index, &node.name);
                return PiperError::Node { node, needed, available };
            }
        }
        let fits = |memory: f64| {
            let larger = PiperWorkload { memory, ..workload.clone() };
            Solver::new(&larger, options).is_ok_and(|mut solver| solver.within(f64::INFINITY).is_some())
        };
        let (mut low, mut high) = (available, available * 2.0);
        while !fits(high) && high < 1e30 {
            (low, high) = (high, high * 2.0);
        }
        for _ in 0..10 {
            let middle = (low + high) / 2.0;
            if fits(middle) { high = middle } else { low = middle }
        }
        PiperError::Memory { devices: workload.n_devices, available, would_fit: high }
    }
}

fn name(workload: &PiperWorkload, index: usize, name: &str) -> String {
    if name.is_empty() { workload.nodes[index].id.to_string() } else { name.to_string() }
}
