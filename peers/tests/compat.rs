//! The released PipeDream optimizer's figures, from its own runs on its own profiles.

#![allow(clippy::unwrap_used, clippy::type_complexity, clippy::approx_constant)]

use peers::{CompatPlan, CompatQuestion, compat_plan};
use schema::{BytesPerSecond, PipedreamProfile};

#[path = "../../tests/needs/mod.rs"]
mod needs;

/// Reads a profile of the outside data.
fn profile(name: &str) -> PipedreamProfile {
    let path =
        needs::outside(&format!("partitioners/pipedream/{name}/graph.txt")).expect("the sample has it");
    PipedreamProfile::from_text(&std::fs::read_to_string(path).unwrap()).expect("outside profiles are right")
}

fn plan(name: &str, machines: &[u32], bandwidths: &[f64], transfer: bool, straight: bool) -> CompatPlan {
    let profile = profile(name);
    let bandwidths: Vec<_> = bandwidths.iter().map(|&rate| BytesPerSecond(rate)).collect();
    let question = CompatQuestion {
        profile: &profile,
        machines,
        bandwidths: &bandwidths,
        activation_transfer: transfer,
        straight,
    };
    let plan = compat_plan(&question).expect("these have plans");
    let mut nodes: Vec<usize> = plan.stages.iter().flat_map(|stage| stage.nodes.clone()).collect();
    nodes.sort_unstable();
    assert_eq!(nodes, (0..profile.nodes.len()).collect::<Vec<_>>(), "every node is in one stage");
    plan
}

/// Seconds with six decimals, as the original prints them.
#[test]
fn runs_of_the_original_give_the_same_time() {
    let rows: &[(&str, &[u32], &[f64], f64, f64)] = &[
        ("vgg16", &[4], &[1e9], 0.205521, 2.84),
        ("vgg16", &[8], &[1e9], 0.103833, 3.14),
        ("vgg16", &[16], &[1e9], 0.056530, 3.04),
        ("vgg16", &[8], &[7.2e9], 0.090508, 1.30),
        ("vgg16", &[16], &[1.8e9], 0.052297, 2.18),
        ("alexnet", &[4], &[1e9], 0.034217, 5.98),
        ("alexnet", &[8], &[1e9], 0.018874, 6.23),
        ("alexnet", &[16], &[1e9], 0.018874, 3.32),
        ("gnmt", &[4], &[1e9], 0.025868, 23.34),
        ("gnmt", &[8], &[1e9], 0.019285, 18.16),
        ("gnmt", &[16], &[1e9], 0.019285, 9.71),
        ("resnet50", &[4], &[1e9], 0.162881, 1.15),
        ("resnet50", &[8], &[1e9], 0.092012, 1.09),
        ("resnet50", &[16], &[1e9], 0.047801, 1.08),
        ("resnet50", &[4], &[16e9], 0.111497, 1.04),
        ("vgg16", &[4, 4], &[16e9, 1.25e9], 0.066582, 1.98),
        ("vgg16", &[8, 2], &[30e9, 3.125e9], 0.065767, 1.04),
        ("vgg16", &[8, 2], &[4294967296.0, 2147483648.0], 0.0783925, 1.307),
        ("alexnet", &[4, 4], &[16e9, 1.25e9], 0.015099, 2.97),
        ("alexnet", &[8, 2], &[30e9, 3.125e9], 0.009683, 1.74),
        ("gnmt", &[4, 4], &[16e9, 1.25e9], 0.011081, 11.82),
        ("gnmt", &[8, 2], &[30e9, 3.125e9], 0.008860, 4.77),
        ("resnet50", &[4, 4], &[16e9, 1.25e9], 0.043208, 1.02),
        ("resnet50", &[8, 2], &[30e9, 3.125e9], 0.031989, 1.02),
    ];
    for &(name, machines, bandwidths, period, speedup) in rows {
        let plan = plan(name, machines, bandwidths, true, false);
        let case = format!("{name} {machines:?} {bandwidths:?}");
        assert!((plan.period - period).abs() < 0.6e-6, "{case}: {} is not {period}", plan.period);
        let ours = plan.data_parallel / plan.period;
        assert!((ours - speedup).abs() < 0.0051, "{case}: ×{ours} over data parallelism is not ×{speedup}");
    }
}

