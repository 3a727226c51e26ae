//! Whose times a command believes: the user's cost model, the one that ships, or the data sheet.

use std::path::PathBuf;

use assert_cmd::Command;

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_model-analyze"));
    let done = command.args(arguments).output().expect("ran");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (done.status.code(), text(&done.stdout), text(&done.stderr))
}

fn fixture(name: &str) -> String {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name).display().to_string()
}

fn json(arguments: &[&str]) -> serde_json::Value {
    let (code, shown, error) = run(&[arguments, &["--format", "json"]].concat());
    assert_eq!(code, Some(0), "{error}");
    serde_json::from_str(&shown).expect("JSON")
}

#[test]
fn a_profiled_device_has_curves_and_another_its_data_sheet() {
    let unet = fixture("fixtures/traces/unet_small.pt");
    let plan = json(&["plan", &unet, "--devices", "2xcpu"]);
    assert_eq!(plan["times"]["cost_model"], "CPU-EPYC-ZEN4-1T, fitted to cpu-epyc-1-thread.csv");
    assert!(plan["times"]["shares"]["curve"].as_f64().expect("a share") > 0.8, "{}", plan["times"]);
    let plan = json(&["plan", &unet, "--devices", "2xrtx4090"]);
    assert_eq!(plan["times"]["cost_model"], "data sheet of RTX-4090");
    assert_eq!(plan["times"]["shares"]["host"], 1.0, "{}", plan["times"]);
    // What the host takes is not computing.
    assert_eq!(plan["stages"][0]["bound_by"], "host");
    // Convolutions of 3 × 3 in float32 have rows of V100, which the card with NVLink borrows.
    let large = ["inspect", &unet, "--input", "256x3x32x32", "--device", "v100"];
    let inspected = json(&large);
    let said = inspected["times"]["cost_model"].as_str().expect("a text");
    assert!(said.starts_with("V100-SXM2-32GB, fitted to measurements of sitar-lab/NeuSight"), "{said}");
    let shares = &inspected["times"]["shares"];
    let share = |name: &str| shares[name].as_f64().unwrap_or(0.0);
    assert!(share("curve") + share("scaled-curve") > 0.5, "{shares}");
}

#[test]
fn products_in_tf32_are_asked_for_and_said() {
    let unet = fixture("fixtures/traces/unet_small.pt");
    let said = |device: &str| {
        let (_, shown, error) = run(&["inspect", &unet, "--device", device, "--tf32", "--depth", "0"]);
        (shown.contains(", products in TF32"), error.contains("has no TF32"))
    };
    assert_eq!((said("a100"), said("v100")), ((true, false), (false, true)));
    // A page of the plan believes the same times.
    let folder = tempfile::tempdir().expect("a folder");
    let [plan, page] = ["plan.yaml", "page.html"].map(|name| folder.path().join(name).display().to_string());
    let (code, _, error) = run(&["plan", &unet, "--devices", "2xa100", "--tf32", "-o", &plan]);
    assert_eq!(code, Some(0), "{error}");
    let (code, _, error) = run(&["report", &unet, &plan, "-o", &page]);
    assert_eq!(code, Some(0), "{error}");
    assert!(!error.contains("believes"), "{error}");
    // What train.py computes otherwise is said where it is written.
    let out = folder.path().join("out").display().to_string();
    let (code, said, error) = run(&["emit", &unet, &plan, "-o", &out]);
    let all = format!("{said}{error}");
    assert!(code == Some(0) && all.contains("train.py cannot run products in TF32 yet"), "{all}");
}

