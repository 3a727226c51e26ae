//! The command `model-analyze`: arguments, files, clock, terminal, exit codes.
//!
//! One file a subcommand in `commands/`; each turns its arguments into calls of the libraries and prints. Two programs are
//! made of it: `model-analyze`, and with the feature `torch` also `model-analyze-torch` (`src/bin`), which alone is linked to
//! libtorch. A process with libtorch takes a quarter of a second to start, so the first goes on as the second
//! (`src/with_libtorch.rs`) when a command computes with it, and not before.

// Help texts are doc comments, and their `[NAME=]SHAPE[:DTYPE]` is no link.
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

/// What `model-analyze-torch` is made of beside libtorch.
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

/// Takes a traced PyTorch model apart and puts it back together as balanced pipeline stages.
#[derive(Parser)]
#[command(name = "model-analyze", version, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Returns the command line's grammar; help is broken where the terminal ends, not where its source does.
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

/// Runs the command that the process was called with.
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
