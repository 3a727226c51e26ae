//! The subcommands, one file each.

use clap::Subcommand;

use crate::{failure::Failure, output::Output};

mod completions;
mod plan;
mod simulate;

/// What to do.
#[derive(Subcommand)]
pub enum Command {
    /// Find the best stages for a model on a cluster, and say why
    Plan(Box<plan::Plan>),
    /// Simulate a training step: time, memory, and where both go
    Simulate(simulate::Simulate),
    /// Print a completion script for a shell
    Completions(completions::Completions),
}

impl Command {
    /// Runs the subcommand.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        match self {
            Command::Plan(command) => command.run(output),
            Command::Simulate(command) => command.run(output),
            Command::Completions(command) => command.run(output),
        }
    }
}
