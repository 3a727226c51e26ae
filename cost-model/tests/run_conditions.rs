//! What a run does to products: TF32 where it is asked for, and the slower clock and kernels of a long one.

use cost_model::{CostModel, PredictOptions, Rounding, predict};
use graph::BuildOptions;
use schema::{DeviceType, catalogue};

/// Seconds of a large product of a data type.
fn product(device: &DeviceType, dtype: &str, tf32: bool) -> f64 {
    let text = format!(
        "graph(%x : {dtype}(8192, 8192, strides=[8192, 1], requires_grad=0, device=cpu),
      %w : {dtype}(8192, 8192, strides=[8192, 1], requires_grad=0, device=cpu)):
  %none : NoneType = prim::Constant()
  %out : Tensor = aten::linear(%x, %w, %none)
  return (%out)\n"
    );
    let program = tracer::ir::read_ir(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let graph = graph::build(&program, &BuildOptions::default()).expect("a graph");
    let model = CostModel::shipped(device).unwrap_or_else(|| CostModel::of_data_sheet("it", device));
    let rounding = if tf32 { Rounding::Tf32 } else { Rounding::Own };
    let options = PredictOptions { rounding, ..PredictOptions::default() };
    predict(&graph, &graph::costs(&graph), &model, &options).total().forward.seconds
}

#[test]
fn tf32_is_faster_where_the_device_has_it() {
    let a100 = &catalogue()["A100-SXM4-80GB"];
    let [plain, rounded] = [false, true].map(|tf32| product(a100, "Float", tf32));
    // Peaks differ by 8.
    assert!((4.0..9.0).contains(&(plain / rounded)), "{plain:e} {rounded:e}");
    let half = |tf32| product(a100, "BFloat16", tf32);
    assert_eq!(half(true), half(false));
    let v100 = &catalogue()["V100-PCIE-32GB"];
    assert_eq!(product(v100, "Float", true), product(v100, "Float", false));
}

#[test]
fn a_long_run_slows_products_of_16_bits_alone() {
    for name in ["H100-SXM5-80GB", "RTX-4090"] {
        let mut device = catalogue()[name].clone();
        device.sustained_slowdown = None;
        let short = ["BFloat16", "Float"].map(|dtype| product(&device, dtype, false));
        device.sustained_slowdown = Some(1.5);
        let long = ["BFloat16", "Float"].map(|dtype| product(&device, dtype, false));
        assert!((long[0] / short[0] - 1.5).abs() < 1e-9, "{name}: {short:?} {long:?}");
        assert_eq!(long[1], short[1], "{name}");
    }
}
