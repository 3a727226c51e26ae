//! `model-analyze split`: the main job in one go.
//!
//! It speaks to the other subcommands as a user would, through their arguments and their JSON: what `split` shows is
//! what `plan`, `simulate`, `emit` and `graph` say, never a second computation of it.

mod screen;
pub(super) mod step;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use clap::Args;
use schema::{Plan, PlanAnswer, SimulatedPlan};

use crate::{
    failure::Failure,
    files,
    output::{Format, Output},
    plan_file,
};

/// What people do by hand, compared with our plan.
const BY_HAND: [&str; 4] = ["even-layers", "even-parameters", "torchgpipe", "deepspeed"];

/// Arguments of `split`.
#[derive(Args)]
#[command(after_help = "Examples:
  model-analyze split model.pt --devices 4xH100 -o out/
  model-analyze split model.pt --devices 2x8xa100 --micro-batches 32 -o out/
  model-analyze split model.pt --cluster cluster.yaml --stages 4 --strategy 1f1b -o out/
  model-analyze split model.pt --devices 4xt4 --dry-run

Without further flags it chooses stages, replicas, schedule and micro-batches itself, and says why.")]
pub struct Split {
    /// A traced model (.pt)
    model: PathBuf,
    /// Devices: 4xH100, 2x8xa100 (two nodes of eight), 4xa100+4xv100
    #[arg(long, value_name = "N×NAME", required_unless_present = "cluster")]
    devices: Option<String>,
    /// Cluster file, instead of --devices
    #[arg(long, value_name = "FILE", conflicts_with = "devices")]
    cluster: Option<PathBuf>,
    /// Folder for everything that is written; must be new or empty
    #[arg(short, long, value_name = "FOLDER", required_unless_present = "dry_run")]
    output: Option<PathBuf>,
    /// Replace the folder if it was written by this command
    #[arg(long)]
    force: bool,
    /// Only say what would be done: no weights are copied, nothing is written
    #[arg(long)]
    dry_run: bool,
    /// Strategy, as `plan` names them
    #[arg(long, default_value = "auto", value_name = "NAME")]
    strategy: String,
    /// Stages of the pipeline [default: as many as serve best]
    #[arg(long, value_name = "N")]
    stages: Option<u32>,
    /// Micro-batches in a step [default: 4 for each device]
    #[arg(long, value_name = "M")]
    micro_batches: Option<u32>,
    /// Shape of an input, [NAME=]SHAPE[:DTYPE], where the trace does not tell
    #[arg(long, value_name = "SHAPE")]
    input: Vec<String>,
    /// Say more: every strategy, what each device's time goes to, the critical path
    #[arg(long)]
    explain: bool,
    /// How the answer is printed
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Everything that the screen shows.
struct Found {
    name: String,
    plan: Plan,
    answer: PlanAnswer,
    simulated: SimulatedPlan,
    /// One device: seconds of a step with as many micro-batches; nothing where it does not fit.
    one_device: Option<f64>,
    /// Splits by hand that could be planned: name and seconds of a step.
    by_hand: Vec<(&'static str, Result<f64, String>)>,
    /// Samples in a step.
    samples: Option<u64>,
}

impl Split {
    /// Does the main job.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        let scratch = tempfile::tempdir()?;
        let folder = match (&self.output, self.dry_run) {
            (Some(target), false) => Some(files::Folder::create(target, self.force)?),
            _ => None,
        };
        let plan = scratch.path().join("plan.yaml");
        let found = self.find(&plan)?;
        let mut written = Vec::new();
        if let (Some(folder), Some(target)) = (folder, &self.output) {
            written = self.write(&folder, &plan)?;
            folder.finish()?;
            written.insert(0, target.display().to_string());
        }
        match self.format {
            Format::Json => {
                let answer = screen::answer(&found);
                output.json(&serde_json::to_value(&answer).map_err(Failure::input)?)
            }
            Format::Text => output.text(&screen::text(&found, &written, self.explain)),
        }
    }

