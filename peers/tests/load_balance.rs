//! The optima of the dnn-partitioning workloads.

#![allow(clippy::unwrap_used)]

use peers::load_plan;
use schema::DnnWorkload;

#[path = "../../tests/needs/mod.rs"]
mod needs;

#[test]
fn workloads_reach_their_optimum() {
    let rows = [
        ("LayerGraphs/bert24_inference", 17.789906),
        ("LayerGraphs/bert24_training", 41.745812),
        ("LayerGraphs/gnmt_inference", 32.910658),
        ("LayerGraphs/gnmt_training", 107.004414),
        ("LayerGraphs/inceptionv3_inference", 51.551864),
        ("LayerGraphs/resnet50_training", 78.631813),
        ("OperatorGraphs/bert_l-3_training", 65.303149),
        ("OperatorGraphs/resnet50_inference", 124.348850),
    ];
    let mut n_found = 0;
    for (name, optimum) in rows {
        let path = format!("partitioners/dnn-partitioning/{name}.json");
        let Some(path) = needs::outside(&path) else { continue };
        n_found += 1;
        let workload = DnnWorkload::from_text(&std::fs::read_to_string(path).unwrap()).unwrap();
        let plan = load_plan(&workload).unwrap();
        assert!((plan.load - optimum).abs() < 0.6e-6, "{name}: {} is not {optimum}", plan.load);
        assert_eq!(plan.load, plan.lower_bound, "{name}");
    }
    assert!(n_found >= 5, "the sample has five: {n_found}");
}
