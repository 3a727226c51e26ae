//! Linear algebra: sizes of factors and solutions, and their costs, as in PyTorch 2.11 on a CPU.
//!
//! Saved bytes are those that `torch.autograd.graph.saved_tensors_hooks` sees, operations those that
//! `torch.utils.flop_counter` counts.

use graph::{BuildErrors, BuildOptions, ModelGraph};

const CONSTANTS: &str = "  %none : NoneType = prim::Constant()
  %no : bool = prim::Constant[value=0]()
  %yes : bool = prim::Constant[value=1]()
  %0 : int = prim::Constant[value=0]()
  %1 : int = prim::Constant[value=1]()
  %2 : int = prim::Constant[value=2]()
  %5 : int = prim::Constant[value=5]()
  %less : int = prim::Constant[value=-3]()
  %lower : str = prim::Constant[value=\"L\"]()
  %reduced : str = prim::Constant[value=\"reduced\"]()
  %complete : str = prim::Constant[value=\"complete\"]()
  %r : str = prim::Constant[value=\"r\"]()
  %fro : str = prim::Constant[value=\"fro\"]()
  %nuc : str = prim::Constant[value=\"nuc\"]()
  %last : int = prim::Constant[value=-2]()
  %end : int = prim::Constant[value=-1]()
  %matrix : int[] = prim::ListConstruct(%last, %end)
";

/// Square `s`, wide `w` and tall `t` matrices, right sides `b` and `y`, pivots `p`, and a chain of `c`, `d` and `e`.
const INPUTS: &[(&str, &[u64])] = &[
    ("s", &[2, 3, 3]),
    ("w", &[2, 3, 5]),
    ("t", &[2, 5, 3]),
    ("b", &[2, 3, 4]),
    ("h", &[2, 5, 4]),
    ("y", &[2, 3]),
    ("c", &[3, 4]),
    ("d", &[4, 5]),
    ("e", &[5, 2]),
    ("k", &[6, 2, 3]),
    ("v", &[6]),
];

/// Builds the graph of one call; the operator's results are the model's.
fn graph_of(call: &str, n_results: usize) -> Result<ModelGraph, BuildErrors> {
    let inputs = INPUTS.iter().map(|(name, sizes)| {
        let mut strides = vec![1; sizes.len()];
        (1..sizes.len()).rev().for_each(|at| strides[at - 1] = strides[at] * sizes[at]);
        let list = |numbers: &[u64]| numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let (sizes, strides) = (list(sizes), list(&strides));
        format!("%{name} : Float({sizes}, strides=[{strides}], requires_grad=1, device=cpu)")
    });
    let pivots = "%p : Int(2, 3, strides=[3, 1], requires_grad=0, device=cpu)".to_string();
    let inputs: Vec<String> = inputs.chain([pivots]).collect();
    let (before, call) = call.rsplit_once('\n').unwrap_or(("", call));
    let results: Vec<String> = (0..n_results).map(|at| format!("%out.{at}")).collect();
    let declared: Vec<String> = results.iter().map(|name| format!("{name} : Tensor")).collect();
    let lines: String = before.lines().map(|line| format!("  {}\n", line.trim())).collect();
    let text = format!(
        "graph({}):\n{CONSTANTS}{lines}  {} = aten::{}\n  %all : ({}) = prim::TupleConstruct({})\n  return (%all)\n",
        inputs.join(",\n      "),
        declared.join(", "),
        call.trim(),
        vec!["Tensor"; n_results].join(", "),
        results.join(", "),
    );
    let program = tracer::ir::read_ir(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    graph::build(&program, &BuildOptions::default())
}

fn results(graph: &ModelGraph) -> Vec<String> {
    graph.outputs.iter().map(|value| graph.value(*value).fact.to_string()).collect()
}

/// Compares the results.
#[track_caller]
fn check(call: &str, expected: &[&str]) {
    let graph = graph_of(call, expected.len()).expect("a graph");
    assert!(graph.unknown.is_empty(), "{call}: {:?}", graph.unknown);
    assert_eq!(results(&graph), expected, "{call}");
}

/// Compares saved bytes, and the operations forward and backward.
#[track_caller]
fn check_costs(call: &str, n_results: usize, expected: (u64, u64, u64)) {
    let total = graph::costs(&graph_of(call, n_results).expect("a graph")).total();
    assert_eq!((total.saved_bytes, total.forward_flops, total.backward_flops()), expected, "{call}");
    assert_eq!((total.uncounted, total.unmeasured), (0, 0), "{call}");
}

#[test]
fn determinants_and_inverses() {
    check("linalg_det(%s)", &["float32 2"]);
    check("logdet(%s)", &["float32 2"]);
    check("linalg_slogdet(%s)", &["float32 2", "float32 2"]);
    check("linalg_inv_ex(%s, %no)", &["float32 2x3x3", "int32 2"]);
    check("linalg_cholesky_ex(%s, %no, %no)", &["float32 2x3x3", "int32 2"]);
    check("linalg_pinv(%w, %none, %none, %no)", &["float32 2x5x3"]);
    check("linalg_matrix_power(%s, %5)", &["float32 2x3x3"]);
    check("linalg_matrix_rank(%w, %none, %none, %no)", &["int64 2"]);
    check("linalg_cond(%s, %none)", &["float32 2"]);
    check("linalg_matrix_norm(%w, %fro, %matrix, %no, %none)", &["float32 2"]);
    check("linalg_matrix_norm(%w, %fro, %matrix, %yes, %none)", &["float32 2x1x1"]);
    check("linalg_tensorinv(%k, %1)", &["float32 2x3x6"]);
    check("linalg_vander(%y, %5)", &["float32 2x3x5"]);
    check("linalg_vander(%y, %none)", &["float32 2x3x3"]);
    check("linalg_norm(%w, %none, %none, %no, %none)", &["float32 scalar"]);
    // A norm of complex numbers is real.
    check(
        "%z : Tensor = aten::complex(%w, %w)\nlinalg_matrix_norm(%z, %fro, %matrix, %no, %none)",
        &["float32 2"],
    );
}

#[test]
fn factors() {
    check("linalg_svd(%w, %no, %none)", &["float32 2x3x3", "float32 2x3", "float32 2x3x5"]);
    check("linalg_svd(%w, %yes, %none)", &["float32 2x3x3", "float32 2x3", "float32 2x5x5"]);
    check("linalg_svd(%t, %yes, %none)", &["float32 2x5x5", "float32 2x3", "float32 2x3x3"]);
    check("svd(%w, %yes, %yes)", &["float32 2x3x3", "float32 2x3", "float32 2x5x3"]);
    check("svd(%w, %yes, %no)", &["float32 2x3x3", "float32 2x3", "float32 2x5x5"]);
    check("linalg_svdvals(%w, %none)", &["float32 2x3"]);
    check("linalg_eig(%s)", &["complex64 2x3", "complex64 2x3x3"]);
    check("linalg_eigh(%s, %lower)", &["float32 2x3", "float32 2x3x3"]);
    check("linalg_eigvals(%s)", &["complex64 2x3"]);
    check("linalg_eigvalsh(%s, %lower)", &["float32 2x3"]);
    check("linalg_qr(%t, %reduced)", &["float32 2x5x3", "float32 2x3x3"]);
    check("linalg_qr(%t, %complete)", &["float32 2x5x5", "float32 2x5x3"]);
    check("linalg_qr(%w, %r)", &["float32 0", "float32 2x3x5"]);
    check("qr(%w, %yes)", &["float32 2x3x3", "float32 2x3x5"]);
    check("geqrf(%t)", &["float32 2x5x3", "float32 2x3"]);
    check("linalg_householder_product(%t, %y)", &["float32 2x5x3"]);
    check("ormqr(%t, %y, %h, %yes, %no)", &["float32 2x5x4"]);
    check("linalg_lu(%t, %yes)", &["float32 2x5x5", "float32 2x5x3", "float32 2x3x3"]);
    check("linalg_lu(%t, %no)", &["float32 0", "float32 2x5x3", "float32 2x3x3"]);
    check("lu_unpack(%w, %p, %no, %yes)", &["float32 2x3x3", "float32 0", "float32 0"]);
    check("linalg_lu_factor_ex(%w, %yes, %no)", &["float32 2x3x5", "int32 2x3", "int32 2"]);
    check("linalg_ldl_factor(%s, %no)", &["float32 2x3x3", "int32 2x3"]);
}

#[test]
fn systems() {
    check("linalg_solve(%s, %b, %yes)", &["float32 2x3x4"]);
    // One vector per matrix.
    check("linalg_solve(%s, %y, %yes)", &["float32 2x3"]);
    check("%x : Tensor = aten::mT(%b)\nlinalg_solve(%s, %x, %no)", &["float32 2x4x3"]);
    // Batches are broadcast.
    check("%x : Tensor = aten::select(%s, %0, %0)\nlinalg_solve(%x, %b, %yes)", &["float32 2x3x4"]);
    check("linalg_solve_ex(%s, %b, %yes, %no)", &["float32 2x3x4", "int32 2"]);
    check("cholesky_solve(%b, %s, %no)", &["float32 2x3x4"]);
    check("cholesky_inverse(%s, %no)", &["float32 2x3x3"]);
    check("linalg_lu_solve(%s, %p, %b, %yes, %no)", &["float32 2x3x4"]);
    check("lu_solve(%b, %s, %p)", &["float32 2x3x4"]);
    check("triangular_solve(%b, %s, %yes, %no, %no)", &["float32 2x3x4", "float32 2x3x3"]);
    check("linalg_tensorsolve(%k, %v, %none)", &["float32 2x3"]);
    // The driver decides whether there are residuals, ranks and singular values.
    let kinds =
        ["float32 2x3x4", "float32 of unknown shape", "int64 of unknown shape", "float32 of unknown shape"];
    check("linalg_lstsq(%t, %h, %none, %none)", &kinds);
}

#[test]
fn what_is_no_matrix_is_refused() {
    #[track_caller]
    fn refuse(call: &str) {
        assert!(graph_of(call, 1).is_err(), "{call}");
    }
    refuse("linalg_det(%w)");
    refuse("linalg_det(%v)");
    refuse("linalg_eigvals(%t)");
    refuse("linalg_solve(%s, %h, %yes)");
    refuse("linalg_tensorinv(%k, %5)");
}

#[test]
fn factors_are_kept_and_their_gradients_counted() {
    check_costs("linalg_det(%s)", 1, (176, 0, 0));
    check_costs("logdet(%s)", 1, (178, 0, 0));
    check_costs("linalg_inv_ex(%s, %no)", 2, (72, 0, 216));
    check_costs("linalg_cholesky_ex(%s, %no, %no)", 2, (72, 0, 108));
    check_costs("linalg_solve(%s, %b, %yes)", 1, (264, 0, 144));
    check_costs("cholesky_solve(%b, %s, %no)", 1, (264, 0, 252));
    check_costs("triangular_solve(%b, %s, %yes, %no, %no)", 2, (264, 0, 144));
    check_costs("linalg_lu_solve(%s, %p, %b, %yes, %no)", 1, (192, 0, 252));
    check_costs("linalg_tensorsolve(%k, %v, %none)", 1, (336, 0, 72));
    check_costs("linalg_pinv(%w, %none, %none, %no)", 1, (240, 0, 1440));
    check_costs("linalg_pinv(%t, %none, %none, %no)", 1, (240, 0, 1920));
    check_costs("linalg_svd(%w, %no, %none)", 3, (216, 0, 1008));
    check_costs("linalg_svdvals(%w, %none)", 1, (216, 0, 180));
    check_costs("linalg_eigh(%s, %lower)", 2, (96, 0, 324));
    check_costs("linalg_eigvalsh(%s, %lower)", 1, (96, 0, 108));
    check_costs("linalg_matrix_norm(%w, %fro, %matrix, %no, %none)", 1, (128, 0, 0));
    check_costs("linalg_matrix_norm(%w, %nuc, %matrix, %no, %none)", 1, (216, 0, 180));
    check_costs("linalg_matrix_norm(%w, %1, %matrix, %no, %none)", 1, (168, 0, 0));
}

#[test]
fn products_are_made_one_after_the_other() {
    check_costs("linalg_matrix_power(%s, %2)", 1, (72, 108, 216));
    check_costs("linalg_matrix_power(%s, %5)", 1, (216, 324, 648));
    check_costs("linalg_matrix_power(%s, %less)", 1, (144, 216, 648));
    // The last two first: that is cheaper.
    let chain = "%list : Tensor[] = prim::ListConstruct(%c, %d, %e)\nlinalg_multi_dot(%list)";
    check(chain, &["float32 3x2"]);
    check_costs(chain, 1, (200, 128, 256));
}

/// The layer of an encoder that eval mode runs as one kernel: attention, and the products behind it.
#[test]
fn a_fused_layer_counts_its_feed_forward_network() {
    let sizes: &[(&str, &[u64])] = &[
        ("x", &[2, 8, 16]),
        ("wi", &[48, 16]),
        ("bi", &[48]),
        ("wo", &[16, 16]),
        ("b", &[16]),
        ("up", &[32, 16]),
        ("bu", &[32]),
        ("down", &[16, 32]),
    ];
    let inputs = sizes.iter().map(|(name, sizes)| {
        let list = sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        format!("%{name} : Float({list}, requires_grad=0, device=cpu)")
    });
    let text = format!(
        "graph({}):\n  %none : NoneType = prim::Constant()\n  %no : bool = prim::Constant[value=0]()\n  \
         %16 : int = prim::Constant[value=16]()\n  %2 : int = prim::Constant[value=2]()\n  \
         %eps : float = prim::Constant[value=1.0e-05]()\n  \
         %y : Tensor = aten::_transformer_encoder_layer_fwd(%x, %16, %2, %wi, %bi, %wo, %b, %no, %no, %eps, \
         %b, %b, %b, %b, %up, %bu, %down, %b, %none, %none)\n  return (%y)\n",
        inputs.collect::<Vec<_>>().join(",\n      "),
    );
    let program = tracer::ir::read_ir(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let total = graph::costs(&graph::build(&program, &BuildOptions::default()).expect("a graph")).total();
    // Projections 4 × 8,192, scores and what is read by them 8,192, the network 2 × 16,384.
    assert_eq!((total.forward_flops, total.fused_flops), (73_728, 73_728));
}
