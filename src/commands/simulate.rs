//! `model-analyze simulate`: the step time of a plan or an order, and the use of time and memory.

mod execution;
mod order;
pub(super) mod picture;
mod plan;

use std::path::{Path, PathBuf};

use clap::Args;
use schema::{Seconds, Timeline};
use simulator::{Cost, KeptVersions, Sharing, order::OrderError};

use crate::{
    failure::Failure,
    files,
    output::{Format, Output},
    plan_file,
};

const EXAMPLES: &str = "\
Examples:
  model-analyze simulate plan.yaml
  model-analyze simulate plan.yaml --schedule zb2p --micro-batches 16 --timeline step.svg
  model-analyze simulate plan.yaml --sync p3 --servers 2 --slice 200000
  model-analyze simulate plan.yaml --sharding zero3 --collective ring --overlap-slowdown 1.1
  model-analyze simulate plan.yaml --offload-share 0.5 --offload both --prefetch 3
  model-analyze simulate plan.yaml --tensor-parallel 4
  model-analyze simulate plan.yaml --schedule pipedream --vertical-sync
  model-analyze simulate --csv order.csv --cost 10,11,7,0 --format json
  model-analyze simulate --csv order.csv --lint
  model-analyze simulate --schedule zbv --ranks 4 --chunks 2 --micro-batches 8 --write-csv order.csv";

fn after_help() -> String {
    let schedules = simulator::order::ALL.map(|schedule| schedule.name()).join(", ");
    format!("{EXAMPLES}\n\nSchedules: {schedules}. PyTorch's class names are understood as well.")
}

/// Arguments of `simulate`.
#[derive(Args)]
#[command(after_help = after_help())]
pub struct Simulate {
    /// The plan
    #[arg(value_name = "PLAN", conflicts_with = "csv", required_unless_present_any = ["csv", "ranks"])]
    plan: Option<PathBuf>,
    /// A compute-only schedule in the format of torch.distributed.pipelining, instead of a plan
    #[arg(long, value_name = "ORDER.csv", conflicts_with_all = ["schedule", "ranks", "micro_batches"])]
    csv: Option<PathBuf>,
    /// Stages in one copy of the model, for orders of several copies (GEMS, Chimera, DualPipe); 0 for one copy
    #[arg(long, value_name = "N", requires = "csv")]
    chain: Option<u32>,
    /// Forward, input-gradient and weight-gradient time of every stage, and latency of every hop; whole numbers
    #[arg(long, value_name = "F,I,W,C", conflicts_with = "plan", default_value = "1,1,1,0", value_parser = order::read_cost)]
    cost: Cost,
    /// Time the order as PyTorch runs it: on the first stage `I` does nothing and `W` is the whole backward pass
    #[arg(long, conflicts_with_all = ["plan", "timeline"])]
    as_torch: bool,
    /// Only check the order for missing, duplicate, misplaced or deadlocked operations
    #[arg(long, requires = "csv")]
    lint: bool,
    /// Schedule; the plan's when absent
    #[arg(long, value_name = "S")]
    schedule: Option<String>,
    /// Pipeline ranks, to time a schedule without a plan
    #[arg(long, value_name = "P", conflicts_with = "plan", requires_all = ["schedule", "micro_batches"])]
    ranks: Option<u32>,
    /// Stages on each rank, with --ranks; the schedule's number when absent
    #[arg(long, value_name = "V", requires = "ranks")]
    chunks: Option<u32>,
    /// Micro-batches per step; the plan's when absent
    #[arg(long, value_name = "M")]
    micro_batches: Option<u32>,
    /// File to draw the timeline to: a picture (.svg) or a trace for ui.perfetto.dev (.json)
    #[arg(long, value_name = "F.svg|.json")]
    timeline: Option<PathBuf>,
    /// File to write the order to, for stock torch.distributed.pipelining
    #[arg(long, value_name = "F.csv")]
    write_csv: Option<PathBuf>,
    /// Host time added to each pass, in microseconds [default: the plan's]
    #[arg(long, value_name = "US", conflicts_with_all = ["csv", "ranks"])]
    host_overhead: Option<f64>,
    /// Host time added to each backward pass that is split into halves, in microseconds [default: the plan's]
    #[arg(long, value_name = "US", conflicts_with_all = ["csv", "ranks"])]
    split_overhead: Option<f64>,
    /// Give every transfer the whole bandwidth of its ports
    #[arg(long, conflicts_with_all = ["csv", "ranks"])]
    no_contention: bool,
    #[command(flatten)]
    execution: execution::ExecutionArguments,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

impl Simulate {
    /// Prints the answer.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        if let Some(path) = &self.timeline {
            picture::check_name(path)?;
        }
        match (&self.plan, &self.csv) {
            (Some(path), _) => self.run_plan(path, output),
            (None, Some(path)) => self.run_csv(path, output),
            (None, None) => self.run_schedule(output),
        }
    }

    fn run_csv(&self, path: &Path, output: &mut Output) -> Result<(), Failure> {
        let name = path.display().to_string();
        let read = order::read(&name, &files::read_text(path)?, self.chain)?;
        if self.lint {
            return order::print_lint(&simulator::lint(&read), self.format, output);
        }
        let report = simulator::lint(&read);
        self.print_order(&name, (&read, report), &[], output)
    }

    fn run_schedule(&self, output: &mut Output) -> Result<(), Failure> {
        let (ranks, micro_batches) = (self.ranks.unwrap_or_default(), self.micro_batches.unwrap_or_default());
        let name = self.schedule.as_deref().unwrap_or_default();
        let (schedule, shape) = order::shape(name, ranks, self.chunks, micro_batches)?;
        let kept = order::versions(schedule, ranks, micro_batches, self.execution.vertical_sync())?;
        // The order of a regular schedule is made only if it is written or drawn.
        let is_shown = self.timeline.is_some() || self.write_csv.is_some();
        if let Some(program) = schedule.regular(shape).filter(|_| !is_shown) {
            let mut answer = order::timed(schedule.name(), &program, &self.cost, self.as_torch, Vec::new())?;
            answer.versions = plan::versions(&kept);
            return order::print(&answer, &program, self.format, output);
        }
        let made = order::make(schedule, shape, self.cost)?;
        self.print_order(schedule.name(), (&made, simulator::lint_made(&made)), &kept, output)
    }

    fn print_order(
        &self,
        name: &str,
        (order, report): (&simulator::order::Order, simulator::Report),
        kept: &[KeptVersions],
        output: &mut Output,
    ) -> Result<(), Failure> {
        let (mut answer, timeline) =
            order::simulate(name, (order, report), &self.cost, self.as_torch, self.timeline.is_some())?;
        answer.versions = plan::versions(kept);
        self.write_files(timeline.as_ref(), order)?;
        order::print(&answer, order, self.format, output)
    }

    fn run_plan(&self, path: &Path, output: &mut Output) -> Result<(), Failure> {
        let name = path.display().to_string();
        let plan = plan_file::read(path)?;
        let options = simulator::PlanOptions {
            schedule: self.schedule.clone(),
            micro_batches: self.micro_batches,
            host_overhead: self.host_overhead.map(|microseconds| Seconds(microseconds * 1e-6)),
            split_overhead: self.split_overhead.map(|microseconds| Seconds(microseconds * 1e-6)),
            sharing: if self.no_contention { Sharing::Unlimited } else { Sharing::Fair },
            execution: self.execution.execution(),
            offloaded: self.execution.offloaded(),
            tensor_parallel: self.execution.tensor_parallel(),
        };
        let simulated = plan::simulate(&name, &plan, &options)?;
        let timeline = self.timeline.is_some().then(|| picture::of_plan(&plan, &simulated));
        self.write_files(timeline.as_ref(), &simulated.step.order)?;
        match self.format {
            Format::Json => output.json(&serde_json::to_value(&simulated.answer).map_err(Failure::input)?),
            Format::Text => output.text(&plan::text(&simulated.answer)),
        }
    }

    fn write_files(
        &self,
        timeline: Option<&Timeline>,
        order: &simulator::order::Order,
    ) -> Result<(), Failure> {
        if let (Some(path), Some(timeline)) = (&self.timeline, timeline) {
            write_timeline(path, timeline)?;
        }
        if let Some(path) = &self.write_csv {
            files::write(path, simulator::order::to_csv(order).as_bytes())?;
        }
        Ok(())
    }
}

