//! Any text as a profile of PipeDream, dnn-partitioning or Piper; small ones are planned.
#![no_main]

use partitioner::{Machine, Problem, Strategy, Training, plan_with};
use peers::{CompatQuestion, PiperOptions, compat_plan, load_plan_within, piper_plan};
use schema::{Bytes, BytesPerSecond, DnnWorkload, PipedreamProfile, PiperWorkload};

/// Larger ones are only read.
const MOST_NODES: usize = 10;
const MOST_DEVICES: u32 = 8;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(workload) = DnnWorkload::from_text(text)
        && workload.nodes.len() <= MOST_NODES
        && workload.n_accelerators.saturating_add(workload.n_cpus) <= MOST_DEVICES
    {
        let _ = load_plan_within(&workload, 1000);
    }
    if let Ok(workload) = PiperWorkload::from_text(text)
        && workload.nodes.len() <= MOST_NODES
        && workload.n_devices <= MOST_DEVICES
    {
        let _ = piper_plan(&workload, PiperOptions::default());
    }
    if let Ok(profile) = PipedreamProfile::from_text(text)
        && profile.nodes.len() <= MOST_NODES
    {
        let question = CompatQuestion {
            profile: &profile,
            machines: &[4],
            bandwidths: &[BytesPerSecond(1e9)],
            activation_transfer: true,
            straight: false,
        };
        let _ = compat_plan(&question);
        let machine = Machine::flat(3, Bytes(1 << 34), BytesPerSecond(1e9));
        let problem = Problem::from_profile(&profile, machine, Training::default());
        let _ = plan_with(&problem, Strategy::PipeDream);
    }
});
