//! Properties of every drawing, on random diagrams and on those that other tools fail on.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use viz::{
    Amount, BoxId, Caption, Color, Depth, Diagram, DiagramBox, DiagramError, Direction, Family, Rect, Scene,
    draw, lay_out_diagram, view,
};

fn named(title: &str) -> DiagramBox {
    DiagramBox { path: title.to_string(), title: title.to_string(), ..DiagramBox::default() }
}

fn root() -> Diagram {
    Diagram::new(named("model"))
}

/// A random tree of boxes with random wires, all forward.
fn diagram(parents: &[u32], wires: &[(u32, Vec<u32>)]) -> Diagram {
    let mut diagram = root();
    // Each box is put into the latest open frame of some depth, so that siblings are in order of creation.
    let mut open = vec![BoxId::ROOT];
    for (index, parent) in parents.iter().enumerate() {
        open.truncate(1 + *parent as usize % open.len());
        let size = index % 7;
        let item = DiagramBox {
            subtitle: "s".repeat(size * 3),
            family: Family::ALL[index % 9],
            ..named(&format!("box {index}"))
        };
        open.push(diagram.add(*open.last().unwrap(), item));
    }
    let leaves: Vec<BoxId> = diagram.ids().skip(1).filter(|id| diagram.is_leaf(*id)).collect();
    if leaves.is_empty() {
        return diagram;
    }
    for (source, sinks) in wires {
        let source = *source as usize % leaves.len();
        let rest = leaves.len() - source - 1;
        let sinks: Vec<BoxId> = sinks
            .iter()
            .filter(|_| rest > 0)
            .map(|sink| leaves[source + 1 + *sink as usize % rest])
            .collect();
        diagram.connect(leaves[source], format!("{source}x64"), sinks);
    }
    diagram
}

fn overlap(a: Rect, b: Rect) -> bool {
    const TOUCH: f64 = 0.01;
    a.x + a.width > b.x + TOUCH
        && b.x + b.width > a.x + TOUCH
        && a.y + a.height > b.y + TOUCH
        && b.y + b.height > a.y + TOUCH
}

fn is_inside(inner: Rect, outer: Rect) -> bool {
    inner.x >= outer.x - 0.01
        && inner.y >= outer.y - 0.01
        && inner.x + inner.width <= outer.x + outer.width + 0.01
        && inner.y + inner.height <= outer.y + outer.height + 0.01
}

#[track_caller]
fn check_scene(diagram: &Diagram, scene: &Scene) {
    for id in diagram.ids() {
        let children = &diagram.get(id).children;
        for (index, a) in children.iter().enumerate() {
            assert!(is_inside(scene.rects[a.index()], scene.rects[id.index()]), "{a:?} sticks out of {id:?}");
            for b in &children[index + 1..] {
                assert!(!overlap(scene.rects[a.index()], scene.rects[b.index()]), "{a:?} lies on {b:?}");
            }
        }
    }
    let leaves: Vec<BoxId> = diagram.ids().skip(1).filter(|id| diagram.is_leaf(*id)).collect();
    for (wire, route) in diagram.wires().iter().zip(&scene.routes) {
        let touches = |x: f64, y: f64, id: BoxId| {
            let point = Rect { x: x - 0.1, y: y - 0.1, width: 0.2, height: 0.2 };
            overlap(point, scene.rects[id.index()])
        };
        assert_eq!(route.tips.len(), wire.sinks.len());
        for sink in &wire.sinks {
            assert!(route.tips.iter().any(|tip| touches(tip.x, tip.y, *sink)), "no arrow touches {sink:?}");
        }
        let starts = |line: &Vec<viz::svg::Point>| touches(line[0].x, line[0].y, wire.source);
        assert!(route.lines.iter().any(starts), "no line leaves {:?}", wire.source);
        for line in &route.lines {
            for pair in line.windows(2) {
                let (a, b) = (pair[0], pair[1]);
                assert!((a.x - b.x).abs() < 0.6 || (a.y - b.y).abs() < 0.6, "a slanted line");
                let segment = Rect {
                    x: a.x.min(b.x),
                    y: a.y.min(b.y),
                    width: (a.x - b.x).abs(),
                    height: (a.y - b.y).abs(),
                };
                for leaf in &leaves {
                    assert!(!overlap(segment, scene.rects[leaf.index()]), "a line runs through {leaf:?}");
                }
            }
        }
    }
    for (index, label) in scene.labels.iter().enumerate() {
        for leaf in &leaves {
            assert!(!overlap(label.rect, scene.rects[leaf.index()]), "a label lies on {leaf:?}");
        }
        for other in &scene.labels[index + 1..] {
            assert!(!overlap(label.rect, other.rect), "{label:?} lies on {other:?}");
        }
    }
}

