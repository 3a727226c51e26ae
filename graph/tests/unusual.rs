//! Result sizes of rare operators, as in PyTorch 2.11.

use graph::BuildOptions;

/// Builds the graph of a body over `%x : 2x3x4`, `%m : 3x4` and `%v : 5`, and compares the results.
#[track_caller]
fn check(body: &str, expected: &str) {
    let float = |name: &str, sizes: &str, strides: &str| {
        format!("%{name} : Float({sizes}, strides=[{strides}], requires_grad=0, device=cpu)")
    };
    let inputs = [float("x", "2, 3, 4", "12, 4, 1"), float("m", "3, 4", "4, 1"), float("v", "5", "1")]
        .join(",\n      ");
    let numbers: String = (0..9).map(|n| format!("  %{n} : int = prim::Constant[value={n}]()\n")).collect();
    let lines: String = body.lines().map(|line| format!("  {}\n", line.trim())).collect();
    let text = format!(
        "graph({inputs}):\n{numbers}  %none : NoneType = prim::Constant()\n  %no : bool = prim::Constant[value=0]()\n  \
         %yes : bool = prim::Constant[value=1]()\n  %half : float = prim::Constant[value=0.5]()\n{lines}  return (%out)\n"
    );
    let program = tracer::ir::read_ir(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let graph = graph::build(&program, &BuildOptions::default()).expect("a graph");
    let tensor = graph.value(graph.outputs[0]).fact.tensor().expect("a tensor");
    assert_eq!(tensor.to_string(), expected, "{body}");
    assert!(graph.unknown.is_empty(), "{:?}", graph.unknown);
}

#[test]
fn sizes_are_torchs() {
    check("%out : Tensor = aten::cosine_similarity(%x, %m, %1, %half)", "float32 2x4");
    check("%out : Tensor = aten::pairwise_distance(%x, %m, %half, %half, %yes)", "float32 2x3x1");
    check("%out : Tensor = aten::pdist(%m, %half)", "float32 3");
    check(
        "%how : str = prim::Constant[value=\"linear\"]()\n%out : Tensor = aten::quantile(%x, %v, %1, %no, %how)",
        "float32 5x2x4",
    );
    check(
        "%how : str = prim::Constant[value=\"linear\"]()\n%out : Tensor = aten::quantile(%x, %half, %none, %yes, %how)",
        "float32 1x1x1",
    );
    check("%a : Tensor, %out : Tensor = aten::aminmax(%x, %1, %no)", "float32 2x4");
    check("%out : Tensor = aten::trace(%m)", "float32 scalar");
    // One slope per channel, in the middle dimension.
    check(
        "%s : int[] = prim::ListConstruct(%3)
         %w : Tensor = aten::zeros(%s, %none, %none, %none, %none)
         %out : Tensor = aten::prelu(%x, %w)",
        "float32 2x3x4",
    );
    check(
        "%dims : int[] = prim::ListConstruct(%0, %2)\n%out : Tensor = aten::rot90(%x, %3, %dims)",
        "float32 4x3x2",
    );
    check("%l : Tensor[] = prim::ListConstruct(%m, %v)\n%out : Tensor = aten::block_diag(%l)", "float32 4x9");
    check(
        "%l : Tensor[] = prim::ListConstruct(%v, %v)\n%out : Tensor = aten::cartesian_prod(%l)",
        "float32 25x2",
    );
    for (batch_first, expected) in [("yes", "float32 2x3x4"), ("no", "float32 3x2x4")] {
        check(
            &format!(
                "%s : Tensor = aten::slice(%m, %0, %0, %2, %1)
                 %l : Tensor[] = prim::ListConstruct(%s, %m)
                 %side : str = prim::Constant[value=\"right\"]()
                 %out : Tensor = aten::pad_sequence(%l, %{batch_first}, %half, %side)"
            ),
            expected,
        );
    }
    check("%out : Tensor = aten::polar(%x, %m)", "complex64 2x3x4");
    // Floats that meet a complex number without dimensions keep their precision.
    check(
        "%wide : Tensor = aten::to(%x, %7, %no, %no, %none)
         %c : Tensor = aten::polar(%wide, %wide)
         %one : Tensor = aten::sum(%c, %none)
         %out : Tensor = aten::mul(%x, %one)",
        "complex64 2x3x4",
    );
    check(
        "%c : Tensor = aten::complex(%m, %x)\n%d : Tensor = aten::_conj(%c)\n%out : Tensor = aten::mul(%d, %m)",
        "complex64 2x3x4",
    );
    check(
        "%c : Tensor = aten::polar(%m, %m)\n%r : Tensor = aten::view_as_real(%c)\n%out : Tensor = aten::abs(%c)",
        "float32 3x4",
    );
    check("%out : Tensor = aten::kron(%x, %m)", "float32 2x9x16");
    check(
        "%s : int[] = prim::ListConstruct(%6, %8)\n%out : Tensor = aten::max_unpool2d(%x, %x, %s)",
        "float32 2x6x8",
    );
    check("%out : Tensor = aten::stft(%m, %4, %1, %none, %none, %no, %none, %yes, %none)", "complex64 3x3x1");
    check("%out : Tensor = aten::stft(%v, %4, %1, %none, %none, %no, %no, %no, %none)", "float32 4x2x2");
    let signal = |settings: &str| {
        format!("%c : Tensor = aten::complex(%x, %x)\n%out : Tensor = aten::istft(%c, {settings})")
    };
    check(&signal("%4, %2, %none, %none, %yes, %no, %yes, %none, %no"), "float32 2x6");
    check(&signal("%4, %none, %none, %none, %no, %no, %yes, %none, %no"), "float32 2x7");
    check(&signal("%4, %2, %none, %none, %yes, %no, %yes, %5, %no"), "float32 2x5");
    check(&signal("%3, %2, %none, %none, %no, %no, %no, %none, %yes"), "complex64 2x9");
    check(
        "%o : Tensor = aten::mul(%x, %2)\n%u : Tensor = aten::unsqueeze_(%o, %0)\n%out : Tensor = aten::transpose_(%u, %0, %1)",
        "float32 2x1x3x4",
    );
    // A Python number is not a double when combined with integers.
    check(
        "%c : Double(requires_grad=0, device=cpu) = prim::Constant[value={2.5}]()
         %a : Tensor = aten::arange(%5, %none, %none, %none, %none)
         %out : Tensor = aten::mul(%a, %c)",
        "float32 5",
    );
    check("%l : Tensor[] = aten::where(%m)\n%out : Tensor, %b : Tensor = prim::ListUnpack(%l)", "int64 ?");
}

#[test]
fn sizes_of_statistics_and_choices_are_torchs() {
    check("%out : Tensor = aten::cov(%m, %1, %none, %none)", "float32 3x3");
    check("%out : Tensor = aten::corrcoef(%v)", "float32 scalar");
    check("%out : Tensor = aten::combinations(%v, %3, %no)", "float32 10x3");
    check("%out : Tensor = aten::combinations(%v, %3, %yes)", "float32 35x3");
    check("%out : Tensor = aten::combinations(%v, %6, %no)", "float32 0x6");
    check("%out : Tensor = aten::combinations(%v, %0, %no)", "float32 0");
    check("%out : Tensor = aten::trapezoid(%x, %1, %1)", "float32 2x4");
    check("%out : Tensor = aten::trapezoid(%x, %m, %1)", "float32 2x4");
    check("%out : Tensor = aten::cumulative_trapezoid(%x, %1, %1)", "float32 2x2x4");
    check(
        "%l : Tensor[] = aten::gradient(%x, %none, %none, %1)\n%out : Tensor, %b : Tensor, %c : Tensor = prim::ListUnpack(%l)",
        "float32 2x3x4",
    );
    // A list of one is unpacked, too.
    check(
        "%l : Tensor[] = aten::gradient(%v, %none, %none, %1)\n%out : Tensor = prim::ListUnpack(%l)",
        "float32 5",
    );
    check(
        "%s : int[] = prim::ListConstruct(%3, %1)\n%out : Tensor = aten::sum_to_size(%x, %s)",
        "float32 3x1",
    );
    check("%a : Tensor, %out : Tensor = aten::histogram(%m, %5, %none, %none, %no)", "float32 6");
    check("%out : Tensor = aten::nonzero_static(%x, %5, %0)", "int64 5x3");
    check("%out : Tensor = aten::diagflat(%m, %2)", "float32 14x14");
    check("%out : Tensor = aten::fft_hfft(%x, %none, %2, %none)", "float32 2x3x6");
    check("%out : Tensor = aten::fft_ihfft(%x, %none, %2, %none)", "complex64 2x3x3");
    check(
        "%k : int[] = prim::ListConstruct(%2, %2)\n%out : Tensor, %i : Tensor = aten::fractional_max_pool2d(%x, %k, %k, %x)",
        "float32 2x2x2",
    );
}

#[test]
fn types_of_special_functions_are_torchs() {
    let whole = "%i : Tensor = aten::arange(%5, %none, %none, %none, %none)\n";
    check(&format!("{whole}%out : Tensor = aten::special_i1e(%i)"), "float32 5");
    check(&format!("{whole}%out : Tensor = aten::special_zeta(%i, %2)"), "float32 5");
    check(&format!("{whole}%out : Tensor = aten::special_chebyshev_polynomial_t(%2, %i)"), "float32 5");
    check(&format!("{whole}%out : Tensor = aten::xlogy(%i, %i)"), "float32 5");
    check(&format!("{whole}%out : Tensor = aten::ldexp(%i, %i)"), "float32 5");
    check(&format!("{whole}%out : Tensor = aten::special_polygamma(%1, %i)"), "float32 5");
    check("%a : Tensor, %out : Tensor = aten::frexp(%m)", "int32 3x4");
}

#[test]
fn copies_of_views_have_their_sizes() {
    check("%out : Tensor = aten::unsqueeze_copy(%m, %1)", "float32 3x1x4");
    check("%out : Tensor = aten::transpose_copy(%x, %0, %2)", "float32 4x3x2");
    check("%out : Tensor = aten::narrow_copy(%x, %1, %0, %2)", "float32 2x2x4");
    check("%out : Tensor = aten::unfold_copy(%v, %0, %3, %2)", "float32 2x3");
    check("%s : int[] = prim::ListConstruct(%6, %4)\n%out : Tensor = aten::view_copy(%x, %s)", "float32 6x4");
    check(
        "%l : Tensor[] = aten::unbind_copy(%x, %0)\n%out : Tensor, %b : Tensor = prim::ListUnpack(%l)",
        "float32 3x4",
    );
    for (name, expected) in
        [("atleast_1d", "float32 5"), ("atleast_2d", "float32 1x5"), ("atleast_3d", "float32 1x5x1")]
    {
        check(&format!("%out : Tensor = aten::{name}(%v)"), expected);
    }
}

#[test]
fn masked_scatter_takes_a_source_of_any_sizes() {
    check(
        "%b : Tensor = aten::gt(%m, %1)\n%out : Tensor = aten::masked_scatter(%x, %b, %v)",
        "float32 2x3x4",
    );
    check(
        "%b : Tensor = aten::gt(%x, %1)\n%out : Tensor = aten::masked_scatter(%m, %b, %v)",
        "float32 2x3x4",
    );
}

/// Builds a graph in which a product that its rule rejects comes before a `relu`, and the trace has recorded its
/// result.
fn contradicted(recorded: Option<Vec<u64>>) -> Result<graph::ModelGraph, graph::BuildErrors> {
    let text = "graph(%x : Float(2, 3, 4, strides=[12, 4, 1], requires_grad=0, device=cpu)):\n  \
                %y : Tensor = aten::matmul(%x, %x)\n  %out : Tensor = aten::relu(%y)\n  return (%out)\n";
    let mut program = tracer::ir::read_ir(text).expect("IR text");
    let type_ = tracer::TensorType {
        shape: recorded,
        dtype: Some(graph::DType::Float32),
        ..tracer::TensorType::default()
    };
    let node = |operator: &str| tracer::RecordedNode {
        operator: operator.to_string(),
        outputs: vec![Some(type_.clone())],
    };
    let nodes = vec![node("aten::matmul"), node("aten::relu")];
    program.recorded = Some(tracer::Recorded { nodes, ..tracer::Recorded::default() });
    graph::build(&program, &BuildOptions::default())
}

#[test]
fn a_rule_that_contradicts_the_trace_gives_way_and_is_told() {
    let graph = contradicted(Some(vec![2, 3, 5])).expect("a graph");
    let tensor = graph.value(graph.outputs[0]).fact.tensor().expect("a tensor");
    assert_eq!(tensor.to_string(), "float32 2x3x5");
    let [told] = graph.disagreements.as_slice() else { panic!("{:?}", graph.disagreements) };
    assert_eq!(told.recorded, "float32 2x3x5");
    assert!(told.inferred.contains('4') && told.inferred.contains('3'), "{}", told.inferred);
    // Costs are counted from the known sizes.
    assert!(graph::costs(&graph).total().unmeasured <= 2);
    // Nothing is known about the result: the operator is refused.
    assert!(contradicted(None).is_err());
}
