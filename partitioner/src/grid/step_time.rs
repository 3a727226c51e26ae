//! Time of one step: the simulator's order of operations over stages that differ.
//!
//! A longest path in the graph of passes and transfers, O(operations). Operations of a rank run in program order; a forward pass
//! waits for the stage before, a backward pass for the stage behind. Between ranks a value takes its bytes over the link, one
//! value at a time each way, plus the latency; compute waits for sending only if the machine does not overlap the two. Replicas
//! are one rank here: they run side by side and meet in an all-reduce at the stage's last gradient.

use simulator::order::{Kind, Op, Order};

/// Times of one stage for one micro-batch on one replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StageTimes {
    pub(crate) forward: f64,
    pub(crate) input_gradient: f64,
    pub(crate) weight_gradient: f64,
    /// Seconds of adding a micro-batch's gradients to those before it: all but the first one's.
    pub(crate) accumulation: f64,
    /// Host overhead of each pass; each half of a split backward pass is one.
    pub(crate) host: f64,
    /// Host overhead of the weight half of a backward pass besides.
    pub(crate) split: f64,
    /// Seconds of sending its outputs to the next stage, and the latency before they arrive.
    pub(crate) send: (f64, f64),
    /// The same for gradients to the stage before.
    pub(crate) send_back: (f64, f64),
    /// Buckets of gradients that replicas sum at the end of the step, and the seconds of each.
    pub(crate) buckets: (usize, f64),
    /// Seconds of sums that follow all of them.
    pub(crate) once: f64,
}

impl StageTimes {
    /// Seconds of a forward pass.
    pub(crate) fn there(&self) -> f64 {
        self.forward + self.host
    }

    /// Seconds of a whole backward pass, the first of a step.
    pub(crate) fn back(&self) -> f64 {
        self.input_gradient + self.weight_gradient + self.host
    }

    /// Seconds of one micro-batch, the first of a step; a split backward pass has the host overhead once more.
    pub(crate) fn both(&self) -> f64 {
        self.there() + self.back()
    }

    /// Seconds of some micro-batches with the first of a step among them.
    pub(crate) fn passes(&self, micro_batches: f64) -> f64 {
        micro_batches * self.both() + (micro_batches - 1.0) * self.accumulation
    }
}

/// When a step is done, and how much of the devices' time was idle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StepTime {
    pub(crate) seconds: f64,
    pub(crate) bubble: f64,
}

/// Times an order; `None` when it deadlocks, which orders made by the simulator never do.
pub(crate) fn step_time(order: &Order, stages: &[StageTimes], overlaps: bool) -> Option<StepTime> {
    Timer::new(order, stages.len(), overlaps).time(stages, f64::INFINITY)
}

/// Times one order for several sets of stage costs; tables that depend on the order alone are built once.
pub(crate) struct Timer<'a> {
    order: &'a Order,
    overlaps: bool,
    n_micro_batches: usize,
    rank_of: Vec<usize>,
    /// Operations such that each comes behind what it waits for: ranks, and how many of their next ones; `None` for a deadlock.
    sequence: Option<Vec<(u32, u32)>>,
    /// Forward passes of a stage before its first backward pass, if it is alone on its rank and its backward passes are not
    /// split.
    ahead: Vec<Option<usize>>,
    /// When values have arrived, by stage and micro-batch.
    forward: Vec<f64>,
    backward: Vec<f64>,
    own_forward: Vec<f64>,
    /// When the link from one rank to another is free again.
    link: Vec<f64>,
}

