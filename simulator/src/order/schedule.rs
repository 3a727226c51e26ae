//! Schedules by name: constraints, and the way from a name to an [`Order`].

use thiserror::Error;

use super::{
    ALL, InFlight, Order, Regular, Schedule,
    row::{Chunks, Need, Shape, Share, Terms},
};
use crate::{cost::Cost, versions::Updates};

/// The most operations that are made: a bound on memory, far above any real step.
const MAX_OPS: u64 = 60_000_000;

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
        self.row().name
    }

    /// Returns the schedule with this name: ours, PyTorch's class name or the paper's.
    ///
    /// # Errors
    /// Names the nearest schedule when none has the name.
    pub fn from_name(name: &str) -> Result<Self, OrderError> {
        let wanted = normalise(name);
        let by_name = ALL.into_iter().find(|schedule| normalise(schedule.name()) == wanted);
        let by_alias = || ALL.into_iter().find(|schedule| schedule.row().aliases.contains(&wanted.as_str()));
        by_name.or_else(by_alias).ok_or_else(|| {
            let distance = |schedule: &Schedule| edit_distance(&normalise(schedule.name()), &wanted);
            let suggestion = ALL.into_iter().min_by_key(distance).filter(|near| distance(near) <= 3);
            OrderError::Unknown { name: name.chars().take(40).collect(), suggestion }
        })
    }

    /// Returns the number of copies of the model that the schedule keeps.
    pub fn copies(self) -> u32 {
        self.row().copies
    }

    /// Tells whether steps follow each other without a flush.
    pub fn is_asynchronous(self) -> bool {
        self.row().updates.is_some()
    }

    /// Returns when weights change while micro-batches are on their way; `None` where a step ends with a flush.
    ///
    /// PipeDream updates after each micro-batch, 2BW after those of a step.
    pub fn updates(self, micro_batches: u32) -> Option<Updates> {
        self.row().updates.map(|updates| updates(micro_batches))
    }

    /// Returns the same with vertical sync.
    ///
    /// # Errors
    /// Says why that would change nothing.
    pub fn vertical_sync(self) -> Result<Updates, &'static str> {
        self.row().vertical_sync
    }

    /// Tells whether the order is searched for the costs, and not fixed by its shape alone.
    pub fn depends_on_costs(self) -> bool {
        self.row().is_searched
    }

    /// Tells whether a rank holds two stages of a V: one on the way down through the ranks and one on the way back.
    pub fn is_in_v(self) -> bool {
        self.row().chunks == Chunks::V
    }

    /// Returns the number of stages on each rank where the schedule fixes it.
    pub fn fixed_chunks(self) -> Option<u32> {
        match self.row().chunks {
            Chunks::One => Some(1),
            Chunks::Any => None,
            Chunks::V => Some(2),
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

    /// Returns the micro-batches whose activations a stage holds, `each` being those of one replica.
    pub fn in_flight(self, ranks: usize, chunks: usize, each: usize, replicas: usize) -> InFlight {
        (self.row().in_flight)(&Share { ranks, chunks, replicas, each })
    }

    /// Returns the exact makespan of a step, where a closed form is known for these costs.
    ///
    /// Never an approximation: a formula is exact only under its condition, and outside of it there is none.
    ///
    /// ```
    /// use simulator::{Cost, order::{Schedule, Shape}};
    ///
    /// let shape = Shape { ranks: 4, chunks: 1, micro_batches: 8 };
    /// assert_eq!(Schedule::GPipe.makespan(shape, &Cost::EQUAL), Some((8 + 4 - 1) * 3));
    /// ```
    pub fn makespan(self, shape: Shape, cost: &Cost) -> Option<u64> {
        self.check(shape).ok()?;
        u64::try_from((self.row().makespan)(&Terms::new(shape, cost))?).ok()
    }

    /// Returns the schedule's program where it is regular; nothing where only a written order has it, or it does not run that shape.
    pub fn regular(self, shape: Shape) -> Option<Regular> {
        self.check(shape).ok()?;
        let Shape { ranks, chunks, micro_batches } = shape;
        match (self, chunks) {
            (Schedule::GPipe, 1) => Some(Regular::GPipe { ranks, micro_batches }),
            (Schedule::OneForwardOneBackward, 1) => {
                Some(Regular::OneForwardOneBackward { ranks, micro_batches })
            }
            (Schedule::Interleaved1F1B, _) => Some(Regular::interleaved(ranks, chunks, micro_batches)),
            _ => None,
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
        (self.row().needs)(shape).map_err(|need| match need {
            Need::Ranks(rule) => OrderError::Ranks { schedule: self, rule, given: ranks },
            Need::MicroBatches(rule, smallest) => {
                OrderError::MicroBatches { schedule: self, rule, given: micro_batches, smallest }
            }
        })
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
    Ok((schedule.row().order)(shape, cost))
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
