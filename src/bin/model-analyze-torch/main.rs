//! The command, linked to libtorch: `model-analyze` becomes this program for commands that compute with it.

#![cfg_attr(not(test), warn(clippy::too_many_lines, clippy::excessive_nesting))]

mod blocks;
mod header;
mod in_torch;
mod profile;
mod run;
mod suite;
mod verify;

use std::process::ExitCode;

use model_analyze::Libtorch;

fn main() -> ExitCode {
    let with = Libtorch { profile: profile::measure, run: run::execute, verify: verify::compare };
    model_analyze::main(Some(&with))
}
