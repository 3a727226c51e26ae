//! Plans of real profiles are what the simulator says of the written file, and what checking the file says: every strategy,
//! with and without communication beside compute, with room and without.
//!
//! `PLAN_SWEEP=all cargo test --release -p model-analyze-partitioner --test sweep` tries 2, 4, 8 and 16 devices for every outside profile,
//! `PLAN_SWEEP=gnmt` for one of them.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::{path::Path, time::Instant};

use partitioner::{
    Machine, Objective, Problem, STRATEGIES, Strategy, Training, check_plan, plan_with, to_plan,
};
use schema::{
    Bytes, BytesPerSecond, Cluster, Device, DeviceType, Level, ModelReference, PipedreamProfile, Plan,
    Seconds,
};
use simulator::{PlanOptions, from_plan, simulate};

#[path = "../../tests/needs/mod.rs"]
mod needs;

/// What was looked at.
#[derive(Default)]
struct Seen {
    plans: usize,
    unfit: usize,
    faults: Vec<String>,
}

/// Devices of so many bytes, four to a node: 16 GB/s in a node, 3 GB/s between nodes.
fn cluster(n_devices: usize, memory: u64) -> Cluster {
    let type_ = DeviceType {
        memory: Bytes(memory),
        memory_bandwidth: BytesPerSecond(9e11),
        host_bandwidth: Some(BytesPerSecond(1.2e10)),
        ..DeviceType::default()
    };
    let device = |index: usize| Device {
        name: format!("d{index}"),
        type_: "v100".into(),
        place: vec![index as u32 / 4],
    };
    let level = |name: &str, bandwidth, latency| Level {
        name: name.into(),
        bandwidth: BytesPerSecond(bandwidth),
        latency: Seconds(latency),
    };
    Cluster {
        types: [("v100".to_string(), type_)].into(),
        devices: (0..n_devices).map(device).collect(),
        levels: vec![level("node", 1.6e10, 3e-6), level("network", 3e9, 1e-5)],
        links: Vec::new(),
    }
}

/// Plans with a strategy, writes the plan, simulates and checks it; returns the fullest device's bytes where there is a plan.
fn try_one(
    name: &str,
    profile: &PipedreamProfile,
    (n_devices, memory, overlaps): (usize, u64, bool),
    strategy: Strategy,
    seen: &mut Seen,
) -> Option<u64> {
    let cluster = cluster(n_devices, memory);
    let machine = Machine::from_cluster(&cluster, overlaps);
    let training = Training { recompute: true, offload: true, ..Training::default() };
    let problem = Problem::from_profile(profile, machine, training);
    let named = format!("{name}, {} on {n_devices} of {memory} B, overlaps {overlaps}", strategy.name());
    let begun = Instant::now();
    let solution = plan_with(&problem, strategy);
    println!("{named}: {:.1} s", begun.elapsed().as_secs_f64());
    let Ok(solution) = solution else {
        seen.unfit += 1;
        return None;
    };
    let model = ModelReference { name: name.into(), digest: String::new() };
    let plan = to_plan(&problem, &solution, &cluster, model, "");
    let plan: Plan = schema::from_yaml(&schema::to_yaml(&plan)).unwrap();
    let Ok(step) = from_plan(&plan, &PlanOptions::default()) else {
        // A rule can leave a stage without work, which is not simulated.
        let is_empty = solution.stages.iter().any(|stage| stage.score.compute == 0.0);
        if !is_empty {
            seen.faults.push(format!("{named}: the simulator refuses it"));
        }
        return None;
    };
    let timeline = simulate(&step.workload, &step.order, &step.machine).unwrap();
    let theirs = match solution.objective {
        Objective::Step(_) => timeline.step as f64 * 1e-9,
        Objective::Period(_) => step.period().unwrap() as f64 * 1e-9 / f64::from(plan.micro_batches),
    };
    seen.plans += 1;
    let mut fault = |what: String| seen.faults.push(format!("{named}: {what}"));
    let ours = solution.seconds();
    if (ours - theirs).abs() > 0.01 * theirs {
        fault(format!("planned {ours}, simulated {theirs}"));
    }
    if solution.lower_bound > theirs * (1.0 + 1e-6) {
        fault(format!("bound {}, simulated {theirs}", solution.lower_bound));
    }
    for (said, simulated) in plan.predicted.memory.iter().zip(&timeline.memory) {
        if said.peak.0 < simulated.peak || simulated.exceeded.is_some() {
            fault(format!("{said:?}, but {} bytes are simulated", simulated.peak));
        }
    }
    match check_plan(&problem, &plan) {
        Err(error) => fault(format!("checked: {error}")),
        Ok(checked) if (checked.seconds() - ours).abs() > 1e-6 * ours => {
            fault(format!("planned {ours}, checked {}", checked.seconds()));
        }
        Ok(_) => {}
    }
    plan.predicted.memory.iter().map(|memory| memory.peak.0).max()
}

/// Every strategy with room and with less than it wants: then the plan is another, recomputes, waits for the host, or does not
/// fit. Where not everything is asked for, half of the strategies are short of memory where nothing overlaps, half where it does.
fn try_all(name: &str, profile: &PipedreamProfile, devices: &[usize], is_whole: bool, seen: &mut Seen) {
    for &n_devices in devices {
        for (index, &strategy) in STRATEGIES.iter().enumerate() {
            for overlaps in [true, false] {
                let roomy = try_one(name, profile, (n_devices, 1 << 40, overlaps), strategy, seen);
                let Some(peak) = roomy.filter(|_| is_whole || overlaps == index.is_multiple_of(2)) else {
                    continue;
                };
                let memory = (peak as f64 * 0.6) as u64;
                try_one(name, profile, (n_devices, memory, overlaps), strategy, seen);
            }
        }
    }
}

fn read(path: &Path) -> PipedreamProfile {
    let text = std::fs::read_to_string(path).expect("a fixture");
    PipedreamProfile::from_text(&text).expect("these profiles are right")
}

#[test]
fn written_plans_are_simulated_and_checked_as_they_were_made() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut seen = Seen::default();
    let own = read(&root.join("fixtures/profiles/small_vgg.txt"));
    try_all("small_vgg", &own, &[4], false, &mut seen);
    // `all`, or one by name.
    let wanted = std::env::var("PLAN_SWEEP").unwrap_or_default();
    let outside = ["alexnet", "vgg16", "gnmt", "resnet50", "nasnetamobile"];
    for name in outside.into_iter().filter(|name| wanted == "all" || wanted == *name) {
        if let Some(path) = needs::outside(&format!("partitioners/pipedream/{name}/graph.txt")) {
            try_all(name, &read(&path), &[2, 4, 8, 16], true, &mut seen);
        }
    }
    println!("{} plans, {} times none fits", seen.plans, seen.unfit);
    assert!(seen.faults.is_empty(), "{} faults:\n{}", seen.faults.len(), seen.faults.join("\n"));
    assert!(seen.plans > 25 && seen.unfit > 0, "{} {}", seen.plans, seen.unfit);
}
