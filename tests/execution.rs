//! What `simulate` says about gradient sync, sharding, offload and tensor parallelism, flag by flag.
//!
//! `replicas-2.yaml` is one stage on two replicas joined by 10 GB/s without latency, a micro-batch each: forward 20 ms,
//! backward 40 ms, gradients of the back layer (160 MB) after 20 ms of it, of the front layer (40 MB) at its end,
//! optimizer 1.4 ms, adding a micro-batch's gradients to those before it 0.6 ms. Every expected figure below follows from that in one line.

use std::{fs, path::Path};

use assert_cmd::Command;
use serde_json::Value;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures");
const PLAN: &str = "plans/replicas-2.yaml";

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

fn milliseconds(answer: &Value, key: &str) -> f64 {
    1e3 * answer[key].as_f64().expect("seconds")
}

/// Checks the step of the two replicas, in milliseconds.
fn check(flags: &[&str], step: f64) {
    let found = milliseconds(&json(&[&[PLAN], flags].concat()), "step_seconds");
    assert!((found - step).abs() < 1e-4, "{flags:?}: {found} ms, by hand {step} ms");
}

/// Checks what each further step adds, in milliseconds.
fn check_period(flags: &[&str], period: f64) {
    let found = milliseconds(&json(&[&[PLAN], flags].concat()), "period_seconds");
    assert!((found - period).abs() < 1e-3, "{flags:?}: {found} ms, by hand {period} ms");
}

/// Bytes of one use of memory at the first device's peak.
fn bytes(flags: &[&str], name: &str) -> u64 {
    let answer = json(&[&[PLAN], flags].concat());
    let parts = answer["devices"][0]["parts"].as_array().expect("parts").clone();
    let part = parts.iter().find(|part| part["name"] == name);
    part.map_or(0, |part| part["bytes"].as_u64().expect("bytes"))
}

fn fails(arguments: &[&str], expected: &str) {
    let output = simulate(arguments).output().expect("the command starts");
    let shown = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{shown}");
    assert!(shown.contains(expected), "{expected:?} is not in\n{shown}");
    assert!(output.stdout.is_empty(), "nothing is printed on stdout");
}

/// A copy of the plan with one text exchanged for another.
fn with(from: &str, to: &str) -> (tempfile::TempDir, String) {
    let plan = fs::read_to_string(Path::new(FIXTURES).join(PLAN)).expect("a fixture");
    assert!(plan.contains(from), "{from} is in the fixture");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("plan.yaml");
    fs::write(&path, plan.replacen(from, to, 1)).expect("a file");
    let path = path.to_str().expect("UTF-8").to_string();
    (folder, path)
}

#[test]
fn sync_says_when_gradients_go() {
    // A ring of two moves as many bytes as there are gradients: 16 ms and 4 ms.
    check(&["--sync", "after-backward"], 60.0 + 16.0 + 4.0 + 1.4);
    // The back layer's bucket hides behind the front layer's backward.
    check(&[], 60.0 + 4.0 + 1.4);
    check(&["--sync", "bucketed"], 60.0 + 4.0 + 1.4);
    // Two servers for two replicas take 2 · 2 · bytes / 2 over their links: 32 ms and 8 ms, the first from 40 ms on.
    // They update the parameters: no optimizer here.
    check(&["--sync", "fifo"], 40.0 + 32.0 + 8.0);
    check(&["--sync", "p3"], 40.0 + 32.0 + 8.0);
    // First come, first served: the front layer's parameters are back at 80. With P3 they are at 68, the back layer's
    // at 80, when the next forward pass has done the front layer for 10 ms.
    check_period(&["--sync", "fifo"], 80.0);
    check_period(&["--sync", "p3"], 70.0);
    check_period(&["--sync", "bucketed"], 60.0 + 4.0 + 1.4);
    insta::assert_snapshot!(text(&[PLAN, "--sync", "p3"]));
}

