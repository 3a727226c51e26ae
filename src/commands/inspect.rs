//! `model-analyze inspect`: the model as a table of blocks.

use std::path::PathBuf;

use clap::Args;
use cost_model::{CostModel, Costs, Estimate, PredictOptions};
use graph::{BlockId, Item, LostSizes, ModelGraph, OperatorCosts, TensorFact};
use schema::{
    Band, Bytes, Flops, INSPECT_VERSION, InspectBlock, InspectReport, InspectTime, InspectTotals,
    InspectUnknown, Seconds,
};

use super::plan::{RoundingArguments, costs};
use crate::{
    columns::table,
    cost_models::CostModels,
    failure::Failure,
    model,
    output::{Format, Output},
    visible::cell,
    workspace::Workspace,
};
use memory::MemoryArguments;

mod memory;

/// The most rows of a table without `--depth`.
const COMFORTABLE_ROWS: usize = 40;
/// Paths listed for an unknown operator.
const LISTED_PATHS: usize = 8;

/// Arguments of `inspect`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  model-analyze inspect resnet50.pt
  model-analyze inspect resnet50.pt --input 32x3x224x224 --depth 2
  model-analyze inspect gpt2.pt --input input_ids=4x128:int64 --format json
  model-analyze inspect resnet50.pt --device h100
  model-analyze inspect resnet50.pt --cost-model cost-model.yaml
  model-analyze inspect resnet50.pt --input 32x3x224x224 --memory --device a100
  model-analyze inspect llama.pt --input 4x2048:int64 --memory --devices 8xh100 --sharding zero3

The shapes in the archive are used unless --input sets others.
FLOPs are those of the forward pass as torch.utils.flop_counter counts them: products, convolutions and
attention, one multiply-add as two. Memory is that of saved activations. Both count a tied
parameter and a shared activation once.")]
pub struct Inspect {
    /// A traced model: an archive of torch.jit.save, or IR text
    model: PathBuf,

    /// Sizes of parameters, which an IR text lacks: a state dict (.pt, .safetensors), an archive, or JSON {"path":
    /// [sizes]}
    #[arg(long, value_name = "FILE")]
    parameters: Option<PathBuf>,

    /// Shape of an input, in the order of `forward` or by name: [NAME=]SHAPE[:DTYPE]
    #[arg(long = "input", short, value_name = "INPUT", allow_hyphen_values = true)]
    inputs: Vec<String>,

    /// Depth in the tree of blocks; 0 is the whole model (default: what fits a screen; all for json)
    #[arg(long, short)]
    depth: Option<u32>,

    /// Predict times on this device of the catalogue
    #[arg(long, value_name = "NAME")]
    device: Option<String>,

    /// Predict times with a cost model of `fit -o`
    #[arg(long = "cost-model", value_name = "FILE")]
    cost_models: Vec<PathBuf>,

    #[command(flatten)]
    rounding: RoundingArguments,

    #[command(flatten, next_help_heading = "Memory of a training step")]
    memory: MemoryArguments,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Predicted times, and their source.
struct Timed {
    model: CostModel,
    costs: Costs,
    options: PredictOptions,
}

impl Inspect {
    /// Prints the table.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        let cost_model = CostModels::read(&self.cost_models)?.of_catalogue(self.device.as_deref())?;
        let model = Workspace::read_with(&self.model, &self.inputs, self.parameters.as_deref())?;
        let timed = cost_model.map(|cost_model| {
            let options = costs::options(self.rounding.rounding(), &cost_model);
            let costs = cost_model::predict(&model.graph, &model.costs, &cost_model, &options);
            Timed { model: cost_model, costs, options }
        });
        let inputs = model::input_shapes(&self.inputs)?;
        let memory = self.memory.answer(&model, self.device.as_deref(), &inputs)?;
        match self.format {
            Format::Json => {
                let mut report = report(&model, self.depth, timed.as_ref());
                report.memory = memory;
                let json = serde_json::to_value(&report)
                    .map_err(|error| Failure::input(format!("cannot write the report: {error}")))?;
                output.json(&json)
            }
            // The text chooses its own rows from all blocks.
            Format::Text => {
                let mut text = text(&model.graph, &report(&model, None, timed.as_ref()), self.depth);
                text.extend(memory.as_ref().map(memory::text));
                output.text(&text)
            }
        }
    }
}

