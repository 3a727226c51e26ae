//! Graphs of the committed traces and of small IR texts: order, levels, liveness, repeats, costs.

use std::path::Path;

use graph::{BlockId, BuildOptions, Flow, InputShape, Item, Level, ModelGraph};

fn trace(name: &str) -> ModelGraph {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../fixtures/traces/{name}.pt"));
    let program = tracer::read_archive(&std::fs::read(path).expect("committed")).expect("a trace");
    graph::build(&program, &BuildOptions::default()).expect("a graph")
}

fn text(inputs: &str, body: &str, result: &str) -> ModelGraph {
    let text = format!("graph(%self : __torch__.M, {inputs}):\n{body}  return (%{result})\n");
    let program = tracer::ir::read_ir(&text).expect("IR text");
    graph::build(&program, &BuildOptions::default()).expect("a graph")
}

const FIXTURES: [&str; 7] = [
    "amoebanet_6_small",
    "bert_tiny",
    "cnn_basic",
    "cnn_dropout",
    "gpt2_tiny",
    "lstm_seq2seq_small",
    "unet_small",
];

#[test]
fn no_invariant_is_broken() {
    for name in FIXTURES {
        assert_eq!(trace(name).problems(), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn building_twice_gives_the_same() {
    for name in FIXTURES {
        let (a, b) = (trace(name), trace(name));
        assert_eq!(a.blocks, b.blocks, "{name}");
        assert_eq!(a.operators, b.operators, "{name}");
        assert_eq!(format!("{:?}", a.flow), format!("{:?}", b.flow), "{name}");
    }
}

#[test]
fn a_module_called_twice_is_two_blocks() {
    let graph = trace("cnn_basic");
    let paths: Vec<&str> = graph.blocks.iter().map(|block| block.path.as_str()).collect();
    assert!(paths.contains(&"pool") && paths.contains(&"pool (call 2)"), "{paths:?}");
}

#[test]
fn equal_layers_have_equal_structure() {
    let graph = trace("gpt2_tiny");
    let block = |path: &str| graph.blocks.iter().find(|block| block.path == path).expect("a block");
    assert_eq!(block("transformer.h.0").outline, block("transformer.h.1").outline);
    assert_ne!(block("transformer.h.0").structure, block("transformer.wte").structure);
    let items = graph.level(Level::Block);
    let names: Vec<&str> = items
        .iter()
        .filter_map(|item| match item {
            Item::Block(id) => Some(graph.block(*id).path.as_str()),
            Item::Operator(_) => None,
        })
        .collect();
    assert!(names.contains(&"transformer.h.0") && names.contains(&"transformer.h.1"), "{names:?}");
}

#[test]
fn writing_in_place_orders_the_readers_of_every_alias() {
    let graph = text(
        "%x : Float(2, 3)",
        "  %a : Tensor = aten::neg(%x)
  %shape : int[] = prim::Constant[value=[6]]()
  %view : Tensor = aten::view(%a, %shape)
  %before : Tensor = aten::exp(%view)
  %written : Tensor = aten::relu_(%a)
  %after : Tensor = aten::sin(%view)
  %one : int = prim::Constant[value=1]()
  %sum : Tensor = aten::add(%before, %after, %one)
",
        "sum",
    );
    let at = |name: &str| graph.operators.iter().position(|operator| operator.name == name).expect("there");
    let ordered = |from: &str, to: &str| {
        graph.flow.raw_edges().iter().any(|edge| {
            matches!(edge.weight, Flow::Order(_))
                && edge.source().index() == at(from)
                && edge.target().index() == at(to)
        })
    };
    assert!(ordered("aten::exp", "aten::relu_"), "an earlier reader of a view comes before the writer");
    assert!(ordered("aten::relu_", "aten::sin"), "a later reader of a view comes after the writer");
    assert!(!ordered("aten::exp", "aten::sin"));
    assert_eq!(graph.problems(), Vec::<String>::new());
}

#[test]
fn sizes_are_followed_as_numbers() {
    let graph = text(
        "%x : Float(4, 6)",
        "  %zero : int = prim::Constant[value=0]()
  %size : int = aten::size(%x, %zero)
  %number : Tensor = prim::NumToTensor(%size)
  %two : Long() = prim::Constant[value={2}]()
  %half : Tensor = aten::floor_divide(%number, %two)
  %int : int = aten::Int(%half)
  %rest : int = prim::Constant[value=-1]()
  %shape : int[] = prim::ListConstruct(%int, %rest)
  %y : Tensor = aten::view(%x, %shape)
",
        "y",
    );
    let tensor = graph.value(graph.outputs[0]).fact.tensor().expect("a tensor").clone();
    assert_eq!(tensor.to_string(), "float32 2x12");
}

#[test]
fn an_unknown_operator_is_named_and_stops_nothing() {
    let graph = text(
        "%x : Float(2, 3)",
        "  %y : Tensor = foo::bar(%x)
  %z : Float(2, 5) = foo::bar(%y)
  %r : Tensor = aten::relu(%z)
",
        "r",
    );
    let unknown = &graph.unknown["foo::bar"];
    assert_eq!(unknown.operators.len(), 2);
    assert_eq!(graph.value(graph.outputs[0]).fact.to_string(), "float32 2x5");
}

#[test]
fn what_depends_on_data_is_an_unknown_size() {
    let graph = text(
        "%x : Float(2, 3)",
        "  %i : Tensor = aten::nonzero(%x)
  %r : Tensor = aten::neg(%i)
",
        "r",
    );
    assert_eq!(graph.value(graph.outputs[0]).fact.to_string(), "int64 ?x2");
}

#[test]
fn skips_cross_every_cut_between() {
    let graph = text(
        "%x : Float(2, 3)",
        "  %a : Tensor = aten::neg(%x)
  %b : Tensor = aten::exp(%a)
  %c : Tensor = aten::sin(%b)
  %one : int = prim::Constant[value=1]()
  %d : Tensor = aten::add(%c, %a, %one)
",
        "d",
    );
    let live = graph::liveness(&graph);
    assert_eq!(live.counts, [0, 1, 2, 2, 1]);
    assert_eq!(live.bytes, [0, 24, 48, 48, 24]);
    let names: Vec<&str> = live.crossing(2).map(|l| graph.value(l.value).name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
}

#[test]
fn every_problem_is_reported() {
    let text = "graph(%self : __torch__.M, %x : Tensor, %y : Tensor):\n  %a : Tensor = aten::mm(%x, %y)\n  %b : Tensor = aten::bmm(%x, %y)\n  return (%a)\n";
    let program = tracer::ir::read_ir(text).expect("IR text");
    let input = |shape: &[u64]| InputShape { name: None, shape: shape.to_vec(), dtype: None };
    let options = BuildOptions { inputs: vec![input(&[2, 3]), input(&[4, 5])] };
    let errors = graph::build(&program, &options).expect_err("sizes differ");
    let shown: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "`aten::mm` in the root rejects its inputs: inner sizes of 2x3 and 4x5 differ: 3 against 4 (given float32 2x3, float32 4x5)",
            "`aten::bmm` in the root rejects its inputs: bmm needs 3 and 3 dimensions: 2x3 with 4x5 (given float32 2x3, float32 4x5)",
        ]
    );
}

#[test]
fn a_long_chain_is_no_trouble() {
    let mut body = String::new();
    for at in 0..20_000 {
        let from = if at == 0 { "x".to_string() } else { format!("v{}", at - 1) };
        body.push_str(&format!("  %v{at} : Tensor = aten::relu_(%{from})\n"));
    }
    let graph = text("%x : Float(2, 3)", &body, "v19999");
    assert_eq!(graph.operators.len(), 20_000);
    assert_eq!(graph.quotient(graph.level(Level::Operator)).items.len(), 20_000);
    assert_eq!(graph::costs(&graph).total().forward_flops, 0);
    assert_eq!(graph::liveness(&graph).counts.len(), 20_001);
}

#[test]
fn tied_parameters_count_once() {
    let graph = trace("gpt2_tiny");
    let names: Vec<Vec<&str>> = graph
        .tied
        .iter()
        .map(|group| group.iter().map(|id| graph.tensor(*id).path.as_str()).collect())
        .collect();
    assert!(
        names
            .iter()
            .any(|group| group.contains(&"transformer.wte.weight") && group.contains(&"lm_head.weight")),
        "{names:?}"
    );
    let by_block = graph::parameters_by_block(&graph);
    assert_eq!(by_block[BlockId::ROOT.index()], graph.parameters());
}

#[test]
fn the_document_names_every_edge() {
    let graph = trace("unet_small");
    let document = graph::document(&graph, &graph::costs(&graph));
    assert_eq!(document.edges.len(), graph.flow.edge_count());
    assert!(document.edges.iter().all(|edge| edge.from < edge.to));
}

#[test]
fn costs_of_sizes_beyond_64_bits_stop_there() {
    let huge = "Float(4294967296, 4294967296, strides=[4294967296, 1], requires_grad=1, device=cpu)";
    let text = format!(
        "graph(%x : {huge},\n      %h : {huge},\n      %w : {huge},\n      %u : {huge}):\n  \
         %n : NoneType = prim::Constant()\n  \
         %out : Tensor = aten::rnn_tanh_cell(%x, %h, %w, %u, %n, %n)\n  return (%out)\n"
    );
    let program = tracer::ir::read_ir(&text).expect("IR text");
    let graph = graph::build(&program, &BuildOptions::default()).expect("a graph");
    let total = graph::costs(&graph).total();
    assert_eq!((total.forward_flops, total.backward_flops_input), (u64::MAX, u64::MAX));
}

#[test]
fn no_gradient_flows_through_positions() {
    let total = |middle: &str| {
        let float = |sizes: &str, stride: u32| {
            format!("Float({sizes}, strides=[{stride}, 1], requires_grad=1, device=cpu)")
        };
        let text = format!(
            "graph(%x : {},\n      %w : {},\n      %e : {}):\n  %no : bool = prim::Constant[value=0]()\n  \
             %1 : int = prim::Constant[value=1]()\n  %-1 : int = prim::Constant[value=-1]()\n  \
             %y : Tensor = aten::mm(%x, %w)\n  {middle}\n  %out : Tensor = aten::mm(%t, %e)\n  return (%out)\n",
            float("2, 3", 3),
            float("3, 4", 4),
            float("4, 4", 4),
        );
        let text = text.replace("%-1", "%m");
        let program = tracer::ir::read_ir(&text).expect("IR text");
        let graph = graph::build(&program, &BuildOptions::default()).expect("a graph");
        let total = graph::costs(&graph).total();
        (total.forward_flops, total.backward_flops())
    };
    let (first, second) = (2 * 2 * 3 * 4, 2 * 2 * 4 * 4);
    assert_eq!(total("%t : Tensor = aten::relu(%y)"), (first + second, 2 * (first + second)));
    // Codes of a codec: no gradient flows from operators on them to the operators that made them.
    let codes = "%codes : Tensor = aten::argmax(%y, %1, %no)\n  \
                 %t : Tensor = aten::embedding(%e, %codes, %m, %no, %no)";
    assert_eq!(total(codes), (first + second, 2 * second));
}

#[test]
fn sizes_that_depend_on_values_are_found_where_they_begin() {
    let graph = text(
        "%x : Float(4, 6, strides=[6, 1], requires_grad=0, device=cpu)",
        "  %0 : int = prim::Constant[value=0]()\n  %m : Tensor = aten::gt(%x, %0)\n  \
         %n : Tensor = aten::nonzero(%m)\n  %k : Tensor = aten::nonzero(%x)\n  %l : Tensor[] = prim::ListConstruct(%m)\n  \
         %p : Tensor = aten::index(%x, %l)\n  %s : Tensor = aten::relu(%p)\n  %o : (Tensor, Tensor, Tensor) = prim::TupleConstruct(%n, %k, %s)\n",
        "o",
    );
    let lost: Vec<(String, bool, usize)> =
        graph::lost_sizes(&graph).into_iter().map(|l| (l.name, l.by_values, l.operators.len())).collect();
    assert_eq!(lost, [("aten::nonzero".to_string(), true, 2), ("aten::index".to_string(), true, 1)]);
    for name in FIXTURES {
        assert_eq!(graph::lost_sizes(&trace(name)), [], "{name}");
    }
}

#[test]
fn a_matrix_exponential_keeps_its_operand() {
    let graph = text(
        "%x : Float(2, 3, 3, strides=[9, 3, 1], requires_grad=1, device=cpu)",
        "  %r : Tensor = aten::matrix_exp(%x)\n",
        "r",
    );
    assert!(graph.unknown.is_empty());
    let costs = graph::costs(&graph);
    assert_eq!((costs.total().forward_flops, costs.total().saved_bytes), (0, 2 * 9 * 4));
}

#[test]
fn a_mask_that_leaves_a_block_is_not_its_result() {
    let graph = text(
        "%x : Float(4, 6, strides=[6, 1], requires_grad=1, device=cpu)",
        "  %e : __torch__.Encoder = prim::GetAttr[name=\"encoder\"](%self)\n  %0 : int = prim::Constant[value=0]()\n  \
         %1 : int = prim::Constant[value=1]()\n  %n : bool = prim::Constant[value=0]()\n  %none : NoneType = prim::Constant()\n  \
         %i : int[] = prim::ListConstruct(%1)\n  \
         %s : Tensor = aten::sum(%x, %i, %n, %none), scope: __module.encoder\n  %m : Tensor = aten::gt(%s, %0), scope: __module.encoder\n  \
         %h : Tensor = aten::relu(%x), scope: __module.encoder\n  %o : (Tensor, Tensor) = prim::TupleConstruct(%m, %h)\n",
        "o",
    );
    let block = graph.blocks.iter().find(|block| block.path == "encoder").expect("a block");
    assert_eq!(block.outputs.len(), 2);
    let shape = graph.result_of(block.id).and_then(|tensor| tensor.shape.clone()).expect("a shape");
    assert_eq!(shape.as_slice(), [Some(4), Some(6)]);
}

#[test]
fn what_is_written_into_a_view_has_its_gradient_elsewhere() {
    let graph = text(
        "%x : Float(4, 6, strides=[6, 1], requires_grad=1, device=cpu), %w : Float(6, 5, strides=[5, 1], requires_grad=0, device=cpu)",
        "  %n : NoneType = prim::Constant()\n  %0 : int = prim::Constant[value=0]()\n  %f : bool = prim::Constant[value=0]()\n  \
         %z : Tensor = aten::zeros_like(%x, %n, %n, %n, %n, %n)\n  %s : Tensor = aten::select(%x, %0, %0)\n  \
         %v : Tensor = aten::select(%z, %0, %0)\n  %c : Tensor = aten::copy_(%v, %s, %f)\n  %r : Tensor = aten::mm(%z, %w)\n",
        "r",
    );
    let total = graph::costs(&graph).total();
    assert_eq!((total.forward_flops, total.backward_flops()), (2 * 4 * 6 * 5, 2 * 4 * 6 * 5));
}

#[test]
fn gradients_of_solvers_are_products() {
    let check = |body: &str, expected: u64| {
        let graph = text(
            "%a : Float(2, 3, 3, strides=[9, 3, 1], requires_grad=1, device=cpu), \
             %b : Float(5, 1, 3, 4, strides=[12, 12, 4, 1], requires_grad=1, device=cpu)",
            &format!(
                "  %f : bool = prim::Constant[value=0]()\n  %t : bool = prim::Constant[value=1]()\n  \
                 %r : Tensor = aten::{body}\n"
            ),
            "r",
        );
        let total = graph::costs(&graph).total();
        assert_eq!((total.forward_flops, total.backward_flops()), (0, expected), "{body}");
    };
    check("linalg_solve_triangular(%a, %b, %f, %t, %f)", 720);
    check("linalg_inv(%a)", 216);
    check("linalg_cholesky(%a, %f)", 108);
}

/// As torch's counter counts a bidirectional LSTM over sequences of 7, 6, 6 and 2 steps.
#[test]
fn packed_sequences_begin_together_and_end_one_by_one() {
    let float = |name: &str, sizes: [u64; 2], learns: u8| {
        let [rows, columns] = sizes;
        format!(
            "%{name} : Float({rows}, {columns}, strides=[{columns}, 1], requires_grad={learns}, device=cpu)"
        )
    };
    let directions = ["f", "b"].map(|d| {
        let matrix = |name: &str, columns| float(&format!("{d}{name}"), [24, columns], 1);
        format!("{}, {}", matrix("i", 10), matrix("h", 6))
    });
    let graph = text(
        &format!(
            "{}, %sizes : Long(7, strides=[1], requires_grad=0, device=cpu), {}, \
             %state : Float(2, 4, 6, strides=[24, 6, 1], requires_grad=0, device=cpu)",
            float("x", [21, 10], 0),
            directions.join(", ")
        ),
        "  %1 : int = prim::Constant[value=1]()\n  %no : bool = prim::Constant[value=0]()\n  \
         %yes : bool = prim::Constant[value=1]()\n  %none : float = prim::Constant[value=0.]()\n  \
         %hx : Tensor[] = prim::ListConstruct(%state, %state)\n  %p : Tensor[] = prim::ListConstruct(%fi, %fh, %bi, %bh)\n  \
         %y : Tensor, %h : Tensor, %c : Tensor = aten::lstm(%x, %sizes, %hx, %p, %no, %1, %none, %no, %yes)\n  \
         %o : (Tensor, Tensor) = prim::TupleConstruct(%y, %h)\n",
        "o",
    );
    let total = graph::costs(&graph).total();
    assert_eq!((total.forward_flops, total.backward_flops()), (32256, 42912));
    let hidden = graph.values.iter().find(|value| value.name == "h").expect("the last state");
    assert_eq!(hidden.fact.tensor().expect("a tensor").to_string(), "float32 2x4x6");
}
