//! The objective of dnn-partitioning: the largest device load of a pipeline on accelerators and CPUs.
//!
//! Tarnawski et al., NeurIPS 2020. An accelerator's load is the time of its nodes *plus* the cost of every original node
//! whose output crosses the device's border, once, inwards or outwards; a CPU pays no transfers. Devices hold
//! contiguous pieces of the forward graph, so a placement is a chain of ideals.
//!
//! Exact by dynamic programming over the ideals (O(Q²) pairs a layer), pruned by bounds: the best placement along a few linear
//! orders is an upper bound U; an ideal can follow `a` accelerators only if it holds at most `a·U` of the work and leaves at most
//! `(k-a)·U`; only pairs within such windows are visited. With more ideals than the limit, the linear placement is the answer and
//! the shared work is the lower bound.

use std::collections::{BTreeMap, HashMap};

use partitioner::Ideals;
use schema::DnnWorkload;

use crate::load_groups::{Groups, groups};

/// A placement and how good it is.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadPlan {
    /// Largest device load, in the unit of the workload.
    pub load: f64,
    /// Lower bound of the largest load over all placements.
    pub lower_bound: f64,
    /// Devices in the order of the pipeline, empty ones left out.
    pub devices: Vec<LoadDevice>,
    /// Ideals of the graph, when they were enumerated.
    pub n_ideals: Option<usize>,
}

/// One device's share.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadDevice {
    /// Whether it is an accelerator.
    pub is_accelerator: bool,
    /// Positions of its nodes in the workload.
    pub nodes: Vec<usize>,
    /// Time of its nodes.
    pub compute: f64,
    /// Time of its transfers.
    pub transfer: f64,
    /// Memory of its nodes.
    pub size: f64,
}

impl LoadDevice {
    /// Returns the device's load.
    pub fn load(&self) -> f64 {
        self.compute + self.transfer
    }
}

/// Why there is no placement.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LoadError {
    /// The model is larger than all accelerators together, and no CPU may hold the rest.
    #[error("no placement fits: the nodes need {needed} bytes, {accelerators} accelerators hold {available}")]
    Memory {
        /// Bytes of all nodes.
        needed: f64,
        /// Accelerators.
        accelerators: u32,
        /// Bytes of all accelerators.
        available: f64,
    },
    /// Nodes that must stay together are larger than an accelerator.
    #[error(
        "no placement fits: `{node}` and what must stay with it need {needed} bytes, an accelerator has {available}"
    )]
    Group {
        /// A node of the group.
        node: String,
        /// Bytes of the group.
        needed: f64,
        /// Bytes of an accelerator.
        available: f64,
    },
    /// Fits in sum, but no contiguous pieces do.
    #[error(
        "no placement into contiguous pieces fits in {available} bytes an accelerator; the limit would have to be about {would_fit}"
    )]
    Pieces {
        /// Bytes of an accelerator.
        available: f64,
        /// Bytes that would do.
        would_fit: f64,
    },
}

/// The most ideals that are enumerated; each takes about 200 bytes.
const IDEALS: usize = 400_000;

/// Finds the best placement.
///
/// # Errors
/// When no placement fits into the accelerators' memory.
pub fn load_plan(workload: &DnnWorkload) -> Result<LoadPlan, LoadError> {
    load_plan_within(workload, IDEALS)
}

/// Finds the best placement, exactly if the graph has at most `limit` ideals.
///
/// # Errors
/// As [`load_plan`].
pub fn load_plan_within(workload: &DnnWorkload, limit: usize) -> Result<LoadPlan, LoadError> {
    let problem = Problem::new(workload);
    let linear = problem.linear();
    let bound = linear.as_ref().map_or(f64::INFINITY, |pieces| problem.largest(pieces));
    let Some(ideals) = Ideals::enumerate(&problem.groups.inputs, limit) else {
        let pieces = linear.ok_or_else(|| problem.why_not())?;
        return Ok(problem.plan(&pieces, problem.lower_bound().min(bound), None));
    };
    let n_ideals = ideals.len();
    let pieces = problem.over_ideals(ideals, bound).or(linear).ok_or_else(|| problem.why_not())?;
    let load = problem.largest(&pieces);
    Ok(problem.plan(&pieces, load, Some(n_ideals)))
}

