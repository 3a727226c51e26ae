//! Measures how long drawing takes: `cargo run --release -p model-analyze-viz --example picture_speed`.
//!
//! Draws synthetic transformers of growing size with every operator shown: nested blocks, residuals and one mask that
//! all layers read. Each layer has its own width, so that equal layers cannot be folded.
#![allow(clippy::print_stdout)]

use std::time::Instant;

use viz::{
    BoxId, Caption, Color, Depth, Diagram, DiagramBox, Direction, Family, draw, lay_out_diagram, view,
};

fn main() {
    println!(
        "{:>10} {:>10} {:>10} {:>10} {:>10} {:>9}",
        "operators", "view", "layout", "draw", "total", "kB"
    );
    for (n_operators, is_flat) in
        [(500, false), (5_000, false), (20_000, false), (5_000, true), (20_000, true)]
    {
        let diagram = if is_flat { flat(n_operators) } else { transformer(n_operators / 20) };
        let start = Instant::now();
        let (shown, _) = view(&diagram, Depth::At(u32::MAX));
        let viewed = start.elapsed();
        let scene = lay_out_diagram(&shown, Direction::TopToBottom).expect("operators stand in order");
        let laid_out = start.elapsed();
        let svg = draw(&shown, &scene, &Caption::default(), Color::Family);
        let drawn = start.elapsed();
        println!(
            "{n_operators:>10} {:>10.1?} {:>10.1?} {:>10.1?} {:>10.1?} {:>9} {}",
            viewed,
            laid_out - viewed,
            drawn - laid_out,
            drawn,
            svg.len() / 1000,
            if is_flat { "without blocks" } else { "in blocks" }
        );
    }
}

fn named(title: &str, subtitle: String, family: Family) -> DiagramBox {
    DiagramBox {
        path: title.to_string(),
        title: title.to_string(),
        subtitle,
        family,
        ..DiagramBox::default()
    }
}

/// Layers of 20 operators in two blocks.
fn transformer(n_layers: usize) -> Diagram {
    let mut diagram = Diagram::new(DiagramBox::default());
    let mask = diagram.add(BoxId::ROOT, named("mask", String::new(), Family::Input));
    let mut last = diagram.add(BoxId::ROOT, named("ids", String::new(), Family::Input));
    let mut readers = Vec::new();
    for index in 0..n_layers {
        let layer =
            diagram.add(BoxId::ROOT, named(&format!("layers.{index}"), String::new(), Family::Module));
        for part in ["attention", "mlp"] {
            let block = diagram.add(layer, named(part, String::new(), Family::Module));
            let mut made = vec![last];
            for step in 0..8 {
                let id = diagram.add(block, named("linear", format!("{index}→{step}"), Family::Matmul));
                diagram.connect(made[made.len() - 1], "8x128x768", [id]);
                if step % 3 == 2 {
                    diagram.connect(made[made.len() - 2], "8x128x768", [id]);
                }
                made.push(id);
            }
            readers.push(made[4]);
            let dropout = diagram.add(layer, named("dropout", String::new(), Family::Elementwise));
            let add = diagram.add(layer, named("add", String::new(), Family::Elementwise));
            diagram.connect(made[8], "8x128x768", [dropout]);
            diagram.connect(dropout, "8x128x768", [add]);
            diagram.connect(last, "8x128x768", [add]);
            last = add;
        }
    }
    diagram.connect(mask, "8x128", readers);
    diagram
}

/// One long list of operators, each reading the previous one and one further back.
fn flat(n_operators: usize) -> Diagram {
    let mut diagram = Diagram::new(DiagramBox::default());
    let mut made: Vec<BoxId> = Vec::with_capacity(n_operators);
    for index in 0..n_operators {
        let id = diagram.add(BoxId::ROOT, named("op", index.to_string(), Family::Elementwise));
        for back in [1, 2 + index * 7919 % 97] {
            if let Some(source) = made.len().checked_sub(back) {
                diagram.connect(made[source], "8x128x768", [id]);
            }
        }
        made.push(id);
    }
    diagram
}
