//! Schedules by name: constraints, and the way from a name to an [`Order`].

use thiserror::Error;

use super::{
    Order, chimera, controllable, dualpipe, gems, gpipe, interleaved, layer_parallel, looped_bfs,
    one_f_one_b, pipedream, v1f1b, zbv, zbv_search, zero_bubble,
};
use crate::{cost::Cost, versions::Updates};

/// The most operations that are made: a bound on memory, far above any real step.
const MAX_OPS: u64 = 60_000_000;

/// Every schedule that we can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Schedule {
    /// One micro-batch after the other through all stages: no pipelining.
    LayerParallel,
    /// All forward passes, then all backward passes.
    GPipe,
    /// One forward, one backward, with a flush at the end of the step.
    OneForwardOneBackward,
    /// 1F1B without a flush: weight versions are stashed.
    PipeDream,
    /// 1F1B without a flush and two weight versions at most.
    PipeDream2Bw,
    /// 1F1B over several chunks a rank, depth first.
    Interleaved1F1B,
    /// Megatron's grouping of interleaved 1F1B.
    Vpp,
    /// GPipe over several chunks a rank, breadth first.
    LoopedBfs,
    /// Interleaved 1F1B with weight gradients postponed; ZB-H1 with one chunk.
    InterleavedZeroBubble,
    /// Zero bubble by heuristic search, memory of 1F1B.
    Zb1p,
    /// Zero bubble by heuristic search, twice the memory of 1F1B.
    Zb2p,
    /// The handcrafted V-shaped zero bubble schedule.
    Zbv,
    /// V-shaped zero bubble by heuristic search for given costs.
    ZbvSearch,
    /// V-shaped building blocks with half of 1F1B's memory.
    VHalf,
    /// V-shaped building blocks with a third of 1F1B's memory.
    VMin,
    /// V-shaped 1F1B with whole backward passes.
    V1f1b,
    /// Two copies of the model from both ends, forward and backward overlapped.
    DualPipe,
    /// DualPipe folded into a V: one copy of the model.
    DualPipeV,
    /// Two copies of the model from both ends, merged slot by slot.
    Chimera,
    /// Two copies of the model, one pass behind the other (GEMS-MAST).
    Gems,
    /// GEMS with several pairs of passes.
    GemsMaster,
}

/// All schedules, in the order they are listed to users.
pub const ALL: [Schedule; 21] = [
    Schedule::LayerParallel,
    Schedule::GPipe,
    Schedule::OneForwardOneBackward,
    Schedule::PipeDream,
    Schedule::PipeDream2Bw,
    Schedule::Interleaved1F1B,
    Schedule::Vpp,
    Schedule::LoopedBfs,
    Schedule::InterleavedZeroBubble,
    Schedule::Zb1p,
    Schedule::Zb2p,
    Schedule::Zbv,
    Schedule::ZbvSearch,
    Schedule::VHalf,
    Schedule::VMin,
    Schedule::V1f1b,
    Schedule::DualPipe,
    Schedule::DualPipeV,
    Schedule::Chimera,
    Schedule::Gems,
    Schedule::GemsMaster,
];

/// How large an order is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Pipeline ranks.
    pub ranks: u32,
    /// Stages of one copy of the model on each rank.
    pub chunks: u32,
    /// Micro-batches of the step, over all copies of the model.
    pub micro_batches: u32,
}

