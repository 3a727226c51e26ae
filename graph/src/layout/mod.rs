//! Layouts: what each of `n` devices holds of a value when they do the work of one together.
//!
//! | layout | a device holds | its gradient is laid out as |
//! |---|---|---|
//! | [`Layout::Whole`] | everything | whole, where each taker does the same on all devices; a term of a sum, where one takes a part |
//! | [`Layout::Even`] | an equal slice of one dimension | the same slice |
//! | [`Layout::Bands`] | some rows of an image, as even as can be | the same rows |
//! | [`Layout::Sum`] | a term; the value is the sum of all | whole |
//!
//! An operator has [`Strategy`]s: which layout each operand must have, which the results then have. They follow from its row's
//! [`operators::Split`], one rule for each family (`rules`). Where a value is made in another layout than it is taken in,
//! devices exchange what is missing ([`Exchange`]); each exchange has a transpose, which is what its gradient does.
//!
//! [`sharded()`] writes the program that one of the devices runs. It is a program like any other: its sizes are inferred again,
//! which refuses a size that was not divided, and all that reads programs reads it. [`check()`] proves of it what is left to prove.

mod bands;
mod check;
mod exchange;
mod look;
mod rules;
mod sharded;
mod strategy;

pub use bands::{Bands, Moved, Resampling, Rows, Stretch, Take, Window};
pub use check::{CheckError, Proof, check};
pub use exchange::{Collective, Exchange, exchanges};
pub use look::{Images, Leaf, Look, Source};
pub use sharded::{Choice, Inside, ShardError, Sharded, Writes, sharded};
pub use strategy::{After, Edit, Need, Special, Strategy, Value};

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
