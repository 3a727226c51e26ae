//! Splits each tensor's route at the borders of boxes.
//!
//! A tensor from one leaf to another crosses the borders of the boxes around both. Inside each of these boxes it is
//! one net: from a child, or from an entry in the border, to children and perhaps to an exit.

use crate::diagram::{BoxId, Diagram};

/// One tensor inside one box.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lifted {
    /// Index into [`Diagram::wires`].
    pub wire: usize,
    /// The child that computes it; `None` where it enters through the border.
    pub source: Option<u32>,
    /// Children that read it or hold its readers, ascending.
    pub sinks: Vec<u32>,
    /// Whether it is read outside.
    pub has_exit: bool,
}

/// Returns the nets inside each box, in the order of the wires. O(wires · readers · depth).
pub(crate) fn lift(diagram: &Diagram) -> Vec<Vec<Lifted>> {
    let n_boxes = diagram.boxes().len();
    let mut nets: Vec<Vec<Lifted>> = vec![Vec::new(); n_boxes];
    let mut place = vec![0u32; n_boxes];
    for item in diagram.boxes() {
        for (index, child) in item.children.iter().enumerate() {
            place[child.index()] = index as u32;
        }
    }
    // The wire that a box was last visited for, and how many of the wire's readers are inside.
    let mut seen = vec![usize::MAX; n_boxes];
    let mut inside = vec![0usize; n_boxes];
    for (wire_idx, wire) in diagram.wires().iter().enumerate() {
        let mut touched: Vec<BoxId> = Vec::new();
        for ancestor in ancestors(diagram, wire.source) {
            (seen[ancestor.index()], inside[ancestor.index()]) = (wire_idx, 0);
        }
        for sink in &wire.sinks {
            for ancestor in ancestors(diagram, *sink) {
                if seen[ancestor.index()] != wire_idx {
                    (seen[ancestor.index()], inside[ancestor.index()]) = (wire_idx, 0);
                }
                if inside[ancestor.index()] == 0 {
                    touched.push(ancestor);
                }
                inside[ancestor.index()] += 1;
            }
        }
        // The source's side: from the innermost box up to the first that holds all readers.
        let mut child = wire.source;
        let mut source_side: Vec<BoxId> = Vec::new();
        for ancestor in ancestors(diagram, wire.source) {
            let has_exit = inside[ancestor.index()] < wire.sinks.len();
            nets[ancestor.index()].push(Lifted {
                wire: wire_idx,
                source: Some(place[child.index()]),
                sinks: Vec::new(),
                has_exit,
            });
            source_side.push(ancestor);
            child = ancestor;
            if !has_exit {
                break;
            }
        }
        // The readers' side: up to a box of the source's side.
        for sink in &wire.sinks {
            let mut child = *sink;
            for ancestor in ancestors(diagram, *sink) {
                let in_box = &mut nets[ancestor.index()];
                if in_box.last().is_none_or(|net| net.wire != wire_idx) {
                    in_box.push(Lifted { wire: wire_idx, source: None, sinks: Vec::new(), has_exit: false });
                }
                let net = in_box.last_mut().expect("just pushed");
                let child_place = place[child.index()];
                let is_known = net.sinks.contains(&child_place);
                // A reader inside the source's own child was handled at a deeper level.
                if !is_known && net.source != Some(child_place) {
                    net.sinks.push(child_place);
                }
                if is_known || net.source.is_some() {
                    break;
                }
                child = ancestor;
            }
        }
        for id in touched {
            if let Some(net) = nets[id.index()].last_mut().filter(|net| net.wire == wire_idx) {
                net.sinks.sort_unstable();
            }
        }
        // A net that neither ends nor leaves here has nothing to draw.
        for id in source_side {
            let in_box = &mut nets[id.index()];
            if in_box.last().is_some_and(|net| net.wire == wire_idx && net.sinks.is_empty() && !net.has_exit)
            {
                in_box.pop();
            }
        }
    }
    // Equal insides have equal nets in equal order, regardless of the order of their tensors outside.
    for nets in &mut nets {
        nets.sort_by(|a, b| {
            (a.source, &a.sinks, a.has_exit, a.wire).cmp(&(b.source, &b.sinks, b.has_exit, b.wire))
        });
    }
    nets
}

fn ancestors(diagram: &Diagram, id: BoxId) -> impl Iterator<Item = BoxId> {
    std::iter::successors(diagram.get(id).parent, |id| diagram.get(*id).parent)
}
