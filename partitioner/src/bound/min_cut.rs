//! The narrowest cut of a graph with a given amount of work before it: branch and bound over minimum cuts.
//!
//! Blocks whose ancestors bring more work along than the window allows lie on the far side, those whose descendants leave too little
//! on the near side. Between these two sets the cut with the least traffic is a minimum s-t cut (Dinic, 1970): a value's bytes are
//! paid once, where its maker is on the near side and any taker on the far one, and edges without a limit keep each block behind what
//! it needs. If the cut's work is outside the window, a block is put on one side and on the other, with its closure, and the
//! narrower leaf is looked at first. At any time the narrowest open leaf bounds all cuts of the window. O(V²·E) a leaf, leaves
//! exponential at worst: the caller has a budget. Assumes nothing.

use std::{
    cmp::Ordering,
    collections::{BinaryHeap, VecDeque},
};

use petgraph::{
    Direction,
    algo::dinics,
    graph::{DiGraph, NodeIndex},
    visit::EdgeRef,
};

use crate::{Block, NodeSet, Problem};

/// The ancestors and descendants of each block, and the work and traffic of the graph.
pub(crate) struct Closures {
    /// Values between blocks: makers, takers, bytes there and back.
    values: Vec<(usize, Vec<usize>, u64)>,
    /// Each block with its ancestors.
    down: Vec<NodeSet>,
    /// Each block with its descendants.
    up: Vec<NodeSet>,
    /// Seconds before a cut that has a block on its near side, at the least.
    least: Vec<f64>,
    /// Seconds before a cut that has a block on its far side, at the most.
    most: Vec<f64>,
    /// Seconds of each block on a device of speed 1.
    seconds: Vec<f64>,
    /// Seconds of all.
    pub(crate) total: f64,
}

impl Closures {
    pub(crate) fn new(problem: &Problem) -> Self {
        let n_blocks = problem.blocks.len();
        let closed = |block: usize| {
            let mut set = NodeSet::empty(n_blocks);
            set.insert(block);
            set
        };
        let mut down: Vec<NodeSet> = (0..n_blocks).map(closed).collect();
        let mut up = down.clone();
        let mut inputs = vec![Vec::new(); n_blocks];
        for value in &problem.values {
            value.to.iter().for_each(|&to| inputs[to].extend(value.from));
        }
        for (block, inputs) in inputs.iter().enumerate() {
            for &input in inputs {
                let below = down[input].clone();
                down[block].unite(&below);
            }
        }
        for (block, inputs) in inputs.iter().enumerate().rev() {
            for &input in inputs {
                let above = up[block].clone();
                up[input].unite(&above);
            }
        }
        let seconds: Vec<f64> = problem.blocks.iter().map(Block::seconds).collect();
        // The sum of all capacities must not overflow.
        let most = u64::MAX / 4 / problem.values.len().max(1) as u64;
        let values = problem.values.iter().filter_map(|value| {
            let bytes = value.forward.0.saturating_add(value.backward.0).min(most);
            Some((value.from?, value.to.clone(), bytes))
        });
        let mut closures = Self {
            values: values.collect(),
            least: Vec::new(),
            most: Vec::new(),
            down,
            up,
            seconds,
            total: problem.seconds(),
        };
        closures.least = closures.down.iter().map(|set| closures.work(set)).collect();
        closures.most = closures.up.iter().map(|set| closures.total - closures.work(set)).collect();
        closures
    }

    /// Returns how many blocks there are.
    pub(crate) fn n_blocks(&self) -> usize {
        self.seconds.len()
    }

    /// Returns the tolerance for rounded sums of work: within it, a block stays free to lie on either side.
    fn slack(&self) -> f64 {
        1e-9 * self.total
    }

    fn work(&self, set: &NodeSet) -> f64 {
        set.iter().map(|block| self.seconds[block]).sum()
    }

    /// Returns the cuts of an order of the blocks, one behind each.
    pub(crate) fn cuts_of(&self, order: impl Iterator<Item = usize>) -> Vec<NarrowCut> {
        let mut near = NodeSet::empty(self.n_blocks());
        let mut inputs = vec![Vec::new(); self.n_blocks()];
        let mut left: Vec<usize> = self.values.iter().map(|(_, takers, _)| takers.len()).collect();
        let mut made = vec![Vec::new(); self.n_blocks()];
        for (index, (from, takers, _)) in self.values.iter().enumerate() {
            made[*from].push(index);
            takers.iter().for_each(|&to| inputs[to].push(index));
        }
        let (mut bytes, mut work) = (0, 0.0);
        let cut = |block: usize| {
            near.insert(block);
            work += self.seconds[block];
            for &value in &inputs[block] {
                left[value] -= 1;
                bytes -= if left[value] == 0 { self.values[value].2 } else { 0 };
            }
            let kept = made[block].iter().filter(|&&value| left[value] > 0);
            bytes += kept.map(|&value| self.values[value].2).sum::<u64>();
            NarrowCut { near: near.clone(), bytes, work }
        };
        order.map(cut).collect()
    }

