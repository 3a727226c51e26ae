//! Exact times of an order with uniform costs: a longest path, in integers.
//!
//! No links, memory or host: the model of the closed forms. Each rank runs ahead until it lacks a value of another rank, which
//! wakes it when it has made the value. O(operations), no graph is built, so an arithmetic [`Program`] of ten million operations
//! needs only its two tables of end times.

use std::fmt;

use thiserror::Error;

use crate::{
    cost::Cost,
    order::{Kind, Op, Program},
};

/// What the clock shows when an order has run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clock {
    /// From the first operation's start to the last one's end, over all ranks.
    pub makespan: u64,
    /// Longest time from a rank's first operation to its last: what an endless pipeline pays for each step.
    pub longest_span: u64,
    /// Time each rank computes.
    pub busy: Vec<u64>,
    /// Most activations each rank holds, freed when the weight gradient is done.
    pub peak_activations: Vec<u32>,
    /// Most activations each rank holds if they were freed with the input gradient.
    pub peak_until_input_gradient: Vec<u32>,
}

impl Clock {
    /// Returns the share of device time that is idle: bubble over makespan.
    pub fn bubble(&self) -> f64 {
        let total = self.makespan as f64 * self.busy.len() as f64;
        if total == 0.0 {
            return 0.0;
        }
        1.0 - self.busy.iter().map(|busy| *busy as f64).sum::<f64>() / total
    }
}

/// Start and end of one operation; a joined pair has one span twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The operation.
    pub op: Op,
    /// When it starts.
    pub start: u64,
    /// When it ends.
    pub end: u64,
}

/// Why an order has no times.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ClockError {
    /// Ranks wait for each other, or for a value that no rank makes.
    #[error("the order deadlocks: {}", show(blocked))]
    Deadlock {
        /// Where each rank stands that has not finished.
        blocked: Vec<Blocked>,
    },
    /// The times do not fit into 64 bits.
    #[error("the costs are too large: the step would take more than 2^62 units of time")]
    Overflow,
    /// Stages and micro-batches that the operations cannot cover.
    #[error(
        "the order has {n_ops} operations for {n_stages} stages and {n_micro_batches} micro-batches, too few"
    )]
    Incomplete {
        /// Operations in the order.
        n_ops: usize,
        /// Stages it names.
        n_stages: usize,
        /// Micro-batches it names.
        n_micro_batches: usize,
    },
}

/// A rank that cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The rank.
    pub rank: usize,
    /// Its operation's position in the program, from 0.
    pub position: usize,
    /// The operation.
    pub op: Op,
    /// What it waits for.
    pub needs: Op,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, position, op, needs } = self;
        write!(f, "rank {rank} waits at position {position} (`{op}`) for `{needs}`")
    }
}

/// Times an order.
///
/// # Errors
/// Says where each rank stands when they wait for each other.
pub fn clock<P: Program>(program: &P, cost: &Cost) -> Result<Clock, ClockError> {
    clock_with(program, cost, |op| cost.of(op.kind), |_, _| {})
}

/// Times an order as PyTorch runs it: without the input gradient of the first stage, which no stage needs.
///
/// Its lone input gradient takes no time, and its weight gradient that of a whole backward pass.
///
/// # Errors
/// As [`clock`].
pub fn clock_as_torch<P: Program>(program: &P, cost: &Cost) -> Result<Clock, ClockError> {
    let chain = program.chain().max(1);
    let time = |op: Op| match op.kind {
        Kind::InputGradient if op.stage.is_multiple_of(chain) => 0,
        Kind::WeightGradient if op.stage.is_multiple_of(chain) => cost.backward(),
        kind => cost.of(kind),
    };
    clock_with(program, cost, time, |_, _| {})
}

/// Times an order and returns what each rank does when.
///
/// # Errors
/// As [`clock`].
pub fn clock_spans<P: Program>(program: &P, cost: &Cost) -> Result<(Clock, Vec<Vec<Span>>), ClockError> {
    let mut spans: Vec<Vec<Span>> =
        (0..program.n_ranks()).map(|rank| Vec::with_capacity(program.len(rank))).collect();
    let clock = clock_with(program, cost, |op| cost.of(op.kind), |rank, span| spans[rank].push(span))?;
    Ok((clock, spans))
}

