//! From a plan's blocks to nodes.
//!
//! A block is a call: `layer1.0`, `layer1.0.relu (call 2)`. An operator between the calls of a block is
//! `layer1.0/add_`, and `layer1.0/add_ (2)` the second one of that name. Between named blocks, unnamed loose operators
//! belong with the operator before them; operators of a block that is not named are an error.

use std::collections::HashMap;

use tracer::{CallId, NodeId, Program};

use crate::{error::CutError, location, pipeline::Assignment};

/// Returns the unique path of a call: the module's, with the number of the call when it is not the first.
pub fn call_path(program: &Program, call: CallId) -> String {
    let call = &program.calls[call.index()];
    location::numbered(&program.modules[call.module.index()].path, call.ordinal)
}

/// Returns the unique path of an operator: its call's, and its own name.
pub fn operator_path(program: &Program, node: NodeId) -> String {
    let content = &program.nodes[node.index()];
    let start = program.calls[content.call.index()].nodes.start as usize;
    let until = program.nodes.get(start..=node.index()).unwrap_or_default();
    let mut paths = schema::OperatorPaths::default();
    let places = until.iter().filter(|other| other.call == content.call);
    let place = places.map(|node| paths.count(node.call.0, &node.operator)).last();
    schema::operator_path(&call_path(program, content.call), &content.operator, place.unwrap_or(1))
}