/// A device's groups.
struct Piece {
    is_accelerator: bool,
    groups: Vec<usize>,
}

/// A value: the groups that make and take it, and what it costs to move.
struct Net {
    groups: Vec<usize>,
    cost: f64,
}

/// The workload as numbers by group.
struct Problem<'a> {
    workload: &'a DnnWorkload,
    groups: Groups,
    accelerator: Vec<f64>,
    cpu: Vec<f64>,
    size: Vec<f64>,
    /// Groups that no accelerator can run.
    is_barred: Vec<bool>,
    /// Values that join several groups.
    nets: Vec<Net>,
    nets_of: Vec<Vec<usize>>,
}

impl<'a> Problem<'a> {
    fn new(workload: &'a DnnWorkload) -> Self {
        let groups = groups(workload, true);
        let n_groups = groups.members.len();
        let sum = |field: &dyn Fn(usize) -> f64| -> Vec<f64> {
            groups.members.iter().map(|members| members.iter().map(|&node| field(node)).sum()).collect()
        };
        let nodes = &workload.nodes;
        let accelerator = sum(&|node| nodes[node].accelerator);
        let cpu = sum(&|node| nodes[node].cpu);
        let size = sum(&|node| nodes[node].size);
        let is_barred = groups
            .members
            .iter()
            .map(|members| members.iter().any(|&node| !nodes[node].runs_on_accelerator))
            .collect();
        let mut group_of = vec![0; nodes.len()];
        for (group, members) in groups.members.iter().enumerate() {
            members.iter().for_each(|&node| group_of[node] = group);
        }
        // Values between the same groups are one value.
        let position: HashMap<i64, usize> =
            nodes.iter().enumerate().map(|(index, node)| (node.id, index)).collect();
        let mut takers: BTreeMap<usize, (f64, Vec<usize>)> = BTreeMap::new();
        for edge in &workload.edges {
            let source = position[&edge.source];
            let net = takers.entry(source).or_insert_with(|| (edge.cost, vec![group_of[source]]));
            net.1.push(group_of[position[&edge.target]]);
        }
        let mut merged: BTreeMap<Vec<usize>, f64> = BTreeMap::new();
        for (cost, mut groups) in takers.into_values() {
            groups.sort_unstable();
            groups.dedup();
            if groups.len() > 1 && cost > 0.0 {
                *merged.entry(groups).or_default() += cost;
            }
        }
        let nets: Vec<Net> = merged.into_iter().map(|(groups, cost)| Net { groups, cost }).collect();
        let mut nets_of = vec![Vec::new(); n_groups];
        for (index, net) in nets.iter().enumerate() {
            net.groups.iter().for_each(|&group| nets_of[group].push(index));
        }
        Self { workload, groups, accelerator, cpu, size, is_barred, nets, nets_of }
    }

    fn n_groups(&self) -> usize {
        self.groups.members.len()
    }

    /// Returns the load of a piece; infinite where it does not fit.
    fn load(&self, piece: &Piece) -> f64 {
        let sum = |of: &[f64]| piece.groups.iter().map(|&group| of[group]).sum::<f64>();
        if !piece.is_accelerator {
            return sum(&self.cpu);
        }
        let is_barred = piece.groups.iter().any(|&group| self.is_barred[group]);
        if is_barred || sum(&self.size) > self.workload.accelerator_memory {
            return f64::INFINITY;
        }
        sum(&self.accelerator) + self.transfer(&piece.groups)
    }

    fn transfer(&self, groups: &[usize]) -> f64 {
        let mut inside = vec![false; self.n_groups()];
        groups.iter().for_each(|&group| inside[group] = true);
        let is_cut = |net: &&Net| {
            let n_inside = net.groups.iter().filter(|&&group| inside[group]).count();
            n_inside > 0 && n_inside < net.groups.len()
        };
        self.nets.iter().filter(is_cut).map(|net| net.cost).sum()
    }

