//! A lower bound of the step from the traffic across its cuts; and, for graphs too wide to list their ideals, block orders that pass
//! through narrow cuts.
//!
//! Cuts are grouped into windows by the work before them; `feasible_step` decides for a step time whether a path of windows
//! exists. If all cuts are known, they are put into windows once and the least step is found by bisection: O(log(1/ε)) paths of
//! O(W²·p). If not, windows hold lower bounds by `min_cut`; the windows of the best path are refined by branching until none is
//! left to refine or the budget is spent. The result is a lower bound at any time. Assumes the fastest device and link
//! everywhere. Derived in `docs/bounds.md`.

use std::{
    cell::{Cell, RefCell},
    ops::Range,
};

use simulator::order::{InFlight, Schedule};

use crate::{
    Block, NodeSet, Problem,
    bound::{
        feasible_step::{Border, Held, LeastPart, Room, Steps},
        min_cut::{Closures, NarrowCut, Window},
    },
    dag::cut_states::States,
    stage::memo::Memo,
};

/// No window is narrower than this part of the work.
const FINEST: f64 = 1.0 / 1024.0;
/// Relative precision of the bound if all cuts are listed: bisection ends there.
const NEAR: f64 = 0.004;
/// Branches of a window before the path of windows is searched again.
const BRANCHES: usize = 16;
/// Relative step of the search: the bound is raised by at least this share at a time.
const LEAST_MORE: f64 = 0.002;

/// Shares above the proven bound at which chains of cuts are taken as seeds.
const LINES: [f64; 3] = [LEAST_MORE, 0.02, 0.06];

/// The narrowest cut of each window of work, refined where the bound depends on it.
pub(crate) struct CrossingBound {
    /// Seconds of all blocks on a device of speed 1.
    total: f64,
    /// Least seconds of the forward pass, and of all but the weight gradients, among blocks with a given amount of work.
    forward: LeastPart,
    there_and_back: LeastPart,
    cuts: Cuts,
    /// Budget left for all questions: pairs of windows if all cuts are listed, branches of windows if not.
    left: Cell<usize>,
    /// Budget of one question in blocks that branches visit.
    each: usize,
    /// Lower bounds by question, and whether they are final: two numbers for each grid of a model's searches.
    bounds: Memo<Key, (f64, bool)>,
}

/// The cuts of the model.
enum Cuts {
    /// All cuts by window, for devices of speed 1 and links of one byte a second; and the bytes that all blocks hold.
    All(Vec<Border>, Held),
    /// The cuts found so far, by window.
    Sought(Closures, RefCell<Vec<Window>>),
}

/// A question as a key: its numbers by their bits.
type Key = ([u64; 5], [usize; 3], Schedule, bool);

/// Asks for a lower bound of the step of a grid.
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
    /// Bytes of the largest device.
    pub(crate) limit: f64,
    /// Bytes that a device holds for each byte of its stage's parameters.
    pub(crate) copies: f64,
    /// Micro-batches in flight, by the number of devices behind each replica.
    pub(crate) in_flight: InFlight,
    /// A lower bound of the step that is known already.
    pub(crate) least: f64,
}

impl CrossingBound {
    /// Builds the bound from all cuts.
    pub(crate) fn of_all(problem: &Problem, states: &States) -> Self {
        // The first and the last state are not cuts.
        let n_cuts = states.len().saturating_sub(2);
        let n_windows = n_cuts.min(problem.training.limits.sizes.windows);
        let window = |index: usize| {
            let within = 1 + index * n_cuts / n_windows..1 + (index + 1) * n_cuts / n_windows;
            let bytes = within.clone().map(|state| states.crossing[state] + states.crossing_back[state]);
            // Sums are rounded.
            let (low, high) = (states.work[within.start] * (1.0 - 1e-12), states.work[within.end - 1]);
            Border {
                low,
                high: high * (1.0 + 1e-12),
                seconds: bytes.fold(f64::INFINITY, f64::min),
                held: Some(held(states, within)),
            }
        };
        let all = held(states, states.len() - 1..states.len());
        let pairs = problem.training.limits.cut_pairs;
        Self::with(problem, Cuts::All((0..n_windows).map(window).collect(), all), pairs)
    }

