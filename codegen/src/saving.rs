//! Blocks that save no activations for the backward pass: recomputed, or held in host memory.
//!
//! A recomputed block may keep results that are dear to compute: their lines begin with `with kept:` then.
//! Such a block becomes a method of the Python stage. It is refused if recomputation would give other results: if a
//! tensor that the block reads is changed in place later, if it changes a buffer that it reads, if nothing would be saved, or if it
//! is scripted.
//!
//! O(blocks × operands of the stage).

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use schema::RecomputeUnit;
use tracer::{Node, Operand, Program, Role, TensorId, ValueId};

use crate::{
    alias::Classes,
    blocks::Paths,
    fold::Folded,
    manifest::About,
    nodes::{leaves, mutated_arguments, split, values_of},
    pipeline::{Carried, Form, Stage, Step},
};

/// A block that saves no activations.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Segment {
    /// Path of the block.
    pub path: String,
    /// Its steps.
    pub steps: Range<usize>,
    /// Its activations are recomputed.
    pub recompute: bool,
    /// Its dear results are kept, and only the rest is recomputed.
    pub light: bool,
    /// Its activations are moved to host memory.
    pub offload: bool,
    /// Its inputs.
    pub inputs: Vec<ValueId>,
    /// Its outputs.
    pub outputs: Vec<ValueId>,
    /// Buffers that it reads or writes.
    pub buffers: Vec<TensorId>,
}

/// Returns the blocks of a stage that save no activations, in order, and why others cannot.
pub(crate) fn segments(
    program: &Program,
    index: usize,
    stage: &Stage,
    folded: &Folded,
    about: &About,
) -> (Vec<Segment>, Vec<String>) {
    let mut wanted: BTreeMap<&str, (bool, bool)> = BTreeMap::new();
    // A stage that is recomputed as a whole is so by the training loop: it has no method for a part.
    let is_by_block = about.recompute_unit.get(index).is_none_or(RecomputeUnit::is_block);
    for path in about.recompute.get(index).into_iter().flatten().filter(|_| is_by_block) {
        wanted.entry(path).or_default().0 = true;
    }
    for path in about.offload.get(index).into_iter().flatten() {
        wanted.entry(path).or_default().1 = true;
    }
    if wanted.is_empty() {
        return (Vec::new(), Vec::new());
    }
    let (paths, dear) = (Paths::new(program), dear(stage, about));
    let mut classes = Classes::new(program);
    let mut found: Vec<Segment> = Vec::new();
    let mut refused = Vec::new();
    for (path, (recompute, offload)) in wanted {
        match segment(program, stage, folded, &paths, &mut classes, path) {
            Ok(segment) => {
                let light =
                    about.recompute_light.get(index).is_some_and(|all| all.iter().any(|own| own == path));
                if light && dear.range(segment.steps.clone()).next().is_none() {
                    refused
                        .push(format!("`{path}` is recomputed with its products: none is known to be dear"));
                }
                found.push(Segment { recompute, light, offload, ..segment });
            }
            Err(reason) => {
                let what = if recompute { "recomputed" } else { "kept in host memory" };
                refused.push(format!("`{path}` is not {what} in the backward pass: {reason}"));
            }
        }
    }
    // A block inside another is part of it.
    found.sort_by_key(|segment| (segment.steps.start, std::cmp::Reverse(segment.steps.end)));
    let mut end = 0;
    found.retain(|segment| {
        let is_apart = segment.steps.start >= end;
        end = end.max(segment.steps.end);
        is_apart
    });
    (found, refused)
}

/// Returns the positions of a stage's operators whose results are dear.
pub(crate) fn dear(stage: &Stage, about: &About) -> BTreeSet<usize> {
    let is_dear = |step: &Step| match step {
        Step::Run { node, .. } => about.dear.contains(node),
        Step::Clone(_) | Step::Unbox(_) => false,
    };
    (0..stage.steps.len()).filter(|position| is_dear(&stage.steps[*position])).collect()
}

