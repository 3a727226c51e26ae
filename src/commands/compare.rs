//! `model-analyze compare`: every strategy on one simulated cluster, ranked.
//!
//! Each row has the numbers of `plan`, or of `simulate` on such a plan, with the flags of that row; the model is read
//! once for all.

mod rows;
mod table;
mod ways;

use std::path::PathBuf;

use clap::Args;
use partitioner::Strategy;
use schema::{ANSWER_VERSION, CompareAnswer, Plan, StrategyRow};

use self::{
    rows::{Outcome, Question, is_same},
    ways::{How, Way, ways},
};
use super::plan::{self, PlanArguments, PlanRequest, StepSize, matches};
use crate::{
    failure::Failure,
    files, kinds, model,
    nearest::meant,
    output::{Format, Output},
    progress,
    workspace::{ModelFile, Workspace},
};

/// Shown while it works.
pub const WORKING: &str = "comparing strategies";
/// The name of the row that `plan` gives without a strategy.
const AUTO: &str = "auto";

/// Arguments of `compare`.
#[derive(Args)]
#[command(mut_arg("devices", |devices| devices.required_unless_present("cluster")))]
#[command(mut_arg("strategy", |strategy| strategy.hide(true)))]
#[command(mut_arg("sharding", |sharding| sharding.hide(true)))]
#[command(mut_arg("tensor_parallel", |degree| degree.hide(true)))]
#[command(mut_arg("sequence_parallel", |held| held.hide(true)))]
#[command(mut_arg("spatial", |degree| degree.hide(true)))]
#[command(mut_arg("context_parallel", |degree| degree.hide(true)))]
#[command(mut_arg("expert_parallel", |degree| degree.hide(true)))]
#[command(mut_arg("on_first", |calls| calls.hide(true)))]
#[command(mut_arg("from", |plan| plan.hide(true)))]
#[command(after_help = "Examples:
  model-analyze compare model.pt --devices 4xa100
  model-analyze compare model.pt --devices 2x8xh100 --batch 512 --plot compare.svg
  model-analyze compare model.pt --cluster cluster.yaml --only 'data-parallel*' --only 1f1b
  model-analyze compare model.pt --devices 8xt4 --format json

Every strategy is planned with the same flags, as `plan` plans it, and simulated on the same cluster; the one with the highest
throughput comes first, and a star marks the plan of `plan`. Without --batch or --micro-batches each strategy uses the number
of micro-batches that suits it best. Only the picture is written.")]
pub struct Compare {
    /// A traced model (.pt)
    model: PathBuf,
    #[command(flatten)]
    asking: PlanArguments,
    /// Compare only these strategies, by their names in the table: 'data-parallel*', 1f1b; may be given several times
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// File to draw throughput and memory to
    #[arg(long, value_name = "F.svg")]
    plot: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

impl Compare {
    /// Compares, and prints the table.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        self.check()?;
        let no_cluster = || Err(Failure::bug("there is no cluster, which the arguments require"));
        let request = self.asking.request(None, no_cluster)?;
        request.check()?;
        request.cost_models.require_used(&request.cluster)?;
        let ways = self.chosen(ways(&request))?;
        let plan::Input::Trace(file) = plan::Input::read(&self.model)? else {
            let failure = Failure::input(format!("{} is a profile, not a model", self.model.display()));
            return Err(failure.with_hint("`model-analyze plan --compare` compares strategies for profiles"));
        };
        let inputs = model::input_shapes(&self.asking.input)?;
        let workspace = Workspace::build(ModelFile::of(file)?, inputs)?;
        let answer = compared(&workspace, &request, &ways);
        if answer.strategies.is_empty() {
            let reasons = answer.left_out.iter().map(|one| format!("{}: {}", one.name, one.reason));
            let reasons: Vec<String> = reasons.collect();
            return Err(Failure::no(format!("no strategy has a plan: {}", reasons.join("; ")))
                .with_hint("`model-analyze plan` suggests changes"));
        }
        if let Some(path) = &self.plot {
            let picture = table::picture(&answer)?;
            files::write(path, files::signed(path, picture).as_bytes())?;
        }
        match self.format {
            Format::Json => output.json(&serde_json::to_value(&answer).map_err(Failure::input)?),
            Format::Text => output.text(&table::text(&answer)),
        }
    }

    /// Refuses arguments that would leave nothing to compare, and unsupported kinds of pictures.
    fn check(&self) -> Result<(), Failure> {
        self.asking.check_counts()?;
        let asking = &self.asking;
        let given = [
            ("--strategy", asking.strategy != AUTO),
            ("--sharding", asking.sharding.is_some()),
            ("--tensor-parallel", asking.tensor_parallel.is_some()),
            ("--sequence-parallel", asking.sequence_parallel.is_some()),
            ("--spatial", asking.spatial.is_some()),
            ("--context-parallel", asking.context_parallel.is_some()),
            ("--expert-parallel", asking.expert_parallel.is_some()),
            ("--on-first", !asking.on_first.is_empty()),
        ];
        if asking.from.is_some() {
            return Err(Failure::input("compare does not take --from: it compares plans of strategies"));
        }
        if let Some((name, _)) = given.iter().find(|(_, is_given)| *is_given) {
            return Err(Failure::input(format!("compare does not take {name}: it compares all of them"))
                .with_hint("--only compares some; `model-analyze plan` plans one"));
        }
        match &self.plot {
            Some(path) if path.extension().is_none_or(|ending| ending != "svg") => {
                Err(Failure::input(format!("--plot {}: the picture must be an .svg", path.display())))
            }
            _ => Ok(()),
        }
    }