/// Not yet done.
const NEVER: u64 = u64::MAX;

/// End times by stage and micro-batch.
struct Ends {
    n_micro_batches: usize,
    /// Forward pass.
    forward: Vec<u64>,
    /// Gradient of the inputs, alone or as part of the whole backward.
    backward: Vec<u64>,
}

impl Ends {
    #[inline]
    fn at(&self, stage: u32, micro_batch: u32) -> usize {
        stage as usize * self.n_micro_batches + micro_batch as usize
    }
}

/// Where a rank stands.
#[derive(Clone, Copy, Default)]
struct Rank {
    position: usize,
    free: u64,
    first: Option<u64>,
    busy: u64,
    alive: u32,
    peak: u32,
    alive_inputs: u32,
    peak_inputs: u32,
}

fn clock_with<P: Program>(
    program: &P,
    cost: &Cost,
    time: impl Fn(Op) -> u64,
    mut visit: impl FnMut(usize, Span),
) -> Result<Clock, ClockError> {
    let n_ranks = program.n_ranks();
    let (n_stages, n_micro_batches) = (program.n_stages(), program.n_micro_batches());
    let n_ops: usize = (0..n_ranks).map(|rank| program.len(rank)).sum();
    let cells = n_stages.saturating_mul(n_micro_batches);
    // Copies of the model may run different numbers of micro-batches; twice covers that and bounds the tables.
    if cells > n_ops.saturating_mul(2) {
        return Err(ClockError::Incomplete { n_ops, n_stages, n_micro_batches });
    }
    let longest = cost.forward.max(cost.backward()).saturating_add(cost.hop);
    if longest.checked_mul(n_ops as u64).is_none_or(|total| total > 1 << 62) {
        return Err(ClockError::Overflow);
    }
    let chain = program.chain().max(1);
    let mut ends = Ends { n_micro_batches, forward: vec![NEVER; cells], backward: vec![NEVER; cells] };
    let home = program.stage_ranks();
    // Ranks that wait for a stage's forward (first half) or backward (second half).
    let mut waiting: Vec<Vec<u32>> = vec![Vec::new(); 2 * n_stages];
    let mut ranks = vec![Rank::default(); n_ranks];
    let mut runnable: Vec<u32> = (0..n_ranks as u32).rev().collect();
    while let Some(rank_idx) = runnable.pop() {
        let me = rank_idx as usize;
        let mut rank = ranks[me];
        let length = program.len(me);
        'program: while rank.position < length {
            let first = program.op(me, rank.position);
            let second =
                (first.joined && rank.position + 1 < length).then(|| program.op(me, rank.position + 1));
            let mut start = rank.free;
            for op in std::iter::once(first).chain(second) {
                match ready(op, chain, me as u32, &home, &ends, cost.hop) {
                    Ok(at) => start = start.max(at),
                    Err(needs) => {
                        let half = if needs.kind == Kind::Forward { 0 } else { n_stages };
                        if (needs.stage as usize) < n_stages {
                            waiting[half + needs.stage as usize].push(rank_idx);
                        }
                        break 'program;
                    }
                }
            }
            let duration = time(first) + second.map_or(0, &time);
            let end = start + duration;
            rank.first.get_or_insert(start);
            rank.free = end;
            rank.busy += duration;
            for op in std::iter::once(first).chain(second) {
                if op.kind == Kind::Forward {
                    rank.alive += 1;
                    rank.alive_inputs += 1;
                    rank.peak = rank.peak.max(rank.alive);
                    rank.peak_inputs = rank.peak_inputs.max(rank.alive_inputs);
                }
            }
            for op in std::iter::once(first).chain(second) {
                let at = ends.at(op.stage, op.micro_batch);
                let woken = match op.kind {
                    Kind::Forward => {
                        ends.forward[at] = end;
                        Some(op.stage as usize)
                    }
                    Kind::InputGradient | Kind::Backward => {
                        ends.backward[at] = end;
                        rank.alive_inputs = rank.alive_inputs.saturating_sub(1);
                        Some(n_stages + op.stage as usize)
                    }
                    Kind::WeightGradient => None,
                };
                if op.kind.frees_activations() {
                    rank.alive = rank.alive.saturating_sub(1);
                }
                if let Some(woken) = woken {
                    runnable.append(&mut waiting[woken]);
                }
                visit(me, Span { op, start, end });
            }
            rank.position += 1 + usize::from(second.is_some());
        }
        ranks[me] = rank;
    }
    let blocked = blocked(program, &ranks, chain, &home, &ends, cost.hop);
    if !blocked.is_empty() {
        return Err(ClockError::Deadlock { blocked });
    }
    Ok(Clock {
        makespan: ranks.iter().map(|rank| rank.free).max().unwrap_or(0),
        longest_span: ranks.iter().map(|rank| rank.free - rank.first.unwrap_or(rank.free)).max().unwrap_or(0),
        busy: ranks.iter().map(|rank| rank.busy).collect(),
        peak_activations: ranks.iter().map(|rank| rank.peak).collect(),
        peak_until_input_gradient: ranks.iter().map(|rank| rank.peak_inputs).collect(),
    })
}

