//! Plans of earlier releases: what was written once is read for ever.
//!
//! `fixtures/plans/kept/` only grows: a file there is never renewed. Each is named after its format version and its model.

#![allow(clippy::unwrap_used, missing_docs)]

use std::{fs, path::Path, process::Command};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn run(folder: &Path, arguments: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_model-analyze"))
        .args(arguments)
        .current_dir(folder)
        .output()
        .expect("the command starts");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn every_command_reads_the_plans_of_earlier_releases() {
    let kept = root().join("fixtures/plans/kept");
    let mut n = 0;
    for entry in fs::read_dir(&kept).unwrap().flatten() {
        let plan = entry.path();
        let name =
            plan.file_stem().unwrap().to_str().unwrap().strip_prefix("version_1_").unwrap().to_string();
        let model = root().join(format!("fixtures/traces/{name}.pt"));
        let (model, plan) = (model.to_str().unwrap(), plan.to_str().unwrap());
        let place = tempfile::tempdir().unwrap();
        let folder = place.path();
        run(folder, &["simulate", plan]);
        run(folder, &["plan", model, "--check", plan]);
        run(folder, &["diff", plan, plan]);
        run(folder, &["graph", model, "--plan", plan, "-o", "graph.svg"]);
        run(folder, &["report", model, plan, "-o", "report.html"]);
        run(folder, &["emit", model, plan, "-o", "out"]);
        n += 1;
    }
    assert!(n >= 2, "{n} plans in {}", kept.display());
}