#[track_caller]
fn check_svg(svg: &str) {
    let document = roxmltree::Document::parse(svg).unwrap();
    assert_eq!(document.root_element().tag_name().name(), "svg");
    let known = ["svg", "style", "rect", "g", "path", "text", "title"];
    for node in document.descendants().filter(roxmltree::Node::is_element) {
        assert!(known.contains(&node.tag_name().name()), "{:?}", node.tag_name());
    }
}

fn picture(diagram: &Diagram, direction: Direction, color: Color) -> String {
    let (view, _) = view(diagram, Depth::Automatic);
    let scene = lay_out_diagram(&view, direction).unwrap();
    check_scene(&view, &scene);
    let caption = Caption { title: "model".to_string(), subtitle: String::new() };
    let svg = draw(&view, &scene, &caption, color);
    check_svg(&svg);
    svg
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn drawings_keep_their_promises(
        parents in prop::collection::vec(0u32..6, 1..40),
        wires in prop::collection::vec((0u32..64, prop::collection::vec(0u32..64, 1..4)), 0..50),
        is_right in any::<bool>(),
    ) {
        let diagram = diagram(&parents, &wires);
        let direction = if is_right { Direction::LeftToRight } else { Direction::TopToBottom };
        let scene = lay_out_diagram(&diagram, direction).unwrap();
        check_scene(&diagram, &scene);
        let first = picture(&diagram, direction, Color::Family);
        prop_assert_eq!(first, picture(&diagram, direction, Color::Family));
    }
}

/// Embedding, twelve equal layers with a shared mask and a residual each, head.
fn transformer(n_layers: usize) -> Diagram {
    let mut diagram = root();
    let input = diagram.add(BoxId::ROOT, DiagramBox { family: Family::Input, ..named("ids") });
    let mask = diagram.add(BoxId::ROOT, DiagramBox { family: Family::Input, ..named("mask") });
    let mut last = diagram.add(BoxId::ROOT, DiagramBox { family: Family::Embedding, ..named("embed") });
    diagram.connect(input, "2x64", [last]);
    let mut attentions = Vec::new();
    for index in 0..n_layers {
        let layer = diagram.add(BoxId::ROOT, named(&format!("layers.{index}")));
        let norm = diagram.add(layer, DiagramBox { family: Family::Norm, ..named("norm") });
        let attention = diagram.add(layer, DiagramBox { family: Family::Sequence, ..named("attention") });
        let add = diagram.add(layer, DiagramBox { family: Family::Elementwise, ..named("add") });
        diagram.connect(last, "2x64x256", [norm, add]);
        diagram.connect(norm, "2x64x256", [attention]);
        diagram.connect(attention, "2x64x256", [add]);
        attentions.push(attention);
        last = add;
    }
    diagram.connect(mask, "2x64", attentions);
    let head = diagram.add(BoxId::ROOT, DiagramBox { family: Family::Matmul, ..named("head") });
    diagram.connect(last, "2x64x256", [head]);
    diagram
}

#[test]
fn equal_layers_are_drawn_once() {
    let (view, levels) = view(&transformer(12), Depth::Automatic);
    let titles: Vec<&str> = view.boxes().iter().map(|item| item.title.as_str()).collect();
    assert_eq!(titles, ["model", "ids", "mask", "embed", "layers.0–11", "norm", "attention", "add", "head"]);
    assert_eq!(view.boxes().iter().map(|item| item.repeat).max(), Some(12));
    assert_eq!(levels.open, 2);
    insta::assert_snapshot!(picture(&transformer(12), Direction::TopToBottom, Color::Family));
}

