//! Checks an order from elsewhere: operations that are missing, doubled, impossible or risky, with rank and position.
//!
//! Errors make an order wrong or stuck. Warnings are legal but a hazard to runtimes whose messages carry no tag: there
//! a receiver that takes a stage's micro-batches in another order than they are sent gets the wrong one, or waits
//! for ever. (Messages of different stages or directions may cross: PyTorch posts each receive beside its send.)
//! O(operations) with hash tables, whatever numbers the text holds.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
};

use crate::{
    clock::{Blocked, ClockError, clock},
    cost::Cost,
    order::{Kind, Op, Order},
};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The order cannot run, or computes something else than a training step.
    Error,
    /// The order runs here, but not on every runtime.
    Warning,
}

/// A place in an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OrderPosition {
    /// The rank.
    pub rank: usize,
    /// The operation's position in the rank's program, from 0, idle slots not counted.
    pub position: usize,
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What kind of problem.
    pub problem: Problem,
    /// Where it is; for a missing operation, where it is needed.
    pub place: OrderPosition,
}

/// What can be wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// An operation that the others call for is nowhere.
    Missing {
        /// The operation.
        op: Op,
        /// Why it is expected.
        because: &'static str,
    },
    /// An operation stands twice.
    Duplicate {
        /// The operation.
        op: Op,
        /// Where it stood first.
        first: OrderPosition,
    },
    /// A whole backward and a part of it.
    BothBackwards {
        /// The later operation.
        op: Op,
        /// The other one.
        other: Op,
    },
    /// A stage is on two ranks.
    Scattered {
        /// The stage.
        stage: u32,
        /// The rank that ran it first.
        first_rank: usize,
    },
    /// An operation stands before one on the same rank whose result it needs.
    TooEarly {
        /// The operation.
        op: Op,
        /// What it needs.
        needs: Op,
        /// Where that stands.
        at: OrderPosition,
    },
    /// Ranks wait for each other.
    Deadlock {
        /// The first operation that cannot run.
        op: Op,
        /// What it waits for.
        needs: Op,
        /// The rank that should make it, and what that one waits for itself.
        holder: Option<Blocked>,
    },
    /// Copies of the model that run so few micro-batches of many that the order cannot be timed.
    Sparse {
        /// Operations of the order.
        n_ops: usize,
        /// Stages that it names, all copies counted.
        n_stages: usize,
        /// Micro-batches that it names.
        n_micro_batches: usize,
    },
    /// A receiver wants messages in another order than they are sent.
    Crossed {
        /// The message wanted first.
        wanted: Op,
        /// The message sent first.
        sent: Op,
        /// The sending rank.
        sender: usize,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OrderPosition { rank, position } = self.place;
        write!(f, "rank {rank}, position {position}: ")?;
        match &self.problem {
            Problem::Missing { op, because } => write!(f, "`{op}` is missing: {because}"),
            Problem::Duplicate { op, first } => {
                write!(
                    f,
                    "`{op}` again: it stands already on rank {}, position {}",
                    first.rank, first.position
                )
            }
            Problem::BothBackwards { op, other } => {
                write!(f, "`{op}` beside `{other}`: a backward is either whole or in two parts")
            }
            Problem::Scattered { stage, first_rank } => {
                write!(f, "stage {stage} runs on this rank and on rank {first_rank}")
            }
            Problem::TooEarly { op, needs, at } => {
                write!(
                    f,
                    "`{op}` needs `{needs}`, which comes later on the same rank, at position {}",
                    at.position
                )
            }
            Problem::Deadlock { op, needs, holder: Some(holder) } => write!(
                f,
                "deadlock: `{op}` waits for `{needs}` of rank {}, which waits at position {} (`{}`) for `{}`",
                holder.rank, holder.position, holder.op, holder.needs
            ),
            Problem::Deadlock { op, needs, holder: None } => {
                write!(f, "deadlock: `{op}` waits for `{needs}`")
            }
            Problem::Sparse { n_ops, n_stages, n_micro_batches } => write!(
                f,
                "{n_ops} operations are too few to time {n_stages} stages and {n_micro_batches} micro-batches"
            ),
            Problem::Crossed { wanted, sent, sender } => write!(
                f,
                "order hazard: wants the result of `{wanted}` before that of `{sent}`, but rank {sender} sends \
                 `{sent}` first"
            ),
        }
    }
}

