//! The first half of a layered drawing: the row of each node, and the order within rows.
//!
//! Sugiyama, Tagawa, Toda, "Methods for visual understanding of hierarchical system structures" (1981);
//! rows by longest path, sources then pulled towards their readers; order by barycentre sweeps and adjacent
//! swaps. O(sweeps · (S + W log W)) for S slots and W links between neighbouring rows.
//!
//! rust-sugiyama 0.4, the fastest of the crates measured, is not used: it hides the positions of its dummy nodes, so a
//! skip connection has no route around the boxes; it has no ports, through which a line continues inside a nested box;
//! and it recurses along paths (a chain of 60,000 overflows the stack). The code left after working around these is
//! less than this module.
//!
//! A tensor with several readers is one net, not several edges: its lanes are shared, so that a row is as wide as
//! the number of tensors alive across it.

use std::cmp::Ordering;

/// Sweeps over all rows, down and up in turn.
const SWEEPS: usize = 8;
/// Drawings of more slots than this get fewer rounds.
pub(crate) const MANY_SLOTS: usize = 20_000;
/// Rows longer than this are not improved by swapping neighbours.
const LONGEST_SWAPPED_ROW: usize = 300;

/// The inside of one box: a graph to be layered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sheet {
    /// Children in their order, then entries, then exits.
    pub nodes: Vec<SheetNode>,
    /// Tensors between them.
    pub nets: Vec<Net>,
}

/// An element of a sheet.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SheetNode {
    pub role: Role,
    /// Space along the flow.
    pub length: f64,
    /// The part of the length behind the box: the label of its outputs.
    pub label: f64,
    /// Space across the flow, before and after the centre.
    pub before: f64,
    pub after: f64,
    /// Offset of the point where each net leaves or arrives, by net; empty where the layout may choose.
    pub ports: Vec<(usize, f64)>,
}

impl SheetNode {
    /// Returns the length of the box alone.
    pub(crate) fn body_length(&self) -> f64 {
        self.length - self.label
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A box.
    Box,
    /// Where a tensor enters through the border: always in the first row.
    Entry,
    /// Where a tensor leaves through the border: always in the last row.
    Exit,
}

/// One tensor: a source and its readers, as indices of nodes. Sources precede readers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Net {
    pub source: usize,
    pub sinks: Vec<usize>,
}

/// Index into [`Layered::slots`].
pub(crate) type SlotId = usize;

/// A sheet with rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layered {
    pub rows: Vec<Vec<SlotId>>,
    pub slots: Vec<Slot>,
    /// Steps from one row to the next.
    pub links: Vec<Link>,
    /// Links by their lower end, and by their upper end.
    pub above: Vec<Vec<usize>>,
    pub below: Vec<Vec<usize>>,
}

/// An element of a row: a node, or a net that passes by (a lane).
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub row: usize,
    /// `None` for a lane.
    pub node: Option<usize>,
}

/// One step of a net from a row to the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub net: usize,
    pub from: SlotId,
    pub to: SlotId,
}

/// Assigns a row to every node.
pub(crate) fn rank(sheet: &Sheet) -> Vec<usize> {
    let count = sheet.nodes.len();
    let mut readers = vec![Vec::new(); count];
    let mut writers = vec![Vec::new(); count];
    let mut makes = vec![0usize; count];
    for net in &sheet.nets {
        makes[net.source] += 1;
        for sink in &net.sinks {
            readers[net.source].push(*sink);
            writers[*sink].push(net.source);
        }
    }
    // Entries precede all children in the order of flow, exits follow them.
    let key = |node: usize| match sheet.nodes[node].role {
        Role::Entry => (0, node),
        Role::Box => (1, node),
        Role::Exit => (2, node),
    };
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_unstable_by_key(|node| key(*node));

    let has_entries = sheet.nodes.iter().any(|node| node.role == Role::Entry);
    let mut ranks = vec![0usize; count];
    for node in &order {
        let lowest = usize::from(has_entries && sheet.nodes[*node].role != Role::Entry);
        let above = writers[*node].iter().map(|writer| ranks[*writer] + 1).max();
        ranks[*node] = above.unwrap_or(0).max(lowest);
    }
    let last = order.iter().filter(|n| sheet.nodes[**n].role == Role::Box).map(|n| ranks[*n]).max();
    for node in &order {
        if sheet.nodes[*node].role == Role::Exit {
            ranks[*node] = last.map_or(1, |last| last + 1);
        }
    }
    // Move down nodes that have more readers than writers: their lines get shorter.
    for node in order.iter().rev() {
        let is_pulled = sheet.nodes[*node].role == Role::Box && distinct(&writers[*node]) < makes[*node];
        if is_pulled && let Some(first) = readers[*node].iter().map(|reader| ranks[*reader]).min() {
            ranks[*node] = ranks[*node].max(first - 1);
        }
    }
    // Remove the rows that this has emptied.
    let mut used: Vec<usize> = ranks.clone();
    used.sort_unstable();
    used.dedup();
    for rank in &mut ranks {
        *rank = used.binary_search(rank).expect("every rank is in use");
    }
    ranks
}