impl<'a> Timer<'a> {
    pub(crate) fn new(order: &'a Order, n_stages: usize, overlaps: bool) -> Self {
        let n_micro_batches = order.n_micro_batches();
        let n_ranks = order.ranks.len();
        let mut rank_of = vec![usize::MAX; n_stages];
        let mut ahead = vec![None; n_stages];
        for (rank, ops) in order.ranks.iter().enumerate() {
            ops.iter().for_each(|op| rank_of[op.stage as usize] = rank);
            let Some(first) = ops.first().map(|op| op.stage) else { continue };
            let is_plain = |kind: Kind| matches!(kind, Kind::Forward | Kind::Backward);
            if ops.iter().all(|op| op.stage == first && is_plain(op.kind)) {
                ahead[first as usize] = ops.iter().position(|op| op.kind == Kind::Backward);
            }
        }
        // The first stage waits for nothing on its way forward, the last for nothing on its way back; all else is written first.
        let slots = || vec![0.0; n_stages * n_micro_batches];
        Self {
            order,
            overlaps,
            n_micro_batches,
            sequence: sequence(order, n_micro_batches, &rank_of),
            rank_of,
            ahead,
            forward: slots(),
            backward: slots(),
            own_forward: slots(),
            link: vec![0.0; n_ranks * n_ranks],
        }
    }

    pub(crate) fn n_micro_batches(&self) -> usize {
        self.n_micro_batches
    }

    /// Returns a lower bound of the step of these stages: each rank's passes, and before and behind them one micro-batch's way
    /// through the other stages. `docs/bounds.md`, "One micro-batch through all other stages". O(stages).
    pub(crate) fn least(&self, stages: &[StageTimes]) -> f64 {
        let m = self.n_micro_batches as f64;
        let all: f64 = stages.iter().map(StageTimes::both).sum();
        let mut work = vec![0.0_f64; self.order.ranks.len()];
        let (mut least, mut before) = (0.0_f64, 0.0);
        for (index, times) in stages.iter().enumerate() {
            let (back, whole) = (times.back(), times.both());
            work[self.rank_of[index]] += times.passes(m);
            if let Some(ahead) = self.ahead[index].filter(|ahead| *ahead > 0) {
                least = least.max(before + times.passes(m));
                let later = back + times.accumulation;
                least = least.max(all + (m - 1.0) * later + (m - ahead as f64) * times.there());
            }
            before += whole;
        }
        // One micro-batch passes back through all stages only if no backward pass is split.
        let is_plain = self.ahead.iter().all(Option::is_some);
        work.into_iter().fold(if is_plain { least } else { 0.0 }, f64::max)
    }

    /// Returns the seconds that each rank still has to compute, with those that follow its last pass on the ranks before.
    fn left(&self, stages: &[StageTimes]) -> Vec<f64> {
        let is_plain = self.ahead.iter().all(Option::is_some);
        let mut left = vec![0.0; self.order.ranks.len()];
        let mut before = 0.0;
        for (times, &rank) in stages.iter().zip(&self.rank_of) {
            left[rank] += times.passes(self.n_micro_batches as f64);
            if is_plain {
                left[rank] += before;
                before += times.back();
            }
        }
        left
    }