#[test]
fn servers_and_slices() {
    check(&["--sync", "fifo", "--servers", "1"], 40.0 + 64.0 + 16.0);
    check(&["--sync", "fifo", "--servers", "4"], 60.0 + 4.0);
    check(&["--collective", "parameter-server", "--servers", "4"], 60.0 + 4.0 + 1.4);
    // One slice for all of the back layer: what is being sent is not interrupted, so P3 is no better than FIFO.
    check_period(&["--sync", "p3", "--slice", "160000000"], 80.0);
    check_period(&["--sync", "p3", "--slice", "1000000"], 70.0);
    check_period(&["--sync", "fifo", "--slice", "1000000"], 80.0);
}

#[test]
fn servers_on_machines_of_their_own() {
    // Each way takes half of the 32 ms and 8 ms. Whole layers go one way, then the other: 40 → 56 → 72 for the back
    // layer; the front layer's 4 ms each way go in from 60 on and have to wait for the way back.
    check(&["--sync", "fifo", "--servers-apart"], 72.0 + 4.0);
    check_period(&["--sync", "fifo", "--servers-apart"], 76.0);
    // In slices of 1 MB (0.1 ms) both ways are used at once, and the front layer does not wait: back at 64.1.
    check(&["--sync", "p3", "--servers-apart", "--slice", "1000000"], 60.0 + 4.0 + 0.1);
    check_period(&["--sync", "p3", "--servers-apart", "--slice", "1000000"], 60.0 + 4.0 + 0.1);
}

#[test]
fn collectives() {
    check(&["--collective", "ring"], 60.0 + 4.0 + 1.4);
    check(&["--collective", "hierarchical"], 60.0 + 4.0 + 1.4);
    check(&["--collective", "fastest"], 60.0 + 4.0 + 1.4);
    // A tree sends everything up and down: 32 ms from 40 on, then 8 ms.
    check(&["--collective", "tree"], 40.0 + 32.0 + 8.0 + 1.4);
}

#[test]
fn buckets() {
    // Without layers, gradients appear evenly over 40 ms: 1 MiB first, then 100 MB each, over links that take 20 ms.
    let (_folder, plan) = with(
        "  layers:\n  - {forward: 0.01, backward: 0.02, gradients: 40000000, output: 30000000}\n  - {forward: 0.01, \
         backward: 0.02, gradients: 160000000, output: 10000000}\n",
        "",
    );
    let step = |bucket: &str| milliseconds(&json(&[&plan, "--bucket", bucket]), "step_seconds");
    // Two full ones and a rest of 100 MB − 1 MiB, which goes when the backward ends.
    let rest = 0.1 * (100.0 - 1.048576);
    assert!((step("100000000") - (60.0 + rest + 1.4)).abs() < 1e-3);
    assert!((step("400000000") - (60.0 + 20.0 - 0.1048576 + 1.4)).abs() < 1e-3);
    // All smaller than the first bucket: the last of 200 goes alone.
    assert!((step("1000000") - (60.0 + 0.1 + 1.4)).abs() < 1e-3);
}

#[test]
fn sharding_shares_out() {
    // Reduce-scatter is half of an all-reduce: 8 ms hidden, 2 ms not; half of the optimizer's step; a gather of 10 ms.
    check(&["--sharding", "none"], 60.0 + 4.0 + 1.4);
    check(&["--sharding", "zero1"], 60.0 + 2.0 + 0.7 + 10.0);
    check(&["--zero", "zero2"], 60.0 + 2.0 + 0.7 + 10.0);
    // FSDP gathers before the forward pass; the gather before the backward hides behind the forward. No further step
    // gathers before the optimizers have made what is gathered.
    check(&["--sharding", "zero3"], 10.0 + 60.0 + 2.0 + 0.7);
    check_period(&["--sharding", "zero3"], 10.0 + 60.0 + 2.0 + 0.7);
    check_period(&["--sharding", "zero2"], 60.0 + 2.0 + 0.7 + 10.0);
    let uses = |level: &str| {
        ["parameters", "gradients", "optimizer", "buffers"]
            .map(|name| bytes(&["--sharding", level], name) / 1_000_000)
    };
    // The peak is when the back layer's bucket is on its way. Where gradients are shared out, those of two layers are whole while a
    // pass makes them; with FSDP, so are the parameters of two.
    assert_eq!(uses("none"), [200, 200, 400, 160]);
    assert_eq!(uses("zero1"), [200, 200, 200, 160]);
    assert_eq!(uses("zero2"), [200, 100, 200, 200]);
    assert_eq!(uses("zero3"), [100, 100, 200, 400]);
    insta::assert_snapshot!(text(&[PLAN, "--sharding", "zero3"]));
}

