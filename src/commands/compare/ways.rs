//! The compared strategies, each with its request to `plan` or `simulate`.
//!
//! No strategy is planned here: each is the result of `plan` with some flags, or such a plan simulated with other
//! options.

use partitioner::Strategy;
use schema::{CollectiveKind, Execution, ShardingLevel, SyncOrder};
use simulator::{PlanOptions, order::Schedule};

use crate::{
    commands::plan::{Degree, Method, PlanRequest},
    sharing,
};

/// The most devices that share a layer, those that `--tensor-parallel auto` tries.
const MOST_SHARING: u32 = 8;

/// A strategy of the comparison.
pub struct Way {
    /// Its name in the comparison.
    pub name: String,
    /// A description in one line.
    pub about: &'static str,
    /// The source of its numbers.
    pub how: How,
}

/// The source of a strategy's numbers.
#[derive(Clone, Copy)]
pub enum How {
    /// A plan with a strategy, a sharding level, and devices that share each layer.
    Planned(Option<Strategy>, Option<ShardingLevel>, Degree),
    /// A plan that splits operators.
    Split(Method),
    /// The plan of another strategy, simulated with other options.
    Simulated(Strategy, Otherwise),
}

/// The option of `simulate` that differs from the plan.
#[derive(Clone, Copy)]
pub enum Otherwise {
    /// Another schedule.
    Schedule(Schedule),
    /// The collective of gradient sums, and the order of their slices if they are sent in slices.
    Sums(CollectiveKind, Option<SyncOrder>),
}

impl Way {
    fn new(name: impl Into<String>, about: &'static str, how: How) -> Self {
        Self { name: name.into(), about, how }
    }

    fn planned(strategy: Strategy, about: &'static str) -> Self {
        Self::new(strategy.name(), about, How::Planned(Some(strategy), None, Degree::default()))
    }

    fn replicated(level: ShardingLevel, about: &'static str) -> Self {
        let name = match level {
            ShardingLevel::None => "data-parallel".to_string(),
            level => format!("data-parallel {}", level.name()),
        };
        Self::new(name, about, How::Planned(Some(Strategy::DataParallel), Some(level), Degree::default()))
    }

    fn scheduled(of: Strategy, schedule: Schedule, about: &'static str) -> Self {
        Self::new(schedule.name(), about, How::Simulated(of, Otherwise::Schedule(schedule)))
    }

    /// Returns the flags that give the same numbers.
    pub fn flags(&self) -> String {
        match self.how {
            How::Planned(strategy, sharding, degree) => {
                let mut flags = Vec::new();
                flags.extend(strategy.map(|strategy| format!("--strategy {}", strategy.name())));
                flags.extend(sharding.map(|level| format!("--sharding {}", level.name())));
                if let Degree::Of(degree) = degree {
                    flags.push(format!("--tensor-parallel {degree}"));
                }
                flags.join(" ")
            }
            How::Split(method) => format!("--strategy {}", method.name()),
            How::Simulated(of, otherwise) => {
                let sharding = if of == Strategy::DataParallel { " --sharding none" } else { "" };
                let what = match otherwise {
                    Otherwise::Schedule(schedule) => format!("--schedule {}", schedule.name()),
                    Otherwise::Sums(kind, order) => {
                        let order = order.map_or("", |_| " --sync p3");
                        let kind = if kind == CollectiveKind::Ring { "ring" } else { "parameter-server" };
                        format!("--collective {kind}{order}")
                    }
                };
                format!("--strategy {}{sharding}; simulate {what}", of.name())
            }
        }
    }

    /// Returns the strategy whose plan others simulate: without sharding.
    pub fn stands_for(&self) -> Option<Strategy> {
        match self.how {
            How::Planned(strategy, None | Some(ShardingLevel::None), _) => strategy,
            _ => None,
        }
    }

    /// Tells whether weights change while micro-batches are in flight.
    pub fn is_asynchronous(&self) -> bool {
        match self.how {
            How::Planned(strategy, ..) => strategy == Some(Strategy::PipeDream),
            How::Simulated(of, _) => of == Strategy::PipeDream,
            How::Split(_) => false,
        }
    }
}

impl Otherwise {
    /// Returns the options of `simulate`.
    pub fn options(self) -> PlanOptions {
        match self {
            Self::Schedule(schedule) => {
                PlanOptions { schedule: Some(schedule.name().to_string()), ..PlanOptions::default() }
            }
            Self::Sums(kind, sync) => {
                let execution = Execution { sync, collective: Some(kind), ..Execution::default() };
                PlanOptions { execution, ..PlanOptions::default() }
            }
        }
    }