/// What the linter says about an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Problems, errors first, by rank and position.
    pub findings: Vec<Finding>,
    /// Peak activations by rank, when the order runs.
    pub peak_activations: Option<Vec<u32>>,
}

impl Report {
    /// Returns the findings that make the order wrong.
    pub fn errors(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.severity == Severity::Error)
    }
}

/// Checks an order.
pub fn lint(order: &Order) -> Report {
    let mut findings = Vec::new();
    let places = index(order, &mut findings);
    completeness(order, &places, &mut findings);
    numbering(order, &mut findings);
    local_order(order, &places, &mut findings);
    let mut peak_activations = None;
    // Only a complete order has times; without one, waits for missing operations are not findings of their own.
    if findings.is_empty() {
        match clock(order, &Cost::EQUAL) {
            Ok(clock) => peak_activations = Some(clock.peak_activations),
            Err(ClockError::Deadlock { blocked }) => findings.push(deadlock(order, &blocked)),
            Err(ClockError::Incomplete { n_ops, n_stages, n_micro_batches }) => {
                let problem = Problem::Sparse { n_ops, n_stages, n_micro_batches };
                findings.push(error(problem, OrderPosition { rank: 0, position: 0 }));
            }
            // Equal costs of 1 cannot add up to too much.
            Err(ClockError::Overflow) => {}
        }
        if findings.is_empty() {
            crossed_messages(order, &mut findings);
        }
    }
    findings.sort_by_key(|finding| (finding.severity, finding.place));
    Report { findings, peak_activations }
}

/// Checks a complete order that runs, as all orders of this crate: only for hazards of runtimes.
pub fn lint_made(order: &Order) -> Report {
    let mut findings = Vec::new();
    crossed_messages(order, &mut findings);
    findings.sort_by_key(|finding| (finding.severity, finding.place));
    Report { findings, peak_activations: None }
}

type Places = HashMap<(u32, u32, Kind), OrderPosition>;

fn error(problem: Problem, place: OrderPosition) -> Finding {
    Finding { severity: Severity::Error, problem, place }
}

/// Finds each operation's place; reports doubles and stages on two ranks.
fn index(order: &Order, findings: &mut Vec<Finding>) -> Places {
    let mut places = Places::new();
    let mut homes: HashMap<u32, usize> = HashMap::new();
    for (rank, ops) in order.ranks.iter().enumerate() {
        for (position, op) in ops.iter().enumerate() {
            let place = OrderPosition { rank, position };
            let plain = Op { joined: false, ..*op };
            let home = *homes.entry(op.stage).or_insert(rank);
            if home != rank {
                findings.push(error(Problem::Scattered { stage: op.stage, first_rank: home }, place));
                homes.insert(op.stage, rank);
            }
            match places.entry((op.stage, op.micro_batch, op.kind)) {
                std::collections::hash_map::Entry::Occupied(first) => {
                    findings.push(error(Problem::Duplicate { op: plain, first: *first.get() }, place));
                }
                std::collections::hash_map::Entry::Vacant(slot) => {
                    slot.insert(place);
                }
            }
        }
    }
    places
}

