//! What stages are held to: `--cut-at`, `--layers`, and the constraints that a plan keeps.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use serde_json::Value;

const CNN: &str = "fixtures/traces/cnn_basic.pt";
const BERT: &str = "fixtures/traces/bert_tiny.pt";

fn run(arguments: &[&str]) -> std::process::Output {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_model-analyze"));
    command
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("NO_COLOR", "1")
        .arg("plan")
        .args(arguments)
        .output()
        .unwrap()
}

fn plan(arguments: &[&str]) -> Value {
    let output = run(&[arguments, &["--format", "json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn fails(arguments: &[&str], code: i32, expected: &str) {
    let output = run(arguments);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(text.contains(expected), "`{expected}` is not in:\n{text}");
}

fn step(answer: &Value) -> f64 {
    answer["step_seconds"].as_f64().unwrap()
}

/// First block of each stage.
fn begins(answer: &Value) -> Vec<&str> {
    answer["stages"].as_array().unwrap().iter().map(|stage| stage["blocks"][0].as_str().unwrap()).collect()
}

/// Tells whether an operator is one of a call's, by their names.
fn is_in(block: &str, call: &str) -> bool {
    block.strip_prefix(call).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '/']))
}

#[test]
fn cuts_lie_where_they_are_asked_for() {
    let devices = ["--devices", "4xt4", "--micro-batches", "4"];
    let cut = |more: &[&str]| plan(&[&[CNN], &devices[..], more].concat());
    for strategy in ["layer", "gpipe", "1f1b", "zero-bubble", "hybrid", "auto"] {
        let answer = cut(&["--strategy", strategy, "--cut-at", "fc1"]);
        let begins = begins(&answer);
        assert!(begins.len() == 2 && is_in(begins[1], "fc1"), "{strategy}: {begins:?}");
    }
    // In whichever order they are named.
    let answer = cut(&["--cut-at", "fc2,conv2,pool (call 2)"]);
    let begins = begins(&answer);
    let named = ["conv2", "pool (call 2)", "fc2"];
    assert!(
        begins.len() == 4 && begins[1..].iter().zip(named).all(|(own, name)| is_in(own, name)),
        "{begins:?}"
    );
}

/// No cut is better than the one that is looked for, and that one, given, is planned as it was found.
#[test]
fn given_cuts_are_no_faster_than_those_that_are_found() {
    for strategy in ["1f1b", "hybrid"] {
        let asked =
            [CNN, "--devices", "4xt4", "--micro-batches", "8", "--stages", "2", "--strategy", strategy];
        let free = plan(&asked);
        let own = begins(&free)[1].to_string();
        let again = plan(&[&asked[..], &["--cut-at", &own]].concat());
        assert!(
            (step(&again) / step(&free) - 1.0).abs() < 1e-9,
            "{strategy}: {} {}",
            step(&again),
            step(&free)
        );
        assert_eq!(begins(&again), begins(&free));
        for call in ["pool", "conv2", "pool (call 2)", "fc1", "fc2", "fc3"] {
            let given = step(&plan(&[&asked[..], &["--cut-at", call]].concat()));
            assert!(given >= step(&free) * (1.0 - 1e-9), "{strategy} {call}: {given} {}", step(&free));
        }
    }
}

#[test]
fn layers_are_counted() {
    let asked = [BERT, "--devices", "2xt4", "--micro-batches", "4"];
    let counted = plan(&[&asked[..], &["--layers", "1,1"]].concat());
    let named = plan(&[&asked[..], &["--cut-at", "bert.encoder.layer.1"]].concat());
    assert!(is_in(begins(&counted)[1], "bert.encoder.layer.1"), "{:?}", begins(&counted));
    assert_eq!(counted["stages"], named["stages"]);
    let with = |layers: &'static str| [&asked[..], &["--layers", layers]].concat();
    fails(&with("2,1"), 2, "--layers sums to 3, the model has 2 blocks of BertLayer");
    fails(&with("2,1"), 2, "--layers 1,1 fits");
    fails(&with("0,2"), 2, "0 is not in 1..");
    fails(&[CNN, "--devices", "2xt4", "--layers", "1,1"], 2, "--layers");
}