#[test]
fn double_skips_are_not_folded_away() {
    let mut diagram = root();
    let cells: Vec<BoxId> = (0..6)
        .map(|index| {
            let cell = diagram.add(BoxId::ROOT, named(&format!("cells.{index}")));
            let a = diagram.add(cell, named("a"));
            let b = diagram.add(cell, named("b"));
            diagram.connect(a, "8x8", [b]);
            b
        })
        .collect();
    for index in 2..6 {
        let first = BoxId(cells[index].0 - 1);
        diagram.connect(cells[index - 1], "8x8", [first]);
        diagram.connect(cells[index - 2], "8x8", [first]);
    }
    let (view, _) = view(&diagram, Depth::At(1));
    assert_eq!(view.boxes().len(), 7);
    assert_eq!(view.wires().iter().map(|wire| wire.sinks.len()).sum::<usize>(), 8);
    picture(&diagram, Direction::LeftToRight, Color::None);
}

#[test]
fn a_mask_with_many_readers_is_named_instead_of_drawn() {
    let mut diagram = root();
    let mask = diagram.add(BoxId::ROOT, named("mask"));
    let readers: Vec<BoxId> = (0..100)
        .map(|index| {
            let title = format!("layer {index}");
            diagram.add(BoxId::ROOT, DiagramBox { subtitle: index.to_string(), ..named(&title) })
        })
        .collect();
    for pair in readers.windows(2) {
        diagram.connect(pair[0], "2x64", [pair[1]]);
    }
    diagram.connect(mask, "2x1x64x64", readers);
    let (view, _) = view(&diagram, Depth::Automatic);
    let n_tagged = view.boxes().iter().filter(|item| item.tags == ["mask"]).count();
    assert_eq!(n_tagged, 99);
    picture(&diagram, Direction::TopToBottom, Color::Family);
}

#[test]
fn long_chains_are_wrapped() {
    let mut diagram = root();
    let boxes: Vec<BoxId> = (0..140)
        .map(|index| {
            let title = format!("layer {index}");
            diagram.add(BoxId::ROOT, DiagramBox { subtitle: index.to_string(), ..named(&title) })
        })
        .collect();
    for pair in boxes.windows(2) {
        diagram.connect(pair[0], "8x64", [pair[1]]);
    }
    for direction in [Direction::TopToBottom, Direction::LeftToRight] {
        let scene = lay_out_diagram(&diagram, direction).unwrap();
        check_scene(&diagram, &scene);
        let aspect = scene.width / scene.height;
        assert!((0.4..3.0).contains(&aspect), "{aspect}");
    }
}

#[test]
fn reshapes_in_a_row_are_one_box_above_the_deepest_level() {
    let mut diagram = root();
    let moves = |title: &str| DiagramBox { family: Family::Movement, ..named(title) };
    let titles = ["transpose", "contiguous", "view"];
    let input = diagram.add(BoxId::ROOT, named("linear"));
    let chain: Vec<BoxId> = titles.map(|title| diagram.add(BoxId::ROOT, moves(title))).to_vec();
    let copies: Vec<BoxId> = (0..4).map(|_| diagram.add(BoxId::ROOT, moves("expand"))).collect();
    let sum = diagram.add(BoxId::ROOT, named("add"));
    diagram.connect(input, "2x8", [chain[0]]);
    diagram.connect(chain[0], "8x2", [chain[1]]);
    diagram.connect(chain[1], "8x2", [chain[2]]);
    // A tensor that is read twice ends a chain, and an operator that reads two tensors begins none.
    diagram.connect(chain[2], "16", [copies[0], sum]);
    diagram.connect(copies[0], "1x16", [copies[1]]);
    diagram.connect(copies[1], "1x1x16", [copies[2]]);
    diagram.connect(copies[2], "1x1x1x16", [copies[3]]);
    diagram.connect(input, "2x8", [copies[3]]);
    diagram.connect(copies[3], "4x16", [sum]);
    let titles = |depth| -> Vec<String> {
        let (view, _) = view(&diagram, depth);
        check_scene(&view, &lay_out_diagram(&view, Direction::TopToBottom).unwrap());
        view.boxes()[1..].iter().map(|item| item.title.clone()).collect()
    };
    assert_eq!(
        titles(Depth::Automatic),
        ["linear", "transpose · contiguous · view", "expand ×3", "expand", "add"]
    );
    assert_eq!(titles(Depth::At(1)).len(), 9);
}

