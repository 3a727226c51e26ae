//! Chains of reshapes and copies in one box: `transpose · contiguous · view` is a single step to the reader.
//!
//! Half of a transformer's operators only reshape or copy a tensor. At the deepest level, which shows every operator,
//! they are not joined.

use crate::{
    diagram::{BoxId, Diagram, DiagramBox, Family},
    view::{Duplicates, rebuild},
};

/// Most names in a title.
const MOST_NAMES: usize = 3;

/// Merges consecutive operators that only move data, with nothing else between them, into one box.
pub(crate) fn join(diagram: &Diagram) -> Diagram {
    let next = next_in_chain(diagram);
    let mut keep: Vec<BoxId> = diagram.ids().collect();
    let mut boxes = diagram.boxes().to_vec();
    let mut is_inner = vec![false; boxes.len()];
    for id in diagram.ids() {
        if is_inner[id.index()] {
            continue;
        }
        let mut chain = vec![id];
        while let Some(after) = next[chain[chain.len() - 1].index()] {
            is_inner[after.index()] = true;
            keep[after.index()] = id;
            chain.push(after);
        }
        if let [_, .., last] = chain[..] {
            boxes[id.index()] = joined(diagram, &chain, diagram.get(last));
        }
    }
    rebuild(diagram, &boxes, keep, Duplicates::Keep, |_, _| false)
}

/// Returns for each box the one that continues its chain.
fn next_in_chain(diagram: &Diagram) -> Vec<Option<BoxId>> {
    let mut n_read = vec![0usize; diagram.boxes().len()];
    let mut only_reader: Vec<Option<BoxId>> = vec![None; diagram.boxes().len()];
    let mut n_made = vec![0usize; diagram.boxes().len()];
    for wire in diagram.wires() {
        n_made[wire.source.index()] += 1;
        if let [sink] = wire.sinks[..] {
            only_reader[wire.source.index()] = Some(sink);
        }
        for sink in &wire.sinks {
            n_read[sink.index()] += 1;
        }
    }
    let is_link = |item: &DiagramBox| {
        let is_free = item.amount.as_ref().is_none_or(|amount| amount.value == 0.0);
        item.family == Family::Movement && item.children.is_empty() && is_free
    };
    let mut next = vec![None; diagram.boxes().len()];
    for id in diagram.ids() {
        for pair in diagram.get(id).children.windows(2) {
            let (item, after) = (diagram.get(pair[0]), diagram.get(pair[1]));
            let is_fed = only_reader[pair[0].index()] == Some(pair[1])
                && n_made[pair[0].index()] == 1
                && n_read[pair[1].index()] == 1;
            if is_fed && is_link(item) && is_link(after) && item.stage == after.stage {
                next[pair[0].index()] = Some(pair[1]);
            }
        }
    }
    next
}

fn joined(diagram: &Diagram, chain: &[BoxId], last: &DiagramBox) -> DiagramBox {
    let mut names: Vec<&str> = chain.iter().map(|id| diagram.get(*id).title.as_str()).collect();
    names.dedup();
    let first = diagram.get(chain[0]);
    let mut joined = first.clone();
    joined.title = match names[..] {
        [one] => format!("{one} ×{}", chain.len()),
        [one, .., other] if names.len() > MOST_NAMES => format!("{one} … {other}"),
        _ => names.join(" · "),
    };
    joined.operators = first.operators.start..last.operators.end;
    // The output of a chain is that of its last operator.
    joined.attributes = vec![("operators".to_string(), names.join(", "))];
    joined.attributes.extend(last.attributes.iter().filter(|(name, _)| name == "output").cloned());
    joined
}
