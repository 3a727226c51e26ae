//! How long will a block take on a device?
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod curve;
mod dense;
mod evaluate;
mod fit;
mod nnls;
mod ridge;
mod terms;
mod work;

pub use curve::{Curve, Estimate};
pub use evaluate::{Accuracy, Split, shuffle, spearman, split};
pub use fit::{MIN_ROWS, Sample, TooFewRows, Validation, fit};
pub use work::{Machine, Work, element_bytes};
