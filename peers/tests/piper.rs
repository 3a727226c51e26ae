//! Piper's own results on its BERT-32 workload: ours must be as good or better.

#![allow(clippy::unwrap_used)]

use peers::{PiperOptions, piper_plan};
use schema::PiperWorkload;

#[path = "../../tests/needs/mod.rs"]
mod needs;

#[test]
fn bert_is_at_least_as_good_as_the_greedy_choice() {
    let path = needs::outside("partitioners/piper/bert32a100.json").expect("the sample has it");
    let workload = PiperWorkload::from_text(&std::fs::read_to_string(path).unwrap()).unwrap();
    let rows = [
        (256, [true, true, true], 0.00508104534),
        (2048, [true, true, true], 0.000703591184),
        (512, [false, true, true], 0.07390625),
        (512, [true, false, true], 0.00256112785),
        (512, [true, true, false], 0.00341807489),
    ];
    for (n_devices, [data_parallel, tensor_parallel, recompute], theirs) in rows {
        let memory = 8.0 * 1024.0_f64.powi(3);
        let bandwidth = 25.0 * 1024.0_f64.powi(3);
        let workload =
            PiperWorkload { n_devices, memory, bandwidth, micro_batches: 1920, ..workload.clone() };
        let plan = piper_plan(&workload, PiperOptions { data_parallel, tensor_parallel, recompute }).unwrap();
        assert!(plan.period <= theirs * (1.0 + 1e-8), "{n_devices}: {} is worse than {theirs}", plan.period);
        assert!(plan.period - plan.lower_bound <= 1e-9 * plan.period);
        for stage in &plan.stages {
            assert!(stage.memory <= memory);
        }
        let devices: u32 = plan.stages.iter().map(|stage| stage.data_parallel * stage.tensor_parallel).sum();
        assert!(devices <= n_devices);
    }
}
