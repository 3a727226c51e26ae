//! `model-analyze completions`: a script that a shell sources.

use clap::{Args, Command, CommandFactory, builder::PossibleValuesParser};
use clap_complete::Shell;
use schema::catalogue;

use super::{plan, split};
use crate::{failure::Failure, output::Output};

/// Numbers of devices that `--devices` completes for each type.
const COUNTS: [u32; 4] = [1, 2, 4, 8];

/// Arguments of `completions`.
#[derive(Args)]
#[command(
    after_help = "Example:\n  model-analyze completions bash > ~/.local/share/bash-completion/completions/model-analyze"
)]
pub struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    /// Prints the script.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(
            self.shell,
            &mut with_values(crate::Cli::command()),
            "model-analyze",
            &mut script,
        );
        output.document(&String::from_utf8_lossy(&script))
    }
}

/// Adds the values of an argument to complete. They do not limit it: the command also takes other spellings, and explains
/// a wrong value better than clap could.
fn with_values(command: Command) -> Command {
    // The shortest name is what people type. clap wants static names; the process ends after this, so they are leaked.
    let shortest = catalogue().iter().map(|(name, figures)| {
        let aliases = figures.aliases.iter().filter(|alias| !alias.contains(' '));
        aliases.chain([name]).min_by_key(|name| name.len()).unwrap_or(name)
    });
    let devices: Vec<&'static str> = shortest.map(|name| &*name.to_lowercase().leak()).collect();
    let several = COUNTS.iter().flat_map(|count| devices.iter().map(move |name| format!("{count}x{name}")));
    let several: Vec<&'static str> = several.map(|several| &*several.leak()).collect();
    let simulated = simulator::order::ALL.map(|schedule| schedule.name());
    command
        .mut_subcommand("inspect", |inspect| takes(inspect, "device", &devices))
        .mut_subcommand("devices", |list| takes(list, "name", &devices))
        .mut_subcommand("plan", |command| {
            takes(takes(command, "devices", &several), "strategy", &plan::strategies())
        })
        .mut_subcommand("split", |command| {
            let command = takes(takes(command, "devices", &several), "strategy", &plan::strategies());
            takes(command, "schedule", &split::schedules())
        })
        .mut_subcommand("simulate", |simulate| takes(simulate, "schedule", &simulated))
}

fn takes(command: Command, argument: &'static str, values: &[&'static str]) -> Command {
    command.mut_arg(argument, |argument| argument.value_parser(PossibleValuesParser::new(values.to_vec())))
}
