//! What a plan is to be good at: `--objective`, `--inference`, `--kv-cache`.

use clap::{Args, ValueEnum};
use schema::{Inference, InferenceObjective};

use crate::failure::Failure;

/// What a plan is to be good at.
#[derive(Args)]
pub struct ObjectiveArguments {
    /// What is to be best [default: the time of a training step; the largest load where a workload brings its own objective]
    #[arg(long, value_enum, value_name = "AIM")]
    objective: Option<Aim>,
    /// Plan the forward pass alone, for the most samples a second: nothing is trained [traced models]
    #[arg(long)]
    inference: bool,
    /// Tokens of each sequence whose keys and values every attention keeps: 8192, with --inference or --objective latency
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..))]
    kv_cache: Option<u64>,
}

/// Aims.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Aim {
    /// Time of one request, forward pass alone
    Latency,
    /// Samples a second
    Throughput,
}

impl ObjectiveArguments {
    /// Tells whether this is what is asked for.
    pub fn is(&self, aim: Aim) -> bool {
        self.objective == Some(aim)
    }

    /// Tells whether the forward pass alone is asked for by name.
    pub fn is_inference(&self) -> bool {
        self.inference
    }

    /// Tells whether keys and values are to be kept.
    pub fn has_cache(&self) -> bool {
        self.kv_cache.is_some()
    }

    /// Returns what the forward pass of a traced model is planned for; none where training is.
    pub fn of_trace(&self) -> Result<Option<Inference>, Failure> {
        let objective = match (self.objective, self.inference) {
            (Some(Aim::Latency), _) => InferenceObjective::Latency,
            (_, true) => InferenceObjective::Throughput,
            _ if self.kv_cache.is_some() => {
                return Err(Failure::input("--kv-cache is for inference: training keeps no keys and values")
                    .with_hint("--inference plans for throughput, --objective latency for one request"));
            }
            _ => return Ok(None),
        };
        Ok(Some(Inference { objective, kv_cache: self.kv_cache }))
    }
}
