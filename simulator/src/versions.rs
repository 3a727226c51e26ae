//! Weight versions of a pipeline without a flush: which of them a pass uses, how many a device keeps, and how stale the weights
//! of a gradient are.
//!
//! * PipeDream (Narayanan et al., SOSP 2019, §3.3) updates a stage after each micro-batch, or after one of each of its
//!   replicas. With weight stashing, a forward pass takes the newest weights of its stage and the backward pass the
//!   same ones; with vertical sync, all stages take those that were the first stage's newest when the micro-batch came in.
//! * 2BW (Narayanan et al., ICML 2021, §3.1) updates after the micro-batches of a period; those of the next one still
//!   take the weights before that, in every stage.
//!
//! ```text
//! four stages, micro-batch 5 (from 1):   weights after micro-batch …   versions kept   updates that gradients miss
//!   weight stashing                      1  2  3  4                    4  3  2  1      3  2  1  0
//!   vertical sync                        1  1  1  1                    4  4  4  4      3  3  3  3
//! ```
//!
//! A device keeps its newest weights, and older ones until the last of its micro-batches that uses them is through.
//! Orders alone decide all of this: no pass of a device starts between its share of an update and that update.

use crate::order::{Kind, Op, Order};

const NONE: u32 = u32::MAX;

/// When weights change while micro-batches are on their way, and which of them a pass takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Updates {
    /// After one micro-batch of each replica. Passes take the newest weights of their stage in the forward pass, and the
    /// same in the backward pass.
    Stashing,
    /// After one micro-batch of each replica. Passes take those that were the first stage's newest when their micro-batch
    /// came in.
    VerticalSync,
    /// After a period. Passes take those that the period before theirs began with.
    DoubleBuffered {
        /// Micro-batches of a period, over all replicas.
        period: u32,
    },
}

impl Updates {
    /// Returns the micro-batches between two updates of a stage with `replicas` replicas.
    pub fn every(self, replicas: usize) -> usize {
        match self {
            Self::Stashing | Self::VerticalSync => replicas.max(1),
            Self::DoubleBuffered { period } => replicas.max(period as usize).max(1),
        }
    }
}

/// Weight versions of a stage of an endless pipeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptVersions {
    /// Most versions of its weights at once, the newest included.
    pub versions: u32,
    /// Most updates between the weights that a gradient is computed with and those that it changes.
    pub staleness: u32,
}

/// Returns what each stage of an endless pipeline keeps, given its replicas.
///
/// ```
/// use simulator::{Updates, kept_versions};
///
/// let versions = |updates| kept_versions(&[1; 4], updates).iter().map(|stage| stage.versions).collect::<Vec<u32>>();
/// assert_eq!(versions(Updates::Stashing), [4, 3, 2, 1]);
/// assert_eq!(versions(Updates::VerticalSync), [4, 4, 4, 4]);
/// ```
pub fn kept_versions(replicas: &[u32], updates: Updates) -> Vec<KeptVersions> {
    let mut left: u32 = replicas.iter().sum();
    // One round for each micro-batch on its way: the passes before a stage's first backward pass.
    let rounds = replicas.iter().map(|n| {
        let rounds = left.div_ceil((*n).max(1));
        left -= n;
        rounds
    });
    let rounds: Vec<u32> = rounds.collect();
    let in_step = |versions: u32| KeptVersions { versions, staleness: versions - 1 };
    let first = (replicas.first().copied().unwrap_or(1).max(1), rounds.first().copied().unwrap_or(1));
    match updates {
        Updates::Stashing => rounds.into_iter().map(in_step).collect(),
        Updates::VerticalSync if replicas.iter().all(|n| *n == first.0) => {
            vec![in_step(first.1); replicas.len()]
        }
        Updates::VerticalSync => replicas.iter().map(|n| out_of_step((*n).max(1), first)).collect(),
        // The version of the period and the newest one; a period is no shorter than the pipeline.
        Updates::DoubleBuffered { .. } => vec![KeptVersions { versions: 2, staleness: 1 }; replicas.len()],
    }
}

/// Returns the versions under vertical sync of a stage of `n` replicas that updates at other times than the first stage: `first`
/// is the first stage's replicas and their rounds in flight.
fn out_of_step(n: u32, first: (u32, u32)) -> KeptVersions {
    let (n, first, rounds) = (u64::from(n), u64::from(first.0), u64::from(first.1));
    // The version of this stage that a micro-batch takes: what the first stage had seen, as far as this one had it, too.
    let version = |micro_batch: u64| first * (micro_batch / first + 1).saturating_sub(rounds) / n;
    let mut kept = KeptVersions::default();
    // From any full pipeline on, until the first stage's updates and this one's coincide again.
    let full = first * rounds / n + 2;
    for round in full..full + first {
        for replica in 0..n {
            let own = |round: u64| version(round * n + replica);
            // After the round's update the newest is one more; older ones are those that later rounds take.
            let mut older = 0;
            let mut last = None;
            for taken in (round + 1..).map(own).take_while(|taken| *taken <= round) {
                older += u32::from(last.replace(taken) != Some(taken));
            }
            kept.versions = kept.versions.max(older + 1);
            kept.staleness = kept.staleness.max((round - own(round)) as u32);
        }
    }
    kept
}