    /// Builds the bound from cuts that are found by min cuts.
    pub(crate) fn sought(problem: &Problem) -> Self {
        let closures = Closures::new(problem);
        let n_windows = problem.training.limits.sizes.windows;
        let border = |index: usize| closures.total * index as f64 / n_windows as f64;
        let mut windows: Vec<Window> =
            (0..n_windows).map(|index| Window::new(&closures, border(index), border(index + 1))).collect();
        // The problem's own order has cuts to begin with.
        offer(&closures, &mut windows, closures.cuts_of(0..closures.n_blocks()));
        let left = problem.training.limits.bounded_stages / looks(&closures);
        Self::with(problem, Cuts::Sought(closures, RefCell::new(windows)), left)
    }

    fn with(problem: &Problem, cuts: Cuts, left: usize) -> Self {
        let part = |part: &dyn Fn(&Block) -> f64| {
            LeastPart::new(problem.blocks.iter().map(|block| (block.seconds(), part(block))))
        };
        Self {
            total: problem.seconds(),
            forward: part(&|block| block.forward.0),
            there_and_back: part(&|block| block.forward.0 + block.input_gradient.0),
            cuts,
            left: Cell::new(left),
            each: problem.training.limits.bounded_stages_each,
            bounds: Memo::default(),
        }
    }

    /// Returns a lower bound of the step; stops as soon as it is `enough`.
    pub(crate) fn step(&self, question: &Question, enough: f64) -> f64 {
        if question.ranks < 2 || self.total <= 0.0 || question.least <= 0.0 {
            return question.least;
        }
        let Question { schedule, speed, rate, ranks, chunks, micro_batches, limit, copies, least, .. } =
            *question;
        let numbers = [speed, rate, limit, copies, least].map(f64::to_bits);
        let key = (numbers, [ranks, chunks, micro_batches], schedule, question.shares_ports);
        let is_enough = |&(least, is_all): &(f64, bool)| is_all || least >= enough;
        let look = |before: Option<(f64, bool)>| {
            self.look(question, before.map_or(least, |(least, _)| least), enough)
        };
        self.bounds.get_if(key, is_enough, look).0
    }

