//! What `plan` looks through beside cuts, and what it counts: sharing among replicas, memory that is kept clear, the loss, how large a
//! step is. As a user meets them.

use assert_cmd::Command;
use serde_json::Value;

const UNET: &str = "fixtures/traces/unet_small.pt";
const GPT2: &str = "fixtures/traces/gpt2_tiny.pt";

fn run(arguments: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_model-analyze"));
    command.current_dir(env!("CARGO_MANIFEST_DIR")).env("NO_COLOR", "1").args(arguments);
    command.output().expect("the command starts")
}

fn plan(arguments: &[&str]) -> Value {
    let output = run(&[&["plan"], arguments, &["--format", "json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("standard output is one JSON document")
}

fn fails(arguments: &[&str], code: i32, expected: &str) {
    let output = run(&[&["plan"], arguments].concat());
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(text.contains(expected), "`{expected}` is not in:\n{text}");
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

/// Bytes of one use at the peak of the first stage.
fn part(answer: &Value, name: &str) -> f64 {
    let parts = answer["stages"][0]["memory_parts"].as_array().expect("parts of the memory");
    let found = parts.iter().find(|part| part["name"] == name);
    found.map_or(0.0, |part| number(&part["bytes"]))
}

#[test]
fn replicas_hold_their_share() {
    let at = |level: &str| {
        plan(&[UNET, "--devices", "4xt4", "--micro-batches", "8", "--strategy", "ddp", "--sharding", level])
    };
    let [none, zero1, zero2, zero3] = ["none", "zero1", "2", "zero-3"].map(at);
    assert!(none["sharding"].is_null() && zero1["sharding"] == "zero1" && zero3["sharding"] == "zero3");
    let is_quarter = |own: f64, whole: f64| (4.0 * own / whole - 1.0).abs() < 0.01;
    for (answer, shared) in [(&zero1, 1), (&zero2, 2), (&zero3, 3)] {
        for (index, name) in ["optimizer", "gradients", "parameters"].iter().enumerate() {
            let (own, whole) = (part(answer, name), part(&none, name));
            let is_right = if index < shared { is_quarter(own, whole) } else { own == whole };
            assert!(is_right, "{shared}, {name}: {own} of {whole}");
        }
    }
    // The sums of each micro-batch may hide behind the next; they gain nothing.
    assert!(number(&zero2["step_seconds"]) >= number(&zero1["step_seconds"]));
    assert_eq!(plan(&[UNET, "--devices", "4xt4", "--micro-batches", "8", "--strategy", "FSDP"]), zero3);
    fails(&[UNET, "--devices", "4xt4", "--strategy", "fsdp", "--sharding", "zero1"], 2, "fsdp implies zero3");
    fails(&[UNET, "--devices", "4xt4", "--sharding", "zero9"], 2, "levels are none, zero1, zero2, zero3");
}

/// Two nodes of four devices, joined slowly.
fn nodes(folder: &tempfile::TempDir, memory: u64) -> String {
    let path = folder.path().join("nodes.yaml");
    let text = format!(
        "kind: cluster\nversion: 1\ntypes:\n  lab: {{memory: {memory}, memory_bandwidth: 1.5e+12, peak: {{float32: 1.9e+13}}}}\n\
         devices: [{{type: lab, count: 4, nodes: 2}}]\n\
         levels: [{{name: nvlink, bandwidth: 2.0e+11, latency: 2.0e-6}}, {{name: ethernet, bandwidth: 2.0e+7, latency: 2.0e-5}}]\n"
    );
    std::fs::write(&path, text).expect("a temporary file can be written");
    path.display().to_string()
}

#[test]
fn a_plan_with_shares_is_scored_as_it_was_planned() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let cluster = nodes(&folder, 1 << 30);
    let file = folder.path().join("plan.yaml").display().to_string();
    for level in ["zero1", "zero2", "zero3"] {
        let asked =
            [UNET, "--cluster", &cluster, "--micro-batches", "16", "--strategy", "ddp", "--sharding", level];
        let planned = plan(&[&asked[..], &["-o", &file]].concat());
        let checked = plan(&[UNET, "--cluster", &cluster, "--check", &file]);
        let (one, other) = (number(&planned["step_seconds"]), number(&checked["step_seconds"]));
        assert!((one / other - 1.0).abs() < 1e-6, "{level}: {one}, {other} by --check");
        assert_eq!(planned["sharding"], checked["sharding"]);
        // Little goes between nodes: sharing inside them is faster.
        if level == "zero3" {
            assert_eq!(planned["sharding"], "zero3 in groups of 4");
        }
    }
}

#[test]
fn what_no_tensor_gets_is_kept_clear() {
    let stage = |more: &[&str]| {
        let answer = plan(&[&[UNET, "--devices", "2xt4"], more].concat());
        (number(&answer["stages"][0]["memory_usable"]), number(&answer["stages"][0]["memory_limit"]))
    };
    let (usable, limit) = stage(&[]);
    assert!((usable / limit - 0.9).abs() < 1e-6);
    assert_eq!(stage(&["--memory-fraction", "1"]), (limit, limit));
    // In addition to what the device type leaves.
    assert_eq!(stage(&["--reserve", "1GiB"]), (usable - f64::from(1 << 30), limit));
    let all = ["--memory-fraction", "1", "--reserve", "1GiB"];
    assert_eq!(stage(&all), (limit - f64::from(1 << 30), limit));
    let (both, _) = stage(&["--memory-fraction", "0.5", "--reserve", "512 MiB"]);
    assert!((both - (0.5 * limit - f64::from(512 << 20))).abs() < 2.0);
    fails(&[UNET, "--devices", "2xt4", "--memory-fraction", "1.5"], 2, "above 0 and at most 1");
    fails(&[UNET, "--devices", "2xt4", "--reserve", "1TiB"], 2, "nothing is left for tensors");
    fails(&[UNET, "--devices", "2xt4", "--reserve", "much"], 2, "`much` is not a size");
}

#[test]
fn memory_that_is_kept_clear_is_not_planned_with() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let one = |memory: u64, more: &[&str]| {
        let cluster = nodes(&folder, memory);
        let asked = [
            UNET,
            "--cluster",
            &cluster,
            "--strategy",
            "one-device",
            "--no-recompute",
            "--micro-batches",
            "1",
        ];
        run(&[&["plan"], &asked[..], more].concat()).status.code()
    };
    let peak = plan(&[UNET, "--devices", "1xt4", "--strategy", "one-device", "--micro-batches", "1"]);
    let needed = number(&peak["memory_bytes"]) as u64 + 4096;
    assert_eq!(one(needed, &[]), Some(0));
    assert_eq!(one(needed, &["--memory-fraction", "0.9"]), Some(1));
    assert_eq!(one(needed * 10 / 9 + 4096, &["--memory-fraction", "0.9"]), Some(0));
}

#[test]
fn the_loss_is_part_of_the_last_stage() {
    let with = |loss: &[&str]| {
        plan(
            &[&[GPT2, "--devices", "1xt4", "--strategy", "one-device", "--micro-batches", "1"], loss]
                .concat(),
        )
    };
    let (none, words) = (with(&["--loss", "none"]), with(&["--loss", "cross-entropy"]));
    assert!(none["loss"].is_null());
    let what = words["loss"]["what"].as_str().expect("which loss");
    assert!(what.starts_with("cross-entropy of ") && !what.contains("guessed"), "{what}");
    // The outputs in float32, and their logarithms.
    let inspected = run(&["inspect", GPT2, "--format", "json"]);
    let inspected: Value = serde_json::from_slice(&inspected.stdout).expect("JSON");
    let kept = part(&words, "activations") - part(&none, "activations");
    let sizes = what["cross-entropy of ".len()..].split(':').next().expect("sizes");
    let numbers: f64 = sizes.split('x').map(|size| size.parse::<f64>().expect("a size")).product();
    assert_eq!(kept, 8.0 * numbers, "{what} of {}", inspected["name"]);
    assert!(number(&words["step_seconds"]) > number(&none["step_seconds"]));
    let guessed = with(&[]);
    assert!(guessed["loss"]["what"].as_str().is_some_and(|what| what.contains("guessed from the outputs")));
}

#[test]
fn a_step_is_of_a_size_that_people_train_with() {
    let samples = |batch: &str, more: &[&str]| {
        let input = format!("{batch}x3x32x32");
        let answer =
            plan(&[&["fixtures/traces/cnn_basic.pt", "--devices", "2xt4", "--input", &input], more].concat());
        (answer["samples"].as_u64().expect("samples"), answer["step_limit"].as_str().map(str::to_string))
    };
    let (own, limit) = samples("2048", &[]);
    assert!(own <= 8192 && limit.is_some_and(|limit| limit.contains("8192 samples")), "{own}");
    assert_eq!(samples("2048", &["--batch", "65536"]), (65536, None));
    assert_eq!(samples("8", &[]).1, None, "small ones are not held back");
}

#[test]
fn rates_are_those_of_the_step() {
    let answer = plan(&[GPT2, "--devices", "2xt4", "--micro-batches", "8", "--stages", "2"]);
    let seconds = number(&answer["step_seconds"]);
    let samples = number(&answer["samples"]);
    assert!((number(&answer["samples_per_second"]) * seconds / samples - 1.0).abs() < 1e-9);
    let each = number(&answer["tokens_per_second"]) / number(&answer["samples_per_second"]);
    assert!((each - each.round()).abs() < 1e-6 && each > 1.0, "{each} tokens a sample");
    let mfu = number(&answer["mfu"]);
    assert!(mfu > 0.0 && mfu < 1.0, "{mfu}");
    let sent = &answer["stages"][0]["sends"];
    assert!(number(sent) > 0.0 && answer["stages"][1]["sends"].is_null(), "{sent}");
}

#[test]
fn names_are_known_in_any_case() {
    let name =
        |strategy: &str| plan(&[UNET, "--devices", "2xt4", "--strategy", strategy])["strategy"].clone();
    assert_eq!(name("1F1B"), "1f1b");
    assert_eq!(name("pp"), "1f1b");
    assert_eq!(name("DDP"), "data-parallel");
    assert_eq!(name("ZB-H1"), "zero-bubble");
    assert_eq!(plan(&[UNET, "--devices", "2xt4", "--optimizer", "AdamW"])["model"], "unet_small");
}

#[test]
fn what_is_kept_together_is_not_cut() {
    let cuts = |more: &[&str]| {
        let answer =
            plan(&[&[GPT2, "--devices", "2xt4", "--stages", "2", "--micro-batches", "4"], more].concat());
        let first = answer["stages"][1]["blocks"][0].as_str().expect("a block").to_string();
        (first, answer["blocks"].as_u64().expect("blocks"))
    };
    let (_, all) = cuts(&[]);
    let (border, fewer) = cuts(&["--keep-together", "GPT2Block"]);
    assert!(fewer < all, "{fewer} of {all}");
    // Between blocks, or beside them: not inside.
    assert!(
        !border.contains(".h.") || border.rsplit('.').next().is_some_and(|last| last.parse::<u32>().is_ok()),
        "{border}"
    );
    assert_eq!(cuts(&["--keep-together", "*.h.*"]).1, fewer);
    fails(&[GPT2, "--devices", "2xt4", "--keep-together", "GPT2Blok"], 2, "did you mean `GPT2Block`?");
}

#[test]
fn devices_may_be_left_out() {
    let answer = plan(&[
        UNET,
        "--devices",
        "4xt4",
        "--strategy",
        "ddp",
        "--leave-out",
        "*:2",
        "--leave-out",
        "node0:0",
    ]);
    assert_eq!(answer["stages"][0]["devices"], serde_json::json!(["node0:1", "node0:3"]));
    fails(&[UNET, "--devices", "4xt4", "--leave-out", "node7:0"], 2, "no device is called `node7:0`");
    fails(&[UNET, "--devices", "4xt4", "--leave-out", "*"], 2, "leaves no device");
}

#[test]
fn what_is_kept_clear_is_no_memory_of_a_simulation() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let file = folder.path().join("plan.yaml").display().to_string();
    let answer = plan(&[UNET, "--devices", "2xt4", "--micro-batches", "4", "-o", &file]);
    let text = std::fs::read_to_string(&file).expect("a plan");
    let simulated = |reserve: u64| {
        let line = text.lines().find(|line| line.trim_start().starts_with("reserve:")).expect("a reserve");
        std::fs::write(&file, text.replace(line.trim_start(), &format!("reserve: {reserve}")))
            .expect("written");
        let output = run(&["simulate", &file, "--format", "json"]);
        let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        !answer["out_of_memory"].as_array().is_none_or(Vec::is_empty)
    };
    let limit = number(&answer["stages"][0]["memory_limit"]) as u64;
    let held = number(&answer["memory_bytes"]) as u64;
    assert!(!simulated(limit - held - 4096) && simulated(limit - held + 4096));
}

#[test]
fn what_replicas_share_out_is_chosen_where_it_lets_them_in() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let whole = plan(&[
        GPT2,
        "--devices",
        "2xt4",
        "--micro-batches",
        "8",
        "--strategy",
        "ddp",
        "--sharding",
        "none",
        "--no-recompute",
    ]);
    let memory = number(&whole["memory_bytes"]) * 1.02;
    let cluster = folder.path().join("small.yaml").display().to_string();
    let text = format!(
        "kind: cluster\nversion: 1\ntypes:\n  small: {{memory: {memory:.0}, memory_bandwidth: 3.2e+11, peak: {{float32: 8.1e+12}}}}\n\
         devices: [{{type: small, count: 2}}]\nlevels: [{{name: pcie, bandwidth: 1.2e+10, latency: 8.0e-6}}]\n"
    );
    std::fs::write(&cluster, text).expect("a temporary file can be written");
    let chosen = plan(&[GPT2, "--cluster", &cluster, "--micro-batches", "8"]);
    let without = plan(&[GPT2, "--cluster", &cluster, "--micro-batches", "8", "--sharding", "none"]);
    assert_eq!(chosen["sharding"], "zero1");
    assert!(without["sharding"].is_null());
    assert!(number(&chosen["step_seconds"]) < 0.99 * number(&without["step_seconds"]));
}