fn report(model: &Workspace, depth: Option<u32>, timed: Option<&Timed>) -> InspectReport {
    let graph = &model.graph;
    let costs = &model.costs;
    let parameters = graph::parameters_by_block(graph);
    let depth = depth.unwrap_or(u32::MAX);
    let unsized_blocks = unsized_blocks(graph);
    let blocks = graph.blocks.iter().filter(|block| block.depth <= depth);
    let blocks =
        blocks.map(|block| row(graph, costs, &parameters, block.id, &unsized_blocks, timed)).collect();
    let total = costs.total();
    let all_known = graph.tensors.iter().all(|t| t.has_shape || t.role != graph::Role::Parameter);
    let once = |role| graph.tensors.iter().filter(move |t| t.role == role && t.first == t.id);
    let unknown = graph.unknown.iter().map(|(name, unknown)| {
        let mut paths: Vec<String> =
            unknown.operators.iter().map(|id| graph.block(graph.operator(*id).block).path.clone()).collect();
        paths.dedup();
        paths.truncate(LISTED_PATHS);
        InspectUnknown {
            name: name.clone(),
            count: unknown.operators.len() as u64,
            paths,
            is_recorded: unknown.is_recorded,
        }
    });
    let named = |values: &[graph::ValueId]| values.iter().map(|id| graph::named_tensor(graph, *id)).collect();
    InspectReport {
        schema_version: INSPECT_VERSION,
        model: graph.name.clone(),
        inputs: named(&graph.inputs),
        outputs: named(&graph.outputs),
        totals: InspectTotals {
            parameters: all_known.then(|| graph.parameters()),
            buffers: once(graph::Role::Buffer).map(graph::StoredTensor::elements).sum(),
            flops: counted(&total, total.forward_flops - total.fused_flops),
            backward_flops: counted(&total, total.backward_flops()),
            fused_flops: total.fused_flops,
            parameter_bytes: all_known.then(|| once(graph::Role::Parameter).map(|tensor| tensor.bytes).sum()),
            activation_bytes: (total.unmeasured == 0).then_some(total.saved_bytes),
            operators: graph.operators.len() as u64,
            unknown_operators: graph.unknown.values().map(|unknown| unknown.operators.len() as u64).sum(),
            tensors_of_unknown_size: graph.tensors.iter().filter(|tensor| !tensor.has_shape).count() as u64,
        },
        blocks,
        unknown: unknown.collect(),
        disagreements: graph
            .disagreements
            .iter()
            .map(|found| {
                let operator = graph.operator(found.operator);
                let path = place(&graph.block(operator.block).path);
                format!("{} in {path}: {}, recorded {}", operator.name, found.inferred, found.recorded)
            })
            .collect(),
        notes: notes(model, &total),
        trace_notes: crate::trace_notes::all(model.program()),
        times: timed.map(|timed| costs::from(&timed.model, &timed.costs, graph, &timed.options)),
        memory: None,
    }
}

fn notes(model: &Workspace, total: &graph::OperatorCost) -> Vec<String> {
    let mut notes: Vec<String> = model::notes(model.program()).collect();
    let without: Vec<&graph::StoredTensor> =
        model.graph.tensors.iter().filter(|tensor| !tensor.has_shape).collect();
    if !without.is_empty() {
        let named: Vec<String> =
            without.iter().take(LISTED_PATHS).map(|tensor| format!("`{}`", tensor.path)).collect();
        let more = match without.len() - named.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        notes.push(format!(
            "the text lacks the sizes of {}{more}, and they cannot be inferred; --parameters can name a state dict with them",
            named.join(", ")
        ));
    }
    let graph = &model.graph;
    let is_shaped = |block: &graph::Block| {
        graph.result_of(block.id).is_none_or(|tensor: &TensorFact| tensor.sizes().is_some())
    };
    if counted(total, 0).is_none() || total.unmeasured > 0 || !graph.blocks.iter().all(is_shaped) {
        notes.extend(graph::lost_sizes(graph).iter().map(|lost| lost_note(graph, lost)));
    }
    notes
}

fn lost_note(graph: &ModelGraph, lost: &LostSizes) -> String {
    let first = place(&graph.block(graph.operator(lost.operators[0]).block).path);
    let what = format!("{} ×{}", lost.name, lost.operators.len());
    let fault = if lost.by_values {
        format!("sizes after {what} depend on the values of tensors")
    } else {
        format!("the trace lacks the sizes after {what}")
    };
    format!("{fault} (first in {first}); `model-analyze trace` records those of its example inputs")
}

