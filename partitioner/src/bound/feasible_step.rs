//! Whether cuts exist that keep to a step time, transfers and memory included, and in which windows of work they lie.
//!
//! A dynamic program from the last stage to the first; `docs/bounds.md` derives the rules. Assumes the fastest device and link.
//!
//! A window holds the range of seconds of work before its cuts, and the least seconds of transfers across one of them, both ways.
//! For one micro-batch, let `T_s` be the time of stage `s` of `p`, `F_s` that of its forward pass, `D_s` its time without the
//! weight gradients if the schedule defers them (zero-bubble) and `T_s` if not, `c_s` the transfers of the boundary before it,
//! both ways, `H_s` the sum of all `D` and `c` before `s` without `c_s`, and `A` the sum of all `D` and `c`. No step of `m`
//! micro-batches is shorter than
//!
//! - `H_s + c_s + m·D_s`: the first micro-batch's way to `s` comes before all passes of `s`, and the last one's way back behind
//!   them. Zero-bubble's weight gradients need no way back: `Σ_{t<s} F_t + m·T_s`.
//! - `A + (m-1)·D_s/2`: one micro-batch all the way; of the others either the forward or the backward passes come before or behind it. Likewise
//!   `A + (m-1)·c_s/2`: a link takes one value at a time.
//! - `A + (m-1)·T_s` and `A + (m-1)·c_s` under GPipe: its last stage begins its backward passes behind its last forward one, so each
//!   half waits for its slowest stage, and for its slowest link.
//! - `H_s + m·(c_s + c_(s+1))/2` where a device's port carries what it sends to both neighbours: it sends nothing before the
//!   first micro-batch's way to `s` or after the last one's way back, and receives nothing either. Not under GPipe, whose port
//!   carries one at a time.
//! - Under 1F1B and zero-bubble stage `s` runs `k_s = p-s` forward passes before the first backward one (of the inputs' gradients), and from
//!   then on one of each in turn: `B_n` goes before `F_(n+k_s)` and behind `F_(n+k_s-1)`. Where `m > k_s`, micro-batch 0 goes all the way from
//!   `s` and back, then turns of `F` from `s` to a stage `t`, the `B` that `t` runs next, back to `s`, and the `F` that `s` runs next, which
//!   is that of `l = t-s+1` micro-batches later; at last micro-batch `m-1` goes all the way: with `R_s` all `D` and `c` behind `s`,
//!   `H_s + c_s + 2·(D_s + R_s) + ⌊(m-1-k_s)/l⌋·W + ((m-1-k_s) mod l)·D_s`, where `W` is `D` of stages `s` to `t` and `c` between them.
//!   Zero-bubble runs a weight's gradient in each turn from the `s`-th on. Asked for `t` being `s`, the stage behind it and the last.
//! - Interleaved: `m·T_s`, `A + (m-1)·c_s/2`, and all that crosses, `m·Σc`, shared by the ports of `p` devices, each way.
//!
//! Where all cuts are known and a device has one stage, each stage must also fit its memory: parameters, gradients and optimizer
//! state, and for each micro-batch in flight the activations that remain if all that can be is recomputed.
//!
//! Chains of windows are built from the last stage to the first: of the continuations behind a stage, the one with the least
//! transfers among those that end early enough is taken. The least transfers of all chains then count in `A`, and the search is
//! repeated. O(W²·p) for W windows.

use simulator::order::Schedule;

/// A window of cuts, in the seconds of one question.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Border {
    /// Seconds of work before its cuts, at the least and at the most.
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// Least seconds of transfers across one of its cuts, both ways.
    pub(crate) seconds: f64,
    /// Bytes that the blocks before its cuts hold; `None` if its cuts are not all listed.
    pub(crate) held: Option<Held>,
}

/// The least and the most bytes of some blocks: of parameters, and of one micro-batch's activations if all that can be is
/// recomputed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    pub(crate) parameters: (f64, f64),
    pub(crate) each: (f64, f64),
}

impl Held {
    /// Returns the least bytes of the blocks between two cuts, with `copies` copies of their parameters.
    fn between(before: Self, behind: Self, copies: f64, in_flight: f64) -> f64 {
        let parameters = (behind.parameters.0 - before.parameters.1).max(0.0);
        parameters * copies + (behind.each.0 - before.each.1).max(0.0) * in_flight
    }
}

/// The memory of devices in a row.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    /// Bytes of the largest device.
    pub(crate) limit: f64,
    /// Bytes held for each byte of parameters.
    pub(crate) copies: f64,
    /// Micro-batches in flight at each stage.
    pub(crate) in_flight: Vec<f64>,
    /// Bytes that all blocks hold.
    pub(crate) all: Held,
}