    fn largest(&self, pieces: &[Piece]) -> f64 {
        pieces.iter().map(|piece| self.load(piece)).fold(0.0, f64::max)
    }

    fn plan(&self, pieces: &[Piece], lower_bound: f64, n_ideals: Option<usize>) -> LoadPlan {
        let device = |piece: &Piece| {
            let mut nodes: Vec<usize> =
                piece.groups.iter().flat_map(|&group| self.groups.members[group].iter().copied()).collect();
            nodes.sort_unstable();
            let sum = |of: &[f64]| piece.groups.iter().map(|&group| of[group]).sum::<f64>();
            LoadDevice {
                is_accelerator: piece.is_accelerator,
                nodes,
                compute: sum(if piece.is_accelerator { &self.accelerator } else { &self.cpu }),
                transfer: if piece.is_accelerator { self.transfer(&piece.groups) } else { 0.0 },
                size: sum(&self.size),
            }
        };
        let devices = pieces.iter().filter(|piece| !piece.groups.is_empty()).map(device).collect();
        LoadPlan { load: self.largest(pieces), lower_bound, devices, n_ideals }
    }

    /// Returns the most accelerator time that CPUs can take over, each for `time` of its own.
    fn relief(&self, time: f64) -> f64 {
        let mut ratio = 0.0_f64;
        let mut free = 0.0;
        for (&accelerator, &cpu) in self.accelerator.iter().zip(&self.cpu) {
            if cpu > 0.0 {
                ratio = ratio.max(accelerator / cpu);
            } else {
                free += accelerator;
            }
        }
        ratio * time + free
    }

    /// Returns a lower bound of the largest load: the shared work, and the largest group.
    fn lower_bound(&self) -> f64 {
        let total: f64 = self.accelerator.iter().sum();
        let fits = |time: f64| {
            let relief = f64::from(self.workload.n_cpus) * self.relief(time);
            f64::from(self.workload.n_accelerators) * time + relief >= total
        };
        let cheapest = |group: usize| {
            if self.workload.n_cpus > 0 {
                self.accelerator[group].min(self.cpu[group])
            } else {
                self.accelerator[group]
            }
        };
        let indivisible = (0..self.n_groups()).map(cheapest).fold(0.0, f64::max);
        let (mut low, mut high) = (0.0, total.max(self.cpu.iter().sum()));
        for _ in 0..60 {
            let middle = (low + high) / 2.0;
            if fits(middle) { high = middle } else { low = middle }
        }
        low.max(indivisible)
    }

    fn why_not(&self) -> LoadError {
        let available = self.workload.accelerator_memory;
        let needed: f64 = self.size.iter().sum();
        if let Some(group) = (0..self.n_groups()).find(|&group| self.size[group] > available) {
            let node = self.workload.nodes[self.groups.members[group][0]].name.clone();
            return LoadError::Group { node, needed: self.size[group], available };
        }
        let accelerators = self.workload.n_accelerators;
        if needed > available * f64::from(accelerators) {
            return LoadError::Memory {
                needed,
                accelerators,
                available: available * f64::from(accelerators),
            };
        }
        let largest = self.size.iter().copied().fold(0.0, f64::max);
        LoadError::Pieces { available, would_fit: needed / f64::from(accelerators.max(1)) + largest }
    }

    /// Returns the best placement along a few linear orders of the groups.
    fn linear(&self) -> Option<Vec<Piece>> {
        let orders = [self.depth_first(false), self.depth_first(true), self.breadth_first()];
        let placements = orders.iter().filter_map(|order| self.along(order));
        placements.min_by(|a, b| self.largest(a).total_cmp(&self.largest(b)))
    }

