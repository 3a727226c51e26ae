//! Sizes that are read from an input of the model instead of being sent.
//!
//! A stage that recomputes masks or positions may need a size of a value that it does not receive, of the embedded
//! words, for example. If the value has that size from an input of the model, or from integers computed from one, the
//! size is read from the input instead: every stage can receive it, and no number is sent.
//!
//! O([`MAX_STEPS`]) for each size that would be sent, and a second cut.

use std::borrow::Cow;

use operators::{Arithmetic, Mark, Split, find, has};
use tracer::{Constant, DType, NodeId, Operand, Program, ValueId};

use crate::{
    error::CutError,
    manifest::Facts,
    names::Names,
    nodes::{is_cheap, split},
    pipeline::{Assignment, Carried, CutOptions, Pipeline, Source},
    slice::cut,
};

/// The most operators that are followed for one size.
const MAX_STEPS: u32 = 1000;

/// Cuts a program; returns it with the sizes that are read from the model's inputs, and its stages.
///
/// # Errors
/// Every reason why the stages would not compute the program's results.
pub fn cut_near<'p>(
    program: &'p Program,
    assignment: &Assignment,
    names: &Names,
    facts: &Facts,
    options: &CutOptions,
) -> Result<(Cow<'p, Program>, Pipeline), Vec<CutError>> {
    let pipeline = cut(program, assignment, names, options)?;
    let Some(nearer) = with_sizes_of_inputs(program, &pipeline, facts) else {
        return Ok((Cow::Borrowed(program), pipeline));
    };
    // Another input of a stage must not cost more than the numbers did.
    let ports = |pipeline: &Pipeline| pipeline.stages.iter().map(|stage| stage.inputs.len()).sum::<usize>();
    match cut(&nearer, assignment, names, options) {
        Ok(other) if ports(&other) < ports(&pipeline) => Ok((Cow::Owned(nearer), other)),
        _ => Ok((Cow::Borrowed(program), pipeline)),
    }
}

/// Reads the sizes that would be sent from the model's inputs; `None` if none would be sent.
fn with_sizes_of_inputs(program: &Program, pipeline: &Pipeline, facts: &Facts) -> Option<Program> {
    let mut found: Vec<(NodeId, ValueId, usize)> = Vec::new();
    for port in pipeline.stages.iter().flat_map(|stage| &stage.inputs) {
        let (Carried::Value(value), true, Source::Stage { .. }) =
            (port.carried, port.kind.is_boxed(), port.source)
        else {
            continue;
        };
        let Some((node, value, dim)) = size_of(program, facts, value) else { continue };
        if let Some((input, dim)) = input_with(program, facts, value, dim, &mut { MAX_STEPS }) {
            found.push((node, input, dim));
        }
    }
    if found.is_empty() {
        return None;
    }
    let mut program = program.clone();
    for (node, input, dim) in found {
        let arguments = &mut program.nodes[node.index()].arguments;
        arguments[0].operand = Operand::Value(input);
        arguments[1].operand = Operand::Constant(Constant::Int(dim as i64));
    }
    Some(program)
}

/// Follows a number back to its size: the node, the sized value, and the dimension.
fn size_of(program: &Program, facts: &Facts, mut value: ValueId) -> Option<(NodeId, ValueId, usize)> {
    for _ in 0..8 {
        let id = program.values[value.index()].producer?;
        let node = &program.nodes[id.index()];
        let Operand::Value(read) = node.arguments.first()?.operand else { return None };
        match Arithmetic::of(split(&node.operator).1) {
            Arithmetic::ToInt
            | Arithmetic::ToIntImplicitly
            | Arithmetic::ToNumberImplicitly
            | Arithmetic::ToTensor => value = read,
            Arithmetic::Size => {
                let Operand::Constant(Constant::Int(dim)) = node.arguments.get(1)?.operand else {
                    return None;
                };
                let rank = shape(facts, read)?.len() as i64;
                let dim = if dim < 0 { dim + rank } else { dim };
                return (0..rank).contains(&dim).then_some((id, read, dim as usize));
            }
            _ => return None,
        }
    }
    None
}

/// Finds the input of the model, or a cheap value made of one, from which a value has a size, and its dimension.
///
/// If operands broadcast, the size of one is not the result's; if operands lead to two inputs, these may differ in
/// another run.
fn input_with(
    program: &Program,
    facts: &Facts,
    value: ValueId,
    dim: usize,
    budget: &mut u32,
) -> Option<(ValueId, usize)> {
    *budget = budget.checked_sub(1)?;
    let Some(producer) = program.values[value.index()].producer else {
        return program.inputs.contains(&value).then_some((value, dim));
    };
    let node = &program.nodes[producer.index()];
    // Integers, such as reshaped token ids, are cheaper to recompute than to transfer.
    if is_cheap(node) && is_whole(facts, value) {
        return Some((value, dim));
    }
    let (space, name) = split(&node.operator);
    let sizes = shape(facts, value)?;
    if space != "aten" || node.outputs.len() != 1 {
        return None;
    }
    let mut asked = |index: usize| match node.arguments.get(index)?.operand {
        Operand::Value(read) if shape(facts, read)?.get(dim) == sizes.get(dim) => {
            input_with(program, facts, read, dim, budget)
        }
        _ => None,
    };
    match name.trim_end_matches('_') {
        name if has(name, Mark::KeepsSizes) => asked(0),
        name if has(name, Mark::Broadcasts) && sizes[dim] > 1 => {
            let has_same_sizes = |index: &usize| match node.arguments.get(*index).map(|a| &a.operand) {
                Some(Operand::Value(read)) => shape(facts, *read) == Some(sizes),
                _ => false,
            };
            let mut found = (0..2).filter(has_same_sizes).filter_map(&mut asked);
            let first = found.next()?;
            found.all(|other| other == first).then_some(first)
        }
        name => match find(name)?.split {
            Split::Linear if dim + 1 < sizes.len() => asked(0),
            // (weight, indices, …)
            Split::Embedding if dim + 1 < sizes.len() => asked(1),
            Split::Convolution | Split::Samples if dim == 0 => asked(0),
            _ => None,
        },
    }
}

fn is_whole(facts: &Facts, value: ValueId) -> bool {
    let dtype = facts.get(value.index()).and_then(Option::as_ref).and_then(|known| known.dtype);
    matches!(
        dtype,
        Some(DType::Int64 | DType::Int32 | DType::Int16 | DType::Int8 | DType::UInt8 | DType::Bool)
    )
}

fn shape(facts: &Facts, value: ValueId) -> Option<&[u64]> {
    facts.get(value.index())?.as_ref()?.shape.as_deref().filter(|shape| !shape.is_empty())
}
