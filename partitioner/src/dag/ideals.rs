//! All ideals of a DAG: sets of nodes that hold every input of their members.
//!
//! A pipeline is a chain of ideals, so a dynamic program over them is exact on any DAG. There are exponentially many in
//! the width of the graph; enumeration gives up at a limit. Level by level (sets of one size at a time), each set grown
//! by every node that is ready: O(Q·n·w) for Q ideals of w words.

use std::collections::HashSet;

use crate::{NodeSet, dag::node_set::bits};

/// The ideals of a DAG, smaller ones first; the empty one is the first and the whole graph the last.
#[derive(Debug)]
pub struct Ideals {
    n_words: usize,
    bits: Vec<u64>,
}

impl Ideals {
    /// Enumerates the ideals, or returns `None` when there are more than `limit`.
    pub fn enumerate(inputs: &[Vec<usize>], limit: usize) -> Option<Self> {
        let n_nodes = inputs.len();
        let n_words = n_nodes.div_ceil(64).max(1);
        let masks: Vec<NodeSet> = inputs
            .iter()
            .map(|inputs| {
                let mut mask = NodeSet::empty(n_nodes);
                inputs.iter().for_each(|&input| mask.insert(input));
                mask
            })
            .collect();
        let mut bits = vec![0; n_words];
        let mut level = vec![NodeSet::empty(n_nodes)];
        for _ in 0..n_nodes {
            let mut grown = HashSet::new();
            for ideal in &level {
                for node in (0..n_nodes).filter(|&node| !ideal.contains(node) && masks[node].is_subset(ideal))
                {
                    let mut larger = ideal.clone();
                    larger.insert(node);
                    grown.insert(larger);
                }
            }
            if bits.len() / n_words + grown.len() > limit {
                return None;
            }
            level = grown.into_iter().collect();
            // The hash order differs between runs.
            level.sort_unstable();
            level.iter().for_each(|ideal| bits.extend_from_slice(ideal.words()));
        }
        Some(Self { n_words, bits })
    }

    /// Makes the prefixes of one topological order.
    pub fn of_order(order: &[usize]) -> Self {
        let mut set = NodeSet::empty(order.len().max(1));
        let mut bits = set.words().to_vec();
        for &node in order {
            set.insert(node);
            bits.extend_from_slice(set.words());
        }
        Self { n_words: set.words().len(), bits }
    }

    /// Returns their number.
    pub fn len(&self) -> usize {
        self.bits.len() / self.n_words
    }

    /// Tells whether there are none: never, as the empty set is an ideal.
    pub fn is_empty(&self) -> bool {
        self.bits.is_empty()
    }

    /// Returns the words of an ideal.
    pub fn words(&self, ideal: usize) -> &[u64] {
        &self.bits[ideal * self.n_words..(ideal + 1) * self.n_words]
    }

    /// Returns the nodes of an ideal.
    pub fn nodes(&self, ideal: usize) -> impl Iterator<Item = usize> + '_ {
        bits(self.words(ideal).iter().copied())
    }

    /// Tells whether a node is in an ideal.
    pub fn contains(&self, ideal: usize, node: usize) -> bool {
        self.words(ideal)[node / 64] >> (node % 64) & 1 == 1
    }

    /// Tells whether a node is in the ideal `end` but not in `start`.
    pub fn is_between(&self, start: usize, end: usize, node: usize) -> bool {
        self.contains(end, node) && !self.contains(start, node)
    }

    /// Returns the nodes of an ideal that another has not.
    pub fn between(&self, start: usize, end: usize) -> impl Iterator<Item = usize> + '_ {
        bits(self.words(end).iter().zip(self.words(start)).map(|(word, less)| word & !less))
    }

    /// Returns the nodes of one ideal that are not in another, as a set.
    pub(crate) fn difference(&self, start: usize, end: usize) -> NodeSet {
        self.words(end).iter().zip(self.words(start)).map(|(word, less)| word & !less).collect()
    }

    /// Tells whether one ideal lies in another.
    pub fn is_subset(&self, ideal: usize, of: usize) -> bool {
        self.words(ideal).iter().zip(self.words(of)).all(|(word, all)| word & !all == 0)
    }

    /// Puts the ideals in another order.
    pub fn reorder(&mut self, order: &[u32]) {
        let mut sorted = Vec::with_capacity(self.bits.len());
        order.iter().for_each(|&ideal| sorted.extend_from_slice(self.words(ideal as usize)));
        self.bits = sorted;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diamond_has_six_ideals() {
        let ideals = Ideals::enumerate(&[vec![], vec![0], vec![0], vec![1, 2]], 100).unwrap();
        assert_eq!(ideals.len(), 6);
        assert_eq!(ideals.nodes(5).count(), 4);
        assert_eq!(ideals.between(4, 5).collect::<Vec<_>>(), [3]);
        assert!(Ideals::enumerate(&[vec![], vec![], vec![]], 7).is_none());
    }
}