/// The weights of one program while its order goes on. Invariant: the program runs one stage.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Versions beside the newest that some micro-batch still takes.
    pub(crate) older: u32,
    /// Most updates that a gradient has missed.
    pub(crate) staleness: u32,
    /// Updates so far: the number of the newest version.
    newest: u32,
    /// Micro-batches of an update, over all replicas.
    every: u32,
    /// Which version each micro-batch takes; `NONE` where the stage's newest decides it.
    taken: Vec<u32>,
    /// Micro-batches that still take each version.
    takers: Vec<u32>,
    /// The program's own micro-batches of each update that are not through yet.
    open: Vec<u32>,
}

impl Ledger {
    fn new(ops: &[Op], every: u32, n_micro_batches: usize, version_of: impl Fn(u32) -> Option<u32>) -> Self {
        let n_updates = n_micro_batches / every as usize + 1;
        let mut ledger = Self {
            every,
            taken: vec![NONE; n_micro_batches],
            takers: vec![0; n_updates + 1],
            open: vec![0; n_updates],
            ..Self::default()
        };
        for op in ops.iter().filter(|op| op.kind == Kind::Forward) {
            ledger.open[(op.micro_batch / every) as usize] += 1;
            if let Some(version) = version_of(op.micro_batch) {
                ledger.taken[op.micro_batch as usize] = version;
                ledger.takers[version as usize] += 1;
            }
        }
        ledger
    }

    /// Follows a pass; true when it was the program's last of an update.
    pub(crate) fn pass(&mut self, op: Op) -> bool {
        let taken = &mut self.taken[op.micro_batch as usize];
        if op.kind == Kind::Forward && *taken == NONE {
            *taken = self.newest;
            self.takers[self.newest as usize] += 1;
        }
        if !op.kind.frees_activations() {
            return false;
        }
        let (version, update) = (*taken, op.micro_batch / self.every);
        self.staleness = self.staleness.max(update.saturating_sub(version));
        let takers = &mut self.takers[version as usize];
        *takers -= 1;
        self.older -= u32::from(*takers == 0 && version < self.newest);
        let open = &mut self.open[update as usize];
        *open -= 1;
        *open == 0
    }

    /// Makes the next version; true when the one before it is still needed.
    pub(crate) fn update(&mut self) -> bool {
        let is_needed = self.takers[self.newest as usize] > 0;
        self.older += u32::from(is_needed);
        self.newest += 1;
        is_needed
    }
}

