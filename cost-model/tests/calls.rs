//! A pass on an accelerator is its kernels, or the host's calls, whichever is longer; never both.

use cost_model::{CostModel, Costs, PredictOptions, predict};
use graph::BuildOptions;
use schema::{CallOverhead, catalogue};

/// Predicts twenty activations of so many elements, and a view of the last, on a device whose calls take so long.
fn costs(device: &str, elements: u64, overhead: Option<CallOverhead>) -> Costs {
    let mut text = format!(
        "graph(%x0 : Float({elements}, strides=[1], requires_grad=1, device=cpu)):
  %zero : int = prim::Constant[value=0]()\n"
    );
    for at in 0..20 {
        text.push_str(&format!("  %x{} : Tensor = aten::relu(%x{at})\n", at + 1));
    }
    text.push_str("  %out : Tensor = aten::unsqueeze(%x20, %zero)\n  return (%out)\n");
    let program = tracer::ir::read_ir(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let graph = graph::build(&program, &BuildOptions::default()).expect("a graph");
    let mut model = CostModel::of_data_sheet(device, &catalogue()[device]);
    model.overhead = overhead;
    predict(&graph, &graph::costs(&graph), &model, &PredictOptions::default())
}

const CALLS: CallOverhead = CallOverhead { call: 4e-6, recording: 2e-6, backward: 6e-6, cold: 0.0 };

#[test]
fn short_kernels_wait_for_the_host_and_long_ones_hide_it() {
    let device = "A100-SXM4-80GB";
    let of = |elements, overhead| costs(device, elements, overhead).total();
    let small = of(64, Some(CALLS));
    // 20 calls and a view of a quarter, with Python around what a profile measures; the way back is longer by a fifth.
    let python = 3.1 * 6e-6;
    assert!((small.forward.seconds - 20.25 * python).abs() < 1e-12, "{small:?}");
    assert!((small.backward().seconds - 20.25 * 1.2 * python).abs() < 1e-12, "{small:?}");
    assert_eq!(small.source.name(), "host");
    assert!(small.is_launch_bound);
    let large = of(1 << 28, Some(CALLS));
    let free = CallOverhead { call: 0.0, recording: 0.0, backward: 0.0, cold: 0.0 };
    assert_eq!(large.forward, of(1 << 28, Some(free)).forward);
    // Nobody measured: PyTorch's calls from Python take longer, longest on old hosts.
    let unmeasured = of(64, None).forward.seconds;
    assert!(unmeasured > 1.5 * small.forward.seconds, "{unmeasured:e}");
    assert!(costs("T4", 64, None).total().forward.seconds > unmeasured);
}

#[test]
fn what_lies_outside_the_measured_sizes_is_said() {
    let of = |elements: u64| {
        let text = format!(
            "graph(%x : Float({elements}, 4096, strides=[4096, 1], requires_grad=0, device=cpu),
      %w : Float(4096, 4096, strides=[4096, 1], requires_grad=0, device=cpu)):
  %none : NoneType = prim::Constant()
  %out : Tensor = aten::linear(%x, %w, %none)
  return (%out)\n"
        );
        let program = tracer::ir::read_ir(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let graph = graph::build(&program, &BuildOptions::default()).expect("a graph");
        let model = CostModel::shipped(&catalogue()["V100-PCIE-32GB"]).expect("a model");
        predict(&graph, &graph::costs(&graph), &model, &PredictOptions::default()).outside()
    };
    assert!(of(4096) < 0.1, "{}", of(4096));
    assert!(of(1 << 24) > 0.5, "{}", of(1 << 24));
    assert_eq!(costs("RTX-4090", 1 << 28, None).outside(), 0.0);
}
