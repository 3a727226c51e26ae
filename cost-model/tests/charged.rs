//! What is charged is what runs: copies behind views, sums to one number, operands that are no whole tensors.

use cost_model::{CostModel, PredictOptions, predict};
use graph::BuildOptions;
use schema::catalogue;

const CONSTANTS: &str = "  %one : int = prim::Constant[value=1]()
  %two : int = prim::Constant[value=2]()
  %less : int = prim::Constant[value=-1]()
  %none : NoneType = prim::Constant()
  %no : bool = prim::Constant[value=0]()
  %quarter : float = prim::Constant[value=0.25]()
";

/// Seconds of the forward and of the backward pass over some operators.
fn passes(device: &str, inputs: &str, operators: &str) -> (f64, f64) {
    let text = format!("graph({inputs}):\n{CONSTANTS}{operators}\n  return (%out)\n");
    let program = tracer::ir::read_ir(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let graph = graph::build(&program, &BuildOptions::default()).expect("a graph");
    let figures = &catalogue()[device];
    let mut model = CostModel::shipped(figures).unwrap_or_else(|| CostModel::of_data_sheet(device, figures));
    if !device.starts_with("CPU") {
        // What the host takes is another question.
        model.overhead = Some(schema::CallOverhead { call: 0.0, recording: 0.0, backward: 0.0, cold: 0.0 });
    }
    let whole = predict(&graph, &graph::costs(&graph), &model, &PredictOptions::default()).total();
    (whole.forward.seconds, whole.backward().seconds)
}

/// Seconds of the forward pass.
fn seconds(device: &str, inputs: &str, operators: &str) -> f64 {
    passes(device, inputs, operators).0
}

const DEVICES: [&str; 3] = ["CPU-XEON-AMX-1T", "A100-SXM4-80GB", "T4"];
const X: &str = "%x : Float(512, 12, 128, 64, strides=[98304, 8192, 64, 1], requires_grad=0, device=cpu)";
const TURNED: &str = "  %turned : Tensor = aten::transpose(%x, %one, %two)\n";

fn near(what: &str, one: f64, other: f64, share: f64) {
    assert!((one / other - 1.0).abs() < share, "{what}: {one:e} {other:e}");
}

#[test]
fn a_view_that_copies_takes_as_long_as_a_copy() {
    for device in DEVICES {
        let time = |operator: &str| seconds(device, X, &format!("{TURNED}{operator}"));
        let view = seconds(device, X, "  %out : Tensor = aten::transpose(%x, %one, %two)");
        let contiguous = time("  %out : Tensor = aten::contiguous(%turned, %one)") - view;
        let shape = "  %list : int[] = prim::ListConstruct(%less)\n";
        let reshaped = time(&format!("{shape}  %out : Tensor = aten::reshape(%turned, %list)")) - view;
        // Written once and read once, at the memory's rate or slower.
        let bytes = 2.0 * 4.0 * 512.0 * 12.0 * 128.0 * 64.0;
        let least = bytes / catalogue()[device].memory_bandwidth.0;
        assert!(contiguous > 0.9 * least, "{device}: {contiguous:e}, {least:e}");
        near(device, reshaped, contiguous, 0.01);
        // In order already: nothing moves.
        let still = seconds(device, X, "  %out : Tensor = aten::contiguous(%x, %one)");
        assert!(still < 0.01 * contiguous, "{device}: {still:e}");
    }
}

#[test]
fn a_sum_to_one_number_reads_everything() {
    for device in DEVICES {
        let bytes = 4.0 * 512.0 * 12.0 * 128.0 * 64.0;
        let time = seconds(device, X, "  %out : Tensor = aten::sum(%x, %none)");
        assert!(time > 0.5 * bytes / catalogue()[device].memory_bandwidth.0, "{device}: {time:e}");
    }
}

#[test]
fn a_number_or_a_bias_is_no_second_tensor() {
    for device in DEVICES {
        let bias = format!("{X}, %bias : Float(64, strides=[1], requires_grad=0, device=cpu)");
        let pair = X.replace("%x", "%y");
        let plain = seconds(device, X, "  %out : Tensor = aten::relu(%x)");
        let scaled = seconds(device, X, "  %out : Tensor = aten::mul(%x, %quarter)");
        let shifted = seconds(device, &bias, "  %out : Tensor = aten::add(%x, %bias, %one)");
        let sum = seconds(device, &format!("{X}, {pair}"), "  %out : Tensor = aten::add(%x, %y, %one)");
        near(device, scaled, plain, 0.1);
        near(device, shifted, plain, 0.1);
        assert!(sum > 1.25 * plain, "{device}: {sum:e} {plain:e}");
    }
}

/// The gradient of what was broadcast is a sum that reads a whole tensor; of a factor, also a product that is written and read.
#[test]
fn gradients_of_broadcast_operands_are_sums() {
    let trained = X.replace("requires_grad=0", "requires_grad=1");
    let bytes = 4.0 * 512.0 * 12.0 * 128.0 * 64.0;
    for device in ["A100-SXM4-80GB", "T4", "H100-SXM5-80GB", "RTX-4090"] {
        let extra = |operator: &str| {
            let backward = |wants: u8| {
                let operand = format!("%b : Float(64, strides=[1], requires_grad={wants}, device=cpu)");
                passes(device, &format!("{trained}, {operand}"), operator).1
            };
            (backward(1) - backward(0)) * catalogue()[device].memory_bandwidth.0 / bytes
        };
        let (shift, factor) = (
            extra("  %out : Tensor = aten::add(%x, %b, %one)"),
            extra("  %out : Tensor = aten::mul(%x, %b)"),
        );
        assert!((0.9..1.6).contains(&shift), "{device}: {shift}");
        assert!((3.6..6.0).contains(&factor), "{device}: {factor}");
        // An operand of the result's size has its gradient without a sum.
        let pair = format!("{trained}, {}", trained.replace("%x", "%y"));
        let both = passes(device, &pair, "  %out : Tensor = aten::mul(%x, %y)").1;
        let moved = both * catalogue()[device].memory_bandwidth.0 / bytes;
        assert!((5.4..9.0).contains(&moved), "{device}: {moved}");
    }
}

/// A bias is added by the product itself; its gradient is a sum over all rows.
#[test]
fn gradients_of_biases_read_the_results_gradient() {
    let backward = |wants: u8| {
        let parameter = |name: &str, sizes: &str, strides: &str, wants: u8| {
            format!(
                "  %{name} : Float({sizes}, strides=[{strides}], requires_grad={wants}, device=cpu) = prim::GetAttr[name=\"{name}\"](%self)\n"
            )
        };
        let operators = parameter("w", "1024, 1024", "1024, 1", 1)
            + &parameter("b", "1024", "1", wants)
            + "  %out : Tensor = aten::linear(%x, %w, %b)";
        let inputs = "%self : __torch__.Layer, %x : Float(65536, 1024, strides=[1024, 1], requires_grad=1, device=cpu)";
        passes("A100-SXM4-80GB", inputs, &operators).1
    };
    let read = 4.0 * 65536.0 * 1024.0 / catalogue()["A100-SXM4-80GB"].memory_bandwidth.0;
    let extra = (backward(1) - backward(0)) / read;
    assert!((0.9..1.6).contains(&extra), "{extra}");
}

/// Bytes bound a copy, instructions a max pool: 16 bits halve the one time and hardly change the other.
#[test]
fn kernels_that_instructions_bound_are_no_faster_in_16_bits() {
    let pair =
        "  %pair : int[] = prim::ListConstruct(%two, %two)\n  %ones : int[] = prim::ListConstruct(%one, %one)
  %none_around : int[] = prim::ListConstruct(%zero, %zero)\n";
    let zero = "  %zero : int = prim::Constant[value=0]()\n";
    let pool =
        format!("{zero}{pair}  %out : Tensor = aten::max_pool2d(%x, %pair, %pair, %none_around, %ones, %no)");
    for device in ["RTX-4090", "RTX-5090", "RTX-3090"] {
        let ratio = |operator: &str| {
            let [wide, narrow] = ["Float", "Half"]
                .map(|dtype| passes(device, &images(dtype, [512, 64, 112], false), operator));
            (wide.0 / narrow.0, wide.1 / narrow.1)
        };
        let copied = ratio("  %out : Tensor = aten::relu(%x)");
        let pooled = ratio(&pool);
        near(device, copied.0, 2.0, 0.02);
        assert!(pooled.0 < 1.5 && pooled.1 < 1.3, "{device}: {pooled:?}");
    }
}

#[test]
fn elements_count_and_not_axes() {
    let sizes = |sizes: &str, strides: &str| {
        format!("%x : Float({sizes}, strides=[{strides}], requires_grad=0, device=cpu)")
    };
    for device in ["A100-SXM4-80GB", "T4"] {
        let time = |x: &str| seconds(device, x, "  %out : Tensor = aten::relu(%x)");
        let scores = time(&sizes("2, 24, 2048, 2048", "100663296, 4194304, 2048, 1"));
        let rows = time(&sizes("98304, 2048", "2048, 1"));
        near(device, scores, rows, 1e-9);
        let bytes = 2.0 * 4.0 * 2.0 * 24.0 * 2048.0 * 2048.0;
        near(device, scores, bytes / catalogue()[device].memory_bandwidth.0, 0.5);
    }
}

/// Tensor cores are fed by pieces of 16 bytes; measured on an H200.
#[test]
fn rows_that_begin_off_16_bytes_take_longer() {
    let time = |words: u64, dtype: &str| {
        let inputs = format!(
            "%x : {dtype}(8192, 768, strides=[768, 1], requires_grad=0, device=cpu),
      %w : {dtype}({words}, 768, strides=[768, 1], requires_grad=0, device=cpu)"
        );
        seconds("H200-SXM-141GB", &inputs, "  %out : Tensor = aten::linear(%x, %w, %none)")
    };
    assert!(time(50257, "BFloat16") > 3.0 * time(50264, "BFloat16"));
    assert!(time(50258, "BFloat16") > 2.0 * time(50264, "BFloat16"));
    near("float32", time(50257, "Float"), time(50264, "Float"), 0.2);
}

/// Strides of images whose channels lie side by side, or in the usual layout.
fn images(dtype: &str, [batch, channels, side]: [u64; 3], is_last: bool) -> String {
    let pixels = side * side;
    let strides = if is_last {
        [channels * pixels, 1, side * channels, channels]
    } else {
        [channels * pixels, pixels, side, 1]
    };
    format!(
        "%x : {dtype}({batch}, {channels}, {side}, {side}, strides=[{}, {}, {}, {}], requires_grad=1, device=cpu)",
        strides[0], strides[1], strides[2], strides[3]
    )
}

/// Forward and backward seconds of a batch norm in training mode.
fn batch_norm(device: &str, sizes: [u64; 3]) -> (f64, f64) {
    let channels = sizes[1];
    let vector = |name: &str, wants: u8| {
        format!(
            "  %{name} : Float({channels}, strides=[1], requires_grad={wants}, device=cpu) = prim::GetAttr[name=\"{name}\"](%self)"
        )
    };
    let text = format!(
        "graph(%self : __torch__.Norm, {}):
{}
{}
{}
{}
  %yes : bool = prim::Constant[value=1]()
  %share : float = prim::Constant[value=0.1]()
  %out : Tensor = aten::batch_norm(%x, %w, %b, %mean, %variance, %yes, %share, %share, %yes)
  return (%out)\n",
        images("Float", sizes, false),
        vector("w", 1),
        vector("b", 1),
        vector("mean", 0),
        vector("variance", 0),
    );
    let program = tracer::ir::read_ir(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let graph = graph::build(&program, &BuildOptions::default()).expect("a graph");
    let mut model = CostModel::shipped(&catalogue()[device]).expect("curves");
    model.overhead = Some(schema::CallOverhead { call: 0.0, recording: 0.0, backward: 0.0, cold: 0.0 });
    let whole = predict(&graph, &graph::costs(&graph), &model, &PredictOptions::default()).total();
    (whole.forward.seconds, whole.backward().seconds)
}

/// A block of threads reduces a channel: sixteen leave most multiprocessors idle. On an H100 951 µs and 207 µs were measured of
/// 16 and 512 channels with as many elements; the gradients of input and weights are one pass of 1.6 times the forward one.
#[test]
fn few_channels_take_longer_and_their_gradients_are_one_pass() {
    for device in ["H100-SXM5-80GB", "H200-SXM-141GB"] {
        let (few, _) = batch_norm(device, [64, 16, 128]);
        let (many, back) = batch_norm(device, [2, 512, 128]);
        assert!(few > 3.0 * many, "{device}: {few:e} {many:e}");
        assert!((1.2..2.2).contains(&(back / many)), "{device}: {back:e} {many:e}");
    }
}

#[test]
fn channels_last_convolutions_have_curves_of_their_own() {
    let time = |device: &str, is_last: bool| {
        let inputs = format!(
            "{}, %w : BFloat16(64, 64, 3, 3, strides=[576, 9, 3, 1], requires_grad=0, device=cpu)",
            images("BFloat16", [64, 64, 56], is_last)
        );
        let pair = "  %ones : int[] = prim::ListConstruct(%one, %one)\n";
        let call = "  %out : Tensor = aten::conv2d(%x, %w, %none, %ones, %ones, %ones, %one)";
        seconds(device, &inputs, &format!("{pair}{call}"))
    };
    for device in ["H100-SXM5-80GB", "H200-SXM-141GB"] {
        let (plain, last) = (time(device, false), time(device, true));
        assert!((plain / last - 1.0).abs() > 0.05, "{device}: {plain:e} {last:e}");
    }
    assert_eq!(time("A100-SXM4-80GB", false), time("A100-SXM4-80GB", true));
}

/// Five dimensions are none that a fused kernel takes: scores lie in memory, and 16 bits are computed with as 32.
#[test]
fn attention_of_five_dimensions_writes_its_scores() {
    let zero = "  %zero : float = prim::Constant[value=0.]()\n";
    let time = |device: &str, dtype: &str, sizes: &str, strides: &str| {
        let of = |name: &str| {
            format!("%{name} : {dtype}({sizes}, strides=[{strides}], requires_grad=0, device=cpu)")
        };
        let inputs = [of("q"), of("k"), of("v")].join(", ");
        let call =
            "  %out : Tensor = aten::scaled_dot_product_attention(%q, %k, %v, %none, %zero, %no, %none, %no)";
        seconds(device, &inputs, &format!("{zero}{call}"))
    };
    for device in ["A100-SXM4-80GB", "H100-SXM5-80GB", "T4"] {
        let fused = |dtype: &str| time(device, dtype, "128, 64, 196, 32", "401408, 6272, 32, 1");
        let apart = |dtype: &str| time(device, dtype, "128, 4, 16, 196, 32", "401408, 100352, 6272, 32, 1");
        // Written by one product, read and written by the softmax, read by the other product.
        let scores = 4.0 * 4.0 * 128.0 * 64.0 * 196.0 * 196.0;
        let least = scores / catalogue()[device].memory_bandwidth.0;
        assert!(apart("Half") > least && apart("Float") > least, "{device}: {:e}, {least:e}", apart("Half"));
        assert!(apart("Half") > 2.0 * fused("Half"), "{device}: {:e}", fused("Half"));
        // Casts come on top of what float32 takes.
        assert!(apart("Half") > apart("Float"), "{device}");
    }
}
