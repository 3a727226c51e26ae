//! What is asked of the planner, whoever asks: `plan` and `split` turn their arguments into this.

use std::path::PathBuf;

use cost_model::Rounding;
use partitioner::{Effort, Machine, MicroBatches, Strategy, Training};
use schema::{Cluster, Constraints, Inference, SequenceParallel, ShardingLevel};

use super::{clusters::cluster_failure, loss::Loss, sizes::Sizes};
use crate::{cost_models::CostModels, failure::Failure};

/// The most micro-batches of a step that are planned: each of their passes is timed.
const MICRO_BATCHES: u32 = 1_000_000;

/// The most that replicas share out in the folders that `emit` writes.
pub const CARRIED_OUT: ShardingLevel = ShardingLevel::Zero3;

/// A request for a plan.
#[derive(Clone)]
pub struct PlanRequest {
    /// Strategy; none for the best.
    pub strategy: Option<Strategy>,
    /// Strategy of the plans that are tried under other circumstances; none for the best.
    pub alternatives: Option<Strategy>,
    /// Stages in a row; none for as many as serve best.
    pub stages: Option<u32>,
    /// Samples in a step, which decide the micro-batches.
    pub batch: Option<u64>,
    /// Samples that a micro-batch may have; none for as many as the model's inputs have.
    pub micro_batch_size: Option<Sizes>,
    /// Micro-batches in a step; none for as few as are enough.
    pub micro_batches: Option<u32>,
    /// Bytes that the optimizer keeps beside each byte of parameters.
    pub optimizer_factor: f64,
    /// What the forward pass alone is planned for; none where training is.
    pub inference: Option<Inference>,
    /// What stages are held to.
    pub constraints: Constraints,
    /// A plan of other devices that is carried to these, and its file.
    pub from: Option<(PathBuf, schema::Plan)>,
    /// The loss; none for the one that goes with the model's outputs.
    pub loss: Option<Loss>,
    /// What replicas share out; none for what serves best of that which `train.py` carries out.
    pub sharding: Option<ShardingLevel>,
    /// How many devices share the work of each layer.
    pub tensor_parallel: Degree,
    /// What they hold of values between layers; none for what serves best.
    pub sequence_parallel: Option<SequenceParallel>,
    /// How many devices have a band of each image.
    pub spatial: Degree,
    /// How many devices have a part of each sequence.
    pub context_parallel: Degree,
    /// Calls that the first of them does alone; `auto` for dense layers where that is faster.
    pub on_first: Vec<String>,
    /// Activations may be computed again.
    pub recompute: bool,
    /// Activations may wait in host memory.
    pub offload: bool,
    /// How long the search may take.
    pub effort: Effort,
    /// What products round their operands to.
    pub rounding: Rounding,
    /// Transfers run beside compute.
    pub overlap: bool,
    /// Devices and links.
    pub cluster: Cluster,
    /// The file that says so, for messages.
    pub cluster_file: Option<PathBuf>,
    /// Times of devices.
    pub cost_models: CostModels,
}

/// How many devices share the work of each layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Degree {
    /// None, unless the model fits no other way.
    #[default]
    IfNeeded,
    /// As many as serve best.
    Best,
    /// So many; with one, none.
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
            Err(_) if text.eq_ignore_ascii_case("none") => Ok(Self::Of(1)),
            Err(_) => Err("a number of devices, `auto` or `none`".into()),
        }
    }
}

impl PlanRequest {
    /// Refuses a cluster that contradicts itself, and steps too long to be timed.
    pub fn check(&self) -> Result<(), Failure> {
        self.cluster.validate().map_err(|error| match &self.cluster_file {
            Some(path) => cluster_failure(error).in_file(path),
            None => cluster_failure(error),
        })?;
        if let Some(count) = self.micro_batches.filter(|&count| count > MICRO_BATCHES) {
            return Err(Failure::input(format!(
                "--micro-batches is {count}; steps of {MICRO_BATCHES} at the most are planned"
            )));
        }
        Ok(())
    }

    /// Returns how the model is trained.
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
            optimizer_factor: self.optimizer_factor,
            sharding: self.sharding.unwrap_or(ShardingLevel::None),
            sharding_inside: true,
            sharding_up_to: self.sharding.unwrap_or(CARRIED_OUT),
            recompute: self.recompute,
            offload: self.offload,
            host_overhead: self.cluster.host_overhead(),
            ..Training::default()
        }
    }

    /// Returns the devices as the planner sees them.
    pub(super) fn machine(&self) -> Machine {
        Machine::from_cluster(&self.cluster, self.overlap)
    }
}
