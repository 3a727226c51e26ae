//! What stays closed unless a depth is asked for, because opening it shows nothing of the model: norms that are written in
//! arithmetic, a product with its cast, and the arithmetic on positions and masks in front of a transformer.
//!
//! A block that a plan cuts stays open: the cut is to be seen.

use crate::{
    diagram::{BoxId, Diagram, DiagramBox, Family},
    view::{Duplicates, main_family, rebuild},
};

/// A block of more operators than this is opened.
const MOST_OPERATORS: usize = 16;
/// Fewer operators of a mask are drawn by themselves.
const LEAST_OF_A_RUN: usize = 3;
/// A picture with fewer boxes than this shows all there is.
const FEWEST_BOXES: usize = 8;

/// Closes small blocks without blocks in them, and makes one box of operators in a row that compute positions or masks.
pub(crate) fn close_small(diagram: &Diagram) -> Diagram {
    let is_index = index_arithmetic(diagram);
    let mut keep: Vec<BoxId> = diagram.ids().collect();
    let mut boxes = diagram.boxes().to_vec();
    let mut runs: Vec<Vec<BoxId>> = Vec::new();
    for id in diagram.ids() {
        let item = diagram.get(id);
        if let Some(parent) = item.parent
            && (keep[parent.index()] != parent || is_small(diagram, parent, &is_index))
        {
            keep[id.index()] = keep[parent.index()];
            continue;
        }
        let is_free = |item: &DiagramBox| item.amount.as_ref().is_none_or(|amount| amount.value == 0.0);
        let is_link = |id: &&BoxId| {
            let item = diagram.get(**id);
            is_index[id.index()] && is_operator(item) && is_free(item)
        };
        let mut rest = item.children.as_slice();
        while !rest.is_empty() && !is_small(diagram, id, &is_index) {
            let stage = diagram.get(rest[0]).stage;
            let length =
                rest.iter().take_while(is_link).take_while(|id| diagram.get(**id).stage == stage).count();
            if length >= LEAST_OF_A_RUN {
                runs.push(rest[..length].to_vec());
            }
            rest = &rest[length.max(1)..];
        }
    }
    for run in runs {
        boxes[run[0].index()] = joined(diagram, &run);
        run[1..].iter().for_each(|member| keep[member.index()] = run[0]);
    }
    let left = diagram.ids().filter(|id| keep[id.index()] == *id).count();
    if left < FEWEST_BOXES {
        return diagram.clone();
    }
    for id in diagram.ids().filter(|id| diagram.is_leaf(*id)) {
        let to = keep[id.index()];
        if !diagram.is_leaf(to) {
            let closed = &mut boxes[to.index()];
            closed.family = if closed.subtitle.contains("Norm") {
                Family::Norm
            } else {
                main_family(closed.family, diagram.get(id).family)
            };
        }
    }
    rebuild(diagram, &boxes, keep, Duplicates::Keep, |_, _| false)
}

/// Tells for each box whether all that it computes follows from sizes, constants and whole numbers of the inputs, no parameter
/// and no activation.
fn index_arithmetic(diagram: &Diagram) -> Vec<bool> {
    let mut is_other = vec![false; diagram.boxes().len()];
    for id in diagram.ids().filter(|id| diagram.is_leaf(*id)) {
        let item = diagram.get(id);
        let is_whole =
            |(name, value): &(String, String)| name == "dtype" && (value.contains("int") || value == "bool");
        is_other[id.index()] = match item.family {
            Family::Input => !item.attributes.iter().any(is_whole),
            Family::Movement | Family::Elementwise | Family::Reduce => item.has_parameters,
            _ => true,
        };
    }
    // Tensors flow forward: a source stands before its readers.
    let mut wires: Vec<_> = diagram.wires().iter().collect();
    wires.sort_by_key(|wire| wire.source);
    for wire in wires {
        if is_other[wire.source.index()] {
            wire.sinks.iter().for_each(|sink| is_other[sink.index()] = true);
        }
    }
    // A block is what all in it are.
    for id in diagram.ids().rev().filter(|id| !diagram.is_leaf(*id)) {
        is_other[id.index()] = diagram.get(id).children.iter().any(|child| is_other[child.index()]);
    }
    is_other.iter().map(|is_other| !is_other).collect()
}

/// Tells whether a block is closed.
fn is_small(diagram: &Diagram, id: BoxId, is_index: &[bool]) -> bool {
    let item = diagram.get(id);
    let is_cut = diagram.has_stages && item.stage.is_none();
    if id == BoxId::ROOT || item.children.is_empty() || is_cut {
        return false;
    }
    let children = || item.children.iter().map(|child| diagram.get(*child));
    let is_heavy = |item: &DiagramBox| {
        matches!(item.family, Family::Convolution | Family::Matmul | Family::Sequence | Family::Embedding)
    };
    is_index[id.index()]
        || (item.children.len() <= MOST_OPERATORS
            && children().all(is_operator)
            && children().filter(|item| is_heavy(item)).count() <= 1)
}

/// Tells whether a box is an operator, or several joined, and no module.
fn is_operator(item: &DiagramBox) -> bool {
    let has = |name: &str| item.attributes.iter().any(|(known, _)| known == name);
    item.children.is_empty() && (has("operator") || has("operators")) && !has("class")
}

fn joined(diagram: &Diagram, run: &[BoxId]) -> DiagramBox {
    let members = || run.iter().map(|id| diagram.get(*id));
    let makes = |dtype: &str| {
        members()
            .any(|item| item.attributes.iter().any(|(name, value)| name == "output" && value.contains(dtype)))
    };
    let mut joined = diagram.get(run[0]).clone();
    joined.title = if makes("bool") {
        "mask"
    } else if makes("int") {
        "positions"
    } else {
        "constants"
    }
    .to_string();
    joined.subtitle = format!("{} operators", run.len());
    joined.details = Vec::new();
    joined.family = Family::Movement;
    joined.operators = joined.operators.start..diagram.get(run[run.len() - 1]).operators.end;
    let names: Vec<&str> = members().map(|item| item.title.as_str()).collect();
    joined.attributes = vec![("operators".to_string(), names.join(", "))];
    joined
}
