//! How an operator of a graph is seen: as the kind and size that profiles measure, whatever its tensors' ranks.

use cost_model::{CostModel, PredictOptions, predict};
use graph::BuildOptions;
use schema::catalogue;

const CONSTANTS: &str = "  %none : NoneType = prim::Constant()
  %no : bool = prim::Constant[value=0]()
  %zero : float = prim::Constant[value=0.]()
";

/// Seconds of a step over one operator, on a processor that was profiled.
fn seconds(inputs: &str, operator: &str) -> f64 {
    let text = format!("graph({inputs}):\n{CONSTANTS}  %out : Tensor = {operator}\n  return (%out)\n");
    let program = tracer::ir::read_ir(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let graph = graph::build(&program, &BuildOptions::default()).expect("a graph");
    let device = "CPU-EPYC-ZEN4-1T";
    let model = CostModel::shipped(&catalogue()[device]).expect("a shipped model");
    let costs = predict(&graph, &graph::costs(&graph), &model, &PredictOptions::default());
    let total = costs.total();
    total.forward.seconds + total.backward().seconds
}

#[test]
fn a_norm_over_a_table_is_no_image_of_single_pixels() {
    let input = |sizes: &str, strides: &str| {
        format!(
            "%x : Float({sizes}, strides=[{strides}], requires_grad=1, device=cpu),
      %w : Float(256, strides=[1], requires_grad=1, device=cpu),
      %mean : Float(256, strides=[1], requires_grad=0, device=cpu)"
        )
    };
    let norm = "aten::batch_norm(%x, %w, %w, %mean, %mean, %no, %zero, %zero, %no)";
    // As many elements: LeViT's tokens, and an image of 14 × 14.
    let table = seconds(&input("588, 256", "256, 1"), norm);
    let image = seconds(&input("3, 256, 14, 14", "50176, 196, 14, 1"), norm);
    assert!(table < 2.0 * image && image < 2.0 * table, "{table} {image}");
}
