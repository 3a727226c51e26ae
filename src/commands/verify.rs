//! `model-analyze verify`: compares the stages with the whole model, in each format of the folder.
//!
//! TorchScript archives run in this process if libtorch is linked, Python stages (which `train.py` runs) in a Python
//! interpreter, both at the same time. Neither depends on how stages are written.

mod compared;
mod python;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use codegen::{Skips, Targets};
use schema::{
    FirstDifference, Proved, TensorDifference, UncheckedForm, Verified, VerifiedExchange, VerifiedForm,
    VerifiedShards,
};

use self::{
    compared::{is_as_planned, largest},
    python::Python,
};

pub use self::{compared::Compared, python::Request};
use crate::{
    commands::{
        emit::{self, CutAt, EmitRequest},
        whole::{self, Whole},
    },
    failure::Failure,
    files,
    folder_files::Changes,
    output::{Format, Output},
    sharing,
    stages::{DrawnInput, Stages},
    with_libtorch,
    workspace::ModelFile,
};

/// Arguments of `verify`.
#[derive(Args)]
#[command(after_help = "Examples:
  model-analyze verify out/
  model-analyze verify out/ --python .venv/bin/python --model model.pt
  model-analyze verify out/ --form torchscript --device cuda:0 --tolerance 1e-4
  model-analyze verify out/ --float64

Compares outputs, the gradient of every parameter, and the losses of training steps. The loss is a random linear
functional of all outputs. Ends with exit code 1 when a difference is out of tolerance.
Stages shared by n devices run in n processes: gradients of parts are joined, replicated tensors must be equal
on all, and the bytes of each kind of exchange must be the plan's. Parameters are changed at random after each of the
first four steps, and trained from then on.
Python stages run in an interpreter that has torch; TorchScript archives also run there, unless this build has libtorch.
A schedule is checked by the folder itself: python out/train.py --check")]
pub struct Verify {
    /// The folder that `emit` or `split` wrote
    folder: PathBuf,
    /// The whole model (default: the file that the stages were cut from)
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// The checkpoint of its weights (default: the one that the stages' weights were taken from)
    #[arg(long, value_name = "CHECKPOINT")]
    weights: Option<PathBuf>,
    /// Formats of the stages to compare (default: all in the folder)
    #[arg(long = "form", value_enum, value_delimiter = ',')]
    forms: Vec<Form>,
    /// The Python interpreter that has torch (default: the one of this build's libtorch, or python3)
    #[arg(long, env = "MODEL_ANALYZE_PYTHON", value_name = "PROGRAM")]
    python: Option<String>,
    /// Device to run on: cpu, cuda, cuda:1
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Training steps to compare; 0 compares outputs alone
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=1000))]
    steps: u32,
    /// Largest accepted difference, relative to the largest value of a tensor [default: 1e-5; in float64 1e-10]
    #[arg(long)]
    tolerance: Option<f64>,
    /// Run both sides in float64, which rules out rounding; casts of the model become float64, too
    #[arg(long)]
    float64: bool,
    /// Seed of the inputs
    #[arg(long, default_value_t = 0)]
    seed: i64,
    /// Accept files of the folder that were changed after they were written
    #[arg(long)]
    allow_changes: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// A format of the stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Form {
    /// stage_K.pt
    Torchscript,
    /// stage_K.py and stage_K.safetensors
    Python,
}

impl Form {
    /// Returns its name in commands and answers.
    pub fn name(self) -> &'static str {
        match self {
            Form::Torchscript => "torchscript",
            Form::Python => "python",
        }
    }

    /// Tells whether it must run in an interpreter: torchvision's operators come only with the Python package.
    fn needs_python(self, libraries: &[&str]) -> bool {
        self == Form::Python || !libraries.is_empty()
    }
}

