//! The subcommands, one file each.

use clap::Subcommand;

use crate::{failure::Failure, output::Output};

mod completions;
mod emit;

/// What to do.
#[derive(Subcommand)]
pub enum Command {
    /// Print a completion script for a shell
    Completions(completions::Completions),
    /// Write a cut model as stage modules that run
    Emit(emit::Emit),
}

impl Command {
    /// Runs the subcommand.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        match self {
            Command::Completions(command) => command.run(output),
            Command::Emit(command) => command.run(output),
        }
    }
}
