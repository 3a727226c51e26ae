//! Saved activations. The expected bytes are those of PyTorch 2.11 on a CPU, summed over the storages that
//! `torch.autograd.graph.saved_tensors_hooks` sees.

use graph::{BuildOptions, ModelGraph};

const CONSTANTS: &str = "  %none : NoneType = prim::Constant()
  %no : bool = prim::Constant[value=0]()
  %zero : float = prim::Constant[value=0.]()
  %0 : int = prim::Constant[value=0]()
  %1 : int = prim::Constant[value=1]()
  %2 : int = prim::Constant[value=2]()
  %3 : int = prim::Constant[value=3]()
  %4 : int = prim::Constant[value=4]()
  %5 : int = prim::Constant[value=5]()
  %10 : int = prim::Constant[value=10]()
  %12 : int = prim::Constant[value=12]()
";

/// Inputs are `name size,size…`, floats that need a gradient; `name! …` has an explicit type.
#[track_caller]
fn built(inputs: &[&str], body: &str) -> ModelGraph {
    let inputs: Vec<String> = inputs
        .iter()
        .map(|input| match input.split_once(' ').expect("name and sizes") {
            (name, type_) if name.ends_with('!') => format!("%{} : {type_}", name.trim_end_matches('!')),
            (name, sizes) => {
                let sizes: Vec<u64> = sizes.split(',').map(|size| size.parse().expect("a size")).collect();
                let mut strides = vec![1; sizes.len()];
                (1..sizes.len()).rev().for_each(|at| strides[at - 1] = strides[at] * sizes[at]);
                let list =
                    |numbers: &[u64]| numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
                let (sizes, strides) = (list(&sizes), list(&strides));
                format!("%{name} : Float({sizes}, strides=[{strides}], requires_grad=1, device=cpu)")
            }
        })
        .collect();
    let lines: String = body.lines().map(|line| format!("  {}\n", line.trim())).collect();
    let text = format!("graph({}):\n{CONSTANTS}{lines}  return (%out)\n", inputs.join(",\n      "));
    let program = tracer::ir::read_ir(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    graph::build(&program, &BuildOptions::default()).unwrap_or_else(|errors| panic!("{errors:?}\n{text}"))
}

#[track_caller]
fn check(inputs: &[&str], body: &str, expected: u64) {
    assert_eq!(graph::costs(&built(inputs, body)).total().saved_bytes, expected, "{body}");
}

/// Products are those that torch 2.11 runs again in a block under `torch.utils.checkpoint`; other operators that save something are
/// taken to save their results.
#[test]
fn computing_again_ends_at_the_last_tensor_that_is_needed() {
    let again = |body: &str| -> Vec<String> {
        let graph = built(&["x 2,4", "w 4,4", "v 4,4", "g 4"], body);
        let run = graph::costs(&graph).computed_again(&(0..graph.operators.len() as u32));
        let names = graph.operators[run.start as usize..run.end as usize].iter();
        names.filter_map(|operator| Some(operator.name.strip_prefix("aten::")?.to_string())).collect()
    };
    let feed_forward = "%h : Tensor = aten::linear(%x, %w, %none)
         %r : Tensor = aten::relu(%h)
         %y : Tensor = aten::linear(%r, %v, %none)\n";
    // A product saves its operands before it computes, and a sum saves nothing.
    assert_eq!(again(&format!("{feed_forward} %out : Tensor = aten::add(%y, %x, %1)")), ["linear", "relu"]);
    assert_eq!(
        again(&format!("{feed_forward} %out : Tensor = aten::mul(%y, %g)")),
        ["linear", "relu", "linear", "mul"]
    );
    // An activation saves its result.
    let activated = format!("{feed_forward} %out : Tensor = aten::sigmoid(%y)");
    assert_eq!(again(&activated), ["linear", "relu", "linear", "sigmoid"]);
    assert_eq!(again("%out : Tensor = aten::add(%x, %x, %1)"), Vec::<String>::new());
}

/// What blocks may keep that are computed again but for their products: copies of weights in another type are weights, too.
#[test]
fn products_with_weights_are_dear_in_any_type() {
    const WEIGHT: &str = "%w : Float(64, 64, strides=[64, 1], requires_grad=1, device=cpu) = prim::GetAttr[name=\"weight\"](%self)
         %low : Tensor = aten::to(%w, %5, %no, %no, %none)
         %half : Tensor = aten::to(%x, %5, %no, %no, %none)\n";
    let dear = |body: &str| -> Vec<String> {
        let graph = built(&["self! __torch__.Model", "x 64,64"], &format!("{WEIGHT}{body}"));
        let costs = graph::costs(&graph);
        let dear = graph.operators.iter().filter(|operator| costs.is_dear(operator.id));
        dear.map(|operator| operator.name.clone()).collect()
    };
    assert_eq!(dear("%out : Tensor = aten::linear(%x, %w, %none)"), ["aten::linear"]);
    assert_eq!(dear("%out : Tensor = aten::linear(%half, %low, %none)"), ["aten::linear"]);
    // Scores are made of activations alone.
    assert_eq!(dear("%out : Tensor = aten::matmul(%half, %half)"), Vec::<String>::new());
    let mixed = "%scaled : Tensor = aten::mul(%low, %half)
         %out : Tensor = aten::matmul(%half, %scaled)";
    assert_eq!(dear(mixed), Vec::<String>::new());
}

#[test]
fn fused_attention_writes_in_the_order_of_its_query() {
    // The linear layer saves the same tensor that attention has written: nothing is copied between them.
    check(
        &["x 2,5,3,3,4", "w 6,12"],
        "%order : int[] = prim::ListConstruct(%2, %0, %3, %1, %4)
         %y : Tensor = aten::permute(%x, %order)
         %all : Tensor[] = aten::unbind(%y, %0)
         %q : Tensor, %k : Tensor, %v : Tensor = prim::ListUnpack(%all)
         %a : Tensor = aten::scaled_dot_product_attention(%q, %k, %v, %none, %zero, %no, %none, %no)
         %t : Tensor = aten::transpose(%a, %1, %2)
         %sizes : int[] = prim::ListConstruct(%2, %5, %12)
         %r : Tensor = aten::reshape(%t, %sizes)
         %out : Tensor = aten::linear(%r, %w, %none)",
        2328,
    );
    // The same with the sequence first, as in `nn.MultiheadAttention`.
    check(
        &["x 5,2,3,3,4", "w 6,12"],
        "%order : int[] = prim::ListConstruct(%2, %1, %3, %0, %4)
         %y : Tensor = aten::permute(%x, %order)
         %all : Tensor[] = aten::unbind(%y, %0)
         %q : Tensor, %k : Tensor, %v : Tensor = prim::ListUnpack(%all)
         %a : Tensor = aten::scaled_dot_product_attention(%q, %k, %v, %none, %zero, %no, %none, %no)
         %back : int[] = prim::ListConstruct(%2, %0, %1, %3)
         %t : Tensor = aten::permute(%a, %back)
         %sizes : int[] = prim::ListConstruct(%10, %12)
         %r : Tensor = aten::reshape(%t, %sizes)
         %out : Tensor = aten::linear(%r, %w, %none)",
        2328,
    );
}

#[test]
fn a_mask_of_booleans_becomes_one_of_numbers() {
    check(
        &["q 2,3,5,4", "m! Bool(2, 1, 5, 5, strides=[25, 25, 5, 1], requires_grad=0, device=cpu)"],
        "%out : Tensor = aten::scaled_dot_product_attention(%q, %q, %q, %m, %zero, %no, %none, %no)",
        1280,
    );
}

#[test]
fn attention_by_parts_copies_what_it_multiplies() {
    check(
        &["x 2,5,3,3,4", "b 3,5,5"],
        "%order : int[] = prim::ListConstruct(%2, %0, %3, %1, %4)
         %y : Tensor = aten::permute(%x, %order)
         %all : Tensor[] = aten::unbind(%y, %0)
         %q : Tensor, %k : Tensor, %v : Tensor = prim::ListUnpack(%all)
         %out : Tensor = aten::scaled_dot_product_attention(%q, %k, %v, %b, %zero, %no, %none, %no)",
        2040,
    );
    let attention =
        "%out : Tensor = aten::scaled_dot_product_attention(%q, %k, %v, %none, %zero, %no, %none, %no)";
    check(&["q 2,4,16,8", "k 2,1,16,8", "v 2,1,16,8"], attention, 20480);
    check(&["q 2,3,5,4", "k 2,3,5,4", "v 2,3,5,6"], attention, 2280);
}

#[test]
fn only_some_padding_keeps_its_operand() {
    let pad = |mode: &str| {
        format!(
            "%sizes : int[] = prim::ListConstruct(%1, %1, %1, %1)
             %mode : str = prim::Constant[value=\"{mode}\"]()
             %out : Tensor = aten::pad(%x, %sizes, %mode, %none)"
        )
    };
    check(&["x 1,2,4,4"], &pad("reflect"), 128);
    check(&["x 1,2,4,4"], &pad("constant"), 0);
    check(&["x 1,2,4,4"], &pad("circular"), 0);
}

#[test]
fn a_fourier_transform_keeps_nothing() {
    check(
        &["x 2,4,4"],
        "%dims : int[] = prim::ListConstruct(%1, %2)
         %f : Tensor = aten::fft_fftn(%x, %none, %dims, %none)
         %out : Tensor = aten::real(%f)",
        0,
    );
}

#[test]
fn a_grouped_product_keeps_both_factors_and_the_groups() {
    check(
        &["a 8,16", "b 2,16,8", "o! Int(2, strides=[1], requires_grad=0, device=cpu)"],
        "%out : Tensor = aten::_grouped_mm(%a, %b, %o, %none, %none)",
        1544,
    );
}

#[test]
fn fold_leaves_the_memory_that_it_began_with() {
    let fold = "%size : int[] = prim::ListConstruct(%3, %3)
         %two : int[] = prim::ListConstruct(%2, %2)
         %one : int[] = prim::ListConstruct(%1, %1)
         %none_2 : int[] = prim::ListConstruct(%0, %0)
         %y : Tensor = aten::col2im(%x, %size, %two, %one, %none_2, %one)
         %out : Tensor = aten::sin(%y)";
    check(&["x 1,12,4"], fold, 192);
}

#[test]
fn a_dividend_that_is_written_over_is_copied() {
    let divide = |name: &str| {
        format!(
            "%t : Tensor = aten::tanh(%x)
             %s : Tensor = aten::exp(%x)
             %out : Tensor = aten::{name}(%t, %s)"
        )
    };
    check(&["x 2,5"], &divide("div"), 40 + 40);
    check(&["x 2,5"], &divide("div_"), 40 + 40 + 40);
}

#[test]
fn training_keeps_statistics_and_masks() {
    let norm = |training: &str| {
        format!(
            "%training : bool = prim::Constant[value={training}]()
             %rate : float = prim::Constant[value=0.10000000000000001]()
             %mean : Tensor = aten::zeros_like(%w, %none, %none, %none, %none, %none)
             %out : Tensor = aten::batch_norm(%x, %w, %w, %mean, %mean, %training, %rate, %rate, %no)"
        )
    };
    // The operand and the weight; in training also the mean and deviation of each channel. In evaluation the statistics
    // themselves are saved, here one fresh tensor.
    check(&["x 2,4,3,3", "w 4"], &norm("1"), 288 + 16 + 16 + 32);
    let drop = |name: &str, rate: &str, training: &str| {
        format!(
            "%training : bool = prim::Constant[value={training}]()
             %rate : float = prim::Constant[value={rate}]()
             %t : Tensor = aten::tanh(%x)
             %out : Tensor = aten::{name}(%t, %rate, %training)"
        )
    };
    check(&["x 2,4,3,3"], &drop("dropout", "0.5", "1"), 288 + 72);
    // A dropout with probability zero does not count.
    check(&["x 2,4,3,3"], &drop("dropout", "0.", "1"), 288);
    check(&["x 2,4,3,3"], &drop("dropout", "0.5", "0"), 288);
    check(&["x 2,4,3,3"], &drop("feature_dropout", "0.5", "1"), 288 + 2 * 4 * 4);
}

#[test]
fn no_gradient_flows_into_what_gives_only_its_dtype() {
    check(
        &["x 2,5", "m! Bool(2, 5, strides=[5, 1], requires_grad=0, device=cpu)"],
        "%t : Tensor = aten::type_as(%m, %x)
         %out : Tensor = aten::mul(%t, %x)",
        40,
    );
}

#[test]
fn a_norm_over_batches_lays_its_result_out_in_order() {
    // Transposed back, it is not contiguous: the linear layer saves a copy of its own.
    check(
        &["x 2,4,6", "w 3,6"],
        "%training : bool = prim::Constant[value=1]()
         %turned : Tensor = aten::transpose(%x, %1, %2)
         %n : Tensor = aten::batch_norm(%turned, %none, %none, %none, %none, %training, %zero, %zero, %no)
         %back : Tensor = aten::transpose(%n, %1, %2)
         %out : Tensor = aten::linear(%back, %w, %none)",
        504,
    );
}

#[test]
fn attention_that_no_kernel_takes_is_kept_by_parts() {
    let attend = |query: &str| {
        format!(
            "%t : Tensor = aten::transpose(%q, %2, %3)
             %out : Tensor = aten::scaled_dot_product_attention({query}, %k, %v, %none, %zero, %no, %none, %no)"
        )
    };
    // The numbers of a head are not contiguous.
    check(&["q 1,2,4,5", "k 1,2,3,4", "v 1,2,3,4"], &attend("%t"), 472);
    check(&["q 1,2,5,4", "k 1,2,3,4", "v 1,2,3,4"], &attend("%q"), 552);
    let grouped = attend("%t").replace("%none, %no)", "%none, %yes)");
    let grouped = format!("%yes : bool = prim::Constant[value=1]()\n{grouped}");
    check(&["q 1,4,4,5", "k 1,2,3,4", "v 1,2,3,4"], &grouped, 944);
    // One head of keys for all queries: expanded as a view for a batch of one, else as copies.
    check(&["q 1,2,5,4", "k 1,1,3,4", "v 1,1,3,4"], &attend("%q"), 376);
    check(&["q 2,2,5,4", "k 2,1,3,4", "v 2,1,3,4"], &attend("%q"), 944);
}

#[test]
fn solvers_keep_their_results() {
    let solve = "%upper : bool = prim::Constant[value=0]()
                 %left : bool = prim::Constant[value=1]()
                 %out : Tensor = aten::linalg_solve_triangular(%a, %b, %upper, %left, %upper)";
    check(&["a 2,3,3", "b 5,1,3,4"], solve, 552);
    check(&["a 2,3,3"], "%out : Tensor = aten::linalg_inv(%a)", 72);
    check(&["a 2,3,3"], "%out : Tensor = aten::linalg_cholesky(%a, %no)", 72);
}

#[test]
fn losses_keep_what_their_gradients_need() {
    const LABELS: &str = "t! Long(3, strides=[1], requires_grad=0, device=cpu)";
    const PLAIN: &str = "t! Float(3, 5, strides=[5, 1], requires_grad=0, device=cpu)";
    check(&["x 3,5", LABELS], "%out : Tensor = aten::nll_loss_nd(%x, %t, %none, %1, %10)", 88);
    check(&["x 3,5", PLAIN], "%out : Tensor = aten::kl_div(%x, %t, %1, %no)", 60);
    check(&["x 3,5", PLAIN], "%out : Tensor = aten::soft_margin_loss(%x, %t, %1)", 120);
    let poisson = "%out : Tensor = aten::poisson_nll_loss(%x, %t, %no, %no, %zero, %1)";
    check(&["x 3,5", PLAIN], poisson, 120);
    let triplet = "%out : Tensor = aten::triplet_margin_loss(%x, %t, %t, %zero, %zero, %zero, %no, %1)";
    check(&["x 3,5", PLAIN], triplet, 156);
    let connectionist = "%steps : int[] = prim::ListConstruct(%5, %5)
                         %lengths : int[] = prim::ListConstruct(%3, %2)
                         %out : Tensor = aten::ctc_loss(%x, %t, %steps, %lengths, %0, %1, %no)";
    check(&["x 7,2,5", "t! Long(2, 3, strides=[3, 1], requires_grad=0, device=cpu)"], connectionist, 736);
}

#[test]
fn what_few_models_use_keeps_what_it_keeps() {
    const PLAIN: &str = "y! Float(3, 5, strides=[5, 1], requires_grad=0, device=cpu)";
    let cosine = "%out : Tensor = aten::cosine_similarity(%x, %y, %1, %zero)";
    check(&["x 3,5", "y 3,5"], cosine, 288);
    check(&["x 3,5", PLAIN], cosine, 144);
    check(&["x 3,5", "y 3,5"], "%out : Tensor = aten::pairwise_distance(%x, %y, %zero, %zero, %no)", 72);
    check(&["x 3,5"], "%out : Tensor = aten::pdist(%x, %zero)", 72);
    check(&["x 3,5", "y 2,5"], "%out : Tensor = aten::cdist(%x, %y, %zero, %none)", 124);
    const PLACES: &str = "i! Long(5, 6, strides=[6, 1], requires_grad=0, device=cpu)";
    check(&["x 5,6", PLACES], "%out : Tensor = aten::take(%x, %i)", 360);
    check(&["x 5,6", PLACES], "%out : Tensor = aten::take_along_dim(%x, %i, %0)", 360);
    let reduce = "%how : str = prim::Constant[value=\"sum\"]()
                  %out : Tensor = aten::scatter_reduce(%z, %0, %i, %x, %how, %no)";
    check(&["x 5,6", PLACES, "z! Float(4, 6, strides=[6, 1], requires_grad=0, device=cpu)"], reduce, 552);
    check(&["x 3,5"], "%out : Tensor = aten::log_sigmoid(%x)", 120);
    check(&["x 3,5"], "%out : Tensor = aten::rrelu(%x, %zero, %zero, %no, %none)", 120);
    check(&["x 3,5"], "%out : Tensor, %i : Tensor = aten::cummax(%x, %1)", 180);
    check(&["x 3,5"], "%out : Tensor = aten::fake_quantize_per_tensor_affine(%x, %zero, %0, %0, %10)", 15);
    let linear = "%how : str = prim::Constant[value=\"linear\"]()
                  %out : Tensor = aten::quantile(%x, %zero, %1, %no, %how)";
    check(&["x 3,5"], linear, 240);
    let inner = "%inner : int[] = prim::ListConstruct(%5)
                 %out : Tensor = aten::rms_norm(%x, %inner, %w, %none)";
    check(&["x 4,5", "w 5"], inner, 80 + 16 + 80 + 20);
    let instances = "%out : Tensor = aten::instance_norm(%x, %w, %w, %w, %w, %no, %zero, %zero, %no)";
    check(&["x 2,8,5", "w 8"], instances, 512);
    let bag = |mode: &str| {
        format!(
            "%yes : bool = prim::Constant[value=1]()
             %out : Tensor, %a : Tensor, %b : Tensor, %c : Tensor = aten::embedding_bag(%w, %i, %o, %no, {mode}, %no, %none, %yes, %none)"
        )
    };
    let (indices, offsets) = (
        "i! Long(12, strides=[1], requires_grad=0, device=cpu)",
        "o! Long(4, strides=[1], requires_grad=0, device=cpu)",
    );
    for (mode, expected) in [("%0", 184), ("%1", 288), ("%2", 408)] {
        check(&["w 20,6", indices, offsets], &bag(mode), expected);
    }
    let spectrum = "%yes : bool = prim::Constant[value=1]()
                    %16 : int = prim::Constant[value=16]()
                    %8 : int = prim::Constant[value=8]()
                    %out : Tensor = aten::stft(%x, %16, %8, %none, %none, %no, %none, %yes, %none)";
    check(&["x 2,80"], spectrum, 640);
    let signal = "%yes : bool = prim::Constant[value=1]()
                  %64 : int = prim::Constant[value=64]()
                  %16 : int = prim::Constant[value=16]()
                  %c : Tensor = aten::complex(%x, %x)
                  %out : Tensor = aten::istft(%c, %64, %16, %none, %none, %yes, %no, %yes, %none, %no)";
    // The real part, which is the imaginary part here, a window of ones, and the sum of all windows at each position.
    check(&["x 2,33,21"], signal, 5544 + 256 + 1536);
}

#[test]
fn special_functions_keep_what_their_derivatives_are_made_of() {
    const PLAIN: &str = "y! Float(3, 5, strides=[5, 1], requires_grad=0, device=cpu)";
    const WHOLE: &str = "i! Long(3, 5, strides=[5, 1], requires_grad=0, device=cpu)";
    for name in ["special_entr", "special_ndtri", "special_psi"] {
        check(&["x 3,5"], &format!("%out : Tensor = aten::{name}(%x)"), 60);
    }
    for name in ["special_i0e", "special_i1", "special_i1e", "special_erfcx", "special_log_ndtr"] {
        check(&["x 3,5"], &format!("%out : Tensor = aten::{name}(%x)"), 120);
    }
    for name in ["igamma", "igammac", "special_zeta", "special_xlog1py", "logaddexp"] {
        check(&[PLAIN, "x 3,5"], &format!("%out : Tensor = aten::{name}(%y, %x)"), 120);
    }
    check(&["x 3,5"], "%out : Tensor = aten::polygamma(%1, %x)", 60);
    check(&["x 3,5", WHOLE], "%out : Tensor = aten::ldexp(%x, %i)", 180);
    check(&[PLAIN, "x 3,5"], "%out : Tensor = aten::ldexp(%y, %x)", 60);
    check(&["x 3,5", PLAIN], "%out : Tensor = aten::copysign(%x, %y)", 120);
    check(&["x 3,5"], "%out : Tensor, %e : Tensor = aten::frexp(%x)", 60);
    check(&["x 3,5", PLAIN], "%out : Tensor = aten::complex(%x, %y)", 60);
}

#[test]
fn what_few_statistics_keep() {
    const PLACES: &str = "p! Float(5, strides=[1], requires_grad=0, device=cpu)";
    check(&["x 3,5"], "%out : Tensor = aten::cov(%x, %1, %none, %none)", 76);
    check(&["x 3,5"], "%out : Tensor = aten::corrcoef(%x)", 196);
    check(&["x 5"], "%out : Tensor = aten::combinations(%x, %3, %no)", 145);
    check(&["x 3,5"], "%out : Tensor = aten::trapezoid(%x, %1, %1)", 0);
    check(&["x 3,5", PLACES], "%out : Tensor = aten::trapezoid(%x, %p, %1)", 16);
    check(&["x 3,5", "y 3,5"], "%out : Tensor = aten::trapezoid(%x, %y, %1)", 96);
}

#[test]
fn copies_of_views_keep_nothing() {
    check(&["x 3,5"], "%out : Tensor = aten::transpose_copy(%x, %0, %1)", 0);
    // They are tensors of their own here.
    check(&["x 3,5"], "%y : Tensor = aten::transpose_copy(%x, %0, %1)\n%out : Tensor = aten::sin(%y)", 60);
    let both = "%y : Tensor = aten::alias_copy(%x)
                %a : Tensor = aten::sin(%x)
                %b : Tensor = aten::sin(%y)
                %out : Tensor = aten::add(%a, %b, %1)";
    check(&["x 3,5"], both, 120);
}

#[test]
fn a_transform_of_real_numbers_keeps_them() {
    check(&["x 3,5"], "%out : Tensor = aten::fft_rfft(%x, %none, %1, %none)", 60);
    check(&["x 3,5"], "%out : Tensor = aten::fft_ihfft(%x, %4, %1, %none)", 60);
    // Longer than the input: a copy padded with zeros.
    check(&["x 3,5"], "%out : Tensor = aten::fft_rfft(%x, %10, %1, %none)", 120);
    check(&["x 3,5"], "%out : Tensor = aten::fft_hfft(%x, %none, %1, %none)", 0);
}

#[test]
fn what_is_detached_keeps_nothing() {
    // Neither the extremum's operand nor its result.
    check(
        &["x 3,4"],
        "%last : int[] = prim::ListConstruct(%1)
         %yes : bool = prim::Constant[value=1]()
         %most : Tensor = aten::amax(%x, %last, %yes)
         %fixed : Tensor = aten::detach(%most)
         %less : Tensor = aten::sub(%x, %fixed, %1)
         %out : Tensor = aten::exp(%less)",
        48,
    );
}

#[test]
fn what_an_extremum_is_scattered_over_is_kept_as_it_was() {
    check(
        &["x 3,4", "places! Long(3, 4, strides=[4, 1], requires_grad=0, device=cpu)"],
        "%sizes : int[] = prim::ListConstruct(%2, %4)
         %over : Tensor = aten::zeros(%sizes, %none, %none, %none, %none)
         %how : str = prim::Constant[value=\"amax\"]()
         %out : Tensor = aten::scatter_reduce_(%over, %0, %places, %x, %how, %no)",
        208,
    );
}

#[test]
fn masked_scatter_keeps_its_mask_alone() {
    check(
        &["x 2,10,8", "s 8,8", "m! Bool(2, 10, 1, strides=[10, 1, 1], requires_grad=0, device=cpu)"],
        "%out : Tensor = aten::masked_scatter(%x, %m, %s)",
        20,
    );
}

#[test]
fn norms_along_a_dimension_are_kept_with_what_they_are_of() {
    check(&["x 3,4,5"], "%out : Tensor = aten::norm_except_dim(%x, %2, %0)", 252);
    check(&["x 3,4,5"], "%out : Tensor = aten::norm_except_dim(%x, %2, %2)", 260);
    // A copy in another order, in addition to the square that the product saves.
    let both = "%n : Tensor = aten::norm_except_dim(%x, %2, %1)
         %y : Tensor = aten::exp(%x)
         %z : Tensor = aten::mul(%y, %x)
         %out : Tensor = aten::add(%z, %n, %1)";
    check(&["x 3,4,5"], both, 736);
}

#[test]
fn weights_by_length_and_direction_are_kept_with_their_norms() {
    let normed = |dim| format!("%out : Tensor = aten::_weight_norm(%v, %g, %{dim})");
    check(&["v 2,3,4", "g 2,1,1"], &normed(0), 112);
    check(&["v 2,3,4", "g 1,1,4"], &normed(2), 128);
    // Of the middle one, norms are taken of a copy.
    check(&["v 2,3,4", "g 1,3,1"], &normed(1), 228);
}

#[test]
fn where_an_operator_writes_is_kept_and_what_if_its_gradient_has_the_sizes_of_that() {
    const OVER: &str = "x 5,4";
    const PLACES: &str = "i! Long(3, strides=[1], requires_grad=0, device=cpu)";
    const EACH: &str = "e! Long(3, 4, strides=[4, 1], requires_grad=0, device=cpu)";
    const FIXED: &str = "s! Float(3, 4, strides=[4, 1], requires_grad=0, device=cpu)";
    const TRAINED: &str = "s 3,4";
    let add = "%out : Tensor = aten::index_add(%x, %0, %i, %s, %1)";
    check(&[OVER, PLACES, FIXED], add, 0);
    check(&[OVER, PLACES, TRAINED], add, 72);
    let copy = "%out : Tensor = aten::index_copy(%x, %0, %i, %s)";
    check(&[OVER, PLACES, FIXED], copy, 24);
    check(&[OVER, PLACES, TRAINED], copy, 72);
    let put = "%places : Tensor[] = prim::ListConstruct(%i)
         %out : Tensor = aten::index_put(%x, %places, %s, %no)";
    check(&[OVER, PLACES, FIXED], put, 24);
    check(&[OVER, PLACES, TRAINED], put, 24);
    let scatter = "%out : Tensor = aten::scatter(%x, %0, %e, %s)";
    check(&[OVER, EACH, FIXED], scatter, 96);
    check(&[OVER, EACH, TRAINED], scatter, 96);
    let scatter_add = "%out : Tensor = aten::scatter_add(%x, %0, %e, %s)";
    check(&[OVER, EACH, FIXED], scatter_add, 0);
    check(&[OVER, EACH, TRAINED], scatter_add, 96);
}

#[test]
fn a_median_of_everything_is_found_again() {
    check(&["x 3,4"], "%out : Tensor = aten::median(%x)", 52);
    check(&["x 3,4"], "%out : Tensor = aten::nanmedian(%x)", 52);
    check(&["x 3,4"], "%out : Tensor, %at : Tensor = aten::nanmedian(%x, %1, %no)", 24);
}
