//! The Python package `model_analyze`, over the command that was just built.
#![cfg(feature = "torch")]
#![allow(clippy::print_stdout, missing_docs)]

mod oracle;

/// The cases stand in `tests/oracle/package.py`.
#[test]
fn the_package_answers_as_the_command_does() {
    let text = oracle::run("package");
    assert_eq!(text.lines().filter(|line| line.ends_with(": ok")).count(), 7, "{text}");
}
