//! Continues as the program that is linked to libtorch.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::{failure::Failure, progress};

/// Whether that program was built, too.
pub const IS_BUILT: bool = cfg!(feature = "torch");

/// Returns the folder of its libtorch.
pub fn folder() -> Option<&'static Path> {
    option_env!("MODEL_ANALYZE_LIBTORCH").map(Path::new)
}

/// Runs that program with the same arguments; returns only if that fails.
///
/// `instead` is an alternative, named in the message if there is no such program.
pub fn go_on_there(command: &str, instead: &str) -> Failure {
    if !IS_BUILT {
        return Failure::input(format!("this build cannot {command}: it has no libtorch"))
            .with_hint(format!("make .venv/ready && cargo build --release --features torch{instead}"));
    }
    let program = std::env::current_exe().map(|own| other(&own));
    let program = match program {
        Ok(program) if program.exists() => program,
        Ok(program) => {
            let message = format!(
                "{} is missing: the part of this command that is linked to libtorch",
                program.display()
            );
            return Failure::input(message).with_hint("cargo build --release --features torch builds both");
        }
        Err(error) => return Failure::input(format!("cannot find this command's own path: {error}")),
    };
    progress::done();
    let error = become_it(Command::new(&program).args(std::env::args_os().skip(1)));
    Failure::input(format!("cannot start {}: {error}", program.display()))
}

fn other(own: &Path) -> PathBuf {
    own.with_file_name(format!("model-analyze-torch{}", std::env::consts::EXE_SUFFIX))
}

/// Replaces this process: signals, terminal and exit code stay the same.
#[cfg(unix)]
fn become_it(command: &mut Command) -> std::io::Error {
    use std::os::unix::process::CommandExt;

    if let Some(name) = std::env::args_os().next() {
        command.arg0(name);
    }
    command.exec()
}

/// Runs it as a child, and exits with its exit code.
#[cfg(not(unix))]
fn become_it(command: &mut Command) -> std::io::Error {
    match command.status() {
        Ok(status) => std::process::exit(status.code().unwrap_or(1)),
        Err(error) => error,
    }
}
