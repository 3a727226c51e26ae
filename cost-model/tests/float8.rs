//! Linear layers in float8: what is rounded, what casts cost, and when it pays.

use cost_model::{CostModel, PredictOptions, Rounding, predict};
use graph::BuildOptions;
use schema::catalogue;

/// Seconds of forward pass and both gradients of the first of two layers, in the model's own type and in float8.
fn layer(device: &str, dtype: &str, [m, k, n]: [u64; 3]) -> [f64; 2] {
    let tensor = |rows: u64, columns: u64, wants: u8| {
        format!("{dtype}({rows}, {columns}, strides=[{columns}, 1], requires_grad={wants}, device=cpu)")
    };
    let (x, w, head) = (tensor(m, k, 1), tensor(n, k, 1), tensor(16, n, 1));
    let text = format!(
        "graph(%self : __torch__.Layers,
      %x : {x}):
  %w : {w} = prim::GetAttr[name=\"weight\"](%self)
  %head : {head} = prim::GetAttr[name=\"head\"](%self)
  %none : NoneType = prim::Constant()
  %one : Tensor = aten::linear(%x, %w, %none)
  %out : Tensor = aten::linear(%one, %head, %none)
  return (%out)\n"
    );
    let program = tracer::ir::read_ir(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let graph = graph::build(&program, &BuildOptions::default()).expect("a graph");
    let figures = &catalogue()[device];
    let model = CostModel::shipped(figures).unwrap_or_else(|| CostModel::of_data_sheet("it", figures));
    let costs = graph::costs(&graph);
    [Rounding::Own, Rounding::Float8].map(|rounding| {
        let options = PredictOptions { rounding, ..PredictOptions::default() };
        let predicted = predict(&graph, &costs, &model, &options);
        let last = predicted.operator(graph.operators.last().expect("a layer").id);
        let whole = |one: &cost_model::Prediction| one.forward.seconds + one.backward().seconds;
        assert!(rounding == Rounding::Own || last.forward.seconds > 0.0);
        whole(&predicted.total()) - whole(last)
    })
}

/// torchao's README measured layers of a normalised input on an H100: M, K, N = 1024, 2048, 1024 became slower (0.80),
/// 4096, 8192, 16384 faster (1.39).
#[test]
fn large_layers_gain_what_was_measured_and_small_ones_lose() {
    let gain = |sizes| {
        let [own, float8] = layer("H100-SXM5-80GB", "BFloat16", sizes);
        own / float8
    };
    let (small, large) = (gain([1024, 2048, 1024]), gain([4096, 8192, 16384]));
    assert!((0.5..1.0).contains(&small), "{small}");
    assert!((1.39 / 1.2..1.39 * 1.2).contains(&large), "{large}");
    assert!(gain([16384, 16384, 16384]) > large);
}

#[test]
fn what_cannot_be_rounded_stays_as_it_is() {
    let sizes = [4096, 8192, 16384];
    // No units for it; numbers of 32 bits; rows that are no multiple of 16.
    for (device, dtype, sizes) in [
        ("A100-SXM4-80GB", "BFloat16", sizes),
        ("H100-SXM5-80GB", "Float", sizes),
        ("H100-SXM5-80GB", "BFloat16", [4096, 8192, 16380]),
        ("H100-SXM5-80GB", "BFloat16", [4096, 8190, 16384]),
    ] {
        let [own, float8] = layer(device, dtype, sizes);
        assert_eq!(own, float8, "{device} {dtype} {sizes:?}");
    }
}
