//! Shared programs: the places of exchanges, and the consistency of sizes of parts.
#![allow(clippy::unwrap_used, missing_docs)]

use graph::{
    BuildOptions, ModelGraph, OperatorId, build,
    layout::{
        Bands, Choice, Collective, Context, Exchange, Layout, Moved, Need, Routed, Rows, Sharded, Slice,
        Take, Window, check, exchanges, sharded,
    },
};
use tracer::{Constant, Operand, Program};

const CUT: fn(usize) -> Layout = |dim| Layout::Even(Slice { dim, blocks: 1 });

fn read(text: &str) -> (Program, ModelGraph) {
    let program = tracer::ir::read_ir(text).expect("it is IR");
    let graph = build(&program, &BuildOptions::default()).expect("sizes fit");
    (program, graph)
}

/// Chooses for each operator the strategy with the wanted layout, and cuts stored tensors as the strategies need.
fn choice(context: &Context<'_>, wanted: &[Layout]) -> Choice {
    let mut tensors = vec![Layout::Whole; context.graph.tensors.len()];
    let mut strategies = Vec::new();
    for (index, wanted) in wanted.iter().enumerate() {
        let all = context.strategies(OperatorId(index as u32));
        let at =
            all.iter().position(|one| one.gives == *wanted).unwrap_or_else(|| panic!("{index}: {all:?}"));
        for (leaf, need) in context.leaves(OperatorId(index as u32)).iter().zip(&all[at].needs) {
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

/// Of rows whose number only the run knows no device takes a part; features are cut as ever.
#[test]
fn rows_of_an_unknown_number_are_cut_by_features_alone() {
    let (_, graph) = read(PERCEPTRON);
    let mut context = Context::new(&graph, 2);
    let made = |context: &Context<'_>, layout: Layout| {
        context.strategies(OperatorId(0)).iter().any(|one| one.gives == layout)
    };
    let taken = |context: &Context<'_>, layout: Layout| {
        context.strategies(OperatorId(1)).iter().any(|one| one.needs == [Need::In(layout)])
    };
    assert!(made(&context, CUT(0)) && taken(&context, CUT(0)));
    context.uneven.extend(&graph.operator(OperatorId(0)).outputs);
    assert!(!made(&context, CUT(0)) && !taken(&context, CUT(0)));
    assert!(made(&context, CUT(1)) && taken(&context, CUT(1)));
}

#[test]
fn columns_then_rows_take_one_sum() {
    let (program, graph) = read(PERCEPTRON);
    let context = Context::new(&graph, 2);
    let made = sharded(&program, &context, &choice(&context, &[CUT(1), CUT(1), Layout::Sum])).unwrap();
    // The input carries no gradient, so nothing is summed in the backward pass.
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
    let context = Context::new(&graph, 2);
    // The first product is whole on each device; its result carries a gradient into work on parts.
    let made = sharded(&program, &context, &choice(&context, &[Layout::Whole, CUT(1), Layout::Sum])).unwrap();
    assert_eq!(names(&made.program), ["linear", "shard_scatter", "relu", "linear", "shard_reduce"]);
    let wrong =
        sharded(&program, &context, &Choice { strategies: vec![99, 0, 0], tensors: vec![Layout::Whole; 2] });
    assert!(wrong.is_err_and(|error| error.to_string().contains("has no such strategy")));
}

#[test]
fn dropout_in_place_draws_a_part_of_its_mask_where_nothing_else_reads_that_memory() {
    let dropped = "%p : float = prim::Constant[value=0.5]()
  %yes : bool = prim::Constant[value=1]()
  %r : Float(4, 16, strides=[16, 1], requires_grad=1, device=cpu) = aten::dropout_(%h, %p, %yes)";
    let relu = "%r : Float(4, 16, strides=[16, 1], requires_grad=1, device=cpu) = aten::relu(%h)";
    let text = PERCEPTRON.replace(relu, dropped);
    let (program, graph) = read(&text);
    let context = Context::new(&graph, 2);
    let chosen = choice(&context, &[CUT(1), CUT(1), Layout::Sum]);
    let made = sharded(&program, &context, &chosen).unwrap();
    assert_eq!(names(&made.program), ["linear", "shard_dropout", "linear", "shard_reduce"]);
    check(&program, &context, &chosen, &made).expect("its operand is the product");
    // A later reader of the product sees what was dropped; a new tensor would not show it.
    let (_, watched) = read(&text.replace("aten::linear(%r, %w2", "aten::linear(%h, %w2"));
    assert_eq!(Context::new(&watched, 2).strategies(OperatorId(1)).len(), 1);
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
    let context = Context::new(&graph, 2);
    let chosen = choice(&context, &[CUT(2), CUT(2)]);
    let made = sharded(&program, &context, &chosen).unwrap();
    assert_eq!(names(&made.program), ["shard_scatter", "relu", "shard_part", "view", "shard_gather"]);
    build(&made.program, &BuildOptions::default()).expect("parts fit together");
    // As if the number had not been divided.
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
        let context = Context::new(&graph, degree);
        let view = OperatorId(graph.operators.len() as u32 - 1);
        let is_offered = context.strategies(view).iter().any(|one| one.gives == CUT(2));
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
            // Without a gradient it does not matter how devices use a whole value.
            if need == Need::Partial {
                assert_eq!(exchanges(from, need, false), exchanges(from, Need::Whole, false), "{from}");
                assert_ne!(steps, exchanges(from, Need::Whole, true), "{from}");
            }
        }
    }
}

