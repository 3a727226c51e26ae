//! `model-analyze plan`: the best stages for a model on a cluster, why, and how far from optimal they can be.

mod alone;
// Two units belong to other planners only.
#[cfg_attr(not(feature = "peers"), allow(dead_code))]
mod answer;
mod applies;
pub(super) mod arguments;
mod asked;
mod bound_of;
mod carried;
pub(super) mod clusters;
#[cfg(feature = "peers")]
mod compat;
mod constraints;
pub(super) mod costs;
mod fits;
mod flags;
mod group_search;
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
mod operators_of;
mod pins;
mod recomputed;
mod refine;
mod request;
mod search;
mod sizes;
mod step_size;
mod subject;
mod why;
#[cfg(not(feature = "peers"))]
mod without_peers;
#[cfg(feature = "peers")]
mod workload;

#[cfg(not(feature = "peers"))]
use self::without_peers::{compat, workload};
pub use self::{
    answer::{
        ABOVE_THE_PEAK, at_most, holder, host, looked_at, proof_of_splits, rounded, sizes_tried, splits,
    },
    arguments::{PlanArguments, RoundingArguments, matches, strategies},
    flags::Plan,
    input::Input,
    inside::method::Method,
    no_plan::Unplanned,
    request::{CARRIED_OUT_SHARED, Degree, PlanRequest},
    search::{attempt, planned},
    step_size::StepSize,
    subject::Subject,
    why::{but_for_products, one_device, slowest},
};
use self::{flags::Compat, objective::Aim};
use crate::{failure::Failure, output::Output};

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
}