#[test]
fn a_plan_keeps_its_constraints() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.yaml");
    let path = file.display().to_string();
    let devices = ["--devices", "4xt4", "--micro-batches", "4"];
    let constraints =
        ["--cut-at", "bert.encoder.layer.1", "--keep-together", "BertAttention", "--leave-out", "node0:3"];
    let first = plan(&[&[BERT], &devices[..], &constraints, &["-o", &path]].concat());
    let text = std::fs::read_to_string(&file).unwrap();
    for line in ["constraints:", "- bert.encoder.layer.1", "- BertAttention", "- node0:3"] {
        assert!(text.contains(line), "`{line}` is not in:\n{text}");
    }
    let again = plan(&[&[BERT], &devices[..], &["--constraints", &path]].concat());
    assert_eq!(again["stages"], first["stages"]);
    assert_eq!(step(&again), step(&first));
    // Flags replace its cuts, and keep the rest.
    let other =
        plan(&[&[BERT], &devices[..], &["--constraints", &path, "--cut-at", "bert.encoder"]].concat());
    assert!(is_in(begins(&other)[1], "bert.encoder"), "{:?}", begins(&other));
    assert!(!other["stages"].to_string().contains("node0:3"));
    let checked = plan(&[BERT, "--check", &path]);
    assert!((step(&checked) / step(&first) - 1.0).abs() < 1e-6);
    // Another cluster has no device of that name.
    plan(&[BERT, "--devices", "2xt4", "--micro-batches", "4", "--constraints", &path]);
    broken(&file, &text);
    let free = folder.path().join("free.yaml").display().to_string();
    plan(&[&[BERT], &devices[..], &["-o", &free]].concat());
    fails(&[&[BERT], &devices[..], &["--constraints", &free]].concat(), 2, "the plan has none");
}

