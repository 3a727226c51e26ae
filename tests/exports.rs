//! Exports, read by the frameworks that they are for.
#![cfg(feature = "torch")]
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::{path::Path, process::Command};

/// The cases stand in `tests/oracle/exports.py`, which says of each export whose code has read it.
#[test]
fn frameworks_take_what_is_exported() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let place = tempfile::tempdir().unwrap();
    let output = Command::new(root.join(".venv/bin/python"))
        .args(["-W", "ignore"])
        .arg(root.join("tests/oracle/exports.py"))
        .arg(env!("CARGO_BIN_EXE_model-analyze"))
        .arg(place.path())
        .output()
        .expect("`make test` has made .venv");
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    // Each of nine cuts is read by six.
    assert_eq!(text.lines().filter(|line| line.contains(": ")).count(), 54, "{text}");
}
