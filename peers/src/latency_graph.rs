//! A workload of dnn-partitioning as input of the latency search: groups of nodes that stay together, values between them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use schema::DnnWorkload;

use partitioner::NodeSet;

use crate::{LoadDevice, load_groups::groups};

/// Groups and values.
pub(crate) struct LatencyGraph {
    /// Groups that a group needs.
    pub(crate) inputs: Vec<Vec<usize>>,
    /// Positions of the nodes of each group.
    members: Vec<Vec<usize>>,
    /// Time of each group on an accelerator; infinite where none can run it.
    pub(crate) accelerator: Vec<f64>,
    /// Time of each group on CPUs; infinite where there are none.
    pub(crate) cpu: Vec<f64>,
    /// Memory of each group on an accelerator.
    pub(crate) size: Vec<f64>,
    /// Lower bounds of size and of time on CPUs: a node without time that was merged into a neighbour may be elsewhere, and on
    /// CPUs a class may give some of its values before others.
    pub(crate) least_size: Vec<f64>,
    pub(crate) least_cpu: Vec<f64>,
    /// Values.
    pub(crate) values: Vec<GroupValue>,
    /// Values that each group gives.
    pub(crate) given: Vec<Vec<usize>>,
    /// Memory of an accelerator, and how many there are.
    pub(crate) memory: f64,
    pub(crate) n_accelerators: u32,
    /// Lower bound of the placements that divide a group on CPUs.
    pub(crate) parted: f64,
}

/// A value between groups.
pub(crate) struct GroupValue {
    /// The group that gives it.
    pub(crate) from: usize,
    /// The groups that take it.
    pub(crate) to: Vec<usize>,
    /// The same as a set.
    pub(crate) takers: NodeSet,
    /// Time to move it to or from an accelerator.
    pub(crate) cost: f64,
    /// Time from the start of its group on CPUs until it is ready, and a lower bound of it.
    pub(crate) cpu: f64,
    pub(crate) least_cpu: f64,
}