fn distinct(nodes: &[usize]) -> usize {
    let mut nodes = nodes.to_vec();
    nodes.sort_unstable();
    nodes.dedup();
    nodes.len()
}

/// Places every node and lane in a row and orders the rows.
pub(crate) fn layer(sheet: &Sheet) -> Layered {
    let ranks = rank(sheet);
    let mut layered = Layered::default();
    let n_rows = ranks.iter().max().map_or(0, |last| last + 1);
    layered.rows = vec![Vec::new(); n_rows];
    let mut slot_of = Vec::with_capacity(sheet.nodes.len());
    for (node, row) in ranks.iter().enumerate() {
        slot_of.push(layered.slots.len());
        layered.rows[*row].push(layered.slots.len());
        layered.slots.push(Slot { row: *row, node: Some(node) });
    }
    // Later tensors are nearer to the boxes, so that nested skips begin without crossings.
    let mut nets: Vec<usize> = (0..sheet.nets.len()).collect();
    nets.sort_by_key(|net| std::cmp::Reverse(ranks[sheet.nets[*net].source]));
    for net_idx in nets {
        let net = &sheet.nets[net_idx];
        let mut sinks = net.sinks.clone();
        sinks.sort_by_key(|sink| ranks[*sink]);
        let Some(last) = sinks.last().map(|sink| ranks[*sink]) else { continue };
        let mut at = slot_of[net.source];
        let mut sinks = sinks.into_iter().peekable();
        for row in ranks[net.source] + 1..=last {
            while let Some(sink) = sinks.next_if(|sink| ranks[*sink] == row) {
                layered.links.push(Link { net: net_idx, from: at, to: slot_of[sink] });
            }
            if row < last {
                let lane = layered.slots.len();
                layered.slots.push(Slot { row, node: None });
                layered.rows[row].push(lane);
                layered.links.push(Link { net: net_idx, from: at, to: lane });
                at = lane;
            }
        }
    }
    layered.above = vec![Vec::new(); layered.slots.len()];
    layered.below = vec![Vec::new(); layered.slots.len()];
    for (index, link) in layered.links.iter().enumerate() {
        layered.above[link.to].push(index);
        layered.below[link.from].push(index);
    }
    order(&mut layered, sheet);
    layered
}

impl Layered {
    /// Returns each slot's position in its row.
    pub fn positions(&self) -> Vec<usize> {
        let mut positions = vec![0; self.slots.len()];
        for row in &self.rows {
            for (position, slot) in row.iter().enumerate() {
                positions[*slot] = position;
            }
        }
        positions
    }
}

/// Reorders the rows for fewer crossings and keeps the best order found.
fn order(layered: &mut Layered, sheet: &Sheet) {
    let shift = |slot: SlotId, net: usize| -> f64 {
        let Some(node) = layered.slots[slot].node.map(|node| &sheet.nodes[node]) else { return 0.0 };
        let port = node.ports.iter().find(|(of, _)| *of == net).map_or(0.0, |(_, offset)| *offset);
        0.4 * (port / node.before.max(node.after).max(1.0)).clamp(-1.0, 1.0)
    };
    let shifts: Vec<(f64, f64)> =
        layered.links.iter().map(|link| (shift(link.from, link.net), shift(link.to, link.net))).collect();
    let mut best = layered.rows.clone();
    let mut fewest = crossings(layered, &shifts);
    let n_sweeps = if layered.slots.len() > MANY_SLOTS { SWEEPS / 3 } else { SWEEPS };
    for sweep in 0..n_sweeps {
        if fewest == 0 {
            break;
        }
        let is_down = sweep % 2 == 0;
        let n_rows = layered.rows.len();
        for step in 1..n_rows {
            let row = if is_down { step } else { n_rows - 1 - step };
            sort_row(layered, &shifts, row, is_down);
        }
        swap_neighbours(layered, &shifts);
        let count = crossings(layered, &shifts);
        if count < fewest {
            fewest = count;
            best.clone_from(&layered.rows);
        }
    }
    layered.rows = best;
}

