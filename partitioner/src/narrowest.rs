//! How long a step of 1F1B takes at the least because of what must cross the cuts of a graph too wide for its ideals; and a line of
//! blocks that goes through narrow cuts.
//!
//! Cuts are known by windows of the work before them: see `window`. Under 1F1B stage `s` of `p` runs `k_s = p-s` forward passes before the
//! first backward one, and from then on one of each in turn, so that `B_n` of micro-batch `n` goes before `F_(n+k_s)` and behind
//! `F_(n+k_s-1)`. Three ways that a step of `m` micro-batches cannot be shorter than lead through stage `s`, with `T` the time of a stage for
//! one micro-batch, `H` the work and transfers before `s` both ways, and `R` those behind it:
//!
//! - there and back, before and behind all passes of its own: `H + m·T_s`;
//! - one micro-batch all the way: `H + T_s + R_s`; of the others either the forward or the backward passes come before or behind it,
//!   `(m-1)·T_s/2` at the least;
//! - where `m > k_s`, micro-batch 0 all the way from `s` and back, then turns of `F` from `s` to a stage `t`, the `B` that `t` runs
//!   next, back to `s`, and the `F` that `s` runs next, which is that of `t-s+1` micro-batches later; at last micro-batch `m-1` all the way:
//!   `H + 2·(T_s + R_s) + ⌊(m-1-k_s)/l⌋·W + ((m-1-k_s) mod l)·T_s`, where `l = t-s+1` and `W` is the work of stages `s` to `t` and the transfers
//!   between them.
//!
//! The third is asked for `t` being `s`, the stage behind it and the last. The least step for which cuts exist is found from
//! the last stage to the first: of the ways to go on behind a stage the one with the least transfers, as far as it must not end later. The
//! windows that such cuts lie in are looked at more closely, until none is left that can be, or time is up. O(W²/p · log W) a look for W windows.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
};

use crate::{
    NodeSet, Problem,
    window::{Closures, NarrowCut, Window},
};

/// Windows of equal work to begin with.
const WINDOWS: usize = 128;
/// No window is narrower than this part of the work.
const FINEST: f64 = 1.0 / 1024.0;
/// Work of all branches together and of those for one question: blocks, and thousands of pairs of them, that each looks at.
const LOOKS: usize = 16_000_000;
const LOOKS_EACH: usize = 3_000_000;
/// Branches of a window before the chain of cuts is looked for again.
const BRANCHES: usize = 16;
/// By which share a step is asked to be longer than what is proven at the least: less is of no interest.
const LEAST_MORE: f64 = 0.002;

/// Shares by which a step is longer than what is proven, for cuts that may be good ones.
const LINES: [f64; 3] = [LEAST_MORE, 0.02, 0.06];

/// The narrowest cuts by windows of the work before them, looked at as closely as they matter.
pub(crate) struct Narrowest {
    closures: Closures,
    windows: RefCell<Vec<Window>>,
    /// Branches that may still be made.
    left: Cell<usize>,
    /// What no step of a question beats, and whether nothing more is to be found.
    known: RefCell<HashMap<Key, (f64, bool)>>,
}

/// A question to the bit.
type Key = ([u64; 3], usize, usize);

/// How long a step takes at the least.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    /// Speed of the fastest device.
    pub(crate) speed: f64,
    /// Seconds a byte takes over the fastest link.
    pub(crate) rate: f64,
    /// Stages in a row.
    pub(crate) ranks: usize,
    /// Micro-batches of a step.
    pub(crate) micro_batches: usize,
    /// Seconds that are known to be too few.
    pub(crate) floor: f64,
}

/// What is known of a window, for one question.
#[derive(Clone, Copy, Debug)]
struct Border {
    low: f64,
    high: f64,
    /// Seconds that what crosses takes, there and back.
    seconds: f64,
}

/// Steps of one question, in its seconds.
struct Steps<'a> {
    total: f64,
    ranks: usize,
    micro_batches: usize,
    borders: &'a [Border],
}

