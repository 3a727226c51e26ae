//! Layouts: the part of a value that each of `n` devices holds when they share layers.
//!
//! | layout | a device holds | its gradient is laid out as |
//! |---|---|---|
//! | [`Layout::Whole`] | everything | whole, where each taker does the same on all devices; a term of a sum, where one takes a part |
//! | [`Layout::Even`] | an equal slice of one dimension | the same slice |
//! | [`Layout::Bands`] | some rows of an image, as even as can be | the same rows |
//! | [`Layout::Routed`] | the rows that are routed to its experts | the same rows |
//! | [`Layout::Taken`] | those of chosen rows that come from its own slice | the same rows |
//! | [`Layout::First`] | everything on the first device, no rows on the others | on the first device |
//! | [`Layout::Sum`] | a term; the value is the sum of all | whole |
//!
//! An operator has [`Strategy`]s: the layout that each operand must have, and the layout of the results. They follow
//! from its row's [`operators::Split`], one rule per family (`rules`). If a value is made in another layout than its
//! consumer needs, devices exchange the missing parts ([`Exchange`]); each exchange has a transpose for the gradient.
//!
//! [`sharded()`] writes the program of one device. It is a program like any other: its sizes are inferred again, which
//! refuses a size that was not divided, and all code that reads programs can read it. [`check()`] proves the rest.

mod bands;
mod check;
mod exchange;
mod later;
mod layouts;
mod rules;
mod sharded;
mod strategy;
mod subject;

pub use bands::{Bands, Moved, Resampling, Rows, Stretch, Take, Window};
pub use check::{CheckError, Proof, check};
pub use exchange::{Collective, Exchange, exchanges};
pub use later::is_summed_later;
pub use layouts::{Layout, Routed, Slice, Taken};
pub use sharded::{Choice, Inside, ShardError, Sharded, Writes, sharded};
pub use strategy::{After, Edit, Need, Special, Strategy, Value};
pub use subject::{Context, Images, Leaf, Source};
