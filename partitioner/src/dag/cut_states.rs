//! The states of a search: where a pipeline can be cut. Positions of a linear order, or all ideals of the graph.
//!
//! Both are lists of states with sums over the blocks before them, so one dynamic program serves both. A cut's traffic is that of every
//! value with its maker before and a taker after: a skip connection is paid at each cut that it crosses. O(blocks + values) for an
//! order, O(Q·(blocks + values)) for Q ideals.

use std::ops::Range;

use crate::{NodeSet, Problem, dag::ideals::Ideals};

/// States with sums over the blocks before them; the first has none before it and the last has all.
#[derive(Debug)]
pub(crate) struct States {
    sets: Sets,
    /// Seconds of all blocks before.
    pub(crate) work: Vec<f64>,
    /// Bytes of parameters before, tied ones not counted.
    pub(crate) parameters: Vec<f64>,
    /// Bytes of activations before.
    pub(crate) activations: Vec<f64>,
    /// Bytes of activations before that remain if all that can be is recomputed: inputs, if they are fewer.
    pub(crate) least_kept: Vec<f64>,
    /// Bytes of values that cross, forward.
    pub(crate) crossing: Vec<f64>,
    /// Bytes of gradients that cross back.
    pub(crate) crossing_back: Vec<f64>,
}

#[derive(Debug)]
enum Sets {
    /// Blocks in order, and each block's position; state `i` has the first `i` before it.
    Line(Vec<usize>, Vec<usize>),
    Ideals(Ideals),
}

/// The blocks between two states.
pub(crate) enum Members<'a> {
    /// Those whose position is in a range.
    Run(&'a [usize], Range<usize>),
    Set(NodeSet),
}

impl Members<'_> {
    pub(crate) fn contains(&self, block: usize) -> bool {
        match self {
            Self::Run(position, range) => range.contains(&position[block]),
            Self::Set(set) => set.contains(block),
        }
    }
}

/// Returns the bytes of each block that remain if all that can be is recomputed; 0 if they may wait in host memory.
fn least_kept(problem: &Problem) -> Vec<f64> {
    let mut inputs: Vec<f64> = problem.blocks.iter().map(|block| block.kept.0 as f64).collect();
    for value in &problem.values {
        value.to.iter().for_each(|&to| inputs[to] += value.forward.0 as f64);
    }
    let training = &problem.training;
    let least = |(block, inputs): (&crate::Block, f64)| {
        if training.offload {
            return 0.0;
        }
        let kept = if training.recompute_unit.is_block() { inputs } else { block.kept.0 as f64 };
        kept.min(block.activations.0 as f64)
    };
    problem.blocks.iter().zip(inputs).map(least).collect()
}

impl States {
    /// Makes the states of one order of the blocks.
    pub(crate) fn line(problem: &Problem, order: Vec<usize>) -> Self {
        let n_blocks = order.len();
        let least = least_kept(problem);
        let mut position = vec![0; n_blocks];
        order.iter().enumerate().for_each(|(index, &block)| position[block] = index);
        // A value crosses the cuts from its maker to its last taker: add its bytes at the first and subtract them behind the
        // last.
        let mut forward = vec![0.0; n_blocks + 2];
        let mut backward = vec![0.0; n_blocks + 2];
        for value in &problem.values {
            let (Some(from), Some(last)) = (value.from, value.to.iter().map(|&to| position[to]).max()) else {
                continue;
            };
            let (first, until) = (position[from] + 1, last + 1);
            forward[first] += value.forward.0 as f64;
            forward[until] -= value.forward.0 as f64;
            backward[first] += value.backward.0 as f64;
            backward[until] -= value.backward.0 as f64;
        }
        let running = |differences: &[f64]| {
            let mut sum = 0.0;
            differences[..=n_blocks]
                .iter()
                .map(|difference| {
                    sum += difference;
                    sum
                })
                .collect::<Vec<f64>>()
        };
        let before = |field: &dyn Fn(usize) -> f64| {
            let mut sum = 0.0;
            let mut sums = vec![0.0];
            sums.extend(order.iter().map(|&block| {
                sum += field(block);
                sum
            }));
            sums
        };
        Self {
            work: before(&|block| problem.blocks[block].seconds()),
            parameters: before(&|block| problem.blocks[block].parameters.0 as f64),
            activations: before(&|block| problem.blocks[block].activations.0 as f64),
            least_kept: before(&|block| least[block]),
            crossing: running(&forward),
            crossing_back: running(&backward),
            sets: Sets::Line(order, position),
        }
    }

