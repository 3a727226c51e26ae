//! Tests that try everything, on random problems that are small enough.

mod all_pipelines;
pub(crate) mod all_plans;
mod host_overhead;
mod inference;
mod monotone;
mod numbers_tried;
pub(crate) mod random_problems;
mod simulated;
