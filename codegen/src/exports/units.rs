//! The units at which other frameworks cut: direct children of the root, and members of numbered containers.

use tracer::{CallId, ModuleId, Program};

use crate::pipeline::Assignment;

/// One piece that other frameworks keep whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Unit {
    /// Path of its module.
    pub path: String,
    /// Last part of its class.
    pub class: String,
    /// The list or sequence of which it is a numbered member.
    pub container: Option<String>,
    /// Its first node.
    pub first: usize,
    /// Its number of nodes.
    pub nodes: usize,
    /// Stage that runs most of it.
    pub stage: u32,
    /// False if the cut goes through it.
    pub is_whole: bool,
}

/// Returns the units that run, in order of first use.
pub fn units(program: &Program, assignment: &Assignment) -> Vec<Unit> {
    let root = top(program);
    let mut modules: Vec<(ModuleId, Option<String>)> = Vec::new();
    let Some(root_module) = program.modules.get(root.index()) else { return Vec::new() };
    for child in root_module.children.values() {
        collect(program, *child, &mut modules, 0);
    }
    let mut found: Vec<Unit> = modules
        .into_iter()
        .filter_map(|(module, container)| unit(program, assignment, module, container))
        .collect();
    found.sort_by_key(|unit| unit.first);
    found
}

/// Returns the units of torchtitan's splitter, in order of first use: children of the root, and members of those that
/// are a `ModuleList` or `ModuleDict`; a `Sequential` stays whole.
pub fn titan_units(program: &Program, assignment: &Assignment) -> Vec<Unit> {
    let Some(root) = program.modules.first() else { return Vec::new() };
    let mut found = Vec::new();
    for id in root.children.values() {
        let module = &program.modules[id.index()];
        let is_opened = matches!(module.class.rsplit('.').next(), Some("ModuleList" | "ModuleDict"));
        let members: Vec<ModuleId> =
            if is_opened { module.children.values().copied().collect() } else { vec![*id] };
        let container = is_opened.then(|| module.path.clone());
        found.extend(members.into_iter().filter_map(|id| unit(program, assignment, id, container.clone())));
    }
    found.sort_by_key(|unit| unit.first);
    found
}

/// Skips wrappers that hold only one module: `model.transformer` rather than `model`.
fn top(program: &Program) -> ModuleId {
    let mut at = ModuleId(0);
    for _ in 0..8 {
        let Some(module) = program.modules.get(at.index()) else { break };
        let is_wrapper =
            module.children.len() == 1 && module.parameters.is_empty() && module.buffers.is_empty();
        match module.children.values().next() {
            Some(child) if is_wrapper => at = *child,
            _ => break,
        }
    }
    at
}

/// Collects units: containers are opened, and so are modules with a container, such as an encoder with its `layers`.
fn collect(program: &Program, id: ModuleId, found: &mut Vec<(ModuleId, Option<String>)>, depth: usize) {
    let module = &program.modules[id.index()];
    if is_list(program, id) {
        found.extend(module.children.values().map(|child| (*child, Some(module.path.clone()))));
        return;
    }
    let holds_list = module
        .children
        .values()
        .any(|child| is_list(program, *child) || holds_layers(program, *child, depth));
    if holds_list && depth < 3 && module.parameters.is_empty() {
        for child in module.children.values() {
            collect(program, *child, found, depth + 1);
        }
        return;
    }
    found.push((id, None));
}

/// Tells whether a list of modules is further down: BERT's `encoder.layer`.
fn holds_layers(program: &Program, id: ModuleId, depth: usize) -> bool {
    let children = program.modules[id.index()].children.values();
    depth < 3
        && children.into_iter().any(|child| {
            let class = program.modules[child.index()].class.rsplit('.').next();
            (class == Some("ModuleList") && is_list(program, *child))
                || holds_layers(program, *child, depth + 1)
        })
}

fn is_list(program: &Program, id: ModuleId) -> bool {
    let module = &program.modules[id.index()];
    module.children.len() > 1
        && module.children.keys().enumerate().all(|(index, name)| *name == index.to_string())
        && module.parameters.is_empty()
}

fn unit(program: &Program, assignment: &Assignment, id: ModuleId, container: Option<String>) -> Option<Unit> {
    let module = &program.modules[id.index()];
    let prefix = format!("{}.", module.path);
    let mut counts: Vec<usize> = vec![0; assignment.stages()];
    let mut first = usize::MAX;
    for call in &program.calls {
        let path = &program.modules[call.module.index()].path;
        if *path != module.path && !path.starts_with(&prefix) {
            continue;
        }
        // Counts a call's nodes once, at the highest call below this module.
        let parent_is_below = call.parent.is_some_and(|parent| {
            let path = &program.modules[program.calls[parent.index()].module.index()].path;
            *path == module.path || path.starts_with(&prefix)
        });
        if parent_is_below {
            continue;
        }
        for node in call.nodes.start as usize..(call.nodes.end as usize).min(assignment.stage_of.len()) {
            counts[assignment.stage_of[node] as usize] += 1;
            first = first.min(node);
        }
    }
    let most = counts.iter().enumerate().max_by_key(|(index, count)| (**count, usize::MAX - index))?;
    if *most.1 == 0 {
        return None;
    }
    Some(Unit {
        path: module.path.clone(),
        class: module.class.rsplit('.').next().unwrap_or("").to_string(),
        container,
        first,
        nodes: counts.iter().sum(),
        stage: most.0 as u32,
        is_whole: counts.iter().filter(|count| **count > 0).count() == 1,
    })
}

/// Returns the highest module that begins at a node and is called once, if there is one.
pub fn module_at(program: &Program, node: usize) -> Option<String> {
    let mut times: std::collections::HashMap<ModuleId, usize> = std::collections::HashMap::new();
    for call in &program.calls {
        *times.entry(call.module).or_insert(0) += 1;
    }
    let begins = |call: &&tracer::Call| {
        call.nodes.start as usize == node
            && !call.nodes.is_empty()
            && call.parent.is_some()
            && times[&call.module] == 1
    };
    program.calls.iter().find(begins).map(|call| program.modules[call.module.index()].path.clone())
}

/// Returns the module whose begin is nearest to a node.
pub fn nearest_module(program: &Program, node: usize) -> Option<String> {
    let starts =
        (0..program.calls.len() as u32).map(CallId).map(|id| program.calls[id.index()].nodes.start as usize);
    let mut starts: Vec<usize> = starts.filter(|start| *start > 0).collect();
    starts.sort_by_key(|start| start.abs_diff(node));
    starts.dedup();
    starts.into_iter().take(64).find_map(|start| module_at(program, start))
}
