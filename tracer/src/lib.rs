//! What does a trace say? Archives and IR text become a syntax tree.

mod program;

pub mod ir;

pub use program::*;
