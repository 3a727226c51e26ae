//! A request to the planner: `plan` and `split` turn their arguments into it.

use std::path::PathBuf;

use cost_model::Rounding;
use graph::ModelGraph;
use partitioner::{Effort, Machine, MicroBatches, Strategy, Training};
use schema::{
    Assumed, Cluster, Constraints, Inference, PlannedOptimizer, PlannedRounding, SequenceParallel,
    ShardingLevel,
};

use super::{clusters::cluster_failure, inside::method::Method, loss::Loss, sizes::Sizes};
use crate::{cost_models::CostModels, failure::Failure, step_memory::note_without_copies};

/// The most micro-batches per step: each of their passes is timed.
const MICRO_BATCHES: u32 = 1_000_000;

/// The highest sharding level that the folders of `emit` can run.
pub const CARRIED_OUT: ShardingLevel = ShardingLevel::Zero3;

/// The highest that they can run where devices share layers.
pub const CARRIED_OUT_SHARED: ShardingLevel = ShardingLevel::Zero2;

/// A request for a plan.
#[derive(Clone)]
pub struct PlanRequest {
    /// Strategy; `None` for the best.
    pub strategy: Option<Strategy>,
    /// Strategy of the plans that are tried with other devices or options; `None` for the best.
    pub alternatives: Option<Strategy>,
    /// Pipeline stages; `None` for the fastest number.
    pub stages: Option<u32>,
    /// Samples per step, which decide the micro-batches.
    pub batch: Option<u64>,
    /// Allowed samples per micro-batch; `None` for the model's inputs.
    pub micro_batch_size: Option<Sizes>,
    /// Micro-batches per step; `None` for the fewest that are enough.
    pub micro_batches: Option<u32>,
    /// The inference objective; `None` for training.
    pub inference: Option<Inference>,
    /// Constraints on the stages.
    pub constraints: Constraints,
    /// Whether the plan that is scored has no flush.
    pub is_endless: bool,
    /// A plan of other devices that is carried over to these, and its file.
    pub from: Option<(PathBuf, schema::Plan)>,
    /// Optimizer, loss and rounding.
    pub assumed: Assumed,
    /// Sharding level; `None` for the fastest that `train.py` can run.
    pub sharding: Option<ShardingLevel>,
    /// The highest level that may be chosen.
    pub sharding_up_to: ShardingLevel,
    /// Each operator is split in its own way over all devices that the fastest links join, as this method finds.
    pub operators: Option<Method>,
    /// Devices that share the work of each layer.
    pub tensor_parallel: Degree,
    /// Which part of the values they hold between layers; `None` for the faster.
    pub sequence_parallel: Option<SequenceParallel>,
    /// Devices that each hold a band of every image.
    pub spatial: Degree,
    /// Devices that each hold a part of every sequence.
    pub context_parallel: Degree,
    /// Devices that each hold a part of the samples or positions, and of the experts.
    pub expert_parallel: Degree,
    /// Calls that only the first of those with a part of every sequence runs; `auto` for dense layers if that is faster.
    pub on_first: Vec<String>,
    /// Activations may be recomputed.
    pub recompute: bool,
    /// Activations may be moved to host memory.
    pub offload: bool,
    /// Effort of the search.
    pub effort: Effort,
    /// Transfers overlap compute.
    pub overlap: bool,
    /// Devices and links.
    pub cluster: Cluster,
    /// The cluster's file, for messages.
    pub cluster_file: Option<PathBuf>,
    /// Cost models of devices.
    pub cost_models: CostModels,
}

/// How many devices share the work of each layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Degree {
    /// None, unless the model fits no other way; of layers also the fastest where its state fits no single device.
    #[default]
    IfNeeded,
    /// The fastest number.
    Best,
    /// This number; 1 for no sharing.
    Of(u32),
}

impl Degree {
    /// Reads `4`, `auto` or `none`.
    pub fn from_text(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(0) => Err("1 shares nothing".into()),
            Ok(degree) => Ok(Self::Of(degree)),
            Err(_) if text.eq_ignore_ascii_case("none") => Ok(Self::Of(1)),
            Err(_) if text.eq_ignore_ascii_case("auto") => Ok(Self::Best),
            Err(_) => Err("expected a number of devices, `auto` or `none`".into()),
        }
    }
}