/// Devices of this memory in nodes of as many, with slower links between nodes.
fn small(folder: &tempfile::TempDir, memory: u64, count: u32, nodes: u32) -> String {
    let path = folder.path().join("small.yaml");
    let text = format!(
        "kind: cluster\nversion: 1\ntypes:\n  small: {{memory: {memory}, memory_bandwidth: 3.2e+11, peak: {{float32: 8.0e+12}}, \
         host_bandwidth: 1.6e+10}}\ndevices:\n- {{type: small, count: {count}, nodes: {nodes}}}\nlevels:\n\
         - {{name: in, bandwidth: 1.0e+10, latency: 8.0e-6}}\n- {{name: out, bandwidth: 1.0e+9, latency: 5.0e-5}}\n"
    );
    std::fs::write(&path, text).expect("a temporary folder can be written");
    path.to_str().expect("a temporary path").to_string()
}

/// Where stages hardly fit, some blocks are opened and cuts at every operator are tried: with these sizes more memory once made steps a
/// tenth and half as long again.
#[test]
fn more_memory_makes_no_plan_slower() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (model, sizes, nodes) in
        [(UNET, &[598_359, 611_943, 625_835, 654_572, 916_628][..], 1), (GPT2, &[115_212, 138_657], 2)]
    {
        let mut least = f64::INFINITY;
        for &size in sizes {
            let cluster = small(&folder, size, 4 - u32::from(nodes == 1), nodes);
            let answer = plan(&[model, "--cluster", &cluster, "--batch", "16"]);
            let seconds = number(&answer["step_seconds"]);
            assert!(seconds <= least * 1.001, "{model} with {size} bytes: {seconds}, {least} with fewer");
            least = least.min(seconds);
        }
    }
}

/// Beyond the devices that are simulated while a plan is searched for, too.
#[test]
fn a_step_of_many_shards_is_as_long_as_simulated() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("plan.yaml");
    let file = file.to_str().expect("a temporary path");
    let asked = ["--devices", "600xt4", "--strategy", "data-parallel", "--sharding", "zero1", "-o", file];
    let planned = number(&plan(&[&["fixtures/traces/cnn_basic.pt"][..], &asked].concat())["step_seconds"]);
    let output = run(&["simulate", file, "--format", "json"]);
    let simulated: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    let simulated = number(&simulated["step_seconds"]);
    assert!((planned / simulated - 1.0).abs() < 0.05, "{planned} planned, {simulated} simulated");
}
