//! Products of sizes.

/// Multiplies numbers from a file, as far as 64 bits go.
pub(crate) fn times(numbers: impl IntoIterator<Item = u64>) -> u64 {
    numbers.into_iter().fold(1, u64::saturating_mul)
}
