//! `model-analyze run`: runs the stages as a pipeline on this machine's devices, and compares measured with predicted
//! times.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use indexmap::IndexMap;
use runtime::{Measured, Null};
use schema::{
    DeviceType, Executed, ExecutedStage, Plan, Seconds, SpanKind, TIMELINE_VERSION, Timeline, TimelineSpan,
    Track,
};
use simulator::order::{self, Kind, Order, Schedule};

use crate::{
    columns::rate,
    failure::Failure,
    files,
    folder_files::Changes,
    output::{Format, Output},
    stages::Stages,
    with_libtorch,
};

/// Arguments of `run`.
#[derive(Args)]
#[command(after_help = "Examples:
  model-analyze run out/
  model-analyze run out/ --device cuda:0 --device cuda:1 --schedule 1f1b --micro-batches 8
  model-analyze run out/ --backend null --timeline measured.json

Trains on random inputs, one thread per device, in exactly the order that `simulate` times. The backend `torch` needs a
build with libtorch (cargo build --release --features torch); `null` sleeps for the plan's time of each
operation, which shows the schedule without a model.")]
pub struct Run {
    /// The folder that `emit` or `split` wrote
    folder: PathBuf,
    /// The whole model, for the range of its inputs (default: the file that the stages were cut from)
    #[arg(long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// Devices: cpu, cuda:0, …; stages take them in turn [default: cpu]
    #[arg(long = "device", value_name = "DEVICE")]
    pub devices: Vec<String>,
    /// Schedule [default: the plan's, else 1f1b]
    #[arg(long)]
    schedule: Option<String>,
    /// Micro-batches per step [default: the plan's, else two per stage]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65536))]
    micro_batches: Option<u32>,
    /// Steps to measure, after one to warm up
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    steps: u32,
    /// Backend that runs the stages
    #[arg(long, value_enum, default_value_t)]
    backend: BackendChoice,
    /// Write the last step's timeline (schema of `simulate`)
    #[arg(long, value_name = "FILE.json")]
    timeline: Option<PathBuf>,
    /// Accept files of the folder that were changed after they were written
    #[arg(long)]
    allow_changes: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// The backend that runs the stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum BackendChoice {
    /// libtorch
    #[default]
    Torch,
    /// Nothing is computed: each operation sleeps for the plan's time
    Null,
}

/// A run of stages.
pub struct Job {
    /// The stages, and their manifest.
    pub stages: Stages,
    /// The schedule.
    pub schedule: Schedule,
    /// Micro-batches per step.
    pub micro_batches: u32,
    /// The passes of each rank.
    pub order: Order,
    /// Ranks that run each stage.
    ranks: Vec<Vec<usize>>,
}

/// The measurements of a run.
pub struct Measurement {
    /// When each pass ran.
    pub measured: Measured,
    /// Losses of the timed steps.
    pub losses: Vec<f64>,
    /// Devices, as requested.
    pub names: Vec<String>,
    /// The driver's names of the GPUs among them.
    pub cards: Vec<String>,
}

/// Runs stages in libtorch, for a number of steps.
pub type Execute = fn(&Run, &Job, usize) -> Result<Measurement, Failure>;

impl Run {
    /// Runs the pipeline and prints the measured times.
    pub fn run(self, output: &mut Output, execute: Option<Execute>) -> Result<(), Failure> {
        if self.backend == BackendChoice::Torch && execute.is_none() {
            return Err(with_libtorch::go_on_there("run stages", "; or --backend null"));
        }
        let job = self.job()?;
        // The first step is not timed: it includes allocation and set-up.
        let n_steps = self.steps as usize + 1;
        let result = match execute.filter(|_| self.backend == BackendChoice::Torch) {
            None => self.run_null(&job, n_steps)?,
            Some(execute) => execute(&self, &job, n_steps)?,
        };
        let predicted = predicted(&job, self.backend, &result);
        let Measurement { measured, losses, names, .. } = result;
        let executed = executed(&job, &measured, losses, &names, &predicted);
        if let Some(path) = &self.timeline {
            let timeline = timeline(&job, &measured, &names);
            let text = serde_json::to_string(&timeline).map_err(Failure::input)?;
            files::write(path, text.as_bytes())?;
        }
        match self.format {
            Format::Json => output.json(&serde_json::to_value(&executed).map_err(Failure::input)?),
            Format::Text => output.text(&text(&executed, &predicted)),
        }
    }

