//! Build script: with the feature `torch`, checks that libtorch is there and lets the command find it at run time.
//!
//! torch-sys compiles against libtorch and stops with a compiler's message when it is missing; this script runs
//! beside it, needs no time, and says what is missing and which command mends it. The folder goes into the
//! binary as its run-time library path, so that nothing has to be set by hand.

// A build script speaks to cargo on standard output and to people on standard error.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// The version that tch is built for; requirements.txt names the same.
const TORCH: &str = "2.11.0";

fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    if env::var_os("CARGO_FEATURE_TORCH").is_none() {
        return;
    }
    for variable in ["LIBTORCH_LIB", "LIBTORCH_USE_PYTORCH"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    match library_folder() {
        Ok(folder) => {
            println!("cargo:rerun-if-changed={}", folder.display());
            println!("cargo:rustc-link-arg=-Wl,-rpath,{}", folder.display());
            // The environment of the wheel has an interpreter with the same torch.
            println!("cargo:rustc-env=MODEL_ANALYZE_LIBTORCH={}", folder.display());
        }
        Err(problem) => {
            eprintln!("error: the feature `torch` needs libtorch {TORCH}: {problem}");
            eprintln!(
                "  hint: `make .venv/ready` installs it beside the project; or, with torch {TORCH} in the"
            );
            eprintln!("        python3 on PATH, put LIBTORCH_USE_PYTORCH=1 before the command");
            std::process::exit(1);
        }
    }
}

/// Finds the folder of libtorch.so the way torch-sys does.
fn library_folder() -> Result<PathBuf, String> {
    let folder = if env::var_os("LIBTORCH_USE_PYTORCH").is_some() {
        of_interpreter()?
    } else {
        let root = env::var_os("LIBTORCH_LIB").or_else(|| env::var_os("LIBTORCH"));
        Path::new(&root.ok_or("no LIBTORCH is set")?).join("lib")
    };
    let canonical = folder.canonicalize().map_err(|_| format!("there is no folder {}", folder.display()))?;
    if canonical.read_dir().is_ok_and(|mut files| files.any(|file| is_libtorch(file.ok()))) {
        Ok(canonical)
    } else {
        Err(format!("no libtorch lies in {}", canonical.display()))
    }
}

fn is_libtorch(file: Option<std::fs::DirEntry>) -> bool {
    file.is_some_and(|file| file.file_name().to_string_lossy().starts_with("libtorch_cpu."))
}

/// Asks the interpreter that torch-sys asks.
fn of_interpreter() -> Result<PathBuf, String> {
    let python = if env::var_os("VIRTUAL_ENV").is_some() { "python" } else { "python3" };
    let script = "import torch; print(torch.__version__.split('+')[0]); print(torch.__file__)";
    let output = Command::new(python).args(["-c", script]).output().map_err(|e| format!("{python}: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = text.lines();
    match (lines.next(), lines.next()) {
        (Some(TORCH), Some(file)) => Ok(Path::new(file).with_file_name("lib")),
        (Some(version), Some(_)) => Err(format!("{python} has torch {version}")),
        _ => Err(format!("{python} has no torch")),
    }
}