    /// Takes the latest (or earliest) group that became ready.
    fn depth_first(&self, is_reversed: bool) -> Vec<usize> {
        let mut consumers = vec![Vec::new(); self.n_groups()];
        let mut n_waiting: Vec<usize> = self.groups.inputs.iter().map(Vec::len).collect();
        for (group, inputs) in self.groups.inputs.iter().enumerate() {
            inputs.iter().for_each(|&input| consumers[input].push(group));
        }
        let mut ready: Vec<usize> = (0..self.n_groups()).filter(|&group| n_waiting[group] == 0).collect();
        let mut order = Vec::with_capacity(self.n_groups());
        while let Some(group) = ready.pop() {
            order.push(group);
            let turn: Box<dyn Iterator<Item = &usize>> = if is_reversed {
                Box::new(consumers[group].iter().rev())
            } else {
                Box::new(consumers[group].iter())
            };
            for &consumer in turn {
                n_waiting[consumer] -= 1;
                if n_waiting[consumer] == 0 {
                    ready.push(consumer);
                }
            }
        }
        order
    }

    fn breadth_first(&self) -> Vec<usize> {
        let mut depth = vec![0; self.n_groups()];
        for group in self.depth_first(false) {
            depth[group] = self.groups.inputs[group].iter().map(|&input| depth[input] + 1).max().unwrap_or(0);
        }
        let mut order: Vec<usize> = (0..self.n_groups()).collect();
        order.sort_by_key(|&group| (depth[group], group));
        order
    }

    /// Solves along one order: O(n²·k·l) after O(n²·d) for the loads.
    fn along(&self, order: &[usize]) -> Option<Vec<Piece>> {
        let n_groups = order.len();
        let width = n_groups + 1;
        let mut loads = vec![(f64::INFINITY, f64::INFINITY); width * width];
        let mut n_inside = vec![0_usize; self.nets.len()];
        for first in 0..n_groups {
            n_inside.fill(0);
            let (mut compute, mut cpu, mut size, mut transfer, mut is_barred) = (0.0, 0.0, 0.0, 0.0, false);
            for (offset, &group) in order[first..].iter().enumerate() {
                compute += self.accelerator[group];
                cpu += self.cpu[group];
                size += self.size[group];
                is_barred |= self.is_barred[group];
                for &net in &self.nets_of[group] {
                    n_inside[net] += 1;
                    if n_inside[net] == 1 {
                        transfer += self.nets[net].cost;
                    } else if n_inside[net] == self.nets[net].groups.len() {
                        transfer -= self.nets[net].cost;
                    }
                }
                let fits = !is_barred && size <= self.workload.accelerator_memory;
                let load = if fits { compute + transfer } else { f64::INFINITY };
                loads[first * width + first + offset + 1] = (load, cpu);
            }
        }
        let layers = Layers::new(self.workload, n_groups);
        let mut best = vec![vec![f64::INFINITY; width]; layers.len()];
        let mut came = vec![vec![(false, u32::MAX); width]; layers.len()];
        best.iter_mut().for_each(|layer| layer[0] = 0.0);
        #[allow(clippy::needless_range_loop)]
        for layer in 0..layers.len() {
            for (is_accelerator, before) in layers.before(layer) {
                let (done, open) = best.split_at_mut(layer);
                for end in 1..=n_groups {
                    if done[before][end] < open[0][end] {
                        open[0][end] = done[before][end];
                        came[layer][end] = (is_accelerator, end as u32);
                    }
                    for start in (0..end).rev() {
                        let (accelerator, cpu) = loads[start * width + end];
                        let load = if is_accelerator { accelerator } else { cpu };
                        let time = load.max(done[before][start]);
                        if time < open[0][end] {
                            open[0][end] = time;
                            came[layer][end] = (is_accelerator, start as u32);
                        }
                    }
                }
            }
        }
        let last = layers.len() - 1;
        if best[last][n_groups] == f64::INFINITY {
            return None;
        }
        let mut pieces = Vec::new();
        let (mut layer, mut end) = (last, n_groups);
        while end > 0 {
            let (is_accelerator, start) = came[layer][end];
            let start = start as usize;
            if start < end {
                pieces.push(Piece { is_accelerator, groups: order[start..end].to_vec() });
            }
            layer = layers.without(layer, is_accelerator);
            end = start;
        }
        pieces.reverse();
        Some(pieces)
    }

