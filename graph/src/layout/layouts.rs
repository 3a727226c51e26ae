//! What each device of a group holds of a value.

use super::bands::Bands;

/// What each device of a group holds of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layout {
    /// Everything.
    #[default]
    Whole,
    /// An equal slice.
    Even(Slice),
    /// Rows, which need not be as many for each.
    Bands(Bands),
    /// A term of it.
    Sum,
}

/// Where a value is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slice {
    /// The dimension.
    pub dim: usize,
    /// In how many equal blocks it lies, each of which is cut: 3 for queries, keys and values packed one behind the other.
    pub blocks: u64,
}

impl Slice {
    /// Tells whether a size can be cut so by `degree` devices.
    pub fn fits(self, sizes: &[u64], degree: u64) -> bool {
        sizes.get(self.dim).is_some_and(|size| {
            *size > 0 && self.blocks.checked_mul(degree).is_some_and(|parts| size.is_multiple_of(parts))
        })
    }
}

impl std::fmt::Display for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Layout::Whole => f.write_str("whole"),
            Layout::Sum => f.write_str("a term of the sum"),
            Layout::Bands(Bands { dim, .. }) => write!(f, "in bands along {dim}"),
            Layout::Even(Slice { dim, blocks: 1 }) => write!(f, "cut along {dim}"),
            Layout::Even(Slice { dim, blocks }) => write!(f, "cut along {dim} in {blocks} blocks"),
        }
    }
}
