//! What must cross a cut of a graph too wide for its ideals, by how much work lies before the cut; and how long a step
//! of 1F1B takes at the least because of it.
//!
//! An ideal with work within a window holds every block whose absence would leave too little, and none that brings too much
//! along. Between those the fewest bytes that can cross are a minimum cut: a value costs its bytes once where its maker is
//! on the near side and any taker on the far one, and what is needed is never on the far side of what needs it.
//!
//! Stage `s` of `p` has `k = p-s` micro-batches on their way: it begins no further one before the first is back. With `R` the
//! work from `s` on and the transfers of all cuts behind it, both ways, a step of `m` micro-batches takes
//! `ΣT + Σ2c + ⌊(m-1)/k⌋·R` at the least. The least step for which cuts exist is found by bisection, over windows and from the
//! last stage to the first: what crosses behind a stage had better be little. O(log(1/ε) · p · W²) for W windows.

use petgraph::{algo::dinics, graph::DiGraph};

use crate::{NodeSet, Problem};

/// Windows of equal work.
const WINDOWS: usize = 128;

/// The fewest bytes that cross cuts, there and back, by windows of the work before them.
pub(crate) struct Narrowest {
    /// Seconds of all blocks on a device of speed 1.
    total: f64,
    /// Bytes for each window; infinite where no cut has as much work before it.
    bytes: Vec<f64>,
}

impl Narrowest {
    pub(crate) fn new(problem: &Problem) -> Self {
        let n_blocks = problem.blocks.len();
        // A block with all that it needs, and with all that needs it.
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
        let work = |set: &NodeSet| -> f64 {
            (0..n_blocks)
                .filter(|&block| set.contains(block))
                .map(|block| problem.blocks[block].seconds())
                .sum()
        };
        let total = problem.seconds();
        let least: Vec<f64> = down.iter().map(work).collect();
        let most: Vec<f64> = up.iter().map(|set| total - work(set)).collect();
        // Sums are rounded: what may lie on either side is free to.
        let slack = 1e-9 * total;
        let window = |index: usize| {
            let (low, high) = (border(total, index), border(total, index + 1));
            let side = |block: usize| match (most[block] < low - slack, least[block] > high + slack) {
                (false, false) => Side::Free,
                (true, false) => Side::Near,
                (false, true) => Side::Far,
                // Nothing lies between.
                (true, true) => Side::Both,
            };
            fewest(problem, &(0..n_blocks).map(side).collect::<Vec<Side>>())
        };
        Self { total, bytes: (0..WINDOWS).map(window).collect() }
    }

    /// Returns a time that no step of 1F1B with so many stages beats, at a speed and with so many seconds for each byte.
    pub(crate) fn step(&self, speed: f64, rate: f64, ranks: usize, micro_batches: usize) -> f64 {
        let total = self.total / speed;
        if ranks < 2 || total <= 0.0 {
            return 0.0;
        }
        let costs: Vec<f64> = self.bytes.iter().map(|bytes| bytes * rate).collect();
        let (mut low, mut high) = (0.0, total * micro_batches as f64);
        while !is_enough(high, total, &costs, ranks, micro_batches) {
            (low, high) = (high, high * 2.0);
            if high > total * 1e12 {
                return 0.0;
            }
        }
        for _ in 0..40 {
            let middle = (low + high) / 2.0;
            if is_enough(middle, total, &costs, ranks, micro_batches) { high = middle } else { low = middle }
        }
        low
    }
}

/// Work before the window of this index.
fn border(total: f64, index: usize) -> f64 {
    total * index as f64 / WINDOWS as f64
}

/// On which side of every cut of a window a block lies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Near,
    Far,
    Free,
    Both,
}

/// The fewest bytes that cross, there and back.
fn fewest(problem: &Problem, sides: &[Side]) -> f64 {
    if sides.contains(&Side::Both) {
        return f64::INFINITY;
    }
    let mut network: DiGraph<(), u64> = DiGraph::new();
    let (near, far) = (network.add_node(()), network.add_node(()));
    let nodes: Vec<_> = sides
        .iter()
        .map(|side| match side {
            Side::Near => near,
            Side::Far => far,
            _ => network.add_node(()),
        })
        .collect();
    let bytes = |value: &crate::Value| value.forward.0.saturating_add(value.backward.0);
    let no_cut = problem.values.iter().map(bytes).fold(1, u64::saturating_add).min(u64::MAX / 4);
    let mut always = 0.0;
    for value in &problem.values {
        let Some(from) = value.from else { continue };
        let is_on = |side: Side| move |to: &usize| sides[*to] == side;
        if sides[from] == Side::Far || value.to.iter().all(is_on(Side::Near)) {
            continue;
        }
        if sides[from] == Side::Near && value.to.iter().any(is_on(Side::Far)) {
            always += bytes(value) as f64;
            continue;
        }
        let crossing = network.add_node(());
        network.add_edge(nodes[from], crossing, bytes(value).min(no_cut));
        for &to in value.to.iter().filter(|&to| !is_on(Side::Near)(to)) {
            network.add_edge(crossing, nodes[to], no_cut);
            // What a block needs is no farther than the block.
            if sides[from] == Side::Free && sides[to] == Side::Free {
                network.add_edge(nodes[to], nodes[from], no_cut);
            }
        }
    }
    always + dinics(&network, near, far).0 as f64
}

