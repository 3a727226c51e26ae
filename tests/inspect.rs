//! `inspect` on the committed traces: the same numbers as PyTorch's, from `fixtures/expected`.
#![allow(clippy::print_stdout)]

use std::{collections::HashMap, path::Path, process::Command};

use serde_json::Value;

mod needs;

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

/// Holds what `inspect` says of an archive against what it says of the IR text with the archive's sizes.
fn agree(archive: &str, text: &str) {
    let (of_archive, of_text) = (inspect(&[archive]), inspect(&[text, "--parameters", archive]));
    let alone = inspect(&[text]);
    for key in [
        "parameters",
        "buffers",
        "parameter_bytes",
        "flops",
        "fused_flops",
        "backward_flops",
        "activation_bytes",
    ] {
        assert_eq!(of_archive["totals"][key], of_text["totals"][key], "{archive}: {key}");
        // What the text alone does not determine is null, never a smaller number.
        let (known, all) = (&alone["totals"][key], &of_archive["totals"][key]);
        let is_known = match key {
            // No operator of the text reads what counts the batches of a normalisation.
            "buffers" => known.as_u64() <= all.as_u64(),
            // The text alone may keep more, never less.
            "activation_bytes" => known.as_u64() >= all.as_u64(),
            _ => known == all,
        };
        assert!(known.is_null() || is_known, "{archive}: {key} is {known} by the text alone, not {all}");
    }
    assert_eq!(of_text["disagreements"], Value::Array(vec![]), "{archive}");
    let calls = |report: &Value| -> HashMap<String, Value> {
        let blocks = report["blocks"].as_array().expect("a list").iter().filter(|b| b["operators"] != 0);
        blocks.map(|b| (b["path"].as_str().expect("text").to_string(), b.clone())).collect()
    };
    let (of_archive, of_text, alone) = (calls(&of_archive), calls(&of_text), calls(&alone));
    assert_eq!(of_archive.len(), of_text.len(), "{archive}");
    for (path, block) in &of_archive {
        for key in ["kind", "output_shape", "parameters", "flops", "fused_flops", "backward_flops"] {
            // The text names no class of a module whose code fetches nothing.
            if key != "kind" || of_text[path][key] != "" {
                assert_eq!(block[key], of_text[path][key], "{archive}: {key} of {path}");
            }
            let known = &alone[path][key];
            assert!(
                known.is_null() || known == "" || known == &block[key],
                "{archive}: {key} of {path} is {known} by the text"
            );
        }
    }
}

#[test]
fn archive_and_ir_text_agree_on_every_call() {
    for name in ["cnn_basic", "unet_small", "gpt2_tiny", "lstm_seq2seq_small"] {
        agree(&fixture(&format!("traces/{name}.pt")), &fixture(&format!("ir/{name}.inlined.txt")));
    }
}

#[test]
fn archive_and_ir_text_agree_on_the_zoo() {
    let zoo = Path::new(env!("CARGO_MANIFEST_DIR")).join("out/zoo");
    let Ok(entries) = std::fs::read_dir(&zoo) else {
        needs::skip(needs::Need::Zoo);
        return;
    };
    for archive in entries.map(|entry| entry.expect("a file").path()) {
        let text = archive.with_extension("inlined.txt");
        if archive.extension().is_some_and(|ending| ending == "pt") && text.exists() {
            agree(&archive.display().to_string(), &text.display().to_string());
        }
    }
}

