//! Random numbers for property tests, the same in every run, and how many cases a run draws.

/// Returns how many cases a property is tried on: `PLAN_CASES` of the environment, or `default`.
pub fn cases(default: usize) -> usize {
    let wanted = std::env::var("PLAN_CASES").ok().and_then(|text| text.parse::<usize>().ok());
    wanted.unwrap_or(default)
}

/// Tells whether a case is left out: those before `PLAN_FIRST` of the environment, to come back to one that failed, or to go
/// through many in slices. What a property asks of all of its cases together is not asked of a slice.
pub fn is_skipped(case: usize) -> bool {
    let first = std::env::var("PLAN_FIRST").ok().and_then(|text| text.parse::<usize>().ok());
    first.is_some_and(|first| case < first)
}

/// Small numbers that are the same in every run.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % limit
    }

    pub fn flip(&mut self) -> bool {
        self.below(2) == 1
    }
}
