//! Layouts: the part of a value that each device of a group holds.

use tracer::ValueId;

use super::bands::Bands;

/// The part of a value that each device of a group holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layout {
    /// Everything.
    #[default]
    Whole,
    /// An equal slice.
    Even(Slice),
    /// A band of rows; bands may be uneven.
    Bands(Bands),
    /// The rows that are routed to the device's experts; their number is known only at run time.
    Routed(Routed),
    /// The rows, of those that positions choose, that come from the device's own slice of a value.
    Taken(Taken),
    /// All rows, this many, on the first device, and none on the others.
    First(u64),
    /// A term of a sum.
    Sum,
}

/// Rows in the order of the experts that they are routed to. Each device has the same number of experts, and their
/// rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Routed {
    /// The value with the end of each expert's rows.
    pub offsets: ValueId,
    /// The number of experts.
    pub experts: u64,
}

/// Rows of a value that positions choose, in the order of the positions: each device has those that come from its own slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Taken {
    /// The value with the positions.
    pub positions: ValueId,
    /// The number of rows that positions choose from.
    pub rows: u64,
    /// The number of blocks of these rows of which each device has a slice.
    pub blocks: u64,
}

/// The dimension and blocks that a cut divides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slice {
    /// The dimension.
    pub dim: usize,
    /// The number of equal blocks in the dimension, each cut by itself: 3 for packed queries, keys and values.
    pub blocks: u64,
}

impl Slice {
    /// Tells whether `degree` devices can cut these sizes in this way.
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
            Layout::First(_) => f.write_str("on the first device only"),
            Layout::Routed(_) => f.write_str("rows that are routed to experts"),
            Layout::Taken(_) => f.write_str("rows that are taken from its own"),
            Layout::Even(Slice { dim, blocks: 1 }) => write!(f, "cut along {dim}"),
            Layout::Even(Slice { dim, blocks }) => write!(f, "cut along {dim} in {blocks} blocks"),
        }
    }
}
