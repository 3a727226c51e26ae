//! `model-analyze completions`: a script that a shell sources.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::{failure::Failure, output::Output};

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
        clap_complete::generate(self.shell, &mut crate::Cli::command(), "model-analyze", &mut script);
        output.document(&String::from_utf8_lossy(&script))
    }
}
