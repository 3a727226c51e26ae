//! The other objective of dnn-partitioning: the latency of one sample on accelerators and CPUs.
//!
//! Tarnawski et al., NeurIPS 2020, appendix A, one contiguous piece an accelerator. A piece starts when all of its inputs are
//! ready, takes the time of its nodes and of its transfers, in and out, one after the other, and gives all outputs at its end.
//! CPUs run each node when its inputs are ready, as many at once as there are CPUs, and pay no transfers.
//!
//! Pieces and nodes on CPUs follow one another in some order, so a placement is a chain of ideals. A dynamic program over ideals
//! keeps the placements of each that no other dominates: by accelerators used, and by when each value with takers left is ready
//! ([`crate::latency_search`]). A placement that cannot beat the target is pruned, by the longest path through the rest. A beam
//! search gives a plan, and a search that keeps all placements proves it; if that takes too long, the largest target that no
//! placement meets is the lower bound.

use partitioner::Ideals;
use schema::DnnWorkload;

use crate::{
    LoadDevice,
    latency_graph::LatencyGraph,
    latency_search::{Found, Search, Step, Taken},
};

/// A placement and how good it is.
#[derive(Clone, Debug, PartialEq)]
pub struct LatencyPlan {
    /// Time from the first node's start to the last one's end, in the unit of the workload.
    pub latency: f64,
    /// Lower bound of the latency over all placements.
    pub lower_bound: f64,
    /// Accelerators in the order that they are used; then the CPUs together, if anything is left to them.
    pub devices: Vec<LoadDevice>,
    /// Ideals of the graph, when they were enumerated.
    pub n_ideals: Option<usize>,
}

/// Why there is no placement.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LatencyError {
    /// A training workload.
    #[error("node `{0}` is of a backward pass; the latency of one sample is planned for inference")]
    Backward(String),
    /// Too many nodes for any search.
    #[error("the graph has {0} nodes; for latency {NODES} at most are planned")]
    TooLarge(usize),
    /// Nodes that accelerators cannot hold or run, without a CPU.
    #[error("no placement was found: {accelerators} accelerators of {available} bytes, and no CPU")]
    Accelerators {
        /// Accelerators.
        accelerators: u32,
        /// Bytes of one.
        available: f64,
    },
}

/// The most nodes.
const NODES: usize = 10_000;
/// The most ideals that are enumerated, and the most bits of all of them together.
const IDEALS: usize = 60_000;
const BITS: usize = 1 << 28;
/// The most ideals with which free nodes are not merged into neighbours.
const FEW_IDEALS: usize = 8_000;
/// Widths of the first beam searches: placements kept for each ideal.
const BEAMS: [usize; 3] = [1, 4, 24];
/// Step limits of each beam search, of the proving search, and of each search for a bound.
const STEPS: [u64; 3] = [100_000_000, 400_000_000, 60_000_000];
/// Targets that are tried for a bound.
const TARGETS: usize = 8;

/// Finds the placement with the least latency.
///
/// # Errors
/// When the workload is one of training, is too large, or does not fit.
pub fn latency_plan(workload: &DnnWorkload) -> Result<LatencyPlan, LatencyError> {
    latency_plan_within(workload, IDEALS)
}

/// Finds the placement with the least latency among cuts of one order of the nodes where there are more ideals than `limit`.
///
/// # Errors
/// As [`latency_plan`].
pub fn latency_plan_within(workload: &DnnWorkload, limit: usize) -> Result<LatencyPlan, LatencyError> {
    if let Some(node) = workload.nodes.iter().find(|node| node.is_backward) {
        return Err(LatencyError::Backward(node.id.to_string()));
    }
    let mut graph = LatencyGraph::new(workload, false);
    if graph.len() > NODES {
        return Err(LatencyError::TooLarge(graph.len()));
    }
    let limit = limit.min(BITS / graph.len());
    let mut all = Ideals::enumerate(&graph.inputs, limit.min(FEW_IDEALS));
    if all.is_none() {
        graph = LatencyGraph::new(workload, true);
        all = Ideals::enumerate(&graph.inputs, limit);
    }
    // A single order of the nodes is searched fast, and its plan prunes the other searches.
    let line = Ideals::of_order(&graph.order());
    let search = Search::new(&graph, &line);
    let mut best = Best { latency: f64::INFINITY, devices: Vec::new() };
    best.improve(&graph, &line, &search, &BEAMS);
    let mut bound = search.path();
    let n_ideals = all.as_ref().map(Ideals::len);
    if let Some(ideals) = all {
        let search = Search::new(&graph, &ideals);
        best.improve(&graph, &ideals, &search, &BEAMS);
        let outcome = search.run(best.latency, None, Taken::Full, STEPS[1]);
        best.take(&graph, &ideals, outcome.found);
        let is_proven =
            outcome.is_complete && (graph.is_exact() || search.none_below(best.latency, STEPS[1]));
        bound = if is_proven { best.latency } else { search.bound(bound, best.latency, TARGETS, STEPS[2]) };
        // Groups are units on CPUs too, which the problem does not require: the bound must cover placements that divide them.
        bound = bound.min(graph.parted);
    }
    if best.latency.is_infinite() {
        return Err(LatencyError::Accelerators {
            accelerators: workload.n_accelerators,
            available: workload.accelerator_memory,
        });
    }
    let lower_bound = bound.min(best.latency);
    Ok(LatencyPlan { latency: best.latency, lower_bound, devices: best.devices, n_ideals })
}

/// The best placement so far.
struct Best {
    latency: f64,
    devices: Vec<LoadDevice>,
}

impl Best {
    /// Beam searches of growing width.
    fn improve(&mut self, graph: &LatencyGraph, ideals: &Ideals, search: &Search<'_>, beams: &[usize]) {
        for &beam in beams {
            let outcome = search.run(self.latency, Some(beam), Taken::Full, STEPS[0]);
            self.take(graph, ideals, outcome.found);
        }
    }

    fn take(&mut self, graph: &LatencyGraph, ideals: &Ideals, found: Option<Found>) {
        if let Some(found) = found.filter(|found| found.latency < self.latency) {
            *self = Self { latency: found.latency, devices: devices(graph, ideals, &found.steps) };
        }
    }
}

/// Tells what each device does.
fn devices(graph: &LatencyGraph, ideals: &Ideals, steps: &[Step]) -> Vec<LoadDevice> {
    let mut devices = Vec::new();
    let mut on_cpus = Vec::new();
    for step in steps {
        let groups: Vec<usize> = ideals.between(step.from, step.to).collect();
        if step.is_accelerator {
            devices.push(graph.device(&groups, true));
        } else {
            on_cpus.extend(groups);
        }
    }
    if !on_cpus.is_empty() {
        devices.push(graph.device(&on_cpus, false));
    }
    devices
}
