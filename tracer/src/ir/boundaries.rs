//! Inputs and results of each call, where the text does not state them.
//!
//! An inlined graph has no calls; a call found again from scopes takes the values that its nodes read from
//! outside and gives the values that are read after it.

use crate::{CallId, Operand, Program, ValueId};

/// Fills in the arguments and outputs of the calls that have none. O(uses × depth of calls).
pub fn fill(program: &mut Program) {
    let mut crossings: Vec<Crossing> = vec![Crossing::default(); program.calls.len()];
    for (index, node) in program.nodes.iter().enumerate() {
        for argument in &node.arguments {
            each_value(&argument.operand, &mut |value| {
                cross(program, &mut crossings, value, Some(index as u32));
            });
        }
    }
    each_value(&program.output, &mut |value| cross(program, &mut crossings, value, None));
    let inputs = program.inputs.iter().copied().map(Operand::Value).collect();
    let output = program.output.clone();
    for (call, crossing) in program.calls.iter_mut().zip(crossings) {
        if call.arguments.is_empty() {
            call.arguments = crossing.read.into_iter().map(Operand::Value).collect();
        }
        if call.output == Operand::default() {
            let mut given: Vec<Operand> = crossing.given.into_iter().map(Operand::Value).collect();
            call.output = match given.len() {
                0 => Operand::default(),
                1 => given.remove(0),
                _ => Operand::Tuple(given),
            };
        }
    }
    if let Some(root) = program.calls.first_mut() {
        root.arguments = inputs;
        root.output = output;
    }
}

#[derive(Clone, Default)]
struct Crossing {
    read: indexmap::IndexSet<ValueId>,
    given: indexmap::IndexSet<ValueId>,
}

fn each_value(operand: &Operand, visit: &mut impl FnMut(ValueId)) {
    match operand {
        Operand::Value(value) => visit(*value),
        Operand::Tensor(_) | Operand::Constant(_) => {}
        Operand::List(items) | Operand::Tuple(items) => items.iter().for_each(|item| each_value(item, visit)),
        Operand::Dict(pairs) => {
            for (key, value) in pairs {
                each_value(key, visit);
                each_value(value, visit);
            }
        }
    }
}

/// Notes a use of `value` by node `user`, or by the model's output, at every call boundary between them.
fn cross(program: &Program, crossings: &mut [Crossing], value: ValueId, user: Option<u32>) {
    let producer = program.values[value.index()].producer;
    let holds = |call: CallId, node: Option<u32>| {
        node.is_some_and(|node| program.calls[call.index()].nodes.contains(&node))
    };
    let mut reader = user.map(|node| program.nodes[node as usize].call);
    while let Some(call) = reader.filter(|call| !holds(*call, producer.map(|node| node.0))) {
        crossings[call.index()].read.insert(value);
        reader = program.calls[call.index()].parent;
    }
    let mut giver = producer.map(|node| program.nodes[node.index()].call);
    while let Some(call) = giver.filter(|call| !holds(*call, user)) {
        crossings[call.index()].given.insert(value);
        giver = program.calls[call.index()].parent;
    }
}
