//! `model-analyze plan`: the best stages for a model on a cluster, why, and how far from optimal they can be.

// Two units are other planners' alone.
#[cfg_attr(not(feature = "peers"), allow(dead_code))]
mod answer;
mod applies;
pub(super) mod arguments;
mod asked;
pub(super) mod clusters;
#[cfg(feature = "peers")]
mod compat;
mod constraints;
pub(super) mod costs;
mod groups;
mod inference;
mod input;
mod inseparable;
mod inside;
pub(super) mod loss;
mod micro_batch;
mod model;
mod no_plan;
mod objective;
mod refine;
mod request;
mod step_size;
mod why;
#[cfg(not(feature = "peers"))]
mod without_peers;
#[cfg(feature = "peers")]
mod workload;

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use self::objective::{Aim, ObjectiveArguments};
#[cfg(not(feature = "peers"))]
use self::without_peers::{compat, workload};
pub use self::{
    answer::{looked_at, rounded},
    arguments::{PlanArguments, matches, strategies},
    input::Input,
    inside::{Method, answered as split_operators},
    model::{Subject, attempt, planned},
    no_plan::Unplanned,
    request::{Degree, PlanRequest},
    step_size::StepSize,
};
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
  model-analyze plan model.pt --devices 4xh100 --strategy optcnn
  model-analyze plan model.pt --devices 2xcpu --cost-model cost-model.yaml
  model-analyze plan graph.txt --strategy pipedream --machines 8 --bandwidth 3.125e9
  model-analyze plan graph.txt --compat pipedream --machines 8,2 --bandwidth 30e9,3.125e9 --activation-transfer
  model-analyze plan model.pt --devices 4xh100 --batch 256 --micro-batch-size auto
  model-analyze plan workload.json --objective latency
  model-analyze plan llama.pt --devices 4xl4 --inference --batch 16 --kv-cache 8192

MODEL is a traced model, a PipeDream profile (graph.txt), or a workload of dnn-partitioning or Piper (JSON).")]
pub struct Plan {
    /// Traced model or profile graph
    model: PathBuf,
    #[command(flatten)]
    asking: PlanArguments,
    #[command(flatten)]
    aim: ObjectiveArguments,
    /// Samples in a micro-batch: 8, 2..16 (the smallest and the largest), or auto for what serves a --batch best; sizes are
    /// inferred anew for each [traced models; default: as traced]
    #[arg(long, value_name = "N", value_parser = micro_batch::Sizes::from_text)]
    micro_batch_size: Option<micro_batch::Sizes>,
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

impl Plan {
    /// Makes or checks a plan and prints it.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        self.asking.check_counts()?;
        if let Some(memory) = self.memory.filter(|memory| !(*memory > 0.0 && memory.is_finite())) {
            return Err(Failure::input(format!(
                "--memory is {memory}; it must be a positive number of bytes"
            )));
        }
        let input = Input::read(&self.model)?;
        applies::check(&self, &input)?;
        match (input, self.compat) {
            (Input::Pipedream(profile), Some(Compat::Pipedream)) => compat::run(&self, &profile, output),
            (_, Some(Compat::Pipedream)) => {
                Err(Failure::input("--compat pipedream takes a PipeDream profile (graph.txt)"))
            }
            (Input::DnnPartitioning(workload), None) if self.aim.is(Aim::Latency) => {
                workload::run_latency(&self, &workload, output)
            }
            (Input::DnnPartitioning(workload), None) => workload::run_loads(&self, &workload, output),
            (Input::Piper(workload), None) => workload::run_piper(&self, &workload, output),
            (Input::Pipedream(profile), None) => model::run_profile(&self, &profile, output),
            (Input::Trace(file), None) => match Method::from_name(&self.asking.strategy) {
                Some(method) => inside::run(&self, method, file, output),
                None => model::run_trace(&self, file, output),
            },
        }
    }

    /// Returns the name of the model for messages.
    #[cfg(feature = "peers")]
    fn model_name(&self) -> String {
        name_of(&self.model)
    }
}

/// Returns the name of the model in a file.
fn name_of(file: &Path) -> String {
    file.file_stem().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
}
