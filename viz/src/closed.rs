//! Blocks that stay closed unless the deepest level is requested, because their inside is not informative: norms that
//! are written in arithmetic, a product with its cast, and the arithmetic on positions and masks in front of a
//! transformer.
//!
//! A block that a plan cuts stays open, to show the cut.
//!
//! Where the model's own forward computes between its parts (a loop written out, sampling of a field), a picture of its first
//! level would not fit a page: there, consecutive operators without parameters are one box.

use crate::{
    diagram::{BoxId, Diagram, DiagramBox, Family},
    view::{Duplicates, main_family, rebuild},
};

/// A block of more operators than this is opened.
const MOST_OPERATORS: usize = 16;
/// Fewer consecutive operators of a mask are drawn individually.
const LEAST_OF_A_RUN: usize = 3;
/// A picture with fewer boxes than this shows all of them.
const FEWEST_BOXES: usize = 8;

/// The boxes of a diagram that stay closed.
pub(crate) struct Closed {
    /// For each box, whether it is a block that stays closed.
    pub is_small: Vec<bool>,
    /// Consecutive operators that compute positions or masks: siblings.
    pub runs: Vec<Vec<BoxId>>,
}

/// Finds small blocks without blocks in them, and consecutive operators that compute positions or masks.
pub(crate) fn find(diagram: &Diagram) -> Closed {
    let is_index = index_arithmetic(diagram);
    let is_small: Vec<bool> = diagram.ids().map(|id| is_small(diagram, id, &is_index)).collect();
    let is_link = |id: &&BoxId| {
        let item = diagram.get(**id);
        is_index[id.index()] && is_operator(item) && is_free(item)
    };
    // A closed block, or a box inside one.
    let mut is_shut = is_small.clone();
    let mut runs = Vec::new();
    for id in diagram.ids() {
        let item = diagram.get(id);
        is_shut[id.index()] |= item.parent.is_some_and(|parent| is_shut[parent.index()]);
        if is_shut[id.index()] {
            continue;
        }
        let mut rest = item.children.as_slice();
        while !rest.is_empty() {
            let stage = diagram.get(rest[0]).stage;
            let length =
                rest.iter().take_while(is_link).take_while(|id| diagram.get(**id).stage == stage).count();
            if length >= LEAST_OF_A_RUN {
                runs.push(rest[..length].to_vec());
            }
            rest = &rest[length.max(1)..];
        }
    }
    Closed { is_small, runs }
}

/// Closes these blocks.
pub(crate) fn close_small(diagram: &Diagram) -> Diagram {
    let Closed { is_small, runs } = find(diagram);
    let mut keep: Vec<BoxId> = diagram.ids().collect();
    let mut boxes = diagram.boxes().to_vec();
    for id in diagram.ids() {
        if let Some(parent) = diagram.get(id).parent
            && (keep[parent.index()] != parent || is_small[parent.index()])
        {
            keep[id.index()] = keep[parent.index()];
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

/// Makes one box of consecutive operators that read no parameters, where a block holds more boxes than a page shows.
pub(crate) fn close_loose(diagram: &Diagram, most: usize) -> Diagram {
    let mut keep: Vec<BoxId> = diagram.ids().collect();
    let mut boxes = diagram.boxes().to_vec();
    let is_loose = |id: &&BoxId| {
        let item = diagram.get(**id);
        let is_light = matches!(item.family, Family::Movement | Family::Elementwise | Family::Reduce);
        is_light && is_operator(item) && !item.has_parameters && is_free(item)
    };
    for id in diagram.ids().filter(|id| diagram.get(*id).children.len() > most) {
        let mut rest = diagram.get(id).children.as_slice();
        while !rest.is_empty() {
            let stage = diagram.get(rest[0]).stage;
            let length =
                rest.iter().take_while(is_loose).take_while(|id| diagram.get(**id).stage == stage).count();
            if length >= LEAST_OF_A_RUN {
                let (run, last) = (&rest[..length], diagram.get(rest[length - 1]));
                let families = run.iter().map(|id| diagram.get(*id).family);
                let mut one = DiagramBox {
                    title: "arithmetic".to_string(),
                    family: families.reduce(main_family).unwrap_or_default(),
                    ..joined(diagram, run)
                };
                // What leaves the run is mostly made by its last operator.
                one.attributes.extend(last.attributes.iter().filter(|(name, _)| name == "output").cloned());
                boxes[run[0].index()] = one;
                run[1..].iter().for_each(|member| keep[member.index()] = run[0]);
            }
            rest = &rest[length.max(1)..];
        }
    }
    rebuild(diagram, &boxes, keep, Duplicates::Keep, |_, _| false)
}

fn is_free(item: &DiagramBox) -> bool {
    item.amount.as_ref().is_none_or(|amount| amount.value == 0.0)
}

/// Puts a frame around each run of operators that compute positions or masks. Also returns the boxes that stay closed
/// until they are requested: these frames, and small blocks.
pub(crate) fn framed(diagram: &Diagram) -> (Diagram, Vec<BoxId>) {
    let Closed { is_small, runs } = find(diagram);
    let mut run_of: Vec<Option<usize>> = vec![None; diagram.boxes().len()];
    for (index, run) in runs.iter().enumerate() {
        run.iter().for_each(|member| run_of[member.index()] = Some(index));
    }
    let mut result = Diagram::new(diagram.get(BoxId::ROOT).clone());
    result.amounts.clone_from(&diagram.amounts);
    result.has_stages = diagram.has_stages;
    let mut closed = Vec::new();
    let mut new = vec![BoxId::ROOT; diagram.boxes().len()];
    let mut frame_of = vec![BoxId::ROOT; runs.len()];
    for id in diagram.ids().skip(1) {
        let parent = new[diagram.get(id).parent.expect("only the root has no parent").index()];
        let around = match run_of[id.index()] {
            Some(run) => {
                if runs[run][0] == id {
                    let mut frame = joined(diagram, &runs[run]);
                    let outer = &diagram.get(diagram.get(id).parent.unwrap_or(BoxId::ROOT)).path;
                    let dot = if outer.is_empty() { "" } else { "." };
                    frame.path = format!("{outer}{dot}{}", frame.title);
                    frame_of[run] = result.add(parent, frame);
                    closed.push(frame_of[run]);
                }
                frame_of[run]
            }
            None => parent,
        };
        new[id.index()] = result.add(around, diagram.get(id).clone());
        if is_small[id.index()] {
            closed.push(new[id.index()]);
        }
    }
    for wire in diagram.wires() {
        result.connect(
            new[wire.source.index()],
            wire.label.clone(),
            wire.sinks.iter().map(|sink| new[sink.index()]),
        );
    }
    (result, closed)
}

/// Returns for each box whether it computes only with sizes, constants and integer inputs, without parameters or
/// activations.
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
    // Tensors flow forward: a source precedes its readers.
    let mut wires: Vec<_> = diagram.wires().iter().collect();
    wires.sort_by_key(|wire| wire.source);
    for wire in wires {
        if is_other[wire.source.index()] {
            wire.sinks.iter().for_each(|sink| is_other[sink.index()] = true);
        }
    }
    // A block is one if all boxes in it are.
    for id in diagram.ids().rev().filter(|id| !diagram.is_leaf(*id)) {
        is_other[id.index()] = diagram.get(id).children.iter().any(|child| is_other[child.index()]);
    }
    is_other.iter().map(|is_other| !is_other).collect()
}

/// Returns whether a block stays closed.
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

/// Returns whether a box is an operator, or several joined, and not a module.
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
