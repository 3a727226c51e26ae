//! What plans are searched for, and what a search returns.

use crate::{error::PlanError, solution::Solution};

/// What plans are searched for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Goal {
    /// The fastest, and what none beats.
    Best,
    /// The fastest if it takes less than these seconds for each micro-batch; others are pruned.
    Below(f64),
    /// Any that fits: whether there is one.
    Any,
}

impl Goal {
    /// Returns the seconds for each micro-batch below which plans are looked for.
    pub(crate) fn below(self) -> f64 {
        match self {
            Self::Below(seconds) => seconds,
            Self::Best | Self::Any => f64::INFINITY,
        }
    }
}

/// A plan and the seconds for each micro-batch that none beats with the devices in their order; or why there is none, and what
/// one would take at the least.
pub(crate) type InOrder = Result<(Solution, f64), (PlanError, f64)>;
