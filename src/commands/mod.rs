//! The subcommands, one file each.

use clap::Subcommand;

use crate::{failure::Failure, output::Output};

mod completions;
mod simulate;

/// What to do.
#[derive(Subcommand)]
pub enum Command {
    /// Simulate a training step: time, memory, and where both go
    Simulate(Box<simulate::Simulate>),
    /// Print a completion script for a shell
    Completions(completions::Completions),
}

impl Command {
    /// Runs the subcommand.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        match self {
            Command::Simulate(command) => command.run(output),
            Command::Completions(command) => command.run(output),
        }
    }
}
