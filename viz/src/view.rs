//! Simplifies a diagram: hides boxes that are not informative, and keeps the flow between the others.
//!
//! Steps, each from a diagram to a smaller one: chains of reshapes are merged, small blocks close and masks are merged,
//! unless the deepest level is requested; a box with one box in it is merged with it; consecutive equal siblings become
//! one with a count; boxes below a depth close; a tensor read by many boxes is named at its readers instead of drawn.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
};

use crate::{
    cards::stage_badge,
    chains, closed,
    diagram::{BoxId, Diagram, DiagramBox, Family, Wire},
    lift::{Lifted, lift},
};

/// Most boxes at automatic depth.
pub const MOST_BOXES: usize = 150;
/// A tensor with more readers than this is named at them.
const MOST_READERS: usize = 8;
/// Deeper nesting is closed: a frame needs space on each side.
const DEEPEST: u32 = 40;
/// Lines that pass by boxes, per box of a frame; beyond that the longest become names.
const MOST_LANES: usize = 24;
/// The same for a frame as a whole, so that thousands of operators without blocks are drawn within a second.
const MOST_LANES_IN_ALL: usize = 20_000;

/// Which boxes are opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Depth {
    /// The deepest level with no more than [`MOST_BOXES`] boxes, chains of reshapes being one.
    #[default]
    Automatic,
    /// Boxes at this depth are closed; 1 shows the root's children, the deepest level every operator.
    At(u32),
}

/// How many levels of boxes a picture shows, and of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Levels {
    pub open: u32,
    pub of: u32,
}

/// Returns the diagram to draw, and its levels.
pub fn view(diagram: &Diagram, depth: Depth) -> (Diagram, Levels) {
    let merged = merge_only_children(diagram);
    let deepest = |diagram: &Diagram| diagram.depths().into_iter().max().unwrap_or(0).clamp(1, DEEPEST);
    let is_whole = matches!(depth, Depth::At(depth) if depth >= deepest(&merged));
    let joined = if is_whole { merged } else { merge_only_children(&chains::join(diagram)) };
    let mut folded = if is_whole { fold(&joined) } else { fold(&closed::close_small(&joined)) };
    let mut depths = folded.depths();
    // Not even the first level fits: its own operators are rows of boxes between its parts.
    if depth == Depth::Automatic && depths.iter().filter(|depth| **depth == 1).count() > MOST_BOXES {
        folded = fold(&closed::close_loose(&folded, MOST_BOXES));
        depths = folded.depths();
    }
    // Blocks that stay closed are a level that can be requested: the deepest shows it.
    let deepest =
        if depth == Depth::Automatic || is_whole { deepest(&folded) } else { deepest(&fold(&joined)) };
    let depth = match depth {
        Depth::At(depth) => depth.clamp(1, deepest),
        Depth::Automatic => {
            let fits = |depth: &u32| depths.iter().filter(|d| **d > 0 && **d <= *depth).count() <= MOST_BOXES;
            (1..=deepest).rev().find(fits).unwrap_or(1)
        }
    };
    (name_far_tensors(close(&folded, depth)), Levels { open: depth, of: deepest })
}

/// Merges a box with its only child: `conv1` and the `conv2d` in it.
pub(crate) fn merge_only_children(diagram: &Diagram) -> Diagram {
    let mut keep: Vec<BoxId> = diagram.ids().collect();
    let mut boxes: Vec<DiagramBox> = diagram.boxes().to_vec();
    // From the innermost outwards, so that a chain of such boxes becomes one.
    for id in diagram.ids().rev().filter(|id| *id != BoxId::ROOT) {
        let [child] = boxes[id.index()].children[..] else { continue };
        let inner = boxes[child.index()].clone();
        let outer = &mut boxes[id.index()];
        if inner.children.is_empty() && !inner.title.is_empty() {
            // `relu` in `relu (call 2)` is redundant.
            let is_said = outer.title.starts_with(inner.title.as_str());
            outer.subtitle = match (is_said, inner.subtitle.is_empty()) {
                (true, _) => inner.subtitle,
                (false, true) => inner.title,
                (false, false) => format!("{} {}", inner.title, inner.subtitle),
            };
        } else if !inner.children.is_empty() {
            outer.title = format!("{}.{}", outer.title, inner.title);
            outer.subtitle = inner.subtitle;
        }
        outer.details = inner.details;
        outer.family = inner.family;
        outer.has_parameters |= inner.has_parameters;
        outer.amount = outer.amount.take().or(inner.amount);
        outer.stage = outer.stage.or(inner.stage);
        outer.children = inner.children;
        for (name, value) in inner.attributes {
            if !outer.attributes.iter().any(|(known, _)| *known == name) {
                outer.attributes.push((name, value));
            }
        }
        keep[child.index()] = id;
    }
    rebuild(diagram, &boxes, keep, Duplicates::Keep, |_, _| false)
}

