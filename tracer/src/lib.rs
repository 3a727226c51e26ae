//! What does a trace say? Archives and IR text become a syntax tree.

mod program;

pub use program::*;
