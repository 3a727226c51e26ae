//! The program's name and version, as written into files.

/// Name and version.
pub const PROGRAM: &str = concat!("model-analyze ", env!("CARGO_PKG_VERSION"));