/// Sorts one row by the mean position of its neighbours in the previous row.
fn sort_row(layered: &mut Layered, shifts: &[(f64, f64)], row: usize, is_down: bool) {
    let neighbours_row = if is_down { row - 1 } else { row + 1 };
    let mut place = std::collections::HashMap::with_capacity(layered.rows[neighbours_row].len());
    for (position, slot) in layered.rows[neighbours_row].iter().enumerate() {
        place.insert(*slot, position as f64);
    }
    let mut keyed: Vec<(f64, SlotId)> = layered.rows[row]
        .iter()
        .enumerate()
        .map(|(position, slot)| {
            let links = if is_down { &layered.above[*slot] } else { &layered.below[*slot] };
            let sum: f64 = links
                .iter()
                .map(|link| {
                    if is_down {
                        place[&layered.links[*link].from] + shifts[*link].0
                    } else {
                        place[&layered.links[*link].to] + shifts[*link].1
                    }
                })
                .sum();
            let key = if links.is_empty() { position as f64 } else { sum / links.len() as f64 };
            (key, *slot)
        })
        .collect();
    keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
    layered.rows[row] = keyed.into_iter().map(|(_, slot)| slot).collect();
}

/// Exchanges neighbours in a row while that removes crossings.
fn swap_neighbours(layered: &mut Layered, shifts: &[(f64, f64)]) {
    let mut positions = layered.positions();
    for _ in 0..4 {
        let mut has_changed = false;
        for row in 0..layered.rows.len() {
            let length = layered.rows[row].len();
            if length > LONGEST_SWAPPED_ROW {
                continue;
            }
            for left in 1..length {
                let (a, b) = (layered.rows[row][left - 1], layered.rows[row][left]);
                let now = pair_crossings(layered, shifts, &positions, a, b);
                if now > 0 && pair_crossings(layered, shifts, &positions, b, a) < now {
                    layered.rows[row].swap(left - 1, left);
                    positions.swap(a, b);
                    has_changed = true;
                }
            }
        }
        if !has_changed {
            break;
        }
    }
}

/// Counts the crossings between the links of two neighbours, `a` left of `b`.
fn pair_crossings(
    layered: &Layered,
    shifts: &[(f64, f64)],
    positions: &[usize],
    a: SlotId,
    b: SlotId,
) -> usize {
    // A star with very many links would make this quadratic; the sweeps alone order it.
    const MOST_LINKS: usize = 64;
    let above = |slot: SlotId| {
        layered.above[slot].iter().map(|l| positions[layered.links[*l].from] as f64 + shifts[*l].0)
    };
    let below = |slot: SlotId| {
        layered.below[slot].iter().map(|l| positions[layered.links[*l].to] as f64 + shifts[*l].1)
    };
    if [a, b].iter().any(|s| layered.above[*s].len() > MOST_LINKS || layered.below[*s].len() > MOST_LINKS) {
        return 0;
    }
    let up = above(a).map(|x| above(b).filter(|y| *y < x).count()).sum::<usize>();
    up + below(a).map(|x| below(b).filter(|y| *y < x).count()).sum::<usize>()
}

/// Counts all crossings between neighbouring rows, with a tree of sums: O(W log W).
fn crossings(layered: &Layered, shifts: &[(f64, f64)]) -> usize {
    let positions = layered.positions();
    let mut total = 0;
    let mut ends: Vec<(f64, f64)> = Vec::new();
    for row in &layered.rows {
        ends.clear();
        for slot in row {
            for link in &layered.below[*slot] {
                let Link { from, to, .. } = layered.links[*link];
                ends.push((positions[from] as f64 + shifts[*link].0, positions[to] as f64 + shifts[*link].1));
            }
        }
        total += inversions(&mut ends);
    }
    total
}

fn inversions(ends: &mut [(f64, f64)]) -> usize {
    ends.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let mut heights: Vec<f64> = ends.iter().map(|(_, to)| *to).collect();
    heights.sort_by(f64::total_cmp);
    heights.dedup();
    let mut tree = vec![0usize; heights.len() + 1];
    let mut count = 0;
    for (seen, (_, to)) in ends.iter().enumerate() {
        let place = heights.partition_point(|h| h.total_cmp(to) == Ordering::Less) + 1;
        let mut not_above = 0;
        let mut i = place;
        while i > 0 {
            not_above += tree[i];
            i &= i - 1;
        }
        count += seen - not_above;
        let mut i = place;
        while i < tree.len() {
            tree[i] += 1;
            i += i & i.wrapping_neg();
        }
    }
    count
}
