//! `model-analyze split`: the main job in one go.
//!
//! What `split` shows is what `plan`, `simulate`, `emit`, `graph` and `report` say, never a second computation of it: it
//! plans and simulates with their functions, and has them write as a user would, through their arguments.

mod compare;
mod explain;
mod screen;
pub(super) mod step;

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, ValueEnum};
use schema::{Plan, PlanAnswer, SimulatedPlan, to_yaml};

use super::{
    emit::{self, Target},
    plan, simulate,
};
use crate::{
    cost_models::CostModels,
    failure::Failure,
    files, folder_files,
    output::{Format, Output},
};

/// Arguments of `split`.
#[derive(Args)]
#[command(after_help = "Examples:
  model-analyze split model.pt --devices 4xH100 -o out/
  model-analyze split model.pt --devices 2x8xa100 --micro-batches 32 -o out/
  model-analyze split model.pt --cluster cluster.yaml --stages 4 --strategy 1f1b -o out/
  model-analyze split model.pt --devices 8xH100 --weights checkpoint/ -o out/
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
    /// Take the weights from here instead of the trace: a .safetensors, what torch.save wrote of a state dict, the index of a
    /// checkpoint in parts, or a folder of such files
    #[arg(long, value_name = "CHECKPOINT")]
    weights: Option<PathBuf>,
    /// Forms of the stages; each holds the weights once
    #[arg(long, value_enum, value_delimiter = ',', default_value = "torchscript,python")]
    targets: Vec<Target>,
    /// Let stages call the operators of this name space, too, which another library than torch registers; say it again for
    /// more. Do that only for a file that you trust
    #[arg(long, value_name = "NAMESPACE", value_parser = emit::name_space)]
    allow_operators: Vec<String>,
    /// Folder for everything that is written; must be new or empty
    #[arg(short, long, value_name = "FOLDER", required_unless_present = "dry_run")]
    output: Option<PathBuf>,
    /// Replace what this command wrote in the folder; other files in it stay
    #[arg(long)]
    force: bool,
    /// Only say what would be done: no weights are copied, nothing is written
    #[arg(long)]
    dry_run: bool,
    /// Strategy, as `plan` names them
    #[arg(long, default_value = "auto", value_name = "NAME")]
    strategy: String,
    /// Schedule of the pipeline, instead of the best: gpipe, 1f1b, interleaved-1f1b, interleaved-zero-bubble
    #[arg(long, value_name = "NAME", conflicts_with = "strategy")]
    schedule: Option<String>,
    /// Stages in a row, each on devices of its own: the degree of pipeline parallelism; `--strategy interleaved`
    /// makes several parts of each [default: as many as serve best]
    #[arg(long, value_name = "N")]
    stages: Option<u32>,
    /// Samples in a step, of all devices together [default: see --micro-batches]
    #[arg(long, value_name = "N", conflicts_with = "micro_batches")]
    batch: Option<u64>,
    /// Micro-batches in a step, each as large as the model's inputs: more make a larger batch [default: as few
    /// as give 95 % of the throughput]
    #[arg(long, value_name = "M")]
    micro_batches: Option<u32>,
    /// Shape of an input, [NAME=]SHAPE[:DTYPE], where the trace does not tell
    #[arg(long, value_name = "SHAPE")]
    input: Vec<String>,
    /// What the optimizer keeps beside each parameter: adam, momentum or sgd
    #[arg(long, value_name = "NAME")]
    optimizer: Option<String>,
    /// Never compute activations again in the backward pass
    #[arg(long)]
    no_recompute: bool,
    /// Let activations wait in host memory where nothing else fits
    #[arg(long)]
    offload: bool,
    /// Times of a device type, as `fit -o` writes them [default: those that ship, or else its data sheet]
    #[arg(long = "cost-model", value_name = "FILE")]
    cost_models: Vec<PathBuf>,
    /// Say more: what bounds each stage, every strategy, what would help, the critical path
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
    compared: compare::Comparison,
    why: Vec<String>,
    tried: Vec<schema::MicroBatchesTried>,
    /// Samples in a micro-batch.
    batch: Option<u64>,
    /// True where the model was traced in training mode.
    is_training: bool,
}

