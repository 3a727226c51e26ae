//! Hugging Face's `device_map`: it covers every parameter and buffer, each by the highest module that is on one device.
//!
//! accelerate only moves the inputs of placed modules: an operator of a module whose children are on different devices
//! gets its values where they are. A map under which such an operator would get values of two devices cannot run,
//! although it covers everything; then none is written.

use std::collections::{BTreeMap, BTreeSet};

use tracer::{Operand, Program};

use super::{Export, Made, Subject};
use crate::{
    names::comment,
    nodes::{Kind, kinds, leaves},
};

/// Returns the map from modules to ranks.
pub(super) fn device_map(subject: &Subject<'_>) -> Export {
    Export { path: "device_map.json", target: "Hugging Face accelerate (`device_map`)", made: map(subject) }
}

fn map(Subject { program, assignment, pipeline, terms, .. }: &Subject<'_>) -> Result<Made, String> {
    terms.whole_layers()?;
    if terms.replicas()? > 1 {
        return Err("the plan has replicas, and a map describes one copy of the model".into());
    }
    if terms.n_ranks() == 1 {
        return Err("the plan has one device: there is nothing to map".into());
    }
    let rank = |stage: u32| terms.ranks.get(stage as usize).copied().unwrap_or(stage as usize);
    let mut rank_of: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, stage) in pipeline.stages.iter().enumerate() {
        for id in &stage.tensors {
            rank_of.entry(program.tensors[id.index()].path.as_str()).or_insert(rank(index as u32));
        }
    }
    let map = highest(&rank_of);
    if let Some((module, operator)) = clash(program, &kinds(program), &map, rank(0)) {
        let whose =
            if module.is_empty() { "the model itself".into() } else { format!("`{}`", comment(&module)) };
        return Err(format!(
            "{whose} passes values of several devices to `{operator}`, and accelerate only moves the inputs of modules that are on \
             one device"
        ));
    }
    if let Some(module) = displaced(program, &map, |node| rank(assignment.stage_of[node])) {
        return Err(format!(
            "`{}` is cut by the plan, but a module runs entirely on the device of its parameters",
            comment(&module)
        ));
    }
    let mut ordered: Vec<(&str, usize)> = map.into_iter().collect();
    ordered.sort_by_key(|(path, rank)| (*rank, *path));
    let json = |text: &str| serde_json::Value::from(text).to_string();
    let lines: Vec<String> = ordered.iter().map(|(path, rank)| format!("  {}: {rank}", json(path))).collect();
    Ok(Made { notes: Vec::new(), text: format!("{{\n{}\n}}\n", lines.join(",\n")) })
}

/// Covers tensors by the highest modules that are on one device.
fn highest<'p>(rank_of: &BTreeMap<&'p str, usize>) -> BTreeMap<&'p str, usize> {
    let mut below: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for (path, rank) in rank_of {
        let mut at = *path;
        while let Some((parent, _)) = at.rsplit_once('.') {
            below.entry(parent).or_default().insert(*rank);
            at = parent;
        }
    }
    let mut map = BTreeMap::new();
    for (path, rank) in rank_of {
        let mut best = *path;
        let mut at = *path;
        while let Some((parent, _)) = at.rsplit_once('.') {
            if below[parent].len() == 1 {
                best = parent;
            }
            at = parent;
        }
        map.insert(best, *rank);
    }
    map
}

/// Finds the first operator that would get values of two devices: its module, and its name.
fn clash(
    program: &Program,
    kinds: &[Kind],
    map: &BTreeMap<&str, usize>,
    first: usize,
) -> Option<(String, String)> {
    let placed = |path: &str| placed(map, path);
    // The model's inputs are moved to the first device.
    let mut device: Vec<Option<usize>> = vec![None; program.values.len()];
    program.inputs.iter().for_each(|input| device[input.index()] = Some(first));
    for node in &program.nodes {
        let path = &program.modules[program.calls[node.call.index()].module.index()].path;
        let mut found = BTreeSet::new();
        let own = placed(path);
        match own {
            Some(rank) => drop(found.insert(rank)),
            None => {
                for argument in &node.arguments {
                    leaves(&argument.operand, &mut |leaf| match leaf {
                        Operand::Value(value) if kinds[value.index()] == Kind::Tensor => {
                            found.extend(device[value.index()]);
                        }
                        Operand::Tensor(tensor) => {
                            found.extend(placed(&program.tensors[tensor.index()].path));
                        }
                        _ => {}
                    });
                }
            }
        }
        if found.len() > 1 {
            return Some((path.clone(), node.operator.clone()));
        }
        node.outputs.iter().for_each(|output| device[output.index()] = found.first().copied());
    }
    None
}

/// Returns the device of a path, by itself or by a module above it.
fn placed(map: &BTreeMap<&str, usize>, path: &str) -> Option<usize> {
    let mut at = path;
    loop {
        match (map.get(at), at.rsplit_once('.')) {
            (Some(rank), _) => return Some(*rank),
            (None, Some((parent, _))) => at = parent,
            (None, None) => return None,
        }
    }
}

/// Finds the first module on another device than the plan has for one of its operators.
fn displaced(
    program: &Program,
    map: &BTreeMap<&str, usize>,
    planned: impl Fn(usize) -> usize,
) -> Option<String> {
    program.nodes.iter().enumerate().find_map(|(index, node)| {
        let path = &program.modules[program.calls[node.call.index()].module.index()].path;
        placed(map, path).filter(|rank| *rank != planned(index)).map(|_| path.clone())
    })
}
