//! What can be wrong with a plan.

use schema::Bytes;
use thiserror::Error;

use crate::order::{OrderError, Schedule};

/// Why a plan cannot be simulated.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum PlanError {
    /// Another kind of file.
    #[error("the file is a `{kind}`, not a plan")]
    Kind {
        /// What it says it is.
        kind: String,
    },
    /// A newer format.
    #[error("the plan has version {version}, the newest known is {}", schema::PLAN_VERSION)]
    Version {
        /// Its version.
        version: u32,
    },
    /// No stage.
    #[error("the plan has no stages")]
    NoStages,
    /// A stage without a device.
    #[error("stage {stage} has no device")]
    NoDevice {
        /// The stage.
        stage: usize,
    },
    /// A device that the cluster does not have.
    #[error("stage {stage} runs on device `{device}`, which the cluster does not have")]
    UnknownDevice {
        /// The stage.
        stage: usize,
        /// The device.
        device: String,
    },
    /// A stage that names a device twice.
    #[error("stage {stage} names device `{device}` twice")]
    DeviceTwice {
        /// The stage.
        stage: usize,
        /// The device.
        device: String,
    },
    /// A device type that the cluster does not describe.
    #[error("device `{device}` has the type `{type_}`, which the cluster does not describe")]
    UnknownType {
        /// The device.
        device: String,
        /// Its type.
        type_: String,
    },
    /// A number that is not a cost.
    #[error("{what} is {value}: it must be a number of seconds, 0 or more, and no more than a century")]
    Cost {
        /// Which cost.
        what: String,
        /// What stands there.
        value: f64,
    },
    /// No stage takes any time.
    #[error("the stages take no time: forward, input_gradient and weight_gradient of all of them are 0")]
    NoCost,
    /// A rate that is none.
    #[error("{what} is {value}: it must be a number above 0")]
    Rate {
        /// Which rate.
        what: String,
        /// What stands there.
        value: f64,
    },
    /// A transfer between stages that are not there or in the wrong order.
    #[error(
        "a transfer goes from stage {from} to stage {to}; it must go to a later one of the {n_stages} stages"
    )]
    Transfer {
        /// Where it comes from.
        from: u32,
        /// Where it goes.
        to: u32,
        /// Stages of the plan.
        n_stages: usize,
    },
    /// Tied parameters of a stage that is not there.
    #[error("tied parameters are held by stage {stage}, the plan has {n_stages} stages")]
    Tie {
        /// The stage.
        stage: u32,
        /// Stages of the plan.
        n_stages: usize,
    },
    /// Stages that share some devices but not all.
    #[error("stages {first} and {second} share device `{device}` but not all of their devices")]
    Overlap {
        /// One stage.
        first: usize,
        /// The other.
        second: usize,
        /// A device of both.
        device: String,
    },
    /// Ranks with different numbers of stages.
    #[error(
        "the plan's {n_stages} stages are on {n_ranks} groups of devices: the same number must be on each"
    )]
    Uneven {
        /// Stages of the plan.
        n_stages: usize,
        /// Groups of devices.
        n_ranks: usize,
    },
    /// A stage on another rank than the schedule puts it.
    #[error("{} puts stage {stage} on `{expected}`, the plan on `{found}`", schedule.name())]
    Placement {
        /// The schedule.
        schedule: Schedule,
        /// The stage.
        stage: usize,
        /// First device of the rank that should run it.
        expected: String,
        /// First device that the plan gives it.
        found: String,
    },
    /// A number of the execution that makes no sense.
    #[error("{what} is {value}: it must be {rule}")]
    Execution {
        /// Which number.
        what: &'static str,
        /// What stands there.
        value: f64,
        /// What it must be.
        rule: &'static str,
    },
    /// Two ways of execution that exclude each other.
    #[error("{one} cannot be combined with {other}: {reason}")]
    Combination {
        /// One of them.
        one: &'static str,
        /// The other.
        other: &'static str,
        /// Why.
        reason: &'static str,
    },
    /// Tensor-parallel groups that do not come out.
    #[error("stage {stage} cannot be tensor-parallel: {reason}")]
    TensorParallel {
        /// The stage.
        stage: usize,
        /// Why not.
        reason: String,
    },
    /// Layers that do not make up their stage.
    #[error(
        "the layers of stage {stage} hold {} bytes of gradients, the stage {} bytes of parameters",
        layers.0,
        parameters.0
    )]
    Layers {
        /// The stage.
        stage: usize,
        /// Sum of the layers.
        layers: Bytes,
        /// The stage's own.
        parameters: Bytes,
    },
    /// A link from or to a device that the cluster does not have.
    #[error("a link joins `{from}` and `{to}`, which the cluster does not both have")]
    UnknownLink {
        /// One end.
        from: String,
        /// The other.
        to: String,
    },
    /// Numbers that are too large together.
    #[error("the {what} of the plan add up to more than {limit}, at {place} at the latest")]
    Sum {
        /// `times` or `sizes`.
        what: &'static str,
        /// What is the most.
        limit: &'static str,
        /// Where that is exceeded.
        place: String,
    },
    /// The order cannot be made.
    #[error(transparent)]
    Order(#[from] OrderError),
}