/// Returns when an operation has what it needs, or what is missing.
#[inline]
fn ready(op: Op, chain: u32, me: u32, home: &[u32], ends: &Ends, hop: u64) -> Result<u64, Op> {
    let position = op.stage % chain;
    let made = |table: &[u64], stage: u32, kind: Kind| {
        let missing = Op::new(stage, kind, op.micro_batch);
        if stage as usize >= home.len() {
            return Err(missing);
        }
        match table[ends.at(stage, op.micro_batch)] {
            NEVER => Err(missing),
            end if home[stage as usize] != me => Ok(end + hop),
            end => Ok(end),
        }
    };
    match op.kind {
        Kind::Forward if position == 0 => Ok(0),
        Kind::Forward => made(&ends.forward, op.stage - 1, Kind::Forward),
        Kind::InputGradient | Kind::Backward => {
            let own = made(&ends.forward, op.stage, Kind::Forward)?;
            if position + 1 == chain {
                return Ok(own);
            }
            Ok(own.max(made(&ends.backward, op.stage + 1, Kind::Backward)?))
        }
        Kind::WeightGradient => made(&ends.backward, op.stage, Kind::InputGradient),
    }
}

fn blocked<P: Program>(
    program: &P,
    ranks: &[Rank],
    chain: u32,
    home: &[u32],
    ends: &Ends,
    hop: u64,
) -> Vec<Blocked> {
    let mut blocked = Vec::new();
    for (rank, state) in ranks.iter().enumerate() {
        if state.position >= program.len(rank) {
            continue;
        }
        let op = program.op(rank, state.position);
        let second = (op.joined && state.position + 1 < program.len(rank))
            .then(|| program.op(rank, state.position + 1));
        let missing = std::iter::once(op)
            .chain(second)
            .find_map(|op| ready(op, chain, rank as u32, home, ends, hop).err().map(|needs| (op, needs)));
        if let Some((op, needs)) = missing {
            blocked.push(Blocked { rank, position: state.position, op, needs });
        }
    }
    blocked
}

