//! `model-analyze plan`: the best stages for a model on a cluster, why, and how far from optimal they can be.

mod answer;
mod applies;
pub(super) mod asked;
pub(super) mod clusters;
mod compat;
pub(super) mod costs;
pub(super) mod input;
mod inseparable;
pub(super) mod model;
mod no_plan;
mod refine;
mod why;
mod workload;

use std::path::PathBuf;

use clap::{Args, ValueEnum};

pub(super) use self::answer::looked_at;
use self::input::Input;
use crate::{
    failure::Failure,
    output::{Format, Output},
};

/// Arguments of `plan`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  model-analyze plan model.pt --devices 4xh100 -o plan.yaml
  model-analyze plan model.pt --cluster cluster.yaml --strategy 1f1b --micro-batches 16
  model-analyze plan model.pt --devices 4xh100 --check plan.yaml
  model-analyze plan model.pt --devices 2xcpu --cost-model cost-model.yaml
  model-analyze plan graph.txt --strategy pipedream --machines 8 --bandwidth 3.125e9
  model-analyze plan graph.txt --compat pipedream --machines 8,2 --bandwidth 30e9,3.125e9 --activation-transfer
  model-analyze plan workload.json

MODEL is a traced model, a PipeDream profile (graph.txt), or a workload of dnn-partitioning or Piper (JSON).")]
pub struct Plan {
    /// Traced model or profile graph
    model: PathBuf,
    /// Shape of an input, [NAME=]SHAPE[:DTYPE], where the trace does not tell
    #[arg(long, value_name = "SHAPE")]
    input: Vec<String>,
    /// Cluster on one line: 4xh100, 2x8xa100 (two nodes of eight), 4xa100+4xv100
    #[arg(long, value_name = "N×NAME", conflicts_with = "cluster")]
    devices: Option<String>,
    /// Cluster file
    #[arg(long, value_name = "FILE")]
    cluster: Option<PathBuf>,
    /// auto, one-device, layer, data-parallel, gpipe, pipedream, 1f1b, interleaved, zero-bubble, hybrid,
    /// even-layers, even-parameters, torchgpipe, deepspeed
    #[arg(long, default_value = "auto", value_name = "NAME")]
    strategy: String,
    /// Samples in a step, of all devices together [default: see --micro-batches]
    #[arg(long, value_name = "N", conflicts_with = "micro_batches")]
    batch: Option<u64>,
    /// Micro-batches in a step, each as large as the model's inputs: more make a larger batch [default: as few
    /// as give 95 % of the throughput]
    #[arg(long, value_name = "M")]
    micro_batches: Option<u32>,
    /// Stages in a row, each on devices of its own: the degree of pipeline parallelism; `interleaved` makes several
    /// parts of each [default: as many as serve best]
    #[arg(long, value_name = "N")]
    stages: Option<u32>,
    /// What the optimizer keeps beside each parameter
    #[arg(long, value_enum, default_value_t)]
    optimizer: Optimizer,
    /// Times of a device type, as `fit -o` writes them [default: those that ship, or else its data sheet]
    #[arg(long = "cost-model", value_name = "FILE")]
    pub cost_models: Vec<PathBuf>,
    /// Never compute activations again in the backward pass
    #[arg(long)]
    no_recompute: bool,
    /// Let activations wait in host memory where nothing else fits
    #[arg(long)]
    offload: bool,
    /// Add transfers to compute instead of overlapping them
    #[arg(long)]
    no_overlap: bool,
    /// Reproduce another planner's objective, quirks included
    #[arg(long, value_enum)]
    compat: Option<Compat>,
    /// Machines at each level, innermost first: 8,2 [profile graphs and workloads]
    #[arg(long, value_delimiter = ',', value_name = "N,…", conflicts_with_all = ["devices", "cluster"])]
    machines: Vec<u32>,
    /// Bytes a second at each level, innermost first: 30e9,3.125e9 [profile graphs and workloads]
    #[arg(long, value_delimiter = ',', value_name = "B,…", conflicts_with_all = ["devices", "cluster"])]
    bandwidth: Vec<f64>,
    /// Bytes of memory of each machine [profile graphs and workloads]
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["devices", "cluster"])]
    memory: Option<f64>,
    /// Count the time of moving activations [--compat pipedream]
    #[arg(long)]
    activation_transfer: bool,
    /// No replicated stages [--compat pipedream]
    #[arg(long)]
    straight: bool,
    /// Compare with every strategy, cuts by hand and pipelines without an end among them
    #[arg(long, conflicts_with = "check")]
    compare: bool,
    /// Score this plan instead of making one
    #[arg(long, value_name = "PLAN")]
    check: Option<PathBuf>,
    /// Where the plan goes
    #[arg(short, long, value_name = "PLAN", conflicts_with = "check")]
    output: Option<PathBuf>,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Planners that can be reproduced.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Compat {
    /// The optimizer that PipeDream's authors released
    Pipedream,
}

/// What an optimizer keeps.
#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Optimizer {
    /// Two numbers beside each parameter
    #[default]
    Adam,
    /// One number beside each parameter
    Momentum,
    /// Nothing
    Sgd,
}

impl Optimizer {
    fn factor(self) -> f64 {
        match self {
            Self::Adam => 2.0,
            Self::Momentum => 1.0,
            Self::Sgd => 0.0,
        }
    }
}

impl Plan {
    /// Makes or checks a plan and prints it.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        self.check_counts()?;
        if let Some(memory) = self.memory.filter(|memory| !(*memory > 0.0 && memory.is_finite())) {
            return Err(Failure::input(format!(
                "--memory is {memory}; it must be a positive number of bytes"
            )));
        }
        let input = Input::read(&self.model)?;
        applies::check(&self, &input)?;
        match (&input, self.compat) {
            (Input::Pipedream(profile), Some(Compat::Pipedream)) => compat::run(&self, profile, output),
            (_, Some(Compat::Pipedream)) => {
                Err(Failure::input("--compat pipedream takes a PipeDream profile (graph.txt)"))
            }
            (Input::DnnPartitioning(workload), None) => workload::run_loads(&self, workload, output),
            (Input::Piper(workload), None) => workload::run_piper(&self, workload, output),
            (input, None) => model::run(&self, input, output),
        }
    }

    /// Refuses counts of nothing.
    pub(super) fn check_counts(&self) -> Result<(), Failure> {
        let counts = [
            ("--micro-batches is 0; a step has one at least", self.micro_batches == Some(0)),
            ("--batch is 0; a step has one sample at least", self.batch == Some(0)),
            ("--stages is 0; a pipeline has one at least", self.stages == Some(0)),
        ];
        match counts.iter().find(|(_, is_nothing)| *is_nothing) {
            Some((message, _)) => Err(Failure::input(message)),
            None => Ok(()),
        }
    }

    /// Returns the name of the model for messages.
    fn model_name(&self) -> String {
        self.model.file_stem().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
    }
}