/// Changes what the plan is held to instead of its stages: it is broken all the same.
fn broken(file: &Path, text: &str) {
    let check = |from: &str, to: &str, expected: &str| {
        assert!(text.contains(from), "`{from}` is not in:\n{text}");
        std::fs::write(file, text.replacen(from, to, 1)).unwrap();
        fails(&[BERT, "--check", &file.display().to_string()], 2, expected);
    };
    check(
        "  cut_at:\n  - bert.encoder.layer.1",
        "  cut_at:\n  - bert.encoder.layer.0",
        "stage 1 begins in `bert.encoder.layer.1",
    );
    check("  cut_at:\n", "  cut_at:\n  - classifier\n", "the plan has 2 stages, its constraints ask for 3");
    check("  cut_at:\n  - bert.encoder.layer.1", "  layers: [2, 0]", "a stage has at least one block");
    check("  cut_at:\n", "  layers: [1, 1]\n  cut_at:\n", "both `cut_at` and `layers`");
    check(
        "  - BertAttention",
        "  - BertEncoder",
        "begins inside `bert.encoder`, which `keep_together: BertEncoder`",
    );
    check("  - node0:3", "  - node0:*", "which `leave_out: node0:*` excludes");
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let devices = ["--devices", "2xt4"];
    let with = |more: &[&'static str]| [&[CNN], &devices[..], more].concat();
    fails(&with(&["--cut-at", "fc9"]), 2, "the model has no call `fc9`, did you mean `fc1`?");
    fails(&with(&["--cut-at", "conv1"]), 2, "nothing is computed before `conv1`");
    fails(&with(&["--cut-at", "fc1,fc1"]), 2, "nothing is computed between `fc1` and `fc1`");
    fails(&with(&["--cut-at", "fc1", "--layers", "1,1"]), 2, "cannot be used with");
    fails(
        &with(&["--cut-at", "fc1,fc2", "--stages", "2"]),
        2,
        "--cut-at makes 3 stages, --stages asks for 2",
    );
    fails(&with(&["--cut-at", "fc1,fc2"]), 2, "3 stages were asked for, the cluster has 2 devices");
    fails(
        &with(&["--cut-at", "fc1", "--strategy", "even-layers"]),
        2,
        "it makes its own cuts, and others are given",
    );
    fails(&with(&["--cut-at", "fc1", "--strategy", "interleaved"]), 2, "all cuts are given");
    fails(&with(&["--cut-at", "fc1", "--strategy", "data-parallel"]), 2, "the whole model is one stage");
    fails(&with(&["--cut-at", "fc1", "--strategy", "optcnn"]), 2, "does not take --cut-at");
    let kept =
        [&[BERT][..], &devices, &["--keep-together", "bert.encoder", "--cut-at", "bert.encoder.layer.1"]];
    fails(&kept.concat(), 2, "a stage is to begin inside `bert.encoder`, which --keep-together keeps whole");
}

#[test]
fn a_plan_keeps_the_sizes_of_its_micro_batches() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.yaml");
    let path = file.display().to_string();
    let asked = [CNN, "--devices", "2xt4", "--strategy", "1f1b", "--batch", "24"];
    let first = plan(&[&asked[..], &["--micro-batch-size", "2..6", "-o", &path]].concat());
    let sizes = |answer: &Value| -> Vec<u64> {
        let tried = answer["micro_batch_sizes_tried"].as_array().unwrap();
        tried.iter().map(|one| one["samples"].as_u64().unwrap()).collect()
    };
    assert_eq!(sizes(&first), [2, 3, 4, 6]);
    let again = plan(&[&asked[..], &["--constraints", &path]].concat());
    assert_eq!((sizes(&again), step(&again)), (sizes(&first), step(&first)));
    // A flag chooses among what the plan allows.
    let with =
        |size: &'static str| [&asked[..], &["--constraints", &path, "--micro-batch-size", size]].concat();
    assert_eq!(sizes(&plan(&with("auto"))), [2, 3, 4, 6]);
    assert_eq!(sizes(&plan(&with("4.."))), [4, 6]);
    fails(&with("8"), 2, "--micro-batch-size 8: the plan of --constraints allows 2..6 samples");
    plan(&[CNN, "--check", &path]);
    let text = std::fs::read_to_string(&file).unwrap();
    let check = |from: &str, to: &str, expected: &str| {
        assert!(text.contains(from), "`{from}` is not in:\n{text}");
        std::fs::write(&file, text.replacen(from, to, 1)).unwrap();
        fails(&[CNN, "--check", &path], 2, expected);
    };
    check(
        "micro_batch_size: 6",
        "micro_batch_size: 8",
        "has 8 samples, which `micro_batch_size: 2..6` does not allow",
    );
    check("    most: 6", "    most: 1", "`micro_batch_size`: 2 is more than 1");
    check("    most: 6", "    top: 6", "top");
}

/// Returns the stage of a call, and its devices.
fn place<'a>(answer: &'a Value, call: &str) -> (usize, Vec<&'a str>) {
    let stages = answer["stages"].as_array().unwrap();
    let has = |stage: &Value| {
        stage["blocks"].as_array().unwrap().iter().any(|block| is_in(block.as_str().unwrap(), call))
    };
    let at = stages.iter().position(has).unwrap();
    (at, stages[at]["devices"].as_array().unwrap().iter().map(|device| device.as_str().unwrap()).collect())
}

/// Of two stages, one holds the pinned call wherever it is pinned to: the best of the plans with each pin is the best plan.
#[test]
fn calls_are_where_they_are_pinned() {
    for strategy in ["1f1b", "hybrid"] {
        let asked =
            [CNN, "--devices", "4xt4", "--micro-batches", "8", "--stages", "2", "--strategy", strategy];
        let free = step(&plan(&asked));
        let mut best = f64::INFINITY;
        for pin in ["fc1=0", "fc1=last"] {
            let answer = plan(&[&asked[..], &["--pin", pin]].concat());
            assert_eq!(place(&answer, "fc1").0, usize::from(pin.ends_with("last")), "{strategy} {pin}");
            assert_eq!(answer["pins"][0], pin);
            best = best.min(step(&answer));
        }
        assert!((best / free - 1.0).abs() < 1e-9, "{strategy}: {best} is not {free}");
    }
    let asked = [CNN, "--devices", "4xt4", "--micro-batches", "8"];
    let answer = plan(
        &[&asked[..], &["--pin", "pool=node0:3", "--pin", "fc3=node0:1", "--strategy", "1f1b"]].concat(),
    );
    assert_eq!((place(&answer, "pool").1, place(&answer, "fc3").1), (vec!["node0:3"], vec!["node0:1"]));
    // Replicas of a stage are all there.
    let asked = [CNN, "--devices", "2x2xt4", "--micro-batches", "8", "--strategy", "hybrid"];
    let answer = plan(&[&asked[..], &["--pin", "conv1=node1:*"]].concat());
    assert_eq!(place(&answer, "conv1").1, ["node1:0", "node1:1"]);
}