    /// Keeps the requested strategies.
    fn chosen(&self, ways: Vec<Way>) -> Result<Vec<Way>, Failure> {
        let is_meant = |pattern: &str, way: &Way| matches(&pattern.to_ascii_lowercase(), &way.name);
        for pattern in &self.only {
            if !ways.iter().any(|way| is_meant(pattern, way)) {
                let meant = meant(pattern, ways.iter().map(|way| way.name.as_str()), 3);
                let names: Vec<&str> = ways.iter().map(|way| way.name.as_str()).collect();
                return Err(Failure::input(format!("--only: no strategy is called `{pattern}`{meant}"))
                    .with_hint(format!("names are {}", names.join(", "))));
            }
        }
        let is_wanted = |way: &Way| self.only.is_empty() || self.only.iter().any(|one| is_meant(one, way));
        Ok(ways.into_iter().filter(is_wanted).collect())
    }
}

/// Plans or simulates every strategy, and ranks those with a plan.
fn compared(workspace: &Workspace, request: &PlanRequest, ways: &[Way]) -> CompareAnswer {
    let question = Question { workspace, request, size: StepSize::of(workspace) };
    // Plans of strategies that others simulate.
    let mut plans: Vec<(Strategy, Option<Box<Plan>>)> = Vec::new();
    let mut found: Vec<(Box<StrategyRow>, Option<Box<Plan>>)> = Vec::new();
    let mut left_out = Vec::new();
    for (done, way) in ways.iter().enumerate() {
        progress::at(format!("{done} of {}, {}", ways.len(), way.name));
        let outcome = match way.how {
            How::Simulated(of, otherwise) => {
                let base = base(&question, &mut plans, of);
                question.simulate(way, of, otherwise, base)
            }
            _ => question.ask(way),
        };
        match outcome {
            Outcome::Found(row, plan) => {
                plans.extend(way.stands_for().map(|strategy| (strategy, plan.clone())));
                found.push((row, plan));
            }
            Outcome::LeftOut(left) => {
                plans.extend(way.stands_for().map(|strategy| (strategy, None)));
                left_out.push(left);
            }
        }
    }
    let mut strategies = marked(found);
    // Strategies may differ in the size of micro-batches.
    let each = |row: &StrategyRow| match row.samples {
        Some(samples) => row.step_seconds / samples.max(1) as f64,
        None => row.micro_batch_seconds,
    };
    strategies.sort_by(|a, b| each(a).total_cmp(&each(b)));
    let best = strategies.first().map_or(0.0, each);
    for row in &mut strategies {
        row.slower = if best > 0.0 { each(row) / best - 1.0 } else { 0.0 };
    }
    CompareAnswer {
        schema_version: ANSWER_VERSION,
        model: workspace.file.stem(),
        devices: kinds::counted(&kinds::by_type(&request.cluster.devices)),
        strategies,
        left_out,
    }
}

/// Returns the plan that other strategies simulate; it is made here if it is not compared itself.
fn base<'p>(
    question: &Question<'_>,
    plans: &'p mut Vec<(Strategy, Option<Box<Plan>>)>,
    of: Strategy,
) -> Option<&'p Plan> {
    if !plans.iter().any(|(known, _)| *known == of) {
        let way = ways(question.request).into_iter().find(|way| way.stands_for() == Some(of));
        let plan = match way.map(|way| question.ask(&way)) {
            Some(Outcome::Found(_, plan)) => plan,
            _ => None,
        };
        plans.push((of, plan));
    }
    plans.iter().find(|(known, _)| *known == of).and_then(|(_, plan)| plan.as_deref())
}

/// Marks the plan of `plan`: if another strategy gives the same plan, that row is marked, and the plan is listed once.
fn marked(mut found: Vec<(Box<StrategyRow>, Option<Box<Plan>>)>) -> Vec<StrategyRow> {
    if let Some(own) = found.iter().position(|(row, _)| row.name == AUTO) {
        let plan = found[own].1.clone();
        let is_own = |other: &(Box<StrategyRow>, Option<Box<Plan>>)| match (&plan, &other.1) {
            (Some(own), Some(other)) => is_same(own, other),
            _ => false,
        };
        let same = found.iter().position(|other| other.0.name != AUTO && is_own(other));
        found[same.unwrap_or(own)].0.is_plan = true;
        if same.is_some() {
            found.remove(own);
        }
    }
    found.into_iter().map(|(row, _)| *row).collect()
}
