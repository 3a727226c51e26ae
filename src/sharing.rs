//! Devices that share layers: the strategy of each operator, and the workspace of one such device.
//!
//! Strategies and exchanges come from `graph`, the search from `partitioner`, seconds from the cost model and the
//! links. Times of strategies are parts of the whole operator's time; after the choice, the program of one device is
//! predicted at its own sizes.

mod choice;
mod first;
mod model;

pub use model::{SharedModel, Way, grouped, proved, proved_text, shared_by};