/// Compares TorchScript archives with the whole model in libtorch.
pub type Compare = fn(&Stages, &Request<'_>) -> Result<Compared, Failure>;

impl Verify {
    /// Compares and prints.
    pub fn run(self, output: &mut Output, in_libtorch: Option<Compare>) -> Result<(), Failure> {
        let tolerance = self.tolerance();
        if !(tolerance >= 0.0 && tolerance.is_finite()) {
            return Err(Failure::input(format!("--tolerance {tolerance} is not a tolerance")));
        }
        let stages = Stages::read(&self.folder)?;
        // All files that run, including those of train.py.
        stages.check_files(Changes::allowed(self.allow_changes), |file| {
            file.starts_with("stages/") || ["train.py", "schedule.csv", "plan.yaml"].contains(&file)
        })?;
        let forms = self.wanted(&stages)?;
        if forms.contains(&Form::Torchscript)
            && !self.float64
            && in_libtorch.is_none()
            && with_libtorch::IS_BUILT
        {
            return Err(with_libtorch::go_on_there("verify", ""));
        }
        let model = stages.model(self.model.as_deref())?;
        if let Some(reason) = (self.steps > 0).then(|| model.without_derivative()).flatten() {
            return Err(Failure::input(format!("the model cannot be trained: {reason}"))
                .with_hint("--steps 0 compares outputs alone"));
        }
        let weights = self.weights.clone().or_else(|| stages.manifest.weights.as_ref().map(PathBuf::from));
        let whole = whole::as_given(&model, weights.as_deref(), &self.device)?;
        let inputs = stages.input_specs(&model.program)?;
        let mut answer = self.compare(
            &stages,
            &forms,
            &whole,
            crate::stages::libraries(&model.program),
            &inputs,
            in_libtorch,
        )?;
        if stages.manifest.shards.is_some_and(|shards| shards > 1) {
            match proved(&stages, &model, weights) {
                Ok(proved) => answer.proved = Some(proved),
                Err(reason) => answer.unproved = Some(reason),
            }
        }
        match self.format {
            Format::Json => output.json(&serde_json::to_value(&answer).map_err(Failure::input)?)?,
            Format::Text => output.text(&text(&answer, tolerance))?,
        }
        if answer.ok { Ok(()) } else { Err(failure(&answer)) }
    }

    fn tolerance(&self) -> f64 {
        self.tolerance.unwrap_or(if self.float64 { 1e-10 } else { 1e-5 })
    }

    /// Returns how many processes share the Python stages.
    fn ranks(&self, stages: &Stages, forms: &[Form]) -> u32 {
        let shards = stages.manifest.shards.filter(|_| forms.contains(&Form::Python)).unwrap_or(1).max(1);
        if shards > 1 && self.device != "cpu" {
            crate::failure::note(format!(
                "each stage is for {shards} devices, but runs as a whole on {}: exchanges are compared only on the CPU",
                self.device
            ));
            return 1;
        }
        shards
    }

    /// Returns the formats to compare.
    fn wanted(&self, stages: &Stages) -> Result<Vec<Form>, Failure> {
        let has = |form: &Form| stages.manifest.stages.iter().all(|stage| form_of(stage, *form).is_some());
        let held: Vec<Form> = [Form::Torchscript, Form::Python].into_iter().filter(has).collect();
        if let Some(missing) = self.forms.iter().find(|form| !held.contains(form)) {
            let name = missing.name();
            return Err(Failure::input(format!("{} has no stages as {name}", self.folder.display()))
                .with_hint(format!("emit the stages again with --targets {name}")));
        }
        if held.is_empty() {
            return Err(Failure::input(format!(
                "the stages of {} have no format in common",
                self.folder.display()
            ))
            .with_hint("emit the stages again"));
        }
        let mut wanted = if self.forms.is_empty() { held } else { self.forms.clone() };
        wanted.sort_unstable();
        wanted.dedup();
        Ok(wanted)
    }

    fn compare(
        &self,
        stages: &Stages,
        forms: &[Form],
        whole: &Whole,
        libraries: Vec<&'static str>,
        inputs: &[DrawnInput],
        in_libtorch: Option<Compare>,
    ) -> Result<Verified, Failure> {
        // Two processes at the same time share the cores.
        let needs_python = |form: &Form| {
            in_libtorch.is_none() || whole.exported.is_some() || self.float64 || form.needs_python(&libraries)
        };
        let in_python: Vec<Form> = forms.iter().copied().filter(needs_python).collect();
        let is_shared = !in_python.is_empty() && in_python.len() < forms.len();
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        let ranks = self.ranks(stages, forms);
        let at_once = ranks as usize + usize::from(is_shared);
        let threads = (at_once > 1).then(|| (processors / at_once).max(1));
        let request = Request {
            whole,
            folder: stages.folder(),
            libraries,
            inputs,
            // Parameters change after the first step.
            steps: if ranks > 1 && self.steps > 0 { self.steps.max(2) } else { self.steps },
            seed: self.seed,
            device: &self.device,
            tolerance: self.tolerance(),
            float64: self.float64,
            ranks,
            groups: stages.manifest.shard_groups.filter(|_| ranks > 1).unwrap_or(1),
            threads,
        };
        let python = Python::find(self.python.as_deref());
        let mut unchecked = Vec::new();
        let started = if in_python.is_empty() { None } else { Some(python.start(&request, &in_python)?) };
        let mut all: Vec<Compared> = Vec::new();
        if let Some(compare) = in_libtorch.filter(|_| in_python.len() < forms.len()) {
            all.push(compare(stages, &request)?);
        }
        match started.map(|started| started.finish(&python)) {
            None => {}
            Some(Ok(compared)) => all.extend(compared),
            // The user did not request this interpreter: its failure is a note, unless nothing else was compared.
            Some(Err(reason)) if reason.is_lacking() && self.python.is_none() && !all.is_empty() => {
                let form =
                    |form: &Form| UncheckedForm { form: form.name().to_string(), reason: reason.to_string() };
                unchecked.extend(in_python.iter().map(form));
            }
            Some(Err(reason)) => return Err(reason.into_failure()),
        }
        let mut answer = self.answer(&all, unchecked);
        if !answer.ok {
            let both = [Form::Torchscript, Form::Python];
            let has_both =
                stages.manifest.stages.iter().all(|stage| both.iter().all(|&f| form_of(stage, f).is_some()));
            let found = if has_both { python.locate(&request) } else { None };
            let from_gradients = || {
                let (stage, tensor) = all.iter().find_map(|compared| compared.culprit(self.tolerance()))?;
                Some(FirstDifference { stage, tensor })
            };
            answer.first_difference = found.or_else(from_gradients);
        }
        Ok(answer)
    }

    fn answer(&self, all: &[Compared], unchecked: Vec<UncheckedForm>) -> Verified {
        let forms: Vec<VerifiedForm> = all.iter().map(|compared| compared.judged(self.tolerance())).collect();
        let mut worst: Vec<TensorDifference> = forms.iter().flat_map(|form| form.worst.clone()).collect();
        worst.sort_by(|a, b| b.relative.total_cmp(&a.relative).then_with(|| a.name.cmp(&b.name)));
        worst.truncate(5);
        let first = forms.first();
        Verified {
            schema_version: schema::EXECUTED_VERSION,
            ok: forms.iter().all(|form| form.ok),
            device: self.device.clone(),
            float64: self.float64,
            steps: first.map_or(0, |form| form.steps),
            outputs_max_difference: largest(forms.iter().map(|form| form.outputs_max_difference)),
            gradients_max_difference: largest(forms.iter().map(|form| form.gradients_max_difference)),
            losses_max_difference: largest(forms.iter().map(|form| form.losses_max_difference)),
            gradients_compared: first.map_or(0, |form| form.gradients_compared),
            gradients_zero: forms.iter().map(|form| form.gradients_zero).max().unwrap_or(0),
            worst,
            losses: first.map(|form| form.losses.clone()).unwrap_or_default(),
            forms,
            unchecked,
            proved: None,
            unproved: None,
            first_difference: None,
        }
    }
}

/// Proves that one device's program under the plan computes what the whole model computes, and that the sources match
/// it; or returns why not.
fn proved(stages: &Stages, model: &ModelFile, weights: Option<PathBuf>) -> Result<Proved, String> {
    let plan = stages.plan.clone().ok_or("the folder has no plan.yaml")?;
    let skips = if stages.manifest.skips == "portal" { Skips::Portal } else { Skips::Relay };
    let targets = Targets { torchscript: false, python: true };
    let request = EmitRequest { targets, ..EmitRequest::archives(CutAt::Plan(Box::new(plan)), skips, None) };
    let request = EmitRequest { weights, ..request };
    let (sources, proof) =
        emit::sources(model, &request, &stages.manifest.files).map_err(|failure| failure.to_string())?;
    let proof = proof.ok_or("the plan's devices share no layers")?;
    for (path, expected) in &sources {
        let found = files::read_text(&stages.folder().join(path)).map_err(|failure| failure.to_string())?;
        let mut lines = found.lines().zip(expected.lines()).enumerate();
        if let Some((at, (line, _))) = lines.find(|(_, (found, expected))| found != expected) {
            let class = found.lines().take(at).filter_map(|line| line.strip_prefix("class ")).last();
            let place = class
                .and_then(|class| class.split_once('('))
                .map_or(String::new(), |(class, _)| format!(", in {class},"));
            return Err(format!("line {} of {path}{place} does not match the plan: {}", at + 1, line.trim()));
        }
        if found.lines().count() != expected.lines().count() {
            return Err(format!("{path} does not end as the plan's source does"));
        }
    }
    Ok(sharing::proved(proof))
}

/// Returns the file of a stage in a format.
fn form_of(stage: &schema::StageFiles, form: Form) -> Option<&String> {
    match form {
        Form::Torchscript => stage.files.torchscript.as_ref(),
        Form::Python => stage.files.python.as_ref(),
    }
}

fn failure(answer: &Verified) -> Failure {
    let mut message = "the stages differ from the whole model by more than the tolerance".to_string();
    let shards = answer.forms.iter().filter(|form| !form.ok).find_map(|form| form.shards.as_ref());
    if let Some(FirstDifference { stage, tensor }) = &answer.first_difference {
        message.push_str(&format!("; the first difference is in stage {stage}: {tensor}"));
    } else if let Some(other) = shards.and_then(|s| s.exchanges.iter().find(|one| !is_as_planned(one))) {
        let VerifiedExchange { phase, collective, bytes, planned_bytes, .. } = other;
        let planned = planned_bytes.unwrap_or_default();
        message = format!(
            "the stages exchange {bytes} bytes by {collective} in the {phase} pass, the plan has {planned}"
        );
    }
    let hint = match shards {
        Some(_) if !answer.float64 => {
            "sums of parts round differently from whole ones: --float64 separates rounding from faults; to replace edited stages, run \
             emit again"
        }
        None if !answer.float64 => {
            "--float64 separates rounding from faults; a model traced with dropout differs because stages draw random numbers in another \
             order: trace it in eval mode; to replace edited stages, run emit again"
        }
        _ => {
            "emit the stages again; a model traced with dropout differs because stages draw random numbers in another order: trace it in eval \
             mode, or raise --tolerance"
        }
    };
    Failure::no(message).with_hint(hint)
}

fn text(answer: &Verified, tolerance: f64) -> String {
    let mut text = String::new();
    for form in &answer.forms {
        text.push_str(&of_form(form));
    }
    for UncheckedForm { form, reason } in &answer.unchecked {
        text.push_str(&format!("{form:<11}  NOT compared: {reason}\n"));
    }
    if let Some(proved) = &answer.proved {
        text.push_str(&format!("proved: {}; the sources match the plan\n", sharing::proved_text(proved)));
    }
    if let Some(reason) = &answer.unproved {
        text.push_str(&format!("NOT proved: {reason}\n"));
    }
    let names = |ok: bool| -> Vec<&str> {
        answer.forms.iter().filter(|form| form.ok == ok).map(|form| form.form.as_str()).collect()
    };
    let (same, different) = (names(true), names(false));
    if !different.is_empty() {
        text.push_str(&format!("different: {}\n", different.join(", ")));
    }
    if !same.is_empty() {
        text.push_str(&format!(
            "the same within {tolerance:.0e} on {}{}: {}\n",
            answer.device,
            if answer.float64 { " in float64" } else { "" },
            same.join(", ")
        ));
    }
    text
}

fn of_form(form: &VerifiedForm) -> String {
    let mut text =
        format!("{:<11}  outputs    largest difference {:.1e}\n", form.form, form.outputs_max_difference);
    if form.steps > 0 {
        text.push_str(&format!(
            "{:11}  gradients  largest difference {:.1e} of the tensor's largest value, {} parameters",
            "", form.gradients_max_difference, form.gradients_compared,
        ));
        if form.gradients_zero > 0 {
            text.push_str(&format!(" ({} exactly zero in both)", form.gradients_zero));
        }
        text.push_str(&format!(
            "\n{:11}  losses     largest difference {:.1e}, {} steps\n",
            "", form.losses_max_difference, form.steps
        ));
    } else {
        text.push_str(&format!("{:11}  gradients and losses NOT compared: there was no step\n", ""));
    }
    match &form.shards {
        Some(_) if form.steps == 0 => text.push_str(&format!(
            "{:11}  what all ranks hold and what they exchange NOT compared: there was no step\n",
            ""
        )),
        Some(shards) => text.push_str(&of_shards(shards)),
        None => {}
    }
    let is_lost = |(whole, stages): &(f64, f64)| !whole.is_finite() && !stages.is_finite();
    if let Some(step) = form.losses.iter().position(is_lost) {
        text.push_str(&format!(
            "  NaN or infinity from step {} on, in the whole model and in the stages: training on random data diverges\n",
            step + 1
        ));
    }
    for difference in form.worst.iter().filter(|difference| difference.absolute > 0.0) {
        let TensorDifference { kind, name, stage, absolute, relative } = difference;
        let stage = stage.map(|stage| format!(" (stage {stage})")).unwrap_or_default();
        text.push_str(&format!("  {kind} {name}{stage}: {absolute:.1e} ({relative:.1e} relative)\n"));
    }
    text
}

fn of_shards(shards: &VerifiedShards) -> String {
    let VerifiedShards { ranks, replicated_compared, replicated_max_difference, .. } = shards;
    let mut text =
        format!("{:11}  replicated  {replicated_compared} values that all {ranks} ranks hold ", "");
    match &shards.replicated_worst {
        None => text.push_str("are the same to the last bit\n"),
        Some(worst) => {
            text.push_str(&format!("differ by at most {replicated_max_difference:.1e}: {worst}\n"));
        }
    }
    for exchange in &shards.exchanges {
        let VerifiedExchange { phase, collective, calls, bytes, planned_bytes } = exchange;
        let calls = if *calls == 1 { "once".to_string() } else { format!("{calls} times") };
        let planned = match planned_bytes {
            Some(planned) if planned == bytes => "as planned".to_string(),
            Some(planned) => format!("PLANNED {planned}"),
            None => "the plan has no number".to_string(),
        };
        text.push_str(&format!(
            "{:11}  exchanged   {phase}, {collective} {calls}: {bytes} bytes, {planned}\n",
            ""
        ));
    }
    text
}