/// The least time of one part of the work (the forward pass, say) among all sets of blocks with a given amount of work: a
/// fractional knapsack that takes the blocks with the smallest share of that part first.
#[derive(Clone, Debug)]
pub(crate) struct LeastPart {
    /// Work between two entries.
    step: f64,
    /// The least part for each amount of work, and the slope from there on, which never falls.
    table: Vec<(f64, f64)>,
}

impl LeastPart {
    const ENTRIES: usize = 1024;

    /// Builds the table from each block's work and its part.
    pub(crate) fn new(blocks: impl Iterator<Item = (f64, f64)>) -> Self {
        let mut blocks: Vec<(f64, f64)> = blocks.filter(|block| block.0 > 0.0).collect();
        blocks.sort_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)));
        let total: f64 = blocks.iter().map(|block| block.0).sum();
        let step = total / Self::ENTRIES as f64;
        let (mut before, mut next) = ((0.0, 0.0), blocks.iter().peekable());
        let entry = |index: usize| {
            let at = step * index as f64;
            while let Some(block) = next.next_if(|block| before.0 + block.0 <= at) {
                before = (before.0 + block.0, before.1 + block.1);
            }
            let share = next.peek().map_or(0.0, |block| block.1 / block.0);
            (before.1 + (at - before.0) * share, share)
        };
        Self { step, table: (0..=Self::ENTRIES).map(entry).collect() }
    }

    /// Returns the least part for an amount of work.
    pub(crate) fn of(&self, work: f64) -> f64 {
        if work <= 0.0 || self.step <= 0.0 {
            return 0.0;
        }
        let index = ((work / self.step) as usize).min(Self::ENTRIES);
        let (part, share) = self.table[index];
        part + share * (work - self.step * index as f64)
    }
}

/// Decides for one question which step times are feasible; times are in the question's seconds.
pub(crate) struct Steps<'a> {
    pub(crate) schedule: Schedule,
    pub(crate) ranks: usize,
    pub(crate) chunks: usize,
    pub(crate) micro_batches: usize,
    /// Whether a port carries what a device sends to both of its neighbours.
    pub(crate) shares_ports: bool,
    /// Seconds of one micro-batch.
    pub(crate) total: f64,
    /// Speed of a device; `forward` and `there_and_back` are for a device of speed 1.
    pub(crate) speed: f64,
    pub(crate) forward: &'a LeastPart,
    pub(crate) there_and_back: &'a LeastPart,
    pub(crate) borders: &'a [Border],
    /// Memory of the devices; `None` if it is not bounded.
    pub(crate) room: Option<&'a Room>,
}

/// One end of a stage, with the best chain of windows behind it.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// The window in which the stage ends, and its lower border.
    end: usize,
    low: f64,
    /// Index of the way that continues the chain, among those of window `end`.
    next: usize,
    /// The least seconds of transfers from the stage's beginning on, both ways, among this way and those that end earlier; and
    /// that way's index.
    least: (f64, usize),
}

/// Windows in which a stage may begin, and the least seconds of transfers from any of them on.
struct Behind {
    ends: Vec<usize>,
    least: f64,
}

/// Where a stage begins: a window and its index.
type Begin = (Border, usize);

/// Most repetitions of the search with the least transfers that the one before has proven.
const AGAIN: usize = 3;
/// A rise of these transfers by less than this share of the step is not worth a repetition.
const ENOUGH: f64 = 0.001;