    fn job(&self) -> Result<Job, Failure> {
        let stages = Stages::read(&self.folder)?;
        let runs_archives = self.backend == BackendChoice::Torch;
        stages.check_files(Changes::allowed(self.allow_changes), |file| {
            file == "plan.yaml" || runs_archives && file.starts_with("stages/") && file.ends_with(".pt")
        })?;
        let n_stages = stages.wiring.stages.len() as u32;
        let plan = stages.plan.as_ref();
        let name = self.schedule.clone().or(plan.map(|plan| plan.schedule.clone()));
        let schedule = Schedule::from_name(name.as_deref().unwrap_or("1f1b")).map_err(Failure::input)?;
        let micro_batches = self.micro_batches.or(plan.map(|plan| plan.micro_batches));
        let micro_batches = micro_batches.unwrap_or(2 * n_stages);
        if schedule.copies() > 1 {
            return Err(Failure::input(format!("{} needs two copies of the model", schedule.name()))
                .with_hint("run supports schedules over one copy; simulate supports them all"));
        }
        let replicas: Vec<u32> = plan
            .filter(|plan| plan.stages.len() == n_stages as usize)
            .map(|plan| plan.stages.iter().map(|stage| stage.replicas() as u32).collect())
            .unwrap_or_default();
        let chunks = schedule.fixed_chunks().unwrap_or_else(|| chunks(plan, n_stages));
        if !n_stages.is_multiple_of(chunks) {
            let name = schedule.name();
            let message =
                format!("{name} needs a multiple of {chunks} stages per device, not {n_stages} stages");
            return Err(Failure::input(message));
        }
        let n_ranks = n_stages / chunks;
        // Each rank's first stage has the number of its devices.
        let replicas = replicas.get(..n_ranks as usize).unwrap_or_default();
        let order = order::for_replicas(schedule, micro_batches, replicas, |micro_batches| {
            order::make(schedule.name(), n_ranks, chunks, micro_batches)
        })
        .map_err(Failure::input)?;
        let mut ranks = vec![Vec::new(); n_stages as usize];
        for (rank, ops) in order.ranks.iter().enumerate() {
            for op in ops {
                let on: &mut Vec<usize> = &mut ranks[op.stage as usize];
                if !on.contains(&rank) {
                    on.push(rank);
                }
            }
        }
        Ok(Job { stages, schedule, micro_batches, order, ranks })
    }

    fn run_null(&self, job: &Job, n_steps: usize) -> Result<Measurement, Failure> {
        let seconds = |time: Seconds| {
            Duration::try_from_secs_f64(time.0)
                .map_err(|error| Failure::input(format!("plan.yaml: a stage takes {} s: {error}", time.0)))
        };
        let plan = job.stages.plan.as_ref();
        let plan = plan.ok_or_else(|| {
            Failure::input("there is no plan.yaml with the stages: their times are unknown")
                .with_hint("emit with a plan, or use --backend torch")
        })?;
        let (planned, emitted) = (plan.stages.len(), job.stages.wiring.stages.len());
        if planned != emitted {
            return Err(Failure::input(format!("plan.yaml has {planned} stages, manifest.json {emitted}"))
                .with_hint("emit the stages again"));
        }
        let durations = plan.stages.iter().map(|stage| {
            let cost = &stage.cost;
            Ok([seconds(cost.forward)?, seconds(cost.input_gradient)?, seconds(cost.weight_gradient)?])
        });
        let n_outputs = job.stages.wiring.stages.iter().map(|stage| stage.n_outputs).collect();
        let null = Null { n_outputs, durations: durations.collect::<Result<_, Failure>>()? };
        let measured =
            runtime::run(&null, &job.stages.wiring, &job.order, n_steps).map_err(Failure::input)?;
        Ok(Measurement { measured, losses: Vec::new(), names: Vec::new(), cards: Vec::new() })
    }
}

/// The plan's prediction of the measured step.
enum Predicted {
    /// Its time.
    Step(Seconds),
    /// None: the plan is for other devices, or for other work.
    Of(String),
    /// No prediction.
    Nothing,
}

/// Tells whether each card is of a type that the plan names, by any name of the two.
fn are_planned(cards: &[String], kinds: &BTreeSet<&str>, own: &IndexMap<String, DeviceType>) -> bool {
    let names = |name: &str| schema::plain_names(name, own);
    let planned: BTreeSet<Vec<String>> = kinds.iter().map(|kind| names(kind)).collect();
    cards.iter().all(|card| planned.contains(&names(card)))
}

