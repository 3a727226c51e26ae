//! `compare`: its numbers are those of `plan` and `simulate` with the flags that it names, and nothing is left out without a reason.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use serde_json::Value;

const CNN: &str = "fixtures/traces/cnn_basic.pt";
const BERT: &str = "fixtures/traces/bert_tiny.pt";

fn run(arguments: &[&str]) -> std::process::Output {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_model-analyze"));
    command.current_dir(env!("CARGO_MANIFEST_DIR")).env("NO_COLOR", "1").args(arguments).output().unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let output = run(&[arguments, &["--format", "json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn fails(arguments: &[&str], code: i32, expected: &str) {
    let output = run(&[&["compare"], arguments].concat());
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(text.contains(expected), "`{expected}` is not in:\n{text}");
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

fn rows(answer: &Value) -> &[Value] {
    answer["strategies"].as_array().unwrap()
}

fn named<'a>(answer: &'a Value, name: &str) -> &'a Value {
    let found = rows(answer).iter().find(|row| row["name"] == name);
    found.unwrap_or_else(|| panic!("no row is called {name}: {answer:#}"))
}

/// A cluster of so many devices in each of two nodes.
fn cluster(folder: &Path, count: u32, memory: u64) -> String {
    let path = folder.join("cluster.yaml");
    let text = format!(
        "kind: cluster\nversion: 1\ntypes:\n  lab: {{memory: {memory}, memory_bandwidth: 1.5e+12, peak: {{float32: 1.9e+13}}}}\n\
         devices: [{{type: lab, count: {count}, nodes: 2}}]\n\
         levels: [{{name: nvlink, bandwidth: 2.0e+11, latency: 2.0e-6}}, {{name: ethernet, bandwidth: 2.0e+8, latency: 2.0e-5}}]\n"
    );
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

fn same(name: &str, what: &str, own: &Value, other: &Value) {
    let is_same = match (own.as_f64(), other.as_f64()) {
        (Some(own), Some(other)) => (own - other).abs() <= 1e-9 * other.abs(),
        _ => own == other,
    };
    assert!(is_same, "{name}: {what} is {own}, not {other}");
}

/// Holds a row against `plan` with its flags.
fn check_planned(row: &Value, plan: &Value) {
    let name = row["name"].as_str().unwrap();
    let same = |what: &str, own: &Value, other: &Value| same(name, what, own, other);
    let micro_batches = number(&plan["micro_batches"]);
    let step = match plan["step_seconds"].as_f64() {
        Some(step) => step,
        None => number(&plan["period_seconds"]) * micro_batches,
    };
    same("step", &row["step_seconds"], &step.into());
    same("memory", &row["memory_bytes"], &plan["memory_bytes"]);
    same("micro-batches", &row["micro_batches"], &plan["micro_batches"]);
    if plan["inside"].is_null() {
        for what in
            ["strategy", "sharding", "schedule", "samples", "samples_per_second", "tokens_per_second", "mfu"]
        {
            same(what, &row[what], &plan[what]);
        }
        same("idle", &row["idle"], &plan["bubble"]);
        same("stages", &row["stages"], &plan["stages"].as_array().unwrap().len().into());
        same("memory of", &row["memory_limit"], &plan["stages"][0]["memory_usable"]);
    }
}

/// Holds a row against `simulate` of a plan.
fn check_simulated(row: &Value, simulated: &Value) {
    let name = row["name"].as_str().unwrap();
    let same = |what: &str, own: &Value, other: &Value| same(name, what, own, other);
    let is_endless = ["p3", "p3 over servers", "pipedream-2bw"].contains(&name);
    let step = if is_endless { "period_seconds" } else { "step_seconds" };
    same("step", &row["step_seconds"], &simulated[step]);
    same("schedule", &row["schedule"], &simulated["schedule"]);
    same("micro-batches", &row["micro_batches"], &simulated["micro_batches"]);
    same("idle", &row["idle"], &simulated["bubble"]);
    let devices = simulated["devices"].as_array().unwrap();
    let peak = devices.iter().map(|device| device["peak_memory_bytes"].as_u64().unwrap()).max();
    same("memory", &row["memory_bytes"], &peak.into());
}

#[test]
fn every_row_is_what_its_flags_give() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = cluster(folder.path(), 2, 1 << 30);
    let file = folder.path().join("plan.yaml").display().to_string();
    let shared = ["--cluster", &cluster, "--micro-batches", "8", "--optimizer", "momentum"];
    let answer = json(&[&["compare", BERT], &shared[..]].concat());
    let mut simulated = 0;
    for row in rows(&answer) {
        let flags = row["flags"].as_str().unwrap();
        let (flags, simulate) = flags.split_once("; simulate ").unwrap_or((flags, ""));
        let flags: Vec<&str> = flags.split_whitespace().collect();
        // What splits operators takes one step of the model's own inputs.
        let shared =
            if row["schedule"].is_null() { [&shared[..2], &shared[4..]].concat() } else { shared.to_vec() };
        let asked = [&["plan", BERT], &shared[..], &flags].concat();
        if simulate.is_empty() {
            check_planned(row, &json(&asked));
            continue;
        }
        simulated += 1;
        json(&[&asked[..], &["-o", &file]].concat());
        let simulate: Vec<&str> = simulate.split_whitespace().collect();
        check_simulated(row, &json(&[&["simulate", &file], &simulate[..]].concat()));
    }
    assert!(rows(&answer).len() >= 24 && simulated >= 3, "{answer:#}");
}

#[test]
fn the_best_stands_first_and_the_plan_is_marked() {
    let answer = json(&["compare", CNN, "--devices", "4xt4"]);
    let rows = rows(&answer);
    let each: Vec<f64> = rows.iter().map(|row| number(&row["micro_batch_seconds"])).collect();
    assert!(each.windows(2).all(|pair| pair[0] <= pair[1]), "{each:?}");
    for (row, each_of) in rows.iter().zip(&each) {
        assert!((number(&row["slower"]) - (each_of / each[0] - 1.0)).abs() < 1e-12);
        assert!(number(&row["memory_bytes"]) <= number(&row["memory_limit"]), "{row:#}");
    }
    let marked: Vec<&Value> = rows.iter().filter(|row| row["is_plan"] == true).collect();
    let [own] = marked[..] else { panic!("{} rows are marked", marked.len()) };
    check_planned(own, &json(&["plan", CNN, "--devices", "4xt4"]));
    // `plan` gives no slower one than those that it may choose from.
    let is_choice = |row: &&Value| {
        row["trains_as_one_device"] == true
            && row["not_carried_out"].is_null()
            && !row["flags"].as_str().unwrap().contains("simulate")
            // Splits of single operators are searched only where they are asked for.
            && !["optcnn", "flexflow"].contains(&row["name"].as_str().unwrap())
    };
    let best = rows.iter().filter(is_choice).map(|row| number(&row["micro_batch_seconds"])).next().unwrap();
    assert!(number(&own["micro_batch_seconds"]) <= best * 1.05, "{own:#}");
    for (name, is_run) in [
        ("1f1b", true),
        ("zb2p", true),
        ("dualpipe", true),
        ("p3", true),
        ("parameter-server", true),
        ("p3 over servers", false),
        ("optcnn", true),
        ("flexflow", true),
    ] {
        assert_eq!(named(&answer, name)["not_carried_out"].is_null(), is_run, "{name}");
    }
    assert_eq!(named(&answer, "pipedream")["trains_as_one_device"], false);
}

#[test]
fn bytes_that_are_sent_are_those_of_the_model() {
    let answer = json(&["compare", CNN, "--devices", "4xt4", "--micro-batches", "4"]);
    let sent = |name: &str| number(&named(&answer, name)["sent_bytes"]);
    let inspected = json(&["inspect", CNN]);
    let parameters = 4.0 * number(&inspected["totals"]["parameters"]);
    assert_eq!(sent("one-device"), 0.0);
    assert_eq!(sent("data-parallel"), 2.0 * 3.0 * parameters);
    assert_eq!(sent("data-parallel zero1"), sent("data-parallel"));
    // Gathered for the forward and for the backward pass, and scattered once.
    assert_eq!(sent("data-parallel zero3"), 3.0 * 3.0 * parameters);
    assert!(sent("tensor-parallel 2") > 0.0);
}

#[test]
fn what_is_missing_is_enough() {
    let folder = tempfile::tempdir().unwrap();
    let memory = 1 << 20;
    let asked = |memory: u64| {
        let cluster = cluster(folder.path(), 1, memory);
        json(&[
            "compare",
            CNN,
            "--cluster",
            &cluster,
            "--micro-batches",
            "2",
            "--only",
            "one-device",
            "--only",
            "1f1b",
        ])
    };
    let short = asked(memory);
    assert_eq!(rows(&short).len(), 1, "{short:#}");
    let left = &short["left_out"][0];
    assert_eq!(left["name"], "one-device");
    assert!(left["reason"].as_str().unwrap().starts_with("no plan fits"), "{left:#}");
    let missing = left["missing_bytes"].as_u64().unwrap();
    assert!(missing > 0 && rows(&asked(memory + missing)).len() == 2);
    assert_eq!(rows(&asked(memory + missing / 2)).len(), 1);
    let cluster = cluster(folder.path(), 1, 1 << 10);
    fails(&[CNN, "--cluster", &cluster, "--only", "1f1b"], 1, "no strategy has a plan: 1f1b: no plan fits");
}

#[test]
fn the_table_says_what_it_leaves_out() {
    let output = run(&["compare", BERT, "--devices", "2xt4", "--micro-batches", "3"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for line in [
        "bert_tiny on 2 × T4: ",
        "* the plan of `plan` without a strategy: ",
        "pipedream, pipedream-2bw: gradients are computed with stale weights",
        "left out\n",
        "  gems: gems needs exactly 2 micro-batches",
    ] {
        assert!(text.contains(line), "`{line}` is not in:\n{text}");
    }
}

#[test]
fn the_picture_has_every_row() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("compare.svg").display().to_string();
    let answer =
        json(&["compare", BERT, "--devices", "2xt4", "--only", "data-parallel*", "--plot", &picture]);
    let svg = std::fs::read_to_string(&picture).unwrap();
    assert_eq!(rows(&answer).len(), 4);
    for row in rows(&answer) {
        assert!(svg.contains(row["name"].as_str().unwrap()), "{row:#}");
    }
    assert!(svg.contains("prefers-color-scheme:dark") && svg.contains("written by model-analyze"));
}

#[test]
fn wrong_input_is_named() {
    let devices = ["--devices", "2xt4"];
    let with = |more: &[&'static str]| [&[BERT], &devices[..], more].concat();
    fails(&with(&["--strategy", "1f1b"]), 2, "compare does not take --strategy");
    fails(&with(&["--sharding", "zero1"]), 2, "compare does not take --sharding");
    fails(&with(&["--tensor-parallel", "2"]), 2, "compare does not take --tensor-parallel");
    fails(&with(&["--only", "1f1"]), 2, "no strategy is called `1f1`, did you mean `1f1b`?");
    fails(&with(&["--plot", "compare.png"]), 2, "the picture must be an .svg");
    fails(&with(&["--micro-batches", "0"]), 2, "--micro-batches is 0");
    fails(&["fixtures/profiles/small_vgg.txt", "--devices", "2xt4"], 2, "is a profile, not a model");
    fails(&["nothing.pt", "--devices", "2xt4"], 2, "No such file");
    fails(&[BERT], 2, "--devices");
}

/// Each row takes the micro-batches that serve it best, as `plan` does; what simulates another's plan takes that plan's.
#[test]
fn micro_batches_have_as_many_samples_as_serve_each_best() {
    let shared = ["--devices", "2xt4", "--batch", "16", "--micro-batch-size", "2..8"];
    let only = ["--only", "1f1b", "--only", "data-parallel", "--only", "gems-master", "--only", "zb2p"];
    let answer = json(&[&["compare", CNN], &shared[..], &only].concat());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.yaml").display().to_string();
    for row in rows(&answer) {
        let flags = row["flags"].as_str().unwrap();
        let flags: Vec<&str> = flags.split(';').next().unwrap().split_whitespace().collect();
        let plan = json(&[&["plan", CNN], &shared[..], &flags, &["-o", &file]].concat());
        same("samples", "samples", &row["samples"], &plan["samples"]);
        let text = std::fs::read_to_string(&file).unwrap();
        let size = text.lines().find_map(|line| line.strip_prefix("micro_batch_size: "));
        let size = size.map(|size| size.parse::<u64>().unwrap());
        assert_eq!(row["micro_batch_size"].as_u64(), size, "{row:#}");
        if row["flags"].as_str().unwrap().contains("simulate") {
            check_simulated(row, &json(&["simulate", &file, "--schedule", "zb2p"]));
        } else {
            check_planned(row, &plan);
        }
        let per_second = number(&row["samples"]) / number(&row["step_seconds"]);
        assert!((number(&row["samples_per_second"]) / per_second - 1.0).abs() < 1e-9, "{row:#}");
    }
    let rates: Vec<f64> = rows(&answer).iter().map(|row| number(&row["samples_per_second"])).collect();
    assert!(rates.len() == 4 && rates.windows(2).all(|pair| pair[0] >= pair[1]), "{rates:?}");
    // The trace has four samples; splits of operators are planned with others, too.
    let other = [
        "compare",
        CNN,
        "--devices",
        "2xt4",
        "--micro-batch-size",
        "2",
        "--only",
        "optcnn",
        "--only",
        "1f1b",
    ];
    let answer = json(&other);
    assert_eq!(named(&answer, "optcnn")["micro_batch_size"], 2, "{answer}");
}
