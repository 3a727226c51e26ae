//! `model-analyze report`: a model, its plan and its timeline as one HTML file.

use std::path::{Path, PathBuf};

use clap::Args;
use schema::{Plan, SimulatedPlan, TIMELINE_VERSION, Timeline};
use viz::report::{Origin, Planned};

use super::simulate;
use crate::{
    cost_models::CostModels, failure::Failure, files, operator_stages, output::Output, plan_file,
    program::PROGRAM, shell::quoted, workspace::Workspace,
};

mod times;
mod what_if;

/// Shown while it works.
pub const WORKING: &str = "writing the page";

/// Arguments of `report`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  model-analyze report resnet50.pt -o resnet50.html
  model-analyze report resnet50.pt plan.yaml -o report.html
  model-analyze report resnet50.pt plan.yaml --measured out/timeline.json -o report.html

The page is one file and loads nothing else: mail it, or open it from a disk. It shows the model as a graph that expands and
collapses; with a plan also its stages, memory, the simulated step and other schedules.")]
pub struct Report {
    /// A traced model: an archive of torch.jit.save, or IR text
    model: PathBuf,

    /// A plan for it
    plan: Option<PathBuf>,

    /// Where to write the page
    #[arg(long, short, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,

    /// A measured timeline, shown above the simulated one and compared with it
    #[arg(long, value_name = "TIMELINE.json", requires = "plan")]
    measured: Option<PathBuf>,

    /// Shape of an input, in the order of `forward` or by name: [NAME=]SHAPE[:DTYPE]
    #[arg(long = "input", short, value_name = "INPUT", allow_hyphen_values = true)]
    inputs: Vec<String>,

    /// Cost model of a device type, as given to `plan`
    #[arg(long = "cost-model", value_name = "FILE", requires = "plan")]
    cost_models: Vec<PathBuf>,
}

/// A plan and all answers about it on a page.
pub struct PlannedPage {
    plan: Plan,
    stages: Vec<Option<u32>>,
    seconds: Option<Vec<f64>>,
    simulated: SimulatedPlan,
    timeline: Timeline,
    what_if: what_if::Grid,
}

impl Report {
    /// Writes the page.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        let workspace = Workspace::read(&self.model, &self.inputs)?;
        let models = CostModels::read(&self.cost_models)?;
        let plan = self.plan.as_ref().map(|path| plan_file::read_for(path, &workspace.file)).transpose()?;
        let shared = plan.as_ref().map(|plan| workspace.under(plan, &models)).transpose()?;
        let workspace = shared.as_deref().unwrap_or(&workspace);
        let planned = match (&self.plan, plan) {
            (Some(path), Some(plan)) => {
                let name = path.display().to_string();
                let stages = operator_stages::of_plan(&name, &plan, workspace.program())?;
                let simulated = simulate::simulated(&name, &plan)?;
                Some(PlannedPage::new(plan, stages, simulated, workspace, &models))
            }
            _ => None,
        };
        let measured = self.measured.as_deref().map(read_timeline).transpose()?;
        let page = report(workspace, planned.as_ref(), measured.as_ref());
        if self.output.as_os_str() == "-" {
            return output.document(&page);
        }
        files::write(&self.output, page.as_bytes())
    }
}

impl PlannedPage {
    /// Collects a page's answers about a plan: the stages of operators, the simulated step, and the what-if grid.
    pub fn new(
        plan: Plan,
        stages: Vec<Option<u32>>,
        (mut simulated, timeline): (SimulatedPlan, Timeline),
        workspace: &Workspace,
        models: &CostModels,
    ) -> Self {
        let seconds = times::of_plan(&plan, &stages, workspace, models);
        if let Err(reason) = &seconds {
            simulated.notes.push(format!("blocks have no predicted times here: {reason}"));
        }
        let what_if = what_if::grid(&plan, &simulated);
        Self { plan, stages, seconds: seconds.ok(), simulated, timeline, what_if }
    }
}

/// Writes a page: of a model only, or with its plan.
pub fn report(workspace: &Workspace, planned: Option<&PlannedPage>, measured: Option<&Timeline>) -> String {
    viz::report::html(&viz::report::Report {
        graph: &workspace.graph,
        costs: &workspace.costs,
        seconds: planned.and_then(|planned| planned.seconds.as_deref()),
        stages: planned.map(|planned| planned.stages.as_slice()),
        planned: planned.map(|planned| Planned {
            plan: &planned.plan,
            simulated: &planned.simulated,
            timeline: &planned.timeline,
            what_if: Some(&planned.what_if.grid),
            what_if_steps: &planned.what_if.steps,
            what_if_devices: &planned.what_if.devices,
        }),
        measured,
        origin: Origin {
            tool: PROGRAM.to_string(),
            command: command_line(),
            name: workspace.file.stem(),
            digest: workspace.file.digest().to_string(),
        },
    })
}

fn read_timeline(path: &Path) -> Result<Timeline, Failure> {
    let name = path.display();
    let text = files::read_text(path)?;
    let timeline: Timeline = serde_json::from_str(&text).map_err(|error| {
        Failure::json(&name.to_string(), &text, &error).with_hint("`model-analyze run` writes timelines")
    })?;
    if timeline.kind != "timeline" {
        let kind: String = timeline.kind.chars().take(40).collect();
        return Err(Failure::input(format!("{name}: the file is a `{kind}`, not a timeline")));
    }
    if timeline.version > TIMELINE_VERSION {
        return Err(Failure::input(format!(
            "{name}: timeline version {} is newer than the supported {TIMELINE_VERSION}",
            timeline.version
        )));
    }
    let is_backwards = |span: &schema::TimelineSpan| span.end < span.start;
    if let Some(span) = timeline.tracks.iter().flat_map(|track| &track.spans).find(|s| is_backwards(s)) {
        return Err(Failure::input(format!(
            "{name}: `{}` ends at {} before it starts at {}",
            span.name, span.end, span.start
        )));
    }
    if let Some(track) = timeline.tracks.iter().find(|track| track.device as usize >= timeline.devices.len())
    {
        return Err(Failure::input(format!(
            "{name}: a track is on device {}, the timeline has {}",
            track.device,
            timeline.devices.len()
        )));
    }
    Ok(timeline)
}

/// Returns the command line with a shell's quoting.
fn command_line() -> String {
    let mut words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let program = words.next().map_or_else(String::new, |program| {
        Path::new(&program).file_name().map_or(program.clone(), |name| name.to_string_lossy().into_owned())
    });
    std::iter::once(program).chain(words.map(|word| quoted(&word))).collect::<Vec<_>>().join(" ")
}
