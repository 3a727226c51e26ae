//! The inside of one box, laid out independently.
//!
//! Long chains are broken into strips side by side, since a deep network drawn as one chain is a ribbon that cannot be
//! printed. Lines from one strip to the next run through the gutter between them.

use std::ops::Range;

use crate::{
    channels::{self, Channel, Crossing, TRACK},
    columns::{Placed, place},
    layers::{Layered, Role, Sheet, SlotId, layer},
};

/// Space between a strip and the gutter's lines.
const GUTTER: f64 = 18.0;
const MARGIN: f64 = 12.0;
/// Shortest strip.
const SHORTEST_STRIP: f64 = 300.0;
/// A strip exceeds the wanted length by more than this factor only if it cannot be broken before.
const LONGEST_STRIP: f64 = 1.2;
/// The last strip has at least this share of the wanted length.
const SHORTEST_TAIL: f64 = 0.25;
/// Strips with more lines between them than this would be harder to read than a ribbon.
const MOST_LINES_BETWEEN_STRIPS: usize = 8;
/// The cost of one line between strips, relative to the logarithm of the drawing's excess aspect ratio.
const LINE_BETWEEN_STRIPS: f64 = 0.08;

/// How long a chain may be before it is broken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Wrap {
    /// Shorter ones stay whole.
    pub longest: f64,
    /// Drawings of a smaller aspect ratio (length over breadth) stay in one piece, too.
    pub slenderest: f64,
    /// The wanted aspect ratio, length over breadth.
    pub wanted: f64,
}

/// A position along and across the flow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spot {
    pub along: f64,
    pub across: f64,
}

/// A box's inside, its upper left corner at zero.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inside {
    pub length: f64,
    pub breadth: f64,
    /// Each node's first corner along and its centre across.
    pub nodes: Vec<Spot>,
    /// Each net's lines.
    pub lines: Vec<Vec<Vec<Spot>>>,
    /// Where nets arrive at boxes: net, node, place.
    pub arrivals: Vec<(usize, usize, Spot)>,
    /// Where nets leave boxes: net, node, offset from the node's centre across.
    pub departures: Vec<(usize, usize, f64)>,
}

/// Lays out a sheet.
pub(crate) fn lay_out(sheet: &Sheet, wrap: Wrap) -> Inside {
    if sheet.nodes.is_empty() {
        return Inside::default();
    }
    let layered = layer(sheet);
    let placed = place(sheet, &layered);
    let gaps = gaps(&layered, &placed);
    let strips = strips(sheet, &layered, &placed, &gaps, wrap);
    compose(sheet, &layered, &placed, &gaps, &strips)
}

/// The space between one row and the next.
struct Gap {
    /// Nets in the order of first appearance, with their links.
    nets: Vec<(usize, Vec<usize>)>,
    crossings: Vec<Crossing>,
    channel: Channel,
}

fn gaps(layered: &Layered, placed: &Placed) -> Vec<Gap> {
    let n_gaps = layered.rows.len().saturating_sub(1);
    let mut links: Vec<Vec<usize>> = vec![Vec::new(); n_gaps];
    for (index, link) in layered.links.iter().enumerate() {
        links[layered.slots[link.from].row].push(index);
    }
    links
        .into_iter()
        .map(|mut links| {
            links.sort_by_key(|link| layered.links[*link].net);
            let mut nets = Vec::new();
            let mut crossings = Vec::new();
            for links in links.chunk_by(|a, b| layered.links[*a].net == layered.links[*b].net) {
                let first = layered.links[links[0]];
                nets.push((first.net, links.to_vec()));
                crossings.push(Crossing {
                    from: placed.centres[first.from] + placed.ports[links[0]].0,
                    to: links
                        .iter()
                        .map(|link| placed.centres[layered.links[*link].to] + placed.ports[*link].1)
                        .collect(),
                });
            }
            let channel = channels::assign(&crossings);
            Gap { nets, crossings, channel }
        })
        .collect()
}

fn row_length(sheet: &Sheet, layered: &Layered, row: usize) -> f64 {
    layered.rows[row]
        .iter()
        .filter_map(|slot| layered.slots[*slot].node)
        .map(|node| sheet.nodes[node].length)
        .fold(0.0, f64::max)
}

fn room(sheet: &Sheet, layered: &Layered, slot: SlotId) -> (f64, f64) {
    layered.slots[slot].node.map_or((3.0, 3.0), |node| (sheet.nodes[node].before, sheet.nodes[node].after))
}

