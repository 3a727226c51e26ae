//! The flags of `plan`, and the request made of them.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use partitioner::Strategy;
use schema::Cluster;

use super::{arguments::PlanArguments, clusters, objective::ObjectiveArguments, request::PlanRequest};
use crate::{
    failure::{self, Failure},
    output::Format,
    plan_file,
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
    pub(super) model: PathBuf,
    #[command(flatten)]
    pub(super) asking: PlanArguments,
    #[command(flatten)]
    pub(super) aim: ObjectiveArguments,
    /// Add transfer times to compute times instead of overlapping them
    #[arg(long)]
    pub(super) no_overlap: bool,
    /// Reproduce another planner's objective, including its quirks
    #[arg(long, value_enum)]
    pub(super) compat: Option<Compat>,
    /// Machines at each level, innermost first: 8,2 [profile graphs and workloads]
    #[arg(long, value_delimiter = ',', value_name = "N,…", conflicts_with_all = ["devices", "cluster"])]
    pub(super) machines: Vec<u32>,
    /// Bytes per second at each level, innermost first: 30e9,3.125e9 [profile graphs and workloads]
    #[arg(long, value_delimiter = ',', value_name = "B,…", conflicts_with_all = ["devices", "cluster"])]
    pub(super) bandwidth: Vec<f64>,
    /// Bytes of memory of each machine [profile graphs and workloads]
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["devices", "cluster"])]
    pub(super) memory: Option<f64>,
    /// Count the time of transferring activations [--compat pipedream]
    #[arg(long)]
    pub(super) activation_transfer: bool,
    /// Do not replicate stages [--compat pipedream]
    #[arg(long)]
    pub(super) straight: bool,
    /// Compare with every strategy, including rule-of-thumb cuts and pipelines without a flush
    #[arg(long, conflicts_with = "check")]
    pub(super) compare: bool,
    /// Score this plan instead of making one
    #[arg(long, value_name = "PLAN")]
    pub(super) check: Option<PathBuf>,
    /// File to write the plan to
    #[arg(short, long, value_name = "PLAN", conflicts_with = "check")]
    pub(super) output: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    pub(super) format: Format,
}

/// Planners that can be reproduced.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Compat {
    /// The optimizer that PipeDream's authors released
    Pipedream,
}

impl Plan {
    /// Returns the request, and the plan to check.
    pub(super) fn request(
        &self,
        strategy: Option<Strategy>,
    ) -> Result<(PlanRequest, Option<schema::Plan>), Failure> {
        let given = self.check.as_deref().map(plan_file::read).transpose()?;
        let request = self.asking.request(strategy, || match &given {
            // A plan contains its cluster.
            Some(given) if self.machines.is_empty() => Ok(given.cluster.clone()),
            _ => clusters::machines(&self.machines, &self.bandwidth, self.memory),
        })?;
        let cluster_file = match (&self.check, &self.asking.cluster) {
            (Some(path), None) | (None, Some(path)) => Some(path.clone()),
            _ => None,
        };
        // A plan states its own objective.
        let inference = match &given {
            Some(given) => given.inference,
            None => self.aim.of_trace()?,
        };
        let of_plan = given.as_ref().and_then(|given| given.assumed).unwrap_or_default();
        let assumed = request.assumed.or(of_plan);
        let overlap = !self.no_overlap;
        let request = PlanRequest { inference, assumed, overlap, cluster_file, ..request };
        request.check()?;
        if let Some(given) = given.as_ref().filter(|_| self.asking.host_overhead.is_none()) {
            say_host(&given.cluster, &request.cluster);
        }
        Ok((request, given))
    }

    /// Returns the model's name for messages.
    #[cfg(feature = "peers")]
    pub(super) fn model_name(&self) -> String {
        super::subject::name_of(&self.model)
    }
}

/// Says that a plan was made with other host overhead than is charged on the devices that are given.
fn say_host(own: &Cluster, given: &Cluster) {
    let (own, given) = (own.host_overhead(), given.host_overhead());
    if own != given {
        failure::note(format!(
            "the plan was made with {own} of the host for each pass, these devices are charged {given}: --host-overhead sets it"
        ));
    }
}