    /// Times the order; `None` if it deadlocks, or as soon as a rank cannot finish below `below` seconds.
    pub(crate) fn time(&mut self, stages: &[StageTimes], below: f64) -> Option<StepTime> {
        let mut left = self.left(stages);
        let (order, n_micro_batches, rank_of) = (self.order, self.n_micro_batches, &self.rank_of);
        let n_ranks = order.ranks.len();
        let slot = |stage: usize, micro_batch: u32| stage * n_micro_batches + micro_batch as usize;
        let (forward, backward, own_forward) = (&mut self.forward, &mut self.backward, &mut self.own_forward);
        self.link.fill(0.0);
        let mut clock = vec![0.0_f64; n_ranks];
        let mut busy = vec![0.0_f64; n_ranks];
        let mut done = vec![0.0_f64; stages.len()];
        let mut last = vec![0.0_f64; stages.len()];
        let mut has_gradients = vec![false; stages.len()];
        let mut next = vec![0_usize; n_ranks];
        for &(rank, count) in self.sequence.as_ref()? {
            let rank = rank as usize;
            let own = next[rank]..next[rank] + count as usize;
            next[rank] = own.end;
            for op in &order.ranks[rank][own] {
                let stage = op.stage as usize;
                let times = &stages[stage];
                let at = slot(stage, op.micro_batch);
                let adds = op.kind.frees_activations() && std::mem::replace(&mut has_gradients[stage], true);
                let added = if adds { times.accumulation } else { 0.0 };
                let (needed, time) = match op.kind {
                    Kind::Forward => (forward[at], times.there()),
                    Kind::Backward => (backward[at].max(own_forward[at]), times.back() + added),
                    Kind::InputGradient => {
                        (backward[at].max(own_forward[at]), times.input_gradient + times.host)
                    }
                    Kind::WeightGradient => (0.0, times.weight_gradient + added + times.host + times.split),
                };
                let end = clock[rank].max(needed) + time;
                busy[rank] += time;
                clock[rank] = end;
                left[rank] -= time;
                // Sums are rounded.
                if (end + left[rank]) * (1.0 - 1e-9) >= below {
                    return None;
                }
                done[stage] = done[stage].max(end);
                last[stage] = time;
                if op.kind == Kind::Forward {
                    own_forward[at] = end;
                }
                let (seconds, latency) = if op.kind == Kind::Forward { times.send } else { times.send_back };
                let Some(other) = receiver(op, stages.len()) else { continue };
                let arrival = if rank_of[other] == rank {
                    end
                } else {
                    let free = &mut self.link[rank * n_ranks + rank_of[other]];
                    let sent = end.max(*free) + seconds;
                    *free = sent;
                    if !self.overlaps {
                        clock[rank] = sent;
                    }
                    sent + latency
                };
                let there = slot(other, op.micro_batch);
                if op.kind == Kind::Forward {
                    forward[there] = arrival;
                } else {
                    backward[there] = arrival;
                }
            }
        }
        for (stage, times) in stages.iter().enumerate() {
            let clock = &mut clock[rank_of[stage]];
            *clock = clock.max(summed(times, done[stage], last[stage]));
        }
        for (stage, times) in stages.iter().enumerate() {
            clock[rank_of[stage]] += times.once;
        }
        let seconds = clock.into_iter().fold(0.0, f64::max);
        let used: f64 = busy.iter().sum();
        let bubble = if seconds > 0.0 { 1.0 - used / (seconds * busy.len() as f64) } else { 0.0 };
        Some(StepTime { seconds, bubble })
    }
}

/// Returns the stage that waits for what an operation makes, if another one does.
fn receiver(op: &Op, n_stages: usize) -> Option<usize> {
    let stage = op.stage as usize;
    match op.kind {
        Kind::Forward => Some(stage + 1).filter(|other| *other < n_stages),
        Kind::Backward | Kind::InputGradient => stage.checked_sub(1),
        Kind::WeightGradient => None,
    }
}

/// Returns the operations of all ranks such that each comes behind what it waits for; `None` if some wait for each other. Does not
/// depend on times.
fn sequence(order: &Order, n_micro_batches: usize, rank_of: &[usize]) -> Option<Vec<(u32, u32)>> {
    let (n_stages, n_ranks) = (rank_of.len(), order.ranks.len());
    let slots = || vec![false; n_stages * n_micro_batches];
    let (mut forward, mut backward, mut own_forward) = (slots(), slots(), slots());
    forward[..n_micro_batches].fill(true);
    backward[(n_stages - 1) * n_micro_batches..].fill(true);
    let mut next = vec![0_usize; n_ranks];
    let mut ready: Vec<usize> = (0..n_ranks).rev().collect();
    let mut found = Vec::new();
    while let Some(rank) = ready.pop() {
        let first = next[rank];
        while let Some(op) = order.ranks[rank].get(next[rank]) {
            let slot = |stage: usize| stage * n_micro_batches + op.micro_batch as usize;
            let at = slot(op.stage as usize);
            let is_ready = match op.kind {
                Kind::Forward => forward[at],
                Kind::Backward | Kind::InputGradient => backward[at] && own_forward[at],
                Kind::WeightGradient => true,
            };
            if !is_ready {
                break;
            }
            next[rank] += 1;
            let is_forward = op.kind == Kind::Forward;
            own_forward[at] |= is_forward;
            let Some(other) = receiver(op, n_stages) else { continue };
            let there = if is_forward { &mut forward } else { &mut backward };
            there[slot(other)] = true;
            if rank_of[other] != rank {
                ready.push(rank_of[other]);
            }
        }
        if next[rank] > first {
            found.push((rank as u32, (next[rank] - first) as u32));
        }
    }
    let is_all = order.ranks.iter().zip(next).all(|(ops, next)| ops.len() == next);
    is_all.then_some(found)
}