fn segment(
    program: &Program,
    stage: &Stage,
    folded: &Folded,
    paths: &Paths<'_>,
    classes: &mut Classes,
    path: &str,
) -> Result<Segment, &'static str> {
    let range = paths.find(path).ok_or("the model has no such block")?;
    let node_at = |position: usize| match stage.steps[position] {
        Step::Run { node, .. } => Some(node.index()),
        Step::Clone(_) | Step::Unbox(_) => None,
    };
    let inside = |position: &usize| node_at(*position).is_some_and(|node| range.contains(&node));
    let first = (0..stage.steps.len()).find(inside).ok_or("the stage runs nothing of it")?;
    let end = first + (first..stage.steps.len()).take_while(inside).count();
    let mut made = BTreeSet::new();
    let mut inputs = BTreeSet::new();
    let mut buffers = BTreeSet::new();
    let (mut read, mut written) = (BTreeSet::new(), BTreeSet::new());
    for position in first..end {
        let Some(index) = node_at(position) else { continue };
        let node = &program.nodes[index];
        if node.operator == "prim::Opaque" {
            return Err("it holds scripted control flow");
        }
        if !folded.skips(tracer::NodeId(index as u32)) {
            let changed = if is_statistics(node) { Vec::new() } else { mutated_arguments(node) };
            for (position, argument) in node.arguments.iter().enumerate() {
                let taken = values_of(&argument.operand).into_iter().map(|value| folded.get(value));
                inputs.extend(taken.filter(|value| !made.contains(value)));
                let is_changed = changed.contains(&position);
                leaves(&argument.operand, &mut |leaf| {
                    let class = classes.of(leaf);
                    if is_changed {
                        written.insert(class)
                    } else {
                        read.insert(class)
                    };
                    if let Operand::Tensor(tensor) = leaf
                        && program.tensors[tensor.index()].role == Role::Buffer
                    {
                        buffers.insert(*tensor);
                    }
                });
            }
        }
        made.extend(node.outputs.iter().copied());
    }
    let mut read_later = BTreeSet::new();
    for position in end..stage.steps.len() {
        let Some(index) = node_at(position) else { continue };
        for argument in &program.nodes[index].arguments {
            read_later.extend(values_of(&argument.operand).into_iter().map(|value| folded.get(value)));
        }
    }
    read_later.extend(stage.outputs.iter().filter_map(|port| match port.carried {
        Carried::Value(value) => Some(value),
        Carried::Tensor(_) => None,
    }));
    let outputs: Vec<ValueId> = made.into_iter().filter(|value| read_later.contains(value)).collect();
    if outputs.is_empty() {
        return Err("nothing reads its results");
    }
    check_writes(program, stage, classes, first, &inputs)?;
    let class = |buffer: &TensorId, classes: &mut Classes| classes.of(&Operand::Tensor(*buffer));
    if buffers
        .iter()
        .map(|buffer| class(buffer, classes))
        .any(|one| written.contains(&one) && read.contains(&one))
    {
        return Err("it reads a buffer that it changes");
    }
    Ok(Segment {
        path: path.to_string(),
        steps: first..end,
        recompute: false,
        light: false,
        offload: false,
        inputs: inputs.into_iter().collect(),
        outputs,
        buffers: buffers.into_iter().collect(),
    })
}

/// Tells whether an operator changes statistics alone, which no gradient needs.
fn is_statistics(node: &Node) -> bool {
    split(&node.operator).1.ends_with("_norm")
}

/// Checks that the block's inputs are still unchanged when it is recomputed.
fn check_writes(
    program: &Program,
    stage: &Stage,
    classes: &mut Classes,
    first: usize,
    inputs: &BTreeSet<ValueId>,
) -> Result<(), &'static str> {
    let read: BTreeSet<usize> = inputs.iter().map(|value| classes.of(&Operand::Value(*value))).collect();
    for step in &stage.steps[first..] {
        let Step::Run { node, form: Form::AsWritten, .. } = step else { continue };
        let node = &program.nodes[node.index()];
        for argument in mutated_arguments(node).into_iter().filter(|_| !is_statistics(node)) {
            let mut is_read = false;
            leaves(&node.arguments[argument].operand, &mut |leaf| {
                is_read |= read.contains(&classes.of(leaf));
            });
            if is_read {
                return Err("its inputs are changed in place afterwards");
            }
        }
    }
    Ok(())
}
