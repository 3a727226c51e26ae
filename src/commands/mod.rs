//! The subcommands, one file each.

use clap::Subcommand;

use crate::{failure::Failure, output::Output};

mod completions;
mod inspect;
mod simulate;

mod emit;
mod fit;
pub mod trace;

/// What to do.
#[derive(Subcommand)]
pub enum Command {
    /// Trace a PyTorch model in your own Python
    Trace(trace::Trace),
    /// Simulate a training step: time, memory, and where both go
    Simulate(simulate::Simulate),
    /// Show a model as a table of blocks
    Inspect(inspect::Inspect),
    /// Print a completion script for a shell
    Completions(completions::Completions),
    /// Write a cut model as stage modules that run
    Emit(emit::Emit),
    /// Fit a cost model to measured times, and say how good it is
    Fit(Box<fit::Fit>),
}

impl Command {
    /// Runs the subcommand.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        match self {
            Command::Trace(command) => command.run(output),
            Command::Simulate(command) => command.run(output),
            Command::Inspect(command) => command.run(output),
            Command::Completions(command) => command.run(output),
            Command::Emit(command) => command.run(output),
            Command::Fit(command) => command.run(output),
        }
    }
}
