//! Prints our CPU seconds beside those that other planners took on the same problems: `make bench-plan`.
//!
//! The figures of the others were measured once, on two busy cores: PipeDream @7db6a1c under Python 3.11,
//! dnn-partitioning @b207b6a and Piper @d7fc8cf built with -O3. Profiles are read from `../shared/data/partitioners`.

#![allow(clippy::print_stdout)]

use std::{hint::black_box, path::PathBuf, time::Instant};

use partitioner::{Block, Machine, Problem, Strategy, Training, Value, plan_model, plan_with, what_if};
use peers::{CompatQuestion, PiperOptions, compat_plan, load_plan, piper_plan};
use schema::{Bytes, BytesPerSecond, DnnWorkload, PipedreamProfile, PiperWorkload, Seconds};

fn main() {
    println!("{:<58} {:>10} {:>10} {:>9}", "problem", "theirs s", "ours s", "ratio");
    // Any names of the parts below; all of them without one.
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let parts: [(&str, fn()); 6] = [
        ("compat", compat),
        ("loads", loads),
        ("piper", piper),
        ("chains", chains),
        ("wide", wide),
        ("whole", whole),
    ];
    for (name, part) in parts {
        if wanted.is_empty() || wanted.iter().any(|other| other == name) {
            part();
        }
    }
}

/// Seconds that this process has run; wall clock where the system does not tell.
fn cpu_seconds(start: Instant) -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanoseconds = text.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
    nanoseconds.map_or_else(|| start.elapsed().as_secs_f64(), |value| value * 1e-9)
}

/// Returns the CPU seconds of one call: of as many as make up a tenth of a second, and at least one.
fn time<T>(mut call: impl FnMut() -> T) -> (f64, T) {
    let clock = Instant::now();
    let start = cpu_seconds(clock);
    let mut calls = 0.0;
    loop {
        let answer = black_box(call());
        calls += 1.0;
        let spent = cpu_seconds(clock) - start;
        if spent > 0.1 {
            return (spent / calls, answer);
        }
    }
}

fn line(problem: &str, theirs: Option<f64>, ours: f64, note: &str) {
    let (theirs, ratio) = match theirs {
        Some(theirs) => (format!("{theirs:.2}"), format!("{:.0}x", theirs / ours)),
        None => ("-".to_string(), "-".to_string()),
    };
    println!("{problem:<58} {theirs:>10} {ours:>10.4} {ratio:>9}  {note}");
}

fn read(path: &str) -> Option<String> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/partitioners");
    let text = std::fs::read_to_string(root.join(path)).ok();
    if text.is_none() {
        println!("skipped: {path} is not there");
    }
    text
}

fn compat() {
    let rows: &[(&str, &[u32], &[f64], f64)] = &[
        ("vgg16", &[16], &[1e9], 0.28),
        ("gnmt", &[16], &[1e9], 0.54),
        ("resnet50", &[16], &[1e9], 3.42),
        ("resnet50", &[4, 4], &[16e9, 1.25e9], 18.31),
        ("resnet50", &[8, 2], &[30e9, 3.125e9], 66.87),
        ("gnmt", &[8, 2], &[30e9, 3.125e9], 2.94),
    ];
    for &(name, machines, bandwidths, theirs) in rows {
        let Some(text) = read(&format!("pipedream/{name}/graph.txt")) else { continue };
        let bandwidths: Vec<_> = bandwidths.iter().map(|&rate| BytesPerSecond(rate)).collect();
        // Reading the file is part of both.
        let (ours, period) = time(|| {
            let profile = PipedreamProfile::from_text(&text).ok()?;
            let question = CompatQuestion {
                profile: &profile,
                machines,
                bandwidths: &bandwidths,
                activation_transfer: true,
                straight: false,
            };
            compat_plan(&question).ok().map(|plan| plan.period)
        });
        let note = format!("T {:.6}", period.unwrap_or(f64::NAN));
        line(&format!("PipeDream optimizer, {name}, machines {machines:?}"), Some(theirs), ours, &note);
    }
}

fn loads() {
    let rows = [
        ("LayerGraphs/gnmt_inference", Some(11.02)),
        ("LayerGraphs/gnmt_training", Some(19.4)),
        ("LayerGraphs/inceptionv3_inference", None),
        ("OperatorGraphs/bert_l-3_training", Some(4.52)),
    ];
    for (name, theirs) in rows {
        let Some(text) = read(&format!("dnn-partitioning/{name}.json")) else { continue };
        let (ours, plan) = time(|| load_plan(&DnnWorkload::from_text(&text).ok()?).ok());
        let note = plan.map_or_else(String::new, |plan| {
            format!("load {:.6}, gap {:.1e}", plan.load, plan.load - plan.lower_bound)
        });
        line(&format!("dnn-partitioning, {name}"), theirs, ours, &note);
    }
}

fn piper() {
    let Some(text) = read("piper/bert32a100.json") else { return };
    for (n_devices, theirs) in [(512, 1.80), (2048, 33.26)] {
        let (ours, plan) = time(|| {
            let workload = PiperWorkload::from_text(&text).ok()?;
            let memory = 8.0 * 1024.0_f64.powi(3);
            let bandwidth = 25.0 * 1024.0_f64.powi(3);
            let workload = PiperWorkload { n_devices, memory, bandwidth, ..workload };
            piper_plan(&workload, PiperOptions::default()).ok()
        });
        let note = plan.map_or_else(String::new, |plan| format!("TPS {:.9}", plan.period));
        line(&format!("Piper, BERT-32, {n_devices} devices"), Some(theirs), ours, &note);
    }
}

