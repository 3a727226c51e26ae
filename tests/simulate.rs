//! `model-analyze simulate` from the outside: answers, files, and how each wrong input looks.

use std::{fs, path::Path};

use assert_cmd::Command;
use serde_json::Value;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures");

fn simulate(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_model-analyze"));
    command.current_dir(FIXTURES).arg("simulate").args(arguments);
    command
}

fn text(arguments: &[&str]) -> String {
    let output = simulate(arguments).output().expect("the command starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&text(&[arguments, &["--format", "json"]].concat())).expect("JSON")
}

fn fails(arguments: &[&str], code: i32, expected: &str) {
    let output = simulate(arguments).output().expect("the command starts");
    let shown = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{shown}");
    assert!(shown.contains(expected), "{expected:?} is not in\n{shown}");
    assert!(output.stdout.is_empty(), "nothing is printed on stdout");
}

#[test]
fn an_order_is_timed() {
    let answer = json(&["--csv", "schedules/1f1b-3x4.csv", "--cost", "10,11,7,0"]);
    assert_eq!(answer["schema_version"], 1);
    assert_eq!(answer["makespan"], (4 + 3 - 1) * 28);
    assert_eq!(answer["longest_span"], (4 + 3 - 1) * 28);
    assert_eq!(answer["busy"], serde_json::json!([112, 112, 112]));
    assert_eq!(answer["peak_activations"], serde_json::json!([3, 2, 1]));
    insta::assert_snapshot!(text(&["--csv", "schedules/1f1b-3x4.csv", "--cost", "10,11,7,0"]));
}

#[test]
fn copies_of_the_model_are_chains() {
    let chimera =
        |chain: &str| json(&["--csv", "schedules/chimera-4x4.csv", "--chain", chain, "--cost", "1,1,1,0"]);
    assert_eq!(chimera("4")["makespan"], 16);
    assert_eq!(chimera("4")["peak_activations"], serde_json::json!([3, 4, 4, 3]));
    fails(&["--csv", "schedules/chimera-4x4.csv"], 1, "add --chain 4");
    fails(
        &["--csv", "schedules/chimera-4x4.csv", "--chain", "3"],
        2,
        "not a whole number of copies of 3 stages",
    );
    // 0 is one copy.
    assert_eq!(json(&["--csv", "schedules/1f1b-3x4.csv", "--chain", "0"])["makespan"], 18);
}

#[test]
fn schedules_are_made_written_and_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let csv = folder.path().join("order.csv");
    let csv = csv.to_str().expect("UTF-8");
    let made = json(&["--schedule", "zbv", "--ranks", "4", "--micro-batches", "8", "--write-csv", csv]);
    assert_eq!(made["makespan"], 6 * 8 + 4 - 1);
    let read = json(&["--csv", csv]);
    assert_eq!(made, read);
    assert_eq!(
        text(&["--csv", csv, "--lint"]),
        "peak activations by rank: 8 8 8 8\nthe order is complete and runs\n"
    );
}

#[test]
fn a_plan_is_simulated_and_explained() {
    insta::assert_snapshot!(text(&["plans/transformer-4.yaml"]));
    insta::assert_snapshot!(text(&["plans/unet-4.yaml"]));
    let answer = json(&["plans/transformer-4.yaml"]);
    let seconds = |value: &Value| value.as_f64().expect("a number");
    let split: f64 = answer["split"].as_object().expect("parts").values().map(seconds).sum();
    assert!((split - seconds(&answer["step_seconds"])).abs() < 1e-9);
    let devices = answer["devices"].as_array().expect("devices");
    assert_eq!(devices.len(), 4);
    for device in devices {
        assert!(device["peak_memory_bytes"].as_u64().expect("bytes") > 0);
        let parts = device["parts"].as_array().expect("parts");
        let sum: u64 = parts.iter().map(|part| part["bytes"].as_u64().expect("bytes")).sum();
        assert_eq!(sum, device["peak_memory_bytes"].as_u64().expect("bytes"));
        let time: f64 = device["time_parts"].as_object().expect("parts").values().map(seconds).sum();
        assert!((time - seconds(&answer["step_seconds"])).abs() < 1e-9);
    }
    let path = answer["critical_path"].as_array().expect("a path");
    let length: f64 = path.iter().map(|step| seconds(&step["seconds"])).sum();
    assert!((length - seconds(&answer["step_seconds"])).abs() < 1e-9, "{length}");
    // The same plan gives the same bytes.
    assert_eq!(
        text(&["plans/transformer-4.yaml", "--format", "json"]),
        text(&["plans/transformer-4.yaml", "--format", "json"])
    );
}