/// Rows that are routed to experts become a term of a sum, too; each row is sent to all other devices, whichever has
/// it.
#[test]
fn rows_of_experts_go_where_they_are_needed() {
    let routed = Routed { offsets: tracer::ValueId(7), experts: 4 };
    let (from, to) = (Layout::Routed(routed), Need::In(Layout::Routed(routed)));
    assert_eq!(exchanges(from, Need::In(Layout::Sum), true), Some(vec![Exchange::ExpertsTerm(routed)]));
    assert_eq!(exchanges(from, Need::Partial, true), Some(vec![Exchange::FromExpertsSplit(routed)]));
    assert_eq!(exchanges(from, to, true), Some(Vec::new()));
    assert_eq!(exchanges(Layout::Whole, to, true), Some(vec![Exchange::ToExperts(routed)]));
    let sent = |exchange: Exchange| exchange.forward(4).or(exchange.backward(4));
    let moved = Collective::Neighbours(Moved { total: 12, most: 3, messages: 3 }, 4);
    assert_eq!(sent(Exchange::ToExperts(routed)), Some(moved));
    assert_eq!(sent(Exchange::ExpertsTerm(routed)), None);
    let other = Layout::Routed(Routed { experts: 8, ..routed });
    assert_eq!(exchanges(other, to, true).map(|steps| steps.len()), Some(2));
}

