//! Why there is no plan.

use schema::Bytes;

use crate::problem::ProblemError;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// The question makes no sense.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// More stages than can be cut.
    #[error("{stages} stages were asked for, the model has {blocks} blocks")]
    TooManyStages {
        /// Stages.
        stages: usize,
        /// Blocks.
        blocks: usize,
    },
    /// More stages than blocks with something to do.
    #[error("{stages} stages were asked for, the model has {blocks} with something to compute")]
    TooManyWorking {
        /// Stages.
        stages: usize,
        /// Blocks that take time.
        blocks: usize,
    },
    /// More stages in a row than devices.
    #[error("{stages} stages were asked for, the cluster has {devices} devices")]
    TooFewDevices {
        /// Stages.
        stages: usize,
        /// Devices.
        devices: usize,
    },
    /// No plan fits; names the device that is shortest of memory in the plan that comes nearest.
    #[error(
        "no plan fits: the stage with block `{block}` needs {}, device `{device}` has {}",
        Bytes(*needed),
        Bytes(*limit)
    )]
    Memory {
        /// The largest block on it.
        block: String,
        /// Bytes that it would need; with as many more on every device the plan fits.
        needed: u64,
        /// The device.
        device: String,
        /// What it has.
        limit: u64,
    },
    /// No plan fits, and the memory that would suffice was not searched for or is far away.
    #[error("no plan fits the devices' memory")]
    NothingFits,
    /// No plan of the strategy keeps the pins.
    #[error("{reason}")]
    Pinned {
        /// Which blocks, and why.
        reason: String,
        /// The most stages that were tried.
        stages: usize,
    },
    /// A schedule that does not go with these micro-batches.
    #[error("{strategy}: {reason}")]
    Schedule {
        /// Name of the strategy.
        strategy: &'static str,
        /// What is wrong.
        reason: String,
    },
}

impl PlanError {
    /// Returns the more telling error where no strategy has a plan: a model too large for one may be mispinned for another.
    pub(crate) fn or_nearer(self, other: Self) -> Self {
        let nearness = |error: &Self| match error {
            Self::NothingFits => (2, 0),
            Self::Pinned { stages, .. } => (1, *stages),
            _ => (0, 0),
        };
        if nearness(&self) > nearness(&other) || self == Self::NothingFits { self } else { other }
    }

    /// Tells whether the reason is memory.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::Memory { .. } | Self::NothingFits)
    }
}