impl Narrowest {
    pub(crate) fn new(problem: &Problem) -> Self {
        let closures = Closures::new(problem);
        let border = |index: usize| closures.total * index as f64 / WINDOWS as f64;
        let mut windows: Vec<Window> =
            (0..WINDOWS).map(|index| Window::new(&closures, border(index), border(index + 1))).collect();
        // The problem's own order has cuts to begin with.
        offer(&closures, &mut windows, closures.cuts_of(0..closures.n_blocks()));
        let left = Cell::new(LOOKS / looks(&closures));
        Self { windows: RefCell::new(windows), left, known: RefCell::default(), closures }
    }

    /// Returns a time that no step of 1F1B with so many stages beats; what is `enough` need not be bettered.
    pub(crate) fn step(&self, question: &Question, enough: f64) -> f64 {
        if question.ranks < 2 || self.closures.total <= 0.0 || question.floor <= 0.0 {
            return question.floor;
        }
        let Question { speed, rate, ranks, micro_batches, floor } = *question;
        let key = ([speed, rate, floor].map(f64::to_bits), ranks, micro_batches);
        let known = self.known.borrow().get(&key).copied();
        match known {
            Some((least, is_all)) if is_all || least >= enough => least,
            _ => {
                let (least, is_all) = self.look(question, known.map_or(floor, |known| known.0), enough);
                self.known.borrow_mut().insert(key, (least, is_all));
                least
            }
        }
    }

    /// Returns orders of the blocks in which narrow cuts lie where so many stages could end, and those ends where there are as many.
    pub(crate) fn lines(&self, question: &Question) -> Vec<(Vec<usize>, Option<Vec<usize>>)> {
        let least = self.step(question, f64::INFINITY);
        let windows = self.windows.borrow();
        let mut lines = Vec::new();
        for more in LINES {
            let Some(ends) = question.chain(&windows, self.closures.total, least * (1.0 + more)) else {
                continue;
            };
            let line = self.through(&windows, &ends);
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        lines
    }

    /// Puts the blocks in an order through the narrowest cuts of some windows.
    fn through(&self, windows: &[Window], ends: &[usize]) -> (Vec<usize>, Option<Vec<usize>>) {
        let n_blocks = self.closures.n_blocks();
        let mut chain: Vec<NodeSet> = vec![NodeSet::empty(n_blocks)];
        for cut in ends.iter().filter_map(|&end| windows[end].cut.as_ref()) {
            // What lies before a cut lies before those behind it.
            let mut near = chain[chain.len() - 1].clone();
            near.unite(&cut.near);
            chain.push(near);
        }
        chain.push(NodeSet::full(n_blocks));
        chain.dedup();
        let borders = chain.iter().map(NodeSet::len).collect();
        let borders = (chain.len() == ends.len() + 2).then_some(borders);
        // Other narrow cuts on the way are ends that a solver may choose.
        for cut in windows.iter().filter_map(|window| window.cut.as_ref()) {
            let next = chain.iter().position(|other| cut.near.is_subset(other)).unwrap_or(chain.len() - 1);
            if next > 0 && chain[next - 1].is_subset(&cut.near) && cut.near != chain[next] {
                chain.insert(next, cut.near.clone());
            }
        }
        let mut line = Vec::with_capacity(n_blocks);
        for pair in chain.windows(2) {
            line.extend(pair[1].difference(&pair[0]));
        }
        (line, borders)
    }

    /// Returns what no step beats, and whether nothing more is to be found; `least` is known.
    fn look(&self, question: &Question, mut least: f64, enough: f64) -> (f64, bool) {
        let mut windows = self.windows.borrow_mut();
        let total = self.closures.total;
        if enough < f64::INFINITY && question.chain(&windows, total, enough).is_none() {
            return (enough, false);
        }
        let mut more = LEAST_MORE;
        let mut left = (LOOKS_EACH / looks(&self.closures)).min(self.left.get());
        self.left.set(self.left.get() - left);
        let is_all = loop {
            let step = least * (1.0 + more);
            let Some(ends) = question.chain(&windows, total, step) else {
                // Not even the longest step is enough: no cuts.
                if more > 1e9 {
                    least = question.floor;
                    break true;
                }
                (least, more) = (step, more * 2.0);
                if least >= enough {
                    break false;
                }
                continue;
            };
            if more > LEAST_MORE {
                more = (more / 4.0).max(LEAST_MORE);
            } else if !look_closer(&self.closures, &mut windows, &ends, &mut left) {
                break true;
            }
        };
        self.left.set(self.left.get() + left);
        (least, is_all)
    }
}

impl Question {
    /// Returns the windows in which each stage but the last may end for all to keep within a step.
    fn chain(&self, windows: &[Window], total: f64, step: f64) -> Option<Vec<usize>> {
        let border = |window: &Window| Border {
            low: window.low / self.speed,
            high: window.high / self.speed,
            seconds: window.bytes().map_or(f64::INFINITY, |bytes| bytes as f64 * self.rate),
        };
        let borders: Vec<Border> = windows.iter().map(border).collect();
        let Self { ranks, micro_batches, .. } = *self;
        Steps { total: total / self.speed, ranks, micro_batches, borders: &borders }.chain(step)
    }
}

/// Looks at windows more closely; tells whether there was anything left to look at.
fn look_closer(closures: &Closures, windows: &mut Vec<Window>, ends: &[usize], left: &mut usize) -> bool {
    let mut may_look = || {
        let may = *left > 0;
        *left = left.saturating_sub(1);
        may
    };
    let mut met: Vec<NarrowCut> = Vec::new();
    let mut has_looked = false;
    // From the last: halves take the place of their window.
    for &end in ends.iter().rev() {
        for _ in 0..BRANCHES {
            if windows[end].is_closed() || !may_look() {
                break;
            }
            met.extend(windows[end].branch(closures));
            has_looked = true;
        }
        let is_wide = windows[end].high - windows[end].low > FINEST * closures.total * 1.5;
        if windows[end].is_closed() && is_wide && may_look() {
            let halves = windows[end].halves(closures);
            windows.splice(end..=end, halves);
            has_looked = true;
        }
    }
    offer(closures, windows, met);
    has_looked
}

/// Work of one branch.
fn looks(closures: &Closures) -> usize {
    let n_blocks = closures.n_blocks().max(1);
    n_blocks + n_blocks * n_blocks / 1000
}

/// Gives cuts to the windows that hold them.
fn offer(closures: &Closures, windows: &mut [Window], cuts: Vec<NarrowCut>) {
    for cut in cuts {
        let at = windows.partition_point(|window| window.high < cut.work).min(windows.len() - 1);
        if windows[at].holds(closures, &cut) {
            windows[at].offer(cut);
        }
    }
}

/// A way to go on from where a stage begins.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// The window in which the stage ends, and its lower border.
    end: usize,
    low: f64,
    /// Which of the ways from there.
    next: usize,
    /// Seconds of transfers at and behind the stage's beginning, both ways: the least of this way and of those that end earlier, and which
    /// way that is.
    least: (f64, usize),
}

