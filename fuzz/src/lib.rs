//! What the targets share: taking a trace that could be read all the way to a picture.

use graph::BuildOptions;
use tracer::Program;

/// Programs of more nodes are only read: a fuzzer learns nothing from large ones but patience.
const MOST_NODES: usize = 300;

/// Builds the graph of a program, checks its invariants, and draws it. Refusing it is fine; panicking is not.
///
/// # Panics
/// When an invariant is broken.
pub fn to_picture(program: &Program) {
    if program.nodes.len() > MOST_NODES {
        return;
    }
    let Ok(graph) = graph::build(program, &BuildOptions::default()) else { return };
    let problems = graph.problems();
    assert!(problems.is_empty(), "{problems:?}");
    let costs = graph::costs(&graph);
    let _ = graph::liveness(&graph);
    let _ = graph::parameters_by_block(&graph);
    let _ = graph::document(&graph, &costs);
    let diagram = viz::from_graph(&graph, &viz::Overlay::default());
    for depth in [viz::Depth::Automatic, viz::Depth::At(99)] {
        let (view, _) = viz::view(&diagram, depth);
        let _ = viz::dot(&view, viz::Direction::TopToBottom);
        if let Ok(scene) = viz::lay_out_diagram(&view, viz::Direction::TopToBottom) {
            let caption = viz::Caption { title: "fuzz".to_owned(), subtitle: String::new() };
            let _ = viz::draw(&view, &scene, &caption, viz::Color::Family);
        }
    }
}
