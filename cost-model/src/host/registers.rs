//! Figures of a processor that its architecture's name tells.

/// Figures of a processor that terms need.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Host {
    /// Elements in a vector register: channels are padded to as many.
    pub(super) lanes: f64,
    /// Larger results are fresh memory each time: the C library maps them, and the kernel clears page by page.
    pub(super) mapped: f64,
}

impl Host {
    /// Returns the figures for an architecture's name; `None` for accelerators.
    pub(crate) fn of(architecture: Option<&str>, element: f64) -> Option<Self> {
        /// The most that glibc's threshold for mapping grows to.
        const MAPPED: f64 = 33_554_432.0;
        let register = match architecture? {
            name if name.contains("avx512") => 64.0,
            name if name.starts_with("x86") => 32.0,
            name if name.starts_with("arm") => 16.0,
            _ => return None,
        };
        Some(Self { lanes: register / element, mapped: MAPPED })
    }
}

/// Tells whether an architecture is a processor's.
pub(crate) fn is_processor(architecture: Option<&str>) -> bool {
    Host::of(architecture, 1.0).is_some()
}
