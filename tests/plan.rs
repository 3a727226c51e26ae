//! `model-analyze plan`, end to end: answers, files and faults as a user meets them.

#![allow(clippy::print_stdout)]

use std::path::{Path, PathBuf};

use assert_cmd::Command;

fn run(arguments: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_model-analyze"));
    command.current_dir(env!("CARGO_MANIFEST_DIR")).env("NO_COLOR", "1").args(arguments);
    command.output().expect("the command starts")
}

fn json(arguments: &[&str]) -> serde_json::Value {
    let output = run(&[arguments, &["--format", "json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("standard output is one JSON document")
}

fn fails(arguments: &[&str], code: i32, expected: &[&str]) {
    let output = run(arguments);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(output.stdout.is_empty());
    for part in expected {
        assert!(text.contains(part), "`{part}` is not in:\n{text}");
    }
}

const PROFILE: &str = "fixtures/profiles/small_vgg.txt";

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder can be made")
}

fn write(folder: &tempfile::TempDir, name: &str, text: &str) -> String {
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("a temporary file can be written");
    path.display().to_string()
}

#[test]
fn compat_answers_with_the_keys_of_the_contract() {
    let answer = json(&[
        "plan",
        PROFILE,
        "--compat",
        "pipedream",
        "--machines",
        "4,2",
        "--bandwidth",
        "30e9,3.125e9",
        "--activation-transfer",
    ]);
    for key in [
        "schema_version",
        "strategy",
        "period_seconds",
        "data_parallel_seconds",
        "lower_bound_seconds",
        "gap",
    ] {
        assert!(!answer[key].is_null(), "{key}");
    }
    let stages = answer["stages"].as_array().expect("stages");
    let blocks: usize = stages.iter().map(|stage| stage["blocks"].as_array().expect("blocks").len()).sum();
    assert_eq!(blocks, 27);
    let replicas: u64 = stages.iter().map(|stage| stage["replicas"].as_u64().expect("replicas")).sum();
    assert_eq!(replicas, 8);
}

#[test]
fn text_is_a_table_and_a_reason() {
    let output = run(&["plan", PROFILE, "--strategy", "pipedream", "--machines", "4", "--bandwidth", "1e9"]);
    insta::assert_snapshot!(String::from_utf8_lossy(&output.stdout));
}

#[test]
fn every_strategy_agrees_with_the_simulator() {
    let folder = folder();
    let plan = folder.path().join("plan.yaml");
    let plan = plan.to_str().expect("temporary paths are text");
    let strategies = [
        "layer",
        "data-parallel",
        "gpipe",
        "1f1b",
        "interleaved",
        "zero-bubble",
        "hybrid",
        "even-layers",
        "even-parameters",
        "torchgpipe",
        "deepspeed",
        "pipedream",
    ];
    let clusters = ["two-nodes", "mixed"].map(|name| format!("fixtures/clusters/{name}.yaml"));
    for model in [PROFILE, "fixtures/traces/unet_small.pt"] {
        for (cluster, strategy) in
            clusters.iter().flat_map(|cluster| strategies.map(|strategy| (cluster, strategy)))
        {
            let answer = json(&[
                "plan",
                model,
                "--cluster",
                cluster,
                "--strategy",
                strategy,
                "--micro-batches",
                "16",
                "-o",
                plan,
            ]);
            // Parameters alone can be cut so that a stage has nothing to compute; that is not simulated.
            let stages = answer["stages"].as_array().expect("stages");
            if stages.iter().any(|stage| stage["compute_seconds"].as_f64() == Some(0.0)) {
                continue;
            }
            let simulated = json(&["simulate", plan]);
            let step = simulated["step_seconds"].as_f64().expect("a step");
            let (ours, theirs) = match answer["step_seconds"].as_f64() {
                Some(ours) => (ours, step),
                // Steady state: what each micro-batch adds.
                None => {
                    let period = simulated["period_seconds"].as_f64().expect("a period");
                    (answer["period_seconds"].as_f64().expect("a period"), period / 16.0)
                }
            };
            let difference = (ours - theirs).abs() / theirs;
            assert!(difference < 0.01, "{model}, {cluster}, {strategy}: planned {ours}, simulated {theirs}");
        }
    }
}

#[test]
fn a_plan_is_scored_as_it_was_planned() {
    let folder = folder();
    let path = folder.path().join("plan.yaml");
    let plan = path.to_str().expect("temporary paths are text");
    let model = "fixtures/traces/unet_small.pt";
    for strategy in ["1f1b", "interleaved", "pipedream", "gpipe"] {
        let made = json(&["plan", model, "--devices", "4xh100", "--strategy", strategy, "-o", plan]);
        let checked = json(&["plan", model, "--check", plan]);
        for key in ["step_seconds", "period_seconds"] {
            let (made, checked) = (made[key].as_f64(), checked[key].as_f64());
            assert!(
                made.zip(checked).is_none_or(|(a, b)| (a - b).abs() < 1e-6 * a),
                "{strategy}: {made:?} {checked:?}"
            );
            assert_eq!(made.is_some(), checked.is_some());
        }
    }
    // Edited by hand: a block taken out is missed, and another model's is not known.
    let text = std::fs::read_to_string(&path).expect("just written");
    let edited = write(&folder, "edited.yaml", &text.replacen("- down.0", "- down.9", 1));
    if edited != text {
        fails(&["plan", model, "--check", &edited], 2, &["error: "]);
    }
}

#[test]
fn stages_and_memory_are_limits() {
    let answer = json(&["plan", PROFILE, "--devices", "4xh100", "--strategy", "1f1b", "--stages", "3"]);
    assert_eq!(answer["stages"].as_array().map(Vec::len), Some(3));
    fails(
        &["plan", PROFILE, "--devices", "4xh100", "--stages", "99"],
        1,
        &["99 stages were asked for, the model has 27 blocks"],
    );
    fails(
        &["plan", PROFILE, "--machines", "2", "--memory", "1e8", "--optimizer", "adam"],
        1,
        &["no plan fits: the stage with block `node25`", "one of these would do", "more on each device"],
    );
}

#[test]
fn wrong_input_says_what_and_where() {
    let folder = folder();
    let node = |id: &str, time: &str| {
        format!(
            "{id} -- Linear(1, 1) -- forward_compute_time={time}, backward_compute_time=1.0, activation_size=4.0, parameter_size=8.0\n"
        )
    };
    let two = format!("{}{}", node("a", "1.0"), node("b", "1.0"));
    let cyclic = write(&folder, "cyclic.txt", &format!("{two}\ta -- b\n\tb -- a\n"));
    fails(
        &["plan", &cyclic, "--devices", "2xh100"],
        2,
        &["line 3: the graph has a cycle: a → b → a", "hint:"],
    );
    let apart = write(&folder, "apart.txt", &two);
    fails(&["plan", &apart, "--devices", "2xh100"], 2, &["line 2: the graph is not connected"]);
    let negative = write(&folder, "negative.txt", &format!("{}\n", node("a", "-1")));
    fails(&["plan", &negative, "--devices", "2xh100"], 2, &["`forward_compute_time` of node `a` is -1"]);
    let json = write(&folder, "other.json", "{\"nodes\": []}");
    fails(&["plan", &json], 2, &["JSON of no known workload"]);
    let empty = write(&folder, "empty.txt", "");
    fails(&["plan", &empty], 2, &["the file is empty"]);

    fails(&["plan", PROFILE], 2, &["a plan needs a cluster", "--devices 4xh100"]);
    fails(&["plan", PROFILE, "--devices", "0xh100"], 2, &["a count is zero"]);
    fails(&["plan", PROFILE, "--devices", "4xh10"], 2, &["no device is called `h10`", "did you mean"]);
    fails(&["plan", PROFILE, "--machines", "0"], 2, &["--machines come to 0"]);
    fails(
        &["plan", PROFILE, "--compat", "pipedream", "--machines", "4", "--bandwidth", "0"],
        2,
        &["bandwidth of 0"],
    );
    fails(
        &["plan", PROFILE, "--compat", "pipedream", "--machines", "4,2", "--bandwidth", "1e9"],
        2,
        &["each level needs one of each"],
    );
    fails(
        &["plan", PROFILE, "--compat", "pipedream", "--machines", "99", "--straight"],
        1,
        &["without replication"],
    );
    fails(
        &["plan", PROFILE, "--devices", "2xh100", "--strategy", "magic"],
        2,
        &["no strategy is called `magic`"],
    );
    let cluster = write(
        &folder,
        "cluster.yaml",
        "kind: cluster\nversion: 1\ndevices: [{type: t4, count: 2}]\nlevels: [{name: pcie, bandwidth: 1e9, latency: 0}]\n\
         links: [{from: \"node0:0\", to: nowhere, bandwidth: 1, latency: 0}]\n",
    );
    fails(&["plan", PROFILE, "--cluster", &cluster], 2, &["a link names device `nowhere`"]);
}

/// Outside data, or `None` with a word about it.
fn outside(path: &str) -> Option<String> {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data/partitioners").join(path);
    if !path.exists() {
        println!("skipped: {} is not there", path.display());
        return None;
    }
    Some(path.display().to_string())
}

#[test]
fn outside_formats_are_told_apart() {
    let check = |path: &str, key: &str, expected: f64| {
        let Some(path) = outside(path) else { return };
        let answer = json(&["plan", &path]);
        let found = answer[key].as_f64().expect(key);
        assert!((found - expected).abs() < 1e-6, "{path}: {found} is not {expected}");
    };
    check("dnn-partitioning/LayerGraphs/bert24_training.json", "period_seconds", 41.745812);
    check("dnn-partitioning/LayerGraphs/resnet50_training.json", "lower_bound_seconds", 78.631813);
    let Some(profile) = outside("pipedream/resnet50/graph.txt") else { return };
    let answer = json(&[
        "plan",
        &profile,
        "--compat",
        "pipedream",
        "--machines",
        "4,4",
        "--bandwidth",
        "16e9,1.25e9",
        "--activation-transfer",
    ]);
    assert!((answer["period_seconds"].as_f64().expect("a period") - 0.043208).abs() < 0.6e-6);
}

/// A plan says how sure it is of its step, and whose times it believes.
#[test]
fn a_plan_carries_its_band() {
    let folder = folder();
    let file = folder.path().join("plan.yaml").display().to_string();
    let answer = json(&["plan", "fixtures/traces/unet_small.pt", "--devices", "2xt4", "-o", &file]);
    let text = std::fs::read_to_string(file).expect("a plan was written");
    let plan: schema::Plan = schema::from_yaml(&text).expect("it is a plan");
    let band = plan.predicted.band.expect("a traced model's times have a band");
    assert_eq!(answer["band"]["p90"].as_f64(), Some(band.p90.0));
    let step = plan.predicted.step.or(plan.predicted.period).expect("a time");
    assert!(band.p10 < step && step < band.p90, "{band:?} around {step:?}");
    for stage in &plan.stages {
        let cost = stage.cost.forward.0 + stage.cost.input_gradient.0 + stage.cost.weight_gradient.0;
        let band = stage.band.expect("a band");
        assert!(band.p10.0 < cost && cost < band.p90.0, "{band:?} around {cost}");
    }
    let times = plan.predicted.times.expect("a source");
    assert_eq!(times.cost_model, "data sheet of T4");
    assert!((times.shares.values().sum::<f64>() - 1.0).abs() < 1e-9, "{times:?}");
}

/// Traces of the fixtures on small and larger clusters: the plan is the best of all strategies, and bounded.
#[test]
fn no_strategy_beats_the_plan() {
    let models =
        ["unet_small", "gpt2_tiny", "cnn_basic", "bert_tiny", "lstm_seq2seq_small", "amoebanet_6_small"];
    for (index, model) in models.into_iter().enumerate() {
        let model = format!("fixtures/traces/{model}.pt");
        // Each model meets each kind of cluster over the whole list; all of them would take minutes.
        let clusters = ["2xt4", "4xh100", "8xv100", "2x8xa100", "4xa100+4xv100"];
        for devices in [clusters[index % 5], clusters[(index + 2) % 5]] {
            let answer = json(&["plan", &model, "--devices", devices, "--micro-batches", "16", "--compare"]);
            let step = answer["step_seconds"].as_f64().expect("a step");
            let bound = answer["lower_bound_seconds"].as_f64().expect("a bound");
            assert!(0.0 < bound && bound <= step, "{model} on {devices}: {bound} {step}");
            let others = answer["runners_up"].as_array().expect("others");
            let mut n_rules = 0;
            for other in others {
                let strategy = other["strategy"].as_str().expect("a name");
                // Pipelines without an end train otherwise; they are there to compare.
                if strategy == "pipedream" || other["seconds"].is_null() {
                    continue;
                }
                n_rules += usize::from(
                    ["even-layers", "even-parameters", "torchgpipe", "deepspeed"].contains(&strategy),
                );
                let loses = other["loses"].as_f64().expect("a share");
                assert!(loses >= -1e-9, "{model} on {devices}: {strategy} is faster by {loses}");
            }
            assert_eq!(n_rules, 4, "{model} on {devices}");
        }
    }
}

#[test]
fn every_strategy_is_compared() {
    let output = run(&["plan", "fixtures/traces/unet_small.pt", "--devices", "4xt4", "--compare"]);
    insta::assert_snapshot!(String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_step_has_as_few_micro_batches_as_serve_well() {
    let answer = json(&["plan", "fixtures/traces/unet_small.pt", "--devices", "4xt4", "--strategy", "1f1b"]);
    let tried = answer["micro_batches_tried"].as_array().expect("what was tried");
    let each = |one: &serde_json::Value| one["seconds_each"].as_f64().expect("seconds");
    assert_eq!(tried.len(), 4);
    let chosen = answer["micro_batches"].as_u64().expect("a number");
    let own = tried.iter().find(|one| one["micro_batches"].as_u64() == Some(chosen)).expect("it was tried");
    let least = tried.iter().map(each).fold(f64::INFINITY, f64::min);
    assert!(each(own) <= 1.05 * least);
    for fewer in tried.iter().filter(|one| one["micro_batches"].as_u64() < Some(chosen)) {
        assert!(each(fewer) > 1.05 * least, "{fewer} would have done");
    }
    let fixed =
        json(&["plan", "fixtures/traces/unet_small.pt", "--devices", "4xt4", "--micro-batches", "12"]);
    assert_eq!(fixed["micro_batches"], 12);
    assert!(fixed["micro_batches_tried"].is_null());
}
