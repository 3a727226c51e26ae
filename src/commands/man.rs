//! `model-analyze man`: the manual page.

use clap::Args;

use crate::{failure::Failure, nearest::nearest, output::Output};

/// Arguments of `man`.
#[derive(Args)]
#[command(after_help = "Examples:
  model-analyze man | man -l -
  model-analyze man split > ~/.local/share/man/man1/model-analyze-split.1")]
pub struct Man {
    /// A subcommand; the command itself when absent
    subcommand: Option<String>,
}

impl Man {
    /// Prints the page.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        let whole = crate::grammar();
        let page = match &self.subcommand {
            None => whole,
            Some(name) => {
                let found = whole.find_subcommand(name).cloned().ok_or_else(|| {
                    let names = whole.get_subcommands().map(clap::Command::get_name);
                    let failure = Failure::input(format!("there is no subcommand `{name}`"));
                    match nearest(name, names, 2) {
                        Some(known) => failure.with_hint(format!("did you mean `{known}`?")),
                        None => failure.with_hint("model-analyze --help lists them"),
                    }
                })?;
                let title: &'static str = format!("model-analyze-{name}").leak();
                found.name(title)
            }
        };
        let mut text = Vec::new();
        clap_mangen::Man::new(page).render(&mut text)?;
        output.document(&String::from_utf8_lossy(&text))
    }
}