/// Merges consecutive equal siblings into one box.
fn fold(diagram: &Diagram) -> Diagram {
    let mut keep: Vec<BoxId> = diagram.ids().collect();
    let mut boxes = diagram.boxes().to_vec();
    // The first of the siblings that a box belongs to.
    let mut run_of: Vec<Option<BoxId>> = vec![None; boxes.len()];
    for run in runs(diagram) {
        let first = run[0];
        for member in &run {
            run_of[member.index()] = Some(first);
        }
        if keep[first.index()] == first {
            let last = diagram.get(run[run.len() - 1]);
            let item = &mut boxes[first.index()];
            item.title = joined_title(&item.title, &last.title);
            item.path = joined_title(&item.path, &last.path);
            item.repeat = run.len() as u32;
            for member in &run[1..] {
                for (from, to) in subtree(diagram, *member).zip(subtree(diagram, first)) {
                    keep[from.index()] = to;
                }
            }
        }
    }
    let depths = diagram.depths();
    let is_inner = |source: BoxId, sink: BoxId| {
        let (a, b) = siblings_above(diagram, &depths, source, sink);
        a != b && run_of[a.index()].is_some() && run_of[a.index()] == run_of[b.index()]
    };
    rebuild(diagram, &boxes, keep, Duplicates::Drop, is_inner)
}

/// Returns the runs of equal siblings that one box can represent, outer ones first.
pub(crate) fn runs(diagram: &Diagram) -> Vec<Vec<BoxId>> {
    let nets = lift(diagram);
    let hashes = hashes(diagram, &nets);
    let mut runs = Vec::new();
    for id in diagram.ids() {
        let children = &diagram.get(id).children;
        let mut start = 0;
        while start < children.len() {
            let hash = hashes[children[start].index()];
            let length = children[start..].iter().take_while(|c| hashes[c.index()] == hash).count();
            let run = start..start + length;
            start += length;
            let least = if diagram.is_leaf(children[run.start]) { 3 } else { 2 };
            if length >= least && is_foldable(&nets[id.index()], &run) {
                runs.push(children[run].to_vec());
            }
        }
    }
    runs
}

/// Returns whether equal siblings are one chain, each feeding the next, or are all parallel.
///
/// Tensors from outside must go to the first of a chain or to all; tensors to the outside must come from the last of a
/// chain, or from all to the same readers.
fn is_foldable(nets: &[Lifted], run: &std::ops::Range<usize>) -> bool {
    let length = run.len();
    let mut feeds_next = vec![false; length];
    let mut leaving: Vec<Vec<(Vec<u32>, bool)>> = vec![Vec::new(); length];
    let mut arrives_at_first = false;
    for net in nets {
        let (inside, outside): (Vec<u32>, Vec<u32>) =
            net.sinks.iter().partition(|sink| run.contains(&(**sink as usize)));
        match net.source.map(|source| source as usize).filter(|source| run.contains(source)) {
            Some(source) => {
                if inside.iter().any(|sink| *sink as usize != source + 1) {
                    return false;
                }
                feeds_next[source - run.start] |= !inside.is_empty();
                if !outside.is_empty() || net.has_exit {
                    leaving[source - run.start].push((outside, net.has_exit));
                }
            }
            None if inside.is_empty() || inside.len() == length => {}
            None if inside == [run.start as u32] => arrives_at_first = true,
            None => return false,
        }
    }
    let others = &leaving[..length - 1];
    let is_chain = feeds_next[..length - 1].iter().all(|feeds| *feeds);
    let is_beside = !arrives_at_first && feeds_next.iter().all(|feeds| !feeds);
    let all_leave_alike = others.iter().all(|one| *one == leaving[length - 1]);
    (is_chain && (others.iter().all(Vec::is_empty) || all_leave_alike)) || (is_beside && all_leave_alike)
}

/// `layers.1` and `layers.11` become `layers.1–11`.
fn joined_title(first: &str, last: &str) -> String {
    let digits = |text: &str| text.len() - text.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (a, b) = (digits(first), digits(last));
    if first == last {
        return first.to_string();
    }
    if first[..a] == last[..b] && a < first.len() && b < last.len() {
        format!("{first}–{}", &last[b..])
    } else {
        format!("{first} – {last}")
    }
}

