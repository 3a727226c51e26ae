//! The part of `verify` that runs in an interpreter.

use std::{fmt, path::Path};

use schema::FirstDifference;
use serde_json::{Value, json};

use super::{Form, compared::Compared};
use crate::{
    commands::whole::Whole, failure::Failure, interpreter::Conversation, stages::DrawnInput, with_libtorch,
};

const SCRIPT: &str = include_str!("../../verify.py");

/// A comparison to run.
pub struct Request<'r> {
    /// The whole model.
    pub whole: &'r Whole,
    /// The folder of the stages.
    pub folder: &'r Path,
    /// Packages with operators that the model calls.
    pub libraries: Vec<&'static str>,
    /// The ranges of inputs.
    pub inputs: &'r [DrawnInput],
    /// Training steps.
    pub steps: u32,
    /// Seed of the inputs.
    pub seed: i64,
    /// The device.
    pub device: &'r str,
    /// Largest accepted difference.
    pub tolerance: f64,
    /// Whether both sides run in float64.
    pub float64: bool,
    /// Processes that share the Python stages.
    pub ranks: u32,
    /// Groups of them that share these first; 1 without groups.
    pub groups: u32,
    /// Threads per operator, if not all cores are free.
    pub threads: Option<usize>,
}

impl Request<'_> {
    fn json(&self, task: &str, forms: &[Form], rank: Option<Value>) -> Value {
        let input = |input: &DrawnInput| json!({ "shape": input.shape, "dtype": input.dtype, "range": input.range, "known": input.values, "below": input.below });
        let (archive, inputs) = (self.whole.archive.display().to_string(), &self.whole.inputs);
        let exported = self.whole.exported.as_ref().map(|exported| json!({ "tied": exported.tied }));
        json!({
            "task": task,
            "forms": forms.iter().map(|form| form.name()).collect::<Vec<_>>(),
            "whole": { "archive": archive, "inputs": inputs, "outputs": self.whole.outputs, "exported": exported },
            "folder": self.folder.display().to_string(),
            "libraries": self.libraries,
            "inputs": self.inputs.iter().map(input).collect::<Vec<_>>(),
            "steps": self.steps,
            "seed": self.seed,
            "device": self.device,
            "tolerance": self.tolerance,
            "threads": self.threads,
            "float64": self.float64,
            "ranks": rank,
        })
    }
}

/// An interpreter.
pub struct Python {
    program: String,
}

/// Why an interpreter gave no answer.
pub enum Reason {
    /// It is missing, or has no torch.
    Lacking(String),
    /// The comparison failed.
    Failed(Failure),
}

impl Reason {
    /// Tells whether another interpreter might work.
    pub fn is_lacking(&self) -> bool {
        matches!(self, Reason::Lacking(_))
    }

    /// Returns the failure of a command that needs the interpreter.
    pub fn into_failure(self) -> Failure {
        match self {
            Reason::Lacking(reason) => Failure::input(reason).with_hint(
                "--python names an interpreter that has torch 2.11; make .venv/ready makes .venv/bin/python",
            ),
            Reason::Failed(failure) => failure,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Lacking(reason) => write!(f, "{reason}; name an interpreter with --python"),
            Reason::Failed(failure) => write!(f, "{failure}"),
        }
    }
}

/// Running interpreters, one per shard, or why they did not start.
pub struct Started {
    ranks: Result<Vec<Conversation>, String>,
    /// The folder of their rendezvous.
    _place: Option<tempfile::TempDir>,
}

impl Python {
    /// Returns the requested interpreter, or one that likely has torch.
    pub fn find(asked: Option<&str>) -> Self {
        let program = asked.map(str::to_string).or_else(beside_libtorch);
        Self { program: program.unwrap_or_else(|| "python3".to_string()) }
    }

    /// Starts to compare.
    pub fn start(&self, request: &Request<'_>, forms: &[Form]) -> Result<Started, Failure> {
        let size = request.ranks;
        if size == 1 {
            let ranks = self.converse(&request.json("compare", forms, None))?.map(|one| vec![one]);
            return Ok(Started { ranks, _place: None });
        }
        let place = tempfile::tempdir()?;
        let store = place.path().join("store").display().to_string();
        let rank = |rank| {
            let rank = json!({ "rank": rank, "size": size, "groups": request.groups, "store": store });
            self.converse(&request.json("compare", forms, Some(rank)))
        };
        let ranks = (0..size).map(rank).collect::<Result<Result<_, _>, _>>()?;
        Ok(Started { ranks, _place: Some(place) })
    }

    /// Finds the first stage whose two formats differ, if any.
    pub fn locate(&self, request: &Request<'_>) -> Option<FirstDifference> {
        let last = self.converse(&request.json("locate", &[], None)).ok()?.ok()?.finish(|_| ()).ok()?;
        let found = last.get("done")?.get("found")?;
        let stage = u32::try_from(found.get("stage")?.as_u64()?).ok()?;
        Some(FirstDifference { stage, tensor: found.get("tensor")?.as_str()?.to_string() })
    }

    fn converse(&self, request: &Value) -> Result<Result<Conversation, String>, Failure> {
        let started = Conversation::start(&self.program, &["-W", "ignore"], SCRIPT, request);
        Ok(started.map_err(|error| format!("cannot run {}: {error}", self.program)))
    }
}

impl Started {
    /// Waits for the results.
    pub fn finish(self, python: &Python) -> Result<Vec<Compared>, Reason> {
        let ranks = self.ranks.map_err(Reason::Lacking)?;
        let is_alone = ranks.len() == 1;
        let lasts: Vec<Result<Value, Failure>> = ranks.into_iter().map(|one| one.finish(|_| ())).collect();
        let text =
            |error: &Value, key: &str| error.get(key).and_then(Value::as_str).unwrap_or_default().to_string();
        // Processes that only lost another one say nothing about the cause.
        let (mut failed, mut first) = (Vec::new(), None);
        for (rank, last) in lasts.into_iter().enumerate() {
            match last {
                Err(failure) => failed.push((1, Reason::Failed(failure))),
                Ok(last) => match last.get("error") {
                    Some(error) if text(error, "kind") == "no-torch" => {
                        failed.push((0, Reason::Lacking(format!("{} has no torch", python.program))));
                    }
                    Some(error) => {
                        let of_form = match text(error, "form") {
                            form if form.is_empty() => "stages".to_string(),
                            form => format!("{form} stages"),
                        };
                        let on = if is_alone { String::new() } else { format!(" on rank {rank}") };
                        let message = format!("{of_form}{on}: {}", text(error, "message"));
                        let order = if text(error, "kind") == "peer" { 2 } else { 0 };
                        failed.push((order, Reason::Failed(Failure::input(message))));
                    }
                    None if rank == 0 => first = Some(last),
                    None => {}
                },
            }
        }
        if let Some((_, reason)) = failed.into_iter().min_by_key(|(order, _)| *order) {
            return Err(reason);
        }
        let last = first.unwrap_or_default();
        let rows = last.get("done").and_then(|done| done.get("compared")).and_then(Value::as_array);
        let compared = rows.and_then(|rows| rows.iter().map(Compared::from_json).collect::<Option<Vec<_>>>());
        compared.ok_or_else(|| {
            Reason::Failed(Failure::input(format!("{} gave no readable answer", python.program)))
        })
    }
}

/// Returns the interpreter of the environment that contains this build's libtorch.
fn beside_libtorch() -> Option<String> {
    // `lib/python3.N/site-packages/torch/lib`.
    let program = with_libtorch::folder()?.ancestors().nth(5)?.join("bin").join("python");
    program.exists().then(|| program.display().to_string())
}
