//! The main job end to end: split, then (with libtorch) verify and run what was written.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::Value;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_model-analyze"))
}

fn split(model: &str, folder: &Path, more: &[&str]) -> Value {
    let run = command().arg("split").arg(fixture(model)).args(more).arg("-o").arg(folder).assert();
    let run = run.success();
    serde_json::from_slice(&run.get_output().stdout).unwrap()
}

const TWO_STAGES: [&str; 8] =
    ["--devices", "2xt4", "--stages", "2", "--strategy", "1f1b", "--format", "json"];

#[test]
fn everything_is_written_and_agrees() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let answer = split("traces/unet_small.pt", &out, &TWO_STAGES);
    for file in [
        "plan.yaml",
        "graph.svg",
        "timeline.svg",
        "report.html",
        "schedule.csv",
        "train.py",
        "stages/manifest.json",
        "stages/stage_0.pt",
        "stages/stage_1.safetensors",
        "exports/torch_split_spec.py",
    ] {
        assert!(out.join(file).is_file(), "{file}");
    }
    // The page knows what each block takes.
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("<th class=\"n\">Time<th>Stage") && !page.contains("no predicted times"));
    let (plan, simulated) = (&answer["plan"], &answer["simulated"]);
    let seconds = |value: &Value| value.as_f64().unwrap();
    let off = seconds(&plan["step_seconds"]) / seconds(&simulated["step_seconds"]) - 1.0;
    assert!(off.abs() < 0.01, "planned and simulated differ by {off}");
    assert!(seconds(&plan["lower_bound_seconds"]) <= seconds(&plan["step_seconds"]));
    for by_hand in answer["by_hand"].as_array().unwrap() {
        let Some(step) = by_hand["step_seconds"].as_f64() else { continue };
        assert!(step * 1.0001 >= seconds(&plan["step_seconds"]), "{by_hand} beats the plan");
    }
}

#[test]
fn a_folder_in_use_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("mine"), "precious").unwrap();
    let mut run = command();
    let run = run.arg("split").arg(fixture("traces/cnn_basic.pt")).args(["--devices", "2xt4", "-o"]);
    let run = run.arg(folder.path()).assert().code(2);
    let message = String::from_utf8(run.get_output().stderr.clone()).unwrap();
    assert!(message.contains("is not empty"), "{message}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_dry_run_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = command();
    let run = run.arg("split").arg(fixture("traces/gpt2_tiny.pt")).args(["--devices", "4xh100"]);
    run.arg("--dry-run").current_dir(folder.path()).assert().success();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn an_unknown_device_is_named() {
    let mut run = command();
    let run = run.arg("split").arg(fixture("traces/cnn_basic.pt")).args(["--devices", "4xh10", "--dry-run"]);
    let run = run.assert().code(2);
    let message = String::from_utf8(run.get_output().stderr.clone()).unwrap();
    assert!(message.contains("h10"), "{message}");
}

#[cfg(feature = "torch")]
#[test]
fn stages_give_what_the_whole_model_gives() {
    for model in
        ["unet_small", "gpt2_tiny", "cnn_basic", "bert_tiny", "lstm_seq2seq_small", "amoebanet_6_small"]
    {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        split(&format!("traces/{model}.pt"), &out, &TWO_STAGES);
        let run = command().arg("verify").arg(&out).args(["--format", "json"]).assert().success();
        let answer: Value = serde_json::from_slice(&run.get_output().stdout).unwrap();
        assert_eq!(answer["ok"], true, "{model}");
        assert_eq!(answer["outputs_max_difference"], 0.0, "{model}");
        assert_eq!(answer["steps"], 10, "{model}");
        assert!(answer["gradients_compared"].as_u64().unwrap() > 0, "{model}");
    }
}

#[cfg(feature = "torch")]
#[test]
fn another_model_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    split("traces/unet_small.pt", &out, &TWO_STAGES);
    let run = command().arg("verify").arg(&out).arg("--model").arg(fixture("traces/cnn_basic.pt")).assert();
    let message = String::from_utf8(run.code(2).get_output().stderr.clone()).unwrap();
    assert!(message.contains("is not the model the stages were cut from"), "{message}");
}

#[cfg(feature = "torch")]
#[test]
fn changed_weights_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    split("traces/cnn_basic.pt", &out, &TWO_STAGES);
    // One weight of the last stage gets another value: flip a byte inside its largest record.
    let path = out.join("stages/stage_1.pt");
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x40;
    std::fs::write(&path, bytes).unwrap();
    let run = command().arg("verify").arg(&out).assert().failure();
    assert!(matches!(run.get_output().status.code(), Some(1 | 2)));
}

#[cfg(feature = "torch")]
#[test]
fn schedules_do_not_change_the_losses() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    split("traces/unet_small.pt", &out, &TWO_STAGES);
    let losses = |schedule: &str| -> Vec<f64> {
        let timeline = folder.path().join("timeline.json");
        let mut run = command();
        run.arg("run").arg(&out).args(["--schedule", schedule, "--micro-batches", "4", "--steps", "3"]);
        let run = run.args(["--format", "json", "--timeline"]).arg(&timeline).assert().success();
        let answer: Value = serde_json::from_slice(&run.get_output().stdout).unwrap();
        assert!(answer["step_seconds"].as_f64().unwrap() > 0.0);
        let timeline: Value = serde_json::from_slice(&std::fs::read(&timeline).unwrap()).unwrap();
        assert_eq!(timeline["tracks"].as_array().unwrap().len(), 2);
        answer["losses"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect()
    };
    let expected = losses("gpipe");
    assert_eq!(expected.len(), 3);
    assert!(expected[2] < expected[0], "{expected:?}");
    for schedule in ["1f1b", "interleaved-zero-bubble"] {
        for (ours, expected) in losses(schedule).iter().zip(&expected) {
            assert!((ours / expected - 1.0).abs() < 1e-5, "{schedule}: {ours} {expected}");
        }
    }
}