/// A linear layer by hand, whose weight can be read off nothing.
const BY_HAND: &str = "graph(%self : __torch__.M,
      %x : Float(2, 84, strides=[84, 1], requires_grad=0, device=cpu)):
  %w : Tensor = prim::GetAttr[name=\"weight\"](%self)
  %b : Tensor = prim::GetAttr[name=\"bias\"](%self)
  %one : int = prim::Constant[value=1]()
  %t : Tensor = aten::t(%w)
  %y : Float(2, 10, strides=[10, 1], requires_grad=1, device=cpu) = aten::matmul(%x, %t)
  %z : Float(2, 10, strides=[10, 1], requires_grad=1, device=cpu) = aten::add(%y, %b, %one)
  return (%z)
";

#[test]
fn sizes_that_a_text_lacks_are_unknown_until_a_file_says_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let model = place("model.txt", BY_HAND);
    let output = model_analyze(&["inspect", &model]).success().get_output().stdout.clone();
    insta::assert_snapshot!("unknown_sizes", String::from_utf8(output).expect("UTF-8"));
    let totals = |sizes: &str| inspect(&[&model, "--parameters", sizes])["totals"].clone();
    let alone = &inspect(&[&model])["totals"];
    assert!(alone["parameters"].is_null() && alone["flops"].is_null() && alone["parameter_bytes"].is_null());
    assert_eq!(alone["tensors_of_unknown_size"], 2);
    let sizes = place("sizes.json", r#"{"weight": [10, 84], "bias": [10]}"#);
    for sizes in [sizes, fixture("wrong/state_dict.pt")] {
        let totals = totals(&sizes);
        assert_eq!(totals["parameters"], 850);
        assert_eq!(totals["flops"], 2 * 2 * 84 * 10);
        assert_eq!(totals["tensors_of_unknown_size"], 0);
    }
    let refused = |sizes: &str| {
        let output =
            model_analyze(&["inspect", &model, "--parameters", sizes]).code(2).get_output().stderr.clone();
        let folder = format!("{}/", folder.path().display());
        String::from_utf8(output).expect("UTF-8").replace(&folder, "")
    };
    insta::assert_snapshot!(
        "sizes_of_another_model",
        refused(&place("other.json", r#"{"fc.weight": [10, 84]}"#))
    );
    insta::assert_snapshot!("sizes_that_are_none", refused(&place("odd.json", r#"{"weight": "10x84"}"#)));
    insta::assert_snapshot!(
        "sizes_that_do_not_fit",
        refused(&place("wide.json", r#"{"weight": [10, 85], "bias": [10]}"#))
    );
    insta::assert_snapshot!("sizes_in_no_known_file", refused(&place("sizes.txt", "weight 10x84")));
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

#[test]
fn sizes_that_depend_on_values_are_explained() {
    let text = "graph(%self : __torch__.M, %x : Float(4, 6, strides=[6, 1], requires_grad=0, device=cpu)):\n  \
                %n : Tensor = aten::nonzero(%x)\n  return (%n)\n";
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.txt");
    std::fs::write(&path, text).expect("written");
    let report = inspect(&[&path.display().to_string()]);
    let expected = "sizes after aten::nonzero ×1 depend on the values of tensors (first in (root)); \
                    `model-analyze trace` records those of its example inputs";
    assert_eq!(report["notes"], serde_json::json!([expected]));
}

#[test]
fn memory_of_a_step_is_told_by_part() {
    let gpt2 = fixture("traces/gpt2_tiny.pt");
    let asked = ["inspect", &gpt2, "--depth", "0", "--memory", "--device", "v100", "--optimizer", "adam"];
    let output = model_analyze(&asked).success().get_output().stdout.clone();
    insta::assert_snapshot!(String::from_utf8(output).expect("UTF-8"));
}

#[test]
fn the_largest_batch_fits_and_the_next_does_not() {
    let cnn = fixture("traces/cnn_basic.pt");
    let memory = |input: &str| {
        let asked = [&cnn, "--memory", "--device", "a100", "--input", input];
        inspect(&asked.map(|argument| argument))["memory"].clone()
    };
    let first = memory("4x3x32x32");
    let parts = first["parts"].as_array().expect("a list").iter();
    assert_eq!(parts.map(|part| part["bytes"].as_u64().expect("bytes")).sum::<u64>(), first["bytes"]);
    let safe = first["largest_batch"]["safe"].as_u64().expect("a number");
    assert!(safe > 4);
    let verdict = |batch: u64| memory(&format!("{batch}x3x32x32"))["verdict"].clone();
    assert_eq!((verdict(safe), verdict(safe + 1)), ("fits".into(), "tight".into()));
    let most = first["largest_batch"]["most"].as_u64().expect("a number");
    assert_eq!(verdict(most + 1), "does not fit");
    // Sizes that a trace has written into it are not searched.
    assert!(first.get("longest_sequence").is_none());
}

/// A table of 16 positions: a GPU has room for longer sequences, the model has not.
#[test]
fn sequences_end_where_the_table_of_positions_does() {
    let gpt2 = fixture("traces/gpt2_tiny.pt");
    for positions in ["2x2", "2x12", "2x16"] {
        let input = format!("{positions}:int64");
        let memory = &inspect(&[&gpt2, "--memory", "--device", "t4", "--input", &input])["memory"];
        let found = &memory["longest_sequence"];
        assert_eq!((&found["safe"], &found["most"]), (&16.into(), &16.into()), "{positions}: {memory}");
    }
    let beyond = model_analyze(&["inspect", &gpt2, "--input", "2x17:int64"]).code(2);
    let said = String::from_utf8_lossy(&beyond.get_output().stderr).into_owned();
    assert!(said.contains("in `transformer.wpe` rejects its inputs: row 16 is looked up"), "{said}");
}

#[test]
fn sharing_out_and_narrow_states_change_their_parts_alone() {
    let gpt2 = fixture("traces/gpt2_tiny.pt");
    let part = |more: &[&str], name: &str| {
        let memory = inspect(&[&[gpt2.as_str(), "--memory"], more].concat())["memory"].clone();
        let parts = memory["parts"].as_array().expect("a list").clone();
        parts.iter().find(|part| part["name"] == name).map(|part| part["bytes"].as_u64().expect("bytes"))
    };
    let parameters = part(&[], "parameters").expect("it has some");
    assert_eq!(part(&[], "optimizer"), Some(2 * parameters));
    assert_eq!(part(&["--optimizer", "sgd"], "optimizer"), None);
    let shared = ["--devices", "4xa100", "--sharding", "zero3"];
    assert_eq!(part(&shared, "parameters"), Some(parameters / 4));
    assert_eq!(part(&shared, "optimizer"), Some(parameters / 2));
    assert_eq!(part(&["--devices", "4xa100"], "buckets of gradients"), Some(parameters));
}

#[test]
fn what_is_recomputed_is_chosen_beside_gradients_that_are_shared_out() {
    let llama = fixture("large/llama-3.2-3b.pt");
    let asked = ["--memory", "--devices", "64xh100", "--sharding", "zero3", "--recompute", "--loss", "none"];
    let answer = inspect(&[&[llama.as_str(), "--input", "1x512:int64"][..], &asked].concat());
    let parts = answer["memory"]["parts"].as_array().expect("a step has parts");
    let saved = parts.iter().find(|part| part["name"] == "saved activations");
    let saved = saved.map_or(0, |part| part["bytes"].as_u64().expect("bytes are whole"));
    // The operands of 28 layers, and one layer's activations.
    assert!(saved < 28 * 512 * 3072 * 2 + (128 << 20), "{saved}");
}