    /// Solves over ideals for placements strictly better than `bound`; `None` when there are none.
    fn over_ideals(&self, mut ideals: Ideals, bound: f64) -> Option<Vec<Piece>> {
        let n_ideals = ideals.len();
        // Windows are ranges once ideals are sorted by their work.
        let work: Vec<f64> = (0..n_ideals)
            .map(|ideal| ideals.nodes(ideal).map(|group| self.accelerator[group]).sum())
            .collect();
        let mut order: Vec<u32> = (0..n_ideals as u32).collect();
        order.sort_by(|&a, &b| work[a as usize].total_cmp(&work[b as usize]).then(a.cmp(&b)));
        ideals.reorder(&order);
        drop(work);
        let sums = Sums::new(self, &ideals);
        let total = sums.work[n_ideals - 1];
        let relief = self.relief(bound);

        let layers = Layers::new(self.workload, self.n_groups());
        let mut best = vec![vec![f64::INFINITY; n_ideals]; layers.len()];
        let mut came = vec![vec![(false, u32::MAX); n_ideals]; layers.len()];
        best.iter_mut().for_each(|layer| layer[0] = 0.0);
        let margin = 1e-9 * total;
        #[allow(clippy::needless_range_loop)]
        for layer in 0..layers.len() {
            let (cpus, accelerators) = layers.counts(layer);
            let most = accelerators as f64 * bound + cpus as f64 * relief + margin;
            let left = (layers.n_accelerators - accelerators) as f64 * bound
                + (layers.n_cpus - cpus) as f64 * relief
                + margin;
            let low = sums.work.partition_point(|&work| work < total - left);
            let high = sums.work.partition_point(|&work| work <= most);
            for (is_accelerator, before) in layers.before(layer) {
                let (done, open) = best.split_at_mut(layer);
                let (done, open) = (&done[before], &mut open[0]);
                let starts: Vec<u32> =
                    (0..n_ideals as u32).filter(|&ideal| done[ideal as usize] < bound).collect();
                for end in low..high {
                    let mut smallest = open[end].min(bound);
                    if done[end] < smallest {
                        smallest = done[end];
                        open[end] = smallest;
                        came[layer][end] = (is_accelerator, end as u32);
                    }
                    // Earlier starts leave more work: go back until the work alone is too much.
                    let until = starts.partition_point(|&start| (start as usize) < end);
                    for &start in starts[..until].iter().rev() {
                        let start = start as usize;
                        if is_accelerator && sums.work[end] - sums.work[start] >= smallest {
                            break;
                        }
                        if done[start] >= smallest || !ideals.is_subset(start, end) {
                            continue;
                        }
                        let load = if is_accelerator {
                            sums.accelerator_load(self, &ideals, start, end)
                        } else {
                            sums.cpu[end] - sums.cpu[start]
                        };
                        let time = load.max(done[start]);
                        if time < smallest {
                            smallest = time;
                            open[end] = time;
                            came[layer][end] = (is_accelerator, start as u32);
                        }
                    }
                }
            }
        }
        let last = layers.len() - 1;
        if best[last][n_ideals - 1] >= bound {
            return None;
        }
        let mut pieces = Vec::new();
        let (mut layer, mut end) = (last, n_ideals - 1);
        while end > 0 {
            let (is_accelerator, start) = came[layer][end];
            let start = start as usize;
            if start != end {
                pieces.push(Piece { is_accelerator, groups: ideals.between(start, end).collect() });
            }
            layer = layers.without(layer, is_accelerator);
            end = start;
        }
        pieces.reverse();
        Some(pieces)
    }
}

/// Device counts used so far, in an order in which one device less comes before.
struct Layers {
    n_cpus: usize,
    n_accelerators: usize,
}

impl Layers {
    /// More devices than pieces are of no use.
    fn new(workload: &DnnWorkload, n_groups: usize) -> Self {
        let count = |devices: u32| (devices as usize).min(n_groups);
        Self { n_cpus: count(workload.n_cpus), n_accelerators: count(workload.n_accelerators) }
    }

    fn len(&self) -> usize {
        (self.n_cpus + 1) * (self.n_accelerators + 1)
    }

    fn counts(&self, layer: usize) -> (usize, usize) {
        (layer / (self.n_accelerators + 1), layer % (self.n_accelerators + 1))
    }

