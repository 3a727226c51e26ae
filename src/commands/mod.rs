//! The subcommands, one file each.

use clap::Subcommand;

use crate::{failure::Failure, output::Output};

mod completions;
mod graph;
mod inspect;
mod plan;
mod report;
mod simulate;

mod emit;
mod fit;
mod profile;
mod run;
mod split;
pub mod trace;
mod verify;

/// What to do.
#[derive(Subcommand)]
pub enum Command {
    /// Split a model over devices: plan, stages, pictures, and why
    Split(split::Split),
    /// Find the best stages for a model on a cluster, and say why
    Plan(Box<plan::Plan>),
    /// Trace a PyTorch model in your own Python
    Trace(trace::Trace),
    /// Simulate a training step: time, memory, and where both go
    Simulate(Box<simulate::Simulate>),
    /// Show a model as a table of blocks
    Inspect(inspect::Inspect),
    /// Draw a model
    Graph(graph::Graph),
    /// Write a model, its plan and its timeline as one page to look at
    Report(report::Report),
    /// Print a completion script for a shell
    Completions(completions::Completions),
    /// Measure operators, or a model's blocks, on this machine
    Profile(profile::Profile),
    /// Write a cut model as stage modules that run
    Emit(emit::Emit),
    /// Compare the stages with the whole model: outputs, gradients, losses
    Verify(verify::Verify),
    /// Run the stages as a pipeline on this machine, measured beside predicted
    Run(run::Run),
    /// Fit a cost model to measured times, and say how good it is
    Fit(Box<fit::Fit>),
}

impl Command {
    /// Runs the subcommand.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        match self {
            Command::Split(command) => command.run(output),
            Command::Plan(command) => command.run(output),
            Command::Trace(command) => command.run(output),
            Command::Simulate(command) => command.run(output),
            Command::Inspect(command) => command.run(output),
            Command::Graph(command) => command.run(output),
            Command::Report(command) => command.run(output),
            Command::Completions(command) => command.run(output),
            Command::Profile(command) => command.run(output),
            Command::Emit(command) => command.run(output),
            Command::Verify(command) => command.run(output),
            Command::Run(command) => command.run(output),
            Command::Fit(command) => command.run(output),
        }
    }
}
