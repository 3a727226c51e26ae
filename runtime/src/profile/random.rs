//! Random numbers for plans: SplitMix64.
//!
//! Implemented here because a seed in a file must give the same plan in every later release, which no library promises.
//! Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014.

/// A stream of numbers.
pub(super) struct Random(u64);

impl Random {
    /// Returns stream number `stream` of a seed; streams do not overlap in practice.
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        let mut mixed = Self(seed);
        let start = mixed.next();
        let mut mixed = Self(start ^ stream.wrapping_mul(0xd1b5_4a32_d192_ed03));
        Self(mixed.next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number in [0, 1).
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns an index below `n`, which is at least one.
    pub(super) fn below(&mut self, n: usize) -> usize {
        ((self.unit() * n as f64) as usize).min(n - 1)
    }

    /// Returns one of the choices, of which there is at least one.
    pub(super) fn choose<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Returns a number between the two whose logarithm is uniform.
    pub(super) fn log_uniform(&mut self, low: f64, high: f64) -> f64 {
        low * (high / low).powf(self.unit())
    }

    /// Shuffles in place.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.below(end + 1));
        }
    }
}
