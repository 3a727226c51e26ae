//! The subcommands, one file each.

use clap::Subcommand;

use crate::{failure::Failure, output::Output};

mod completions;

/// What to do.
#[derive(Subcommand)]
pub enum Command {
    /// Print a completion script for a shell
    Completions(completions::Completions),
}

impl Command {
    /// Runs the subcommand.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        match self {
            Command::Completions(command) => command.run(output),
        }
    }
}
