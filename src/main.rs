//! The command, without libtorch.

use std::process::ExitCode;

fn main() -> ExitCode {
    model_analyze::main(None)
}
