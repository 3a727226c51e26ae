//! The second half of a layered drawing: the position of each slot across the flow.
//!
//! Slots whose connecting line shall be straight are first joined to columns, as in Brandes, Köpf, "Fast and
//! simple horizontal coordinate assignment" (2001), but by priority: long skips before chains of boxes, before the
//! rest. A column is rigid. Columns are then pulled towards their neighbours; each round places all of them
//! twice, pushing to the right and pushing to the left, and takes the mean, which keeps every distance because
//! the constraints are convex. O(rounds · (S + links)).

use petgraph::{algo::toposort, graph::DiGraph};

use crate::layers::{Layered, Link, MANY_SLOTS, Role, Sheet, SheetNode, SlotId};

/// Space between two boxes, between a box and a lane, between two lanes.
const BOX_GAP: f64 = 24.0;
const LANE_GAP: f64 = 14.0;
/// Space between two lines that end at one box.
const PORT_GAP: f64 = 14.0;
/// Least distance of a line's end from a box's corner.
const CORNER: f64 = 9.0;
const ROUNDS: usize = 40;
/// A straight line between boxes may move the middle of the lower one by no more than this.
const FAR_PORTS: f64 = 60.0;

/// Positions across the flow.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placed {
    /// Each slot's centre.
    pub centres: Vec<f64>,
    /// Where each link leaves and arrives, as offsets from the centres.
    pub ports: Vec<(f64, f64)>,
}

/// Assigns a position to every slot and ends to every link.
pub(crate) fn place(sheet: &Sheet, layered: &Layered) -> Placed {
    let positions = layered.positions();
    let aligned = align(sheet, layered, &positions);
    let mut ports = choose_ports(sheet, layered, &positions, &aligned);
    let columns = Columns::new(sheet, layered, &aligned, &ports);
    let centres = columns.relax(sheet, layered, &ports);
    straighten(sheet, layered, &centres, &mut ports);
    Placed { centres, ports }
}

fn node<'a>(sheet: &'a Sheet, layered: &Layered, slot: SlotId) -> Option<&'a SheetNode> {
    layered.slots[slot].node.map(|node| &sheet.nodes[node])
}

fn is_box(sheet: &Sheet, layered: &Layered, slot: SlotId) -> bool {
    node(sheet, layered, slot).is_some_and(|node| node.role == Role::Box)
}

/// Selects the links that are to be straight: at most one above and one below each slot, none crossing.
fn align(sheet: &Sheet, layered: &Layered, positions: &[usize]) -> Vec<bool> {
    let mut candidates: Vec<(u8, usize, usize)> = Vec::new();
    for (index, Link { from, to, .. }) in layered.links.iter().enumerate() {
        // A port in the border guides the eye as a box does.
        let is_node = |slot: SlotId| layered.slots[slot].node.is_some();
        let (is_from_box, is_to_box) = (is_node(*from), is_node(*to));
        // With an even number of neighbours there is no middle one: the box is centred between the two.
        let is_middle = |links: &[usize], end: fn(&Link) -> SlotId| {
            let mut peers: Vec<SlotId> =
                links.iter().map(|l| end(&layered.links[*l])).filter(|slot| is_node(*slot)).collect();
            peers.sort_unstable_by_key(|slot| positions[*slot]);
            peers.dedup();
            peers.len() % 2 == 1 && peers[peers.len() / 2] == end(&layered.links[index])
        };
        let priority = match (is_from_box, is_to_box) {
            (false, false) => 0,
            (true, true) => {
                if is_middle(&layered.above[*to], |l| l.from) && is_middle(&layered.below[*from], |l| l.to) {
                    1
                } else {
                    continue;
                }
            }
            (false, true) => {
                // A lane may guide the eye into a box that no box feeds.
                let n_boxes = layered.above[*to].iter().filter(|l| is_node(layered.links[**l].from)).count();
                if n_boxes > 0 { 4 } else { 2 }
            }
            (true, false) => {
                let n_boxes = layered.below[*from]
                    .iter()
                    .filter(|l| is_box(sheet, layered, layered.links[**l].to))
                    .count();
                if n_boxes > 0 { 4 } else { 3 }
            }
        };
        // Lines that meet at a box, beside its main line, must not compete for its middle.
        if priority < 4 {
            let skew = positions[*from].abs_diff(positions[*to]);
            candidates.push((priority, skew, index));
        }
    }
    candidates.sort_unstable();
    let mut aligned = vec![false; layered.links.len()];
    let mut has_above = vec![false; layered.slots.len()];
    let mut has_below = vec![false; layered.slots.len()];
    // Chosen links of each gap, by the place of their upper end.
    let mut chosen: Vec<std::collections::BTreeMap<usize, usize>> =
        vec![Default::default(); layered.rows.len()];
    for (_, _, index) in candidates {
        let Link { from, to, .. } = layered.links[index];
        if has_below[from] || has_above[to] {
            continue;
        }
        let gap = &mut chosen[layered.slots[from].row];
        let (upper, lower) = (positions[from], positions[to]);
        let crosses = gap.range(..upper).next_back().is_some_and(|(_, other)| *other > lower)
            || gap.range(upper..).next().is_some_and(|(_, other)| *other < lower);
        if !crosses {
            gap.insert(upper, lower);
            (has_below[from], has_above[to]) = (true, true);
            aligned[index] = true;
        }
    }
    aligned
}

