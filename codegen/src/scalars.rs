//! Restores Python numbers, which a trace stores as tensors without dimensions.
//!
//! `x * 0.5` computes in the type of `x` or, for integers, in the default type; the tensor for 0.5 in an archive is a
//! float64. Only TorchScript's optimizer treats it as a number: without it, and in Python, the result would be a
//! float64. On a GPU a tensor would also be rounded to the other operand's type first, which a number is not.

use std::borrow::Cow;

use operators::{Mark, has};
use tracer::{Constant, DType, NodeId, Operand, Program, Role, TensorId};

use crate::{manifest::Facts, nodes::split};

/// Returns the program with numbers in place of the tensors that represent them.
pub fn with_scalars<'p>(program: &'p Program, facts: &Facts) -> Cow<'p, Program> {
    let found: Vec<(NodeId, Constant)> =
        scalars(program, facts).map(|(node, _, number)| (node, number)).collect();
    let mut program = Cow::Borrowed(program);
    for (node, number) in found {
        program.to_mut().nodes[node.index()].arguments[1].operand = Operand::Constant(number);
    }
    program
}

/// Tells whether a result's type depends on a tensor being treated as a number: without its optimizer, TorchScript runs
/// such an archive in other types than the model.
pub fn needs_scalars(program: &Program, facts: &Facts) -> bool {
    scalars(program, facts).any(|(node, id, _)| {
        let (constant, first) =
            (&program.tensors[id.index()], &program.nodes[node.index()].arguments[0].operand);
        match known(program, facts, first) {
            Some((dtype, rank)) => {
                dtype != constant.dtype && (rank == Some(0) || is_wider(constant.dtype, dtype))
            }
            None => true,
        }
    })
}

/// Lists the operators whose second operand represents a Python number.
fn scalars<'p>(
    program: &'p Program,
    facts: &'p Facts,
) -> impl Iterator<Item = (NodeId, TensorId, Constant)> + 'p {
    program.nodes.iter().enumerate().filter_map(|(index, node)| {
        let ("aten", name) = split(&node.operator) else { return None };
        if !has(operators::plain(name).0, Mark::TakesNumbers) {
            return None;
        }
        let [first, second, ..] = node.arguments.as_slice() else { return None };
        let Operand::Tensor(id) = second.operand else { return None };
        let constant = program.tensors.get(id.index())?;
        // Python numbers have only these types.
        let is_number = matches!(constant.dtype, DType::Float64 | DType::Int64 | DType::Complex128);
        if constant.role != Role::Constant
            || !constant.shape.is_empty()
            || !is_number
            || second.name.is_some()
        {
            return None;
        }
        // A tensor of the model's own widens narrower types, which the recorded type of the result shows.
        let result = node.outputs.first().and_then(|output| facts.get(output.index())?.as_ref()?.dtype);
        let other = known(program, facts, &first.operand).map(|(dtype, _)| dtype);
        if result == Some(constant.dtype) && other.is_some_and(|other| other != constant.dtype) {
            return None;
        }
        Some((NodeId(index as u32), id, program.literals.get(&id)?.clone()))
    })
}

/// Returns type and rank of a tensor, if known.
fn known(program: &Program, facts: &Facts, operand: &Operand) -> Option<(DType, Option<usize>)> {
    match operand {
        Operand::Value(value) => {
            let known = facts.get(value.index())?.as_ref()?;
            Some((known.dtype?, known.shape.as_ref().map(Vec::len)))
        }
        Operand::Tensor(id) => {
            let tensor = program.tensors.get(id.index())?;
            Some((tensor.dtype, Some(tensor.shape.len())))
        }
        _ => None,
    }
}

/// Tells whether a tensor without dimensions would widen one of another type.
fn is_wider(dtype: DType, other: DType) -> bool {
    class(dtype) > class(other)
}

/// The order of torch's type promotion: booleans, integers, floating-point numbers, complex numbers.
fn class(dtype: DType) -> u8 {
    match dtype {
        DType::Bool => 0,
        DType::Complex64 | DType::Complex128 => 3,
        DType::Float64
        | DType::Float32
        | DType::Float16
        | DType::BFloat16
        | DType::Float8E4M3
        | DType::Float8E5M2 => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use tracer::ir::read_ir;

    use super::*;

    #[test]
    fn numbers_of_python_are_numbers_again() {
        let check = |operands: (&str, &str),
                     operator: &str,
                     result: &str,
                     is_number: bool,
                     is_needed: bool| {
            let (first, second) = operands;
            let text = format!(
                "graph(%x : {first}):\n  %c : {second}\n  %y : {result} = aten::{operator}(%x, %c)\n  return (%y)\n"
            );
            let program = read_ir(&text).expect("a graph");
            let facts = crate::facts(&program);
            let changed = with_scalars(&program, &facts);
            let operand = &changed.nodes[0].arguments[1].operand;
            assert_eq!(matches!(operand, Operand::Constant(_)), is_number, "{text}{operand:?}");
            assert_eq!(needs_scalars(&program, &facts), is_needed, "{text}");
        };
        let half = "Double() = prim::Constant[value={0.5}]()";
        let (long, float, scalar) =
            ("Long(2, strides=[1])", "Float(2, strides=[1])", "Float(requires_grad=0, device=cpu)");
        check((long, half), "mul", float, true, true);
        check((long, half), "div_", float, true, true);
        check((float, half), "mul", float, true, false);
        check((scalar, half), "mul", scalar, true, true);
        check(("Tensor", half), "mul", "Tensor", true, true);
        check(
            ("Half(2, strides=[1])", "Long() = prim::Constant[value={2}]()"),
            "add",
            "Half(2, strides=[1])",
            true,
            false,
        );
        // A tensor that the model stores.
        check((long, half), "mul", "Double(2, strides=[1])", false, false);
        check((long, "Float() = prim::Constant[value={0.5}]()"), "mul", float, false, false);
        check((long, "Double(1, strides=[1]) = prim::Constant[value={0.5}]()"), "mul", float, false, false);
        check((long, half), "maximum", float, false, false);
    }
}
