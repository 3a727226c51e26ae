//! `model-analyze split`: from a model to stages in one command.
//!
//! `split` never computes a number of its own: it calls the functions of `plan`, `simulate`, `emit`, `graph` and
//! `report`, on one model that is read once.

mod compare;
mod explain;
mod screen;

use std::path::PathBuf;

use clap::Args;
use partitioner::Strategy;
use schema::{Plan, PlanAnswer, SimulatedPlan, Timeline};
use simulator::order::Schedule;

use super::{
    emit::{self, CutAt, FormArguments},
    graph::{self, GraphRequest},
    plan::{self, PlanArguments, PlanRequest, Subject},
    report::{self, PlannedPage},
    simulate,
};
use crate::{
    failure::{Failure, both},
    files, folder_files, model, operator_stages,
    output::{Format, Output},
    progress,
    workspace::{ModelFile, Workspace},
};

/// Arguments of `split`.
#[derive(Args)]
#[command(mut_arg("devices", |devices| devices.required_unless_present("cluster")))]
#[command(after_help = "Examples:
  model-analyze split model.pt --devices 4xH100 -o out/
  model-analyze split model.pt --devices 2x8xa100 --micro-batches 32 -o out/
  model-analyze split model.pt --cluster cluster.yaml --stages 4 --strategy 1f1b -o out/
  model-analyze split model.pt --devices 8xH100 --weights checkpoint/ -o out/
  model-analyze split model.pt --devices 4xt4 --dry-run

Without further flags it chooses stages, replicas, schedule and micro-batches itself, and explains the choice.")]
pub struct Split {
    /// A traced model (.pt)
    model: PathBuf,
    #[command(flatten)]
    asking: PlanArguments,
    // Its help lists the names.
    #[arg(long, value_name = "NAME", conflicts_with = "strategy", help = schedule_help())]
    schedule: Option<String>,
    #[command(flatten)]
    forms: FormArguments,
    /// Folder for all output; must be new or empty
    #[arg(short, long, value_name = "FOLDER", required_unless_present = "dry_run")]
    output: Option<PathBuf>,
    /// Replace what this command wrote in the folder; other files in it stay
    #[arg(long)]
    force: bool,
    /// Only print the plan: no weights are copied, nothing is written
    #[arg(long)]
    dry_run: bool,
    /// Print more: the bottleneck of each stage, every strategy, what would help, the critical path
    #[arg(long)]
    explain: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// The results that the screen shows.
struct Found {
    name: String,
    plan: Plan,
    answer: PlanAnswer,
    simulated: SimulatedPlan,
    timeline: Timeline,
    /// Seconds of a step on one device with the same micro-batches; `None` if it does not fit.
    one_device: Option<f64>,
    compared: compare::Comparison,
    why: Vec<String>,
    tried: Vec<schema::MicroBatchesTried>,
    /// Samples in a micro-batch.
    batch: Option<u64>,
    /// The planned model, if it is not the traced one: one device's share of it, or another micro-batch size.
    own: Option<Workspace>,
    /// True if the model was traced in training mode.
    is_training: bool,
    /// Set for a program of torch.export.
    is_exported: bool,
}

/// Returns the names of the offered schedules.
pub fn schedules() -> Vec<&'static str> {
    Strategy::schedules().map(Schedule::name).collect()
}

fn schedule_help() -> String {
    format!("Schedule of the pipeline, instead of the fastest: {}", schedules().join(", "))
}

