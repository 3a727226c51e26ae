//! Sentences and numbers that `plan` and `split` print agree with each other, and with plans made otherwise.
#![allow(clippy::unwrap_used, missing_docs)]

use assert_cmd::Command;
use serde_json::Value;

const UNET: &str = "fixtures/traces/unet_small.pt";
const GPT2: &str = "fixtures/traces/gpt2_tiny.pt";

fn text(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_model-analyze"));
    command.current_dir(env!("CARGO_MANIFEST_DIR")).env("NO_COLOR", "1").env("COLUMNS", "10000");
    let output = command.args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    // Sentences, wherever lines break.
    said.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&text(&[arguments, &["--format", "json"]].concat())).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

/// A bound holds for plans of what was asked for; where others are faster, it says whose it is.
#[test]
fn a_bound_names_its_plans() {
    let unet = ["plan", UNET, "--devices", "2xa100", "--batch", "64"];
    let gpt2 = ["plan", GPT2, "--devices", "4xa100", "--batch", "8"];
    let free = [json(&unet), json(&gpt2)].map(|answer| number(&answer["step_seconds"]));
    assert_eq!(json(&unet)["bound_of"], "plan with whole layers");
    let cases: [(&[&str], &[&str], f64, &str); 3] = [
        (&unet, &["--stages", "2"], free[0], "plan with 2 stages"),
        (&gpt2, &["--strategy", "gpipe"], free[1], "gpipe plan with whole layers"),
        (&gpt2, &["--tensor-parallel", "2"], free[1], "plan with each layer on 2 devices"),
    ];
    for (arguments, more, free, of) in cases {
        let arguments = [arguments, more].concat();
        let answer = json(&arguments);
        assert!(number(&answer["lower_bound_seconds"]) > 1.001 * free, "{of} has no higher bound");
        assert_eq!(answer["bound_of"], of);
        let said = text(&arguments);
        assert!(said.contains(&format!("no {of} is faster")) && !said.contains("proven optimal"), "{said}");
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out").display().to_string();
        let said = text(&[&["split"], &arguments[1..], &["-o", &out]].concat());
        assert!(said.contains(&format!("no {of} is faster")), "{said}");
        let page = std::fs::read_to_string(format!("{out}/report.html")).unwrap();
        assert!(page.contains(&format!("no {of} is faster")) && !page.contains("no plan is faster"));
    }
}

/// What a plan is at most away from the best is rounded up, on the screen, in the text and in the report alike.
#[test]
fn a_gap_is_not_rounded_down() {
    let mut smallest = 1.0_f64;
    for devices in ["2xt4", "3xt4"] {
        let arguments = ["plan", UNET, "--devices", devices, "--stages", "2"];
        let gap = 100.0 * number(&json(&arguments)["gap"]);
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out").display().to_string();
        let screen = text(&[&["split"], &arguments[1..], &["-o", &out]].concat());
        let page = std::fs::read_to_string(format!("{out}/report.html")).unwrap();
        let figure = |said: &str, before: &str| -> f64 {
            let rest =
                &said[said.find(before).unwrap_or_else(|| panic!("no `{before}`: {said}")) + before.len()..];
            rest.split(' ').next().unwrap().trim_end_matches('%').parse().unwrap()
        };
        let said = [figure(&text(&arguments), "at most "), figure(&screen, "at most "), figure(&page, "≤ ")];
        assert!(
            said.iter().all(|shown| *shown >= gap && *shown < gap + 0.1 && *shown == said[0]),
            "{said:?}, {gap}"
        );
        smallest = smallest.min(0.1 - (said[0] - gap));
    }
    assert!(smallest < 0.05, "one of them would be rounded down");
}

/// Where the number of devices per layer is chosen, the bound holds for all numbers that were tried.
#[test]
fn a_bound_holds_for_all_numbers_of_devices_per_layer() {
    // So little memory that layers on one device need many stages, which the bound by their work does not know.
    let cluster = "kind: cluster\nversion: 1\ntypes:\n  slow: {memory: 120000, memory_bandwidth: 1.0e9, peak: {float32: 1.0e8}}\n\
        devices: [{type: slow, count: 4}]\nlevels: [{name: fast, bandwidth: 1.0e12, latency: 1.0e-9}]\n";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("slow.yaml");
    std::fs::write(&file, cluster).unwrap();
    let file = file.display().to_string();
    let planned = |degree| {
        json(&["plan", GPT2, "--cluster", &file, "--micro-batches", "4", "--tensor-parallel", degree])
    };
    let best = planned("auto");
    assert_eq!(best["shared"]["degree"], 2, "{best}");
    assert_eq!(best["bound_of"], Value::Null);
    for degree in ["none", "2", "4"] {
        let (bound, own) = (&best["lower_bound_seconds"], &planned(degree)["lower_bound_seconds"]);
        assert!(number(bound) <= 1.000_001 * number(own), "{degree}: {bound}, {own}");
    }
}

/// A change gets no credit for what another strategy gains without it.
#[test]
fn a_change_helps_the_strategy_that_was_asked_for() {
    let arguments =
        ["split", GPT2, "--devices", "4xa100", "--strategy", "gpipe", "--micro-batches", "8", "--dry-run"];
    let answer = json(&arguments);
    let compared = answer["compared"].as_array().unwrap();
    assert!(compared.iter().any(|other| other["slower"].as_f64().is_some_and(|by| by < -0.3)), "{answer}");
    let changes = answer["plan"]["what_if"].as_array().unwrap();
    let links = changes.iter().find(|change| change["change"] == "twice the bandwidth").unwrap();
    assert!(number(&links["gains"]) < 0.01, "{links}");
}