/// A chain of layers that differ, the same in every run.
fn chain(n_blocks: usize, n_devices: usize, bandwidth: f64) -> Problem {
    let mut seed = 1_u64;
    let mut next = |below: u64| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) % below
    };
    let blocks = (0..n_blocks).map(|index| Block {
        path: format!("layer{index}"),
        forward: Seconds((500 + next(4500)) as f64 * 1e-6),
        input_gradient: Seconds((500 + next(4500)) as f64 * 1e-6),
        weight_gradient: Seconds((500 + next(4500)) as f64 * 1e-6),
        parameters: Bytes(next(4_000_000)),
        ..Block::default()
    });
    let blocks = blocks.collect();
    let values = (1..n_blocks).map(|to| {
        let bytes = Bytes(100_000 + next(2_000_000));
        Value { from: Some(to - 1), to: vec![to], forward: bytes, backward: bytes }
    });
    let values = values.collect();
    let machine = Machine::flat(n_devices, Bytes(u64::MAX / 4), BytesPerSecond(bandwidth));
    Problem {
        blocks,
        values,
        ties: Vec::new(),
        machine,
        training: Training::default(),
        begins: None,
        pins: Vec::new(),
    }
}

fn chains() {
    // From links that nothing can be replicated over to those over which everything can.
    let regimes = [1e6, 1e7, 3e7, 1e8, 1.5e8, 2e8, 3e8, 5e8, 1e9];
    for (n_blocks, n_devices, bandwidth) in [(10_000, 1024), (100_000, 1024), (100_000, 4096)]
        .into_iter()
        .flat_map(|(n_blocks, n_devices)| regimes.map(|bandwidth| (n_blocks, n_devices, bandwidth)))
    {
        let problem = chain(n_blocks, n_devices, bandwidth);
        let (ours, plan) = time(|| plan_with(&problem, Strategy::PipeDream).ok());
        let note = plan.map_or_else(String::new, |plan| {
            format!("period {:.6}, {} stages, gap {:.1e}", plan.seconds(), plan.stages.len(), plan.gap())
        });
        line(&format!("chain {n_blocks} x {n_devices}, {bandwidth:.1e} B/s"), None, ours, &note);
    }
}

fn wide() {
    let Some(text) = read("pipedream/nasnetamobile/graph.txt") else { return };
    let Ok(profile) = PipedreamProfile::from_text(&text) else { return };
    for (n_devices, bandwidth, strategy) in [
        (8, 3.125e9, Strategy::PipeDream),
        (16, 1.25e9, Strategy::PipeDream),
        (4, 16e9, Strategy::OneForwardOneBackward),
    ] {
        let machine = Machine::flat(n_devices, Bytes(32_000_000_000), BytesPerSecond(bandwidth));
        let problem = Problem::from_profile(&profile, machine, Training::default());
        let (ours, plan) = time(|| plan_with(&problem, strategy).ok());
        let note = plan.map_or_else(String::new, |plan| {
            format!("{} stages, gap {:.1} %", plan.stages.len(), plan.gap() * 100.0)
        });
        line(&format!("NASNet-A mobile x {n_devices}, {}", strategy.name()), None, ours, &note);
    }
}

/// What the command does: all strategies or one beside them, all numbers of micro-batches, and what would help.
fn whole() {
    const ASKED: f64 = 5.0;
    for (name, n_devices, bandwidth, strategy) in [
        ("vgg16", 16, 1e9, None),
        ("resnet50", 4, 1e9, None),
        ("resnet50", 8, 1e9, None),
        ("resnet50", 8, 1e9, Some(Strategy::Layer)),
        ("resnet50", 16, 16e9, None),
        ("nasnetamobile", 4, 1e9, Some(Strategy::OneForwardOneBackward)),
    ] {
        let Some(text) = read(&format!("pipedream/{name}/graph.txt")) else { continue };
        let Ok(profile) = PipedreamProfile::from_text(&text) else { continue };
        let (ours, plan) = time(|| {
            let machine = Machine::flat(n_devices, Bytes(16_000_000_000), BytesPerSecond(bandwidth));
            let mut problem = Problem::from_profile(&profile, machine, Training::default());
            let planned = plan_model(&mut problem, strategy, None).ok()?;
            black_box(what_if(&problem, &planned.cut_space, &planned.best, None));
            Some(planned.best)
        });
        let note = plan.map_or_else(String::new, |plan| {
            let mark = if ours < ASKED { "" } else { ", TOO LONG" };
            let seconds = plan.seconds_each();
            format!(
                "{} {seconds:.4} s, gap {:.1} %; asked {ASKED} s{mark}",
                plan.made_by.name(),
                plan.gap() * 100.0
            )
        });
        let asked = strategy.map_or("auto", Strategy::name);
        line(&format!("plan {name} x {n_devices}, {bandwidth:.1e} B/s, {asked}"), None, ours, &note);
    }
}
