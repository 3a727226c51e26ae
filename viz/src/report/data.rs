//! The graph as columns for the page's script.

use indexmap::IndexMap;
use schema::{ReportGraph, Seconds};

use super::input::Report;
use crate::{
    closed,
    diagram::{BoxId, Diagram, Family},
    from_graph::{Overlay, from_graph},
    text::clean,
    view::{merge_only_children, runs},
};

/// Returns the boxes of a report, and those that are open only on request.
///
/// As in the pictures, a box with one box in it is merged with it; masks and positions are a frame of their own.
pub(super) fn diagram(report: &Report<'_>) -> (Diagram, Vec<BoxId>) {
    let whole = from_graph(report.graph, &Overlay { amounts: None, stages: report.stages });
    let (mut diagram, closed) = closed::framed(&merge_only_children(&whole));
    diagram.set_title(report.name());
    (diagram, closed)
}

/// Texts, each once.
#[derive(Default)]
struct Strings {
    known: IndexMap<String, u32>,
}

impl Strings {
    fn add(&mut self, text: &str) -> u32 {
        // Text must not change the reading direction of its neighbours.
        let text = clean(text);
        if let Some(position) = self.known.get(text.as_ref()) {
            return *position;
        }
        let position = self.known.len() as u32;
        self.known.insert(text.to_string(), position);
        position
    }
}

/// Returns the columns. O(boxes + tensors · readers · depth).
pub(super) fn columns(report: &Report<'_>, diagram: &Diagram, closed: &[BoxId]) -> ReportGraph {
    let mut strings = Strings::default();
    strings.add("");
    let sums = Sums::new(report);
    let families: Vec<Family> = Family::ALL.into_iter().chain([Family::Input, Family::Output]).collect();
    let mut graph = ReportGraph {
        families: families.iter().map(|family| family.label().to_string()).collect(),
        ..ReportGraph::default()
    };
    for id in diagram.ids() {
        let item = diagram.get(id);
        let parent = item.parent.unwrap_or(BoxId::ROOT);
        graph.parent.push(parent.0);
        graph.title.push(strings.add(&item.title));
        graph.subtitle.push(strings.add(&item.subtitle));
        let outer = &diagram.get(parent).path;
        let dot = if outer.is_empty() { "" } else { "." };
        let is_derived = item.path == format!("{outer}{dot}{}", item.title) || id == BoxId::ROOT;
        graph.path.push(if is_derived { 0 } else { strings.add(&item.path) });
        graph.family.push(families.iter().position(|family| *family == item.family).unwrap_or(0) as u8);
        if diagram.has_stages {
            graph.stage.push(item.stage.map_or(-1, |stage| stage as i32));
        }
        let run = item.operators.clone();
        let cost = report.costs.run(&run);
        graph.flops.push(cost.forward_flops);
        graph.memory.push(cost.saved_bytes);
        graph.parameters.push(sums.parameters[run.end as usize] - sums.parameters[run.start as usize]);
        if let Some(seconds) = &sums.seconds {
            let time = Seconds(seconds[run.end as usize] - seconds[run.start as usize]);
            graph.time.push((time.0 * 1e9).round().max(0.0) as u64);
        }
        let attributes = item.attributes.iter().filter(|(name, _)| !name.starts_with("parameter"));
        graph
            .attributes
            .push(attributes.flat_map(|(name, value)| [name, value]).map(|text| strings.add(text)).collect());
    }
    graph.closed = closed.iter().map(|id| id.0).collect();
    graph.runs = runs(diagram).into_iter().map(|run| (run[0].0, run.len() as u32)).collect();
    for wire in diagram.wires() {
        let ends = wire.sinks.iter().map(|sink| sink.0);
        graph.wires.push([wire.source.0, strings.add(&wire.label)].into_iter().chain(ends).collect());
    }
    graph.strings = strings.known.into_keys().collect();
    graph
}

/// Prefix sums over the operators.
struct Sums {
    parameters: Vec<u64>,
    seconds: Option<Vec<f64>>,
}

impl Sums {
    fn new(report: &Report<'_>) -> Self {
        let graph = report.graph;
        // All names of a tied tensor together: the first reader of any.
        let mut first_reader = vec![u32::MAX; graph.tensors.len()];
        for tensor in &graph.tensors {
            if let Some(reader) = tensor.consumers.first() {
                let known = &mut first_reader[tensor.first.index()];
                *known = reader.0.min(*known);
            }
        }
        let mut elements = vec![0u64; graph.operators.len()];
        for tensor in graph.tensors.iter().filter(|tensor| tensor.is_first_parameter()) {
            if let Some(sum) = elements.get_mut(first_reader[tensor.id.index()] as usize) {
                *sum = sum.saturating_add(tensor.elements());
            }
        }
        let mut parameters = vec![0];
        for elements in &elements {
            parameters.push(u64::saturating_add(parameters[parameters.len() - 1], *elements));
        }
        let seconds = report.seconds.map(|seconds| {
            let mut sums = vec![0.0];
            for operator in 0..report.graph.operators.len() {
                let time = seconds.get(operator).copied().filter(|time| time.is_finite()).unwrap_or(0.0);
                sums.push(sums[operator] + time.max(0.0));
            }
            sums
        });
        Self { parameters, seconds }
    }
}
