//! Cases that stand in Python: one interpreter for all cases of a test binary, for importing torch is most of their time.

#[path = "../warm/mod.rs"]
pub mod warm;

use std::{path::Path, process::Command};

/// Runs `tests/oracle/SCRIPT.py` on the command with a folder for what it makes; returns what it printed.
///
/// # Panics
/// When a case fails.
#[track_caller]
pub fn run(script: &str) -> String {
    run_of(script, &[])
}

/// The same for some of its cases.
///
/// # Panics
/// When a case fails.
#[track_caller]
pub fn run_of(script: &str, cases: &[&str]) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let place = tempfile::tempdir().expect("a folder");
    let python = warm::warm(&root.join(".venv/bin/python"), &[]);
    let output = Command::new(&python)
        .env("MODEL_ANALYZE_PYTHON", &python)
        .args(["-W", "ignore"])
        .arg(root.join("tests/oracle").join(script).with_extension("py"))
        .arg(env!("CARGO_BIN_EXE_model-analyze"))
        .arg(place.path())
        .args(cases)
        .output()
        .expect("`make test` has made .venv");
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    text.into_owned()
}