/// Reports missing operations that others need.
fn completeness(order: &Order, places: &Places, findings: &mut Vec<Finding>) {
    let chain = order.chain.max(1);
    // An order without any backward is one for inference.
    let is_training = order.ranks.iter().flatten().any(|op| op.kind != Kind::Forward);
    let mut reported: HashMap<Op, ()> = HashMap::new();
    let mut missing = |op: Op, because: &'static str, place: OrderPosition, findings: &mut Vec<Finding>| {
        if !places.contains_key(&(op.stage, op.micro_batch, op.kind)) && reported.insert(op, ()).is_none() {
            findings.push(error(Problem::Missing { op, because }, place));
        }
    };
    for (rank, ops) in order.ranks.iter().enumerate() {
        for (position, op) in ops.iter().enumerate() {
            let has = |stage: u32, kind: Kind| places.contains_key(&(stage, op.micro_batch, kind));
            let of = |stage: u32, kind: Kind| Op::new(stage, kind, op.micro_batch);
            let (stage, at) = (op.stage, op.stage % chain);
            let place = OrderPosition { rank, position };
            let has_backward = |stage: u32| has(stage, Kind::Backward) || has(stage, Kind::InputGradient);
            match op.kind {
                Kind::Forward => {
                    if at > 0 {
                        missing(
                            of(stage - 1, Kind::Forward),
                            "the next stage runs this micro-batch",
                            place,
                            findings,
                        );
                    }
                    if at + 1 < chain {
                        missing(
                            of(stage + 1, Kind::Forward),
                            "the stage before runs this micro-batch",
                            place,
                            findings,
                        );
                    }
                    if is_training && !has_backward(stage) {
                        missing(of(stage, Kind::Backward), "its forward pass is there", place, findings);
                    }
                }
                Kind::InputGradient => {
                    missing(of(stage, Kind::Forward), "its backward pass is there", place, findings);
                    missing(of(stage, Kind::WeightGradient), "its input gradient is there", place, findings);
                }
                Kind::WeightGradient => {
                    missing(of(stage, Kind::InputGradient), "its weight gradient is there", place, findings);
                }
                Kind::Backward => {
                    missing(of(stage, Kind::Forward), "its backward pass is there", place, findings);
                    for part in [Kind::InputGradient, Kind::WeightGradient] {
                        if has(stage, part) {
                            let problem =
                                Problem::BothBackwards { op: of(stage, op.kind), other: of(stage, part) };
                            findings.push(error(problem, place));
                        }
                    }
                }
            }
        }
    }
}

/// Reports the first micro-batch that no copy of the model runs although a later one is there.
fn numbering(order: &Order, findings: &mut Vec<Finding>) {
    let present: BTreeSet<u32> = order.ranks.iter().flatten().map(|op| op.micro_batch).collect();
    let Some(gap) = (0..).zip(&present).find_map(|(number, present)| (number != *present).then_some(number))
    else {
        return;
    };
    let later = order.ranks.iter().enumerate().find_map(|(rank, ops)| {
        let position = ops.iter().position(|op| op.micro_batch > gap)?;
        Some((OrderPosition { rank, position }, ops[position].stage))
    });
    if let Some((place, stage)) = later {
        let problem = Problem::Missing {
            op: Op::new(stage, Kind::Forward, gap),
            because: "a later micro-batch is there, and the first is 0",
        };
        findings.push(error(problem, place));
    }
}

/// Reports operations that stand before what they need on their own rank.
fn local_order(order: &Order, places: &Places, findings: &mut Vec<Finding>) {
    let chain = order.chain.max(1);
    for (rank, ops) in order.ranks.iter().enumerate() {
        let mut first_half = None;
        for (position, op) in ops.iter().enumerate() {
            let place = OrderPosition { rank, position };
            // Values of a fused pair exist only at its end: its second half cannot use those of the first.
            let start = first_half.take().unwrap_or_else(|| {
                first_half = op.joined.then_some(position);
                position
            });
            let needed = [
                (op.kind != Kind::Forward).then_some((op.stage, Kind::Forward)),
                (op.kind == Kind::WeightGradient).then_some((op.stage, Kind::InputGradient)),
                (op.kind == Kind::Forward && !op.stage.is_multiple_of(chain))
                    .then(|| (op.stage - 1, Kind::Forward)),
                (op.kind.makes_input_gradient() && (op.stage + 1) % chain != 0)
                    .then_some((op.stage + 1, Kind::Backward)),
                (op.kind.makes_input_gradient() && (op.stage + 1) % chain != 0)
                    .then_some((op.stage + 1, Kind::InputGradient)),
            ];
            for (stage, kind) in needed.into_iter().flatten() {
                let Some(at) = places.get(&(stage, op.micro_batch, kind)) else { continue };
                if at.rank == rank && at.position >= start && *at != place {
                    let needs = Op::new(stage, kind, op.micro_batch);
                    let op = Op { joined: false, ..*op };
                    findings.push(error(Problem::TooEarly { op, needs, at: *at }, place));
                }
            }
        }
    }
}