#[test]
fn every_schedule_runs_on_a_plan() {
    for schedule in simulator::order::ALL {
        let answer = json(&[
            "plans/transformer-4.yaml",
            "--schedule",
            schedule.name(),
            "--micro-batches",
            if schedule.name() == "gems" { "2" } else { "8" },
        ]);
        assert!(answer["step_seconds"].as_f64().expect("seconds") > 0.0, "{}", schedule.name());
        let bubble = answer["bubble"].as_f64().expect("a share");
        assert!((0.0..1.0).contains(&bubble), "{}: {bubble}", schedule.name());
    }
}

#[test]
fn replicas_share_micro_batches() {
    let answer = json(&["plans/vgg-3-1.yaml"]);
    // Three replicas of the slow stage, four micro-batches each; the fast stage runs all twelve.
    let busy: Vec<f64> = answer["devices"]
        .as_array()
        .expect("devices")
        .iter()
        .map(|device| device["busy_seconds"].as_f64().expect("seconds"))
        .collect();
    assert_eq!(busy, [0.372, 0.372, 0.372, 0.3408]);
    // The steady state is the slowest stage's: each of its replicas takes a micro-batch, then all agree on gradients and
    // step. The last 7,340,032 bytes of them are sent when the backward is over: 4 hops of 8 µs, 4/3 of them at 45 GB/s;
    // the optimizer touches five times 60,817,408 bytes at 900 GB/s.
    let round = 0.093 + 4.0 * 8e-6 + 4.0 / 3.0 * 7_340_032.0 / 4.5e10 + 5.0 * 60_817_408.0 / 9e11;
    let found = answer["micro_batch_seconds"].as_f64().expect("seconds");
    assert!((found - round / 3.0).abs() < 1e-8, "{found} {}", round / 3.0);
    assert_eq!(versions(&answer), ([2, 1].map(Value::from).to_vec(), [1, 0].map(Value::from).to_vec()));
}

/// Versions of each stage's weights, and updates that its gradients miss.
fn versions(answer: &Value) -> (Vec<Value>, Vec<Value>) {
    let stages = answer["versions"].as_array().expect("stages");
    stages.iter().map(|stage| (stage["kept"].clone(), stage["staleness"].clone())).unzip()
}

