//! Times each step from bytes to costs, the median of many runs.
//!
//! `cargo run --release -p model-analyze-graph --example time -- MODEL.pt`

use std::{io::Write, time::Instant};

const RUNS: usize = 21;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: time MODEL.pt")?;
    let bytes = std::fs::read(path)?;
    let (mut read, mut build, mut cost) = (Vec::new(), Vec::new(), Vec::new());
    let mut operators = 0;
    for _ in 0..RUNS {
        let start = Instant::now();
        let program = tracer::read_archive(&bytes)?;
        read.push(start.elapsed());
        let start = Instant::now();
        let graph = graph::build(&program, &graph::BuildOptions::default())?;
        build.push(start.elapsed());
        let start = Instant::now();
        let costs = graph::costs(&graph);
        cost.push(start.elapsed());
        operators = graph.operators.len();
        std::hint::black_box(costs);
    }
    let mut out = std::io::stdout().lock();
    for (name, times) in [("read", &mut read), ("build", &mut build), ("costs", &mut cost)] {
        times.sort();
        writeln!(out, "{name:6} {:?}", times[RUNS / 2])?;
    }
    writeln!(out, "{operators} operators")?;
    Ok(())
}