/// Names the first few; the others wait for these.
fn show(blocked: &[Blocked]) -> String {
    const SHOWN: usize = 8;
    let mut text = blocked.iter().take(SHOWN).map(Blocked::to_string).collect::<Vec<_>>().join("; ");
    if blocked.len() > SHOWN {
        text.push_str(&format!("; and {} more ranks", blocked.len() - SHOWN));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::{Schedule, Shape, from_csv, make, make_for_costs};

    fn cost(forward: u64, input_gradient: u64, weight_gradient: u64, hop: u64) -> Cost {
        Cost { forward, input_gradient, weight_gradient, hop }
    }

    #[test]
    fn small_orders_by_hand() {
        let check = |csv: &str, costs: Cost, expected: (u64, u64, &[u64], &[u32])| {
            let found = clock(&from_csv(csv, None).unwrap(), &costs).unwrap();
            assert_eq!(
                (found.makespan, found.longest_span, &found.busy[..], &found.peak_activations[..]),
                expected,
                "{csv}"
            );
        };
        check("0F0,0B0\n1F0,1B0", cost(2, 3, 1, 0), (12, 12, &[6, 6], &[1, 1]));
        check("0F0,0B0\n1F0,1B0", cost(2, 3, 1, 5), (22, 22, &[6, 6], &[1, 1]));
        // The weight gradient of the last rank is off the critical path.
        check("0F0,0I0,0W0\n1F0,1I0,1W0", cost(2, 3, 1, 0), (11, 11, &[6, 6], &[1, 1]));
        // A fused pair starts when both can and ends as one.
        check("0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2", cost(2, 3, 1, 9), (18, 18, &[18], &[3]));
        // A turn on one rank crosses no link.
        check("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0", cost(1, 1, 0, 10), (48, 48, &[4, 4], &[2, 2]));
    }

    #[test]
    fn pytorch_skips_the_first_stages_input_gradient() {
        let order = from_csv("0F0,0I0,0W0\n1F0,1I0,1W0", None).unwrap();
        let clock = clock_as_torch(&order, &cost(2, 3, 1, 0)).unwrap();
        assert_eq!((clock.makespan, clock.busy), (11, vec![6, 6]));
    }

    #[test]
    fn a_deadlock_is_explained() {
        let check = |csv: &str, expected: &str| {
            let error = clock(&from_csv(csv, None).unwrap(), &Cost::EQUAL).unwrap_err();
            assert_eq!(error.to_string(), expected);
        };
        check(
            "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1",
            "the order deadlocks: rank 0 waits at position 1 (`0B0`) for `1B0`; \
             rank 1 waits at position 1 (`1F1`) for `0F1`",
        );
        check("0B0,0F0", "the order deadlocks: rank 0 waits at position 0 (`0B0`) for `0F0`");
    }

    #[test]
    fn costs_that_do_not_fit_are_refused() {
        let order = make("1f1b", 2, 1, 4).unwrap();
        assert_eq!(clock(&order, &cost(u64::MAX, 1, 1, 0)), Err(ClockError::Overflow));
        assert_eq!(clock(&order, &cost(0, 0, 0, 0)).unwrap().makespan, 0);
    }

    /// Returns the time that each further step adds when steps follow each other without a common pause.
    ///
    /// A synchronous order is repeated as it is: a rank starts the next step when it has finished this one. An
    /// asynchronous one has no end of a step: it is longer by the micro-batches of a step.
    fn steady_period(schedule: Schedule, shape: Shape, cost: &Cost) -> Result<u64, ClockError> {
        // By then every rank has waited for its slowest neighbour.
        let settled = shape.ranks + 2;
        let time = |steps: u32| {
            let step = |micro_batches| make_for_costs(schedule, Shape { micro_batches, ..shape }, *cost).ok();
            let order = if schedule.is_asynchronous() {
                step(shape.micro_batches.saturating_mul(steps))
            } else {
                step(shape.micro_batches).map(|order| order.repeated(steps as usize))
            };
            clock(&order.ok_or(ClockError::Overflow)?, cost).map(|clock| clock.makespan)
        };
        Ok(time(settled + 1)? - time(settled)?)
    }

    #[test]
    fn an_endless_pipeline_pays_its_slowest_rank() {
        let shape = Shape { ranks: 4, chunks: 1, micro_batches: 8 };
        let costs = cost(3, 3, 3, 0);
        let period = |schedule| steady_period(schedule, shape, &costs).unwrap();
        // Without a flush: m(F + B). With one: each rank waits (p - 1)(F + B) in its own step.
        assert_eq!(period(Schedule::PipeDream), 8 * 9);
        assert_eq!(period(Schedule::OneForwardOneBackward), 11 * 9);
        // Zero bubble is a claim about the period; the makespan still has the ramp of p - 1 forwards.
        assert_eq!(period(Schedule::Zb2p), 8 * 9);
        let zb2p = make("zb2p", 4, 1, 8).unwrap();
        assert_eq!(clock(&zb2p, &costs).unwrap().longest_span, 8 * 9);
        assert_eq!(clock(&zb2p, &costs).unwrap().makespan, 8 * 9 + 3 * 3);
    }
}