/// Four stages without a flush, as in PipeDream's paper; memory of old weights, which differ by stage.
#[test]
fn weight_versions_are_counted() {
    let numbers = |numbers: [u32; 4]| numbers.map(Value::from).to_vec();
    let check = |arguments: &[&str], kept: [u32; 4], staleness: [u32; 4]| {
        assert_eq!(versions(&json(arguments)), (numbers(kept), numbers(staleness)), "{arguments:?}");
    };
    let order = ["--schedule", "pipedream", "--ranks", "4", "--micro-batches", "8"];
    check(&order, [4, 3, 2, 1], [3, 2, 1, 0]);
    check(&[&order[..], &["--vertical-sync"]].concat(), [4, 4, 4, 4], [3, 3, 3, 3]);
    check(&["--schedule", "2bw", "--ranks", "4", "--micro-batches", "8"], [2, 2, 2, 2], [1, 1, 1, 1]);
    insta::assert_snapshot!(text(&[&order[..], &["--vertical-sync"]].concat()));
    let plan = ["plans/transformer-4.yaml", "--schedule", "pipedream"];
    let vertical = [&plan[..], &["--vertical-sync"]].concat();
    check(&plan, [4, 3, 2, 1], [3, 2, 1, 0]);
    check(&vertical, [4, 4, 4, 4], [3, 3, 3, 3]);
    insta::assert_snapshot!(text(&vertical));
    let part = |device: &Value, name: &str| {
        let parts = device["parts"].as_array().expect("parts").clone();
        let part = parts.iter().find(|part| part["name"] == name).cloned();
        part.map_or(0, |part| part["bytes"].as_u64().expect("bytes"))
    };
    for (arguments, older) in [(&plan[..], [3, 2, 1, 0]), (&vertical[..], [3, 3, 3, 3])] {
        let answer = json(arguments);
        for (device, older) in answer["devices"].as_array().expect("devices").iter().zip(older) {
            let (kept, parameters) = (part(device, "weight versions"), part(device, "parameters"));
            assert_eq!(kept, older * parameters, "{arguments:?}: {}", device["name"]);
        }
    }
    // Which weights are taken is no matter of time.
    assert_eq!(json(&plan)["period_seconds"], json(&vertical)["period_seconds"]);
    fails(&["plans/transformer-4.yaml", "--vertical-sync"], 2, "vertical sync cannot be combined with 1f1b");
    let gpipe = ["--schedule", "gpipe", "--ranks", "4", "--micro-batches", "8", "--vertical-sync"];
    fails(&gpipe, 2, "every stage has one version of its weights");
    fails(
        &[&plan[..1], &["--schedule", "2bw", "--vertical-sync"]].concat(),
        2,
        "the same weights in every stage",
    );
    fails(&["--csv", "schedules/1f1b-3x4.csv", "--vertical-sync"], 2, "cannot be used with");
    fails(&["--schedule", "2bw", "--ranks", "4", "--micro-batches", "3"], 2, "use --micro-batches 4");
}

#[test]
fn timelines_are_drawn() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_string();
    let read = |name: &str| fs::read_to_string(Path::new(&path(name))).expect("a file");
    text(&["plans/transformer-4.yaml", "--timeline", &path("plan.svg")]);
    let svg = read("plan.svg");
    assert!(svg.starts_with("<svg") && svg.contains("node1:1") && svg.contains("url(#transfer)"));
    text(&["plans/unet-4.yaml", "--timeline", &path("plan.json")]);
    let trace: Value = serde_json::from_str(&read("plan.json")).expect("JSON");
    let phases = |phase: &str| {
        trace["traceEvents"].as_array().expect("events").iter().filter(|event| event["ph"] == phase).count()
    };
    assert!(phases("X") > 8 * 8 && phases("C") > 8);
    assert_eq!(phases("s"), phases("f"));
    // Perfetto wants slices of a thread that do not overlap, and flows that begin and end in one.
    let mut threads: std::collections::BTreeMap<String, Vec<(f64, f64)>> = std::collections::BTreeMap::new();
    let events = trace["traceEvents"].as_array().expect("events");
    let thread = |event: &Value| format!("{} {}", event["pid"], event["tid"]);
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let start = event["ts"].as_f64().expect("a time");
        let end = start + event["dur"].as_f64().expect("a duration");
        threads.entry(thread(event)).or_default().push((start, end));
    }
    for spans in threads.values_mut() {
        spans.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0 + 1e-6), "slices overlap");
    }
    for event in events.iter().filter(|event| event["ph"] == "s" || event["ph"] == "f") {
        let at = event["ts"].as_f64().expect("a time");
        assert!(threads[&thread(event)].iter().any(|(start, end)| *start <= at + 1e-6 && at <= *end + 1e-6));
    }
    text(&["--csv", "schedules/1f1b-3x4.csv", "--timeline", &path("order.svg")]);
    assert_eq!(read("order.svg").matches("url(#backward)").count(), 12 + 1);
    // A fused pair is neither a forward nor a backward pass.
    let pairs = ["--schedule", "dualpipe", "--ranks", "4", "--micro-batches", "8"];
    text(&[&pairs[..], &["--timeline", &path("pairs.svg")]].concat());
    assert!(read("pairs.svg").contains("url(#pair)") && read("pairs.svg").contains("forward and backward"));
    fails(&["plans/unet-4.yaml", "--timeline", "x.png"], 2, "the timeline must be an .svg or .json");
}

