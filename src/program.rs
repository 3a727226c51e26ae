//! Who writes: the name and the version, as files say it.

/// Name and version.
pub const PROGRAM: &str = concat!("model-analyze ", env!("CARGO_PKG_VERSION"));