/// Returns a hash of each box's inside: equal for boxes that differ only in name and position.
fn hashes(diagram: &Diagram, nets: &[Vec<Lifted>]) -> Vec<u64> {
    let mut hashes = vec![0u64; diagram.boxes().len()];
    for id in diagram.ids().rev() {
        let item = diagram.get(id);
        let mut hasher = DefaultHasher::new();
        (&item.subtitle, &item.details, item.family, item.stage, item.repeat).hash(&mut hasher);
        for child in &item.children {
            (&diagram.get(*child).title, hashes[child.index()]).hash(&mut hasher);
        }
        // The order of tensors from outside depends on the outside.
        let mut inner: Vec<_> = nets[id.index()]
            .iter()
            .map(|net| (net.source, &net.sinks, net.has_exit, &diagram.wires()[net.wire].label))
            .collect();
        inner.sort();
        inner.hash(&mut hasher);
        if item.children.is_empty() {
            item.title.hash(&mut hasher);
        }
        hashes[id.index()] = hasher.finish();
    }
    // A leaf's own title identifies the sibling, unless nothing else says what it does.
    for id in diagram.ids().filter(|id| diagram.is_leaf(*id)) {
        let item = diagram.get(id);
        if !item.subtitle.is_empty() {
            let mut hasher = DefaultHasher::new();
            (&item.subtitle, &item.details, item.family, item.stage, item.repeat).hash(&mut hasher);
            hashes[id.index()] = hasher.finish();
        }
    }
    hashes
}

fn subtree(diagram: &Diagram, root: BoxId) -> impl Iterator<Item = BoxId> {
    let mut stack = vec![root];
    std::iter::from_fn(move || {
        let id = stack.pop()?;
        stack.extend(diagram.get(id).children.iter().rev());
        Some(id)
    })
}

/// Returns the two siblings that contain two boxes, or one of the boxes twice if it contains the other.
fn siblings_above(diagram: &Diagram, depths: &[u32], a: BoxId, b: BoxId) -> (BoxId, BoxId) {
    let (mut a, mut b) = (a, b);
    let up = |id: BoxId| diagram.get(id).parent.unwrap_or(BoxId::ROOT);
    while depths[a.index()] > depths[b.index()] {
        a = up(a);
    }
    while depths[b.index()] > depths[a.index()] {
        b = up(b);
    }
    while up(a) != up(b) {
        (a, b) = (up(a), up(b));
    }
    (a, b)
}

/// Closes every box at a depth.
fn close(diagram: &Diagram, depth: u32) -> Diagram {
    let depths = diagram.depths();
    let mut keep: Vec<BoxId> = diagram.ids().collect();
    let mut boxes = diagram.boxes().to_vec();
    for id in diagram.ids().skip(1) {
        let parent = diagram.get(id).parent.expect("only the root has no parent");
        if depths[id.index()] > depth {
            keep[id.index()] = keep[parent.index()];
        }
    }
    // A closed box shows its main family, and the stages that a plan has cut it into.
    let mut stages: BTreeMap<BoxId, BTreeSet<u32>> = BTreeMap::new();
    for id in diagram.ids().rev().filter(|id| diagram.is_leaf(*id)) {
        let (to, item) = (keep[id.index()], diagram.get(id));
        if to != id {
            let closed = &mut boxes[to.index()];
            closed.family = main_family(closed.family, item.family);
            stages.entry(to).or_default().extend(item.stage);
        }
    }
    for (to, stages) in stages.into_iter().filter(|(_, stages)| stages.len() > 1) {
        let badges: Vec<String> = stages.into_iter().map(stage_badge).collect();
        boxes[to.index()].details.push(format!("cut: {}", badges.join(" | ")));
    }
    rebuild(diagram, &boxes, keep, Duplicates::Keep, |_, _| false)
}

/// Returns the more informative family for a box with both.
pub(crate) fn main_family(a: Family, b: Family) -> Family {
    const ORDER: [Family; 8] = [
        Family::Sequence,
        Family::Convolution,
        Family::Matmul,
        Family::Embedding,
        Family::Norm,
        Family::Reduce,
        Family::Elementwise,
        Family::Movement,
    ];
    ORDER.into_iter().find(|family| [a, b].contains(family)).unwrap_or(a)
}

/// How tensors that become equal are treated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Duplicates {
    /// They are one line with both labels.
    Keep,
    /// They are one line, once.
    Drop,
}

/// Tensors that have become one line.
struct Merged {
    source: BoxId,
    sinks: Vec<BoxId>,
    /// Each label and how often it occurs.
    labels: Vec<(String, usize)>,
}