impl Steps<'_> {
    /// Returns the windows in which each stage but the last may end for all to keep within a step, as far as this bound sees.
    fn chain(&self, step: f64) -> Option<Vec<usize>> {
        let Self { total, ranks, borders, .. } = *self;
        // Ways to go on by the window in which a stage begins; of the last stage first.
        let mut ways: Vec<Vec<Vec<Way>>> = Vec::new();
        for stage in (0..ranks).rev() {
            let begins = if stage == 0 { 1 } else { borders.len() };
            let from = |window: usize| {
                let begin = match stage {
                    0 => Border { low: 0.0, high: 0.0, seconds: 0.0 },
                    _ => borders[window],
                };
                // No stage has more work than it does in a step, and one direction takes half of a transfer at the least.
                let m = self.micro_batches as f64;
                let is_far = m * begin.low > step * stage as f64;
                let is_near = m * (total - begin.high) > step * (ranks - stage) as f64;
                match is_far || is_near || m * begin.seconds / 2.0 > step {
                    true => Vec::new(),
                    false => self.ways(step, stage, (begin, window), ways.last()),
                }
            };
            let found = (0..begins).map(from).collect();
            ways.push(found);
        }
        let mut way = ways[ranks - 1][0].last()?.least.1;
        let (mut window, mut ends) = (0, Vec::new());
        for stage in 0..ranks - 1 {
            let Way { end, next, .. } = ways[ranks - 1 - stage][window][way];
            ends.push(end);
            (window, way) = (end, next);
        }
        Some(ends)
    }

    /// Returns the ways to go on from a window, given those of the next stage.
    fn ways(
        &self,
        step: f64,
        stage: usize,
        (begin, window): (Border, usize),
        behind: Option<&Vec<Vec<Way>>>,
    ) -> Vec<Way> {
        let Self { total, ranks, micro_batches, borders } = *self;
        let m = micro_batches as f64;
        let k = ranks - stage;
        let mut found: Vec<Way> = Vec::new();
        let mut add = |end: usize, low: f64, next: usize, rest: f64| {
            let seconds = begin.seconds + rest;
            let before = found.last().map_or((f64::INFINITY, 0), |last: &Way| last.least);
            let least = if seconds < before.0 { (seconds, found.len()) } else { before };
            found.push(Way { end, low, next, least });
        };
        // Work of this stage at the least, and all passes of its own.
        let own = |end: f64| (end - begin.high).max(0.0);
        let is_short = |end: f64| begin.low + begin.seconds + m * own(end) <= step;
        // What is left of a step for turns of so many stages, and how many turns.
        let turns = |own: f64, rest: f64, stages: usize| {
            let all_the_way = total + begin.seconds + rest;
            if micro_batches <= k {
                return (step - all_the_way - (m - 1.0) / 2.0 * own, 0.0);
            }
            let more = micro_batches - 1 - k;
            let left = step - all_the_way - (total - begin.high + rest) - (more % stages) as f64 * own;
            (left, (more / stages) as f64)
        };
        let keeps = |own: f64, rest: f64| {
            let ((left, count), (left_last, count_last)) = (turns(own, rest, 1), turns(own, rest, k));
            count * own <= left && count_last * (total - begin.high + rest) <= left_last
        };
        let Some(behind) = behind else {
            if is_short(total) && keeps(own(total), 0.0) {
                add(0, total, 0, 0.0);
            }
            return found;
        };
        for (end, ways) in behind.iter().enumerate().skip(window) {
            let low = borders[end].low;
            if !is_short(low) {
                break;
            }
            let Some(last) = ways.last() else { continue };
            // The next stage must end early enough for turns between the two.
            let (left, count) = turns(own(low), last.least.0, 2);
            let may_end = |way: &Way| count * (way.low - begin.high + borders[end].seconds) <= left;
            let n_ways = if k > 2 { ways.partition_point(may_end) } else { ways.len() };
            let Some(way) = ways[..n_ways].last() else { continue };
            let (rest, next) = way.least;
            if keeps(own(low), rest) {
                add(end, low, next, rest);
            }
        }
        found
    }
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
            let check = || {
                let (mut n_cuts, mut n_tight) = (0, 0);
                for window in narrowest.windows.borrow().iter() {
                    let within = |state: &usize| (window.low..=window.high).contains(&states.work[*state]);
                    let crossing = |state| states.crossing[state] + states.crossing_back[state];
                    let seen = (0..states.len()).filter(within).map(crossing).fold(f64::INFINITY, f64::min);
                    let bytes = window.bytes().map_or(f64::INFINITY, |bytes| bytes as f64);
                    assert!(bytes <= seen, "case {case}, {window:?}: {seen}");
                    n_cuts += usize::from(seen < f64::INFINITY);
                    n_tight += usize::from(seen < f64::INFINITY && bytes == seen);
                }
                (n_cuts, n_tight)
            };
            check();
            let stages = n_devices.min(n_blocks);
            problem.training.stages = Some(stages as u32);
            problem.training.micro_batches = micro_batches;
            let Ok(found) = plan_with(&problem, Strategy::OneForwardOneBackward) else { continue };
            let rate = problem.machine.least_seconds_per_byte();
            let question = Question {
                speed: 1.0,
                rate,
                ranks: stages,
                micro_batches: found.micro_batches as usize,
                floor: problem.seconds(),
            };
            let bound = narrowest.step(&question, f64::INFINITY);
            assert!(bound <= found.seconds() * (1.0 + 1e-9), "case {case}: {bound} {}", found.seconds());
            let (cuts, tight) = check();
            (n_cuts, n_tight) = (n_cuts + cuts, n_tight + tight);
            n_steps += 1;
            sum += bound / found.seconds();
        }
        // A bound that says nothing would hold as well.
        let says_much = n_tight * 2 > n_cuts && sum > 0.9 * f64::from(n_steps);
        assert!(is_skipped(0) || says_much, "{n_tight} {n_cuts} {sum} {n_steps}");
    }
}