fn predicted(job: &Job, backend: BackendChoice, result: &Measurement) -> Predicted {
    let Measurement { names, cards, .. } = result;
    let Some(plan) = &job.stages.plan else { return Predicted::Nothing };
    let Some(step) = plan.predicted.step else { return Predicted::Nothing };
    let used: BTreeSet<&String> = plan.stages.iter().flat_map(|stage| &stage.devices).collect();
    let devices = plan.cluster.devices.iter().filter(|device| used.contains(&device.name));
    let kinds: BTreeSet<&str> = devices.map(|device| device.type_.as_str()).collect();
    let is_processor = |kind: &&&str| kind.to_lowercase().starts_with("cpu");
    let n_processors = kinds.iter().filter(is_processor).count();
    let is_cpu = |name: &String| name == "cpu";
    let is_there = (n_processors > 0) == names.iter().any(is_cpu)
        && (n_processors == kinds.len()) == names.iter().all(is_cpu)
        && are_planned(cards, &kinds, &plan.cluster.types);
    if backend == BackendChoice::Torch && !is_there {
        return Predicted::Of(kinds.into_iter().collect::<Vec<_>>().join(" and "));
    }
    // Ranks of a CPU have cores of their own; two ranks of one GPU take turns.
    let gpus: BTreeSet<&String> = names.iter().filter(|name| !is_cpu(name)).collect();
    if n_processors == 0 && gpus.len() < used.len() && backend == BackendChoice::Torch {
        return Predicted::Of(format!("{} GPUs", used.len()));
    }
    if let Some(samples) = plan.micro_batch_size {
        return Predicted::Of(format!("micro-batches of {samples} samples"));
    }
    let is_planned = Schedule::from_name(&plan.schedule).is_ok_and(|planned| planned == job.schedule);
    if is_planned && plan.micro_batches == job.micro_batches {
        Predicted::Step(step)
    } else {
        Predicted::Of(format!("{} micro-batches under {}", plan.micro_batches, plan.schedule))
    }
}

