//! The goal of a search, and its result.

use crate::{error::PlanError, solution::Solution};

/// The plans to search for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Goal {
    /// The fastest, with its lower bound.
    Best,
    /// The fastest if it takes less than these seconds for each micro-batch; others are pruned.
    Below(f64),
    /// Any that fits: feasibility alone.
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

/// A plan and the lower bound in seconds for each micro-batch with the devices in this order; or why there is none, and that
/// bound.
pub(crate) type InOrder = Result<(Solution, f64), (PlanError, f64)>;