/// Why an order cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OrderError {
    /// No such schedule.
    #[error("unknown schedule `{name}`{}", suggestion.map(|s| format!(", did you mean `{}`?", s.name())).unwrap_or_default())]
    Unknown {
        /// What was asked for.
        name: String,
        /// The nearest name, when it is near.
        suggestion: Option<Schedule>,
    },
    /// No rank, no chunk or no micro-batch.
    #[error("a schedule needs at least one {what}")]
    Zero {
        /// `rank`, `chunk` or `micro-batch`.
        what: &'static str,
    },
    /// The schedule fixes the number of chunks.
    #[error("{} needs exactly {needed} stage{} on each rank, not {given}", schedule.name(), if *needed == 1 { "" } else { "s" })]
    Chunks {
        /// The schedule.
        schedule: Schedule,
        /// What it needs.
        needed: u32,
        /// What was asked for.
        given: u32,
    },
    /// The schedule needs another number of ranks.
    #[error("{} needs {rule}, not {given} ranks", schedule.name())]
    Ranks {
        /// The schedule.
        schedule: Schedule,
        /// The constraint in words.
        rule: &'static str,
        /// What was asked for.
        given: u32,
    },
    /// The schedule needs another number of micro-batches.
    #[error("{} needs {rule}, not {given} micro-batch{}{}", schedule.name(), if *given == 1 { "" } else { "es" },
        smallest.map_or(String::new(), |smallest| format!(": the next that works is {smallest}")))]
    MicroBatches {
        /// The schedule.
        schedule: Schedule,
        /// The constraint in words.
        rule: String,
        /// What was asked for.
        given: u32,
        /// The smallest legal number that is no smaller than the given one.
        smallest: Option<u32>,
    },
    /// More operations than we are ready to hold.
    #[error("the schedule would have {ops} operations, the most that is made is {MAX_OPS}")]
    TooLarge {
        /// How many.
        ops: u64,
    },
}