/// Returns a diagram of the boxes that are kept: those that `keep` maps to themselves, others to an earlier one.
pub(crate) fn rebuild(
    diagram: &Diagram,
    boxes: &[DiagramBox],
    mut keep: Vec<BoxId>,
    duplicates: Duplicates,
    is_dropped: impl Fn(BoxId, BoxId) -> bool,
) -> Diagram {
    // The box that a box was merged into may itself be merged into another, always an earlier one.
    for index in 0..keep.len() {
        keep[index] = keep[keep[index].index()];
    }
    let mut result = Diagram::new(boxes[0].clone());
    result.amounts.clone_from(&diagram.amounts);
    result.has_stages = diagram.has_stages;
    let mut new = vec![BoxId::ROOT; boxes.len()];
    for id in diagram.ids().skip(1).filter(|id| keep[id.index()] == *id) {
        let parent = diagram.get(id).parent.expect("only the root has no parent");
        new[id.index()] = result.add(new[keep[parent.index()].index()], boxes[id.index()].clone());
    }
    let mut place: HashMap<(BoxId, Vec<BoxId>), usize> = HashMap::new();
    let mut wires: Vec<Merged> = Vec::new();
    for Wire { source, label, sinks } in diagram.wires() {
        let from = new[keep[source.index()].index()];
        let mut to: Vec<BoxId> = sinks
            .iter()
            .filter(|sink| !is_dropped(*source, **sink))
            .map(|sink| new[keep[sink.index()].index()])
            .filter(|sink| *sink != from)
            .collect();
        to.sort_unstable();
        to.dedup();
        if to.is_empty() {
            continue;
        }
        let index = *place.entry((from, to.clone())).or_insert_with(|| {
            wires.push(Merged { source: from, sinks: to, labels: Vec::new() });
            wires.len() - 1
        });
        let labels = &mut wires[index].labels;
        match labels.iter_mut().find(|(known, _)| known == label) {
            Some((_, count)) if duplicates == Duplicates::Keep => *count += 1,
            Some(_) => {}
            None => labels.push((label.clone(), 1)),
        }
    }
    let wires = wires
        .into_iter()
        .map(|Merged { source, sinks, labels }| {
            let labels: Vec<String> = labels
                .into_iter()
                .filter(|(label, _)| !label.is_empty())
                .map(|(label, count)| if count > 1 { format!("{count} × {label}") } else { label })
                .collect();
            Wire { source, label: labels.join(", "), sinks }
        })
        .collect();
    result.with_wires(wires)
}

/// Replaces lines to many readers, and lines past very many boxes, by names.
fn name_far_tensors(mut diagram: Diagram) -> Diagram {
    let order = diagram.preorder();
    let far = far_wires(&diagram);
    let mut wires = diagram.wires().to_vec();
    for (wire, is_far) in wires.iter_mut().zip(far) {
        if wire.sinks.len() <= MOST_READERS && !is_far {
            continue;
        }
        wire.sinks.sort_by_key(|sink| order[sink.index()]);
        let source = diagram.get(wire.source).clone();
        // The first line stays, so that the source is connected.
        let kept = usize::from(!is_far);
        for sink in wire.sinks.split_off(kept.min(wire.sinks.len())) {
            // Among siblings the title is enough.
            let sink = diagram.get_mut(sink);
            let is_near = sink.parent == source.parent || source.path.is_empty();
            let name = if is_near { &source.title } else { &source.path };
            if !sink.tags.contains(name) {
                sink.tags.push(name.clone());
            }
        }
    }
    wires.retain(|wire| !wire.sinks.is_empty());
    diagram.with_wires(wires)
}

/// Finds the tensors that would pass by too many boxes of a frame.
fn far_wires(diagram: &Diagram) -> Vec<bool> {
    let mut is_far = vec![false; diagram.wires().len()];
    for (id, nets) in diagram.ids().zip(lift(diagram)) {
        let n_children = diagram.get(id).children.len();
        // Distance in the order of boxes bounds the number of rows that a line passes.
        let mut lengths: Vec<(usize, usize)> = nets
            .iter()
            .map(|net| {
                let from = net.source.map_or(0, |source| source as usize);
                let to = if net.has_exit { n_children } else { net.sinks.last().map_or(0, |s| *s as usize) };
                (to.saturating_sub(from), net.wire)
            })
            .collect();
        let mut total: usize = lengths.iter().map(|(length, _)| length).sum();
        let budget = (MOST_LANES * n_children).min(MOST_LANES_IN_ALL) + 4 * n_children + 400;
        lengths.sort_unstable();
        while total > budget
            && let Some((length, wire)) = lengths.pop()
        {
            total -= length;
            is_far[wire] = true;
        }
    }
    is_far
}