#[test]
fn offload_modes() {
    // Half of 1.2 GB goes out and comes back: 50 ms each way pinned, twice that pageable.
    let modes = |mode: &str, step| check(&["--offload-share", "0.5", "--offload", mode], step);
    modes("naive", 60.0 + 200.0 + 4.0 + 1.4);
    modes("non-blocking", 60.0 + 200.0 + 4.0 + 1.4);
    modes("pinned", 60.0 + 100.0 + 4.0 + 1.4);
    // With one micro-batch there is nothing to hide behind.
    modes("both", 60.0 + 100.0 + 4.0 + 1.4);
    check(&["--offload-share", "0"], 60.0 + 4.0 + 1.4);
    // Four micro-batches each and as many buffers: copies out from 20 on, copies back one behind them on a stream of
    // their own, the last backward behind its copy.
    let (_folder, plan) = with("micro_batches: 2", "micro_batches: 8");
    let step = |flags: &[&str]| {
        let flags = [&[plan.as_str(), "--offload-share", "0.5"], flags].concat();
        milliseconds(&json(&flags), "step_seconds")
    };
    let busy = 4.0 * 60.0 + 3.0 * 0.6 + 4.0 + 1.4;
    assert!((step(&["--offload", "naive"]) - (busy + 4.0 * 200.0)).abs() < 1e-3);
    assert!((step(&["--offload", "pinned"]) - (busy + 4.0 * 100.0)).abs() < 1e-3);
    assert!((step(&["--prefetch", "4"]) - (20.0 + 4.0 * 50.0 + 50.0 + 40.0 + 0.6 + 4.0 + 1.4)).abs() < 1e-3);
    let by_depth = ["1", "2", "3", "4"].map(|depth| step(&["--prefetch", depth]));
    assert!(by_depth.windows(2).all(|pair| pair[0] >= pair[1]), "{by_depth:?}");
    assert!(by_depth[0] < step(&["--offload", "pinned"]));
    insta::assert_snapshot!(text(&[&plan, "--offload-share", "0.5", "--prefetch", "3"]));
}

#[test]
fn tensor_parallelism() {
    // Both devices do each of the two micro-batches: half of the time, and all-reduces that are waited for. The front
    // block exchanges 30 MB twice in a pass, the back block 10 MB twice: 8 ms a pass. Half of the parameters to update,
    // and of the gradients to add up once.
    check(&["--tensor-parallel", "2"], 2.0 * (10.0 + 20.0 + 2.0 * 8.0) + 0.3 + 0.7);
    check(&["--tensor-parallel", "1"], 60.0 + 4.0 + 1.4);
    let uses = ["parameters", "gradients", "optimizer"].map(|name| bytes(&["--tensor-parallel", "2"], name));
    assert_eq!(uses, [100_000_000, 100_000_000, 200_000_000]);
    insta::assert_snapshot!(text(&[PLAN, "--tensor-parallel", "2"]));
    // A plan that says itself how its layers are cut: its costs are those of one device.
    let (_folder, plan) =
        with("  layers:\n", "  tensor_parallel: {degree: 2, all_reduce: 5000000, per_pass: 4}\n  layers:\n");
    let answer = json(&[&plan]);
    // 4 all-reduces of 5 MB, 0.5 ms each, in each of the two passes of a micro-batch.
    assert!((milliseconds(&answer, "step_seconds") - (2.0 * (60.0 + 2.0 * 2.0) + 0.6 + 1.4)).abs() < 1e-4);
    fails(&[&plan, "--tensor-parallel", "2"], "the plan says already which devices cut it");
}