/// Chooses where lines meet a box whose ports are free: the straight one in the middle, others at its sides.
fn choose_ports(sheet: &Sheet, layered: &Layered, positions: &[usize], aligned: &[bool]) -> Vec<(f64, f64)> {
    let mut ports = vec![(0.0, 0.0); layered.links.len()];
    for slot in 0..layered.slots.len() {
        let Some(node) = node(sheet, layered, slot) else { continue };
        if !node.ports.is_empty() {
            let fixed = |net: usize| node.ports.iter().find(|(of, _)| *of == net).map_or(0.0, |(_, at)| *at);
            for link in &layered.above[slot] {
                ports[*link].1 = fixed(layered.links[*link].net);
            }
            for link in &layered.below[slot] {
                ports[*link].0 = fixed(layered.links[*link].net);
            }
            continue;
        }
        let room = (node.before.min(node.after) - CORNER).max(0.0);
        // Arriving: one place for each net, which never has two links into one slot.
        let mut arriving = layered.above[slot].clone();
        arriving.sort_by_key(|link| (positions[layered.links[*link].from], layered.links[*link].net));
        let main = arriving.iter().position(|link| aligned[*link]);
        for (link, at) in arriving.iter().zip(spread(arriving.len(), main, room)) {
            ports[*link].1 = at;
        }
        // Leaving: one place for each net, shared by its links.
        let mut nets: Vec<(usize, usize, bool)> = Vec::new();
        let mut leaving = layered.below[slot].clone();
        leaving.sort_by_key(|link| layered.links[*link].net);
        for links in leaving.chunk_by(|a, b| layered.links[*a].net == layered.links[*b].net) {
            let sum: usize = links.iter().map(|link| positions[layered.links[*link].to]).sum();
            let is_main = links.iter().any(|link| aligned[*link]);
            nets.push((sum * 64 / links.len(), layered.links[links[0]].net, is_main));
        }
        nets.sort_unstable();
        let main = nets.iter().position(|(_, _, is_main)| *is_main);
        let places = spread(nets.len(), main, room);
        for link in leaving {
            let which = nets.iter().position(|(_, net, _)| *net == layered.links[link].net);
            ports[link].0 = places[which.expect("each link's net is listed")];
        }
    }
    ports
}

/// Returns `count` offsets from left to right; the main one is 0, and all lie within ±`room`.
fn spread(count: usize, main: Option<usize>, room: f64) -> Vec<f64> {
    let middle = main.map_or((count.saturating_sub(1)) as f64 / 2.0, |main| main as f64);
    let widest = middle.max(count.saturating_sub(1) as f64 - middle).max(1.0);
    let gap = PORT_GAP.min(room / widest);
    (0..count).map(|i| (i as f64 - middle) * gap).collect()
}

/// Rigid columns of slots.
struct Columns {
    /// Each slot's column, and its offset in it.
    of: Vec<usize>,
    offsets: Vec<f64>,
    /// Columns in an order in which each stands behind those to its left.
    order: Vec<usize>,
    n_columns: usize,
}