impl Split {
    /// Plans, writes and prints.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        // All errors that can be found quickly are reported at once.
        let folder = match (&self.output, self.dry_run) {
            (Some(target), false) => files::Folder::create(target, self.force).map(Some),
            _ => Ok(None),
        };
        let ((request, file), folder) = both(both(self.request(), self.read()), folder)?;
        let inputs = model::input_shapes(&self.asking.input)?;
        let workspace = Workspace::build(file, inputs)?;
        let found = self.find(&workspace, &request)?;
        let mut written = Vec::new();
        if let (Some(folder), Some(target)) = (folder, &self.output) {
            let made = folder.path("")?;
            written = self
                .write(&folder, &workspace, &request, &found)
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

    /// Returns the request to the planner.
    fn request(&self) -> Result<PlanRequest, Failure> {
        let strategy = self.strategy();
        let no_cluster = || Err(Failure::bug("there is no cluster, which the arguments require"));
        let request = self.asking.request(strategy.as_ref().ok().copied().flatten(), no_cluster);
        let (_, request) = both(both(strategy, self.asking.check_counts()), request)?;
        // If nothing fits, what would help is computed over all strategies, even if one is named.
        let request = PlanRequest { alternatives: None, ..request };
        request.check()?;
        request.cost_models.require_used(&request.cluster)?;
        Ok(request)
    }

    /// Reads the model.
    fn read(&self) -> Result<ModelFile, Failure> {
        let plan::Input::Trace(file) = plan::Input::read(&self.model)? else {
            let failure = Failure::input(format!("{} is a profile, not a model", self.model.display()));
            return Err(
                failure.with_hint("stages are cut from a traced model; `model-analyze plan` plans profiles")
            );
        };
        let file = ModelFile::of(file)?;
        self.check_model(&file)?;
        Ok(file)
    }

    /// Refuses, before a plan is made, models with operators that stages may not call, without weights to write, or
    /// with another model's weights.
    fn check_model(&self, model: &ModelFile) -> Result<(), Failure> {
        emit::check_operators(&model.program, model.path(), &self.forms.allow_operators)?;
        if self.dry_run {
            return Ok(());
        }
        model.require_gradients()?;
        match &self.forms.weights {
            Some(path) => crate::weights::adopt(model, path).map(|_| ()),
            None => crate::weights::require(model),
        }
    }

    /// Plans, simulates and compares.
    fn find(&self, workspace: &Workspace, request: &PlanRequest) -> Result<Found, Failure> {
        let (asked, solved) = plan::planned(Subject::Model(workspace), request)?;
        let file = asked.file(&solved.best);
        let beside = (&solved.others[..], &solved.failed[..]);
        let answer = asked.answer(request, Some(&solved.cut_space), &solved.best, beside, &file);
        let one_device = plan::one_device(&asked.problem, &solved.best, &answer).filter(|one| one.fits);
        let one_device = one_device.map(|one| one.seconds_each * f64::from(solved.best.micro_batches));
        let plan = file.plan;
        let name = workspace.file.stem();
        let (simulated, timeline) = simulate::simulated(&name, &plan)?;
        let every = self.explain || self.format == Format::Json;
        let compared =
            compare::compare(&asked.problem, &solved, &simulated, every, |solution| asked.plan(solution));
        let why = compare::why(&simulated, &compared);
        let program = workspace.program();
        Ok(Found {
            name,
            one_device,
            plan,
            answer,
            simulated,
            timeline,
            compared,
            why,
            tried: solved.tried,
            batch: asked.samples(),
            own: asked.into_own(),
            is_training: program.archive.is_none() || codegen::was_training(program),
            is_exported: model::is_exported(program),
        })
    }

    /// Returns the requested strategy, by its name or by its schedule's; `None` to choose the best.
    fn strategy(&self) -> Result<Option<Strategy>, Failure> {
        let Some(name) = &self.schedule else { return self.asking.strategy() };
        let schedule = Schedule::from_name(name).map_err(simulate::order_failure)?;
        let strategy = Strategy::of_schedule(schedule).ok_or_else(|| {
            let names = schedules();
            let (last, first) = names.split_last().expect("some are offered");
            let hint = format!(
                "plan for {} or {last}; `model-analyze simulate PLAN --schedule NAME` times a plan under other schedules",
                first.join(", ")
            );
            Failure::input(format!("stages cannot be planned for {} yet", schedule.name())).with_hint(hint)
        })?;
        Ok(Some(strategy))
    }

    /// Fills the folder; returns the names in it.
    fn write(
        &self,
        folder: &files::Folder,
        workspace: &Workspace,
        request: &PlanRequest,
        found: &Found,
    ) -> Result<Vec<String>, Failure> {
        let root = folder.path("")?;
        // Writing stages has a progress bar of its own.
        progress::done();
        let stages = self.forms.request(CutAt::Plan(Box::new(found.plan.clone())));
        // Stages are those of the trace, whatever micro-batches are planned.
        let own = found.own.as_ref().filter(|_| found.plan.micro_batch_size.is_none());
        emit::emit(&workspace.file, &stages, own)?.write(folder)?;
        progress::working(graph::WORKING);
        graph::tell_notes(workspace);
        let plan_name = root.join("plan.yaml").display().to_string();
        let workspace = found.own.as_ref().unwrap_or(workspace);
        let stages = operator_stages::of_plan(&plan_name, &found.plan, workspace.program())?;
        let picture = graph::graph(workspace, Some(&stages), &GraphRequest::of_stages())?;
        let path = root.join("graph.svg");
        files::write(&path, files::signed(&path, picture).as_bytes())?;
        progress::working(report::WORKING);
        let simulated = (found.simulated.clone(), found.timeline.clone());
        let page = PlannedPage::new(found.plan.clone(), stages, simulated, workspace, &request.cost_models);
        let page = report::report(workspace, Some(&page), None);
        files::write(&root.join("report.html"), page.as_bytes())?;
        simulate::write_timeline(&root.join("timeline.svg"), &found.timeline)?;
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
