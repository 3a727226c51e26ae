//! A command without the feature `peers` says so: `cargo test --no-default-features --test without_peers`.
#![cfg(not(feature = "peers"))]
#![allow(clippy::unwrap_used)]

use std::{fs, process::Command};

#[track_caller]
fn check(file: &str, text: &str, arguments: &[&str], what: &str) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(file), text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_model-analyze"));
    let command =
        command.current_dir(folder.path()).env("NO_COLOR", "1").args(["plan", file]).args(arguments);
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(&format!("was built without other planners: it cannot plan {what}")), "{said}");
    assert!(said.contains("the feature `peers`"), "{said}");
}

#[test]
fn other_planners_are_refused_by_name() {
    let node = "-- Linear(1, 1) -- forward_compute_time=1.0, backward_compute_time=1.0, activation_size=4.0, parameter_size=8.0\n";
    let profile = format!("node1 {node}");
    check("graph.txt", &profile, &["--compat", "pipedream", "--machines", "2"], "by --compat pipedream");
    let loads = r#"{"maxSizePerFPGA": 8.0, "maxFPGAs": 2, "maxCPUs": 0, "edges": [], "nodes": [{"id": 1, "name": "n",
        "supportedOnFpga": 1, "cpuLatency": 4, "fpgaLatency": 1, "isBackwardNode": 0, "size": 1}]}"#;
    check("loads.json", loads, &[], "a workload of dnn-partitioning");
    let piper = r#"{"maxDevices": 2, "maxMemoryPerDevice": 10, "bandwidth": 1e9, "mbsInBatch": 4, "edges": [],
        "nodes": [{"id": 1, "name": "n", "TMPCs": {"1": [{"id": "vanilla", "timePerSample": 1.0, "parameterSize": 2,
        "memoryUsageA": 3, "memoryUsageB": 4, "syncTimeFw": {}, "syncTimeBw": {}}]}}]}"#;
    check("piper.json", piper, &[], "a workload of Piper");
}
