//! Groups of the load-balance problem: nodes that share a class, and cycles of classes, are merged before it is solved.
//!
//! Tarnawski et al., "Efficient algorithms for device placement of DNN graph operators", NeurIPS 2020, section 4 and
//! their code: contract each colour class; give backward classes without a forward mate an artificial one whose
//! edges mirror the backward ones; fuse strongly connected components of the forward graph; merge free nodes
//! with a single neighbour into it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use petgraph::graph::DiGraph;
use schema::DnnWorkload;

/// A workload whose nodes are put together.
#[derive(Debug)]
pub(crate) struct Groups {
    /// Positions of the original nodes in each group.
    pub(crate) members: Vec<Vec<usize>>,
    /// Groups that a group needs, forward.
    pub(crate) inputs: Vec<Vec<usize>>,
}

/// Classes joined so far: a class is named by its smallest member.
struct Classes {
    parent: Vec<usize>,
}

impl Classes {
    fn find(&mut self, class: usize) -> usize {
        let mut root = class;
        while self.parent[root] != root {
            self.parent[root] = self.parent[self.parent[root]];
            root = self.parent[root];
        }
        root
    }

    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.find(one), self.find(other));
        self.parent[one.max(other)] = one.min(other);
    }
}

/// Puts a workload's nodes together; with `merges_free`, also free nodes with their only neighbour.
pub(crate) fn groups(workload: &DnnWorkload, merges_free: bool) -> Groups {
    let position: HashMap<i64, usize> =
        workload.nodes.iter().enumerate().map(|(index, node)| (node.id, index)).collect();
    let edges: Vec<(usize, usize)> =
        workload.edges.iter().map(|edge| (position[&edge.source], position[&edge.target])).collect();
    let is_backward: Vec<bool> = workload.nodes.iter().map(|node| node.is_backward).collect();

    let mut numbers = BTreeMap::new();
    let mut n_classes = 0;
    let class: Vec<usize> = workload
        .nodes
        .iter()
        .map(|node| {
            let mut fresh = || {
                n_classes += 1;
                n_classes - 1
            };
            match node.class {
                Some(colour) => *numbers.entry(colour).or_insert_with(fresh),
                None => fresh(),
            }
        })
        .collect();
    let mut classes = Classes { parent: (0..n_classes).collect() };

    // Backward classes without a forward mate get one, tied as a mirror image of the backward edges.
    let mut has_forward = vec![false; n_classes];
    for (node, &class) in class.iter().enumerate() {
        has_forward[class] |= !is_backward[node];
    }
    let artificial: BTreeSet<(usize, usize)> = edges
        .iter()
        .filter(|&&(from, to)| is_backward[from] && is_backward[to])
        .map(|&(from, to)| (class[to], class[from]))
        .filter(|&(from, to)| from != to && !(has_forward[from] && has_forward[to]))
        .collect();
    let forward = edges.iter().filter(|&&(from, to)| !is_backward[from] && !is_backward[to]);
    let forward: BTreeSet<(usize, usize)> = forward.map(|&(from, to)| (class[from], class[to])).collect();

    let mut graph = DiGraph::<(), ()>::with_capacity(n_classes, forward.len());
    let nodes: Vec<_> = (0..n_classes).map(|_| graph.add_node(())).collect();
    for &(from, to) in forward.iter().chain(&artificial) {
        graph.add_edge(nodes[from], nodes[to], ());
    }
    for component in petgraph::algo::tarjan_scc(&graph) {
        component.windows(2).for_each(|pair| classes.join(pair[0].index(), pair[1].index()));
    }
    if merges_free {
        merge_free(workload, &edges, &class, &artificial, &mut classes);
    }

    // Number the groups in the order of their first node.
    let roots: Vec<usize> = (0..n_classes).map(|class| classes.find(class)).collect();
    let mut group_of_root = BTreeMap::new();
    let mut members: Vec<Vec<usize>> = Vec::new();
    for (node, &class) in class.iter().enumerate() {
        let group = *group_of_root.entry(roots[class]).or_insert(members.len());
        if group == members.len() {
            members.push(Vec::new());
        }
        members[group].push(node);
    }
    let mut inputs = vec![BTreeSet::new(); members.len()];
    for &(from, to) in forward.iter().chain(&artificial) {
        let (from, to) = (group_of_root[&roots[from]], group_of_root[&roots[to]]);
        if from != to {
            inputs[to].insert(from);
        }
    }
    Groups { members, inputs: inputs.into_iter().map(|inputs| inputs.into_iter().collect()).collect() }
}

/// Merges classes that cost nothing and have a single forward neighbour, and no backward one, into that neighbour.
fn merge_free(
    workload: &DnnWorkload,
    edges: &[(usize, usize)],
    class: &[usize],
    artificial: &BTreeSet<(usize, usize)>,
    classes: &mut Classes,
) {
    loop {
        let roots: Vec<usize> = (0..classes.parent.len()).map(|class| classes.find(class)).collect();
        let mut cost = vec![0.0_f64; roots.len()];
        for (node, data) in workload.nodes.iter().enumerate() {
            cost[roots[class[node]]] += data.cpu + data.accelerator;
        }
        // Neighbours of the forward half of each class: forward ones by class, and whether there are backward ones. An
        // artificial edge beside a true one counts as a second neighbour, as in the original.
        let mut neighbours: Vec<BTreeSet<(bool, usize)>> = vec![BTreeSet::new(); roots.len()];
        let mut meets_backward = vec![false; roots.len()];
        for &(from, to) in edges {
            let ends = (roots[class[from]], roots[class[to]]);
            match (workload.nodes[from].is_backward, workload.nodes[to].is_backward) {
                (false, false) if ends.0 != ends.1 => {
                    neighbours[ends.0].insert((true, ends.1));
                    neighbours[ends.1].insert((true, ends.0));
                }
                (false, true) => meets_backward[ends.0] = true,
                _ => {}
            }
        }
        for &(from, to) in artificial {
            if roots[from] != roots[to] {
                neighbours[roots[from]].insert((false, roots[to]));
                neighbours[roots[to]].insert((false, roots[from]));
            }
        }
        let free = (0..roots.len()).find(|&root| {
            roots[root] == root && cost[root] < 1e-6 && !meets_backward[root] && neighbours[root].len() == 1
        });
        match free {
            Some(root) => {
                let &(_, neighbour) = neighbours[root].first().expect("one neighbour");
                classes.join(root, neighbour);
            }
            None => return,
        }
    }
}