/// Milliseconds with two decimals at 1, 1.25, 3.125 and 16 GB/s, then straight at 1 GB/s.
#[test]
fn flat_machines_give_the_table() {
    let rows: &[(&str, u32, [f64; 5])] = &[
        ("alexnet", 4, [34.22, 32.46, 28.25, 22.19, 66.45]),
        ("alexnet", 8, [18.87, 15.10, 12.45, 10.98, 66.45]),
        ("alexnet", 16, [18.87, 15.10, 6.29, 5.56, 95.55]),
        ("vgg16", 4, [205.52, 176.35, 173.39, 169.95, 411.04]),
        ("vgg16", 8, [103.83, 100.84, 93.66, 89.37, 411.04]),
        ("vgg16", 16, [56.53, 54.79, 45.52, 42.96, 411.04]),
        ("resnet50", 4, [162.88, 151.99, 116.43, 111.50, 258.15]),
        ("resnet50", 8, [92.01, 82.21, 64.13, 55.91, 258.15]),
        ("resnet50", 16, [47.80, 43.85, 32.88, 28.29, 258.15]),
        ("gnmt", 4, [25.87, 25.87, 25.87, 25.87, 25.87]),
        ("gnmt", 8, [19.29, 19.29, 19.03, 17.12, 19.29]),
        ("gnmt", 16, [19.29, 17.12, 11.08, 9.19, 24.64]),
    ];
    for &(name, machines, expected) in rows {
        for (column, expected) in expected.into_iter().enumerate() {
            let bandwidth = [1e9, 1.25e9, 3.125e9, 16e9, 1e9][column];
            let plan = plan(name, &[machines], &[bandwidth], true, column == 4);
            let ours = plan.period * 1e3;
            assert!(
                (ours - expected).abs() < 0.0051,
                "{name} {machines} {bandwidth}: {ours} is not {expected}"
            );
        }
    }
}

#[test]
fn published_configurations_are_reached() {
    let check = |name: &str, machines: &[u32], bandwidths: &[f64], expected: &[u32]| {
        let plan = plan(name, machines, bandwidths, true, false);
        let replicas: Vec<u32> = plan.stages.iter().map(|stage| stage.replicas).collect();
        assert_eq!(replicas, expected, "{name} {machines:?}");
    };
    check("vgg16", &[4], &[1e9], &[3, 1]);
    check("vgg16", &[8], &[7.2e9], &[7, 1]);
    check("vgg16", &[16], &[1.8e9], &[15, 1]);
    check("alexnet", &[4], &[1e9], &[3, 1]);
    check("resnet50", &[4], &[16e9], &[2, 1, 1]);
    check("resnet50", &[4, 4], &[16e9, 1.25e9], &[8, 4, 4]);
}

/// A graph of branches as long as asked for, between one node and another.
fn wide(branches: usize, length: usize) -> PipedreamProfile {
    let node = |id: &str, cost: usize| {
        format!(
            "{id} -- Layer -- forward_compute_time={cost}.000, backward_compute_time={cost}.000, activation_size={cost}000.000, parameter_size={cost}000.000\n"
        )
    };
    let (mut nodes, mut edges) = (node("first", 1) + &node("join", 1), String::new());
    for branch in 0..branches {
        let mut before = "first".to_string();
        for place in 0..length {
            let id = format!("b{branch}.{place}");
            nodes.push_str(&node(&id, 1 + branch + place));
            edges.push_str(&format!("\t{before} -- {id}\n"));
            before = id;
        }
        edges.push_str(&format!("\t{before} -- join\n"));
    }
    PipedreamProfile::from_text(&(nodes + &edges)).expect("a profile")
}

#[test]
fn graphs_too_wide_are_compressed() {
    let plan = |profile: &PipedreamProfile| {
        compat_plan(&CompatQuestion {
            profile,
            machines: &[4],
            bandwidths: &[BytesPerSecond(1e8)],
            activation_transfer: true,
            straight: false,
        })
    };
    // 5⁷ sets of begun branches, 2⁷ once each is one node.
    let profile = wide(7, 4);
    let found = plan(&profile).unwrap();
    assert_eq!(found.compressed, Some(9));
    let mut nodes: Vec<usize> = found.stages.iter().flat_map(|stage| stage.nodes.clone()).collect();
    nodes.sort_unstable();
    assert_eq!(nodes, (0..profile.nodes.len()).collect::<Vec<_>>());
    // Branches stay whole.
    for branch in 0..7 {
        let at = |place: usize| 2 + branch * 4 + place;
        let stage_of = |node: usize| found.stages.iter().position(|stage| stage.nodes.contains(&node));
        assert!((1..4).all(|place| stage_of(at(place)) == stage_of(at(0))), "{branch}");
    }
    assert!(found.lower_bound > 0.0 && found.lower_bound <= found.period, "{found:?}");
    let narrow = plan(&wide(2, 4)).unwrap();
    assert_eq!((narrow.compressed, narrow.lower_bound), (None, narrow.period));
    assert!(plan(&wide(13, 2)).unwrap_err().to_string().contains("branches compressed"));
}
