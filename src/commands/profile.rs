//! `model-analyze profile`: how long operators, blocks and whole models take on this machine.

use std::path::PathBuf;

use clap::{Args, builder::PossibleValuesParser};
use runtime::profile::{DType, Kind};

use crate::{
    failure::Failure,
    output::{Format, Output},
};

#[cfg(feature = "torch")]
mod blocks;
#[cfg(feature = "torch")]
mod suite;

/// Arguments of `profile`.
#[derive(Args)]
#[command(after_help = "Examples:
  model-analyze profile --suite -o cpu.csv --threads 1
  model-analyze profile --suite --device cuda:0 --minutes 10 -o h100.csv
  model-analyze profile --suite --kinds convolution,linear --dtype float32,bfloat16 --device cuda:0 -o some.csv
  model-analyze profile --sweep --device cuda:0 -o sweep.csv
  model-analyze profile --model model.pt --depth 2 -o blocks.csv

--suite measures operators of random sizes: forward, input gradient and weight gradient apart. It stops after --minutes
at any operator; the same command again goes on where the file ends, also after a crash. `fit` reads the file.
--sweep measures convolutions of 32, 64 and 128 channels by kernels of 3, 5 and 7 on images of 256 x 256, in each type;
the first call of each, which is slower, stands apart (first_seconds). `fit --plot` draws the grid.
--model measures each block of a traced model in place, and the whole model.
Needs a build with libtorch: cargo build --release --features torch")]
pub struct Profile {
    /// Measure operators over a sampling plan
    #[arg(long, required_unless_present_any = ["model", "sweep"], conflicts_with = "model")]
    suite: bool,
    /// Measure a grid of convolutions
    #[arg(long, alias = "seed-sweep", conflicts_with_all = ["model", "suite", "kinds"])]
    sweep: bool,
    /// Images of --sweep [default: 1; on CUDA 8]
    #[arg(long, requires = "sweep", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: Option<u32>,
    /// Measure the blocks of this traced model (.pt), and the whole model
    #[arg(long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// The checkpoint of its weights, where it was traced without them
    #[arg(long, value_name = "CHECKPOINT", requires = "model")]
    weights: Option<PathBuf>,
    /// Device to measure: cpu, cuda, cuda:1
    #[arg(long, default_value = "cpu")]
    device: String,
    /// The profile (.csv)
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// How long to measure
    #[arg(long, default_value = "5", value_parser = minutes)]
    minutes: f64,
    /// Data types [default: float32; on CUDA those that the card's tensor cores take as well]
    #[arg(long, value_delimiter = ',', value_name = "TYPE,…", conflicts_with = "model",
        value_parser = |name: &str| DType::find(name).map_err(|error| format!("{error}; known are {}", error.known.join(", "))))]
    dtype: Vec<DType>,
    /// Kinds of operators [default: all; those of channels-last tensors on CUDA alone]
    #[arg(long, value_delimiter = ',', value_name = "KIND,…", conflicts_with = "model",
        value_parser = PossibleValuesParser::new(Kind::all().map(Kind::name)), hide_possible_values = true)]
    kinds: Vec<String>,
    /// Seed of the sampling plan and of a model's inputs
    #[arg(long, default_value_t = 0)]
    seed: u32,
    /// Threads of the CPU [default: as many as libtorch chooses]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: Option<u32>,
    /// How far down blocks are taken, with --model
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), conflicts_with = "suite")]
    depth: u32,
    /// How the answer is printed
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

fn minutes(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_string())?;
    if number > 0.0 && number <= 1440.0 {
        Ok(number)
    } else {
        Err("must be more than 0 and at most 1440".to_string())
    }
}

#[cfg(not(feature = "torch"))]
impl Profile {
    /// Says what is missing.
    pub fn run(self, _output: &mut Output) -> Result<(), Failure> {
        let Self {
            suite: _, sweep: _, batch: _, model: _, device: _, output: _, minutes: _, dtype: _, ..
        } = &self;
        let Self { kinds: _, seed: _, threads: _, depth: _, format: _, .. } = self;
        Err(crate::stages::no_libtorch("profile"))
    }
}

#[cfg(feature = "torch")]
impl Profile {
    /// Measures and prints.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        let answer = match &self.model {
            Some(model) => blocks::measure(&self, model)?,
            None => suite::measure(&self)?,
        };
        match self.format {
            Format::Json => output.json(&answer.json),
            Format::Text => output.text(&answer.text),
        }
    }

    /// Returns the command without paths, for the file's header.
    fn conditions(&self) -> String {
        let what = if self.sweep {
            "--sweep"
        } else if self.suite {
            "--suite"
        } else {
            "--model MODEL"
        };
        let threads = self.threads.map_or(String::new(), |n| format!(" --threads {n}"));
        let (device, minutes, seed) = (&self.device, self.minutes, self.seed);
        format!("model-analyze profile {what} --device {device} --minutes {minutes} --seed {seed}{threads}")
    }
}

/// What is printed at the end.
#[cfg(feature = "torch")]
struct Answer {
    text: String,
    json: serde_json::Value,
}

/// Returns a bar on standard error that counts seconds down, and is silent where nobody looks.
#[cfg(feature = "torch")]
fn countdown(seconds: f64) -> indicatif::ProgressBar {
    let bar = indicatif::ProgressBar::new(seconds.ceil() as u64);
    let style = indicatif::ProgressStyle::with_template("{bar:30} {msg}");
    bar.set_style(style.expect("the template is well formed"));
    bar
}

/// Moves the bar.
#[cfg(feature = "torch")]
fn tick(bar: &indicatif::ProgressBar, elapsed: f64, limit: f64, message: &str) {
    let left = (limit - elapsed).max(0.0).round() as u64;
    bar.set_position((elapsed as u64).min(limit.ceil() as u64));
    bar.set_message(format!("{}:{:02} left, {message}", left / 60, left % 60));
}

/// Adds when and how busy: what a reader of the file must know to trust it.
#[cfg(feature = "torch")]
fn moment() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split_whitespace().next().map_or(String::new(), |load| format!(", load {load}"));
    format!("{}{load}", runtime::profile::civil_date(std::time::SystemTime::now()))
}

/// Turns an error of libtorch into a failure.
#[cfg(feature = "torch")]
fn failed(error: runtime::BackendError) -> Failure {
    Failure::input(error)
}
