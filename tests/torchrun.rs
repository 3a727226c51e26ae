//! `train.py` in several processes: every schedule, replicas, a rank that dies, one state dict at the end.
#![cfg(feature = "torch")]
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::{path::Path, process::Command};

/// The cases stand in `tests/oracle/torchrun.py`: one interpreter for all, for importing torch is most of their time.
#[test]
fn several_processes_train_as_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let place = tempfile::tempdir().unwrap();
    let output = Command::new(root.join(".venv/bin/python"))
        .arg(root.join("tests/oracle/torchrun.py"))
        .arg(env!("CARGO_BIN_EXE_model-analyze"))
        .arg(place.path())
        .output()
        .expect("`make test` has made .venv");
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
}
