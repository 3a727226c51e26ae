//! What a stage recomputes or offloads to fit its memory.

/// What a stage throws away and computes or fetches again.
#[derive(Clone, Debug)]
pub(crate) struct Again {
    pub(crate) seconds: f64,
    pub(crate) memory: f64,
    pub(crate) recompute: Vec<usize>,
    pub(crate) offload: Vec<usize>,
}

/// What throwing a block away, or more of it, brings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gain {
    pub(crate) block: usize,
    pub(crate) bytes: f64,
    pub(crate) seconds_per_byte: f64,
}
