//! The command `model-analyze`: arguments, files, clock, terminal, exit codes.
//!
//! One file a subcommand in `commands/`; each turns its arguments into calls of the libraries and prints.

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
mod workspace;

use std::process::ExitCode;

use clap::Parser;

use crate::{commands::Command, failure::Failure, output::Output};

/// Who writes: the name and the version, as files say it.
const PROGRAM: &str = concat!("model-analyze ", env!("CARGO_PKG_VERSION"));

/// Takes a traced PyTorch model apart and puts it back together as balanced pipeline stages.
#[derive(Parser)]
#[command(name = "model-analyze", version, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|panic| {
        progress::done();
        failure::say(&format!(
            "error: model-analyze has a bug: {panic}\n  hint: please report it with the command line and the input\n"
        ));
    }));
    unfinished::watch();
    let result = std::panic::catch_unwind(|| Cli::parse().command.run(&mut Output::stdout()));
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