/// Each part that is computed with one trained number has a term of that number's gradient.
#[test]
fn a_trained_number_is_used_in_parts() {
    let text = "graph(%self : __torch__.Net, %x : Float(4, 8, strides=[8, 1], requires_grad=0, device=cpu)):
  %none : NoneType = prim::Constant()
  %w : Float(5, strides=[1], requires_grad=1, device=cpu) = prim::GetAttr[name=\"w\"](%self)
  %scale : Float(requires_grad=1, device=cpu) = aten::sum(%w, %none)
  %y : Float(4, 8, strides=[8, 1], requires_grad=1, device=cpu) = aten::mul(%x, %scale)
  return (%y)
";
    let (_, graph) = read(text);
    let context = Context::new(&graph, 2);
    let cut = context.strategies(OperatorId(1)).into_iter().find(|one| one.gives == CUT(1)).unwrap();
    assert_eq!(cut.needs, [Need::In(CUT(1)), Need::Partial]);
}

/// In VGG-19 on 224 x 224 in two bands each convolution needs a row of the other's, and the last pool, of 14 rows to 7,
/// one more.
#[test]
fn halos_are_counted_exactly() {
    let window = |size: u64, results: u64, window: Window| Rows {
        from: Bands { dim: 2, size },
        results,
        take: Take::Window { window, fill: 0 },
    };
    let convolution = |size| window(size, size, Window { extent: 3, stride: 1, padding: 1 });
    let pool = |size| window(size, size / 2, Window { extent: 2, stride: 2, padding: 0 });
    let stages = [(224, [3, 64, 0, 0]), (112, [64, 128, 0, 0]), (56, [128, 256, 256, 256])];
    let deep = [(28, [256, 512, 512, 512]), (14, [512; 4])];
    let mut bytes = 0;
    for (size, channels) in stages.into_iter().chain(deep) {
        let row = |channels: u64| 4 * size * channels;
        bytes +=
            channels.iter().map(|channels| row(*channels) * convolution(size).moved(2).total).sum::<u64>();
        bytes += row(channels.iter().copied().max().unwrap_or(0)) * pool(size).moved(2).total;
    }
    assert_eq!(bytes, 1_352_960);
    // A window that spans several bands reads from each.
    let wide = window(12, 12, Window { extent: 9, stride: 1, padding: 4 });
    assert_eq!(wide.moved(4), Moved { total: 4 + 7 + 7 + 4, most: 7, messages: 3 });
}

/// The rows that a transposed convolution, or resampling, reads are all that reach its band, and no more than it needs.
#[test]
fn bands_take_all_rows_that_reach_them() {
    for degree in 1..=4 {
        for (size, extent, stride, padding) in
            (4..12).flat_map(|n| (1..5).flat_map(move |k| (1..4).map(move |s| (n, k, s, i64::from(k > 2)))))
        {
            let results = (size - 1) * stride + extent - 2 * padding as u64;
            let window = Window { extent, stride, padding };
            let rows = Rows { from: Bands { dim: 2, size }, results, take: Take::Spread(window) };
            for rank in 0..degree {
                let (first, last) = rows.taken(rank, degree);
                let (begin, end) = Bands { dim: 2, size: results }.band(rank, degree);
                for row in 0..size as i64 {
                    let at = row * stride as i64 - padding;
                    let reaches = at < end as i64 && at + extent as i64 > begin as i64;
                    assert!(
                        !reaches || begin == end || (first..last).contains(&row),
                        "{rows:?} on {rank} of {degree}"
                    );
                }
                // Its result begins no later than its band, and ends no earlier.
                let made = (last - 1) * stride as i64 - padding + extent as i64;
                assert!(first * stride as i64 - padding <= begin as i64 && made >= end as i64, "{rows:?}");
            }
        }
    }
}

const BIASED: &str = "graph(%self : __torch__.Net,
      %x : Float(4, 8, strides=[8, 1], requires_grad=1, device=cpu)):
  %one : int = prim::Constant[value=1]()
  %four : int = prim::Constant[value=4]()
  %two : int = prim::Constant[value=2]()
  %none : NoneType = prim::Constant()
  %first : __torch__.torch.nn.modules.linear.Linear = prim::GetAttr[name=\"first\"](%self)
  %second : __torch__.torch.nn.modules.linear.Linear = prim::GetAttr[name=\"second\"](%self)
  %w1 : Float(16, 8, strides=[8, 1], requires_grad=1, device=cpu) = prim::GetAttr[name=\"weight\"](%first)
  %w2 : Float(8, 16, strides=[16, 1], requires_grad=1, device=cpu) = prim::GetAttr[name=\"weight\"](%second)
  %b2 : Float(8, strides=[1], requires_grad=1, device=cpu) = prim::GetAttr[name=\"bias\"](%second)
  %s : Float(4, 8, strides=[8, 1], requires_grad=1, device=cpu) = aten::sigmoid(%x)
  %h : Float(4, 16, strides=[16, 1], requires_grad=1, device=cpu) = aten::linear(%s, %w1, %none)
  %heads : int[] = prim::ListConstruct(%four, %four, %four)
  %v : Float(4, 4, 4, strides=[16, 4, 1], requires_grad=1, device=cpu) = aten::view(%h, %heads)
  %r : Float(4, 4, 4, strides=[16, 4, 1], requires_grad=1, device=cpu) = aten::relu(%v)
  %f : Float(4, 16, strides=[16, 1], requires_grad=1, device=cpu) = aten::flatten(%r, %one, %two)
  %y : Float(4, 8, strides=[8, 1], requires_grad=1, device=cpu) = aten::linear(%f, %w2, %b2)
  %t : Float(4, 8, strides=[8, 1], requires_grad=1, device=cpu) = aten::tanh(%y)
  return (%t, %h)
";

/// Makes consumers of an exchange's result use its operand instead.
fn without(made: &mut Sharded, name: &str) {
    let at = made.program.nodes.iter().position(|node| node.operator == format!("shard::{name}")).unwrap();
    let (operand, value) =
        (made.program.nodes[at].arguments[0].operand.clone(), made.program.nodes[at].outputs[0]);
    let replace = |operand_of: &mut Operand| match operand_of {
        one if *one == Operand::Value(value) => *one = operand.clone(),
        Operand::List(items) | Operand::Tuple(items) => {
            items
                .iter_mut()
                .filter(|one| **one == Operand::Value(value))
                .for_each(|one| *one = operand.clone());
        }
        _ => {}
    };
    let arguments = made.program.nodes[at + 1..].iter_mut().flat_map(|node| &mut node.arguments);
    arguments.map(|argument| &mut argument.operand).chain([&mut made.program.output]).for_each(replace);
}

/// Replaces one exchange by another.
fn instead(made: &mut Sharded, from: Exchange, to: Exchange, name: &str) {
    let (id, exchange) = made.exchanges.iter_mut().find(|(_, one)| **one == from).unwrap();
    *exchange = to;
    made.program.nodes[id.index()].operator = format!("shard::{name}");
}

#[test]
fn each_fault_of_a_shared_program_is_named_with_its_operator() {
    use graph::layout::Exchange;
    let (program, graph) = read(BIASED);
    let context = Context::new(&graph, 2);
    let gives = [Layout::Whole, CUT(1), Layout::Whole, CUT(1), CUT(1), CUT(1), Layout::Sum, Layout::Whole];
    let gives: Vec<Layout> = if graph.operators.len() == gives.len() {
        gives.to_vec()
    } else {
        // The list is not an operator if the reader folds it.
        gives.iter().enumerate().filter(|(at, _)| *at != 2).map(|(_, one)| *one).collect()
    };
    let mut chosen = choice(&context, &gives);
    // A bias is not stored as a term of a sum; the check reports a choice that has it so.
    let made = sharded(&program, &context, &chosen).unwrap();
    assert!(check(&program, &context, &chosen, &made).unwrap_err().to_string().contains("`second.bias`"));
    chosen.tensors.iter_mut().filter(|one| **one == Layout::Sum).for_each(|one| *one = Layout::Whole);
    let made = sharded(&program, &context, &chosen).unwrap();
    let proof = check(&program, &context, &chosen, &made).unwrap();
    assert_eq!((proof.operators, proof.exchanges), (program.nodes.len(), 4), "{:?}", names(&made.program));
    let slice = Slice { dim: 1, blocks: 1 };
    type Fault<'f> = (&'f str, Box<dyn Fn(&mut Sharded)>, &'f str);
    let faults: [Fault<'_>; 7] = [
        ("a literal is not divided", Box::new(|made| without(made, "shard_part")), "`aten::view`"),
        (
            "no gradient is summed at an entry",
            Box::new(|made| without(made, "shard_copy")),
            "takes `s`, which is whole, used equally by all",
        ),
        ("nothing is summed at an exit", Box::new(|made| without(made, "shard_reduce")), "`aten::tanh`"),
        ("a bias is added by each", Box::new(|made| without(made, "shard_once")), "takes `second.bias`"),
        (
            "gradients are summed at an exit, too",
            Box::new(|made| instead(made, Exchange::Reduce, Exchange::Copy, "shard_copy")),
            "`shard_copy`, which makes `y_sum`",
        ),
        (
            "one exchange serves whole and shared work",
            Box::new(move |made| {
                instead(made, Exchange::Gather(slice), Exchange::GatherSplit(slice), "shard_gather_split");
            }),
            "the model returns `h_whole`, which is whole, used for a part by each",
        ),
        (
            "an operator is left out",
            Box::new(|made| {
                made.program.nodes.retain(|node| node.operator != "aten::relu");
            }),
            "`aten::relu`",
        ),
    ];
    for (what, fault, expected) in faults {
        let mut wrong = made.clone();
        fault(&mut wrong);
        let error = check(&program, &context, &chosen, &wrong).unwrap_err().to_string();
        assert!(error.contains(expected), "{what}: {error}");
    }
}

const EACH_SECOND_ROW: &str = "graph(%x : Float(1, 4, 20, 8, strides=[640, 160, 8, 1], requires_grad=1, device=cpu)):
  %no : bool = prim::Constant[value=0]()
  %zero : int = prim::Constant[value=0]()
  %one : int = prim::Constant[value=1]()
  %two : int = prim::Constant[value=2]()
  %end : int = prim::Constant[value=9223372036854775807]()
  %both : int[] = prim::ListConstruct(%two, %two)
  %nothing : int[] = prim::ListConstruct(%zero, %zero)
  %ones : int[] = prim::ListConstruct(%one, %one)
  %p : Float(1, 4, 10, 4, strides=[160, 40, 4, 1], requires_grad=1, device=cpu) = aten::max_pool2d(%x, %both, %both, %nothing, %ones, %no)
  %y : Float(1, 4, 5, 4, strides=[160, 40, 8, 1], requires_grad=1, device=cpu) = aten::slice(%p, %two, %one, %end, %two)
  return (%y)
";

#[test]
fn each_second_row_of_bands_is_each_second_row_of_what_was_fetched() {
    let (program, graph) = read(EACH_SECOND_ROW);
    for degree in [2, 3, 4] {
        let context = Context::in_bands(&graph, degree, 0);
        let bands = |size| Layout::Bands(Bands { dim: 2, size });
        let chosen = choice(&context, &[bands(10), bands(5)]);
        let made = sharded(&program, &context, &chosen).unwrap();
        check(&program, &context, &chosen, &made).unwrap();
        let own = build(&made.program, &BuildOptions::default()).expect("parts fit together");
        assert!(own.disagreements.is_empty(), "{degree}: {:?}", own.disagreements);
    }
}