/// Opens the ledgers of a complete order's programs.
pub(crate) fn ledgers(order: &Order, updates: Updates) -> Vec<Ledger> {
    let n_micro_batches = order.n_micro_batches();
    let stage_of = |ops: &[Op]| ops.first().map_or(0, |op| op.stage as usize);
    let mut replicas = vec![0; order.n_stages().max(1)];
    for ops in order.ranks.iter().filter(|ops| !ops.is_empty()) {
        replicas[stage_of(ops)] += 1;
    }
    let every = |ops: &[Op]| updates.every(replicas[stage_of(ops)]) as u32;
    // Micro-batches that the first stage's newest weights have seen when each one comes in.
    let mut seen = vec![0_u32; n_micro_batches];
    if updates == Updates::VerticalSync {
        for ops in order.ranks.iter().filter(|ops| !ops.is_empty() && stage_of(ops) == 0) {
            let mut ledger = Ledger::new(ops, every(ops), n_micro_batches, |_| None);
            for op in ops {
                if op.kind == Kind::Forward {
                    seen[op.micro_batch as usize] = ledger.newest * ledger.every;
                }
                if ledger.pass(*op) {
                    ledger.update();
                }
            }
        }
    }
    let open = |ops: &Vec<Op>| {
        let every = every(ops);
        Ledger::new(ops, every, n_micro_batches, |micro_batch| match updates {
            Updates::Stashing => None,
            Updates::VerticalSync => Some(seen[micro_batch as usize] / every),
            Updates::DoubleBuffered { .. } => Some((micro_batch / every).saturating_sub(1)),
        })
    };
    order.ranks.iter().map(open).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::order::{Schedule, Shape, make_for_costs, replicated};

    use Updates::{Stashing, VerticalSync};

    /// Which version each stage takes for a micro-batch, as the number of micro-batches that it has seen.
    fn taken(replicas: &[u32], updates: Updates, micro_batch: u32) -> Vec<u32> {
        let order = replicated(replicas, 64);
        let mut versions = vec![None; replicas.len()];
        for (ops, mut ledger) in order.ranks.iter().zip(ledgers(&order, updates)) {
            for op in ops {
                if ledger.pass(*op) {
                    ledger.update();
                }
                if op.kind == Kind::Forward && op.micro_batch == micro_batch {
                    versions[op.stage as usize] = Some(ledger.taken[op.micro_batch as usize] * ledger.every);
                }
            }
        }
        versions.into_iter().map(Option::unwrap).collect()
    }

    /// What each stage of a long order keeps, pass by pass.
    fn walked(order: &Order, updates: Updates) -> Vec<KeptVersions> {
        let mut stages = vec![KeptVersions::default(); order.chain as usize];
        for (ops, mut ledger) in order.ranks.iter().zip(ledgers(order, updates)) {
            for op in ops {
                if ledger.pass(*op) {
                    ledger.update();
                }
                // Nobody takes what is not there yet.
                assert!(ledger.taken[op.micro_batch as usize] <= ledger.newest || op.kind != Kind::Forward);
                let stage = &mut stages[op.stage as usize];
                stage.versions = stage.versions.max(ledger.older + 1);
                stage.staleness = stage.staleness.max(ledger.staleness);
            }
        }
        stages
    }

    fn check(replicas: &[u32], updates: Updates, versions: &[u32], staleness: &[u32]) {
        let kept = kept_versions(replicas, updates);
        assert_eq!(kept.iter().map(|stage| stage.versions).collect::<Vec<_>>(), versions, "{replicas:?}");
        assert_eq!(kept.iter().map(|stage| stage.staleness).collect::<Vec<_>>(), staleness, "{replicas:?}");
    }

    /// The paper's example: micro-batch 5 (ours are counted from 0) takes the weights after 1 on the first machine and after 2
    /// on the second; with vertical sync those after 1 everywhere.
    #[test]
    fn micro_batch_five_of_four_stages() {
        assert_eq!(taken(&[1; 4], Stashing, 4), [1, 2, 3, 4]);
        assert_eq!(taken(&[1; 4], VerticalSync, 4), [1, 1, 1, 1]);
        // The first four come in before any update reaches the first machine.
        assert_eq!(taken(&[1; 4], Stashing, 3), [0, 1, 2, 3]);
        assert_eq!(taken(&[1; 4], VerticalSync, 3), [0, 0, 0, 0]);
        // w(t+1) = w(t) − ν·∇f(w₁(t−n+1), w₂(t−n+2), …, wₙ(t)), and all of them t−n+1 with vertical sync.
        assert_eq!(taken(&[1; 4], Stashing, 20), [17, 18, 19, 20]);
        assert_eq!(taken(&[1; 4], VerticalSync, 20), [17, 17, 17, 17]);
    }

    #[test]
    fn straight_pipelines_as_in_the_paper() {
        check(&[1; 4], Stashing, &[4, 3, 2, 1], &[3, 2, 1, 0]);
        check(&[1; 4], VerticalSync, &[4, 4, 4, 4], &[3, 3, 3, 3]);
        check(&[1], Stashing, &[1], &[0]);
        check(&[1], VerticalSync, &[1], &[0]);
        check(&[1; 8], VerticalSync, &[8; 8], &[7; 8]);
    }

    /// "15-1" of VGG-16 warms up with one round more and none, as do "3-1" and "2-1".
    #[test]
    fn replicated_stages() {
        check(&[15, 1], Stashing, &[2, 1], &[1, 0]);
        check(&[3, 1], Stashing, &[2, 1], &[1, 0]);
        check(&[2, 1], Stashing, &[2, 1], &[1, 0]);
        check(&[2, 2], Stashing, &[2, 1], &[1, 0]);
        check(&[2, 2], VerticalSync, &[2, 2], &[1, 1]);
        // The first stage updates after two micro-batches, the last after each. 6 and 7 come in when four have been seen, so
        // 7 misses 4, 5 and 6 on the last stage; once 6 is through, that keeps the weights after 4 (for 7), after 6 (for 8
        // and 9) and after 7, its newest.
        assert_eq!(taken(&[2, 1], VerticalSync, 7), [4, 4]);
        check(&[2, 1], VerticalSync, &[2, 3], &[1, 3]);
    }

    /// 2BW's rule: micro-batch k takes version max(⌊k / m⌋ − 1, 0), so that two versions are enough for every stage.
    #[test]
    fn two_versions_are_enough_for_2bw() {
        for (ranks, period) in [(1, 1), (2, 2), (4, 4), (4, 6), (5, 7), (8, 8)] {
            let shape = Shape { ranks, chunks: 1, micro_batches: 6 * period };
            let order = make_for_costs(Schedule::PipeDream2Bw, shape, crate::Cost::EQUAL).unwrap();
            let updates = Updates::DoubleBuffered { period };
            let walked = walked(&order, updates);
            assert_eq!(walked, vec![KeptVersions { versions: 2, staleness: 1 }; ranks as usize]);
            assert_eq!(walked, kept_versions(&vec![1; ranks as usize], updates));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

        /// What the formulas say is what an order comes to, pass by pass.
        #[test]
        fn formulas_are_what_orders_keep(replicas in prop::collection::vec(1_u32..6, 1..7), is_vertical in any::<bool>()) {
            let updates = if is_vertical { VerticalSync } else { Stashing };
            let order = replicated(&replicas, 300);
            prop_assert_eq!(walked(&order, updates), kept_versions(&replicas, updates), "{:?}", replicas);
        }
    }
}
