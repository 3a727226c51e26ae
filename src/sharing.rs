//! Devices that do the work of one together: which strategy each operator takes, and the workspace of one such device.
//!
//! Strategies and exchanges are `graph`'s, the search is `partitioner`'s, seconds are the cost model's and the links'. Times of
//! strategies are those of the whole operator, dealt out; once chosen, the program of one device is predicted at its own sizes.

mod choice;
mod first;
mod model;

pub use model::{SharedModel, Way, grouped, proved, proved_text, shared_by};