impl Schedule {
    /// Returns the name as `--schedule` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Schedule::LayerParallel => "layer-parallel",
            Schedule::GPipe => "gpipe",
            Schedule::OneForwardOneBackward => "1f1b",
            Schedule::PipeDream => "pipedream",
            Schedule::PipeDream2Bw => "pipedream-2bw",
            Schedule::Interleaved1F1B => "interleaved-1f1b",
            Schedule::Vpp => "vpp",
            Schedule::LoopedBfs => "looped-bfs",
            Schedule::InterleavedZeroBubble => "interleaved-zero-bubble",
            Schedule::Zb1p => "zb1p",
            Schedule::Zb2p => "zb2p",
            Schedule::Zbv => "zbv",
            Schedule::ZbvSearch => "zbv-search",
            Schedule::VHalf => "v-half",
            Schedule::VMin => "v-min",
            Schedule::V1f1b => "v1f1b",
            Schedule::DualPipe => "dualpipe",
            Schedule::DualPipeV => "dualpipev",
            Schedule::Chimera => "chimera",
            Schedule::Gems => "gems",
            Schedule::GemsMaster => "gems-master",
        }
    }

    /// Returns what the schedule does, in one line.
    pub fn summary(self) -> &'static str {
        match self {
            Schedule::LayerParallel => "one micro-batch after the other through all stages",
            Schedule::GPipe => "all forward passes, then all backward passes",
            Schedule::OneForwardOneBackward => "one forward, one backward; flush at the end",
            Schedule::PipeDream => "1F1B without a flush, weight versions stashed",
            Schedule::PipeDream2Bw => "1F1B without a flush, two weight versions",
            Schedule::Interleaved1F1B => "1F1B over several stages a rank, depth first",
            Schedule::Vpp => "interleaved 1F1B in Megatron's grouping",
            Schedule::LoopedBfs => "GPipe over several stages a rank, breadth first",
            Schedule::InterleavedZeroBubble => "interleaved 1F1B, weight gradients fill the bubble; ZB-H1",
            Schedule::Zb1p => "zero bubble searched for the costs, memory of 1F1B",
            Schedule::Zb2p => "zero bubble searched for the costs, twice the memory",
            Schedule::Zbv => "V-shaped zero bubble, fixed pattern",
            Schedule::ZbvSearch => "V-shaped zero bubble searched for the costs",
            Schedule::VHalf => "V-shaped, half the memory of 1F1B",
            Schedule::VMin => "V-shaped, a third of the memory of 1F1B",
            Schedule::V1f1b => "V-shaped 1F1B, whole backward passes",
            Schedule::DualPipe => "two copies from both ends, forward over backward",
            Schedule::DualPipeV => "DualPipe folded into a V, one copy",
            Schedule::Chimera => "two copies from both ends, merged",
            Schedule::Gems => "two copies, the second behind the first",
            Schedule::GemsMaster => "GEMS, several pairs of passes",
        }
    }

    /// Returns the schedule with this name: ours, PyTorch's class name or the paper's.
    ///
    /// # Errors
    /// Names the nearest schedule when none has the name.
    pub fn from_name(name: &str) -> Result<Self, OrderError> {
        let wanted = normalise(name);
        let aliases: [(&str, Schedule); 17] = [
            ("none", Schedule::LayerParallel),
            ("sequential", Schedule::LayerParallel),
            ("pipedreamflush", Schedule::OneForwardOneBackward),
            ("dapple", Schedule::OneForwardOneBackward),
            ("2bw", Schedule::PipeDream2Bw),
            ("interleaved", Schedule::Interleaved1F1B),
            ("bfs", Schedule::LoopedBfs),
            ("zbh1", Schedule::InterleavedZeroBubble),
            ("zerobubble", Schedule::InterleavedZeroBubble),
            ("zbvzerobubble", Schedule::Zbv),
            ("zbvgreedy", Schedule::ZbvSearch),
            ("vpp2", Schedule::Vpp),
            ("gemsmast", Schedule::Gems),
            ("mast", Schedule::Gems),
            ("master", Schedule::GemsMaster),
            ("schedulegpipe", Schedule::GPipe),
            ("schedule1f1b", Schedule::OneForwardOneBackward),
        ];
        let by_name = ALL.into_iter().find(|schedule| normalise(schedule.name()) == wanted);
        let by_alias = || aliases.iter().find(|(alias, _)| *alias == wanted).map(|(_, schedule)| *schedule);
        by_name.or_else(by_alias).ok_or_else(|| {
            let distance = |schedule: &Schedule| edit_distance(&normalise(schedule.name()), &wanted);
            let suggestion = ALL.into_iter().min_by_key(distance).filter(|near| distance(near) <= 3);
            OrderError::Unknown { name: name.chars().take(40).collect(), suggestion }
        })
    }

    /// Returns the number of copies of the model that the schedule keeps.
    pub fn copies(self) -> u32 {
        match self {
            Schedule::DualPipe | Schedule::Chimera | Schedule::Gems | Schedule::GemsMaster => 2,
            _ => 1,
        }
    }

    /// Tells whether steps follow each other without a flush.
    pub fn is_asynchronous(self) -> bool {
        matches!(self, Schedule::PipeDream | Schedule::PipeDream2Bw)
    }

    /// Returns when weights change while micro-batches are on their way; `None` where a step ends with a flush.
    ///
    /// PipeDream updates after each micro-batch, 2BW after those of a step.
    pub fn updates(self, micro_batches: u32) -> Option<Updates> {
        match self {
            Schedule::PipeDream => Some(Updates::Stashing),
            Schedule::PipeDream2Bw => Some(Updates::DoubleBuffered { period: micro_batches }),
            _ => None,
        }
    }

    /// Returns the same with vertical sync.
    ///
    /// # Errors
    /// Says why that would change nothing.
    pub fn vertical_sync(self) -> Result<Updates, &'static str> {
        match self {
            Schedule::PipeDream => Ok(Updates::VerticalSync),
            Schedule::PipeDream2Bw => {
                Err("micro-batches of one period take the same weights in every stage already")
            }
            _ => Err("its steps end with a flush, and every stage has one version of its weights"),
        }
    }

    /// Tells whether the order is searched for the costs, and not fixed by its shape alone.
    pub fn depends_on_costs(self) -> bool {
        matches!(self, Schedule::Zb1p | Schedule::Zb2p | Schedule::ZbvSearch)
    }

    /// Tells whether a rank holds two stages of a V: one on the way down through the ranks and one on the way back.
    pub fn is_in_v(self) -> bool {
        matches!(
            self,
            Schedule::Zbv
                | Schedule::ZbvSearch
                | Schedule::VHalf
                | Schedule::VMin
                | Schedule::V1f1b
                | Schedule::DualPipeV
        )
    }

    /// Returns the number of stages on each rank where the schedule fixes it.
    pub fn fixed_chunks(self) -> Option<u32> {
        match self {
            Schedule::Interleaved1F1B
            | Schedule::Vpp
            | Schedule::LoopedBfs
            | Schedule::InterleavedZeroBubble
            | Schedule::LayerParallel => None,
            _ if self.is_in_v() => Some(2),
            _ => Some(1),
        }
    }

    /// Returns the rank that holds a stage.
    pub fn rank_of(self, stage: u32, ranks: u32) -> u32 {
        // A V comes back through the ranks; a second copy starts at the other end.
        if self.is_in_v() || self.copies() > 1 {
            if stage < ranks { stage } else { 2 * ranks - 1 - stage }
        } else {
            stage % ranks
        }
    }

    /// Checks a shape.
    ///
    /// # Errors
    /// Names the constraint that the shape breaks, and the next number that keeps it.
    pub fn check(self, shape: Shape) -> Result<(), OrderError> {
        let Shape { ranks, chunks, micro_batches } = shape;
        for (value, what) in [(ranks, "rank"), (chunks, "chunk"), (micro_batches, "micro-batch")] {
            if value == 0 {
                return Err(OrderError::Zero { what });
            }
        }
        let ops = 3 * u64::from(ranks).saturating_mul(u64::from(chunks)).saturating_mul(micro_batches.into());
        if ops > MAX_OPS {
            return Err(OrderError::TooLarge { ops });
        }
        if let Some(needed) = self.fixed_chunks().filter(|needed| *needed != chunks) {
            return Err(OrderError::Chunks { schedule: self, needed, given: chunks });
        }
        let micro_batch_error = |rule: String, smallest: Option<u32>| {
            Err(OrderError::MicroBatches { schedule: self, rule, given: micro_batches, smallest })
        };
        match self {
            Schedule::OneForwardOneBackward | Schedule::PipeDream2Bw if micro_batches < ranks => {
                micro_batch_error(format!("at least {ranks} micro-batches, one for each rank"), Some(ranks))
            }
            Schedule::Interleaved1F1B | Schedule::InterleavedZeroBubble => {
                let fits = |m: u32| m.is_multiple_of((m / ranks).max(1));
                if fits(micro_batches) {
                    return Ok(());
                }
                let rounds = micro_batches / ranks;
                let next = (micro_batches..).find(|m| fits(*m));
                micro_batch_error(format!("a multiple of its {rounds} rounds of {ranks} ranks"), next)
            }
            Schedule::Vpp if !micro_batches.is_multiple_of(ranks) => micro_batch_error(
                format!("a multiple of {ranks} micro-batches, the number of ranks"),
                Some(micro_batches.next_multiple_of(ranks)),
            ),
            Schedule::DualPipeV if micro_batches < 2 * ranks => micro_batch_error(
                format!("at least {} micro-batches, one for each stage", 2 * ranks),
                Some(2 * ranks),
            ),
            Schedule::DualPipe | Schedule::Chimera if !ranks.is_multiple_of(2) => {
                Err(OrderError::Ranks { schedule: self, rule: "an even number of ranks", given: ranks })
            }
            Schedule::DualPipe if micro_batches < 2 * ranks || micro_batches % 2 != 0 => micro_batch_error(
                format!("an even number of at least {} micro-batches", 2 * ranks),
                Some(micro_batches.max(2 * ranks).next_multiple_of(2)),
            ),
            Schedule::Chimera if micro_batches % 2 != 0 => micro_batch_error(
                "an even number of micro-batches, half for each copy".to_string(),
                Some(micro_batches.next_multiple_of(2)),
            ),
            Schedule::Gems if micro_batches != 2 => micro_batch_error(
                "exactly 2 micro-batches, one for each copy".to_string(),
                (micro_batches < 2).then_some(2),
            ),
            _ => Ok(()),
        }
    }
}

