//! The objective of a plan: `--objective`, `--inference`, `--kv-cache`.

use clap::{Args, ValueEnum};
use schema::{Inference, InferenceObjective};

use crate::failure::Failure;

/// The objective of a plan.
#[derive(Args)]
pub struct ObjectiveArguments {
    /// Objective [default: time per training step; for a workload, the largest load]
    #[arg(long, value_enum, value_name = "AIM")]
    objective: Option<Aim>,
    /// Plan only the forward pass, for the most samples per second: nothing is trained [traced models]
    #[arg(long)]
    inference: bool,
    /// Tokens per sequence whose keys and values every attention keeps: 8192, with --inference or --objective latency
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..))]
    kv_cache: Option<u64>,
}

/// Objectives.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Aim {
    /// Time of one request, forward pass only
    Latency,
    /// Samples per second
    Throughput,
}

impl ObjectiveArguments {
    /// Tells whether this objective is requested.
    pub fn is(&self, aim: Aim) -> bool {
        self.objective == Some(aim)
    }

    /// Tells whether `--inference` is given.
    pub fn is_inference(&self) -> bool {
        self.inference
    }

    /// Tells whether keys and values are to be kept.
    pub fn has_cache(&self) -> bool {
        self.kv_cache.is_some()
    }

    /// Returns the inference objective for a traced model; `None` for training.
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
