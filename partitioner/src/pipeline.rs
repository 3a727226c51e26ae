//! The best cut of a pipeline whose slowest stage decides.

pub(crate) mod best;
pub(crate) mod cache;
pub(crate) mod local_search;
pub(crate) mod long_chain;
pub(crate) mod pipedream;
pub(crate) mod reach;
pub(crate) mod transfers;
