//! Strategies: a file each in `strategy/`, and a line each in the table below.

pub(crate) mod row;

mod chimera;
mod data_parallel;
pub(crate) mod deepspeed;
mod dualpipe;
mod dualpipev;
pub(crate) mod even_layers;
pub(crate) mod even_parameters;
mod gems;
mod gpipe;
mod hybrid;
mod interleaved;
mod layer;
mod one_device;
mod one_f_one_b;
mod pipedream;
pub(crate) mod torchgpipe;
mod zb2p;
mod zbv;
mod zero_bubble;

use simulator::order::Schedule;

use crate::{
    problem::Problem,
    strategy::row::{AskedStages, Row, Search},
};

macro_rules! strategies {
    ($($strategy:ident: $file:ident, $summary:literal;)*) => {
        /// A way to spread a model.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Strategy {
            $(#[doc = $summary] $strategy,)*
        }

        /// All strategies, in the order they are listed to users.
        pub const STRATEGIES: [Strategy; [$(Strategy::$strategy),*].len()] = [$(Strategy::$strategy),*];

        impl Strategy {
            pub(crate) fn row(self) -> &'static Row {
                match self {
                    $(Self::$strategy => &$file::ROW,)*
                }
            }
        }
    };
}

strategies! {
    OneDevice: one_device, "The whole model on one device.";
    Layer: layer, "Stages one after the other, no pipelining.";
    DataParallel: data_parallel, "Every device holds the whole model.";
    GPipe: gpipe, "All forward passes, then all backward passes.";
    PipeDream: pipedream, "Asynchronous 1F1B, stages replicated as each needs.";
    OneForwardOneBackward: one_f_one_b, "1F1B with a flush at the end of the step.";
    Interleaved: interleaved, "1F1B over several chunks a device.";
    ZeroBubble: zero_bubble, "1F1B with weight gradients in the bubbles.";
    Zb2p: zb2p, "Zero bubble by search, up to twice 1F1B's activations.";
    Hybrid: hybrid, "Several stages, each of several replicas.";
    Zbv: zbv, "Zero bubble over two chunks a device, placed in a V.";
    DualPipeV: dualpipev, "DualPipe with one copy of the model, placed in a V.";
    Gems: gems, "Two copies of the model in opposite directions, a pass of one behind a pass of the other.";
    Chimera: chimera, "Two copies of the model in opposite directions, merged slot by slot.";
    DualPipe: dualpipe, "Two copies of the model in opposite directions, backward passes split.";
    EvenLayers: even_layers, "The same number of blocks to each stage.";
    EvenParameters: even_parameters, "The same parameters to each stage, first fit.";
    TorchGPipe: torchgpipe, "torchgpipe's balance by time.";
    DeepSpeed: deepspeed, "DeepSpeed's balance by parameters.";
}

impl Strategy {
    /// Returns the name as `--strategy` takes it.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns the strategy with this name, or with one that it goes by elsewhere, in any case.
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        let is_named = |row: &Row| row.name == name || row.aliases.contains(&name.as_str());
        STRATEGIES.into_iter().find(|strategy| is_named(strategy.row()))
    }

    /// Returns the strategy that plans stages for a schedule.
    pub fn of_schedule(schedule: Schedule) -> Option<Self> {
        STRATEGIES.into_iter().find(|one| one.row().schedule.or(one.two_copies()) == Some(schedule))
    }

    /// Returns the schedules of pipelines that `auto` chooses among.
    pub fn schedules() -> impl Iterator<Item = Schedule> {
        let pipelines =
            STRATEGIES.into_iter().filter(|strategy| strategy.is_candidate() && !strategy.row().is_serial);
        pipelines.filter_map(|strategy| strategy.row().schedule)
    }

    /// Tells whether it cuts by a rule that people use by hand.
    pub fn is_rule(self) -> bool {
        matches!(self.row().search, Search::Rule(_))
    }

    /// Tells whether it trains without a flush: a pipeline without an end, which no step has to fill.
    pub fn is_asynchronous(self) -> bool {
        matches!(self.row().search, Search::Asynchronous)
    }

    /// Tells whether `auto` may choose it: baselines are there to compare with, asynchronous training gives other weights than
    /// the model trained on one device, and two copies of the model are held by who asks for them.
    pub fn is_candidate(self) -> bool {
        matches!(self.row().search, Search::Grids(_))
    }

    /// Tells whether it makes several stages for each device.
    pub fn makes_chunks(self) -> bool {
        self.row().stages == AskedStages::None
    }

    /// Returns the schedule of a strategy with two copies of the model; `None` for others.
    pub(crate) fn two_copies(self) -> Option<Schedule> {
        match self.row().search {
            Search::TwoCopies(schedule) => Some(schedule),
            _ => None,
        }
    }
}

/// Returns the strategies that serve who does not name one.
pub fn candidates(problem: &Problem) -> impl Iterator<Item = Strategy> {
    // Who asks for a number of stages gets as many parts, no chunks of them and no whole model.
    let stages = problem.training.stages;
    let serves = move |strategy: &Strategy| match strategy.row().stages {
        AskedStages::Any => true,
        AskedStages::One => stages.is_none_or(|stages| stages == 1),
        AskedStages::None => stages.is_none(),
    };
    STRATEGIES.into_iter().filter(move |strategy| strategy.is_candidate() && serves(strategy))
}

/// Returns the strategy that was asked for, or all candidates.
pub(crate) fn asked_or_all(problem: &Problem, asked: Option<Strategy>) -> Vec<Strategy> {
    asked.map_or_else(|| candidates(problem).collect(), |asked| vec![asked])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_name_is_of_one_strategy() {
        let names = |strategy: Strategy| {
            std::iter::once(strategy.name()).chain(strategy.row().aliases.iter().copied())
        };
        let mut seen = BTreeSet::new();
        for (strategy, name) in
            STRATEGIES.into_iter().flat_map(|strategy| names(strategy).map(move |name| (strategy, name)))
        {
            assert!(seen.insert(name), "{name} names two");
            assert_eq!(Strategy::from_name(&name.to_uppercase()), Some(strategy));
        }
        assert_eq!(Strategy::from_name("nonsense"), None);
    }
}