/// Extent across the flow of some rows.
fn extent(sheet: &Sheet, layered: &Layered, placed: &Placed, rows: Range<usize>) -> (f64, f64) {
    let mut extent = (f64::MAX, f64::MIN);
    for slot in layered.rows[rows].iter().flatten() {
        let (before, after) = room(sheet, layered, *slot);
        extent.0 = extent.0.min(placed.centres[*slot] - before);
        extent.1 = extent.1.max(placed.centres[*slot] + after);
    }
    extent
}

/// Decides which rows are in which strip.
fn strips(sheet: &Sheet, layered: &Layered, placed: &Placed, gaps: &[Gap], wrap: Wrap) -> Vec<Range<usize>> {
    let n_rows = layered.rows.len();
    let lengths: Vec<f64> = (0..n_rows)
        .map(|row| row_length(sheet, layered, row) + gaps.get(row).map_or(0.0, |gap| gap.channel.height))
        .collect();
    let total: f64 = lengths.iter().sum();
    let (left, right) = extent(sheet, layered, placed, 0..n_rows);
    let whole = std::iter::once(0..n_rows).collect::<Vec<_>>();
    if total <= wrap.longest || total <= wrap.slenderest * (right - left) {
        return whole;
    }
    let mut best: Option<(f64, Vec<Range<usize>>)> = None;
    let most_strips = ((total / SHORTEST_STRIP) as usize).min(24);
    for (n_strips, most_lines) in (2..=most_strips)
        .flat_map(|n| (2..=MOST_LINES_BETWEEN_STRIPS).step_by(2).map(move |lines| (n, lines)))
    {
        let target = total / n_strips as f64;
        let strips = break_at(&lengths, gaps, target, most_lines);
        let longest: f64 =
            strips.iter().map(|rows| lengths[rows.clone()].iter().sum()).fold(0.0, f64::max) + 30.0;
        // A tail beside a long strip saves no space.
        let shortest = strips.iter().map(|rows| lengths[rows.clone()].iter().sum()).fold(f64::MAX, f64::min);
        if strips.len() < 2 || longest > 0.75 * total || shortest < 0.15 * longest || longest > 1.7 * target {
            continue;
        }
        let breadth: f64 = strips
            .iter()
            .map(|rows| extent(sheet, layered, placed, rows.clone()))
            .map(|(left, right)| right - left + 60.0)
            .sum();
        let n_lines = strips[1..].iter().map(|rows| gaps[rows.start - 1].nets.len()).max().unwrap_or(0);
        let n_lines = n_lines as f64;
        let unused = 1.0 - total / (strips.len() as f64 * longest);
        let error = (longest / breadth / wrap.wanted).ln().abs() + n_lines * LINE_BETWEEN_STRIPS + unused;
        if best.as_ref().is_none_or(|(least, _)| error < *least) {
            best = Some((error, strips));
        }
    }
    best.map_or(whole, |(_, strips)| strips)
}

/// Breaks rows into strips of about `target`, where few lines cross.
fn break_at(lengths: &[f64], gaps: &[Gap], target: f64, most_lines: usize) -> Vec<Range<usize>> {
    let mut strips = Vec::new();
    let mut start = 0;
    while start < lengths.len() {
        let mut sum = 0.0;
        let mut best: Option<(f64, usize)> = None;
        let mut row = start;
        while row < lengths.len() {
            sum += lengths[row];
            if row + 1 < lengths.len() && sum > 0.6 * target {
                let n_lines = gaps[row].nets.len();
                let cost = (sum / target - 1.0).abs() * 3.0 + n_lines as f64;
                let is_open = n_lines <= most_lines;
                let is_better = |(least, _): (f64, usize)| cost < least && sum <= LONGEST_STRIP * target;
                if is_open && best.is_none_or(is_better) {
                    best = Some((cost, row));
                }
            }
            row += 1;
            if sum > LONGEST_STRIP * target && best.is_some() {
                break;
            }
        }
        let rest: f64 = lengths[start..].iter().sum();
        let end = match best {
            // A tail stays with the previous strip.
            Some((_, row))
                if rest > 1.15 * target
                    && lengths[row + 1..].iter().sum::<f64>() > SHORTEST_TAIL * target =>
            {
                row + 1
            }
            _ => lengths.len(),
        };
        strips.push(start..end);
        start = end;
    }
    strips
}