    /// Plans, simulates and compares; the plan goes into a file.
    fn find(&self, file: &Path) -> Result<Found, Failure> {
        let mut arguments = self.plan_arguments(&self.strategy);
        arguments.extend(["-o".into(), file.into()]);
        let answer: PlanAnswer = step::answer(arguments)?;
        let plan = plan_file::read(file)?;
        let simulated: SimulatedPlan = step::answer(["simulate".into(), file.into()])?;
        let micro_batches = plan.micro_batches;
        // The same number of micro-batches, or the comparison would be of different work.
        let other = |strategy: &str| -> Result<f64, String> {
            let mut arguments = self.plan_arguments(strategy);
            if self.micro_batches.is_none() {
                arguments.extend(["--micro-batches".into(), micro_batches.to_string().into()]);
            }
            let answer: Result<PlanAnswer, _> = step::answer(arguments);
            let answer = answer.map_err(|failure| failure.to_string())?;
            let period = answer.period_seconds.map(|period| period * f64::from(micro_batches));
            answer.step_seconds.or(period).ok_or_else(|| "it has no time".to_string())
        };
        let by_hand = BY_HAND.into_iter().map(|strategy| (strategy, other(strategy))).collect();
        let name = self.model.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let samples = self.batch()?.map(|batch| batch * u64::from(micro_batches));
        Ok(Found { name, one_device: one_device(&plan), plan, answer, simulated, by_hand, samples })
    }

    fn plan_arguments(&self, strategy: &str) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["plan".into(), self.model.clone().into()];
        arguments.extend(["--strategy".into(), strategy.into()]);
        if let Some(devices) = &self.devices {
            arguments.extend(["--devices".into(), devices.into()]);
        }
        if let Some(cluster) = &self.cluster {
            arguments.extend(["--cluster".into(), cluster.into()]);
        }
        if let Some(micro_batches) = self.micro_batches {
            arguments.extend(["--micro-batches".into(), micro_batches.to_string().into()]);
        }
        if let Some(stages) = self.stages {
            arguments.extend(["--stages".into(), stages.to_string().into()]);
        }
        for input in &self.input {
            arguments.extend(["--input".into(), input.into()]);
        }
        arguments
    }

    /// Samples in one micro-batch: the first size of the first input.
    fn batch(&self) -> Result<Option<u64>, Failure> {
        let graph = crate::model::load(&self.model, &self.input)?.graph;
        let shape = graph.inputs.first().and_then(|&input| {
            graph.values[input.index()].fact.tensors().first()?.shape.as_ref()?.first().copied()
        });
        Ok(shape.flatten())
    }

    /// Fills the folder; returns what lies in it.
    fn write(&self, folder: &files::Folder, plan: &Path) -> Result<Vec<String>, Failure> {
        let root = folder.path("")?;
        step::run(["emit".into(), self.model.clone().into(), plan.into(), "-o".into(), root.clone().into()])?;
        let in_plan = root.join("plan.yaml");
        if !in_plan.exists() {
            files::write(&in_plan, &files::read_bytes(plan)?)?;
        }
        let mut graph: Vec<OsString> = vec!["graph".into(), self.model.clone().into()];
        graph.extend(["--plan".into(), plan.into(), "-o".into(), root.join("graph.svg").into()]);
        for input in &self.input {
            graph.extend(["--input".into(), input.into()]);
        }
        step::run(graph)?;
        let mut report: Vec<OsString> = vec!["report".into(), self.model.clone().into(), plan.into()];
        report.extend(["-o".into(), root.join("report.html").into()]);
        for input in &self.input {
            report.extend(["--input".into(), input.into()]);
        }
        step::run(report)?;
        let timeline = root.join("timeline.svg");
        step::run(["simulate".into(), plan.into(), "--timeline".into(), timeline.into()])?;
        let mut names: Vec<String> = std::fs::read_dir(&root)?
            .flatten()
            .map(|entry| {
                let slash = if entry.path().is_dir() { "/" } else { "" };
                format!("{}{slash}", entry.file_name().to_string_lossy())
            })
            .collect();
        names.sort();
        Ok(names)
    }
}

/// Seconds of a step on one device of the first stage's type, if it fits there.
fn one_device(plan: &Plan) -> Option<f64> {
    let costs = plan.stages.iter().map(|stage| stage.cost);
    let each: f64 = costs.clone().map(|c| c.forward.0 + c.input_gradient.0 + c.weight_gradient.0).sum();
    // Parameters, their gradients and optimizer state stay; activations of one micro-batch at a time.
    let memory: u64 = costs.map(|c| 2 * c.parameters.0 + c.optimizer.0 + c.activations.0).sum();
    let type_ = plan.cluster.types.get(&plan.cluster.devices.first()?.type_)?;
    (memory <= type_.memory.0).then_some(each * f64::from(plan.micro_batches))
}
