//! How long a step takes at the least because of what must cross the cuts of a graph too wide for its ideals; and a line of blocks that
//! goes through narrow cuts.
//!
//! Cuts are known by windows of the work before them: see `window`; for which steps they allow stages to exist, `narrow_steps`. The windows
//! that the cuts of the least step lie in are looked at more closely, until none is left that can be, or time is up.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
};

use simulator::order::Schedule;

use crate::{
    Block, NodeSet, Problem,
    narrow_steps::{Border, LeastPart, Steps},
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
    /// Of work: the forward pass, and all but the weights' gradients.
    forward: LeastPart,
    there_and_back: LeastPart,
    windows: RefCell<Vec<Window>>,
    /// Branches that may still be made.
    left: Cell<usize>,
    /// What no step of a question beats, and whether nothing more is to be found.
    known: RefCell<HashMap<Key, (f64, bool)>>,
}

/// A question to the bit.
type Key = ([u64; 3], [usize; 3], Schedule, bool);

/// How long a step takes at the least.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    /// In which order passes run.
    pub(crate) schedule: Schedule,
    /// Speed of the fastest device.
    pub(crate) speed: f64,
    /// Seconds a byte takes over the fastest link.
    pub(crate) rate: f64,
    /// Stages in a row.
    pub(crate) ranks: usize,
    /// Parts of the model on each device.
    pub(crate) chunks: usize,
    /// Micro-batches of a step.
    pub(crate) micro_batches: usize,
    /// Whether a port carries what a device sends to both of its neighbours.
    pub(crate) shares_ports: bool,
    /// Seconds that are known to be too few.
    pub(crate) floor: f64,
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
        let part = |part: &dyn Fn(&Block) -> f64| {
            LeastPart::new(problem.blocks.iter().map(|block| (block.seconds(), part(block))))
        };
        Self {
            forward: part(&|block| block.forward.0),
            there_and_back: part(&|block| block.forward.0 + block.input_gradient.0),
            windows: RefCell::new(windows),
            left,
            known: RefCell::default(),
            closures,
        }
    }

    /// Returns a time that no step with so many stages beats; what is `enough` need not be bettered.
    pub(crate) fn step(&self, question: &Question, enough: f64) -> f64 {
        if question.ranks < 2 || self.closures.total <= 0.0 || question.floor <= 0.0 {
            return question.floor;
        }
        let Question { schedule, speed, rate, ranks, chunks, micro_batches, shares_ports, floor } = *question;
        let numbers = [speed, rate, floor].map(f64::to_bits);
        let key = (numbers, [ranks, chunks, micro_batches], schedule, shares_ports);
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
            let Some(ends) = self.chain(question, &windows, least * (1.0 + more), &mut 0.0) else {
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
        if enough < f64::INFINITY && self.chain(question, &windows, enough, &mut 0.0).is_none() {
            return (enough, false);
        }
        let mut more = LEAST_MORE;
        let mut left = (LOOKS_EACH / looks(&self.closures)).min(self.left.get());
        self.left.set(self.left.get() - left);
        let (mut looked_at, mut carried) = (0.0, 0.0);
        let is_all = loop {
            let step = least * (1.0 + more);
            // A shorter step's cuts carry no less.
            if step > looked_at {
                carried = 0.0;
            }
            looked_at = step;
            let Some(ends) = self.chain(question, &windows, step, &mut carried) else {
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

    /// Returns the windows in which stages may end for all to keep within a step; cuts of a longer one carry so much at the least.
    fn chain(
        &self,
        question: &Question,
        windows: &[Window],
        step: f64,
        carried: &mut f64,
    ) -> Option<Vec<usize>> {
        let Question { schedule, speed, rate, ranks, chunks, micro_batches, shares_ports, .. } = *question;
        let border = |window: &Window| Border {
            low: window.low / speed,
            high: window.high / speed,
            seconds: window.bytes().map_or(f64::INFINITY, |bytes| bytes as f64 * rate),
        };
        let borders: Vec<Border> = windows.iter().map(border).collect();
        let steps = Steps {
            schedule,
            ranks,
            chunks,
            micro_batches,
            shares_ports,
            total: self.closures.total / speed,
            speed,
            forward: &self.forward,
            there_and_back: &self.there_and_back,
            borders: &borders,
        };
        steps.chain(step, carried)
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

#[cfg(test)]
mod tests {
    use schema::Execution;
    use simulator::order::Shape;

    use super::*;
    use crate::{
        MicroBatches,
        dice::{Dice, cases, is_skipped, problem},
        oracle::chains,
        placed::{Placed, score_placed},
        states::States,
    };

    /// Holds every window against all cuts of the graph; counts those with cuts, and those of which the narrowest is known.
    fn check_windows(narrowest: &Narrowest, states: &States) -> (usize, usize) {
        let (mut n_cuts, mut n_tight) = (0, 0);
        for window in narrowest.windows.borrow().iter() {
            let within = |state: &usize| (window.low..=window.high).contains(&states.work[*state]);
            let crossing = |state| states.crossing[state] + states.crossing_back[state];
            let seen = (0..states.len()).filter(within).map(crossing).fold(f64::INFINITY, f64::min);
            let bytes = window.bytes().map_or(f64::INFINITY, |bytes| bytes as f64);
            assert!(bytes <= seen, "{window:?}: {seen}");
            n_cuts += usize::from(seen < f64::INFINITY);
            n_tight += usize::from(seen < f64::INFINITY && bytes == seen);
        }
        (n_cuts, n_tight)
    }

    /// The fastest of all plans with so many stages in a row, as they are simulated.
    fn fastest(problem: &Problem, question: &Question) -> Option<f64> {
        let Question { schedule, ranks, chunks, micro_batches, .. } = *question;
        let seconds = |parts: &Vec<Vec<usize>>| {
            let place = |(index, blocks): (usize, &Vec<usize>)| Placed {
                blocks: blocks.clone(),
                devices: vec![index % ranks],
                recompute: Vec::new(),
                offload: Vec::new(),
            };
            let placed: Vec<Placed> = parts.iter().enumerate().map(place).collect();
            let m = micro_batches as u32;
            let scored = score_placed(problem, &placed, ranks, schedule, m, Execution::default());
            scored.map(|scored| scored.seconds()).ok()
        };
        chains(problem, ranks * chunks).iter().filter_map(seconds).reduce(f64::min)
    }

    #[test]
    fn no_cut_is_narrower_and_no_step_shorter() {
        let mut dice = Dice(41);
        let (mut n_cuts, mut n_tight) = (0, 0);
        let schedules = [
            (Schedule::OneForwardOneBackward, 1),
            (Schedule::GPipe, 1),
            (Schedule::InterleavedZeroBubble, 1),
            (Schedule::Interleaved1F1B, 2),
        ];
        let mut said = [(0.0, 0.0); 4];
        for case in 0..cases(80) {
            let n_blocks = 3 + dice.below(5) as usize;
            let ranks = 2 + dice.below(3.min(n_blocks as u64 - 2)) as usize;
            let mut problem = problem(&mut dice, n_blocks, ranks, false, true);
            problem.machine.overlaps = dice.below(4) > 0;
            let wanted = 1 + dice.below(12) as usize;
            // Ports of one level are shared; those of two need not be.
            if dice.flip() {
                problem.machine.levels.push(problem.machine.levels[0]);
                let place = |index: usize| vec![index as u32 / 2];
                let devices = &mut problem.machine.devices;
                devices.iter_mut().enumerate().for_each(|(index, device)| device.place = place(index));
            }
            if is_skipped(case) {
                continue;
            }
            let narrowest = Narrowest::new(&problem);
            let states = States::ideals(&problem, 10_000).unwrap();
            check_windows(&narrowest, &states);
            for ((schedule, chunks), said) in schedules.into_iter().zip(&mut said) {
                let shape = |micro_batches: usize| Shape {
                    ranks: ranks as u32,
                    chunks: chunks as u32,
                    micro_batches: micro_batches as u32,
                };
                let Some(micro_batches) = (wanted..wanted + 20).find(|&m| schedule.check(shape(m)).is_ok())
                else {
                    continue;
                };
                problem.training.micro_batches = MicroBatches::Exactly(micro_batches as u32);
                let question = Question {
                    schedule,
                    speed: 1.0,
                    rate: problem.machine.least_seconds_per_byte(),
                    ranks,
                    chunks,
                    micro_batches,
                    shares_ports: problem.machine.levels.len() == 1,
                    floor: micro_batches as f64 * problem.seconds() / ranks as f64,
                };
                let Some(fastest) = fastest(&problem, &question) else { continue };
                let bound = narrowest.step(&question, f64::INFINITY);
                // Times are rounded to nanoseconds.
                let is_below = bound <= fastest * (1.0 + 1e-6);
                assert!(is_below, "case {case}, {question:?}: {bound}, but {fastest} exists\n{problem:?}");
                *said = (said.0 + bound / fastest, said.1 + 1.0);
                let (cuts, tight) = check_windows(&narrowest, &states);
                (n_cuts, n_tight) = (n_cuts + cuts, n_tight + tight);
            }
        }
        // A bound that says nothing would hold as well.
        let says_much = n_tight * 2 > n_cuts && said.iter().all(|(sum, n)| sum / n > 0.75);
        assert!(is_skipped(0) || says_much, "{n_tight} {n_cuts} {said:?}");
    }

    #[test]
    fn no_blocks_with_so_much_work_have_less_of_a_part() {
        let mut dice = Dice(43);
        for _ in 0..200 {
            let mut blocks = Vec::new();
            for _ in 0..1 + dice.below(7) {
                let work = dice.below(9) as f64;
                blocks.push((work, work * dice.below(5) as f64 / 4.0));
            }
            let least = LeastPart::new(blocks.iter().copied());
            let mut is_met = false;
            for set in 0..1_u32 << blocks.len() {
                let inside = || blocks.iter().enumerate().filter(|(index, _)| set >> index & 1 == 1);
                let work: f64 = inside().map(|(_, block)| block.0).sum();
                let part: f64 = inside().map(|(_, block)| block.1).sum();
                assert!(least.of(work) <= part + 1e-9, "{blocks:?}: {work} {part} {}", least.of(work));
                is_met |= least.of(work) > part - 1e-9 && set > 0;
            }
            assert!(is_met, "all together have no more");
        }
    }
}