#[test]
fn kernels_are_slower_beside_collectives() {
    // The back layer's 16 ms of sync let the front layer's backward do 8 ms of its work; 12 ms are left after it.
    check(&["--overlap-slowdown", "2"], 40.0 + 16.0 + 12.0 + 4.0 + 1.4);
    check(&["--overlap-slowdown", "1"], 60.0 + 4.0 + 1.4);
}

#[test]
fn a_plan_may_say_it_itself() {
    let check = |execution: &str, flags: &[&str]| {
        let (_folder, plan) = with("predicted: {}", &format!("execution: {{{execution}}}\npredicted: {{}}"));
        assert_eq!(json(&[&plan]), json(&[&[PLAN], flags].concat()), "{execution}");
    };
    check("sync: p3, servers: 1, slice: 1000000", &["--sync", "p3", "--servers", "1", "--slice", "1000000"]);
    check("sync: fifo, servers_apart: true", &["--sync", "fifo", "--servers-apart"]);
    check("sync: after-backward, collective: tree", &["--sync", "after-backward", "--collective", "tree"]);
    check("sharding: zero3, overlap_slowdown: 1.5", &["--sharding", "zero3", "--overlap-slowdown", "1.5"]);
    // The plan's schedule ends with a flush: that is said, and nothing else changes.
    let (_folder, plan) = with("predicted: {}", "execution: {vertical_sync: true}\npredicted: {}");
    let notes = json(&[&plan])["notes"].to_string();
    assert!(notes.contains("vertical sync is left out: its steps end with a flush"), "{notes}");
    assert_eq!(json(&[&plan])["period_seconds"], json(&[PLAN])["period_seconds"]);
    let versions = |plan: &str| json(&[plan, "--schedule", "pipedream"])["versions"].to_string();
    assert_eq!(versions(&plan), r#"[{"kept":1,"staleness":0}]"#);
    check("bucket: 5000000, offload: pinned, prefetch: 1", &["--bucket", "5000000", "--offload", "pinned"]);
    // A flag wins over the plan.
    let (_folder, plan) = with("predicted: {}", "execution: {sync: fifo, servers: 1}\npredicted: {}");
    assert_eq!(
        json(&[&plan, "--sync", "bucketed", "--collective", "ring"]),
        json(&[PLAN, "--collective", "ring"])
    );
}

#[test]
fn choices_that_change_nothing_are_told() {
    let check = |flags: &[&str], expected: &str| {
        let notes = json(&[&[PLAN], flags].concat())["notes"].to_string();
        assert_eq!(notes.contains("changes nothing") || notes.contains("do not make"), !expected.is_empty());
        assert!(notes.contains(expected), "{flags:?}: {notes}");
    };
    check(&["--servers", "3"], "the number of parameter servers changes nothing");
    check(&["--servers-apart"], "that parameter servers stand apart changes nothing");
    check(&["--slice", "5"], "the slice changes nothing: only `fifo` and `p3` send slices");
    check(&["--sync", "p3", "--bucket", "5"], "the bucket changes nothing");
    check(&["--sharding-group", "2"], "the sharding group changes nothing: nothing is shared out");
    let group = ["--sharding", "zero1", "--sharding-group", "3"];
    check(&group, "2 replicas do not make groups of 3: all of them share out together");
    check(&["--sync", "p3", "--servers", "3", "--servers-apart", "--slice", "5"], "");
    check(&["--collective", "parameter-server", "--servers", "3", "--bucket", "5"], "");
    check(&["--sharding", "zero1", "--sharding-group", "2"], "");
}

#[test]
fn wrong_values_are_explained() {
    let check = |flags: &[&str], expected: &str| fails(&[&[PLAN], flags].concat(), expected);
    check(&["--sync", "later"], "[possible values: after-backward, bucketed, fifo, p3]");
    check(
        &["--collective", "mesh"],
        "[possible values: fastest, ring, tree, hierarchical, parameter-server]",
    );
    check(&["--sharding", "zero4"], "a similar value exists");
    check(&["--offload", "async"], "[possible values: naive, pinned, non-blocking, both]");
    check(&["--servers", "0"], "the number of parameter servers is 0: it must be above 0");
    check(&["--bucket", "0"], "the bucket is 0: it must be above 0");
    check(&["--slice", "0"], "the slice is 0: it must be above 0");
    check(&["--servers=-1"], "invalid value '-1'");
    check(&["--prefetch", "0"], "the prefetch depth is 0: it must be a whole number from 1 to 1024");
    check(&["--prefetch", "5000"], "the prefetch depth is 5000");
    check(&["--offload-share", "1.5"], "the offloaded share is 1.5: it must be a share from 0 to 1");
    check(&["--offload-share", "NaN"], "the offloaded share is NaN");
    check(
        &["--overlap-slowdown", "0.5"],
        "the slowdown beside collectives is 0.5: it must be a number from 1 to 100",
    );
    check(&["--overlap-slowdown", "NaN"], "the slowdown beside collectives is NaN");
    check(
        &["--tensor-parallel", "3"],
        "stage 0 cannot be tensor-parallel: its 2 devices do not make groups of 3",
    );
    check(&["--tensor-parallel", "0"], "its 2 devices do not make groups of 0");
    check(&["--sharding", "zero2", "--sync", "p3"], "sharding cannot be combined with `fifo` and `p3`");
    check(
        &["--sharding", "zero1", "--collective", "parameter-server"],
        "sharding cannot be combined with a parameter server",
    );
    fails(&["--csv", "schedules/1f1b-3x4.csv", "--sync", "p3"], "cannot be used with '--sync <WHEN>'");
    fails(&["--csv", "schedules/1f1b-3x4.csv", "--host-overhead", "3"], "cannot be used with");
    fails(
        &["--schedule", "gpipe", "--ranks", "4", "--micro-batches", "8", "--offload", "both"],
        "cannot be used with",
    );
    let plan = |from: &str, to: &str, expected: &str| {
        let (_folder, path) = with(from, to);
        fails(&[&path], expected);
    };
    plan(
        "gradients: 40000000",
        "gradients: 40000001",
        "the layers of stage 0 hold 200000001 bytes of gradients",
    );
    plan("{forward: 0.01,", "{forward: .nan,", "forward of a layer of stage 0 is NaN");
    plan(
        "predicted: {}",
        "execution: {sync: soon}\npredicted: {}",
        "`execution.sync` is `soon`; it is one of after-backward",
    );
    plan("predicted: {}", "execution: {bucket: 0}\npredicted: {}", "the bucket is 0");
    plan("predicted: {}", "execution: {buckets: 7}\npredicted: {}", "there is no field `buckets`");
}

#[test]
fn plans_of_ours_tell_their_layers() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("plan.yaml");
    let path = path.to_str().expect("UTF-8");
    let planned = Command::new(env!("CARGO_BIN_EXE_model-analyze"))
        .current_dir(FIXTURES)
        .args(["plan", "traces/gpt2_tiny.pt", "--devices", "2xt4", "--strategy", "data-parallel", "-o", path])
        .output()
        .expect("the command starts");
    assert!(planned.status.success(), "{}", String::from_utf8_lossy(&planned.stderr));
    // Layers are told apart: what is estimated needs no guess, and neither does sync by layer.
    for flags in [["--tensor-parallel", "2"], ["--sync", "p3"]] {
        let answer = json(&[&[path], &flags[..]].concat());
        let notes = answer["notes"].as_array().expect("notes");
        let guesses = |note: &Value| note.as_str().is_some_and(|note| note.contains("the plan does not"));
        assert!(!notes.iter().any(guesses), "{notes:?}");
    }
    // A plan without them says what is guessed instead.
    let notes = text(&["plans/vgg-3-1.yaml", "--sync", "p3"]);
    assert!(notes.contains("the plan does not tell the layers of stage 0 apart"), "{notes}");
}
