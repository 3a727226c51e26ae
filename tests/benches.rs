//! What `make bench` runs beside other programs still asks the command for what it takes.
#![cfg(feature = "torch")]
#![allow(missing_docs)]

use std::{path::Path, process::Command};

#[test]
fn every_split_of_the_bench_is_planned_and_written() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let place = tempfile::tempdir().expect("a folder");
    let output = Command::new(root.join(".venv/bin/python"))
        .args(["-W", "ignore"])
        .arg(root.join("benches/split.py"))
        .args(["--models", "unet", "--predict-only", "--runs", "0"])
        .env("MODEL_ANALYZE", env!("CARGO_BIN_EXE_model-analyze"))
        .env("BENCH_FOLDER", place.path())
        .output()
        .expect("`make test` has made .venv");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    for split in ["even-layers", "even-parameters", "split-spec", "our-pipeline", "ours"] {
        let line = text.lines().find(|line| line.trim_start().starts_with(&format!("{split} ")));
        let line = line.unwrap_or_else(|| panic!("no line of {split}:\n{text}"));
        assert!(line.contains(" ms "), "{line}");
    }
}