impl Split {
    /// Does the main job.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        let folder = match (&self.output, self.dry_run) {
            (Some(target), false) => Some(files::Folder::create(target, self.force)?),
            _ => None,
        };
        let found = self.find()?;
        let mut written = Vec::new();
        if let (Some(folder), Some(target)) = (folder, &self.output) {
            let made = folder.path("")?;
            written = self
                .write(&folder, &found.plan)
                .map_err(|failure| failure.with_place(made.components().as_path(), target))?;
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

    /// Finds out that stages may not call what the model calls, that there are no weights to write, or that they are another
    /// model's, before a plan is made.
    fn check_model(&self) -> Result<(), Failure> {
        let program = crate::model::program(&self.model)?;
        emit::check_operators(&program, &self.model, &self.allow_operators)?;
        if self.dry_run {
            return Ok(());
        }
        crate::trace_notes::require_gradients(&program, &self.model)?;
        match &self.weights {
            Some(path) => crate::weights::adopt(&program, &self.model, path).map(|_| ()),
            None => crate::weights::require(&program, &self.model),
        }
    }

    /// Plans, simulates and compares.
    fn find(&self) -> Result<Found, Failure> {
        let strategy = self.strategy()?;
        let asking = step::plan_arguments(self.plan_arguments())?;
        asking.check_counts()?;
        let input = plan::input::Input::read(&self.model)?;
        if !matches!(input, plan::input::Input::Trace) {
            let failure = Failure::input(format!("{} is a profile, not a model", self.model.display()));
            return Err(
                failure.with_hint("stages are cut from a traced model; `model-analyze plan` plans profiles")
            );
        }
        self.check_model()?;
        let models = CostModels::read(&asking.cost_models)?;
        let cluster = plan::clusters::cluster(&asking, &models)?;
        let (asked, solved) = plan::model::planned(&asking, &input, cluster, &models, strategy)?;
        let plan = asked.file(&solved.best);
        let beside = (&solved.others[..], &solved.failed[..]);
        let answer = asked.answer(&asking, Some(&solved.ways), &solved.best, beside, &plan);
        let name = self.model.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let (simulated, _) = simulate::simulated(&name, &plan)?;
        let every = self.explain || self.format == Format::Json;
        let compared =
            compare::compare(&asked.problem, &solved, &simulated, every, |solution| asked.plan(solution));
        let why = compare::why(&simulated, &compared);
        Ok(Found {
            name,
            one_device: one_device(&plan),
            plan,
            answer,
            simulated,
            compared,
            why,
            tried: solved.tried,
            batch: asked.batch,
            is_training: asked.program.as_ref().is_none_or(|program| codegen::was_training(program)),
        })
    }

    /// Returns the strategy that was asked for, by its name or by its schedule's; none to choose the best.
    fn strategy(&self) -> Result<Option<partitioner::Strategy>, Failure> {
        use partitioner::Strategy;
        use simulator::order::Schedule;
        let Some(name) = &self.schedule else {
            return match self.strategy.as_str() {
                "auto" => Ok(None),
                name => plan::model::strategy(name).map(Some),
            };
        };
        match Schedule::from_name(name).map_err(simulate::order_failure)? {
            Schedule::LayerParallel => Ok(Some(Strategy::Layer)),
            Schedule::GPipe => Ok(Some(Strategy::GPipe)),
            Schedule::OneForwardOneBackward => Ok(Some(Strategy::OneForwardOneBackward)),
            Schedule::Interleaved1F1B => Ok(Some(Strategy::Interleaved)),
            Schedule::InterleavedZeroBubble => Ok(Some(Strategy::ZeroBubble)),
            Schedule::PipeDream => Ok(Some(Strategy::PipeDream)),
            other => Err(Failure::input(format!("no stages are planned for {} yet", other.name())).with_hint(
                "plan for gpipe, 1f1b, interleaved-1f1b or interleaved-zero-bubble; `model-analyze simulate PLAN \
                 --schedule NAME` times a plan under others",
            )),
        }
    }

    fn plan_arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["plan".into(), self.model.clone().into()];
        if let Some(devices) = &self.devices {
            arguments.extend(["--devices".into(), devices.into()]);
        }
        if let Some(cluster) = &self.cluster {
            arguments.extend(["--cluster".into(), cluster.into()]);
        }
        if let Some(micro_batches) = self.micro_batches {
            arguments.extend(["--micro-batches".into(), micro_batches.to_string().into()]);
        }
        if let Some(batch) = self.batch {
            arguments.extend(["--batch".into(), batch.to_string().into()]);
        }
        if let Some(stages) = self.stages {
            arguments.extend(["--stages".into(), stages.to_string().into()]);
        }
        for input in &self.input {
            arguments.extend(["--input".into(), input.into()]);
        }
        if let Some(optimizer) = &self.optimizer {
            arguments.extend(["--optimizer".into(), optimizer.into()]);
        }
        let flags = [("--no-recompute", self.no_recompute), ("--offload", self.offload)];
        arguments.extend(flags.into_iter().filter(|flag| flag.1).map(|flag| flag.0.into()));
        arguments.extend(self.cost_model_arguments());
        arguments
    }

    fn cost_model_arguments(&self) -> impl Iterator<Item = OsString> {
        self.cost_models.iter().flat_map(|path| ["--cost-model".into(), path.into()])
    }

    /// Fills the folder; returns what lies in it.
    fn write(&self, folder: &files::Folder, plan: &Plan) -> Result<Vec<String>, Failure> {
        let root = folder.path("")?;
        let plan_file = folder.path("plan.yaml")?;
        files::write(&plan_file, to_yaml(plan).as_bytes())?;
        let plan = plan_file.as_path();
        let mut emit: Vec<OsString> = vec!["emit".into(), self.model.clone().into(), plan.into()];
        emit.extend(["-o".into(), root.clone().into()]);
        for value in self.targets.iter().filter_map(Target::to_possible_value) {
            emit.extend(["--targets".into(), value.get_name().into()]);
        }
        emit.extend(self.allow_operators.iter().flat_map(|space| ["--allow-operators".into(), space.into()]));
        emit.extend(self.weights.iter().flat_map(|path| ["--weights".into(), path.into()]));
        step::emit_arguments(emit)?.write_into(folder)?;
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
        report.extend(self.cost_model_arguments());
        step::run(report)?;
        let timeline = root.join("timeline.svg");
        step::run(["simulate".into(), plan.into(), "--timeline".into(), timeline.into()])?;
        folder_files::list_more(folder)?;
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
