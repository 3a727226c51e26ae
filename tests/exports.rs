//! Exports, read by the frameworks that they are for.
#![cfg(feature = "torch")]
#![allow(clippy::print_stdout, missing_docs)]

mod oracle;

/// The cases stand in `tests/oracle/exports.py`, which says of each export whose code has read it.
#[test]
fn frameworks_take_what_is_exported() {
    let text = oracle::run("exports");
    // Each of ten cuts is read by ten.
    assert_eq!(text.lines().filter(|line| line.contains(": ")).count(), 100, "{text}");
}
