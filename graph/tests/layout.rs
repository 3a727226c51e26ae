//! Programs that devices share: which exchanges stand where, and that sizes of parts must fit together.
#![allow(clippy::unwrap_used, missing_docs)]

use graph::{
    BuildOptions, ModelGraph, OperatorId, build,
    layout::{Choice, Layout, Look, Need, Slice, exchanges, sharded},
};
use tracer::{Constant, Operand, Program};

const CUT: fn(usize) -> Layout = |dim| Layout::Even(Slice { dim, blocks: 1 });

fn read(text: &str) -> (Program, ModelGraph) {
    let program = tracer::ir::read_ir(text).expect("it is IR");
    let graph = build(&program, &BuildOptions::default()).expect("sizes fit");
    (program, graph)
}

/// Chooses for each operator the strategy that gives such a layout, and cuts stored tensors as the strategies need them.
fn choice(look: &Look<'_>, wanted: &[Layout]) -> Choice {
    let mut tensors = vec![Layout::Whole; look.graph.tensors.len()];
    let mut strategies = Vec::new();
    for (index, wanted) in wanted.iter().enumerate() {
        let all = look.strategies(OperatorId(index as u32));
        let at =
            all.iter().position(|one| one.gives == *wanted).unwrap_or_else(|| panic!("{index}: {all:?}"));
        for (leaf, need) in look.leaves(OperatorId(index as u32)).iter().zip(&all[at].needs) {
            if let (graph::layout::Source::Tensor(id), Need::In(layout)) = (leaf.source, need) {
                tensors[id.index()] = *layout;
            }
        }
        strategies.push(at);
    }
    Choice { strategies, tensors }
}

fn names(program: &Program) -> Vec<&str> {
    program.nodes.iter().map(|node| schema::short_name(&node.operator)).collect()
}

const PERCEPTRON: &str = "graph(%self : __torch__.Net,
      %x : Float(4, 8, strides=[8, 1], requires_grad=0, device=cpu)):
  %none : NoneType = prim::Constant()
  %first : __torch__.torch.nn.modules.linear.Linear = prim::GetAttr[name=\"first\"](%self)
  %second : __torch__.torch.nn.modules.linear.Linear = prim::GetAttr[name=\"second\"](%self)
  %w1 : Float(16, 8, strides=[8, 1], requires_grad=1, device=cpu) = prim::GetAttr[name=\"weight\"](%first)
  %w2 : Float(8, 16, strides=[16, 1], requires_grad=1, device=cpu) = prim::GetAttr[name=\"weight\"](%second)
  %h : Float(4, 16, strides=[16, 1], requires_grad=1, device=cpu) = aten::linear(%x, %w1, %none)
  %r : Float(4, 16, strides=[16, 1], requires_grad=1, device=cpu) = aten::relu(%h)
  %y : Float(4, 8, strides=[8, 1], requires_grad=1, device=cpu) = aten::linear(%r, %w2, %none)
  return (%y)
";

#[test]
fn columns_then_rows_take_one_sum() {
    let (program, graph) = read(PERCEPTRON);
    let look = Look::new(&graph, 2);
    let made = sharded(&program, &look, &choice(&look, &[CUT(1), CUT(1), Layout::Sum])).unwrap();
    // The input carries no gradient, so nothing is summed on the way back.
    assert_eq!(names(&made.program), ["linear", "relu", "linear", "shard_reduce"]);
    let cuts: Vec<usize> = made.cuts.values().map(|slice| slice.dim).collect();
    assert_eq!(cuts, [0, 1]);
    let own = build(&made.program, &BuildOptions::default()).expect("parts fit together");
    assert_eq!(own.value(own.outputs[0]).fact.to_string(), graph.value(graph.outputs[0]).fact.to_string());
    assert!(made.is_split.iter().all(|split| *split));
}

#[test]
fn a_value_that_all_have_enters_shared_work_by_a_copy() {
    let (program, graph) = read(PERCEPTRON);
    let look = Look::new(&graph, 2);
    // The first product is done whole by each; its result carries a gradient into work on parts.
    let made = sharded(&program, &look, &choice(&look, &[Layout::Whole, CUT(1), Layout::Sum])).unwrap();
    assert_eq!(names(&made.program), ["linear", "shard_scatter", "relu", "linear", "shard_reduce"]);
    let wrong =
        sharded(&program, &look, &Choice { strategies: vec![99, 0, 0], tensors: vec![Layout::Whole; 2] });
    assert!(wrong.is_err_and(|error| error.to_string().contains("has no such strategy")));
}

const HEADS: &str = "graph(%x : Float(2, 6, 16, strides=[96, 16, 1], requires_grad=1, device=cpu)):
  %two : int = prim::Constant[value=2]()
  %six : int = prim::Constant[value=6]()
  %four : int = prim::Constant[value=4]()
  %sizes : int[] = prim::ListConstruct(%two, %six, %four, %four)
  %r : Float(2, 6, 16, strides=[96, 16, 1], requires_grad=1, device=cpu) = aten::relu(%x)
  %y : Float(2, 6, 4, 4, strides=[96, 16, 4, 1], requires_grad=1, device=cpu) = aten::view(%r, %sizes)
  return (%y)
";

#[test]
fn a_literal_that_was_not_divided_is_refused() {
    let (program, graph) = read(HEADS);
    let look = Look::new(&graph, 2);
    let chosen = choice(&look, &[CUT(2), CUT(2)]);
    let made = sharded(&program, &look, &chosen).unwrap();
    assert_eq!(names(&made.program), ["shard_scatter", "relu", "shard_part", "view", "shard_gather"]);
    build(&made.program, &BuildOptions::default()).expect("parts fit together");
    // As if nobody had looked at the number.
    let mut wrong = made.program;
    let view = wrong.nodes.iter_mut().find(|node| node.operator == "aten::view").unwrap();
    let Operand::List(sizes) = &mut view.arguments[1].operand else { panic!("{view:?}") };
    sizes[2] = Operand::Constant(Constant::Int(4));
    assert!(build(&wrong, &BuildOptions::default()).is_err(), "four heads were taken for two");
}

#[test]
fn heads_that_do_not_divide_are_not_offered() {
    let (_, graph) = read(HEADS);
    for (degree, expected) in [(2, true), (4, true), (3, false), (8, false)] {
        let look = Look::new(&graph, degree);
        let view = OperatorId(graph.operators.len() as u32 - 1);
        let is_offered = look.strategies(view).iter().any(|one| one.gives == CUT(2));
        assert_eq!(is_offered, expected, "{degree}");
    }
}

#[test]
fn each_exchange_makes_what_is_needed_of_what_is_there() {
    let layouts = [Layout::Whole, CUT(0), CUT(1), Layout::Sum];
    for from in layouts {
        for need in [Need::Whole, Need::Partial, Need::In(CUT(0)), Need::In(CUT(1)), Need::In(Layout::Sum)] {
            let steps = exchanges(from, need, true);
            let is_slice = matches!(from, Layout::Even(_));
            assert_eq!(steps.is_none(), is_slice && need == Need::In(Layout::Sum), "{from} {need:?}");
            // Without a gradient it does not matter who does what with a whole value.
            if need == Need::Partial {
                assert_eq!(exchanges(from, need, false), exchanges(from, Need::Whole, false), "{from}");
                assert_ne!(steps, exchanges(from, Need::Whole, true), "{from}");
            }
        }
    }
}
