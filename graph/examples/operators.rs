//! Prints every operator of an archive with its result, its costs and its block.
//!
//! `cargo run -p model-analyze-graph --example operators -- MODEL.pt`

use std::io::Write;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: operators MODEL.pt")?;
    let program = tracer::read_archive(&std::fs::read(path)?)?;
    let graph = graph::build(&program, &graph::BuildOptions::default())?;
    let costs = graph::costs(&graph);
    let mut out = std::io::stdout().lock();
    for operator in &graph.operators {
        let results: Vec<String> =
            operator.outputs.iter().map(|value| graph.value(*value).fact.to_string()).collect();
        let cost = costs.operator(operator.id);
        let path = &graph.block(operator.block).path;
        let (id, name, results) = (operator.id.0, &operator.name, results.join(", "));
        let (flops, backward, saved) = (cost.forward_flops, cost.backward_flops(), cost.saved_bytes);
        writeln!(out, "{id:5} {name:32} {results:40} {flops:12} {backward:12} {saved:10}  {path}")?;
    }
    for problem in graph.problems() {
        writeln!(out, "{problem}")?;
    }
    Ok(())
}