/// Follows the waits from the first blocked rank into their circle, and reports where it closes.
fn deadlock(order: &Order, blocked: &[Blocked]) -> Finding {
    let homes = order.stage_ranks();
    let holder = |blocked_rank: &Blocked| {
        let rank = homes.get(blocked_rank.needs.stage as usize).copied().flatten()?;
        blocked.iter().find(|other| other.rank == rank)
    };
    let mut at = blocked[0];
    for _ in 0..blocked.len() {
        match holder(&at) {
            Some(next) => at = *next,
            None => break,
        }
    }
    let problem = Problem::Deadlock { op: at.op, needs: at.needs, holder: holder(&at).copied() };
    error(problem, OrderPosition { rank: at.rank, position: at.position })
}

/// Reports pairs of ranks whose messages are not wanted in the order in which they are sent.
fn crossed_messages(order: &Order, findings: &mut Vec<Finding>) {
    let chain = order.chain.max(1);
    let homes = order.stage_ranks();
    let home = |stage: u32| homes.get(stage as usize).copied().flatten();
    // By sender, receiver, stage and direction: what is sent, in the sender's order.
    type Channel = (usize, usize, u32, bool);
    let mut sent: BTreeMap<Channel, Vec<Op>> = BTreeMap::new();
    let mut wanted: BTreeMap<Channel, Vec<(Op, OrderPosition)>> = BTreeMap::new();
    for (rank, ops) in order.ranks.iter().enumerate() {
        for (position, op) in ops.iter().enumerate() {
            let is_backward = op.kind.makes_input_gradient();
            let (at, is_forward) = (op.stage % chain, op.kind == Kind::Forward);
            let (to, from) = match op.kind {
                Kind::Forward => {
                    ((at + 1 < chain).then_some(op.stage + 1), op.stage.checked_sub(1).filter(|_| at > 0))
                }
                _ if is_backward => {
                    (op.stage.checked_sub(1).filter(|_| at > 0), (at + 1 < chain).then_some(op.stage + 1))
                }
                _ => continue,
            };
            // A whole and a split backward send the same message.
            let message = |stage: u32| {
                Op::new(stage, if is_forward { Kind::Forward } else { Kind::Backward }, op.micro_batch)
            };
            if let Some(receiver) = to.and_then(home).filter(|to| *to != rank) {
                sent.entry((rank, receiver, op.stage, is_forward)).or_default().push(message(op.stage));
            }
            let other = |stage| Some((stage, home(stage).filter(|sender| *sender != rank)?));
            if let Some((stage, sender)) = from.and_then(other) {
                let want = (message(stage), OrderPosition { rank, position });
                wanted.entry((sender, rank, stage, is_forward)).or_default().push(want);
            }
        }
    }
    for (channel, wanted) in &wanted {
        let (sender, ..) = channel;
        let Some(sent) = sent.get(channel) else { continue };
        // Only the first difference is reported; later ones follow from it.
        let differs = wanted.iter().zip(sent).find(|((wanted, _), sent)| wanted != *sent);
        if let Some(((wanted, place), sent)) = differs {
            let problem = Problem::Crossed { wanted: *wanted, sent: *sent, sender: *sender };
            findings.push(Finding { severity: Severity::Warning, problem, place: *place });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::{ALL, Shape, from_csv, make_for_costs};

    fn check(csv: &str, expected: &[&str]) {
        let report = lint(&from_csv(csv, None).unwrap());
        let found: Vec<String> = report.findings.iter().map(Finding::to_string).collect();
        assert_eq!(found, expected, "{csv}");
    }

    #[test]
    fn problems_are_named_with_rank_and_position() {
        check("0F0,0B0\n1F0,1B0", &[]);
        check("0F0,0B0\n1F0", &["rank 1, position 0: `1B0` is missing: its forward pass is there"]);
        check("0F0,0B0\n1F0,1I0", &["rank 1, position 1: `1W0` is missing: its input gradient is there"]);
        check(
            "0F0,0B0,0F0\n1F0,1B0",
            &["rank 0, position 2: `0F0` again: it stands already on rank 0, position 0"],
        );
        check(
            "0F0,0B0,0W0,0I0",
            &[
                "rank 0, position 1: `0B0` beside `0I0`: a backward is either whole or in two parts",
                "rank 0, position 1: `0B0` beside `0W0`: a backward is either whole or in two parts",
                "rank 0, position 2: `0W0` needs `0I0`, which comes later on the same rank, at position 3",
            ],
        );
        check(
            "0B0,0F0",
            &["rank 0, position 0: `0B0` needs `0F0`, which comes later on the same rank, at position 1"],
        );
        check(
            "0F0,0B0\n1F0,1B0,0F1,0B1,1F1,1B1",
            &[
                "rank 1, position 2: stage 0 runs on this rank and on rank 0",
                "rank 1, position 3: `0B1` needs `1B1`, which comes later on the same rank, at position 5",
            ],
        );
        check("0F0,0F1\n1F0,1F1", &[]);
    }

    #[test]
    fn a_deadlock_names_the_circle() {
        check(
            "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1",
            &[
                "rank 0, position 1: deadlock: `0B0` waits for `1B0` of rank 1, which waits at position 1 (`1F1`) \
               for `0F1`",
            ],
        );
    }

    #[test]
    fn messages_out_of_step_are_a_hazard() {
        check(
            "0F0,0F1,0B0,0B1\n1F1,1F0,1B0,1B1",
            &[
                "rank 1, position 0: order hazard: wants the result of `0F1` before that of `0F0`, but rank 0 \
               sends `0F0` first",
            ],
        );
    }

    #[test]
    fn torchs_printed_1f1b_is_caught() {
        // PyTorch 2.11's Schedule1F1B._get_pipeline_order leaves out the last rank's first forward.
        check(
            "0F0,0F1,0B0,0B1\n1F1,1B0,1F2,1B1",
            &[
                "rank 0, position 0: `1F0` is missing: the stage before runs this micro-batch",
                "rank 1, position 2: `0F2` is missing: the next stage runs this micro-batch",
                "rank 1, position 2: `1B2` is missing: its forward pass is there",
            ],
        );
    }

    #[test]
    fn hostile_numbers_cost_no_memory() {
        let report = lint(&Order {
            ranks: vec![vec![Op::forward(4_000_000_000, 4_000_000_000)]],
            chain: 4_000_000_001,
        });
        // Neither the stages before it nor the micro-batches before it are listed one by one.
        assert_eq!(report.errors().count(), 2);
    }

    #[test]
    fn micro_batches_are_numbered_without_gaps() {
        check(
            "0F2\n1F2,\n2F2",
            &["rank 0, position 0: `0F0` is missing: a later micro-batch is there, and the first is 0"],
        );
        check(
            "0F0,0B0,0F2,0B2",
            &["rank 0, position 2: `0F1` is missing: a later micro-batch is there, and the first is 0"],
        );
        // Copies may take turns at one numbering.
        let turns = from_csv("0F0,0B0\n1F1,1B1", Some(1)).unwrap();
        assert_eq!(lint(&turns).findings, []);
    }

    #[test]
    fn what_cannot_be_timed_is_a_finding() {
        let busy: Vec<String> = (0..9).map(|number| format!("0F{number}")).collect();
        let order = from_csv(&format!("{}\n1F0\n2F0", busy.join(",")), Some(1)).unwrap();
        let found: Vec<String> = lint(&order).findings.iter().map(Finding::to_string).collect();
        let expected = "rank 0, position 0: 11 operations are too few to time 3 stages and 9 micro-batches";
        assert_eq!(found, [expected]);
    }

    #[test]
    fn every_order_of_ours_is_clean() {
        for schedule in ALL {
            for (ranks, chunks, micro_batches) in
                [(2, 1, 4), (4, 1, 8), (4, 2, 8), (2, 2, 6), (4, 3, 12), (2, 1, 2)]
            {
                let shape = Shape { ranks, chunks, micro_batches };
                let Ok(order) = make_for_costs(schedule, shape, Cost::EQUAL) else { continue };
                let report = lint(&order);
                assert_eq!(report.errors().count(), 0, "{schedule:?} {shape:?}: {:?}", report.findings);
                assert!(report.peak_activations.is_some());
            }
        }
    }
}