impl Steps<'_> {
    /// Returns a chain of windows in which stages may end so that all keep within the step, by the rules above: one window for
    /// each stage but the last, if a device has one stage.
    ///
    /// `carried` is a lower bound of the transfers across all cuts of a longer step; it is raised to that of this step.
    pub(crate) fn chain(&self, step: f64, carried: &mut f64) -> Option<Vec<usize>> {
        if self.chunks > 1 {
            return self.path(step);
        }
        for _ in 0..AGAIN {
            let (ends, least) = self.chain_with(step, *carried)?;
            let more = least - carried.max(0.0);
            *carried = carried.max(least);
            if more <= ENOUGH * step {
                return Some(ends);
            }
        }
        self.chain_with(step, *carried).map(|(ends, _)| ends)
    }

    fn is_zero_bubble(&self) -> bool {
        self.schedule == Schedule::InterleavedZeroBubble
    }

    /// Returns the least seconds of the passes that other stages wait for, for this much work.
    fn passes(&self, work: f64) -> f64 {
        if self.is_zero_bubble() { self.there_and_back.of(work * self.speed) / self.speed } else { work }
    }

    /// Tells whether transfers of so many seconds at one boundary leave room in the step; all boundaries together take `carried`
    /// or more.
    fn is_narrow(&self, step: f64, seconds: f64, carried: f64) -> bool {
        let m = self.micro_batches as f64;
        let each = if self.schedule == Schedule::GPipe { seconds } else { seconds / 2.0 };
        self.passes(self.total) + carried.max(seconds) + (m - 1.0) * each <= step
    }

    /// The same as `chain` with `carried` as it is given; also returns the least seconds of transfers of any chain.
    fn chain_with(&self, step: f64, carried: f64) -> Option<(Vec<usize>, f64)> {
        let Self { total, ranks, borders, .. } = *self;
        let m = self.micro_batches as f64;
        let is_open: Vec<bool> =
            borders.iter().map(|border| self.is_narrow(step, border.seconds, carried)).collect();
        // Ways by stage, the last stage first, then by the window in which the stage begins.
        let mut ways: Vec<Vec<Vec<Way>>> = Vec::new();
        let mut behind = Behind { ends: Vec::new(), least: 0.0 };
        for stage in (0..ranks).rev() {
            let begins = if stage == 0 { 1 } else { borders.len() };
            let from = |window: usize| {
                let begin = match stage {
                    0 => Border { low: 0.0, high: 0.0, seconds: 0.0, held: Some(Held::default()) },
                    _ => borders[window],
                };
                // The stages before this one, and those from it on, must do their work within the step.
                let is_far = m * begin.low > step * stage as f64;
                let is_near = m * (total - begin.high) > step * (ranks - stage) as f64;
                if is_far || is_near || stage > 0 && !is_open[window] {
                    return Vec::new();
                }
                let ends = ways.last().map(|ways| (&behind, ways));
                self.ways((step, carried), stage, (begin, window), ends)
            };
            let found: Vec<Vec<Way>> = (0..begins).map(from).collect();
            let ends: Vec<usize> = (0..begins).filter(|&end| !found[end].is_empty()).collect();
            let least = ends.iter().filter_map(|&end| Some(found[end].last()?.least.0));
            behind = Behind { least: least.fold(f64::INFINITY, f64::min), ends };
            ways.push(found);
        }
        let (least, mut way) = ways[ranks - 1][0].last()?.least;
        let (mut window, mut ends) = (0, Vec::new());
        for stage in 0..ranks - 1 {
            let Way { end, next, .. } = ways[ranks - 1 - stage][window][way];
            ends.push(end);
            (window, way) = (end, next);
        }
        Some((ends, least))
    }

    /// Returns the ways to go on from a window, given those of the next stage.
    fn ways(
        &self,
        (step, carried): (f64, f64),
        stage: usize,
        (begin, window): Begin,
        behind: Option<(&Behind, &Vec<Vec<Way>>)>,
    ) -> Vec<Way> {
        let Self { total, ranks, micro_batches, borders, .. } = *self;
        let m = micro_batches as f64;
        let k = ranks - stage;
        let mut found: Vec<Way> = Vec::new();
        let mut add = |end: usize, low: f64, next: usize, rest: f64| {
            let seconds = begin.seconds + rest;
            let before = found.last().map_or((f64::INFINITY, 0), |last: &Way| last.least);
            let least = if seconds < before.0 { (seconds, found.len()) } else { before };
            found.push(Way { end, low, next, least });
        };
        let head = self.passes(begin.low);
        let head_forward =
            if self.is_zero_bubble() { self.forward.of(begin.low * self.speed) / self.speed } else { 0.0 };
        // Passes from this stage to the end, and of all stages.
        let (from_here, all) = (self.passes(total - begin.high), self.passes(total));
        let is_gpipe = self.schedule == Schedule::GPipe;
        // Work of this stage at the least, and its passes.
        let own = |end: f64| {
            let work = (end - begin.high).max(0.0);
            (work, self.passes(work))
        };
        let is_short = |(work, passes): (f64, f64)| {
            head + begin.seconds + m * passes <= step
                && (!self.is_zero_bubble() || head_forward + m * work <= step)
        };
        let fits_port =
            |end: f64| !self.shares_ports || is_gpipe || head + m * (begin.seconds + end) / 2.0 <= step;
        // Turns of this many stages, and the passes of this one that are left beside them.
        let more = (micro_batches - 1).checked_sub(k).filter(|_| !is_gpipe);
        let turns = |stages: usize| match more {
            Some(more) => (more / stages, (more % stages) as f64),
            None if is_gpipe => (0, m - 1.0),
            None => (0, (m - 1.0) / 2.0),
        };
        let (alone, between_two, to_the_end) = (turns(1), turns(2), turns(k));
        // Seconds of the step that are left for turns.
        let left = |(_, passes): (f64, f64), rest: f64, over: f64| {
            let again = if more.is_some() { from_here + rest } else { 0.0 };
            step - (all + carried.max(begin.seconds + rest)) - again - over * passes
        };
        // The first turns have no weight gradients yet.
        let (first, others) = (alone.0.min(stage) as f64, alone.0.saturating_sub(stage) as f64);
        let keeps = |own: (f64, f64), rest: f64| {
            first * own.1 + others * own.0 <= left(own, rest, alone.1)
                && to_the_end.0 as f64 * (from_here + rest) <= left(own, rest, to_the_end.1)
        };
        let fits = |end: Option<Held>| match (self.room, begin.held, end) {
            (Some(room), Some(begin), Some(end)) => {
                Held::between(begin, end, room.copies, room.in_flight[stage]) <= room.limit * (1.0 + 1e-9)
            }
            _ => true,
        };
        let Some((behind, ways_behind)) = behind else {
            let all = self.room.map(|room| room.all);
            if is_short(own(total)) && fits_port(0.0) && keeps(own(total), 0.0) && fits(all) {
                add(0, total, 0, 0.0);
            }
            return found;
        };
        let first = behind.ends.partition_point(|&end| end < window);
        for &end in &behind.ends[first..] {
            let own = own(borders[end].low);
            // Prune: a later end means more work for this stage, so it leaves no more time.
            if !is_short(own) || !keeps(own, behind.least) {
                break;
            }
            let ways = &ways_behind[end];
            let Some(least) = ways.last().map(|last| last.least.0) else { continue };
            if !fits_port(borders[end].seconds) || !fits(borders[end].held) || !keeps(own, least) {
                continue;
            }
            // The next stage must end early enough for turns between the two.
            let (count, left) = (between_two.0, left(own, least, between_two.1));
            let between = |way: &Way| self.passes(way.low - begin.high) + borders[end].seconds;
            let may_end = |way: &Way| count as f64 * between(way) <= left;
            let n_ways = if k > 2 && !ways.last().is_some_and(may_end) {
                ways.partition_point(may_end)
            } else {
                ways.len()
            };
            let Some(way) = ways[..n_ways].last() else { continue };
            let (rest, next) = way.least;
            if n_ways == ways.len() || keeps(own, rest) {
                add(end, borders[end].low, next, rest);
            }
        }
        found
    }

    /// Interleaved schedules: returns a feasible sequence of boundary windows for this step time, or `None`. A window may be unused.
    fn path(&self, step: f64) -> Option<Vec<usize>> {
        let Self { total, borders, .. } = *self;
        let m = self.micro_batches as f64;
        let is_open: Vec<bool> =
            borders.iter().map(|border| self.is_narrow(step, border.seconds, 0.0)).collect();
        let open = || borders.iter().zip(&is_open).filter(|(_, is_open)| **is_open);
        let narrowest = open().map(|(border, _)| border.seconds).fold(f64::INFINITY, f64::min);
        // The least transfers of a chain that ends in each window, beyond one narrowest cut each, and the window before it.
        let mut least: Vec<(f64, usize)> = Vec::with_capacity(borders.len());
        let reaches = |from: f64, to: f64| m * (to - from) <= step;
        let nearest = |least: &[(f64, usize)], low: f64| {
            let start = if reaches(0.0, low) { 0.0 } else { f64::INFINITY };
            let mut best = (start, usize::MAX);
            for before in (0..least.len()).rev() {
                if !reaches(borders[before].high, low) {
                    break;
                }
                if least[before].0 < best.0 {
                    best = (least[before].0, before);
                }
            }
            best
        };
        for (border, is_open) in borders.iter().zip(&is_open) {
            let (before, from) = nearest(&least, border.low);
            let more = if *is_open { border.seconds - narrowest } else { f64::INFINITY };
            least.push((before + more, from));
        }
        let (more, mut from) = nearest(&least, total);
        // Every boundary carries at least as much as the narrowest cut.
        let n_cuts = (self.ranks * self.chunks - 1) as f64;
        let carried = n_cuts * narrowest + more;
        let sent = if self.shares_ports { carried } else { carried / 2.0 };
        if !carried.is_finite() || total + carried > step || m * sent > step * self.ranks as f64 {
            return None;
        }
        let mut ends = Vec::new();
        while from != usize::MAX {
            ends.push(from);
            from = least[from].1;
        }
        // If the step forces no boundary, the narrowest cut is returned.
        if ends.is_empty() {
            ends.extend(borders.iter().position(|border| border.seconds == narrowest));
        }
        ends.reverse();
        Some(ends)
    }
}