/// Simulates a plan as it is; for other commands.
pub(super) fn simulated(
    name: &str,
    plan: &schema::Plan,
) -> Result<(schema::SimulatedPlan, Timeline), Failure> {
    let simulated = plan::simulate(name, plan, &simulator::PlanOptions::default())?;
    let timeline = picture::of_plan(plan, &simulated);
    Ok((simulated.answer, timeline))
}

/// Draws a timeline in the format of the file's name.
pub(super) fn write_timeline(path: &Path, timeline: &Timeline) -> Result<(), Failure> {
    files::write(path, files::signed(path, picture::draw(path, timeline)?).as_bytes())
}

/// A step of a plan, without its timeline.
pub(super) struct Step {
    /// Its time.
    pub(super) step: Seconds,
    /// Its parts.
    pub(super) split: schema::StepSplit,
    /// Micro-batches per step.
    pub(super) micro_batches: u32,
}

/// Simulates a plan for comparison.
pub(super) fn step(name: &str, plan: &schema::Plan) -> Result<Step, Failure> {
    plan::step(name, plan)
}

/// Returns the load and memory of each device of a simulated step: those that run something, in the order of the
/// cluster.
pub(super) fn devices(
    plan: &schema::Plan,
    step: &simulator::PlannedStep,
    timeline: &simulator::Timeline,
) -> Vec<schema::SimulatedDevice> {
    plan::devices(plan, step, timeline)
}

/// Names the uses of memory, largest first.
pub(super) fn memory_parts(bytes: &[u64; 7]) -> Vec<schema::MemoryPart> {
    plan::memory_parts(bytes)
}

/// Simulates a plan as it is.
pub(super) fn timeline(plan: &schema::Plan) -> Result<simulator::Timeline, Failure> {
    let failure = |error: &dyn std::fmt::Display| Failure::input(error.to_string());
    let step =
        simulator::from_plan(plan, &simulator::PlanOptions::default()).map_err(|error| failure(&error))?;
    simulator::simulate(&step.workload, &step.order, &step.machine).map_err(|error| failure(&error))
}

/// The failure of an order that cannot be made: lists the schedules if the name was wrong.
pub(super) fn order_failure(error: OrderError) -> Failure {
    let failure = Failure::input(&error);
    match error {
        OrderError::Unknown { .. } => {
            let names = simulator::order::ALL.map(|schedule| schedule.name());
            failure.with_hint(format!("schedules are {}", names.join(", ")))
        }
        OrderError::MicroBatches { smallest: Some(smallest), .. } => {
            failure.with_hint(format!("use --micro-batches {smallest}"))
        }
        OrderError::Chunks { .. } => failure.with_hint("--chunks is the number of stages on each rank"),
        _ => failure,
    }
}