impl LatencyGraph {
    /// Makes it of a workload; with `merges_free`, free nodes with one neighbour are put to it.
    pub(crate) fn new(workload: &DnnWorkload, merges_free: bool) -> Self {
        let nodes = &workload.nodes;
        let groups = groups(workload, merges_free);
        let n_groups = groups.members.len();
        let mut group_of = vec![0; nodes.len()];
        for (group, members) in groups.members.iter().enumerate() {
            members.iter().for_each(|&node| group_of[node] = group);
        }
        let position: HashMap<i64, usize> =
            nodes.iter().enumerate().map(|(index, node)| (node.id, index)).collect();
        let edges: Vec<(usize, usize)> =
            workload.edges.iter().map(|edge| (position[&edge.source], position[&edge.target])).collect();
        let cost: BTreeMap<usize, f64> =
            workload.edges.iter().map(|edge| (position[&edge.source], edge.cost)).collect();

        let mut takers: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for &(from, to) in edges.iter().filter(|(from, to)| group_of[*from] != group_of[*to]) {
            takers.entry(from).or_default().insert(group_of[to]);
        }
        let paths = Paths::new(workload, &edges);
        let on_cpus: Vec<OnCpus> = groups
            .members
            .iter()
            .enumerate()
            .map(|(group, members)| paths.within(members, |node| group_of[node] == group))
            .collect();
        // Values of one group with equal takers and times are one.
        let mut merged: BTreeMap<(usize, Vec<usize>, [u64; 2]), f64> = BTreeMap::new();
        for (node, to) in takers {
            let ready = on_cpus[group_of[node]].values.get(&node).copied().unwrap_or_default();
            let key = (group_of[node], to.into_iter().collect(), ready.map(f64::to_bits));
            *merged.entry(key).or_default() += cost[&node];
        }
        let mut given = vec![Vec::new(); n_groups];
        let values = merged.into_iter().enumerate().map(|(index, ((from, to, ready), cost))| {
            given[from].push(index);
            let mut takers = NodeSet::empty(n_groups);
            to.iter().for_each(|&taker| takers.insert(taker));
            let [least_cpu, cpu] = ready.map(f64::from_bits);
            GroupValue { from, to, takers, cost, cpu, least_cpu }
        });
        let values = values.collect();
        let has_cpus = workload.n_cpus > 0;
        let sum = |of: &dyn Fn(usize) -> f64| -> Vec<f64> {
            groups.members.iter().map(|members| members.iter().map(|&node| of(node)).sum()).collect()
        };
        let mut class_time: BTreeMap<i64, f64> = BTreeMap::new();
        for node in nodes {
            if let Some(class) = node.class {
                *class_time.entry(class).or_default() += node.cpu + node.accelerator;
            }
        }
        let time = |node: usize| {
            let own = nodes[node].cpu + nodes[node].accelerator;
            nodes[node].class.map_or(own, |class| class_time[&class])
        };
        // A class without time may be elsewhere than the neighbour that it was merged into.
        let is_free = |node: usize| merges_free && time(node) < 1e-6;
        let unlimited = vec![f64::INFINITY; n_groups];
        let (mut cpu, mut least_cpu, mut parted) = (unlimited.clone(), unlimited, f64::INFINITY);
        for (group, members) in groups.members.iter().enumerate().filter(|_| has_cpus) {
            [least_cpu[group], cpu[group]] = on_cpus[group].end;
            // Classes are one group if one lies between two nodes of another; CPUs may divide them.
            let timed = members.iter().filter(|&&node| time(node) > 0.0);
            let classes: BTreeSet<_> = timed.map(|&node| nodes[node].class.ok_or(node)).collect();
            if !on_cpus[group].is_known || classes.len() > 1 {
                let mut through: BTreeMap<Result<i64, usize>, f64> = BTreeMap::new();
                for &node in members {
                    let longest = through.entry(nodes[node].class.ok_or(node)).or_default();
                    *longest = longest.max(paths.through(node));
                }
                parted = through.into_values().fold(parted, f64::min);
            }
        }
        Self {
            accelerator: sum(&|node| {
                if nodes[node].runs_on_accelerator { nodes[node].accelerator } else { f64::INFINITY }
            }),
            cpu,
            least_cpu,
            size: sum(&|node| nodes[node].size),
            least_size: sum(&|node| if is_free(node) { 0.0 } else { nodes[node].size }),
            parted,
            inputs: groups.inputs,
            members: groups.members,
            values,
            given,
            memory: workload.accelerator_memory,
            n_accelerators: workload.n_accelerators,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// Tells whether the lower bounds of all groups equal their values.
    pub(crate) fn is_exact(&self) -> bool {
        self.size == self.least_size
            && self.cpu == self.least_cpu
            && self.values.iter().all(|value| value.cpu == value.least_cpu)
    }

    /// Returns the groups, each after those that it needs.
    pub(crate) fn order(&self) -> Vec<usize> {
        let mut missing: Vec<usize> = self.inputs.iter().map(Vec::len).collect();
        let mut ready: BTreeSet<usize> = (0..self.len()).filter(|&group| missing[group] == 0).collect();
        let mut order = Vec::with_capacity(self.len());
        while let Some(group) = ready.pop_first() {
            order.push(group);
            let takers: BTreeSet<usize> =
                self.given[group].iter().flat_map(|&value| self.values[value].to.iter().copied()).collect();
            for taker in takers {
                missing[taker] -= 1;
                if missing[taker] == 0 {
                    ready.insert(taker);
                }
            }
        }
        order
    }

    /// Tells what a device does with groups.
    pub(crate) fn device(&self, groups: &[usize], is_accelerator: bool) -> LoadDevice {
        let mut nodes: Vec<usize> =
            groups.iter().flat_map(|&group| self.members[group].iter().copied()).collect();
        nodes.sort_unstable();
        let mut inside = NodeSet::empty(self.len());
        groups.iter().for_each(|&group| inside.insert(group));
        let crosses = |value: &&GroupValue| {
            if inside.contains(value.from) {
                !value.takers.is_subset(&inside)
            } else {
                value.takers.meets(&inside)
            }
        };
        let times = if is_accelerator { &self.accelerator } else { &self.cpu };
        LoadDevice {
            is_accelerator,
            nodes,
            compute: groups.iter().map(|&group| times[group]).sum(),
            transfer: if is_accelerator {
                self.values.iter().filter(crosses).map(|value| value.cost).sum()
            } else {
                0.0
            },
            size: groups.iter().map(|&group| self.size[group]).sum(),
        }
    }
}

/// Longest paths through the nodes of a workload.
struct Paths<'a> {
    workload: &'a DnnWorkload,
    inputs: Vec<Vec<usize>>,
    outputs: Vec<Vec<usize>>,
    order: Vec<usize>,
    /// Least time before and after each node.
    before: Vec<f64>,
    after: Vec<f64>,
}

impl<'a> Paths<'a> {
    fn new(workload: &'a DnnWorkload, edges: &[(usize, usize)]) -> Self {
        let n_nodes = workload.nodes.len();
        let (mut inputs, mut outputs) = (vec![Vec::new(); n_nodes], vec![Vec::new(); n_nodes]);
        for &(from, to) in edges {
            inputs[to].push(from);
            outputs[from].push(to);
        }
        let mut missing: Vec<usize> = inputs.iter().map(Vec::len).collect();
        let mut order: Vec<usize> = (0..n_nodes).filter(|&node| missing[node] == 0).collect();
        let mut next = 0;
        while let Some(&node) = order.get(next) {
            next += 1;
            for &taker in &outputs[node] {
                missing[taker] -= 1;
                if missing[taker] == 0 {
                    order.push(taker);
                }
            }
        }
        let least = |node: usize| {
            let node = &workload.nodes[node];
            if node.runs_on_accelerator { node.cpu.min(node.accelerator) } else { node.cpu }
        };
        let longest = |order: &mut dyn Iterator<Item = usize>, behind: &[Vec<usize>]| {
            let mut longest = vec![0.0_f64; n_nodes];
            for node in order {
                longest[node] =
                    behind[node].iter().map(|&other| longest[other] + least(other)).fold(0.0, f64::max);
            }
            longest
        };
        let before = longest(&mut order.iter().copied(), &inputs);
        let after = longest(&mut order.iter().rev().copied(), &outputs);
        Self { workload, inputs, outputs, order, before, after }
    }