/// Assigns nodes to stages by the blocks that each stage names.
///
/// # Errors
/// Every block that is unknown, named twice, or in no stage.
pub fn assign(program: &Program, stages: &[Vec<String>]) -> Result<Assignment, Vec<CutError>> {
    let paths = Paths::new(program);
    let mut errors = Vec::new();
    let mut owner: Vec<Option<u32>> = vec![None; program.nodes.len()];
    let mut claimed: HashMap<&str, u32> = HashMap::new();
    for (stage, blocks) in stages.iter().enumerate() {
        let stage = stage as u32;
        for path in blocks {
            if let Some(first) = claimed.insert(path, stage) {
                errors.push(CutError::Twice { path: path.clone(), first, second: stage });
                continue;
            }
            let Some(range) = paths.find(path) else {
                errors.push(CutError::UnknownBlock {
                    stage,
                    path: path.clone(),
                    similar: paths.similar(path),
                });
                continue;
            };
            let mut clash = None;
            for slot in &mut owner[range] {
                match slot {
                    Some(first) => clash = Some(*first),
                    None => *slot = Some(stage),
                }
            }
            if let Some(first) = clash {
                errors.push(CutError::Twice { path: path.clone(), first, second: stage });
            }
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let opened = opened(program, &owner);
    fill(program, &mut owner, &opened);
    let missing = missing(program, &owner, &opened);
    if !missing.is_empty() {
        return Err(missing);
    }
    let stage_of = owner.into_iter().map(|owner| owner.expect("every operator has a stage by now")).collect();
    Ok(Assignment { stage_of, labels: stages.to_vec() })
}

/// Cuts before each of the given blocks.
///
/// # Errors
/// If a block is unknown or the order is not that of the model.
pub fn cut_before(program: &Program, blocks: &[String]) -> Result<Assignment, Vec<CutError>> {
    let paths = Paths::new(program);
    let mut errors = Vec::new();
    let mut cuts: Vec<(usize, &String)> = Vec::new();
    for (index, path) in blocks.iter().enumerate() {
        match paths.find(path) {
            Some(range) => cuts.push((range.start, path)),
            None => errors.push(CutError::UnknownBlock {
                stage: index as u32 + 1,
                path: path.clone(),
                similar: paths.similar(path),
            }),
        }
    }
    cuts.sort();
    for (position, (start, path)) in cuts.iter().enumerate() {
        let same = position.checked_sub(1).map(|before| cuts[before]).filter(|(other, _)| other == start);
        if *start == 0 || same.is_some() {
            let other = same.map(|(_, path)| path.clone());
            errors.push(CutError::NothingBetween { path: (*path).clone(), other });
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let positions: Vec<usize> = cuts.iter().map(|cut| cut.0).collect();
    Ok(with_labels(program, Assignment::at(program.nodes.len(), &positions)))
}

/// Cuts into stages with the same number of operators.
pub fn even(program: &Program, stages: usize) -> Assignment {
    let nodes = program.nodes.len();
    let cuts: Vec<usize> = (1..stages).map(|stage| stage * nodes / stages).collect();
    with_labels(program, Assignment::at(nodes, &cuts))
}

/// Names the blocks of contiguous stages: the highest calls that are entirely in one stage.
pub fn with_labels(program: &Program, mut assignment: Assignment) -> Assignment {
    for (stage, label) in assignment.labels.iter_mut().enumerate() {
        let inside = |range: &std::ops::Range<u32>| {
            let nodes = assignment.stage_of.get(range.start as usize..range.end as usize).unwrap_or_default();
            !nodes.is_empty() && nodes.iter().all(|owner| *owner as usize == stage)
        };
        let mut covered = 0;
        for (index, call) in program.calls.iter().enumerate() {
            if call.nodes.start >= covered && inside(&call.nodes) {
                let path = call_path(program, CallId(index as u32));
                if !path.is_empty() {
                    label.push(path);
                }
                covered = call.nodes.end;
            }
        }
    }
    assignment
}

/// A stage, and the block of its list that an operator is counted with.
pub type Owner<'a> = (u32, &'a str);

/// Returns each operator's stage and the block that it is counted with; some operators may have none.
///
/// Assigns stages as [`assign`], but a block that is named twice belongs to the last stage that names it, and unnamed
/// ones have no stage.
///
/// # Errors
/// The first stage that names an unknown block, and the block.
pub fn owners<'a>(
    program: &Program,
    stages: impl IntoIterator<Item = &'a [String]>,
) -> Result<Vec<Option<Owner<'a>>>, Owner<'a>> {
    let paths = Paths::new(program);
    let mut owner = vec![None; program.nodes.len()];
    for (stage, blocks) in (0..).zip(stages) {
        for path in blocks {
            let range = paths.find(path).ok_or((stage, path.as_str()))?;
            owner[range].fill(Some((stage, path.as_str())));
        }
    }
    let opened = opened(program, &owner);
    fill(program, &mut owner, &opened);
    Ok(owner)
}

/// Returns for each call whether any operator in it is named.
fn opened<T>(program: &Program, owner: &[Option<T>]) -> Vec<bool> {
    let is_opened = |call: &tracer::Call| {
        let nodes = owner.get(call.nodes.start as usize..call.nodes.end as usize).unwrap_or_default();
        nodes.iter().any(Option::is_some)
    };
    program.calls.iter().map(is_opened).collect()
}

/// Assigns unnamed operators between named blocks to the stage of their neighbour.
fn fill<T: Copy>(program: &Program, owner: &mut [Option<T>], opened: &[bool]) {
    let mut before = owner.iter().flatten().next().copied();
    for (node, slot) in program.nodes.iter().zip(owner) {
        match slot {
            Some(stage) => before = Some(*stage),
            None if opened[node.call.index()] => *slot = before,
            None => {}
        }
    }
}

/// Returns the highest calls that are in no stage.
fn missing(program: &Program, owner: &[Option<u32>], opened: &[bool]) -> Vec<CutError> {
    let mut missing: Vec<(CallId, usize)> = Vec::new();
    for (node, _) in program.nodes.iter().zip(owner).filter(|(_, owner)| owner.is_none()) {
        let mut call = node.call;
        while let Some(parent) = program.calls[call.index()].parent.filter(|parent| !opened[parent.index()]) {
            call = parent;
        }
        match missing.last_mut() {
            Some((last, count)) if *last == call => *count += 1,
            _ => missing.push((call, 1)),
        }
    }
    let error = |(call, operators)| {
        let path = call_path(program, call);
        CutError::Missing { path: if path.is_empty() { "the whole model".into() } else { path }, operators }
    };
    missing.into_iter().map(error).collect()
}

/// Paths of a program.
pub(crate) struct Paths<'p> {
    program: &'p Program,
    calls: HashMap<String, CallId>,
    operators: std::cell::OnceCell<HashMap<String, NodeId>>,
}

impl<'p> Paths<'p> {
    pub fn new(program: &'p Program) -> Self {
        let mut calls = HashMap::new();
        for index in 0..program.calls.len() {
            let id = CallId(index as u32);
            calls.entry(call_path(program, id)).or_insert(id);
        }
        Self { program, calls, operators: std::cell::OnceCell::new() }
    }

    /// Returns the nodes of a block or an operator.
    pub fn find(&self, path: &str) -> Option<std::ops::Range<usize>> {
        let range = match self.calls.get(path) {
            Some(call) => {
                let range = &self.program.calls[call.index()].nodes;
                range.start as usize..range.end as usize
            }
            None => {
                let node = self.operators().get(path)?.index();
                node..node + 1
            }
        };
        (range.end <= self.program.nodes.len() && range.start <= range.end).then_some(range)
    }

    /// Returns all operators by path; O(nodes).
    fn operators(&self) -> &HashMap<String, NodeId> {
        self.operators.get_or_init(|| {
            let mut paths = schema::OperatorPaths::default();
            let nodes = self.program.nodes.iter().enumerate();
            let named = nodes.map(|(index, node)| {
                let call = call_path(self.program, node.call);
                (paths.next(node.call.0, &call, &node.operator), NodeId(index as u32))
            });
            named.collect()
        })
    }

    /// Returns the path that differs least; O(paths × length²), and only when something is wrong.
    fn similar(&self, wanted: &str) -> Option<String> {
        if wanted.len() > 200 {
            return None;
        }
        let paths = self.calls.keys().filter(|path| !path.is_empty() && path.len() <= 200);
        let scored = paths.map(|path| (strsim::damerau_levenshtein(path, wanted), path)).min()?;
        (scored.0 <= wanted.len() / 2 + 1).then(|| scored.1.clone())
    }
}
