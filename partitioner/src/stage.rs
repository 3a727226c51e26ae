//! What a stage costs: its time for each micro-batch and its memory.

pub(crate) mod block_bytes;
pub(crate) mod collective;
pub(crate) mod costs;
pub mod knapsack;
pub(crate) mod lines;
pub(crate) mod memo;
pub(crate) mod memory_plan;
pub(crate) mod place;
pub(crate) mod recompute;
pub(crate) mod rounds;
pub(crate) mod run;
pub(crate) mod score;
pub(crate) mod scorer;
pub(crate) mod time_table;
