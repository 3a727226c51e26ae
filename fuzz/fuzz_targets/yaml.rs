//! Any text as each file that people write by hand or keep: clusters, plans, cost models, devices, maps, manifests.
#![no_main]

use schema::{CostModelFile, Executed, Manifest, Plan, ProfileMap, Timeline};

/// Larger ones are only read: simulating millions of operations is slow, and not wrong.
const MOST_OPERATIONS: usize = 2000;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(cluster) = schema::read_cluster(text, &Default::default()) {
        let written = schema::write_cluster(&cluster);
        let again = schema::read_cluster(&written, &Default::default()).expect("what is written can be read");
        assert_eq!(schema::write_cluster(&again), written);
    }
    if text.len() < 100 {
        let _ = schema::short_cluster(text, &Default::default());
    }
    let _ = schema::read_devices(text);
    let _ = ProfileMap::read(text);
    if let Ok(file) = CostModelFile::read(text) {
        let _ = cost_model::CostModel::from_file(&file);
    }
    if let Ok(plan) = schema::from_yaml::<Plan>(text) {
        let size = plan.stages.len().saturating_mul(plan.micro_batches as usize);
        if size < MOST_OPERATIONS
            && let Ok(step) = simulator::from_plan(&plan, &simulator::PlanOptions::default())
        {
            let _ = simulator::simulate(&step.workload, &step.order, &step.machine);
        }
    }
    let _ = serde_json::from_str::<Timeline>(text);
    let _ = serde_json::from_str::<Manifest>(text);
    let _ = serde_json::from_str::<Executed>(text);
});
