//! Compares what data sheets predict with times that others published of whole models: `make bench-published` runs it.
//!
//!     cargo run --release -p model-analyze-cost-model --example published -- fixtures/published/timm.csv TRACES [all]
//!
//! TRACES is what `fixtures/published.py` makes; with `all` every model has its line. No device of the table was profiled.
//! Beside it stands the plain roofline: the longer of FLOPs at the peak and bytes at the full bandwidth, operator by operator.

#![allow(clippy::print_stdout, missing_docs)]

use std::{collections::HashMap, error::Error, path::Path};

use cost_model::{CostModel, Estimate, Machine, PredictOptions, combine, predict};
use graph::{BuildOptions, InputShape, ModelGraph, OperatorClass, OperatorCosts, dtype_name};
use indexmap::IndexMap;
use schema::DeviceType;

/// Bytes that SGD with momentum moves for a parameter in float32: reads three numbers, writes two.
const OPTIMIZER_BYTES: f64 = 20.0;

/// A row of the table.
struct Row<'a> {
    model: &'a str,
    size: u64,
    device: &'a str,
    torch: &'a str,
    what: &'a str,
    batch: u64,
    seconds: f64,
}

impl<'a> Row<'a> {
    fn read(line: &'a str) -> Result<Self, Box<dyn Error>> {
        let [model, size, device, torch, what, batch, milliseconds] = line.split(',').collect::<Vec<_>>()[..]
        else {
            return Err(format!("`{line}` has not seven cells").into());
        };
        Ok(Self {
            model,
            size: size.parse()?,
            device,
            torch,
            what,
            batch: batch.parse()?,
            seconds: 1e-3 * milliseconds.parse::<f64>()?,
        })
    }

    fn is_step(&self) -> bool {
        self.what == "step"
    }
}

/// The plain roofline of a model.
fn roofline(graph: &ModelGraph, costs: &OperatorCosts, figures: &DeviceType, is_step: bool) -> f64 {
    let time = |operator: &graph::Operator| {
        let cost = costs.operator(operator.id);
        let fact =
            operator.outputs.first().and_then(|value| graph.value(*value).fact.tensors().first().copied());
        let dtype = fact.and_then(|fact| fact.dtype).map_or("float32", dtype_name);
        let machine = Machine::of(figures, dtype);
        let bytes = (cost.read_bytes + cost.written_bytes) as f64 / machine.bandwidth;
        let one = |flops: u64| (flops as f64 / machine.peak).max(bytes);
        let is_idle = matches!(operator.class, OperatorClass::View | OperatorClass::Plumbing);
        let forward = if is_idle { 0.0 } else { one(cost.forward_flops) };
        let back = cost.backward_flops_input + cost.backward_flops_weight;
        let backward = if is_idle || !is_step { 0.0 } else { one(back) };
        forward + backward
    };
    graph.operators.iter().map(time).sum()
}

/// A model at a batch; nothing where its trace is not there.
type Built = Option<(ModelGraph, OperatorCosts)>;

/// What a row of the table came to.
#[derive(Default)]
struct Found {
    ours: Vec<f64>,
    plain: Vec<f64>,
    inside: usize,
    worst: (f64, String),
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [table, traces, rest @ ..] = arguments.as_slice() else {
        return Err("give TABLE.csv and a folder of traces".into());
    };
    let text = std::fs::read_to_string(table)?;
    let lines = text.lines().filter(|line| !line.starts_with('#')).skip(1);
    let rows = lines.map(Row::read).collect::<Result<Vec<_>, _>>()?;
    let mut sets: IndexMap<(&str, &str, &str), Found> = IndexMap::new();
    let mut missing = 0;
    let mut graphs: HashMap<(&str, &str, u64), Built> = HashMap::new();
    for row in &rows {
        let known = graphs.entry((row.model, row.what, row.batch));
        let built = match known {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => entry.insert(built(traces, row)?),
        };
        let Some((graph, costs)) = built else {
            missing += 1;
            continue;
        };
        let figures = schema::catalogue().get(row.device).ok_or(row.device)?;
        let sheet = CostModel::of_data_sheet(row.device, figures);
        let total = predict(graph, costs, &sheet, &PredictOptions::default()).total();
        let optimizer = graph.tensors.iter().filter(|tensor| tensor.requires_grad);
        let optimizer: f64 = optimizer.map(|tensor| tensor.bytes as f64).sum::<f64>() * OPTIMIZER_BYTES / 4.0;
        let updates = Estimate::exact(optimizer / figures.memory_bandwidth.0);
        let own = if row.is_step() {
            combine([total.forward, total.backward(), updates].into_iter())
        } else {
            total.forward
        };
        let error = |seconds: f64| 100.0 * (seconds / row.seconds - 1.0);
        let is_inside = own.p10 <= row.seconds && row.seconds <= own.p90;
        let found = sets.entry((row.device, row.torch, row.what)).or_default();
        found.ours.push(error(own.seconds));
        found.plain.push(error(roofline(graph, costs, figures, row.is_step())));
        found.inside += usize::from(is_inside);
        if error(own.seconds).abs() > found.worst.0.abs() {
            found.worst = (error(own.seconds), row.model.to_string());
        }
        if rest.iter().any(|word| word == "all") {
            println!(
                "{:10} torch {:6}{:9}{:32}{:9.1} ms {:9.1} ms {:+6.1} %{}",
                row.device,
                row.torch,
                row.what,
                row.model,
                1e3 * row.seconds,
                1e3 * own.seconds,
                error(own.seconds),
                if is_inside { "" } else { "  outside the band" }
            );
        }
    }
    if missing > 0 {
        println!("{missing} rows left out: {traces} has no trace of their models");
    }
    println!(
        "{:34}{:>7}{:>8}{:>8}{:>7}{:>9}{:>16}  worst",
        "data sheet alone, errors in %", "models", "mean", "median", "bias", "in band", "plain roofline"
    );
    for ((device, torch, what), found) in sets {
        let mut sizes: Vec<f64> = found.ours.iter().map(|error| error.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        let mean = |errors: &[f64]| errors.iter().sum::<f64>() / errors.len() as f64;
        let plain: Vec<f64> = found.plain.iter().map(|error| error.abs()).collect();
        println!(
            "{:34}{:7}{:8.1}{:8.1}{:+7.1}{:8.0}%{:16.1}  {:+.0} {}",
            format!("{device}, torch {torch}, {what}"),
            sizes.len(),
            mean(&sizes),
            sizes[sizes.len() / 2],
            mean(&found.ours),
            100.0 * found.inside as f64 / sizes.len() as f64,
            mean(&plain),
            found.worst.0,
            found.worst.1
        );
    }
    Ok(())
}

/// Reads a trace at the row's batch; nothing when it is not there.
fn built(traces: &str, row: &Row<'_>) -> Result<Built, Box<dyn Error>> {
    let path = Path::new(traces).join(format!("{}_{}.pt", row.model, row.what));
    let Ok(bytes) = std::fs::read(path) else { return Ok(None) };
    let program = tracer::read_archive(&bytes)?;
    let input = InputShape { name: None, shape: vec![row.batch, 3, row.size, row.size], dtype: None };
    let graph = graph::build(&program, &BuildOptions { inputs: vec![input] })
        .map_err(|errors| format!("{}: {errors}", row.model))?;
    let costs = graph::costs(&graph);
    Ok(Some((graph, costs)))
}