impl PlanRequest {
    /// Refuses an inconsistent cluster, and steps too long to simulate.
    pub fn check(&self) -> Result<(), Failure> {
        self.cluster.validate().map_err(|error| match &self.cluster_file {
            Some(path) => cluster_failure(error).in_file(path),
            None => cluster_failure(error),
        })?;
        if let Some(count) = self.micro_batches.filter(|&count| count > MICRO_BATCHES) {
            return Err(Failure::input(format!(
                "--micro-batches is {count}; at most {MICRO_BATCHES} per step are supported"
            )));
        }
        // Rules and grids have replicas that shard; the others would be planned as without.
        let is_whole = |strategy: &Strategy| !strategy.is_candidate() && !strategy.is_rule();
        let level = self.sharding.filter(|level| *level > ShardingLevel::None);
        if let (Some(strategy), Some(level)) = (self.strategy.filter(is_whole), level) {
            let (strategy, level) = (strategy.name(), level.name());
            return Err(Failure::input(format!(
                "--strategy {strategy} does not take --sharding {level}: each of its devices keeps the whole state of its stages"
            ))
            .with_hint("--strategy hybrid, data-parallel or a pipeline with a flush does"));
        }
        Ok(())
    }

    /// Refuses what has no meaning where each operator is split over all devices.
    pub(super) fn check_operators(&self, method: Method) -> Result<(), Failure> {
        let constraints = &self.constraints;
        let is_shared = |degree: Degree| !matches!(degree, Degree::IfNeeded | Degree::Of(1));
        let arguments = [
            ("--stages", self.stages.is_some_and(|stages| stages > 1) && constraints.stages().is_none()),
            ("--cut-at", !constraints.cut_at.is_empty()),
            ("--layers", !constraints.layers.is_empty()),
            ("--pin", !constraints.pin.is_empty()),
            ("--from", self.from.is_some()),
            ("--inference", self.inference.is_some()),
            ("--tensor-parallel", is_shared(self.tensor_parallel)),
            ("--spatial", is_shared(self.spatial)),
            ("--context-parallel", is_shared(self.context_parallel)),
            ("--expert-parallel", is_shared(self.expert_parallel)),
        ];
        let given: Vec<&str> =
            arguments.iter().filter(|(_, is_given)| *is_given).map(|(name, _)| *name).collect();
        if given.is_empty() {
            return Ok(());
        }
        let what = format!("--strategy {} does not take {}", method.name(), given.join(", "));
        Err(Failure::input(what).with_hint("it splits every operator over all devices: there is one stage"))
    }

    /// Returns the bytes of optimizer state per byte of a model's parameters; float32 copies are such state.
    pub(super) fn state_factor(&self, graph: &ModelGraph) -> f64 {
        if !self.assumed.master_weights {
            return self.optimizer_factor();
        }
        note_without_copies(graph);
        let factor = self.optimizer_factor();
        let first = |tensor: &&graph::StoredTensor| tensor.is_first_parameter();
        let (mut bytes, mut state) = (0.0, 0.0);
        for tensor in graph.tensors.iter().filter(first) {
            let (own, single) = (tensor.bytes as f64, 4.0 * tensor.elements() as f64);
            bytes += own;
            state += if own < single { (1.0 + factor) * single } else { factor * own };
        }
        if bytes > 0.0 { state / bytes } else { factor }
    }

    /// Returns the bytes of optimizer state per byte of parameters that are trained.
    fn optimizer_factor(&self) -> f64 {
        match self.assumed.optimizer {
            None | Some(PlannedOptimizer::Adam) => 2.0,
            Some(PlannedOptimizer::Momentum) => 1.0,
            Some(PlannedOptimizer::Sgd) => 0.0,
        }
    }

    /// Returns the loss; `None` for the one that suits the model's outputs.
    pub(super) fn loss(&self) -> Option<Loss> {
        self.assumed.loss.map(Loss::of_plan)
    }

    /// Returns the data types that products round their operands to.
    pub(super) fn rounding(&self) -> Rounding {
        match self.assumed.rounding {
            None => Rounding::Own,
            Some(PlannedRounding::Tf32) => Rounding::Tf32,
            Some(PlannedRounding::Float8) => Rounding::Float8,
        }
    }

    /// Returns the settings of training.
    pub(super) fn training(&self) -> Training {
        if self.inference.is_some() {
            return Training {
                micro_batches: self.micro_batches.map_or(MicroBatches::Enough, MicroBatches::Exactly),
                stages: self.stages,
                gradient_factor: 0.0,
                optimizer_factor: 0.0,
                recompute: false,
                inference: self.inference,
                ..Training::default()
            };
        }
        Training {
            micro_batches: self.micro_batches.map_or(MicroBatches::Enough, MicroBatches::Exactly),
            stages: self.stages,
            optimizer_factor: self.optimizer_factor(),
            sharding: self.sharding.unwrap_or(ShardingLevel::None),
            sharding_inside: true,
            sharding_up_to: self.sharding.unwrap_or(self.sharding_up_to),
            recompute: self.recompute,
            offload: self.offload,
            host_overhead: self.cluster.host_overhead(),
            split_overhead: self.cluster.split_overhead(),
            ..Training::default()
        }
    }

    /// Returns the planner's view of the devices.
    pub(super) fn machine(&self) -> Machine {
        Machine::from_cluster(&self.cluster, self.overlap)
    }
}
