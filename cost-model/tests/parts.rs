//! A part of an operator is predicted as an operator of its own sizes is.
#![allow(clippy::unwrap_used)]

use cost_model::{CostModel, Parts, PredictOptions, predict};
use graph::BuildOptions;

/// Predicts the passes of a dense layer of 512 samples.
fn dense(inputs: u64, outputs: u64, parts: Parts, model: &CostModel) -> [f64; 3] {
    predicted(
        &format!(
            "graph(%self : __torch__.Dense,
      %x : Float(512, {inputs}, strides=[{inputs}, 1], requires_grad=1, device=cpu)):
  %none : NoneType = prim::Constant()
  %w : Float({outputs}, {inputs}, strides=[{inputs}, 1], requires_grad=1, device=cpu) = prim::GetAttr[name=\"weight\"](%self)
  %y : Float(512, {outputs}, strides=[{outputs}, 1], requires_grad=1, device=cpu) = aten::linear(%x, %w, %none)
  return (%y)
"
        ),
        parts,
        model,
    )
}

/// Predicts the passes of a convolution of single pixels.
fn pixels(channels: u64, height: u64, width: u64, parts: Parts, model: &CostModel) -> [f64; 3] {
    let [plane, image] = [height * width, 64 * height * width];
    let made = channels * plane;
    predicted(
        &format!(
            "graph(%self : __torch__.Pixels,
      %x : Float(32, 64, {height}, {width}, strides=[{image}, {plane}, {width}, 1], requires_grad=1, device=cpu)):
  %none : NoneType = prim::Constant()
  %one : int = prim::Constant[value=1]()
  %zero : int = prim::Constant[value=0]()
  %ones : int[] = prim::ListConstruct(%one, %one)
  %zeros : int[] = prim::ListConstruct(%zero, %zero)
  %w : Float({channels}, 64, 1, 1, strides=[64, 1, 1, 1], requires_grad=1, device=cpu) = prim::GetAttr[name=\"weight\"](%self)
  %y : Float(32, {channels}, {height}, {width}, strides=[{made}, {plane}, {width}, 1], requires_grad=1, device=cpu) = aten::conv2d(%x, %w, %none, %ones, %zeros, %ones, %one)
  return (%y)
"
        ),
        parts,
        model,
    )
}

fn predicted(text: &str, parts: Parts, model: &CostModel) -> [f64; 3] {
    let program = tracer::ir::read_ir(text).unwrap();
    let graph = graph::build(&program, &BuildOptions::default()).unwrap();
    let options = PredictOptions { parts, ..PredictOptions::default() };
    let total = predict(&graph, &graph::costs(&graph), model, &options).total();
    [total.forward, total.input_gradient, total.weight_gradient].map(|time| time.seconds)
}

#[test]
fn parts_take_what_operators_of_their_sizes_take() {
    let mut figures = schema::catalogue()["V100-SXM2-32GB"].clone();
    // Launches would hide what is wrong.
    figures.launch = Some(schema::Seconds(1e-12));
    let sheet = CostModel::of_data_sheet("V100-SXM2-32GB", &figures);
    let shipped = CostModel::shipped(&schema::catalogue()["V100-SXM2-32GB"]).unwrap();
    let whole = Parts::default();
    for (name, model) in [("sheet", &sheet), ("curves", &shipped)] {
        let halves = [
            (
                "channels",
                dense(8192, 4096, Parts { channels: 2.0, ..whole }, model),
                dense(8192, 2048, whole, model),
            ),
            ("sums", dense(8192, 4096, Parts { sums: 2.0, ..whole }, model), dense(4096, 4096, whole, model)),
            (
                "channels of images",
                pixels(256, 64, 64, Parts { channels: 4.0, ..whole }, model),
                pixels(64, 64, 64, whole, model),
            ),
            (
                "rows",
                pixels(256, 64, 64, Parts { height: 2.0, ..whole }, model),
                pixels(256, 32, 64, whole, model),
            ),
            (
                "columns",
                pixels(256, 64, 64, Parts { width: 4.0, ..whole }, model),
                pixels(256, 64, 16, whole, model),
            ),
        ];
        for (split, part, own) in halves {
            for (part, own) in part.into_iter().zip(own) {
                assert!(own > 0.0, "{name}, {split}");
                // What the cache holds follows the whole graph.
                let most = if name == "sheet" { 1e-9 } else { 0.1 };
                assert!((part / own - 1.0).abs() <= most, "{name}, {split}: {part:e} {own:e}");
            }
        }
    }
}