    /// Returns the seconds of the blocks that are in one set and not in another.
    fn more(&self, set: &NodeSet, than: &NodeSet) -> f64 {
        set.difference(than).map(|block| self.seconds[block]).sum()
    }

    /// Returns the blocks that are on neither side.
    fn open<'a>(&self, near: &'a NodeSet, far: &'a NodeSet) -> impl Iterator<Item = usize> + 'a {
        (0..self.n_blocks()).filter(|&block| !near.contains(block) && !far.contains(block))
    }
}

/// A cut: the blocks before it, and the bytes that cross it both ways.
#[derive(Clone, Debug)]
pub(crate) struct NarrowCut {
    pub(crate) near: NodeSet,
    pub(crate) bytes: u64,
    /// Seconds of the near side.
    pub(crate) work: f64,
}

/// Cuts with work between two limits.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// The narrowest cut found so far.
    pub(crate) cut: Option<NarrowCut>,
    /// Lower bound of the bytes across a cut, from the wider window that this one is a half of.
    least: u64,
    leaves: BinaryHeap<Leaf>,
    /// Whether `cut` is the narrowest of all.
    is_closed: bool,
}

/// Cuts with some blocks on the near side and some on the far side; the minimum cut between the two sets may lie outside the
/// window.
#[derive(Clone, Debug)]
struct Leaf {
    near: NodeSet,
    far: NodeSet,
    cut: NarrowCut,
}

impl Window {
    pub(crate) fn new(closures: &Closures, low: f64, high: f64) -> Self {
        let (mut near, mut far) = (NodeSet::empty(closures.n_blocks()), NodeSet::empty(closures.n_blocks()));
        let slack = closures.slack();
        for block in 0..closures.n_blocks() {
            if closures.most[block] < low - slack {
                near.insert(block);
            }
            if closures.least[block] > high + slack {
                far.insert(block);
            }
        }
        let leaves = Leaf::new(closures, near, far).into_iter().collect();
        let mut window = Self { low, high, least: 0, cut: None, leaves, is_closed: false };
        window.settle(closures);
        window
    }

    /// Makes two windows of one.
    pub(crate) fn halves(&self, closures: &Closures) -> [Self; 2] {
        let middle = (self.low + self.high) / 2.0;
        [(self.low, middle), (middle, self.high)].map(|(low, high)| {
            let mut half = Self::new(closures, low, high);
            // A lower bound of a window holds for its halves.
            half.least = self.bytes().unwrap_or(u64::MAX);
            if let Some(cut) = self.cut.as_ref().filter(|cut| half.holds(closures, cut)) {
                half.offer(cut.clone());
            }
            half.settle(closures);
            half
        })
    }

    /// Returns a lower bound of the bytes across a cut; `None` if no cut lies in the window.
    pub(crate) fn bytes(&self) -> Option<u64> {
        if self.is_closed {
            return self.cut.as_ref().map(|cut| cut.bytes);
        }
        self.leaves.peek().map(|leaf| leaf.cut.bytes.max(self.least))
    }

    /// Tells whether the narrowest cut is known, or that there is none.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Tells whether a cut's work lies within the window.
    pub(crate) fn holds(&self, closures: &Closures, cut: &NarrowCut) -> bool {
        (self.low - closures.slack()..=self.high + closures.slack()).contains(&cut.work)
    }

    /// Keeps a cut if it is narrower than the narrowest so far.
    pub(crate) fn offer(&mut self, cut: NarrowCut) {
        if self.cut.as_ref().is_none_or(|known| cut.bytes < known.bytes) {
            self.cut = Some(cut);
        }
    }

    /// Puts one more block of the narrowest leaf on either side; returns the cuts that were met, whatever their work.
    pub(crate) fn branch(&mut self, closures: &Closures) -> Vec<NarrowCut> {
        let leaf = if self.is_closed { None } else { self.leaves.pop() };
        let Some(leaf) = leaf else { return Vec::new() };
        let drag = |block: usize| {
            let near = closures.more(&closures.down[block], &leaf.near);
            near.min(closures.more(&closures.up[block], &leaf.far))
        };
        let open = closures.open(&leaf.near, &leaf.far).map(|block| (drag(block), block));
        let block = open.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
        let (mut near, mut far) = (leaf.near.clone(), leaf.far.clone());
        if let Some((_, block)) = block {
            near.unite(&closures.down[block]);
            far.unite(&closures.up[block]);
        }
        let limits = (self.low, self.high);
        let sides = [(near, leaf.far), (leaf.near, far)];
        let leaves = sides.into_iter().filter_map(|(near, far)| Leaf::within(closures, limits, near, far));
        let leaves: Vec<Leaf> = leaves.collect();
        let cuts = leaves.iter().map(|leaf| leaf.cut.clone()).collect();
        self.leaves.extend(leaves);
        self.settle(closures);
        cuts
    }

