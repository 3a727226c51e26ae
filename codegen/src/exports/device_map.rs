//! Hugging Face's `device_map`: every parameter and buffer is covered, by the highest module that lies on one device.
//!
//! accelerate moves what goes into a placed module, and nothing else: an operator of a module whose children are placed apart gets its
//! values where they are. A map under which such an operator would meet values of two devices cannot run, though it covers
//! everything; there the module is placed whole.
//!
//! O(modules made whole × operators).

use std::collections::{BTreeMap, BTreeSet};

use tracer::{Operand, Program, Role};

use super::Export;
use crate::{
    names::comment,
    nodes::{Kind, kinds, leaves},
    pipeline::{Assignment, Pipeline},
};

/// Modules that are made whole before giving up.
const MAX_WHOLE: usize = 1000;

/// Returns the map from modules to ranks.
pub fn device_map(
    program: &Program,
    assignment: &Assignment,
    pipeline: &Pipeline,
    ranks: &[usize],
) -> Export {
    let rank = |stage: u32| ranks.get(stage as usize).copied().unwrap_or(stage as usize);
    let mut notes = Vec::new();
    let mut rank_of: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, stage) in pipeline.stages.iter().enumerate() {
        for id in &stage.tensors {
            rank_of.entry(program.tensors[id.index()].path.as_str()).or_insert(rank(index as u32));
        }
    }
    for tied in &pipeline.tied {
        let path = &program.tensors[tied.holders[0].1.index()].path;
        notes.push(format!("`{}` is in several stages, here it is on one device", comment(path)));
    }
    let kinds = kinds(program);
    for _ in 0..MAX_WHOLE {
        let map = highest(&rank_of);
        let Some((module, operator)) = clash(program, &kinds, &map, rank(0)) else { break };
        let prefix = format!("{module}.");
        if module.is_empty() || !rank_of.keys().any(|path| path.starts_with(&prefix)) {
            let whose =
                if module.is_empty() { "the model".into() } else { format!("`{}`", comment(&module)) };
            notes.push(format!(
                "{whose} itself gives values of several devices to `{operator}`, which accelerate does not move"
            ));
            break;
        }
        let home = busiest(program, assignment, &module, &rank);
        rank_of.iter_mut().filter(|(path, _)| path.starts_with(&prefix)).for_each(|(_, rank)| *rank = home);
        notes.push(format!("`{}` is cut by the plan, here it is whole on device {home}", comment(&module)));
    }
    let map = highest(&rank_of);
    let is_loose =
        |tensor: &tracer::Tensor| tensor.role == Role::Parameter && map.contains_key(tensor.path.as_str());
    if program.tensors.iter().any(is_loose) {
        notes.push("some parameters are placed by themselves because their module is cut".into());
    }
    let mut ordered: Vec<(&str, usize)> = map.into_iter().collect();
    ordered.sort_by_key(|(path, rank)| (*rank, *path));
    let json = |text: &str| serde_json::Value::from(text).to_string();
    let lines: Vec<String> = ordered.iter().map(|(path, rank)| format!("  {}: {rank}", json(path))).collect();
    let text = format!("{{\n{}\n}}\n", lines.join(",\n"));
    Export { path: "device_map.json", target: "Hugging Face accelerate and transformers", notes, text }
}

/// Covers tensors by the highest modules that lie on one device.
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
    let placed = |path: &str| {
        let mut at = path;
        loop {
            match (map.get(at), at.rsplit_once('.')) {
                (Some(rank), _) => return Some(*rank),
                (None, Some((parent, _))) => at = parent,
                (None, None) => return None,
            }
        }
    };
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

/// Returns the device that runs most of a module.
fn busiest(program: &Program, assignment: &Assignment, module: &str, rank: &dyn Fn(u32) -> usize) -> usize {
    let prefix = format!("{module}.");
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    for (node, stage) in program.nodes.iter().zip(&assignment.stage_of) {
        let path = &program.modules[program.calls[node.call.index()].module.index()].path;
        if path == module || path.starts_with(&prefix) {
            *counts.entry(rank(*stage)).or_default() += 1;
        }
    }
    let most = counts.into_iter().max_by_key(|(rank, count)| (*count, std::cmp::Reverse(*rank)));
    most.map_or(0, |(rank, _)| rank)
}