/// Makes the order of a schedule by name, at forward = input gradient = weight gradient where costs matter.
///
/// # Errors
/// Names the unknown schedule or the constraint that the shape breaks.
pub fn make(name: &str, ranks: u32, chunks: u32, micro_batches: u32) -> Result<Order, OrderError> {
    make_for_costs(Schedule::from_name(name)?, Shape { ranks, chunks, micro_batches }, Cost::EQUAL)
}

/// Makes the order of a schedule; the costs matter only to those that [`Schedule::depends_on_costs`].
///
/// # Errors
/// Names the constraint that the shape breaks.
pub fn make_for_costs(schedule: Schedule, shape: Shape, cost: Cost) -> Result<Order, OrderError> {
    schedule.check(shape)?;
    let Shape { ranks, chunks, micro_batches } = shape;
    Ok(match schedule {
        Schedule::LayerParallel => layer_parallel::order(ranks, chunks, micro_batches),
        Schedule::GPipe => gpipe::order(ranks, micro_batches),
        Schedule::OneForwardOneBackward => one_f_one_b::order(ranks, micro_batches),
        Schedule::PipeDream | Schedule::PipeDream2Bw => pipedream::order(ranks, micro_batches),
        Schedule::Interleaved1F1B => interleaved::one_f_one_b(ranks, chunks, micro_batches),
        Schedule::Vpp => interleaved::vpp(ranks, chunks, micro_batches),
        Schedule::LoopedBfs => looped_bfs::order(ranks, chunks, micro_batches),
        Schedule::InterleavedZeroBubble => interleaved::zero_bubble(ranks, chunks, micro_batches),
        Schedule::Zb1p => zero_bubble::order(ranks, micro_batches, cost, 1),
        Schedule::Zb2p => zero_bubble::order(ranks, micro_batches, cost, 2),
        Schedule::Zbv => zbv::order(ranks, micro_batches),
        Schedule::ZbvSearch => zbv_search::order(ranks, micro_batches, cost),
        Schedule::VHalf => controllable::order(ranks, micro_batches, controllable::Memory::Half),
        Schedule::VMin => controllable::order(ranks, micro_batches, controllable::Memory::Min),
        Schedule::V1f1b => v1f1b::order(ranks, micro_batches),
        Schedule::DualPipe => dualpipe::two_copies(ranks, micro_batches),
        Schedule::DualPipeV => dualpipe::folded(ranks, micro_batches),
        Schedule::Chimera => chimera::order(ranks, micro_batches),
        Schedule::Gems | Schedule::GemsMaster => gems::order(ranks, micro_batches),
    })
}