/// Returns when a stage's gradients are summed; its last backward pass took `last` seconds.
///
/// Gradients appear evenly over that pass; a bucket is sent when it is full and the bucket before is through. Either all buckets
/// go without a pause from the first on, or each waits for its gradients, the last one longest.
fn summed(times: &StageTimes, done: f64, last: f64) -> f64 {
    let (n_buckets, seconds) = times.buckets;
    if n_buckets == 0 {
        return 0.0;
    }
    let n = n_buckets as f64;
    (done - last / n * (n - 1.0) + n * seconds).max(done + seconds)
}

#[cfg(test)]
mod tests {
    use simulator::{
        Cost,
        order::{Schedule, Shape, make_for_costs},
    };

    use super::*;
    use crate::oracle::random_problems::Dice;

    /// A timer keeps when values arrived: those of stages that were timed before, to the end or not, must not show.
    #[test]
    fn a_timer_forgets_what_it_timed_before() {
        let mut dice = Dice(67);
        let mut n_cut_short = 0;
        for case in 0..200 {
            let schedules = [
                (Schedule::GPipe, 1),
                (Schedule::OneForwardOneBackward, 1),
                (Schedule::InterleavedZeroBubble, 1),
                (Schedule::Interleaved1F1B, 2),
                (Schedule::Zbv, 2),
            ];
            let (schedule, chunks) = schedules[dice.below(5) as usize];
            let ranks = 2 + dice.below(3) as u32;
            let shape = Shape { ranks, chunks, micro_batches: ranks * (2 + dice.below(3) as u32) };
            let order = make_for_costs(schedule, shape, Cost::EQUAL).unwrap();
            let overlaps = dice.flip();
            let mut random = || {
                let mut next = || 1.0 + dice.below(9) as f64;
                let times = |_| StageTimes {
                    forward: next(),
                    input_gradient: next(),
                    weight_gradient: next(),
                    accumulation: next() / 4.0,
                    host: next() / 8.0,
                    split: next() / 16.0,
                    send: (next() / 4.0, next() / 8.0),
                    send_back: (next() / 4.0, next() / 8.0),
                    buckets: (2, next()),
                    once: next() / 8.0,
                };
                (0..ranks * chunks).map(times).collect::<Vec<StageTimes>>()
            };
            let (one, other) = (random(), random());
            let alone = step_time(&order, &other, overlaps).unwrap();
            let mut timer = Timer::new(&order, other.len(), overlaps);
            let whole = timer.time(&one, f64::INFINITY).unwrap();
            assert_eq!(timer.time(&other, f64::INFINITY), Some(alone), "case {case}, {schedule:?}");
            n_cut_short += u32::from(timer.time(&one, 0.8 * whole.seconds).is_none());
            assert_eq!(timer.time(&other, f64::INFINITY), Some(alone), "case {case}, {schedule:?}");
        }
        assert!(n_cut_short > 100, "{n_cut_short} were cut short");
    }

    #[test]
    fn equal_stages_give_the_closed_forms() {
        let times = StageTimes {
            forward: 1.0,
            input_gradient: 1.0,
            weight_gradient: 1.0,
            accumulation: 0.0,
            host: 0.0,
            split: 0.0,
            send: (0.0, 0.0),
            send_back: (0.0, 0.0),
            buckets: (0, 0.0),
            once: 0.0,
        };
        for schedule in [Schedule::GPipe, Schedule::OneForwardOneBackward, Schedule::InterleavedZeroBubble] {
            for (ranks, micro_batches) in [(1, 4), (2, 4), (4, 8), (8, 8)] {
                let shape = Shape { ranks, chunks: 1, micro_batches };
                let order = make_for_costs(schedule, shape, Cost::EQUAL).unwrap();
                let time = step_time(&order, &vec![times; ranks as usize], true).unwrap();
                let exact = schedule.makespan(shape, &Cost::EQUAL).unwrap();
                assert_eq!(time.seconds, exact as f64, "{schedule:?} {shape:?}");
            }
        }
    }
}
