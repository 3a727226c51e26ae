//! The subcommands, one file each, in the order of the work.

use clap::Subcommand;

use crate::{failure::Failure, output::Output, progress};

mod compare;
mod completions;
mod devices;
mod diff;
pub mod emit;
pub mod fit;
mod graph;
mod inspect;
mod man;
mod plan;
pub mod profile;
mod report;
pub mod run;
mod schema;
mod simulate;
mod split;
pub mod trace;
pub mod verify;
pub mod whole;

pub use plan::costs::Times;

/// Functions that compute with libtorch, given by the program that is linked to it.
pub struct Libtorch {
    /// Measures operators or blocks.
    pub profile: profile::Measure,
    /// Runs stages as a pipeline.
    pub run: run::Execute,
    /// Compares TorchScript archives of stages with the whole model.
    pub verify: verify::Compare,
}

/// What to do.
#[derive(Subcommand)]
pub enum Command {
    /// Split a model over devices: plan, stages, pictures, and why
    Split(Box<split::Split>),
    /// Trace a PyTorch model in your own Python
    Trace(trace::Trace),
    /// Show a model as a table of blocks
    Inspect(inspect::Inspect),
    /// Draw a model
    Graph(graph::Graph),
    /// Measure operators, or a model's blocks, on this machine
    Profile(profile::Profile),
    /// Fit a cost model to measured times, and report its errors
    Fit(Box<fit::Fit>),
    /// Find the best stages for a model on a cluster, and say why
    Plan(Box<plan::Plan>),
    /// Compare all strategies on one cluster: throughput, memory, traffic, and what is left out
    Compare(Box<compare::Compare>),
    /// Simulate a training step: time, memory, and where both go
    Simulate(Box<simulate::Simulate>),
    /// Compare two plans or models: what moves, and the effect
    Diff(diff::Diff),
    /// Write a cut model as stage modules that run
    Emit(emit::Emit),
    /// Compare the stages with the whole model: outputs, gradients, losses
    Verify(verify::Verify),
    /// Run the stages as a pipeline on this machine, and compare measured with predicted times
    Run(run::Run),
    /// Write a model, its plan and its timeline as one HTML page
    Report(report::Report),
    /// List the known devices: memory, peaks, links, sources
    Devices(devices::Devices),
    /// Print the JSON Schema of a file or an answer
    Schema(schema::Schema),
    /// Print a completion script for a shell
    Completions(completions::Completions),
    /// Print the manual page
    Man(man::Man),
    /// Print the script that `trace` runs, which the Python package also runs
    #[command(hide = true)]
    TraceScript,
}

impl Command {
    /// Runs the subcommand.
    pub fn run(self, output: &mut Output, libtorch: Option<&Libtorch>) -> Result<(), Failure> {
        match self.message() {
            Some(message) => progress::working(message),
            None => progress::done(),
        }
        match self {
            Command::Split(command) => command.run(output),
            Command::Trace(command) => command.run(output),
            Command::Inspect(command) => command.run(output),
            Command::Graph(command) => command.run(output),
            Command::Profile(command) => command.run(output, libtorch.map(|with| with.profile)),
            Command::Fit(command) => command.run(output),
            Command::Plan(command) => command.run(output),
            Command::Compare(command) => command.run(output),
            Command::Simulate(command) => command.run(output),
            Command::Diff(command) => command.run(output),
            Command::Emit(command) => command.run(output),
            Command::Verify(command) => command.run(output, libtorch.map(|with| with.verify)),
            Command::Run(command) => command.run(output, libtorch.map(|with| with.run)),
            Command::Report(command) => command.run(output),
            Command::Devices(command) => command.run(output),
            Command::Schema(command) => command.run(output),
            Command::Completions(command) => command.run(output),
            Command::Man(command) => command.run(output),
            Command::TraceScript => output.document(trace::SCRIPT),
        }
    }

    /// Returns the text shown while the command works; commands with a progress bar of their own show more.
    fn message(&self) -> Option<&'static str> {
        match self {
            Command::Split(_) | Command::Plan(_) => Some("searching the best stages"),
            Command::Inspect(_) => Some("reading the model"),
            Command::Graph(_) => Some(graph::WORKING),
            Command::Fit(_) => Some("fitting curves"),
            Command::Compare(_) => Some(compare::WORKING),
            Command::Simulate(_) => Some("simulating the step"),
            Command::Diff(_) => Some("simulating both plans"),
            Command::Verify(_) => Some("comparing the stages with the whole model"),
            Command::Run(_) => Some("running the stages"),
            Command::Report(_) => Some(report::WORKING),
            Command::Trace(_) | Command::Profile(_) | Command::Emit(_) => None,
            Command::Devices(_) | Command::Schema(_) | Command::Completions(_) | Command::Man(_) => None,
            Command::TraceScript => None,
        }
    }
}
