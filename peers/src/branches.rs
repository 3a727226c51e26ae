//! Branches of a profile as one node each, as PipeDream's authors compress graphs that are too wide for their optimizer.
//!
//! A branch begins behind a node with several outputs and goes on while nodes have one input and one output; a node with several
//! outputs may be its last. A branch costs the sum of its nodes, and its output is that of the last one. Nodes that are not
//! behind such a fork stay as they are, and so do those where branches meet. One quirk: a sink that ends a longer branch becomes
//! part of it, but its costs are lost.

use schema::{Bytes, PipedreamNode, PipedreamProfile, Seconds};

/// A profile with its branches compressed.
pub(crate) struct Branches {
    pub(crate) profile: PipedreamProfile,
    /// The nodes of the original that each node stands for.
    pub(crate) members: Vec<Vec<usize>>,
}

impl Branches {
    pub(crate) fn of(profile: &PipedreamProfile) -> Self {
        let n_nodes = profile.nodes.len();
        let (mut inputs, mut outputs) = (vec![Vec::new(); n_nodes], vec![Vec::new(); n_nodes]);
        for &(from, to) in &profile.edges {
            inputs[to].push(from);
            outputs[from].push(to);
        }
        let mut is_in_branch = vec![false; n_nodes];
        let mut branches = Vec::new();
        for fork in (0..n_nodes).filter(|&node| outputs[node].len() > 1) {
            for branch in outputs[fork].iter().filter_map(|&first| Branch::from(first, &inputs, &outputs)) {
                branch.members().for_each(|node| is_in_branch[node] = true);
                branches.push(branch);
            }
        }
        let (mut nodes, mut members) = (Vec::new(), Vec::new());
        let mut place = vec![usize::MAX; n_nodes];
        for (node, data) in profile.nodes.iter().enumerate().filter(|(node, _)| !is_in_branch[*node]) {
            place[node] = nodes.len();
            nodes.push(data.clone());
            members.push(vec![node]);
        }
        for branch in &branches {
            branch.members().for_each(|node| place[node] = nodes.len());
            nodes.push(branch.node(profile));
            members.push(branch.members().collect());
        }
        let edges = profile.edges.iter().map(|&(from, to)| (place[from], place[to]));
        let edges = edges.filter(|(from, to)| from != to).collect();
        Self { profile: PipedreamProfile { nodes, edges }, members }
    }
}

struct Branch {
    nodes: Vec<usize>,
    /// A sink at the end of the branch, whose costs are lost.
    lost: Option<usize>,
}

impl Branch {
    /// Follows a branch from its first node; `None` where there is nothing to compress.
    fn from(first: usize, inputs: &[Vec<usize>], outputs: &[Vec<usize>]) -> Option<Self> {
        let (mut nodes, mut node) = (Vec::new(), first);
        while inputs[node].len() == 1 {
            match (outputs[node].as_slice(), nodes.is_empty()) {
                (&[next], _) => {
                    nodes.push(node);
                    node = next;
                }
                (_, true) => return None,
                ([], false) => return Some(Self { nodes, lost: Some(node) }),
                ([_, ..], false) => {
                    nodes.push(node);
                    break;
                }
            }
        }
        (nodes.len() > 1).then_some(Self { nodes, lost: None })
    }

    fn members(&self) -> impl Iterator<Item = usize> + '_ {
        self.nodes.iter().copied().chain(self.lost)
    }

    fn node(&self, profile: &PipedreamProfile) -> PipedreamNode {
        let nodes = || self.nodes.iter().map(|&node| &profile.nodes[node]);
        let last = self.nodes.last().map(|&node| &profile.nodes[node]).expect("a branch has nodes");
        PipedreamNode {
            description: format!("Branch({})", self.nodes.len()),
            forward: Seconds(nodes().map(|node| node.forward.0).sum()),
            backward: Seconds(nodes().map(|node| node.backward.0).sum()),
            parameters: Bytes(nodes().map(|node| node.parameters.0).fold(0, u64::saturating_add)),
            ..last.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_become_nodes() {
        // a forks into b → c, into d, and straight to the join e; behind it f → g, which forks into h → i and into j.
        let edges = "ab bc ce ad de ae ef fg gh hi gj";
        let line = |(index, id): (usize, char)| {
            format!(
                "{id} -- Layer -- forward_compute_time={0}.000, backward_compute_time={0}.000, activation_size={0}.000, parameter_size={0}.000\n",
                1 << index
            )
        };
        let mut text: String = "abcdefghij".chars().enumerate().map(line).collect();
        for edge in edges.split(' ') {
            text.push_str(&format!("\t{} -- {}\n", &edge[..1], &edge[1..]));
        }
        let profile = PipedreamProfile::from_text(&text).unwrap();
        let Branches { profile: compressed, members } = Branches::of(&profile);
        let name = |node: usize| -> String {
            members[node].iter().map(|&member| profile.nodes[member].id.as_str()).collect()
        };
        let mut names: Vec<String> = (0..members.len()).map(name).collect();
        // The branch of one node stays one, and so does the chain behind the join.
        let parameters: Vec<u64> = compressed.nodes.iter().map(|node| node.parameters.0).collect();
        let at = |wanted: &str| names.iter().position(|name| name == wanted).unwrap();
        assert_eq!((parameters[at("bc")], compressed.nodes[at("bc")].activations.0), (2 + 4, 4));
        // The sink's costs are lost.
        assert_eq!(parameters[at("hi")], 128);
        assert_eq!(compressed.nodes[at("hi")].forward.0, 0.128);
        let mut edges: Vec<String> =
            compressed.edges.iter().map(|&(from, to)| format!("{}>{}", names[from], names[to])).collect();
        edges.sort();
        assert_eq!(edges.join(" "), "a>bc a>d a>e bc>e d>e e>f f>g g>hi g>j");
        names.sort();
        assert_eq!(names.join(" "), "a bc d e f g hi j");
    }

    #[test]
    fn a_fork_ends_the_branch_that_it_is_in() {
        let mut text: String = "abcdef".chars().map(|id| {
            format!("{id} -- Layer -- forward_compute_time=1.000, backward_compute_time=1.000, activation_size=4.000, parameter_size=4.000\n")
        }).collect();
        // b → c lies behind the fork a, and c is a fork itself; d and e meet in f, as does a.
        for edge in ["ab", "bc", "cd", "ce", "df", "ef", "af"] {
            text.push_str(&format!("\t{} -- {}\n", &edge[..1], &edge[1..]));
        }
        let profile = PipedreamProfile::from_text(&text).unwrap();
        let found = Branches::of(&profile);
        assert_eq!(found.members, [vec![0], vec![3], vec![4], vec![5], vec![1, 2]]);
        assert_eq!(found.profile.edges, [(0, 4), (4, 1), (4, 2), (1, 3), (2, 3), (0, 3)]);
    }
}