    /// Makes the states of all ideals, sorted by work; `None` when there are more than `limit`.
    pub(crate) fn ideals(problem: &Problem, limit: usize) -> Option<Self> {
        let mut inputs = vec![Vec::new(); problem.blocks.len()];
        for value in &problem.values {
            for &to in &value.to {
                // The first taker of a model input loads it, so its takers keep their order.
                inputs[to].extend(value.from);
            }
        }
        let mut ideals = Ideals::enumerate(&inputs, limit)?;
        let n_ideals = ideals.len();
        let work: Vec<f64> = (0..n_ideals)
            .map(|ideal| ideals.nodes(ideal).map(|block| problem.blocks[block].seconds()).sum())
            .collect();
        let mut order: Vec<u32> = (0..n_ideals as u32).collect();
        // Of equal work the smaller set comes first, as enumerated, so that no set comes before its subsets.
        order.sort_by(|&a, &b| {
            let sizes = (ideals.nodes(a as usize).count(), ideals.nodes(b as usize).count());
            work[a as usize].total_cmp(&work[b as usize]).then(sizes.0.cmp(&sizes.1)).then(a.cmp(&b))
        });
        ideals.reorder(&order);
        let sum = |field: &dyn Fn(usize) -> f64| -> Vec<f64> {
            (0..n_ideals).map(|ideal| ideals.nodes(ideal).map(field).sum()).collect()
        };
        let least = least_kept(problem);
        let crossing = |bytes: &dyn Fn(&crate::Value) -> f64| -> Vec<f64> {
            (0..n_ideals)
                .map(|ideal| {
                    let is_in = |block: usize| ideals.contains(ideal, block);
                    let crosses = |value: &&crate::Value| {
                        value.from.is_some_and(is_in) && value.to.iter().any(|&to| !is_in(to))
                    };
                    problem.values.iter().filter(crosses).map(bytes).sum()
                })
                .collect()
        };
        Some(Self {
            work: sum(&|block| problem.blocks[block].seconds()),
            parameters: sum(&|block| problem.blocks[block].parameters.0 as f64),
            activations: sum(&|block| problem.blocks[block].activations.0 as f64),
            least_kept: sum(&|block| least[block]),
            crossing: crossing(&|value| value.forward.0 as f64),
            crossing_back: crossing(&|value| value.backward.0 as f64),
            sets: Sets::Ideals(ideals),
        })
    }

    /// Sums over the blocks before each state.
    pub(crate) fn sums(&self, field: impl Fn(usize) -> f64) -> Vec<f64> {
        match &self.sets {
            Sets::Line(order, _) => {
                let running = order.iter().scan(0.0, |sum, &block| {
                    *sum += field(block);
                    Some(*sum)
                });
                std::iter::once(0.0).chain(running).collect()
            }
            Sets::Ideals(ideals) => {
                // Most states contain the one before: extend its sum.
                let mut sums: Vec<f64> = Vec::with_capacity(self.len());
                for ideal in 0..self.len() {
                    let before = ideal.checked_sub(1).filter(|&before| ideals.is_subset(before, ideal));
                    sums.push(match before {
                        Some(before) => sums[before] + ideals.between(before, ideal).map(&field).sum::<f64>(),
                        None => ideals.nodes(ideal).map(&field).sum(),
                    });
                }
                sums
            }
        }
    }

    /// Returns the work before each state at some speed, ascending, with the least forward work before any state of at least as
    /// much work.
    pub(crate) fn work_and_forward(
        &self,
        problem: &Problem,
        speed: f64,
        accumulation: f64,
    ) -> Vec<(f64, f64)> {
        let forward = self.sums(|block| problem.blocks[block].forward.0);
        let work = self.work.iter().zip(&self.parameters);
        let work = work.map(|(work, parameters)| work / speed + parameters * accumulation);
        let mut before: Vec<(f64, f64)> =
            work.zip(forward).map(|(work, forward)| (work, forward / speed)).collect();
        before.sort_by(|a, b| a.0.total_cmp(&b.0));
        // Sums over different sets are rounded differently: keep forward work from falling as work rises.
        let mut least = f64::INFINITY;
        for state in before.iter_mut().rev() {
            least = least.min(state.1);
            state.1 = least;
        }
        before
    }

    /// Returns their number.
    pub(crate) fn len(&self) -> usize {
        self.work.len()
    }

    /// Tells whether the states include all cuts of the graph.
    pub(crate) fn is_complete(&self, problem: &Problem) -> bool {
        match &self.sets {
            Sets::Ideals(_) => true,
            // Each block needs the one before: the only topological order.
            Sets::Line(order, position) => {
                let mut needs = vec![false; order.len()];
                for value in &problem.values {
                    for &to in &value.to {
                        needs[position[to]] |=
                            value.from.is_some_and(|from| position[from] + 1 == position[to]);
                    }
                }
                needs.iter().skip(1).all(|&needs| needs)
            }
        }
    }

    /// Tells whether the states are the positions of an order, and not all ideals.
    pub(crate) fn is_line(&self) -> bool {
        matches!(self.sets, Sets::Line(..))
    }

    /// Tells whether one state lies before another.
    pub(crate) fn is_before(&self, start: usize, end: usize) -> bool {
        match &self.sets {
            Sets::Line(..) => start < end,
            Sets::Ideals(ideals) => start < end && ideals.is_subset(start, end),
        }
    }

    /// Returns the blocks between two states, in the order of the problem.
    pub(crate) fn blocks(&self, start: usize, end: usize) -> Vec<usize> {
        match &self.sets {
            Sets::Line(order, _) => {
                let mut blocks = order[start..end].to_vec();
                blocks.sort_unstable();
                blocks
            }
            Sets::Ideals(ideals) => ideals.between(start, end).collect(),
        }
    }

    /// Returns the blocks between two states, for many membership tests.
    pub(crate) fn members(&self, start: usize, end: usize) -> Members<'_> {
        match &self.sets {
            Sets::Line(_, position) => Members::Run(position, start..end),
            Sets::Ideals(ideals) => Members::Set(ideals.difference(start, end)),
        }
    }

    /// Tells whether a block lies between two states.
    pub(crate) fn has_block(&self, start: usize, end: usize, block: usize) -> bool {
        match &self.sets {
            Sets::Line(_, position) => (start..end).contains(&position[block]),
            Sets::Ideals(ideals) => ideals.is_between(start, end, block),
        }
    }
}