    /// Returns the plan with the simulated options.
    pub fn of(self, plan: &schema::Plan) -> schema::Plan {
        let mut plan = plan.clone();
        match self {
            Self::Schedule(schedule) => plan.schedule = schedule.name().to_string(),
            Self::Sums(kind, sync) => {
                let execution = Execution { sync, collective: Some(kind), ..Execution::default() };
                plan.execution = Some(execution.or(plan.execution.unwrap_or_default()));
            }
        }
        plan
    }
}

/// Returns all strategies, from the simplest to the one that `plan` chooses itself.
pub fn ways(request: &PlanRequest) -> Vec<Way> {
    use ShardingLevel::{None as Nothing, Zero1, Zero2, Zero3};
    use Strategy as S;
    let summed = |name: &str, kind, order, about| {
        Way::new(name, about, How::Simulated(S::DataParallel, Otherwise::Sums(kind, order)))
    };
    let (ring, served) = (CollectiveKind::Ring, CollectiveKind::ParameterServer);
    let mut ways = vec![
        Way::planned(S::OneDevice, "the whole model on one device"),
        Way::planned(S::Layer, "consecutive stages, one of which works at a time"),
        Way::replicated(
            Nothing,
            "every device holds the model; gradients are summed in a ring or tree (DDP)",
        ),
        summed("parameter-server", served, None, "data parallelism with parameter servers"),
        summed(
            "p3",
            ring,
            Some(SyncOrder::P3),
            "DDP in slices, those that the next forward pass needs first go first (P3)",
        ),
        summed("p3 over servers", served, Some(SyncOrder::P3), "the same over parameter servers"),
        Way::replicated(Zero1, "replicas shard the optimizer's state"),
        Way::replicated(Zero2, "and the gradients"),
        Way::replicated(Zero3, "and the parameters (FSDP)"),
        Way::planned(S::GPipe, "a pipeline of all forward passes, then all backward passes"),
        Way::planned(S::OneForwardOneBackward, "a pipeline of forward and backward passes in turn"),
        Way::planned(S::Interleaved, "1F1B with several chunks on each device"),
        Way::planned(S::ZeroBubble, "1F1B with weight gradients in the bubbles (ZB-H1)"),
        Way::planned(S::Zb2p, "zero bubble by search, twice 1F1B's activations"),
        Way::planned(S::Zbv, "zero bubble with two chunks on each device, placed in a V"),
        Way::planned(S::DualPipeV, "DualPipe with one copy of the model, placed in a V"),
    ];
    let one_pair = "two copies of the model, one pass after the other";
    ways.extend([
        Way::planned(S::DualPipe, "two copies of the model from both ends, passes overlapped"),
        Way::planned(S::Chimera, "two copies of the model from both ends, slot by slot"),
        Way::scheduled(S::OneForwardOneBackward, Schedule::Gems, one_pair),
        Way::planned(S::Gems, "the same with several pairs of passes"),
        Way::planned(S::PipeDream, "1F1B without a flush; each stage has its own number of replicas"),
        Way::scheduled(S::PipeDream, Schedule::PipeDream2Bw, "the same with two versions of the weights"),
        Way::planned(S::Hybrid, "stages with replicas each, as in HyPar-Flow"),
    ]);
    let n_devices = request.cluster.devices.len() as u32;
    // One device, too, is told why it cannot share layers.
    let most = MOST_SHARING.min(n_devices.max(2));
    for degree in sharing::sizes_to_try(&request.cluster, most) {
        let how = How::Planned(None, None, Degree::Of(degree));
        ways.push(Way::new(
            format!("tensor-parallel {degree}"),
            "devices share each layer; the rest is chosen",
            how,
        ));
    }
    ways.extend([
        Way::new("optcnn", "each operator split in its own way, by elimination", How::Split(Method::Exact)),
        Way::new("flexflow", "the same by random changes", How::Split(Method::Random)),
        Way::planned(S::EvenLayers, "1F1B over stages with equal numbers of blocks"),
        Way::planned(S::EvenParameters, "1F1B over stages with equal numbers of parameters"),
        Way::planned(S::TorchGPipe, "GPipe over torchgpipe's balance by time"),
        Way::planned(S::DeepSpeed, "1F1B over DeepSpeed's balance by parameters"),
        Way::new("auto", "what `plan` chooses", How::Planned(None, None, Degree::default())),
    ]);
    ways
}
