//! The optima of the dnn-partitioning workloads.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::path::Path;

use partitioner::load_plan;
use schema::DnnWorkload;

#[test]
fn workloads_reach_their_optimum() {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/partitioners/dnn-partitioning");
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
    for (name, optimum) in rows {
        let path = folder.join(name).with_extension("json");
        let Ok(text) = std::fs::read_to_string(&path) else {
            println!("skipped: {} is not there", path.display());
            return;
        };
        let workload = DnnWorkload::from_text(&text).unwrap();
        let plan = load_plan(&workload).unwrap();
        assert!((plan.load - optimum).abs() < 0.6e-6, "{name}: {} is not {optimum}", plan.load);
        assert_eq!(plan.load, plan.lower_bound, "{name}");
    }
}