/// A forward that computes between its parts, as in twelve turns of a loop: a page shows turns, not operators.
#[test]
fn arithmetic_between_the_parts_of_a_large_first_level_is_one_box() {
    let operator = |title: &str, family| DiagramBox {
        family,
        attributes: vec![("operator".to_string(), title.to_string())],
        ..named(title)
    };
    let drawn = |turns: usize| {
        let mut diagram = root();
        let mut last = diagram.add(BoxId::ROOT, operator("conv2d", Family::Convolution));
        for _ in 0..turns {
            for title in ["sub", "mul", "floor", "add", "clamp"] {
                let next = diagram.add(BoxId::ROOT, operator(title, Family::Elementwise));
                diagram.connect(last, "8", [next]);
                last = next;
            }
            let next = diagram.add(BoxId::ROOT, operator("matmul", Family::Matmul));
            diagram.connect(last, "8", [next]);
            last = next;
        }
        let (view, _) = view(&diagram, Depth::Automatic);
        check_scene(&view, &lay_out_diagram(&view, Direction::TopToBottom).unwrap());
        view.boxes()[1..].iter().map(|item| (item.title.clone(), item.subtitle.clone())).collect::<Vec<_>>()
    };
    // As long as the page shows all operators, it does.
    assert_eq!(drawn(3).len(), 19);
    let many = drawn(30);
    assert_eq!(many.len(), 61);
    assert_eq!(many[1], ("arithmetic".to_string(), "5 operators".to_string()));
    assert_eq!(many[2].0, "matmul");
}

#[test]
fn norms_stay_closed_masks_are_one_box_and_cuts_are_seen() {
    let attribute = |name: &str, value: &str| (name.to_string(), value.to_string());
    let operator = |title: &str, family, stage, output: &str| DiagramBox {
        family,
        stage: Some(stage),
        attributes: vec![attribute("operator", title), attribute("output", output)],
        ..named(title)
    };
    let module = |title: &str, class: &str, stage| DiagramBox {
        subtitle: class.to_string(),
        stage,
        attributes: vec![attribute("class", class)],
        ..named(title)
    };
    let mut diagram = root();
    diagram.has_stages = true;
    let ids =
        DiagramBox { family: Family::Input, attributes: vec![attribute("dtype", "int64")], ..named("ids") };
    let mut last = diagram.add(BoxId::ROOT, ids);
    let table = diagram.add(BoxId::ROOT, operator("embedding", Family::Embedding, 0, "float32 8x4"));
    diagram.connect(last, "8", [table]);
    for (title, output) in [("ones", "int64 8"), ("cumsum", "int64 8"), ("le", "bool 8x8")] {
        let next = diagram.add(BoxId::ROOT, operator(title, Family::Elementwise, 0, output));
        diagram.connect(last, "8", [next]);
        last = next;
    }
    let mask = last;
    last = table;
    // The second norm is cut by the plan.
    for (name, stages) in [("norm1", [0, 0]), ("norm2", [0, 1])] {
        let stage = (stages[0] == stages[1]).then_some(stages[0]);
        let frame = diagram.add(BoxId::ROOT, module(name, "RMSNorm", stage));
        for (title, stage) in ["pow", "rsqrt"].into_iter().zip(stages) {
            let next = diagram.add(frame, operator(title, Family::Elementwise, stage, "float32 8x4"));
            diagram.connect(last, "8x4", [next]);
            last = next;
        }
        let attention =
            diagram.add(BoxId::ROOT, operator("attention", Family::Sequence, stages[1], "float32 8x4"));
        diagram.connect(last, "8x4", [attention]);
        diagram.connect(mask, "8x8", [attention]);
        last = attention;
    }
    let (picture, _) = view(&diagram, Depth::Automatic);
    let titles: Vec<&str> = picture.boxes()[1..].iter().map(|item| item.title.as_str()).collect();
    assert_eq!(
        titles,
        ["ids", "embedding", "mask", "norm1", "attention", "norm2", "pow", "rsqrt", "attention"]
    );
    assert_eq!(picture.boxes()[3].subtitle, "3 operators");
    assert_eq!(picture.boxes()[4].family, Family::Norm);
    check_scene(&picture, &lay_out_diagram(&picture, Direction::TopToBottom).unwrap());
    // A closed box shows its stages; the deepest level shows the content of a mask.
    let (closed, levels) = view(&diagram, Depth::At(1));
    let norm = closed.boxes().iter().find(|item| item.title == "norm2").unwrap();
    assert_eq!(norm.details, ["cut: S0 | S1"]);
    assert!(closed.boxes().iter().any(|item| item.title == "mask"));
    let (whole, levels) = view(&diagram, Depth::At(levels.of));
    assert!(whole.boxes().iter().all(|item| item.title != "mask"));
    assert_eq!(levels.open, levels.of);
}

