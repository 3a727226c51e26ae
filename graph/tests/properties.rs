//! Graphs of random module trees and call sequences: skips, views, in-place operators, modules called repeatedly.

use graph::{BuildOptions, Item, Level, ModelGraph};
use proptest::{prelude::*, sample::Index};

/// One operator: its kind, the earlier values it reads, and the modules that are being called.
type Step = (u8, Index, Index, Vec<u8>);

/// Writes the steps as a dump of `str(traced.inlined_graph)`; every value is a square of floats.
fn dump(steps: &[Step], result: Index) -> String {
    let mut text = String::from(
        "graph(%self : __torch__.M,
      %v0 : Float(4, 4, strides=[4, 1], requires_grad=1, device=cpu),
      %v1 : Float(4, 4, strides=[4, 1], requires_grad=0, device=cpu)):
  %one : int = prim::Constant[value=1]()
  %w : Tensor = prim::GetAttr[name=\"weight\"](%self)\n",
    );
    let mut names = vec!["v0".to_string(), "v1".to_string()];
    for (at, (what, first, second, path)) in steps.iter().enumerate() {
        let (a, b) = (first.get(&names).clone(), second.get(&names).clone());
        let mut scope = String::from("__module");
        let mut inner = String::from("__module");
        for name in path {
            inner.push_str(&format!(".m{name}"));
            scope.push_str(&format!("/{inner}"));
        }
        let call = match what {
            0 => format!("aten::relu(%{a})"),
            1 => format!("aten::relu_(%{a})"),
            2 => format!("aten::add(%{a}, %{b}, %one)"),
            3 => format!("aten::t(%{a})"),
            4 => format!("aten::mm(%{a}, %{b})"),
            5 => format!("aten::mul_(%{a}, %{b})"),
            6 => format!("aten::linear(%{a}, %w, %none{at})"),
            _ => format!("foo::bar(%{a}, %{b})"),
        };
        if *what == 6 {
            text.push_str(&format!("  %none{at} : NoneType = prim::Constant()\n"));
        }
        let name = format!("y{at}");
        text.push_str(&format!("  %{name} : Float(4, 4) = {call}, scope: {scope}\n"));
        names.push(name);
    }
    text.push_str(&format!("  return (%{})\n", result.get(&names)));
    text
}

fn build(text: &str) -> ModelGraph {
    let program = tracer::ir::read_ir(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    graph::build(&program, &BuildOptions::default()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let path = proptest::collection::vec(0..3_u8, 0..4);
    proptest::collection::vec((0..8_u8, any::<Index>(), any::<Index>(), path), 1..40)
}

/// The levels that a picture or a plan may ask for.
fn levels(graph: &ModelGraph) -> Vec<Vec<Item>> {
    let deepest = graph.blocks.iter().map(|block| block.depth).max().unwrap_or(0);
    let named = [Level::Operator, Level::Layer, Level::Block].into_iter();
    named.chain((0..=deepest).map(Level::Depth)).map(|level| graph.level(level)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_invariant_holds(steps in steps(), result in any::<Index>()) {
        let text = dump(&steps, result);
        let graph = build(&text);
        prop_assert_eq!(graph.problems(), Vec::<String>::new(), "{}", text);
    }

    #[test]
    fn every_quotient_is_acyclic_and_whole(steps in steps(), result in any::<Index>()) {
        let graph = build(&dump(&steps, result));
        for items in levels(&graph) {
            let quotient = graph.quotient(items.clone());
            // Items are in execution order, so edges that only go forward cannot close a cycle.
            prop_assert!(quotient.edges.keys().all(|(from, to)| from < to));
            let mut next = 0;
            for item in &items {
                let range = match item {
                    Item::Block(block) => graph.block(*block).operators.clone(),
                    Item::Operator(operator) => operator.0..operator.0 + 1,
                };
                prop_assert_eq!(range.start, next, "operators are left out or taken twice");
                next = range.end;
            }
            prop_assert_eq!(next as usize, graph.operators.len());
            // No flow between operators is lost on the way to their items.
            let item_of = |operator: u32| items.iter().position(|item| match item {
                Item::Block(block) => graph.block(*block).operators.contains(&operator),
                Item::Operator(id) => id.0 == operator,
            });
            for edge in graph.flow.edge_indices() {
                let (from, to) = graph.flow.edge_endpoints(edge).expect("an edge of this graph");
                let ends = (item_of(graph.flow[from].0), item_of(graph.flow[to].0));
                let (Some(from), Some(to)) = ends else { return Err(TestCaseError::fail("an operator is in no item")) };
                prop_assert!(from == to || quotient.edges.contains_key(&(from, to)));
            }
        }
    }

    #[test]
    fn liveness_is_what_counting_says(steps in steps(), result in any::<Index>()) {
        let graph = build(&dump(&steps, result));
        let live = graph::liveness(&graph);
        for cut in 0..=graph.operators.len() as u32 {
            let mut bytes = 0;
            for value in &graph.values {
                if value.producer.is_none_or(|producer| producer.0 >= cut) {
                    continue;
                }
                let is_read = value.consumers.iter().any(|consumer| consumer.0 >= cut);
                if is_read || graph.outputs.contains(&value.id) {
                    bytes += value.fact.tensor().and_then(|tensor| tensor.bytes()).unwrap_or(0);
                }
            }
            prop_assert_eq!(live.bytes[cut as usize], bytes, "cut {}", cut);
        }
    }

    #[test]
    fn costs_add_up_and_nothing_is_left_to_chance(steps in steps(), result in any::<Index>()) {
        let text = dump(&steps, result);
        let (graph, again) = (build(&text), build(&text));
        let (costs, others) = (graph::costs(&graph), graph::costs(&again));
        prop_assert_eq!(&costs, &others);
        prop_assert_eq!(&graph.blocks, &again.blocks);
        prop_assert_eq!(format!("{:?}", graph.flow), format!("{:?}", again.flow));
        for items in levels(&graph) {
            let mut sum = graph::OperatorCost::default();
            for item in &items {
                sum += match item {
                    Item::Block(block) => costs.block(&graph, *block),
                    Item::Operator(operator) => costs.operator(*operator),
                };
            }
            prop_assert_eq!(sum, costs.total());
        }
    }
}