#[test]
fn wrong_orders_are_explained() {
    fails(
        &["--csv", "schedules/deadlock.csv"],
        1,
        "rank 0, position 1: deadlock: `0B0` waits for `1B0` of rank 1",
    );
    // The linter's findings are its answer.
    let linted =
        simulate(&["--csv", "schedules/deadlock.csv", "--lint"]).output().expect("the command starts");
    assert_eq!(linted.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&linted.stdout).starts_with("error: rank 0, position 1: deadlock"));
    let folder = tempfile::tempdir().expect("a folder");
    let check = |csv: &str, code: i32, expected: &str| {
        let path = folder.path().join("order.csv");
        fs::write(&path, csv).expect("a file");
        fails(&["--csv", path.to_str().expect("UTF-8")], code, expected);
    };
    check("0F0,0B0\n1F0\n", 1, "`1B0` is missing: its forward pass is there");
    check("0F0,0Q0\n", 2, "row 1, cell 2: `0Q0` is not an operation");
    check("", 2, "the schedule has no operations");
    check("0F0,0SEND_F0\n", 2, "a compute-only schedule is expected");
    check("4000000000F4000000000\n", 2, "is out of reach");
    check("99999999999999999999F0\n", 2, "is not an operation");
    fails(&["--csv", "schedules/none.csv"], 2, "schedules/none.csv");
}

#[test]
fn wrong_arguments_are_explained() {
    let order = ["--csv", "schedules/1f1b-3x4.csv", "--cost"];
    let cost = |value: &str, expected: &str| fails(&[&order[..], &[value]].concat(), 2, expected);
    cost("1,1,1", "expected four numbers");
    cost("0,0,0,0", "at least one of F, I and W must be above 0");
    cost("1,NaN,1,0", "`NaN` is not a whole number");
    cost("1,-1,1,0", "`-1` is not a whole number");
    cost("18446744073709551615,1,1,0", "the costs are too large");
    let plan = |arguments: &[&str], expected: &str| {
        fails(&[&["plans/transformer-4.yaml"], arguments].concat(), 2, expected);
    };
    plan(&["--schedule", "1f2b"], "unknown schedule `1f2b`, did you mean `1f1b`?");
    plan(&["--schedule", "magic"], "schedules are layer-parallel, gpipe");
    plan(&["--micro-batches", "3"], "use --micro-batches 4");
    plan(&["--micro-batches", "0"], "at least one micro-batch");
    plan(&["--host-overhead", "NaN"], "the host overhead is NaN");
    fails(&[], 2, "required");
    fails(
        &["--schedule", "zbv", "--ranks", "4", "--chunks", "1", "--micro-batches", "8"],
        2,
        "needs exactly 2 stages",
    );
    fails(&["--schedule", "dualpipe", "--ranks", "3", "--micro-batches", "8"], 2, "an even number of ranks");
}