#[test]
fn chains_are_straight() {
    let scene = {
        let (view, _) = view(&transformer(1), Depth::Automatic);
        lay_out_diagram(&view, Direction::TopToBottom).unwrap()
    };
    // norm, attention, add, head: one line, also out of the frame that holds the first three.
    let middles: Vec<f64> =
        [5, 6, 7, 8].map(|index: usize| scene.rects[index].x + scene.rects[index].width / 2.0).to_vec();
    assert!(middles.iter().all(|middle| (middle - middles[0]).abs() < 0.6), "{middles:?}");
}

#[test]
fn hostile_names_are_text() {
    let names = [
        "<script>alert(1)</script>",
        "\"'&<>]]>",
        "\u{0}\u{1}\u{1b}[31m\n\t\u{7f}",
        "\u{202e}desrever\u{2066}",
        "שלום عالم",
        "名前・🧠👩‍👩‍👧",
        "\u{fffe}\u{ffff}",
        "</text></svg>",
    ];
    let mut diagram = root();
    let mut last = None;
    for name in names.map(str::to_string).into_iter().chain(["x".repeat(10_000)]) {
        let frame = diagram.add(BoxId::ROOT, named(&name));
        let a = diagram
            .add(frame, DiagramBox { subtitle: name.clone(), details: vec![name.clone()], ..named(&name) });
        let b = diagram.add(frame, DiagramBox { tags: vec![name.clone()], ..named(&name) });
        diagram.connect(a, name.as_str(), [b]);
        if let Some(last) = last {
            diagram.connect(last, name, [a]);
        }
        last = Some(b);
    }
    let svg = picture(&diagram, Direction::TopToBottom, Color::Family);
    assert!(!svg.contains("<script"));
    let document = roxmltree::Document::parse(&svg).unwrap();
    assert!(document.descendants().any(|node| node.text() == Some("<script>alert(1)</script>")));
    let longest = document.descendants().filter(|n| n.has_tag_name("text")).filter_map(|n| n.text());
    assert!(longest.map(str::len).max() < Some(200));
    let scene = lay_out_diagram(&diagram, Direction::LeftToRight).unwrap();
    assert!(scene.width < 20_000.0);
}

#[test]
fn amounts_and_stages_are_shown_without_colour_too() {
    let mut diagram = root();
    diagram.amounts = Some("forward FLOPs".to_string());
    diagram.has_stages = true;
    let amount = |value: f64| Some(Amount { value, text: format!("{value} GFLOP") });
    let a = diagram.add(BoxId::ROOT, DiagramBox { amount: amount(1.0), stage: Some(0), ..named("a") });
    let b = diagram.add(BoxId::ROOT, DiagramBox { amount: amount(4.0), stage: Some(1), ..named("b") });
    diagram.connect(a, "8x64", [b]);
    let svg = picture(&diagram, Direction::TopToBottom, Color::Cost);
    for text in [">1 GFLOP<", ">4 GFLOP<", ">S0<", ">S1<", "from 0 to 4 GFLOP"] {
        assert!(svg.contains(text), "{text}");
    }
    insta::assert_snapshot!(svg);
}

#[test]
fn wrong_diagrams_are_refused() {
    let mut diagram = root();
    let a = diagram.add(BoxId::ROOT, named("a"));
    let b = diagram.add(BoxId::ROOT, named("b"));
    diagram.connect(b, "", [a]);
    let error = lay_out_diagram(&diagram, Direction::TopToBottom).unwrap_err();
    assert_eq!(error, DiagramError::Backwards { from: "b".to_string(), to: "a".to_string() });
    assert_eq!(error.to_string(), "a tensor flows backwards from `b` to `a`");
}

#[test]
fn an_empty_model_is_a_title() {
    picture(&root(), Direction::TopToBottom, Color::Family);
    let (view, levels) = view(&root(), Depth::At(0));
    assert_eq!((view.boxes().len(), levels.open), (1, 1));
}

#[test]
fn deep_nesting_is_closed() {
    let mut diagram = root();
    let mut frame = BoxId::ROOT;
    for index in 0..10_000 {
        diagram.add(frame, named("leaf"));
        frame = diagram.add(frame, named(&index.to_string()));
    }
    let (view, _) = view(&diagram, Depth::At(10_000));
    assert!(view.boxes().len() < 100);
    picture(&diagram, Direction::TopToBottom, Color::Family);
}
