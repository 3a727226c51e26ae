//! Sets of nodes as bits.

/// A set of small numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeSet {
    words: Box<[u64]>,
}

impl NodeSet {
    /// Returns an empty set for numbers below `n_nodes`.
    pub fn empty(n_nodes: usize) -> Self {
        Self { words: vec![0; n_nodes.div_ceil(64)].into_boxed_slice() }
    }

    /// Returns the set of all numbers below `n_nodes`.
    pub fn full(n_nodes: usize) -> Self {
        let mut set = Self::empty(n_nodes);
        (0..n_nodes).for_each(|node| set.insert(node));
        set
    }

    /// Adds a number.
    pub fn insert(&mut self, node: usize) {
        self.words[node / 64] |= 1 << (node % 64);
    }

    /// Takes a number out.
    pub fn remove(&mut self, node: usize) {
        self.words[node / 64] &= !(1 << (node % 64));
    }

    /// Tells whether a number is in the set.
    pub fn contains(&self, node: usize) -> bool {
        self.words[node / 64] >> (node % 64) & 1 == 1
    }

    /// Adds all numbers of another set.
    pub fn unite(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, more)| *word |= more);
    }

    /// Takes out all numbers of another set.
    pub fn subtract(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, less)| *word &= !less);
    }

    /// Tells whether every number of this set is in the other.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.words.iter().zip(&other.words).all(|(word, all)| word & !all == 0)
    }

    /// Tells whether nothing is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    /// Counts the numbers.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns the numbers, smallest first.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        bits(self.words.iter().copied())
    }

    /// Returns the numbers that another set has not, smallest first.
    pub fn difference<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = usize> + 'a {
        bits(self.words.iter().zip(&other.words).map(|(word, less)| word & !less))
    }

    /// Tells whether a number is in both sets.
    pub fn meets(&self, other: &Self) -> bool {
        self.words.iter().zip(&other.words).any(|(word, other)| word & other != 0)
    }

    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }
}

impl FromIterator<u64> for NodeSet {
    fn from_iter<T: IntoIterator<Item = u64>>(words: T) -> Self {
        Self { words: words.into_iter().collect() }
    }
}

/// Returns the positions of the bits that are set in words.
pub(crate) fn bits(words: impl Iterator<Item = u64>) -> impl Iterator<Item = usize> {
    words.enumerate().flat_map(|(index, word)| {
        std::iter::successors(Some(word), |left| Some(left & left.wrapping_sub(1)))
            .take_while(|&left| left != 0)
            .map(move |left| index * 64 + left.trailing_zeros() as usize)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_in_and_out() {
        let mut set = NodeSet::empty(130);
        [0, 63, 64, 129].into_iter().for_each(|node| set.insert(node));
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 63, 64, 129]);
        set.remove(64);
        assert_eq!(set.len(), 3);
        assert!(set.is_subset(&NodeSet::full(130)) && !NodeSet::full(130).is_subset(&set));
        let mut other = NodeSet::empty(130);
        [1, 63].into_iter().for_each(|node| other.insert(node));
        assert_eq!(set.difference(&other).collect::<Vec<_>>(), [0, 129]);
        assert!(set.meets(&other));
        other.remove(63);
        assert!(!set.meets(&other));
    }
}
