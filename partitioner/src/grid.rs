//! Synchronous plans: stages in a row, timed by the order of operations that will run.

pub(crate) mod all_cuts;
pub(crate) mod attempt;
pub(crate) mod chunk_memory;
pub(crate) mod hill_climb;
pub(crate) mod question;
pub(crate) mod search;
pub(crate) mod shape;
pub(crate) mod solver;
pub(crate) mod stage_times;
pub(crate) mod step_time;
pub(crate) mod two_copies;
