//! The table beside the graph: blocks as plain rows, which work with a screen reader, print, sort and need no
//! JavaScript.

use std::fmt::Write as _;

use schema::{Bytes, Flops, ReportGraph, Seconds};

use super::figures::{percent, plural, stage_class};
use crate::{
    diagram::{BoxId, Diagram},
    from_graph::count,
    svg::Escaped,
    text::clean,
};

/// The table opens as deep as this many rows allow.
const COMFORTABLE_ROWS: usize = 160;
/// Rows beyond this are left out even where a level has more.
const MOST_ROWS: usize = 1000;

/// One row: a box, and the number of equal siblings that it represents.
struct Row {
    id: BoxId,
    depth: u32,
    repeat: u32,
}

/// Appends the section.
pub(super) fn section(out: &mut String, diagram: &Diagram, graph: &ReportGraph) {
    let rows = rows(diagram, graph);
    let deepest = rows.iter().map(|row| row.depth).max().unwrap_or(1);
    let fits = |depth: &u32| rows.iter().filter(|row| row.depth <= *depth).count() <= COMFORTABLE_ROWS;
    let depth = (1..=deepest).rev().find(fits).unwrap_or(1);
    let has_time = !graph.time.is_empty();
    let _ = writeln!(
        out,
        "<section id=\"blocks\"><h2>Blocks</h2><div class=\"scroll\"><table class=\"sort\"><thead><tr><th>Block<th>What it is<th>Output<th class=\"n\">Parameters<th class=\"n\">Forward<th class=\"n\">Share<th class=\"n\">Memory{}{}</tr></thead><tbody>",
        if has_time { "<th class=\"n\">Time" } else { "" },
        if diagram.has_stages { "<th>Stage" } else { "" },
    );
    let total = graph.flops.first().copied().unwrap_or(0).max(1) as f64;
    let mut shown = 0;
    for row in rows.iter().filter(|row| row.depth <= depth).take(MOST_ROWS) {
        shown += 1;
        let item = diagram.get(row.id);
        let index = row.id.index();
        let repeat = u64::from(row.repeat);
        let (flops, memory) = (graph.flops[index] * repeat, graph.memory[index] * repeat);
        let parameters = graph.parameters[index] * repeat;
        let output = item.attributes.iter().find(|(name, _)| name == "output");
        let _ = write!(
            out,
            "<tr><th scope=\"row\" class=\"d{}\"><a href=\"#/{}\">{}</a>",
            (row.depth - 1).min(8),
            Fragment(&clean(&item.path)),
            Escaped(&item.path)
        );
        if row.repeat > 1 {
            let _ = write!(out, " <b class=\"times\">×{}</b>", row.repeat);
        }
        let _ = write!(
            out,
            "<td>{}<td>{}",
            Escaped(if item.subtitle.is_empty() { item.family.label() } else { &item.subtitle }),
            Escaped(output.map_or("", |(_, output)| output.as_str()))
        );
        number(out, parameters, count);
        number(out, flops, |n| Flops(n).to_string());
        number(out, flops, |n| percent(n as f64 / total));
        number(out, memory, |n| Bytes(n).to_string());
        if has_time {
            number(out, graph.time[index] * repeat, |n| Seconds(n as f64 / 1e9).to_string());
        }
        match item.stage {
            Some(stage) => {
                let class = stage_class(stage as usize);
                let _ = write!(out, "<td data-v=\"{stage}\"><i class=\"dot {class}\"></i>{stage}");
            }
            None if diagram.has_stages => out.push_str("<td>"),
            None => {}
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
    let hidden = rows.len() - shown;
    if hidden > 0 {
        let _ = writeln!(
            out,
            "<p class=\"note\">Operators that cost nothing are left out. The table shows {depth} of {deepest} levels; {} further in are in the graph above and in `model-analyze inspect`.</p>",
            plural(hidden, "row")
        );
    }
    out.push_str("</section>\n");
}

fn number(out: &mut String, value: u64, show: impl Fn(u64) -> String) {
    match value {
        0 => out.push_str("<td class=\"n\" data-v=\"0\">–"),
        value => {
            let _ = write!(out, "<td class=\"n\" data-v=\"{value}\">{}", show(value));
        }
    }
}

/// Returns the rows of all depths in the order of the model; of equal siblings the first.
fn rows(diagram: &Diagram, graph: &ReportGraph) -> Vec<Row> {
    let mut repeat = vec![1u32; diagram.boxes().len()];
    for (first, length) in &graph.runs {
        let parent = diagram.get(BoxId(*first)).parent.unwrap_or(BoxId::ROOT);
        let siblings = &diagram.get(parent).children;
        let start = siblings.iter().position(|id| id.0 == *first).unwrap_or(0);
        repeat[*first as usize] = *length;
        for member in siblings.iter().skip(start + 1).take(*length as usize - 1) {
            repeat[member.index()] = 0;
        }
    }
    let mut is_closed = vec![false; diagram.boxes().len()];
    graph.closed.iter().for_each(|id| is_closed[*id as usize] = true);
    let mut rows = Vec::new();
    let mut stack: Vec<(BoxId, u32)> = vec![(BoxId::ROOT, 0)];
    while let Some((id, depth)) = stack.pop() {
        let item = diagram.get(id);
        if depth > 0 && !item.family.is_terminal() && !is_free(diagram, graph, id) {
            rows.push(Row { id, depth, repeat: repeat[id.index()] });
        }
        if is_closed[id.index()] {
            continue;
        }
        let children = item.children.iter().rev().filter(|child| repeat[child.index()] > 0);
        stack.extend(children.map(|child| (*child, depth + 1)));
    }
    rows
}

/// Returns whether an operator has no cost: a view, a size, an index.
fn is_free(diagram: &Diagram, graph: &ReportGraph, id: BoxId) -> bool {
    let index = id.index();
    let costs = [graph.parameters[index], graph.flops[index], graph.memory[index]];
    diagram.is_leaf(id) && costs.iter().all(|cost| *cost == 0)
}

/// A path as the fragment of an address: everything but letters, digits and a few signs is written as `%XX`.
struct Fragment<'a>(&'a str);

impl std::fmt::Display for Fragment<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for byte in self.0.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-' => {
                    f.write_char(char::from(byte))?;
                }
                byte => write!(f, "%{byte:02X}")?,
            }
        }
        Ok(())
    }
}