#[test]
fn a_plan_keeps_its_pins() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.yaml");
    let path = file.display().to_string();
    let asked = [BERT, "--devices", "4xt4", "--micro-batches", "4", "--strategy", "1f1b"];
    let pins =
        ["--pin", "bert.embeddings=0", "--pin", "BertPooler=last", "--pin", "bert.encoder.layer.1=node0:2"];
    let first = plan(&[&asked[..], &pins, &["-o", &path]].concat());
    assert_eq!(place(&first, "bert.encoder.layer.1").1, ["node0:2"]);
    let again = plan(&[&asked[..], &["--constraints", &path]].concat());
    assert_eq!((&again["stages"], step(&again)), (&first["stages"], step(&first)));
    plan(&[BERT, "--check", &path]);
    let text = std::fs::read_to_string(&file).unwrap();
    let check = |from: &str, to: &str, expected: &str| {
        assert!(text.contains(from), "`{from}` is not in:\n{text}");
        std::fs::write(&file, text.replacen(from, to, 1)).unwrap();
        fails(&[BERT, "--check", &path], 2, expected);
    };
    check("    to: 0\n", "    to: 1\n", "`pin: bert.embeddings=1` does not allow");
    check("    to: node0:2\n", "    to: node0:0\n", "`pin: bert.encoder.layer.1=node0:0` does not allow");
    check("    to: last\n", "    to: 0\n", "`pin: BertPooler=0` does not allow");
}