/// Tells whether stages may keep within a step, as far as this bound sees.
fn is_enough(step: f64, total: f64, costs: &[f64], ranks: usize, micro_batches: usize) -> bool {
    let m = micro_batches as f64;
    // The least that crosses behind a stage, by the window in which it begins.
    let mut behind = vec![f64::INFINITY; WINDOWS];
    for stage in (0..ranks).rev() {
        let turns = ((micro_batches - 1) / (ranks - stage)) as f64;
        // What the cut before a stage costs is no part of the way from there to the end and back.
        let is_back =
            |begin: f64, own: f64, rest: f64| total + own + rest + turns * (total - begin + rest) <= step;
        let windows = if stage == 0 { 0..1 } else { 0..WINDOWS };
        let mut next = vec![f64::INFINITY; WINDOWS];
        for window in windows {
            let (low, high, own) = match stage {
                0 => (0.0, 0.0, 0.0),
                _ => (border(total, window), border(total, window + 1), costs[window]),
            };
            // One direction takes half of it at the least.
            if m * own / 2.0 > step {
                continue;
            }
            let fits = |end: f64| low + m * (end - high).max(0.0) <= step;
            let rest = match stage + 1 == ranks {
                true if fits(total) => 0.0,
                true => f64::INFINITY,
                false => {
                    let ends = (window..WINDOWS).filter(|&end| behind[end] < f64::INFINITY);
                    let ends = ends.filter(|&end| fits(border(total, end)));
                    ends.map(|end| behind[end]).fold(f64::INFINITY, f64::min)
                }
            };
            if is_back(high, own, rest) {
                next[window] = own + rest;
            }
        }
        behind = next;
    }
    behind[0] < f64::INFINITY
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        MicroBatches, Strategy,
        dice::{Dice, cases, is_skipped, problem},
        plan_with,
        states::States,
    };

    #[test]
    fn no_cut_is_narrower_and_no_step_shorter() {
        let mut dice = Dice(41);
        let (mut n_cuts, mut n_tight, mut n_steps, mut sum) = (0, 0, 0, 0.0);
        for case in 0..cases(300) {
            let n_blocks = 2 + dice.below(7) as usize;
            let n_devices = 2 + dice.below(3) as usize;
            let mut problem = problem(&mut dice, n_blocks, n_devices, false, true);
            let micro_batches = MicroBatches::About(1 + dice.below(12) as u32);
            if is_skipped(case) {
                continue;
            }
            let narrowest = Narrowest::new(&problem);
            let states = States::ideals(&problem, 10_000).unwrap();
            let mut seen = vec![f64::INFINITY; WINDOWS];
            for state in 1..states.len() - 1 {
                let crossing = states.crossing[state] + states.crossing_back[state];
                for (window, seen) in seen.iter_mut().enumerate() {
                    let (low, high) = (border(narrowest.total, window), border(narrowest.total, window + 1));
                    if low <= states.work[state] && states.work[state] <= high {
                        assert!(narrowest.bytes[window] <= crossing, "case {case}, window {window}");
                        *seen = seen.min(crossing);
                    }
                }
            }
            n_cuts += seen.iter().filter(|bytes| **bytes < f64::INFINITY).count();
            n_tight += seen.iter().zip(&narrowest.bytes).filter(|(seen, bound)| seen == bound).count();
            let stages = n_devices.min(n_blocks);
            problem.training.stages = Some(stages as u32);
            problem.training.micro_batches = micro_batches;
            let Ok(found) = plan_with(&problem, Strategy::OneForwardOneBackward) else { continue };
            let rate = problem.machine.least_seconds_per_byte();
            let bound = narrowest.step(1.0, rate, stages, found.micro_batches as usize);
            assert!(bound <= found.seconds() * (1.0 + 1e-9), "case {case}: {bound} {}", found.seconds());
            n_steps += 1;
            sum += bound / found.seconds();
        }
        // A bound that says nothing would hold as well.
        let says_much = n_tight * 2 > n_cuts && sum > 0.5 * f64::from(n_steps);
        assert!(is_skipped(0) || says_much, "{n_tight} {n_cuts} {sum} {n_steps}");
    }
}
