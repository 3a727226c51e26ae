//! Plans whose numbers are as large as a file can hold: they are refused by name, or the answer is true.
#![allow(clippy::unwrap_used)]

use schema::{Plan, read_plan};
use simulator::{PlanError, PlanOptions, SimulateError, from_plan, simulate};

/// A plan of stages with a device each, or of one stage on all devices.
fn plan(
    schedule: &str,
    micro_batches: u32,
    bandwidth: &str,
    stages: &[(&str, &[usize])],
    more: &str,
) -> Plan {
    let n_devices = stages.iter().flat_map(|(_, devices)| *devices).max().map_or(0, |last| last + 1);
    let devices: String =
        (0..n_devices).map(|at| format!("  - {{name: d{at}, type: a, place: [0]}}\n")).collect();
    let stages: String = stages
        .iter()
        .map(|(cost, devices)| {
            let devices: Vec<String> = devices.iter().map(|device| format!("d{device}")).collect();
            format!("- blocks: [b]\n  devices: [{}]\n  {cost}\n", devices.join(", "))
        })
        .collect();
    let text = format!(
        "kind: plan\nversion: 1\nwritten_by: x\nmodel: {{name: m, digest: \"0\"}}\ncluster:\n  types:\n    \
         a: {{memory: 1000000000, memory_bandwidth: 1.0e12, peak: {{float32: 1.0e12}}}}\n  devices:\n{devices}  \
         levels:\n  - {{name: l, bandwidth: {bandwidth}, latency: 0.0}}\n{more}strategy: x\nschedule: {schedule}\n\
         micro_batches: {micro_batches}\nstages:\n{stages}predicted: {{}}\n"
    );
    read_plan(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn cost(forward: &str, parameters: &str, activations: &str) -> String {
    format!(
        "cost: {{forward: {forward}, input_gradient: 1.0, weight_gradient: 1.0, parameters: {parameters}, \
         optimizer: 0, activations: {activations}, workspace: 0, offloaded: {activations}}}"
    )
}

#[track_caller]
fn refused(plan: &Plan, expected: &str) {
    let error = from_plan(plan, &PlanOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), expected);
}

#[test]
fn times_that_leave_64_bits_together_are_refused() {
    let long = cost("1.0e9", "1", "1");
    let devices = [[0], [1], [2], [3]];
    let stages: Vec<(&str, &[usize])> = devices.iter().map(|device| (long.as_str(), &device[..])).collect();
    from_plan(&plan("1f1b", 3, "1.0e9", &stages[..3], ""), &PlanOptions::default()).unwrap();
    let expected = "the times of the plan add up to more than a century, at stage 3 at the latest";
    refused(&plan("1f1b", 1, "1.0e9", &stages, ""), expected);
    let layer = "{forward: 1.0e9, backward: 1.0e9, gradients: 1}";
    let layers = format!("layers: [{layer}, {layer}]\n  {}", cost("1.0", "2", "1"));
    let expected = "the times of the plan add up to more than a century, at stage 0 at the latest";
    refused(&plan("1f1b", 2, "1.0e9", &[(&layers, &[0, 1])], ""), expected);
}

#[test]
fn sizes_that_leave_64_bits_together_are_refused() {
    let expected = "the sizes of the plan add up to more than 2^60 bytes, at stage 0 at the latest";
    for bytes in ["9223372036854775808", "18446744073709551615", "1152921504606846977"] {
        refused(&plan("1f1b", 1, "1.0e9", &[(&cost("1.0", "1", bytes), &[0])], ""), expected);
        refused(&plan("1f1b", 1, "1.0e9", &[(&cost("1.0", bytes, "1"), &[0])], ""), expected);
    }
    let large = cost("1.0", "1", "1000000000000000000");
    let step = plan("1f1b", 1, "1.0e9", &[(&large, &[0])], "");
    let step = from_plan(&step, &PlanOptions::default()).unwrap();
    let timeline = simulate(&step.workload, &step.order, &step.machine);
    assert!(timeline.unwrap().memory[0].peak >= 1_000_000_000_000_000_000);
}

#[test]
fn agreements_that_take_longer_than_counted_are_refused() {
    for (bandwidth, micro_batches) in [("1.0e-300", 2), ("10", 1000)] {
        let cost = cost("1.0", "1000000000", "1");
        let plan = plan("pipedream", micro_batches, bandwidth, &[(&cost, &[0, 1])], "");
        let step = from_plan(&plan, &PlanOptions::default()).unwrap();
        assert_eq!(step.period(), Err(SimulateError::Overflow), "{bandwidth}");
    }
}

#[test]
fn links_to_nowhere_are_named() {
    let link = "  links:\n  - {from: nowhere, to: d0, bandwidth: 1.0, latency: 0.0}\n";
    let cost = cost("1.0", "1", "1");
    let plan = plan("1f1b", 1, "1.0e9", &[(&cost, &[0])], link);
    let expected = PlanError::UnknownLink { from: "nowhere".to_string(), to: "d0".to_string() };
    assert_eq!(from_plan(&plan, &PlanOptions::default()).unwrap_err(), expected);
}