#[test]
fn pins_that_cannot_be_are_refused_by_name() {
    let with = |more: &[&'static str]| [&[CNN, "--devices", "4xt4", "--micro-batches", "4"], more].concat();
    for (more, expected) in [
        (&["--pin", "fc9=0"][..], "no call and no class is `fc9`, did you mean `fc1`?"),
        (&["--pin", "fc1=node7:0"], "no device is called `node7:0`"),
        (&["--pin", "fc1"], "expected calls and their place: embed=0"),
        (&["--pin", "fc1=0", "--pin", "fc*=1"], "--pin fc1=0 and --pin fc*=1 are about the same calls"),
        (
            &["--pin", "fc3=0", "--pin", "conv1=1"],
            "`fc3` is pinned to an earlier stage than `conv1`, which it needs",
        ),
        (&["--pin", "conv1=1", "--strategy", "1f1b"], "--pin conv1=0 has a plan"),
        (&["--pin", "fc1=3", "--stages", "2"], "`fc1` is pinned to stage 3, and of 2 the last is 1"),
        (&["--pin", "fc1=0", "--cut-at", "conv2"], "the cuts that are given do not bring `fc1`"),
        (&["--pin", "fc1=0", "--strategy", "pipedream"], "it chooses the number of stages itself"),
        (&["--pin", "fc1=0", "--strategy", "chimera"], "a device has stages of both ends"),
        (&["--pin", "fc1=0", "--inference"], "a plan of the forward pass alone does not take pins"),
        (&["--pin", "fc1=node0:1", "--tensor-parallel", "2"], "pin to a stage instead"),
    ] {
        fails(&with(more), 2, expected);
    }
}

/// Returns everything that a plan computes again.
fn again(answer: &Value) -> Vec<&str> {
    let stages = answer["stages"].as_array().unwrap().iter();
    let all = stages.filter_map(|stage| stage["recompute"].as_array()).flatten();
    all.map(|block| block.as_str().unwrap()).collect()
}

#[test]
fn calls_are_computed_again_always_or_never() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.yaml");
    let path = file.display().to_string();
    let layers = ["bert.encoder.layer.0", "bert.encoder.layer.1"];
    let asked = [BERT, "--devices", "2xt4", "--micro-batches", "4", "--strategy", "1f1b", "--stages", "2"];
    let free = plan(&asked);
    assert!(again(&free).is_empty());
    let first = plan(&[&asked[..], &["--recompute", "BertLayer=always", "-o", &path]].concat());
    // Each as one, and nothing else; their forward passes run twice.
    assert_eq!(again(&first), layers);
    assert!(step(&first) > step(&free), "{} {}", step(&first), step(&free));
    // Memory has nothing to do with it.
    assert!(first["stages"].as_array().unwrap().iter().all(|stage| stage["bound_by"] != "memory"), "{first}");
    let again_by_plan = plan(&[&asked[..], &["--constraints", &path]].concat());
    assert_eq!(again_by_plan["stages"], first["stages"]);
    let checked = plan(&[BERT, "--check", &path]);
    assert!((step(&checked) / step(&first) - 1.0).abs() < 1e-9);
    let text = std::fs::read_to_string(&file).unwrap();
    let check = |from: &str, to: &str, expected: &str| {
        assert!(text.contains(from), "`{from}` is not in:\n{text}");
        std::fs::write(&file, text.replacen(from, to, 1)).unwrap();
        fails(&[BERT, "--check", &path], 2, expected);
    };
    check(
        "  recompute:\n  - bert.encoder.layer.0\n",
        "",
        "is not recomputed, which `recompute: BertLayer=always`",
    );
    check("policy: always", "policy: never", "is recomputed, which `recompute: BertLayer=never`");
    check("policy: always", "policy: light", "is recomputed, which `recompute: BertLayer=light`");
    // Where memory is short, other calls are computed again than those that never are.
    let cluster = folder.path().join("cluster.yaml");
    let with = |memory: u64, more: &[&'static str]| -> Vec<String> {
        let text = format!(
            "kind: cluster\nversion: 1\ntypes:\n  lab: {{memory: {memory}, memory_bandwidth: 1.5e+12, peak: {{float32: 1.9e+13}}}}\n\
             devices: [{{type: lab, count: 2}}]\nlevels: [{{name: nvlink, bandwidth: 2.0e+11, latency: 2.0e-6}}]\n"
        );
        std::fs::write(&cluster, text).unwrap();
        let cluster = cluster.display().to_string();
        let asked =
            [BERT, "--cluster", &cluster, "--micro-batches", "4", "--strategy", "gpipe", "--stages", "2"];
        [&asked[..], more].concat().into_iter().map(String::from).collect()
    };
    let never = ["--recompute", "BertIntermediate=never", "--recompute", "BertOutput=never"];
    let of = |words: Vec<String>| plan(&words.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(again(&of(with(140_000, &[]))), ["bert.encoder.layer.0.attention"]);
    let selves = ["bert.encoder.layer.0.attention.self", "bert.encoder.layer.1.attention.self"];
    assert_eq!(again(&of(with(140_000, &never))), selves);
    let attention = with(140_000, &["--recompute", "BertAttention=never"]);
    fails(&attention.iter().map(String::as_str).collect::<Vec<_>>(), 1, "no plan fits");
    let short = with(125_000, &never);
    fails(&short.iter().map(String::as_str).collect::<Vec<_>>(), 1, "no plan fits");
}

#[test]
fn policies_that_cannot_be_are_refused_by_name() {
    let with = |more: &[&'static str]| [&[BERT, "--devices", "2xt4"], more].concat();
    for (more, expected) in [
        (
            &["--recompute", "BertLair=always"][..],
            "no call and no class is `BertLair`, did you mean `BertLayer`?",
        ),
        (&["--recompute", "BertLayer"], "calls and `always`, `light` or `never`: layers.*=always"),
        (
            &["--recompute", "BertLayer=always", "--recompute", "BertAttention=never"],
            "--recompute BertLayer=always and --recompute BertAttention=never are about the same calls",
        ),
        (
            &["--recompute", "BertLayer=always", "--no-recompute"],
            "--no-recompute contradicts --recompute BertLayer=always",
        ),
        (
            &["--recompute", "BertOutput=always", "--keep-together", "BertLayer"],
            "--recompute BertOutput=always is about a part of `bert.encoder.layer.0`, which --keep-together keeps whole",
        ),
        (&["--recompute", "BertLayer=never", "--inference"], "a forward pass alone saves no activations"),
        (
            &["--recompute", "BertLayer=always", "--cut-at", "bert.encoder.layer.1.attention.output"],
            "which --recompute BertLayer=always recomputes as one unit",
        ),
    ] {
        fails(&with(more), 2, expected);
    }
}

/// What is kept together may be recomputed whole, and parts of it may be kept.
#[test]
fn kept_calls_are_recomputed_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.yaml").display().to_string();
    for policy in ["BertLayer=always", "bert.encoder=always", "BertOutput=never"] {
        let asked = ["--devices", "2xt4", "--keep-together", "BertLayer", "--recompute", policy, "-o", &path];
        let made = plan(&[&[BERT], &asked[..]].concat());
        assert_eq!(step(&plan(&[BERT, "--check", &path])), step(&made), "{policy}");
    }
}

/// A plan of two devices stands among the candidates for four: the answer is no slower than what a user makes of it by hand.
#[test]
fn a_plan_is_carried_to_other_devices() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (small, scaled) = (file("small.yaml"), file("scaled.yaml"));
    let step_of = ["--stages", "2", "--micro-batches", "8"];
    plan(&[&[BERT, "--devices", "2xt4"], &step_of[..], &["-o", &small]].concat());
    // A quick search looks at blocks that are too coarse.
    let asked = [&[BERT, "--devices", "2x2xt4", "--effort", "quick"], &step_of[..]].concat();
    let free = step(&plan(&[&asked[..], &["-o", &scaled]].concat()));
    let read = |path: &str| schema::read_plan(&std::fs::read_to_string(path).unwrap()).unwrap();
    let (mut by_hand, cluster) = (read(&small), read(&scaled).cluster);
    for (index, stage) in by_hand.stages.iter_mut().enumerate() {
        let own = &cluster.devices[2 * index..2 * index + 2];
        stage.devices = own.iter().map(|device| device.name.clone()).collect();
    }
    by_hand.cluster = cluster;
    std::fs::write(&scaled, schema::to_yaml(&by_hand)).unwrap();
    let by_hand = step(&plan(&[BERT, "--devices", "2x2xt4", "--check", &scaled]));
    assert!(free > by_hand * 1.01, "{free} {by_hand}");
    let carried = plan(&[&asked[..], &["--from", &small]].concat());
    assert!(step(&carried) <= by_hand * (1.0 + 1e-9), "{} {by_hand}", step(&carried));
    assert!(carried["lower_bound_seconds"].as_f64().unwrap() <= step(&carried));
    // What is written is what was answered.
    plan(&[&asked[..], &["--from", &small, "-o", &scaled]].concat());
    let again = step(&plan(&[BERT, "--devices", "2x2xt4", "--check", &scaled]));
    assert!((again / step(&carried) - 1.0).abs() < 1e-9);
    // It is no worse where it is carried back, or where the search finds something faster.
    let own = [&[BERT, "--devices", "2xt4"], &step_of[..]].concat();
    assert!(step(&plan(&[&own[..], &["--from", &scaled]].concat())) <= step(&plan(&own)) * (1.0 + 1e-9));
    let refused =
        |more: &[&str], expected: &str| fails(&[&asked[..], &["--from", &small], more].concat(), 2, expected);
    refused(&["--cut-at", "bert.encoder.layer.1"], "has cuts of its own, and others are given");
    refused(&["--sharding", "zero1"], "shares out none, --sharding asks for another level");
    refused(&["--tensor-parallel", "2"], "--tensor-parallel shares them");
    fails(
        &[BERT, "--devices", "1xt4", "--from", &small],
        2,
        "2 stages on devices of their own, and there are 1",
    );
    fails(&[BERT, "--devices", "3xt4", "--stages", "3", "--from", &small], 2, "has 2 stages in a row");
    fails(
        &[BERT, "--devices", "2xt4", "--check", &small, "--from", &small],
        2,
        "--check does not take --from",
    );
}