    fn without(&self, layer: usize, is_accelerator: bool) -> usize {
        layer - if is_accelerator { 1 } else { self.n_accelerators + 1 }
    }

    fn before(&self, layer: usize) -> impl Iterator<Item = (bool, usize)> + use<'_> {
        let (cpus, accelerators) = self.counts(layer);
        let kinds = [(true, accelerators > 0), (false, cpus > 0)];
        let kinds = kinds.into_iter().filter(|&(_, is_there)| is_there);
        kinds.map(move |(is_accelerator, _)| (is_accelerator, self.without(layer, is_accelerator)))
    }
}

/// Sums over each ideal, and the nets that cross its border.
struct Sums {
    work: Vec<f64>,
    cpu: Vec<f64>,
    size: Vec<f64>,
    n_barred: Vec<u32>,
    /// Cost of the nets with groups on both sides.
    cut: Vec<f64>,
    /// Those nets, as bits.
    crossing: Vec<u64>,
    n_words: usize,
    nets: Vec<Vec<u64>>,
}

impl Sums {
    fn new(problem: &Problem, ideals: &Ideals) -> Self {
        let n_words = problem.nets.len().div_ceil(64).max(1);
        let n_ideals = ideals.len();
        let mask = |groups: &[usize]| {
            let mut mask = vec![0; ideals.words(0).len()];
            groups.iter().for_each(|&group| mask[group / 64] |= 1_u64 << (group % 64));
            mask
        };
        let mut sums = Self {
            work: Vec::with_capacity(n_ideals),
            cpu: Vec::with_capacity(n_ideals),
            size: Vec::with_capacity(n_ideals),
            n_barred: Vec::with_capacity(n_ideals),
            cut: Vec::with_capacity(n_ideals),
            crossing: vec![0; n_ideals * n_words],
            n_words,
            nets: problem.nets.iter().map(|net| mask(&net.groups)).collect(),
        };
        for ideal in 0..n_ideals {
            let sum = |of: &[f64]| ideals.nodes(ideal).map(|group| of[group]).sum::<f64>();
            sums.work.push(sum(&problem.accelerator));
            sums.cpu.push(sum(&problem.cpu));
            sums.size.push(sum(&problem.size));
            sums.n_barred.push(ideals.nodes(ideal).filter(|&group| problem.is_barred[group]).count() as u32);
            let mut cut = 0.0;
            let words = ideals.words(ideal);
            for (index, net) in sums.nets.iter().enumerate() {
                let is_in = net.iter().zip(words).any(|(net, word)| net & word != 0);
                let is_out = net.iter().zip(words).any(|(net, word)| net & !word != 0);
                if is_in && is_out {
                    cut += problem.nets[index].cost;
                    sums.crossing[ideal * n_words + index / 64] |= 1 << (index % 64);
                }
            }
            sums.cut.push(cut);
        }
        sums
    }

    /// Returns the load of the groups between two ideals: nets that cross either border; a net that crosses both is paid once, or
    /// not at all if it passes over the piece.
    fn accelerator_load(&self, problem: &Problem, ideals: &Ideals, start: usize, end: usize) -> f64 {
        if self.n_barred[end] != self.n_barred[start]
            || self.size[end] - self.size[start] > problem.workload.accelerator_memory * (1.0 + 1e-12)
        {
            return f64::INFINITY;
        }
        let mut load = self.work[end] - self.work[start] + self.cut[start] + self.cut[end];
        let (from, to) = (start * self.n_words, end * self.n_words);
        for word in 0..self.n_words {
            let mut both = self.crossing[from + word] & self.crossing[to + word];
            while both != 0 {
                let net = word * 64 + both.trailing_zeros() as usize;
                both &= both - 1;
                let passes_over = self.nets[net]
                    .iter()
                    .zip(ideals.words(start).iter().zip(ideals.words(end)))
                    .all(|(net, (before, until))| net & until & !before == 0);
                load -= problem.nets[net].cost * if passes_over { 2.0 } else { 1.0 };
            }
        }
        load
    }
}