/// Devices differ: the speed-up is against the fastest, as `plan` tells it.
#[test]
fn a_speed_up_is_against_a_device_that_there_is() {
    let of = |command: &'static str, devices: &'static str| {
        vec![command, UNET, "--devices", devices, "--micro-batches", "16"]
    };
    for devices in ["2xa100,2xt4", "2xt4,2xa100"] {
        let answer = json(&[&of("split", devices)[..], &["--dry-run"]].concat());
        let alone = json(&[&of("plan", devices)[..], &["--strategy", "one-device"]].concat());
        let (own, alone) = (number(&answer["one_device_step_seconds"]), number(&alone["step_seconds"]));
        assert!((own / alone - 1.0).abs() < 1e-6, "{devices}: {own}, {alone}");
        let said = text(&of("plan", devices));
        let times = format!("{:.2} times as long", own / number(&answer["plan"]["step_seconds"]));
        assert!(said.contains("One device would take") && said.contains(&times), "{times}: {said}");
    }
}

/// Times of other devices than the first have a source, too.
#[test]
fn times_of_each_type_of_device_are_explained() {
    let said = text(&["plan", UNET, "--devices", "2xa100,2xt4", "--batch", "16"]);
    let alone = |devices| {
        let more = ["--batch", "16", "--strategy", "one-device"];
        number(&json(&[&["plan", UNET, "--devices", devices], &more[..]].concat())["stages"][0]["seconds"])
    };
    let factor = format!("; T4 {:.2} × as long", alone("1xt4") / alone("1xa100"));
    assert!(said.contains(&factor), "{factor}: {said}");
    assert!(!text(&["plan", UNET, "--devices", "2xt4", "--batch", "16"]).contains("× as long"));
}

/// Each device has stages of both ends, and the busiest is that whose two take longest.
#[test]
fn two_copies_are_told_of_together() {
    let arguments = ["plan", GPT2, "--devices", "4xa100", "--strategy", "chimera", "--micro-batches", "16"];
    let answer = json(&arguments);
    let stages = answer["stages"].as_array().unwrap();
    let of = |index: usize, key: &str| number(&stages[index][key]);
    let both = |index: usize| (of(index, "seconds") + of(3 - index, "seconds")) / 2.0;
    let index = if both(0) > both(1) { 0 } else { 1 };
    let said = text(&arguments);
    let devices = format!("node0:{index} and node0:{} are the busiest devices", 3 - index);
    assert!(said.contains(&devices) && !said.contains("is the slowest"), "{devices}: {said}");
    assert!((of(index, "compute_seconds") / both(index) - 1.0).abs() < 1e-3, "{answer}");
}

/// What a plan was asked to recompute is no matter of memory, not even when the plan is scored again.
#[test]
fn a_checked_plan_recomputes_as_asked() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.yaml").display().to_string();
    let own = ["plan", UNET, "--devices", "2xa100"];
    let asked = ["--batch", "8", "--recompute", "down.*=always", "--strategy", "1f1b", "-o", &file];
    let planned = text(&[&own[..], &asked].concat());
    let checked = text(&[&own[..], &["--check", &file]].concat());
    for said in [planned, checked] {
        assert!(said.contains("As asked, stage 0 recomputes") && !said.contains("To fit"), "{said}");
    }
}

/// Keys and values of shared attentions are a device's part.
#[test]
fn keys_and_values_say_whose_they_are() {
    let inference = ["plan", GPT2, "--devices", "2xa100", "--inference", "--kv-cache", "64"];
    let whole = text(&[&inference[..], &["--batch", "4"]].concat());
    assert!(whole.contains("per token and sequence in "), "{whole}");
    let part = text(&[&inference[..], &["--batch", "4", "--tensor-parallel", "2"]].concat());
    assert!(part.contains("per token and sequence on each device in "), "{part}");
    assert!(part.contains(" % of the model's FLOPs; "), "{part}");
}

/// On one device most strategies have one plan, and none is the next best.
#[test]
fn one_device_has_no_next_best() {
    let one = text(&["plan", UNET, "--devices", "1xa100", "--batch", "8"]);
    assert!(!one.contains("(+0.0 %)"), "{one}");
    assert!(text(&["plan", UNET, "--devices", "2xa100", "--batch", "8"]).contains("Next best: "));
}

/// The devices that are given decide; that a plan was made with other host overhead is said.
#[test]
fn a_checked_plan_says_whose_host_is_charged() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.yaml").display().to_string();
    let made =
        json(&["plan", UNET, "--devices", "2xa100", "--batch", "8", "--host-overhead", "5000", "-o", &file]);
    let checked = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_model-analyze"));
        command
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .args(["plan", UNET, "--check", &file, "--format", "json"]);
        let output = command.args(more).output().unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        let is_as_made = (number(&answer["step_seconds"]) / number(&made["step_seconds"]) - 1.0).abs() < 1e-9;
        (is_as_made, String::from_utf8(output.stderr).unwrap().contains("--host-overhead sets it"))
    };
    assert_eq!(checked(&[]), (true, false));
    assert_eq!(checked(&["--devices", "2xa100", "--host-overhead", "5000"]), (true, false));
    assert_eq!(checked(&["--devices", "2xa100"]), (false, true));
}
