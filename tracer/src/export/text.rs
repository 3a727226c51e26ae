//! The graph as text, a line for each operator: what messages point into, and what a plan knows the model by.

use std::fmt::Write;

use crate::program::{Constant, Operand, Program, Source, Span};

/// How messages name the text.
const NAME: &str = "graph";

/// Writes a program down, and gives every node and its values their places in the text.
pub(super) fn write(program: &mut Program) {
    let mut text = String::new();
    let names = |ids: &[crate::program::ValueId]| -> Vec<&str> {
        ids.iter().map(|id| program.values[id.index()].name.as_str()).collect()
    };
    let _ = writeln!(text, "inputs {}", names(&program.inputs).join(", "));
    let mut spans = Vec::with_capacity(program.nodes.len());
    for node in &program.nodes {
        let start = text.len();
        let outputs = names(&node.outputs);
        if !outputs.is_empty() {
            let _ = write!(text, "{} = ", outputs.join(", "));
        }
        let _ = write!(text, "{}(", node.operator);
        for (position, argument) in node.arguments.iter().enumerate() {
            if position > 0 {
                text.push_str(", ");
            }
            if let Some(name) = &argument.name {
                let _ = write!(text, "{name}=");
            }
            operand(&mut text, program, &argument.operand);
        }
        text.push(')');
        spans.push((start, text.len()));
        let path = &program.modules[program.calls[node.call.index()].module.index()].path;
        let _ = writeln!(text, "  # {path}");
    }
    text.push_str("return ");
    operand(&mut text, program, &program.output);
    text.push('\n');
    for (node, (start, end)) in program.nodes.iter_mut().zip(spans) {
        let place = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        node.span = Span { source: 0, start: place(start), end: place(end) };
        for output in &node.outputs {
            program.values[output.index()].span = node.span;
        }
    }
    program.sources = vec![Source { name: NAME.to_owned(), text }];
}

fn operand(text: &mut String, program: &Program, operand: &Operand) {
    let list = |text: &mut String, items: &[Operand], brackets: [char; 2]| {
        text.push(brackets[0]);
        for (position, item) in items.iter().enumerate() {
            if position > 0 {
                text.push_str(", ");
            }
            self::operand(text, program, item);
        }
        text.push(brackets[1]);
    };
    match operand {
        Operand::Value(value) => text.push_str(&program.values[value.index()].name),
        Operand::Tensor(tensor) => text.push_str(&program.tensors[tensor.index()].path),
        Operand::Constant(constant) => {
            let _ = match constant {
                Constant::None => write!(text, "None"),
                Constant::Bool(value) => write!(text, "{}", if *value { "True" } else { "False" }),
                Constant::Int(value) => write!(text, "{value}"),
                Constant::Float(value) => write!(text, "{value:?}"),
                Constant::Complex(real, imaginary) => write!(text, "complex({real:?}, {imaginary:?})"),
                Constant::Str(word) | Constant::Device(word) => write!(text, "{word:?}"),
            };
        }
        Operand::List(items) => list(text, items, ['[', ']']),
        Operand::Tuple(items) => list(text, items, ['(', ')']),
        Operand::Dict(pairs) => {
            text.push('{');
            for (key, value) in pairs {
                self::operand(text, program, key);
                text.push_str(": ");
                self::operand(text, program, value);
                text.push_str(", ");
            }
            text.push('}');
        }
    }
}