impl Columns {
    fn new(sheet: &Sheet, layered: &Layered, aligned: &[bool], ports: &[(f64, f64)]) -> Self {
        let n_slots = layered.slots.len();
        let (mut of, mut offsets) = (vec![usize::MAX; n_slots], vec![0.0; n_slots]);
        let mut n_columns = 0;
        for slot in layered.rows.iter().flatten() {
            let upper = layered.above[*slot].iter().find(|link| aligned[**link]);
            match upper {
                Some(link) => {
                    let from = layered.links[*link].from;
                    of[*slot] = of[from];
                    // Ports far from each other would make a staircase of wide frames: their middles are aligned
                    // instead.
                    let step = ports[*link].0 - ports[*link].1;
                    let is_far = step.abs() > FAR_PORTS
                        && is_box(sheet, layered, from)
                        && is_box(sheet, layered, *slot);
                    offsets[*slot] = offsets[from] + if is_far { 0.0 } else { step };
                }
                None => {
                    of[*slot] = n_columns;
                    n_columns += 1;
                }
            }
        }
        let mut graph = DiGraph::<(), (), u32>::with_capacity(n_columns, n_slots);
        for _ in 0..n_columns {
            graph.add_node(());
        }
        for row in &layered.rows {
            for pair in row.windows(2) {
                graph.add_edge((of[pair[0]] as u32).into(), (of[pair[1]] as u32).into(), ());
            }
        }
        let order = toposort(&graph, None).expect("straight links do not cross, so columns have an order");
        Self { of, offsets, order: order.into_iter().map(|n| n.index()).collect(), n_columns }
    }

    fn relax(&self, sheet: &Sheet, layered: &Layered, ports: &[(f64, f64)]) -> Vec<f64> {
        // Least distance between neighbouring slots, as one between their columns.
        let mut to_left: Vec<Vec<(usize, f64)>> = vec![Vec::new(); self.n_columns];
        let mut to_right: Vec<Vec<(usize, f64)>> = vec![Vec::new(); self.n_columns];
        for row in &layered.rows {
            for pair in row.windows(2) {
                let (a, b) = (pair[0], pair[1]);
                let distance = distance(sheet, layered, a, b) + self.offsets[a] - self.offsets[b];
                to_left[self.of[b]].push((self.of[a], distance));
                to_right[self.of[a]].push((self.of[b], distance));
            }
        }
        let mut pulls: Vec<Vec<(usize, f64, f64)>> = vec![Vec::new(); self.n_columns];
        for (link, (out, into)) in layered.links.iter().zip(ports) {
            let (a, b) = (self.of[link.from], self.of[link.to]);
            if a == b {
                continue;
            }
            let shift = (self.offsets[link.from] + out) - (self.offsets[link.to] + into);
            let n_boxes =
                usize::from(is_box(sheet, layered, link.from)) + usize::from(is_box(sheet, layered, link.to));
            let weight = [1.0, 1.0, 3.0][n_boxes];
            pulls[b].push((a, shift, weight));
            pulls[a].push((b, -shift, weight));
        }
        let mut at = vec![0.0f64; self.n_columns];
        self.push_right(&mut at, &to_left);
        let mut wanted = at.clone();
        let n_rounds = if self.of.len() > MANY_SLOTS { ROUNDS / 4 } else { ROUNDS };
        for _ in 0..n_rounds {
            for column in 0..self.n_columns {
                let (sum, weights) =
                    pulls[column].iter().fold((0.0, 0.0), |(sum, all), (to, shift, weight)| {
                        (sum + weight * (at[*to] + shift), all + weight)
                    });
                wanted[column] = if weights > 0.0 { sum / weights } else { at[column] };
            }
            let mut right = wanted.clone();
            self.push_right(&mut right, &to_left);
            let mut left = wanted.clone();
            self.push_left(&mut left, &to_right);
            let mut largest = 0.0f64;
            for column in 0..self.n_columns {
                // Half the way only: rows that pull at each other would otherwise swap places forever.
                let new = (at[column] + (right[column] + left[column]) / 2.0) / 2.0;
                largest = largest.max((new - at[column]).abs());
                at[column] = new;
            }
            if largest < 0.25 {
                break;
            }
        }
        self.snap(&mut at, &pulls, &to_left, &to_right);
        (0..self.of.len()).map(|slot| at[self.of[slot]] + self.offsets[slot]).collect()
    }

    fn push_right(&self, at: &mut [f64], to_left: &[Vec<(usize, f64)>]) {
        for column in &self.order {
            for (left, distance) in &to_left[*column] {
                at[*column] = at[*column].max(at[*left] + distance);
            }
        }
    }