    /// Lower bound of the placements that run a node on a CPU.
    fn through(&self, node: usize) -> f64 {
        self.before[node] + self.workload.nodes[node].cpu + self.after[node]
    }

    /// Runs a group on CPUs, each node as soon as those that it needs are done.
    fn within(&self, members: &[usize], is_inside: impl Fn(usize) -> bool) -> OnCpus {
        if let [node] = members {
            let time = self.workload.nodes[*node].cpu;
            return OnCpus { end: [time; 2], values: [(*node, [time; 2])].into(), is_known: true };
        }
        let position: BTreeMap<usize, usize> =
            members.iter().enumerate().map(|(at, &node)| (node, at)).collect();
        let order: Vec<usize> =
            self.order.iter().copied().filter(|node| position.contains_key(node)).collect();
        // Longest paths inside from one node, or from all.
        let from = |first: Option<usize>| {
            let mut done: Vec<Option<f64>> = vec![None; members.len()];
            for &node in &order {
                let inputs = self.inputs[node].iter().filter_map(|input| done[*position.get(input)?]);
                let start = inputs
                    .reduce(f64::max)
                    .or_else(|| first.is_none_or(|first| first == node).then_some(0.0));
                done[position[&node]] = start.map(|start| start + self.workload.nodes[node].cpu);
            }
            done
        };
        let longest = |done: &[Option<f64>]| done.iter().flatten().fold(0.0, |a, &b| f64::max(a, b));
        let takes = |node: &usize| self.inputs[*node].iter().any(|&input| !is_inside(input));
        let gives = |node: &usize| self.outputs[*node].iter().any(|&taker| !is_inside(taker));
        let all = from(None);
        let entries: Vec<Vec<Option<f64>>> =
            members.iter().copied().filter(takes).map(|entry| from(Some(entry))).collect();
        let entries = if entries.is_empty() { vec![all.clone()] } else { entries };
        let mut is_known = true;
        let values = members.iter().copied().filter(gives).map(|exit| {
            let at = position[&exit];
            let most = all[at].unwrap_or_default();
            let paths: Option<Vec<f64>> = entries.iter().map(|done| done[at]).collect();
            let least = paths.map(|paths| paths.into_iter().fold(most, f64::min));
            is_known &= least.is_some();
            (exit, [least.unwrap_or(most), most])
        });
        let values = values.collect();
        let least = entries.iter().map(|done| longest(done)).fold(f64::INFINITY, f64::min);
        OnCpus { end: [least, longest(&all)], values, is_known }
    }
}

/// A group on CPUs: times from when all of its inputs are ready.
struct OnCpus {
    /// To the end: lower bound and upper bound.
    end: [f64; 2],
    /// To each value that goes out, by node.
    values: BTreeMap<usize, [f64; 2]>,
    /// Whether every output depends on every input.
    is_known: bool,
}