#[test]
fn wrong_plans_are_explained() {
    let folder = tempfile::tempdir().expect("a folder");
    let good = fs::read_to_string(Path::new(FIXTURES).join("plans/transformer-4.yaml")).expect("a fixture");
    let check = |from: &str, to: &str, expected: &str| {
        assert!(good.contains(from), "{from} is in the fixture");
        let path = folder.path().join("plan.yaml");
        fs::write(&path, good.replacen(from, to, 1)).expect("a file");
        fails(&[path.to_str().expect("UTF-8")], 2, expected);
    };
    check("forward: 0.0112", "forward: .nan", "forward of stage 0 is NaN");
    check("forward: 0.0112", "forward: -1.0", "forward of stage 0 is -1");
    check("forward: 0.0112", "forward: .inf", "forward of stage 0 is inf");
    check("bandwidth: 4.5e10", "bandwidth: 0.0", "its cluster: level `nvlink`: bandwidth is 0");
    check("devices: [\"node0:0\"]", "devices: [\"node9:0\"]", "the cluster's devices begin with node0:0");
    check(
        "strategy: even-layers",
        "  links: [{from: nowhere, to: \"node0:0\", bandwidth: 1.0, latency: 0.0}]\nstrategy: even-layers",
        "its cluster: a link names device `nowhere`, which is not in the cluster",
    );
    check("devices: [\"node0:0\"]", "devices: []", "stage 0 has no device");
    check("devices: [\"node0:0\"]", "devices: [\"node0:1\"]", "the same number must be on each");
    check("schedule: 1f1b", "schedule: 1f1c", "did you mean `1f1b`?");
    check("kind: plan", "kind: cluster", "the file is a `cluster`, not a plan");
    check("version: 1", "version: 7", "the plan has version 7, the newest supported is 1");
    check("to: 1,", "to: 0,", "it must go to a later one");
    check("micro_batches: 8", "micro_batches: many", "micro_batches");
}

/// A stage of views and dropouts takes no time; a plan of nothing else has no times in it.
#[test]
fn a_stage_may_take_no_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let good = fs::read_to_string(Path::new(FIXTURES).join("plans/transformer-4.yaml")).expect("a fixture");
    let path = folder.path().join("plan.yaml");
    let path = path.to_str().expect("UTF-8");
    let without_time = |is_idle: fn(usize) -> bool| {
        let mut stage = 0;
        let mut text = String::new();
        for line in good.lines() {
            let name = line.trim_start().split(':').next().unwrap_or_default();
            stage += usize::from(name == "forward" && line.starts_with("    "));
            if matches!(name, "forward" | "input_gradient" | "weight_gradient") && is_idle(stage) {
                text.push_str(&format!("    {name}: 0\n"));
            } else {
                text.push_str(&format!("{line}\n"));
            }
        }
        fs::write(path, text).expect("a file");
    };
    without_time(|stage| stage == 2);
    for schedule in ["gpipe", "1f1b", "zb2p", "layer-parallel", "pipedream"] {
        let step = |plan: &str| json(&[plan, "--schedule", schedule])["step_seconds"].as_f64();
        let whole = Path::new(FIXTURES).join("plans/transformer-4.yaml");
        let (idle, all) = (step(path), step(whole.to_str().expect("UTF-8")));
        assert!(idle < all && idle > Some(0.0), "{schedule}: {idle:?} of {all:?}");
    }
    without_time(|_| true);
    fails(&[path], 2, "the stages take no time");
}

/// What a user sees, and the exit code.
#[test]
fn wrong_inputs_look_like_this() {
    let plan = "plans/transformer-4.yaml";
    let mut shown = String::new();
    for arguments in [
        &[plan, "--schedule", "1f2b"][..],
        &[plan, "--schedule", "dualpipe", "--micro-batches", "6"],
        &[plan, "--micro-batches", "3"],
        &[plan, "--micro-batches", "0"],
        &["--schedule", "1f1b", "--ranks", "4", "--micro-batches", "8", "--cost", "0,0,0,0"],
        &["--schedule", "1f1b", "--ranks", "4", "--micro-batches", "8", "--cost", "NaN,1,1,0"],
        &[plan, "--host-overhead", "NaN"],
        &[plan, "--tensor-parallel", "2"],
        &["--csv", "schedules/deadlock.csv"],
        &["--csv", "schedules/deadlock.csv", "--lint"],
        &["--csv", "schedules/deadlock.csv", "--lint", "--format", "json"],
    ] {
        let output = simulate(arguments).output().expect("the command starts");
        let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let code = output.status.code().expect("it ends by itself");
        shown += &format!("$ simulate {}\n{out}{error}exit {code}\n\n", arguments.join(" "));
    }
    insta::assert_snapshot!(shown);
}
