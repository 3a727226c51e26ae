//! Other batches of a graph are predicted as a graph of that batch is.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use cost_model::{CostModel, PredictOptions, predict};
use graph::{BuildOptions, InputShape};

/// Predicts a trace at three times its batch, by scale and by its shapes; returns both times of the forward pass.
fn both(name: &str) -> [f64; 2] {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../fixtures/traces/{name}.pt"));
    let program = tracer::read_archive(&std::fs::read(path).unwrap()).unwrap();
    let own = graph::build(&program, &BuildOptions::default()).unwrap();
    let inputs = own.inputs.iter().map(|value| {
        let fact = own.value(*value).fact.tensor().unwrap().clone();
        let mut shape = fact.sizes().unwrap();
        shape[0] *= 3;
        InputShape { name: None, shape, dtype: fact.dtype }
    });
    let large = graph::build(&program, &BuildOptions { inputs: inputs.collect() }).unwrap();
    // Launches would hide what is wrong.
    let mut figures = schema::catalogue()["T4"].clone();
    figures.launch = Some(schema::Seconds(1e-12));
    let sheet = CostModel::of_data_sheet("T4", &figures);
    [(own, 3.0), (large, 1.0)].map(|(graph, batch_scale)| {
        let options = PredictOptions { batch_scale, ..PredictOptions::default() };
        predict(&graph, &graph::costs(&graph), &sheet, &options).total().forward.seconds
    })
}

#[test]
fn a_larger_batch_is_predicted_as_its_own_graph_is() {
    // Language models make masks of numbers, of which nothing says whether they are samples.
    for (name, most) in [
        ("unet_small", 0.0),
        ("cnn_basic", 0.0),
        ("amoebanet_6_small", 0.0),
        // A trace says that `to` has put channels last, which `contiguous` turns back; no rule does for other sizes.
        ("conversions", 0.1),
        ("repeats", 0.0),
        ("gpt2_tiny", 0.01),
        ("bert_tiny", 0.01),
    ] {
        let [scaled, built] = both(name);
        assert!((scaled / built - 1.0).abs() <= most + 1e-9, "{name}: {scaled:e} {built:e}");
    }
}