/// Converts rows and strips to positions.
fn compose(
    sheet: &Sheet,
    layered: &Layered,
    placed: &Placed,
    gaps: &[Gap],
    strips: &[Range<usize>],
) -> Inside {
    let n_rows = layered.rows.len();
    let mut row_start = vec![0.0; n_rows];
    let lengths: Vec<f64> = (0..n_rows).map(|row| row_length(sheet, layered, row)).collect();
    let mut shift = vec![0.0; n_rows];
    let mut inside = Inside { lines: vec![Vec::new(); sheet.nets.len()], ..Inside::default() };
    let mut left = 0.0;
    // Where the gutter behind each strip begins.
    let mut gutters = Vec::with_capacity(strips.len());
    for (index, rows) in strips.iter().enumerate() {
        let band = |gap: usize| 2.0 * MARGIN + gaps[gap].nets.len() as f64 * TRACK;
        let mut along = if index > 0 { band(rows.start - 1) } else { 0.0 };
        let (low, high) = extent(sheet, layered, placed, rows.clone());
        for row in rows.clone() {
            row_start[row] = along;
            shift[row] = left - low;
            along += lengths[row];
            if row + 1 < rows.end {
                along += gaps[row].channel.height;
            }
        }
        left += high - low;
        if rows.end < n_rows {
            along += band(rows.end - 1);
            gutters.push(left + GUTTER);
            left += 2.0 * GUTTER + gaps[rows.end - 1].nets.len() as f64 * TRACK;
        }
        inside.length = inside.length.max(along);
    }
    inside.breadth = left;
    // Exits are in the border: where the last strip is not the longest, they move to its end.
    let last_row = n_rows - 1;
    let is_exit_row = layered.rows[last_row]
        .iter()
        .any(|slot| layered.slots[*slot].node.is_some_and(|node| sheet.nodes[node].role == Role::Exit));
    if is_exit_row {
        row_start[last_row] = inside.length - lengths[last_row];
    }

    let centre = |slot: SlotId| placed.centres[slot] + shift[layered.slots[slot].row];
    // A line through a lane begins where the lane's row does.
    let start = |slot: SlotId| {
        let row = layered.slots[slot].row;
        match layered.slots[slot].node {
            Some(node) => row_start[row] + (lengths[row] - sheet.nodes[node].length) / 2.0,
            None => row_start[row],
        }
    };
    let end = |slot: SlotId| {
        start(slot) + layered.slots[slot].node.map_or(0.0, |node| sheet.nodes[node].body_length())
    };
    inside.nodes = vec![Spot::default(); sheet.nodes.len()];
    for (slot, content) in layered.slots.iter().enumerate() {
        if let Some(node) = content.node {
            inside.nodes[node] = Spot { along: start(slot), across: centre(slot) };
        }
    }
    let spot = |along, across| Spot { along, across };
    for (row, gap) in gaps.iter().enumerate() {
        let strip = strips.iter().position(|rows| rows.end == row + 1).filter(|s| *s + 1 < strips.len());
        // From the right: the line nearest to the gutter turns first and ends up outermost.
        let mut by_place: Vec<usize> = (0..gap.nets.len()).collect();
        by_place.sort_by(|a, b| gap.crossings[*b].from.total_cmp(&gap.crossings[*a].from));
        let mut turn = vec![0usize; gap.nets.len()];
        for (order, net) in by_place.into_iter().enumerate() {
            turn[net] = order;
        }
        for (index, (net, links)) in gap.nets.iter().enumerate() {
            for link_idx in links {
                let link = layered.links[*link_idx];
                let (out, into) = placed.ports[*link_idx];
                let (from, to) = (centre(link.from) + out, centre(link.to) + into);
                let (top, bottom) = (end(link.from), start(link.to));
                let line = match (strip, gap.channel.tracks[index]) {
                    (Some(strip), _) => {
                        let offset = MARGIN + turn[index] as f64 * TRACK;
                        let turn_down = row_start[row] + lengths[row] + offset;
                        let gutter = gutters[strip] + turn[index] as f64 * TRACK;
                        vec![
                            spot(top, from),
                            spot(turn_down, from),
                            spot(turn_down, gutter),
                            spot(offset, gutter),
                            spot(offset, to),
                            spot(bottom, to),
                        ]
                    }
                    (None, Some(track)) => {
                        let track = row_start[row] + lengths[row] + track;
                        vec![spot(top, from), spot(track, from), spot(track, to), spot(bottom, to)]
                    }
                    (None, None) => vec![spot(top, from), spot(bottom, from)],
                };
                inside.lines[*net].push(line);
                if let Some(node) = layered.slots[link.to].node {
                    inside.arrivals.push((*net, node, spot(bottom, to)));
                }
                if let Some(node) = layered.slots[link.from].node {
                    inside.departures.push((*net, node, out));
                }
            }
        }
    }
    inside
}
