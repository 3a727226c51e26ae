//! The states of PipeDream's released optimizer: antichains, augmented by the nodes below that still have consumers.
//!
//! A state stands for the ideal below an antichain. Enumeration starts at the *first* source only; other sources come in
//! with their first consumer. `output` sums over the augmented antichain, so a skip connection is paid at every cut that it
//! crosses, and some values without further consumers are paid as well: the rule looks at the ancestors of each member
//! separately.

use std::collections::{HashMap, VecDeque};

use partitioner::NodeSet;
use schema::PipedreamProfile;

/// The states in topological order, with sums over their ideals.
#[derive(Debug)]
pub(crate) struct States {
    /// Nodes in or below the antichain.
    pub(crate) ideals: Vec<NodeSet>,
    /// Seconds, forward and backward, of the ideal.
    pub(crate) compute: Vec<f64>,
    /// Bytes of parameters of the ideal.
    pub(crate) parameters: Vec<f64>,
    /// Bytes that leave the ideal, as the original counts them.
    pub(crate) output: Vec<f64>,
}

/// Returns the states, or `None` when there are more than `limit`.
pub(crate) fn states(profile: &PipedreamProfile, limit: usize) -> Option<States> {
    let graph = Cleaned::new(profile);
    let n_nodes = profile.nodes.len();
    // Only an `Input` node and sinks that the original drops: one empty state would remain.
    let Some(first) = graph.nodes.iter().copied().find(|&node| graph.inputs[node].is_empty()) else {
        return Some(States {
            ideals: vec![NodeSet::empty(n_nodes)],
            compute: vec![0.0],
            parameters: vec![0.0],
            output: vec![0.0],
        });
    };
    let (ancestors, extras) = graph.closures();

    let mut ids = HashMap::from([(vec![first], 0)]);
    let mut antichains = vec![vec![first]];
    let mut augmented: Vec<Vec<usize>> = Vec::new();
    let mut next: Vec<Vec<usize>> = Vec::new();
    let mut queue = VecDeque::from([0]);
    while let Some(id) = queue.pop_front() {
        let antichain = antichains[id].clone();
        let mut extra = NodeSet::empty(n_nodes);
        antichain.iter().for_each(|&node| extra.unite(&extras[node]));
        let members: Vec<usize> = extra.iter().chain(antichain.iter().copied()).collect();
        let mut ideal = NodeSet::empty(n_nodes);
        for &node in &antichain {
            ideal.unite(&ancestors[node]);
            ideal.insert(node);
        }
        let mut following = Vec::new();
        for &member in &members {
            // A node already in the ideal would lead back; no node outside it can lie below a member.
            for &node in graph.outputs[member].iter().filter(|&&node| !ideal.contains(node)) {
                // The new node takes its input's place in the list; members that it makes redundant leave.
                let grown: Vec<usize> = members
                    .iter()
                    .map(|&old| if old == member { node } else { old })
                    .filter(|&old| {
                        old == node || (!ancestors[node].contains(old) && antichain.contains(&old))
                    })
                    .collect();
                let mut key = grown.clone();
                key.sort_unstable();
                let n_known = antichains.len();
                let id = *ids.entry(key).or_insert(n_known);
                if id == n_known {
                    antichains.push(grown);
                    queue.push_back(id);
                    if antichains.len() > limit {
                        return None;
                    }
                }
                following.push(id);
            }
        }
        // The queue is first in, first out: states are expanded in the order of their ids.
        augmented.push(members);
        next.push(following);
    }

    let order = reverse_postorder(&next);
    let mut states =
        States { ideals: Vec::new(), compute: Vec::new(), parameters: Vec::new(), output: Vec::new() };
    for id in order {
        let mut ideal = NodeSet::empty(n_nodes);
        for &node in &antichains[id] {
            ideal.unite(&ancestors[node]);
            ideal.insert(node);
        }
        let nodes = || ideal.iter().map(|node| &profile.nodes[node]);
        states.compute.push(nodes().map(|node| node.forward.0 + node.backward.0).sum());
        states.parameters.push(nodes().map(|node| node.parameters.0 as f64).sum());
        let output = augmented[id].iter().map(|&node| profile.nodes[node].activations.0 as f64);
        states.output.push(output.sum());
        states.ideals.push(ideal);
    }
    Some(states)
}

