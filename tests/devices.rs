//! `model-analyze devices`, and the names that completions offer.
#![allow(clippy::unwrap_used, missing_docs)]

use assert_cmd::Command;
use validate::validate;

mod validate;

fn run(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_model-analyze"));
    let output = command.args(arguments).env("NO_COLOR", "1").assert().success().stderr("");
    String::from_utf8(output.get_output().stdout.clone()).unwrap()
}

#[test]
fn the_catalogue_is_a_table() {
    let text = run(&["devices"]);
    assert_eq!(text.lines().count(), schema::catalogue().len() + 1);
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let row = |name: &str| -> Vec<&str> {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
    };
    assert_eq!(
        row("device"),
        [
            "device",
            "memory",
            "bandwidth",
            "float32",
            "tf32",
            "bfloat16",
            "float16",
            "float8",
            "link",
            "curves"
        ]
    );
    assert_eq!(
        row("H100-SXM5-80GB"),
        ["H100-SXM5-80GB", "79.1 GiB", "3.35 TB/s", "66.9", "494", "989", "989", "1,978", "450 GB/s", "yes"]
    );
    // Lent by the card of the same chip that was measured.
    assert_eq!(row("V100-SXM2-16GB").last(), Some(&"yes"));
    assert_eq!(row("B200-SXM-180GB").last(), Some(&"-"));
}

#[test]
fn one_device_is_shown_with_its_sources() {
    let text = run(&["devices", "v100 sxm2 16gb"]);
    assert!(text.starts_with("V100-SXM2-16GB"), "{text}");
    for (name, device) in schema::catalogue() {
        let text = run(&["devices", name]);
        for source in device.sources.values() {
            assert!(text.contains(source), "{name}: {source}\n{text}");
        }
    }
}

#[test]
fn the_answer_follows_its_schema() {
    let answer: serde_json::Value = serde_json::from_str(&run(&["devices", "--format", "json"])).unwrap();
    validate("answer-devices", &answer);
    let devices = answer["devices"].as_array().unwrap();
    assert_eq!(devices.len(), schema::catalogue().len());
    for device in devices {
        let is_fitted = device["times"].as_str().unwrap().contains("fitted to");
        assert_eq!(device["has_curves"], is_fitted, "{device}");
    }
}

#[test]
fn completions_offer_values() {
    let fish = run(&["completions", "fish"]);
    let offers = |subcommand: &str, option: &str, value: &str| {
        let mut lines = fish.lines();
        let mut found = None;
        while let Some(line) = lines.next() {
            if line.contains(&format!("subcommand {subcommand}\""))
                && line.contains(&format!(" -l {option} "))
            {
                let rest = lines.clone().take_while(|line| !line.starts_with("complete"));
                found = Some(
                    std::iter::once(line).chain(rest).any(|line| line.contains(&format!("{value}\\t''"))),
                );
            }
        }
        found.unwrap_or_else(|| panic!("no {subcommand} --{option}:\n{fish}"))
    };
    for (subcommand, option, value) in [
        ("split", "devices", "8xh100"),
        ("plan", "devices", "1xcpu"),
        ("plan", "strategy", "1f1b"),
        ("split", "strategy", "even-layers"),
        ("split", "schedule", "interleaved-zero-bubble"),
        ("simulate", "schedule", "zbv"),
        ("inspect", "device", "h100"),
    ] {
        assert!(offers(subcommand, option, value), "{subcommand} --{option} {value}");
    }
    // Only stages of these are planned, whatever can be simulated.
    assert!(offers("split", "schedule", "zbv"));
    assert!(!offers("split", "schedule", "v-half"));
}
