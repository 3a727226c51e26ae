//! `model-analyze profile`: times of operators, blocks and whole models on this machine.

mod links;

use std::path::PathBuf;

use clap::{Args, builder::PossibleValuesParser};
use runtime::profile::{DType, Kind};
use schema::Bytes;

use crate::{
    failure::Failure,
    output::{Format, Output},
    with_libtorch,
};

/// Arguments of `profile`.
#[derive(Args)]
#[command(after_help = "Examples:
  model-analyze profile --suite -o cpu.csv --threads 1
  model-analyze profile --suite --device cuda:0 --minutes 10 -o h100.csv
  model-analyze profile --suite --kinds convolution,linear --dtype float32,bfloat16 --device cuda:0 -o some.csv
  model-analyze profile --sweep --device cuda:0 -o sweep.csv
  model-analyze profile --model model.pt --depth 2 -o blocks.csv
  model-analyze profile --links --ranks 4 -o links.txt
  torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29500 --no-python \\
    model-analyze profile --links --device cuda -o between.txt

--suite measures operators of random sizes: forward, input gradient and weight gradient apart. It stops after --minutes,
at any operator; the same command continues where the file ends, even after a crash. `fit` reads the file.
--sweep measures convolutions of 32, 64 and 128 channels by kernels of 3, 5 and 7 on images of 256 x 256, in each type;
the first call of each, which is slower, has a column of its own (first_seconds). `fit --plot` draws the grid.
--model measures each block of a traced model in place, and the whole model.
--links measures collectives, and messages between neighbours, by size, with torch.distributed of --python: over gloo
between processes of this machine, with --device cuda over NCCL between its GPUs, under torchrun between its ranks. The file
has the form of nccl-tests; the answer is the link that `fit` makes of it, a level of a cluster file.
All but --links needs a build with libtorch: cargo build --release --features torch")]
pub struct Profile {
    /// Measure operators over a sampling plan
    #[arg(long, required_unless_present_any = ["model", "sweep", "links"], conflicts_with = "model")]
    pub suite: bool,
    /// Measure a grid of convolutions
    #[arg(long, alias = "seed-sweep", conflicts_with_all = ["model", "suite", "kinds"])]
    pub sweep: bool,
    /// Images of --sweep [default: 1; on CUDA 8]
    #[arg(long, requires = "sweep", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub batch: Option<u32>,
    /// Measure links between processes or GPUs: collectives by size
    #[arg(long, conflicts_with_all = ["model", "suite", "sweep", "kinds", "dtype", "threads", "depth", "seed"])]
    pub links: bool,
    /// Processes that --links starts here [default: 2; on CUDA one for each GPU]
    #[arg(long, requires = "links", value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1024))]
    pub ranks: Option<u32>,
    /// Largest message of --links [default: 64MiB; on CUDA 512MiB]
    #[arg(long, requires = "links", value_name = "BYTES", value_parser = Bytes::from_text)]
    pub largest: Option<Bytes>,
    /// Interpreter with torch, for --links
    #[arg(long, env = "MODEL_ANALYZE_PYTHON", default_value = "python3", value_name = "PROGRAM")]
    pub python: String,
    /// Measure the blocks of this traced model (.pt), and the whole model
    #[arg(long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// The checkpoint of its weights, if it was traced without them
    #[arg(long, value_name = "CHECKPOINT", requires = "model")]
    pub weights: Option<PathBuf>,
    /// Device to measure: cpu, cuda, cuda:1
    #[arg(long, default_value = "cpu")]
    pub device: String,
    /// The profile (.csv), or the tables of --links (.txt)
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Time limit of the measurement
    #[arg(long, default_value = "5", value_parser = minutes)]
    pub minutes: f64,
    /// Data types [default: float32; on CUDA also those of the card's tensor cores]
    #[arg(long, value_delimiter = ',', value_name = "TYPE,…", conflicts_with = "model",
        value_parser = |name: &str| DType::find(name).map_err(|error| format!("{error}; known are {}", error.known.join(", "))))]
    pub dtype: Vec<DType>,
    /// Kinds of operators [default: all; those of channels-last tensors only on CUDA]
    #[arg(long, value_delimiter = ',', value_name = "KIND,…", conflicts_with = "model",
        value_parser = PossibleValuesParser::new(Kind::all().map(Kind::name)), hide_possible_values = true)]
    pub kinds: Vec<String>,
    /// Seed of the sampling plan and of a model's inputs
    #[arg(long, default_value_t = 0)]
    pub seed: u32,
    /// Threads of the CPU [default: libtorch's choice]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub threads: Option<u32>,
    /// Depth of the measured blocks, with --model
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), conflicts_with = "suite")]
    pub depth: u32,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

fn minutes(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_string())?;
    if number > 0.0 && number <= 1440.0 {
        Ok(number)
    } else {
        Err("must be more than 0 and at most 1440".to_string())
    }
}

/// Measures the requested operators or blocks.
pub type Measure = fn(&Profile) -> Result<Answer, Failure>;

impl Profile {
    /// Measures and prints.
    pub fn run(self, output: &mut Output, measure: Option<Measure>) -> Result<(), Failure> {
        let answer = if self.links {
            let Some(answer) = links::measure(&self)? else { return Ok(()) };
            answer
        } else {
            let Some(measure) = measure else {
                return Err(with_libtorch::go_on_there("profile", ""));
            };
            measure(&self)?
        };
        match self.format {
            Format::Json => output.json(&answer.json),
            Format::Text => output.text(&answer.text),
        }
    }
}

/// The printed answer.
pub struct Answer {
    /// For people.
    pub text: String,
    /// For programs.
    pub json: serde_json::Value,
}