    /// Returns topological orders that pass through low-traffic cuts, each with the stage boundaries if enough were found, for use as
    /// seeds. Empty if all cuts were enumerated.
    pub(crate) fn lines(&self, question: &Question) -> Vec<Ordered> {
        let Cuts::Sought(closures, windows) = &self.cuts else { return Vec::new() };
        let least = self.step(question, f64::INFINITY);
        let borders = self.borders(question);
        let mut lines = Vec::new();
        for more in LINES {
            let Some(ends) = self.chain(question, &borders, least * (1.0 + more), &mut 0.0) else {
                continue;
            };
            let line = through(closures.n_blocks(), &windows.borrow(), &ends);
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        lines
    }

    /// Returns a lower bound of the step, at least `least`, and whether it is final.
    fn look(&self, question: &Question, least: f64, enough: f64) -> (f64, bool) {
        let borders = self.borders(question);
        if enough < f64::INFINITY && self.chain(question, &borders, enough, &mut 0.0).is_none() {
            return (enough, false);
        }
        match &self.cuts {
            Cuts::All(..) => self.halve(question, &borders, least, enough),
            Cuts::Sought(closures, windows) => {
                self.seek(question, (closures, windows), borders, least, enough)
            }
        }
    }

    /// Bisects the step, if all cuts are listed and a step of `enough` has a path.
    fn halve(&self, question: &Question, borders: &[Border], least: f64, enough: f64) -> (f64, bool) {
        let pairs = borders.len() * borders.len() * question.ranks;
        let (mut low, mut high, mut carried) = (least, enough, 0.0);
        while high - low > NEAR * low {
            let Some(left) = self.left.get().checked_sub(pairs) else { break };
            self.left.set(left);
            let middle = if high < f64::INFINITY { (low + high) / 2.0 } else { low * 2.0 };
            // No step is long enough: there are no cuts.
            if middle > least * 1e9 {
                return (least, true);
            }
            // The least traffic at a longer step also bounds that at a shorter one.
            let mut more = carried;
            match self.chain(question, borders, middle, &mut more) {
                Some(_) => (high, carried) = (middle, more),
                None => low = middle,
            }
        }
        (low, true)
    }

    /// Raises the bound and refines the windows of the best path in turn.
    fn seek(
        &self,
        question: &Question,
        (closures, windows): (&Closures, &RefCell<Vec<Window>>),
        mut borders: Vec<Border>,
        mut least: f64,
        enough: f64,
    ) -> (f64, bool) {
        let mut more = LEAST_MORE;
        let mut left = (self.each / looks(closures)).min(self.left.get());
        self.left.set(self.left.get() - left);
        let (mut looked_at, mut carried) = (0.0, 0.0);
        let is_all = loop {
            let step = least * (1.0 + more);
            // The least traffic at a longer step also bounds that at a shorter one, but not the other way round.
            if step > looked_at {
                carried = 0.0;
            }
            looked_at = step;
            let Some(ends) = self.chain(question, &borders, step, &mut carried) else {
                // No step is long enough: there are no cuts.
                if more > 1e9 {
                    least = question.least;
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
            } else if !look_closer(closures, &mut windows.borrow_mut(), &ends, &mut left) {
                break true;
            } else {
                borders = self.borders(question);
            }
        };
        self.left.set(self.left.get() + left);
        (least, is_all)
    }

    /// Returns the windows in the seconds of a question.
    fn borders(&self, question: &Question) -> Vec<Border> {
        let Question { speed, rate, .. } = *question;
        let in_seconds = |Border { low, high, seconds, held }: Border| Border {
            low: low / speed,
            high: high / speed,
            seconds: seconds * rate,
            held,
        };
        let border = |window: &Window| Border {
            low: window.low,
            high: window.high,
            seconds: window.bytes().map_or(f64::INFINITY, |bytes| bytes as f64),
            held: None,
        };
        match &self.cuts {
            Cuts::All(borders, _) => borders.iter().copied().map(in_seconds).collect(),
            Cuts::Sought(_, windows) => windows.borrow().iter().map(border).map(in_seconds).collect(),
        }
    }

    /// Returns a path of windows in which stages may end so that all keep within the step; raises `carried` to the least traffic of such cuts.
    fn chain(
        &self,
        question: &Question,
        borders: &[Border],
        step: f64,
        carried: &mut f64,
    ) -> Option<Vec<usize>> {
        let Question { schedule, speed, ranks, chunks, micro_batches, shares_ports, .. } = *question;
        let room = match &self.cuts {
            // Chunks divide their device's memory as they need, so a share of it bounds none of them.
            Cuts::All(_, all) if chunks == 1 => Some(Room {
                limit: question.limit,
                copies: question.copies,
                in_flight: (1..=ranks)
                    .rev()
                    .map(|behind| question.in_flight.count(1, behind) as f64)
                    .collect(),
                all: *all,
            }),
            _ => None,
        };
        let steps = Steps {
            schedule,
            ranks,
            chunks,
            micro_batches,
            shares_ports,
            total: self.total / speed,
            speed,
            forward: &self.forward,
            there_and_back: &self.there_and_back,
            borders,
            room: room.as_ref(),
        };
        steps.chain(step, carried)
    }
}

/// Returns the range of bytes that the blocks before some states hold if all that can be is recomputed.
fn held(states: &States, within: Range<usize>) -> Held {
    let ends = |bytes: &[f64]| {
        let bytes = bytes[within.clone()].iter();
        bytes.fold((f64::INFINITY, 0.0_f64), |(least, most), &bytes| (least.min(bytes), most.max(bytes)))
    };
    Held { parameters: ends(&states.parameters), each: ends(&states.least_kept) }
}

/// A topological order of the blocks, and the stage boundaries in it if they are known.
pub(crate) type Ordered = (Vec<usize>, Option<Vec<usize>>);

/// Puts the blocks in an order through the narrowest cuts of some windows.
fn through(n_blocks: usize, windows: &[Window], ends: &[usize]) -> Ordered {
    let mut chain: Vec<NodeSet> = vec![NodeSet::empty(n_blocks)];
    for cut in ends.iter().filter_map(|&end| windows[end].cut.as_ref()) {
        // The near side of a cut contains those of the cuts before it.
        let mut near = chain[chain.len() - 1].clone();
        near.unite(&cut.near);
        chain.push(near);
    }
    chain.push(NodeSet::full(n_blocks));
    chain.dedup();
    let borders = chain.iter().map(NodeSet::len).collect();
    let borders = (chain.len() == ends.len() + 2).then_some(borders);
    // Other narrow cuts in between also become prefixes of the order, so that a solver may choose them as boundaries.
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

/// Refines windows; tells whether any was left to refine.
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

/// Returns the cost of one branch of a window, in blocks visited.
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
        dag::cut_states::States,
        oracle::{
            all_plans::chains,
            random_problems::{Dice, cases, is_skipped, problem},
        },
        plan_file::{placed::GivenStage, score::score_placed},
    };

    /// Compares every window with all cuts of the graph; counts windows with cuts, and those whose bound is the narrowest cut's
    /// traffic.
    fn check_windows(narrowest: &CrossingBound, states: &States) -> (usize, usize) {
        let (mut n_cuts, mut n_tight) = (0, 0);
        let Cuts::Sought(_, windows) = &narrowest.cuts else { panic!("all cuts are known") };
        for window in windows.borrow().iter() {
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

    /// Simulates every cut into the question's number of stages, and returns the fastest step.
    fn fastest(problem: &Problem, question: &Question) -> Option<f64> {
        let Question { schedule, ranks, chunks, micro_batches, .. } = *question;
        let seconds = |parts: &Vec<Vec<usize>>, is_again: bool| {
            let place = |(index, blocks): (usize, &Vec<usize>)| GivenStage {
                blocks: blocks.clone(),
                devices: vec![index % ranks],
                recompute: if is_again { blocks.clone() } else { Vec::new() },
                light: Vec::new(),
                unit: schema::RecomputeUnit::Block,
                offload: Vec::new(),
            };
            let placed: Vec<GivenStage> = parts.iter().enumerate().map(place).collect();
            let m = micro_batches as u32;
            let scored = score_placed(problem, &placed, ranks, schedule, m, Execution::default());
            scored.map(|scored| scored.seconds()).ok()
        };
        let cuts = chains(problem, ranks * chunks);
        let all = cuts.iter().flat_map(|parts| [seconds(parts, false), seconds(parts, true)]);
        all.flatten().reduce(f64::min)
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
        let (mut said, mut said_of_all) = ([(0.0, 0.0); 4], (0.0, 0.0));
        for case in 0..cases(80) {
            let n_blocks = 3 + dice.below(5) as usize;
            let ranks = 2 + dice.below(3.min(n_blocks as u64 - 2)) as usize;
            let mut problem = problem(&mut dice, n_blocks, ranks, false, true);
            problem.machine.overlaps = dice.below(4) > 0;
            // The bound does not know what adding gradients up takes.
            problem.machine.devices.iter_mut().for_each(|device| device.memory_bandwidth.0 = 1e3);
            let wanted = 1 + dice.below(12) as usize;
            // With little memory, cuts whose stages do not fit do not count.
            if dice.flip() {
                let memory = 100 + dice.below(300);
                problem.machine.devices.iter_mut().for_each(|device| device.memory.0 = memory);
            }
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
            let narrowest = CrossingBound::sought(&problem);
            let states = States::ideals(&problem, 10_000).unwrap();
            check_windows(&narrowest, &states);
            let of_all = CrossingBound::of_all(&problem, &states);
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
                    limit: problem.machine.devices.iter().map(|d| d.memory.0 as f64).fold(0.0, f64::max),
                    copies: problem.training.copies(1),
                    in_flight: schedule.in_flight(ranks, chunks, micro_batches, 1),
                    least: micro_batches as f64 * problem.seconds() / ranks as f64,
                };
                let Some(fastest) = fastest(&problem, &question) else { continue };
                let bound = narrowest.step(&question, f64::INFINITY);
                // Times are rounded to nanoseconds.
                let is_below = bound <= fastest * (1.0 + 1e-6);
                assert!(is_below, "case {case}, {question:?}: {bound}, but {fastest} exists\n{problem:?}");
                *said = (said.0 + bound / fastest, said.1 + 1.0);
                let bound = of_all.step(&question, f64::INFINITY);
                let is_below = bound <= fastest * (1.0 + 1e-6);
                assert!(is_below, "case {case}, {question:?}: {bound} of all, but {fastest}\n{problem:?}");
                said_of_all = (said_of_all.0 + bound / fastest, said_of_all.1 + 1.0);
                let (cuts, tight) = check_windows(&narrowest, &states);
                (n_cuts, n_tight) = (n_cuts + cuts, n_tight + tight);
            }
        }
        // A bound of 0 would pass as well: ask that it be tight.
        let shares = said.iter().chain([&said_of_all]).map(|(sum, n)| sum / n);
        let says_much = n_tight * 2 > n_cuts && shares.clone().all(|share| share > 0.75);
        assert!(is_skipped(0) || says_much, "{n_tight} {n_cuts} {:?}", shares.collect::<Vec<f64>>());
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
