//! Checks a program before a graph is built, so that later steps cannot fail.

use tracer::{Operand, Program};

use crate::{
    error::{BuildError, BuildErrors},
    operand::collect,
};

/// Checks that every id in the program is valid, so that later steps cannot fail.
pub fn check(program: &Program) -> Result<(), BuildErrors> {
    let fault = |text: String| BuildErrors(vec![BuildError::Program { fault: text }]);
    if program.calls.is_empty() {
        return Err(fault("there is no call of the root module".to_string()));
    }
    let n_nodes = program.nodes.len() as u32;
    for (index, call) in program.calls.iter().enumerate() {
        let parent_ok = call.parent.is_none_or(|parent| parent.index() < index);
        let range_ok = call.nodes.start <= call.nodes.end && call.nodes.end <= n_nodes;
        let module_ok = call.module.index() < program.modules.len();
        if !parent_ok || !range_ok || !module_ok || (call.parent.is_none() != (index == 0)) {
            return Err(fault(format!("call {index} does not fit into the call tree")));
        }
    }
    if program.calls[0].nodes != (0..n_nodes) {
        return Err(fault("the root's call does not contain every operator".to_string()));
    }
    let operand_ok = |operand: &Operand| {
        let (mut values, mut tensors) = (Vec::new(), Vec::new());
        collect(operand, &mut values, &mut tensors);
        values.iter().all(|v| v.index() < program.values.len())
            && tensors.iter().all(|t| t.index() < program.tensors.len())
    };
    for (index, node) in program.nodes.iter().enumerate() {
        let ok = node.arguments.iter().all(|a| operand_ok(&a.operand))
            && node.outputs.iter().all(|v| v.index() < program.values.len())
            && node.call.index() < program.calls.len();
        if !ok {
            return Err(fault(format!("node {index}, {}, names a missing value or tensor", node.operator)));
        }
        let call = &program.calls[node.call.index()];
        if !call.nodes.contains(&(index as u32)) {
            return Err(fault(format!("node {index}, {}, is outside of its call", node.operator)));
        }
    }
    if !operand_ok(&program.output) || program.inputs.iter().any(|v| v.index() >= program.values.len()) {
        return Err(fault("inputs or outputs name a missing value or tensor".to_string()));
    }
    Ok(())
}
