//! One step of the main job: another subcommand, given its arguments and asked for its answer.

use std::ffi::OsString;

use clap::Parser;
use serde::de::DeserializeOwned;

use crate::{Cli, failure::Failure, output::Output};

/// Runs a subcommand and reads its JSON.
pub fn answer<T: DeserializeOwned>(arguments: impl IntoIterator<Item = OsString>) -> Result<T, Failure> {
    let json = ["--format".into(), "json".into()];
    let bytes = capture(arguments.into_iter().chain(json))?;
    serde_json::from_slice(&bytes).map_err(|error| Failure::bug(format!("an answer cannot be read: {error}")))
}

/// Runs a subcommand for what it writes to files.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    capture(arguments.into_iter()).map(|_| ())
}

fn capture(arguments: impl Iterator<Item = OsString>) -> Result<Vec<u8>, Failure> {
    let cli = Cli::try_parse_from(std::iter::once("model-analyze".into()).chain(arguments));
    // What a user typed wrongly is an argument of `split` that goes on to `plan`; clap's words fit both.
    let cli = cli.map_err(|error| Failure::input(error.to_string().trim().trim_start_matches("error: ")))?;
    let (mut output, kept) = Output::captured();
    cli.command.run(&mut output)?;
    drop(output);
    Ok(kept.take())
}
