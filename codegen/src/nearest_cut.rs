//! The nearest valid cut to a refused one.

use tracer::Program;

use crate::{
    blocks::{call_path, cut_before, operator_path},
    error::CutError,
    names::Names,
    pipeline::{Assignment, CutOptions},
    slice::cut,
};

/// The most cuts that are tried.
const MAX_TRIES: usize = 48;

/// Returns the blocks to cut before so that the stages are valid, with one cut moved as little as possible.
///
/// Only for stages that are contiguous in the trace. O(tries × cutting).
pub fn nearest(
    program: &Program,
    assignment: &Assignment,
    names: &Names,
    options: &CutOptions,
    errors: &[CutError],
) -> Option<Vec<String>> {
    let at_fault = errors.iter().find_map(CutError::node)?.index();
    if !assignment.stage_of.is_sorted() {
        return None;
    }
    let cuts: Vec<usize> = (1..assignment.stage_of.len())
        .filter(|node| assignment.stage_of[*node] != assignment.stage_of[node - 1])
        .collect();
    // The begins of calls; the highest call that begins there gives the name.
    let mut starts: Vec<(usize, String)> = Vec::new();
    for (index, call) in program.calls.iter().enumerate() {
        let start = call.nodes.start as usize;
        let is_new = starts.iter().rev().take(64).all(|(known, _)| *known != start);
        if start > 0 && !call.nodes.is_empty() && is_new {
            starts.push((start, call_path(program, tracer::CallId(index as u32))));
        }
    }
    let name = |cut: usize| {
        let call = starts.iter().find(|(start, _)| *start == cut).map(|(_, name)| name.clone());
        call.unwrap_or_else(|| operator_path(program, tracer::NodeId(cut as u32)))
    };
    let mut order: Vec<usize> = (0..cuts.len()).collect();
    order.sort_by_key(|index| cuts[*index].abs_diff(at_fault));
    let mut tries = 0;
    for moved in order {
        let low = if moved == 0 { 0 } else { cuts[moved - 1] };
        let high = cuts.get(moved + 1).copied().unwrap_or(program.nodes.len());
        let mut candidates: Vec<&(usize, String)> = starts
            .iter()
            .filter(|(start, _)| *start > low && *start < high && *start != cuts[moved])
            .collect();
        candidates.sort_by_key(|(start, _)| start.abs_diff(cuts[moved]));
        for (_, candidate) in candidates {
            tries += 1;
            if tries > MAX_TRIES {
                return None;
            }
            let others = cuts.iter().enumerate();
            let blocks: Vec<String> = others
                .map(|(index, cut)| if index == moved { candidate.clone() } else { name(*cut) })
                .collect();
            let Ok(trial) = cut_before(program, &blocks) else { continue };
            if cut(program, &trial, names, options).is_ok() {
                return Some(blocks);
            }
        }
    }
    None
}