#[test]
fn layers_in_float8_are_asked_for_and_said() {
    let llama = fixture("fixtures/large/llama-3.2-3b.pt");
    let asked = |device: &str, rounding: &[&str]| {
        let usual = ["inspect", &llama, "--device", device, "--input", "4x4096:int64", "--depth", "0"];
        let (code, shown, error) = run(&[&usual, rounding, &["--format", "json"]].concat());
        assert_eq!(code, Some(0), "{error}");
        let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        (shown["blocks"][0]["forward_seconds"].as_f64().expect("a time"), shown.to_string(), error)
    };
    let (plain, ..) = asked("h100", &[]);
    let (rounded, shown, _) = asked("h100", &["--fp8"]);
    assert!(shown.contains(", linear layers in float8"), "{shown}");
    assert!((1.1..2.0).contains(&(plain / rounded)), "{plain} {rounded}");
    // Nothing of a model in float32 is rounded, which is said, and not what was asked for.
    let unet = fixture("fixtures/traces/unet_small.pt");
    let (_, shown, error) = run(&["inspect", &unet, "--device", "h100", "--fp8", "--depth", "0"]);
    assert!(error.contains("no layer runs in float8") && !shown.contains("float8"), "{shown}{error}");
    let [(before, ..), (after, _, error)] = [&[][..], &["--fp8"]].map(|how| asked("a100", how));
    assert!(before == after && error.contains("A100-SXM4-80GB has no float8"), "{error}");
    let (code, _, error) = run(&["inspect", &llama, "--device", "h100", "--fp8", "--tf32"]);
    assert!(code == Some(2) && error.contains("cannot be used with"), "{error}");
    // A plan keeps it, and says that train.py does not do it.
    let planned = json(&["plan", &llama, "--input", "1x2048:int64", "--devices", "2xh100", "--fp8"]);
    assert!(planned["times"]["cost_model"].as_str().expect("words").ends_with("float8"), "{planned}");
}

#[test]
fn a_users_cost_model_comes_first() {
    let unet = fixture("fixtures/traces/unet_small.pt");
    let shipped = fixture("cost-model/src/shipped/cpu-epyc-zen4-1t.yaml");
    let folder = tempfile::tempdir().expect("a folder");
    let own = folder.path().join("own.yaml").display().to_string();
    let text = std::fs::read_to_string(&shipped).expect("a model");
    std::fs::write(&own, text.replace("cpu-epyc-1-thread.csv", "mine.csv")).expect("written");
    let said = "CPU-EPYC-ZEN4-1T, fitted to mine.csv";
    assert_eq!(
        json(&["plan", &unet, "--devices", "2xcpu", "--cost-model", &own])["times"]["cost_model"],
        said
    );
    assert_eq!(json(&["inspect", &unet, "--cost-model", &own])["times"]["cost_model"], said);
    let split = run(&["split", &unet, "--devices", "2xcpu", "--cost-model", &own, "--dry-run"]);
    assert!(split.1.contains(said), "{split:?}");
    // Of whichever processor it is, it is of those that are called `cpu`.
    let xeon = fixture("cost-model/src/shipped/cpu-xeon-amx-1t.yaml");
    let found =
        json(&["plan", &unet, "--devices", "2xcpu", "--cost-model", &xeon])["times"]["cost_model"].clone();
    assert!(found.as_str().is_some_and(|model| model.starts_with("CPU-XEON-AMX-1T")), "{found}");
    // One of a device that the cluster lacks would be passed over in silence.
    let (code, _, error) = run(&["plan", &unet, "--devices", "2xt4", "--cost-model", &own]);
    assert_eq!(code, Some(2));
    assert!(
        error.contains("the cost model is for CPU-EPYC-ZEN4-1T, the cluster's devices are T4"),
        "{error}"
    );
    let (code, _, error) = run(&["inspect", &unet, "--device", "h100", "--cost-model", &own]);
    assert_eq!(code, Some(2));
    assert!(error.contains("not for H100-SXM5-80GB"), "{error}");
    let (code, _, error) = run(&["inspect", &unet, "--cost-model", &unet]);
    assert_eq!(code, Some(2), "{error}");
}

#[test]
fn blocks_have_times_with_bands_that_follow_the_batch() {
    let unet = fixture("fixtures/traces/unet_small.pt");
    let report = json(&["inspect", &unet, "--device", "cpu"]);
    let root = &report["blocks"][0];
    let number = |value: &serde_json::Value| value.as_f64().expect("a number");
    let seconds = number(&root["forward_seconds"]);
    assert!(seconds > 0.0 && number(&root["backward_seconds"]) > seconds, "{root}");
    let band = &root["time"]["forward"];
    assert!(number(&band["p10"]) < seconds && seconds < number(&band["p90"]), "{root}");
    let parts = ["input_gradient_seconds", "weight_gradient_seconds"];
    let sum: f64 = parts.iter().map(|part| number(&root["time"][part])).sum();
    assert!((sum / number(&root["backward_seconds"]) - 1.0).abs() < 1e-9, "{root}");
    // Without a device there are none.
    assert!(json(&["inspect", &unet])["blocks"][0].get("forward_seconds").is_none());
}
