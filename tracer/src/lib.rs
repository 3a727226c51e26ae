//! What does a trace say? Archives and IR text become a syntax tree.

mod archive;
mod code;
mod digest;
mod error;
mod flatten;
pub mod ir;
mod program;

pub use archive::{is_archive, read_archive};
pub use digest::digest;
pub use error::{PickleFault, Place, TraceError};
pub use program::*;