    fn push_left(&self, at: &mut [f64], to_right: &[Vec<(usize, f64)>]) {
        for column in self.order.iter().rev() {
            for (right, distance) in &to_right[*column] {
                at[*column] = at[*column].min(at[*right] - distance);
            }
        }
    }

    /// Removes jogs of a few pixels where a column may move that far.
    fn snap(
        &self,
        at: &mut [f64],
        pulls: &[Vec<(usize, f64, f64)>],
        to_left: &[Vec<(usize, f64)>],
        to_right: &[Vec<(usize, f64)>],
    ) {
        const SMALL: f64 = 12.0;
        for column in &self.order {
            let lowest = to_left[*column].iter().map(|(left, d)| at[*left] + d).fold(f64::MIN, f64::max);
            let highest = to_right[*column].iter().map(|(right, d)| at[*right] - d).fold(f64::MAX, f64::min);
            let nearest = pulls[*column]
                .iter()
                .map(|(to, shift, weight)| (at[*to] + shift, *weight))
                .filter(|(x, _)| (*x - at[*column]).abs() <= SMALL && *x >= lowest && *x <= highest)
                .max_by(|(a, wa), (b, wb)| {
                    wa.total_cmp(wb).then((b - at[*column]).abs().total_cmp(&(a - at[*column]).abs()))
                });
            if let Some((x, _)) = nearest {
                at[*column] = x;
            }
        }
    }
}

/// Least distance between the centres of two neighbours in a row.
fn distance(sheet: &Sheet, layered: &Layered, left: SlotId, right: SlotId) -> f64 {
    let after = node(sheet, layered, left).map_or(0.0, |node| node.after);
    let before = node(sheet, layered, right).map_or(0.0, |node| node.before);
    let both = is_box(sheet, layered, left) && is_box(sheet, layered, right);
    after + before + if both { BOX_GAP } else { LANE_GAP }
}

/// Moves free ports under a line that would otherwise jog just before its box.
fn straighten(sheet: &Sheet, layered: &Layered, centres: &[f64], ports: &mut [(f64, f64)]) {
    for slot in 0..layered.slots.len() {
        let Some(node) = node(sheet, layered, slot) else { continue };
        if !node.ports.is_empty() || node.role != Role::Box {
            continue;
        }
        let room = (node.before.min(node.after) - CORNER).max(0.0);
        let mut arriving = layered.above[slot].clone();
        arriving.sort_by(|a, b| ports[*a].1.total_cmp(&ports[*b].1));
        let wanted = |link: usize, ports: &[(f64, f64)]| {
            centres[layered.links[link].from] + ports[link].0 - centres[slot]
        };
        // The straightest of them first, boxes before lanes: then the others keep their distance from it.
        let anchor =
            (0..arriving.len()).filter(|i| wanted(arriving[*i], ports).abs() <= room).min_by(|a, b| {
                let is_lane = |i: usize| layered.slots[layered.links[arriving[i]].from].node.is_none();
                let jog = |i: usize| (wanted(arriving[i], ports) - ports[arriving[i]].1).abs();
                is_lane(*a).cmp(&is_lane(*b)).then(jog(*a).total_cmp(&jog(*b)))
            });
        let Some(anchor) = anchor else { continue };
        let at = wanted(arriving[anchor], ports);
        let gap = |n: usize, room: f64| if n == 0 { PORT_GAP } else { PORT_GAP.min(room / n as f64) };
        let (left, right) = (gap(anchor, room + at), gap(arriving.len() - 1 - anchor, room - at));
        if left.min(right) < 5.0 {
            continue;
        }
        for (i, link) in arriving.iter().enumerate() {
            let steps = i as f64 - anchor as f64;
            ports[*link].1 = at + steps * if steps < 0.0 { left } else { right };
        }
        // The remaining ones may be straight as well, within the space that their neighbours leave.
        for i in 0..arriving.len() {
            let wanted = wanted(arriving[i], ports);
            let least = if i == 0 { -room } else { ports[arriving[i - 1]].1 + PORT_GAP };
            let most = if i + 1 == arriving.len() { room } else { ports[arriving[i + 1]].1 - PORT_GAP };
            if i != anchor && wanted >= least && wanted <= most {
                ports[arriving[i]].1 = wanted;
            }
        }
    }
}
