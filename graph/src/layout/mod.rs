//! Layouts: what each of `n` devices holds of a value when they do the work of one together.
//!
//! | layout | a device holds | its gradient is laid out as |
//! |---|---|---|
//! | [`Layout::Whole`] | everything | whole, where each taker does the same on all devices; a term of a sum, where one takes a part |
//! | [`Layout::Even`] | an equal slice of one dimension | the same slice |
//! | [`Layout::Bands`] | some rows of an image, as even as can be | the same rows |
//! | [`Layout::Routed`] | the rows that are routed to its experts | the same rows |
//! | [`Layout::First`] | everything on the first device, no rows on the others | on the first device |
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
mod layouts;
mod rules;
mod sharded;
mod strategy;
mod subject;

pub use bands::{Bands, Moved, Resampling, Rows, Stretch, Take, Window};
pub use check::{CheckError, Proof, check};
pub use exchange::{Collective, Exchange, exchanges};
pub use layouts::{Layout, Routed, Slice};
pub use sharded::{Choice, Inside, ShardError, Sharded, Writes, sharded};
pub use strategy::{After, Edit, Need, Special, Strategy, Value};
pub use subject::{Images, Leaf, Look, Source};