/// Returns a name without case and punctuation: `Interleaved-1F1B` and `interleaved_1f1b` are one.
pub fn normalise(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).take(64).map(|c| c.to_ascii_lowercase()).collect()
}

/// Levenshtein's distance. O(a·b); names are cut to 64 letters.
fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_suggested() {
        let check = |name: &str, expected: Result<Schedule, &str>| {
            let found = Schedule::from_name(name).map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(str::to_string), "{name}");
        };
        for schedule in ALL {
            check(schedule.name(), Ok(schedule));
        }
        check("1F1B", Ok(Schedule::OneForwardOneBackward));
        check("ZBVZeroBubble", Ok(Schedule::Zbv));
        check("InterleavedZeroBubble", Ok(Schedule::InterleavedZeroBubble));
        check("Interleaved_1F1B", Ok(Schedule::Interleaved1F1B));
        check("1f2b", Err("unknown schedule `1f2b`, did you mean `1f1b`?"));
        check("gpip", Err("unknown schedule `gpip`, did you mean `gpipe`?"));
        check("chimeera", Err("unknown schedule `chimeera`, did you mean `chimera`?"));
        check("something else", Err("unknown schedule `something else`"));
    }

    #[test]
    fn constraints_say_what_would_work() {
        let check = |name: &str, ranks, chunks, micro_batches, expected: &str| {
            assert_eq!(make(name, ranks, chunks, micro_batches).unwrap_err().to_string(), expected);
        };
        check(
            "1f1b",
            4,
            1,
            3,
            "1f1b needs at least 4 micro-batches, one for each rank, not 3 micro-batches: the next that works is 4",
        );
        check("zbv", 4, 1, 8, "zbv needs exactly 2 stages on each rank, not 1");
        check("gpipe", 4, 2, 8, "gpipe needs exactly 1 stage on each rank, not 2");
        check(
            "interleaved-1f1b",
            4,
            2,
            13,
            "interleaved-1f1b needs a multiple of its 3 rounds of 4 ranks, not 13 micro-batches: the next that works is 15",
        );
        check(
            "dualpipev",
            4,
            2,
            7,
            "dualpipev needs at least 8 micro-batches, one for each stage, not 7 micro-batches: the next that works is 8",
        );
        check("dualpipe", 3, 1, 12, "dualpipe needs an even number of ranks, not 3 ranks");
        check(
            "dualpipe",
            4,
            1,
            9,
            "dualpipe needs an even number of at least 8 micro-batches, not 9 micro-batches: the next that works is 10",
        );
        check("gpipe", 4, 1, 0, "a schedule needs at least one micro-batch");
        check(
            "gpipe",
            100_000,
            1,
            100_000,
            "the schedule would have 30000000000 operations, the most that is made is 60000000",
        );
    }
}