/// Returns which blocks read a parameter of unknown size.
fn unsized_blocks(graph: &ModelGraph) -> Vec<bool> {
    let mut result = vec![false; graph.blocks.len()];
    let parameters = graph.tensors.iter().filter(|t| !t.has_shape && t.role == graph::Role::Parameter);
    for reader in parameters.flat_map(|tensor| &tensor.consumers) {
        let mut block = Some(graph.operator(*reader).block);
        while let Some(id) = block {
            result[id.index()] = true;
            block = graph.block(id).parent;
        }
    }
    result
}

/// A number of operations, if all of them could be counted.
fn counted(cost: &graph::OperatorCost, flops: u64) -> Option<u64> {
    (cost.uncounted == 0).then_some(flops)
}

fn row(
    graph: &ModelGraph,
    costs: &OperatorCosts,
    parameters: &[u64],
    id: BlockId,
    unsized_blocks: &[bool],
    timed: Option<&Timed>,
) -> InspectBlock {
    let predicted = timed.map(|timed| timed.costs.block(graph, id));
    let band = |time: Estimate| Band { p10: Seconds(time.p10), p90: Seconds(time.p90) };
    let block = graph.block(id);
    let cost = costs.block(graph, id);
    let result = graph.result_of(id);
    InspectBlock {
        path: block.path.clone(),
        kind: block.kind.clone(),
        depth: block.depth,
        output_shape: result.and_then(shape),
        output_dtype: result.and_then(dtype),
        parameters: (!unsized_blocks[id.index()]).then(|| parameters[id.index()]),
        flops: counted(&cost, cost.forward_flops - cost.fused_flops),
        fused_flops: cost.fused_flops,
        backward_flops: counted(&cost, cost.backward_flops()),
        activation_bytes: (cost.unmeasured == 0).then_some(cost.saved_bytes),
        operators: block.operators.len() as u64,
        structure: format!("{:016x}", block.structure),
        forward_seconds: predicted.map(|own| own.forward.seconds),
        backward_seconds: predicted.map(|own| own.backward().seconds),
        time: predicted.map(|own| InspectTime {
            forward: band(own.forward),
            backward: band(own.backward()),
            input_gradient_seconds: own.input_gradient.seconds,
            weight_gradient_seconds: own.weight_gradient.seconds,
            workspace_bytes: own.workspace.0,
            source: own.source.name().to_string(),
            is_launch_bound: own.is_launch_bound,
        }),
    }
}

fn shape(tensor: &TensorFact) -> Option<Vec<Option<u64>>> {
    tensor.shape.as_ref().map(|shape| shape.to_vec())
}

fn dtype(tensor: &TensorFact) -> Option<String> {
    tensor.dtype.map(|dtype| graph::dtype_name(dtype).to_string())
}

fn place(path: &str) -> &str {
    if path.is_empty() { "(root)" } else { path }
}

/// One line of the table: a block, or a run of equal siblings.
struct Line {
    block: usize,
    indent: usize,
    times: usize,
    last: Option<BlockId>,
}