/// The profile without `Input` sources and dangling `__getitem__` sinks.
struct Cleaned {
    nodes: Vec<usize>,
    inputs: Vec<Vec<usize>>,
    outputs: Vec<Vec<usize>>,
}

impl Cleaned {
    fn new(profile: &PipedreamProfile) -> Self {
        let n_nodes = profile.nodes.len();
        let mut is_kept = vec![true; n_nodes];
        let degree = |ends: &dyn Fn(&(usize, usize)) -> usize, is_kept: &[bool]| {
            let mut degree = vec![0; n_nodes];
            for edge in profile.edges.iter().filter(|&&(from, to)| is_kept[from] && is_kept[to]) {
                degree[ends(edge)] += 1;
            }
            degree
        };
        // Inputs are dropped first; sinks are those of the remaining graph.
        let n_inputs = degree(&|edge| edge.1, &is_kept);
        for (node, data) in profile.nodes.iter().enumerate() {
            is_kept[node] &= n_inputs[node] > 0 || !data.description.starts_with("Input");
        }
        let n_outputs = degree(&|edge| edge.0, &is_kept);
        for (node, data) in profile.nodes.iter().enumerate() {
            is_kept[node] &= n_outputs[node] > 0 || !data.description.starts_with("__getitem__");
        }
        let mut graph = Self {
            nodes: (0..n_nodes).filter(|&node| is_kept[node]).collect(),
            inputs: vec![Vec::new(); n_nodes],
            outputs: vec![Vec::new(); n_nodes],
        };
        for &(from, to) in profile.edges.iter().filter(|&&(from, to)| is_kept[from] && is_kept[to]) {
            graph.inputs[to].push(from);
            graph.outputs[from].push(to);
        }
        graph
    }

    /// Returns each node's ancestors, and those of them with consumers other than the node and its ancestors.
    fn closures(&self) -> (Vec<NodeSet>, Vec<NodeSet>) {
        let n_nodes = self.inputs.len();
        let mut ancestors = vec![NodeSet::empty(n_nodes); n_nodes];
        let mut n_waiting: Vec<usize> = self.inputs.iter().map(Vec::len).collect();
        let mut ready: Vec<usize> = self.nodes.iter().copied().filter(|&node| n_waiting[node] == 0).collect();
        while let Some(node) = ready.pop() {
            let mut below = ancestors[node].clone();
            below.insert(node);
            for &output in &self.outputs[node] {
                ancestors[output].unite(&below);
                n_waiting[output] -= 1;
                if n_waiting[output] == 0 {
                    ready.push(output);
                }
            }
        }
        let extras = (0..n_nodes)
            .map(|node| {
                let mut extra = NodeSet::empty(n_nodes);
                let leads_out = |&ancestor: &usize| {
                    let mut outputs = self.outputs[ancestor].iter();
                    outputs.any(|&output| output != node && !ancestors[node].contains(output))
                };
                ancestors[node].iter().filter(leads_out).for_each(|ancestor| extra.insert(ancestor));
                extra
            })
            .collect();
        (ancestors, extras)
    }
}

/// Depth first from state 0, children in the order they were found; the original sorts the same way.
fn reverse_postorder(next: &[Vec<usize>]) -> Vec<usize> {
    let mut is_seen = vec![false; next.len()];
    let mut order = Vec::with_capacity(next.len());
    let mut stack = vec![(0, 0)];
    is_seen[0] = true;
    while let Some((state, child)) = stack.last_mut() {
        let state = *state;
        match next[state].get(*child) {
            Some(&following) => {
                *child += 1;
                if !std::mem::replace(&mut is_seen[following], true) {
                    stack.push((following, 0));
                }
            }
            None => {
                order.push(state);
                stack.pop();
            }
        }
    }
    order.reverse();
    order
}
