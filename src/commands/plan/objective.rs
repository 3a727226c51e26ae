//! What a plan is to be good at: `--objective`.

use clap::{Args, ValueEnum};

/// What a plan is to be good at.
#[derive(Args)]
pub struct ObjectiveArguments {
    /// What is to be best [default: the time of a training step; the largest load where a workload brings its own objective]
    #[arg(long, value_enum, value_name = "AIM")]
    objective: Option<Aim>,
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
}