fn text(graph: &ModelGraph, report: &InspectReport, depth: Option<u32>) -> String {
    let depth = depth.unwrap_or_else(|| comfortable_depth(graph));
    let lines = lines(graph, depth);
    let mut header = vec!["block", "kind", "output", "parameters", "FLOPs", "share", "memory"];
    if report.times.is_some() {
        header.extend(["forward", "backward"]);
    }
    let mut rows: Vec<Vec<String>> = vec![header.into_iter().map(str::to_string).collect()];
    let total = report.totals.flops.map(|flops| (flops + report.totals.fused_flops).max(1) as f64);
    for line in &lines {
        let block = &report.blocks[line.block];
        let times = line.times as u64;
        let mut name = format!("{}{}", "  ".repeat(line.indent), cell(place(&block.path)));
        if let Some(last) = line.last {
            name = format!("{name} … {} ×{times}", cell(last_name(&graph.block(last).path)));
        }
        let dash = || "-".to_string();
        let unknown = || "?".to_string();
        let flops = block.flops.map(|flops| (flops + block.fused_flops) * times);
        let mut row = vec![
            name,
            cell(&block.kind).into_owned(),
            block.output_shape.as_ref().map_or_else(dash, |shape| graph::show_shape(shape)),
            match block.parameters {
                Some(0) => dash(),
                Some(number) => grouped(number * times),
                None => unknown(),
            },
            match flops {
                Some(0) => dash(),
                Some(flops) => Flops(flops).to_string(),
                None => unknown(),
            },
            match (flops, total) {
                (Some(0), _) => dash(),
                (Some(flops), Some(total)) => format!("{:.1} %", 100.0 * flops as f64 / total),
                _ => unknown(),
            },
            match sum_memory(report, graph, line) {
                Some(0) => dash(),
                Some(bytes) => Bytes(bytes).to_string(),
                None => unknown(),
            },
        ];
        for seconds in [block.forward_seconds, block.backward_seconds].into_iter().flatten() {
            row.push(if seconds > 0.0 { Seconds(seconds * times as f64).to_string() } else { dash() });
        }
        rows.push(row);
    }
    let mut text = table(&rows, "", |column| column > 2);
    let totals = &report.totals;
    let parameters = totals.parameters.zip(totals.parameter_bytes);
    let flops = |number: Option<u64>| {
        number.map_or("an unknown number of FLOP".to_string(), |n| Flops(n).to_string())
    };
    text.push_str(&format!(
        "\n{}, {} forward, {} backward, {} of saved activations, {} operators\n",
        parameters.map_or("an unknown number of parameters".to_string(), |(number, bytes)| format!(
            "{} parameters ({})",
            grouped(number),
            Bytes(bytes)
        )),
        flops(totals.flops.map(|flops| flops + totals.fused_flops)),
        flops(totals.backward_flops),
        totals.activation_bytes.map_or("an unknown amount".to_string(), |bytes| Bytes(bytes).to_string()),
        grouped(totals.operators),
    ));
    if let (Some(times), Some(root)) = (&report.times, report.blocks.first())
        && let Some(time) = &root.time
    {
        let band = |band: &Band| format!("p10–p90 {}–{}", band.p10, band.p90);
        let (forward, backward) = (band(&time.forward), band(&time.backward));
        text.push_str(&format!("forward {forward}, backward {backward}; times: {times}\n"));
    }
    if totals.fused_flops > 0 {
        text.push_str(&format!(
            "{} of the forward pass are in fused kernels, which torch's flop counter misses on a CPU\n",
            Flops(totals.fused_flops)
        ));
    }
    for unknown in &report.unknown {
        let paths: Vec<&str> = unknown.paths.iter().map(|path| place(path)).collect();
        let known = if unknown.is_recorded { "its shapes are recorded" } else { "its shapes are unknown" };
        text.push_str(&format!(
            "unknown operator {} ×{} in {}; {known}\n",
            unknown.name,
            unknown.count,
            paths.join(", ")
        ));
    }
    for note in crate::failure::shown_notes(report.notes.clone()) {
        text.push_str(&format!("note: {note}\n"));
    }
    text
}

/// Sums the memory of a run of equal siblings, if known; the first may save tensors that the others share.
fn sum_memory(report: &InspectReport, graph: &ModelGraph, line: &Line) -> Option<u64> {
    let first = &graph.blocks[line.block];
    let Some(parent) = first.parent.filter(|_| line.times > 1) else {
        return report.blocks[line.block].activation_bytes;
    };
    let siblings = &graph.block(parent).children;
    let last = line.last.unwrap_or(first.id);
    let run = siblings.iter().filter(|id| **id >= first.id && **id <= last);
    run.map(|id| report.blocks[id.index()].activation_bytes).sum()
}

/// Returns the deepest level whose lines fit a screen, at least 1.
fn comfortable_depth(graph: &ModelGraph) -> u32 {
    let deepest = graph.blocks.iter().map(|block| block.depth).max().unwrap_or(0);
    (1..=deepest)
        .take_while(|depth| *depth == 1 || lines(graph, *depth).len() <= COMFORTABLE_ROWS)
        .last()
        .unwrap_or(0)
}

/// Lays the tree out as lines, parents before children; a run of equal siblings is one line, with the first one
/// expanded.
fn lines(graph: &ModelGraph, depth: u32) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut stack = vec![Line { block: 0, indent: 0, times: 1, last: None }];
    while let Some(line) = stack.pop() {
        let block = &graph.blocks[line.block];
        let indent = line.indent + 1;
        lines.push(line);
        if block.depth >= depth {
            continue;
        }
        let calls: Vec<Item> =
            graph.inside(block.id).into_iter().filter(|item| matches!(item, Item::Block(_))).collect();
        let children = graph.repeats(&calls).into_iter().filter_map(|run| {
            let (Item::Block(first), Item::Block(last)) = (calls[run.start], calls[run.end - 1]) else {
                return None;
            };
            let last = (run.len() > 1).then_some(last);
            Some(Line { block: first.index(), indent, times: run.len(), last })
        });
        let bottom = stack.len();
        stack.extend(children);
        stack[bottom..].reverse();
    }
    lines
}

fn last_name(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

/// Writes 25557032 as `25,557,032`.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
