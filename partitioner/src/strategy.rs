//! Strategies by name.

use simulator::order::Schedule;

use crate::problem::Problem;

/// A way to spread a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Strategy {
    /// The whole model on one device.
    OneDevice,
    /// Stages one after the other, no pipelining.
    Layer,
    /// Every device holds the whole model.
    DataParallel,
    /// All forward passes, then all backward passes.
    GPipe,
    /// Asynchronous 1F1B, stages replicated as each needs.
    PipeDream,
    /// 1F1B with a flush at the end of the step.
    OneForwardOneBackward,
    /// 1F1B over several chunks a device.
    Interleaved,
    /// 1F1B with weight gradients in the bubbles.
    ZeroBubble,
    /// Several stages, each of several replicas.
    Hybrid,
    /// Two copies of the model in opposite directions, a pass of one behind a pass of the other.
    Gems,
    /// Two copies of the model in opposite directions, merged slot by slot.
    Chimera,
    /// Two copies of the model in opposite directions, backward passes split.
    DualPipe,
    /// The same number of blocks to each stage.
    EvenLayers,
    /// The same parameters to each stage, first fit.
    EvenParameters,
    /// torchgpipe's balance by time.
    TorchGPipe,
    /// DeepSpeed's balance by parameters.
    DeepSpeed,
}

/// All strategies, in the order they are listed to users.
pub const STRATEGIES: [Strategy; 16] = [
    Strategy::OneDevice,
    Strategy::Layer,
    Strategy::DataParallel,
    Strategy::GPipe,
    Strategy::PipeDream,
    Strategy::OneForwardOneBackward,
    Strategy::Interleaved,
    Strategy::ZeroBubble,
    Strategy::Hybrid,
    Strategy::Gems,
    Strategy::Chimera,
    Strategy::DualPipe,
    Strategy::EvenLayers,
    Strategy::EvenParameters,
    Strategy::TorchGPipe,
    Strategy::DeepSpeed,
];

impl Strategy {
    /// Returns the name as `--strategy` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::OneDevice => "one-device",
            Self::Layer => "layer",
            Self::DataParallel => "data-parallel",
            Self::GPipe => "gpipe",
            Self::PipeDream => "pipedream",
            Self::OneForwardOneBackward => "1f1b",
            Self::Interleaved => "interleaved",
            Self::ZeroBubble => "zero-bubble",
            Self::Hybrid => "hybrid",
            Self::Gems => "gems-master",
            Self::Chimera => "chimera",
            Self::DualPipe => "dualpipe",
            Self::EvenLayers => "even-layers",
            Self::EvenParameters => "even-parameters",
            Self::TorchGPipe => "torchgpipe",
            Self::DeepSpeed => "deepspeed",
        }
    }

    /// Returns the strategy with this name, or with one that it goes by elsewhere, in any case.
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        let name = match name.as_str() {
            "pipedream-flush" | "pp" | "pipeline" => "1f1b",
            "single" => "one-device",
            "model-parallel" => "layer",
            "dp" | "ddp" | "fsdp" | "zero1" | "zero2" | "zero3" => "data-parallel",
            "zb" | "zb-h1" => "zero-bubble",
            "gems" => "gems-master",
            other => other,
        };
        STRATEGIES.into_iter().find(|strategy| strategy.name() == name)
    }

    /// Tells whether it cuts by a rule that people use by hand.
    pub fn is_rule(self) -> bool {
        matches!(self, Self::EvenLayers | Self::EvenParameters | Self::TorchGPipe | Self::DeepSpeed)
    }

    /// Tells whether `auto` may choose it: baselines are there to compare with, asynchronous training gives other weights than
    /// the model trained on one device, and two copies of the model are held by who asks for them.
    pub fn is_candidate(self) -> bool {
        self != Self::PipeDream && !self.is_rule() && schedule_of(self).is_none()
    }
}

/// Returns the schedule of a strategy with two copies; nothing for others.
pub(crate) fn schedule_of(strategy: Strategy) -> Option<Schedule> {
    match strategy {
        Strategy::Gems => Some(Schedule::GemsMaster),
        Strategy::Chimera => Some(Schedule::Chimera),
        Strategy::DualPipe => Some(Schedule::DualPipe),
        _ => None,
    }
}

/// Strategies that serve who does not name one.
pub(crate) fn candidates(problem: &Problem) -> impl Iterator<Item = Strategy> {
    // Who asks for a number of stages gets as many parts, no chunks of them and no whole model.
    let stages = problem.training.stages;
    let serves = move |strategy: &Strategy| match strategy {
        Strategy::OneDevice | Strategy::DataParallel => stages.is_none_or(|stages| stages == 1),
        Strategy::Interleaved => stages.is_none(),
        _ => true,
    };
    STRATEGIES.into_iter().filter(move |strategy| strategy.is_candidate() && serves(strategy))
}