    fn settle(&mut self, closures: &Closures) {
        if let Some(leaf) = self.leaves.peek()
            && self.holds(closures, &leaf.cut)
        {
            let cut = leaf.cut.clone();
            self.offer(cut);
        }
        let best = self.cut.as_ref().map(|cut| cut.bytes);
        self.is_closed = match self.leaves.peek() {
            None => true,
            Some(leaf) => best.is_some_and(|best| best <= leaf.cut.bytes.max(self.least)),
        };
    }
}

impl Leaf {
    fn new(closures: &Closures, near: NodeSet, far: NodeSet) -> Option<Self> {
        if near.meets(&far) {
            return None;
        }
        let cut = fewest(closures, &near, &far);
        Some(Self { near, far, cut })
    }

    /// Makes a leaf, with all blocks that the two sets force to one side; `None` if no cut of it lies in the window.
    fn within(
        closures: &Closures,
        (low, high): (f64, f64),
        mut near: NodeSet,
        mut far: NodeSet,
    ) -> Option<Self> {
        let slack = closures.slack();
        loop {
            let (before, behind) = (closures.work(&near), closures.total - closures.work(&far));
            if before > high + slack || behind < low - slack {
                return None;
            }
            let (mut more_near, mut more_far) = (near.clone(), far.clone());
            for block in closures.open(&near, &far) {
                if before + closures.more(&closures.down[block], &near) > high + slack {
                    more_far.unite(&closures.up[block]);
                }
                if behind - closures.more(&closures.up[block], &far) < low - slack {
                    more_near.unite(&closures.down[block]);
                }
            }
            if (&more_near, &more_far) == (&near, &far) {
                return Self::new(closures, near, far);
            }
            (near, far) = (more_near, more_far);
        }
    }
}

/// The cut between two sets that the fewest bytes cross, there and back.
fn fewest(closures: &Closures, near: &NodeSet, far: &NodeSet) -> NarrowCut {
    let n_blocks = closures.n_blocks();
    let mut network: DiGraph<(), u64> = DiGraph::new();
    let (source, sink) = (network.add_node(()), network.add_node(()));
    let nodes: Vec<NodeIndex> = (0..n_blocks)
        .map(|block| match (near.contains(block), far.contains(block)) {
            (true, _) => source,
            (_, true) => sink,
            _ => network.add_node(()),
        })
        .collect();
    let no_cut = 1 + closures.values.iter().map(|value| value.2).sum::<u64>();
    let mut always = 0;
    for (from, takers, bytes) in &closures.values {
        let from = nodes[*from];
        if from == sink || takers.iter().all(|&to| nodes[to] == source) {
            continue;
        }
        if from == source && takers.iter().any(|&to| nodes[to] == sink) {
            always += bytes;
            continue;
        }
        let crossing = network.add_node(());
        network.add_edge(from, crossing, *bytes);
        for to in takers.iter().map(|&to| nodes[to]).filter(|&to| to != source) {
            network.add_edge(crossing, to, no_cut);
            // A block's input never lies beyond the block.
            if from != source && to != sink {
                network.add_edge(to, from, no_cut);
            }
        }
    }
    let (crossing, flows) = dinics(&network, source, sink);
    // The near side is what the residual network still reaches from the source.
    let mut reached = vec![false; network.node_count()];
    let mut waiting = VecDeque::from([source]);
    reached[source.index()] = true;
    while let Some(node) = waiting.pop_front() {
        let ahead = network
            .edges(node)
            .filter(|edge| flows[edge.id().index()] < *edge.weight())
            .map(|edge| edge.target());
        let back = network
            .edges_directed(node, Direction::Incoming)
            .filter(|edge| flows[edge.id().index()] > 0)
            .map(|edge| edge.source());
        for next in ahead.chain(back) {
            if !std::mem::replace(&mut reached[next.index()], true) {
                waiting.push_back(next);
            }
        }
    }
    let mut side = NodeSet::empty(n_blocks);
    (0..n_blocks).filter(|&block| reached[nodes[block].index()]).for_each(|block| side.insert(block));
    let work = closures.work(&side);
    NarrowCut { near: side, bytes: always + crossing, work }
}

impl PartialEq for Leaf {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Leaf {}
impl PartialOrd for Leaf {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Leaf {
    /// Leaves go into a max-heap: the narrowest is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        other.cut.bytes.cmp(&self.cut.bytes)
    }
}