/// Stages a device holds under the plan.
fn chunks(plan: Option<&Plan>, n_stages: u32) -> u32 {
    let Some(plan) = plan else { return 1 };
    (n_stages / plan.n_ranks() as u32).max(1)
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

fn seconds(nanoseconds: u64) -> Seconds {
    Seconds(nanoseconds as f64 * 1e-9)
}

fn executed(
    job: &Job,
    measured: &Measured,
    losses: Vec<f64>,
    names: &[String],
    predicted: &Predicted,
) -> Executed {
    let steps = &measured.steps[1..];
    let step = median(steps.to_vec());
    let timed = || measured.devices.iter().flatten().filter(|op| op.step > 0);
    let busy: u64 = timed().map(|op| op.end - op.start).sum();
    let total = steps.iter().sum::<u64>() * measured.devices.len() as u64;
    let stage = |stage: usize| {
        let times = |kinds: &[Kind]| -> u64 {
            let one = |kind| {
                let ops = timed()
                    .filter(|op| op.op.is_some_and(|op| op.stage as usize == stage && op.kind == kind));
                median(ops.map(|op| op.end - op.start).collect())
            };
            kinds.iter().map(|&kind| one(kind)).sum()
        };
        let backward = match times(&[Kind::Backward]) {
            0 => times(&[Kind::InputGradient, Kind::WeightGradient]),
            whole => whole,
        };
        ExecutedStage {
            stage: stage as u32,
            devices: job.ranks[stage].iter().map(|&rank| device_name(rank, names)).collect(),
            forward_seconds: seconds(times(&[Kind::Forward])),
            backward_seconds: seconds(backward),
        }
    };
    let samples = job.stages.manifest.inputs.first();
    let samples = samples.and_then(|input| input.shape.as_ref()?.first().copied()).unwrap_or(1);
    Executed {
        schema_version: schema::EXECUTED_VERSION,
        schedule: job.schedule.name().to_string(),
        micro_batches: job.micro_batches,
        steps: steps.len(),
        step_seconds: seconds(step),
        predicted_step_seconds: match predicted {
            Predicted::Step(step) => Some(*step),
            Predicted::Of(_) | Predicted::Nothing => None,
        },
        samples_per_second: samples as f64 * f64::from(job.micro_batches) / (step as f64 * 1e-9),
        bubble: 1.0 - busy as f64 / (total as f64).max(1.0),
        stages: (0..job.ranks.len()).map(stage).collect(),
        process_peak_bytes: files::peak_memory(),
        losses,
    }
}

/// Names a rank: `cpu` holds many, so the rank's number tells them apart.
fn device_name(rank: usize, names: &[String]) -> String {
    match names.len() {
        0 => format!("rank {rank}"),
        n if n > rank => names[rank].clone(),
        n => format!("{} (rank {rank})", names[rank % n]),
    }
}

fn timeline(job: &Job, measured: &Measured, names: &[String]) -> Timeline {
    let last = measured.steps.len() - 1;
    let ops = |device: usize| measured.devices[device].iter().filter(move |op| op.step == last);
    let first = (0..measured.devices.len()).flat_map(ops).map(|op| op.start).min().unwrap_or(0);
    let tracks = (0..measured.devices.len()).map(|device| {
        let spans = ops(device).map(|op| TimelineSpan {
            name: op.op.map_or("update".to_string(), |op| op.to_string()),
            kind: match op.op.map(|op| op.kind) {
                None => SpanKind::Optimizer,
                Some(Kind::Forward) => SpanKind::Forward,
                Some(Kind::InputGradient) => SpanKind::InputGradient,
                Some(Kind::WeightGradient) => SpanKind::WeightGradient,
                Some(Kind::Backward) => SpanKind::Backward,
            },
            stage: op.op.map(|op| op.stage),
            micro_batch: op.op.map(|op| op.micro_batch),
            start: op.start - first,
            end: op.end - first,
        });
        Track { device: device as u32, stream: "compute".to_string(), spans: spans.collect() }
    });
    Timeline {
        kind: "timeline".to_string(),
        version: TIMELINE_VERSION,
        name: format!("{} (measured)", job.schedule.name()),
        unit: "ns".to_string(),
        devices: (0..measured.devices.len()).map(|rank| device_name(rank, names)).collect(),
        tracks: tracks.collect(),
        flows: Vec::new(),
        memory: Vec::new(),
        end: measured.steps[last],
    }
}

fn text(executed: &Executed, predicted: &Predicted) -> String {
    let mut text = format!(
        "{} micro-batches under {}: {} per step, {} samples/s, {:.1} % bubble (median of {})\n",
        executed.micro_batches,
        executed.schedule,
        executed.step_seconds,
        rate(executed.samples_per_second),
        100.0 * executed.bubble,
        executed.steps,
    );
    match predicted {
        Predicted::Step(predicted) => {
            let off = 100.0 * (predicted.0 / executed.step_seconds.0 - 1.0);
            text.push_str(&format!("predicted {predicted} ({off:+.1} %)\n"));
        }
        Predicted::Of(others) => {
            text.push_str(&format!("the plan's prediction is for {others}, not for this run\n"));
        }
        Predicted::Nothing => {}
    }
    text.push_str("\nstage  forward    backward   devices\n");
    for stage in &executed.stages {
        text.push_str(&format!(
            "{:<5}  {:<9}  {:<9}  {}\n",
            stage.stage,
            stage.forward_seconds.to_string(),
            stage.backward_seconds.to_string(),
            stage.devices.join(", ")
        ));
    }
    if let (Some(first), Some(last)) = (executed.losses.first(), executed.losses.last()) {
        text.push_str(&format!("\nloss {first:.3e} → {last:.3e}\n"));
    }
    if let Some(peak) = executed.process_peak_bytes {
        text.push_str(&format!("peak memory of this process {peak}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prediction_is_of_the_cards_that_run() {
        let check = |cards: &[&str], kinds: &[&str]| {
            let cards: Vec<String> = cards.iter().map(ToString::to_string).collect();
            are_planned(&cards, &kinds.iter().copied().collect(), &IndexMap::new())
        };
        assert!(check(&["NVIDIA H200", "NVIDIA H200"], &["H200-SXM-141GB"]));
        assert!(!check(&["NVIDIA H200"], &["H100-SXM5-80GB"]));
        assert!(check(&["NVIDIA H200", "NVIDIA H100 80GB HBM3"], &["H100-SXM5-80GB", "H200-SXM-141GB"]));
        assert!(!check(&["NVIDIA H200", "Tesla T4"], &["H200-SXM-141GB"]));
        // A card that the catalogue lacks is known by its own name.
        assert!(check(&["NVIDIA GH200 480GB"], &["GH200-480GB"]));
    }
}
