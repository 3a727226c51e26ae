//! The command `model-analyze`: arguments, files, clock, terminal, exit codes.
//!
//! One file per subcommand in `commands/`; each turns its arguments into calls of the libraries and prints. There are
//! two programs: `model-analyze`, and with the feature `torch` also `model-analyze-torch` (`src/bin`), the only one
//! linked to libtorch. A process with libtorch takes a quarter of a second to start, so the first becomes the second
//! (`src/with_libtorch.rs`) only for commands that compute with it.

#![cfg_attr(not(test), warn(clippy::too_many_lines, clippy::excessive_nesting))]
// Help texts are doc comments, and their `[NAME=]SHAPE[:DTYPE]` is not a link.
#![allow(rustdoc::broken_intra_doc_links)]

mod columns;
mod commands;
mod companion;
mod cost_models;
mod excerpt;
mod failure;
mod files;
mod folder_files;
mod interpreter;
mod kinds;
mod model;
mod nearest;
mod operations;
mod operator_stages;
mod output;
mod parallel;
mod plan_file;
mod program;
mod progress;
mod sharing;
mod shell;
mod stages;
mod step_memory;
mod terminal;
mod trace_notes;
mod unfinished;
mod visible;
mod weights;
mod with_libtorch;
mod workspace;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser};

use crate::{commands::Command, failure::Failure, output::Output};

pub use commands::Libtorch;

/// The modules that `model-analyze-torch` uses in addition to libtorch.
#[doc(hidden)]
pub mod parts {
    pub use crate::{
        commands::{
            emit::{CutAt, EmitRequest, emit},
            profile::{Answer, Profile},
            run::{Job, Measurement, Run},
            verify::{Compared, Form, Request},
            whole,
        },
        failure::Failure,
        files::{Beside, read_bytes, write},
        shell::quoted,
        stages::{DrawnInput, Stages, libraries},
        unfinished::making,
        workspace::ModelFile,
    };
}

/// Divides a traced PyTorch model into balanced pipeline stages.
#[derive(Parser)]
#[command(name = "model-analyze", version, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Returns the command line's grammar; help is wrapped at the terminal's width, not where its source is.
pub(crate) fn grammar() -> clap::Command {
    Cli::command().mut_subcommands(|command| match command.get_after_help().map(ToString::to_string) {
        Some(text) => command.after_help(terminal::paragraphs(&text)),
        None => command,
    })
}

fn parsed() -> Cli {
    let parsed = Cli::from_arg_matches(&grammar().get_matches());
    parsed.unwrap_or_else(|error| error.format(&mut grammar()).exit())
}

/// Runs the command of the process's arguments.
pub fn main(libtorch: Option<&Libtorch>) -> ExitCode {
    std::panic::set_hook(Box::new(|panic| {
        progress::done();
        failure::say(&format!(
            "error: model-analyze has a bug: {panic}\n  hint: please report it with the command line and the input\n"
        ));
    }));
    unfinished::watch();
    let result = std::panic::catch_unwind(|| parsed().command.run(&mut Output::stdout(), libtorch));
    progress::done();
    unfinished::wait_if_interrupted();
    match result {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(failure)) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Ok(Err(failure)) => {
            failure.show();
            ExitCode::from(failure.exit_code())
        }
        Err(_) => ExitCode::from(Failure::BUG),
    }
}
