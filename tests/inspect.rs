//! `inspect` on the committed traces: the same numbers as PyTorch's, from `fixtures/expected`.

use std::{collections::HashMap, path::Path, process::Command};

use serde_json::Value;

const MODELS: [&str; 7] = [
    "amoebanet_6_small",
    "bert_tiny",
    "cnn_basic",
    "cnn_dropout",
    "gpt2_tiny",
    "lstm_seq2seq_small",
    "unet_small",
];

fn fixture(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name).display().to_string()
}

fn model_analyze(arguments: &[&str]) -> assert_cmd::assert::Assert {
    let mut command = Command::new(env!("CARGO_BIN_EXE_model-analyze"));
    command.args(arguments).env("NO_COLOR", "1");
    assert_cmd::Command::from_std(command).assert()
}

fn inspect(arguments: &[&str]) -> Value {
    let arguments = [&["inspect", "--format", "json"], arguments].concat();
    let output = model_analyze(&arguments).success().get_output().stdout.clone();
    serde_json::from_slice(&output).expect("one JSON document")
}

fn expected(name: &str) -> Value {
    let text = std::fs::read_to_string(fixture(&format!("expected/{name}.json"))).expect("committed");
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn totals_are_those_of_pytorch() {
    for name in MODELS {
        let (ours, torch) = (inspect(&[&fixture(&format!("traces/{name}.pt"))]), expected(name));
        let totals = &ours["totals"];
        assert_eq!(totals["parameters"], torch["parameters"], "{name}");
        assert_eq!(totals["flops"], torch["flops_by_cpu_counter"], "{name}");
        let flops = |key: &str| totals[key].as_u64().expect("a number");
        assert_eq!(Some(flops("flops") + flops("fused_flops")), torch["flops"].as_u64(), "{name}");
        assert_eq!(totals["backward_flops"], torch["backward_flops"], "{name}");
        assert_eq!(totals["unknown_operators"], 0, "{name}");
        assert_eq!(ours["disagreements"], Value::Array(vec![]), "{name}");
        assert_eq!(ours["schema_version"], 1);
    }
}

#[test]
fn every_call_has_the_shape_of_the_eager_model() {
    for name in MODELS {
        let (ours, torch) = (inspect(&[&fixture(&format!("traces/{name}.pt"))]), expected(name));
        let calls: HashMap<&str, &Value> = torch["calls"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|c| (c["path"].as_str().expect("text"), &c["shapes"]))
            .collect();
        let mut checked = 0;
        for block in ours["blocks"].as_array().expect("a list") {
            let path = block["path"].as_str().expect("text");
            if path.is_empty() || block["operators"] == 0 {
                continue;
            }
            let shapes = calls.get(path).unwrap_or_else(|| panic!("{name} has no call {path}"));
            assert!(shapes.as_array().expect("a list").contains(&block["output_shape"]), "{name}: {path}");
            checked += 1;
        }
        assert!(checked > 3, "{name}");
    }
}

#[test]
fn kept_memory_is_what_autograd_keeps() {
    for name in MODELS {
        let (ours, torch) = (inspect(&[&fixture(&format!("traces/{name}.pt"))]), expected(name));
        let of = |value: &Value| value.as_f64().expect("a number");
        let ratio = of(&ours["totals"]["activation_bytes"]) / of(&torch["saved_bytes"]);
        assert!((0.999..1.001).contains(&ratio), "{name}: {ratio}");
    }
}

#[test]
fn another_batch_is_inferred() {
    let path = fixture("traces/unet_small.pt");
    let (one, four) = (inspect(&[&path]), inspect(&[&path, "--input", "4x3x32x32"]));
    let flops = |report: &Value| report["totals"]["flops"].as_u64().expect("a number");
    assert_eq!(4 * flops(&one), flops(&four));
    let path = fixture("traces/gpt2_tiny.pt");
    let longer = inspect(&[&path, "--input", "input_ids=3x9:int64"]);
    assert_eq!(longer["blocks"][0]["output_shape"], serde_json::json!([3, 9, 64]));
}

#[test]
fn archive_and_ir_text_agree_on_every_call() {
    for name in ["cnn_basic", "unet_small", "gpt2_tiny", "lstm_seq2seq_small"] {
        let archive = inspect(&[&fixture(&format!("traces/{name}.pt"))]);
        let text = inspect(&[&fixture(&format!("ir/{name}.inlined.txt"))]);
        let calls = |report: &Value| -> HashMap<String, Value> {
            let blocks =
                report["blocks"].as_array().expect("a list").iter().filter(|block| block["operators"] != 0);
            blocks
                .map(|b| (b["path"].as_str().expect("text").to_string(), b["output_shape"].clone()))
                .collect()
        };
        let (archive, text) = (calls(&archive), calls(&text));
        for (path, shape) in &text {
            // An inlined graph keeps the scope of the innermost call only where operators stand in it.
            if let Some(known) = archive.get(path).filter(|_| !path.is_empty()) {
                assert_eq!(known, shape, "{name}: {path}");
            }
        }
        assert!(text.keys().filter(|path| archive.contains_key(*path)).count() > 3, "{name}");
    }
}

#[test]
fn the_table_folds_equal_siblings() {
    let output =
        model_analyze(&["inspect", &fixture("traces/gpt2_tiny.pt")]).success().get_output().stdout.clone();
    insta::assert_snapshot!(String::from_utf8(output).expect("UTF-8"));
}

#[test]
fn an_archive_without_shapes_says_how_to_give_them() {
    let text = "graph(%self : __torch__.M, %x : Tensor, %mask : Tensor):\n  %2 : Tensor = aten::mul(%x, %mask)\n  return (%2)\n";
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.txt");
    std::fs::write(&path, text).expect("written");
    let path = path.display().to_string();
    let output = model_analyze(&["inspect", &path]).code(2).get_output().stderr.clone();
    insta::assert_snapshot!(String::from_utf8(output).expect("UTF-8").replace(&path, "MODEL"));
    let report = inspect(&[&path, "--input", "2x3", "--input", "mask=3"]);
    assert_eq!(report["blocks"][0]["output_shape"], serde_json::json!([2, 3]));
}
