//! One step of the main job: another subcommand, given its arguments as a user would.

use std::ffi::OsString;

use clap::Parser;

use crate::{
    Cli,
    commands::{Command, emit::Emit, plan::Plan},
    failure::Failure,
    output::Output,
};

/// Runs a subcommand for what it writes to files.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let (mut output, _) = Output::captured();
    parse(arguments)?.run(&mut output)
}

/// Returns the arguments of `plan`, its defaults filled in.
pub fn plan_arguments(arguments: impl IntoIterator<Item = OsString>) -> Result<Plan, Failure> {
    match parse(arguments)? {
        Command::Plan(plan) => Ok(*plan),
        _ => Err(Failure::bug("these are no arguments of `plan`")),
    }
}

/// Returns the arguments of `emit`, its defaults filled in.
pub fn emit_arguments(arguments: impl IntoIterator<Item = OsString>) -> Result<Emit, Failure> {
    match parse(arguments)? {
        Command::Emit(emit) => Ok(emit),
        _ => Err(Failure::bug("these are no arguments of `emit`")),
    }
}

fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, Failure> {
    let cli = Cli::try_parse_from(std::iter::once("model-analyze".into()).chain(arguments));
    // What a user typed wrongly is an argument of `split` that goes on to `plan`; clap's words fit both.
    let cli = cli.map_err(|error| Failure::input(error.to_string().trim().trim_start_matches("error: ")))?;
    Ok(cli.command)
}
