//! Arguments by name: the overload of a call, and its defaults.

use std::borrow::Cow;

use operators::{Default as SignatureDefault, Signature};
use smallvec::SmallVec;
use tracer::{Constant, Node, Operand, Program, Type};

use crate::{fact::Fact, infer::Scope, model::Argument};

/// Picks the overload whose parameters match the arguments.
pub fn choose<'s>(
    signatures: &'s [Signature],
    node: &Node,
    scope: &Scope<'_>,
    program: &Program,
) -> Option<&'s Signature> {
    // IR text also passes keyword-only parameters by position, an archive's code by name.
    let is_code = program.sources.iter().any(|source| source.name.starts_with("code/"));
    let fits = |signature: &&Signature, exact: bool| {
        let mut position = 0;
        let mut filled: SmallVec<[bool; 16]> = SmallVec::from_elem(false, signature.parameters.len());
        for argument in &node.arguments {
            let at = match &argument.name {
                Some(name) => signature.parameters.iter().position(|p| p.name == name),
                None => {
                    position += 1;
                    let parameter = signature.parameters.get(position - 1);
                    parameter.filter(|parameter| !is_code || !parameter.is_keyword_only).map(|_| position - 1)
                }
            };
            let Some(at) = at.filter(|at| !filled[*at]) else { return false };
            filled[at] = true;
            if !accepts(signature.parameters[at].type_, &argument.operand, scope, program, exact) {
                return false;
            }
        }
        signature.parameters.iter().zip(&filled).all(|(p, filled)| *filled || p.default.is_some())
    };
    signatures
        .iter()
        .find(|s| fits(s, true))
        .or_else(|| signatures.iter().find(|s| fits(s, false)))
        .or_else(|| signatures.first().filter(|_| signatures.len() == 1))
}

/// Tells whether a parameter's type accepts an operand.
fn accepts(type_: &str, operand: &Operand, scope: &Scope<'_>, program: &Program, exact: bool) -> bool {
    let (base, is_optional) = match type_.strip_suffix('?') {
        Some(base) => (base, true),
        None => (type_, false),
    };
    if let Operand::Constant(Constant::None) = operand {
        return is_optional || matches!(base, "Any" | "t" | "Tensor?[]") || !exact && base == "Tensor";
    }
    if let Some((item, _)) = base.rsplit_once('[') {
        return match operand {
            Operand::List(items) | Operand::Tuple(items) => {
                items.iter().all(|i| accepts(item, i, scope, program, exact))
            }
            Operand::Value(value) => match &program.values[value.index()].type_ {
                Type::List(inner) => accepts_type(item, inner),
                Type::Tensor(_) => matches!(scope.values[value.index()], Fact::List(_)),
                _ => !exact,
            },
            // A single number represents a list of `n`.
            operand => {
                base.contains(|c: char| c.is_ascii_digit()) && accepts(item, operand, scope, program, exact)
            }
        };
    }
    match operand {
        Operand::Tensor(_) => matches!(base, "Tensor" | "t" | "Any"),
        Operand::List(_) | Operand::Tuple(_) => matches!(base, "t" | "Any"),
        Operand::Dict(_) => base.starts_with("Dict") || matches!(base, "t" | "Any"),
        Operand::Value(value) => match &scope.values[value.index()] {
            Fact::Tensor(_) => matches!(base, "Tensor" | "t" | "Any"),
            Fact::List(_) => matches!(base, "t" | "Any"),
            Fact::Int(_) => accepts_type(base, &Type::Int),
            Fact::Float(_) => accepts_type(base, &Type::Float),
            Fact::Bool(_) => accepts_type(base, &Type::Bool),
            Fact::Dict(_) => base.starts_with("Dict") || matches!(base, "t" | "Any"),
            Fact::None => is_optional,
            _ => accepts_type(base, &program.values[value.index()].type_),
        },
        Operand::Constant(constant) => match constant {
            Constant::None => is_optional,
            Constant::Bool(_) => accepts_type(base, &Type::Bool),
            Constant::Int(_) => accepts_type(base, &Type::Int),
            Constant::Float(_) => accepts_type(base, &Type::Float),
            Constant::Complex(..) => matches!(base, "complex" | "Scalar" | "t"),
            Constant::Str(_) => matches!(base, "str" | "t" | "Any" | "Device"),
            Constant::Device(_) => matches!(base, "Device" | "str" | "t"),
        },
    }
}

fn accepts_type(base: &str, type_: &Type) -> bool {
    match base {
        "t" | "Any" => true,
        "Tensor" => matches!(type_, Type::Tensor(_)),
        "int" | "SymInt" | "ScalarType" | "Layout" | "MemoryFormat" => matches!(type_, Type::Int),
        "float" => matches!(type_, Type::Float),
        "bool" => matches!(type_, Type::Bool),
        "Scalar" => matches!(type_, Type::Int | Type::Float | Type::Bool | Type::Number),
        "str" => matches!(type_, Type::Str),
        "Device" => matches!(type_, Type::Device | Type::Str),
        _ => false,
    }
}

/// Names every argument and adds the defaults.
pub fn normalise(node: &Node, signature: Option<&Signature>) -> Vec<Argument> {
    let Some(signature) = signature else {
        let named = node.arguments.iter().enumerate().map(|(position, argument)| Argument {
            name: match &argument.name {
                Some(name) => Cow::Owned(name.clone()),
                None => Cow::Owned(position.to_string()),
            },
            operand: argument.operand.clone(),
            is_given: true,
        });
        return named.collect();
    };
    let mut given: Vec<Option<&Operand>> = vec![None; signature.parameters.len()];
    let mut rest = Vec::new();
    let mut position = 0;
    for argument in &node.arguments {
        let at = match &argument.name {
            Some(name) => signature.parameters.iter().position(|p| p.name == name),
            None => {
                position += 1;
                Some(position - 1)
            }
        };
        match at.and_then(|at| given.get_mut(at)) {
            Some(slot) if slot.is_none() => *slot = Some(&argument.operand),
            _ => rest.push(argument),
        }
    }
    let mut arguments: Vec<Argument> = Vec::with_capacity(given.len());
    for (parameter, given) in signature.parameters.iter().zip(given) {
        let name = Cow::Borrowed(parameter.name);
        match (given, &parameter.default) {
            (Some(operand), _) => arguments.push(Argument { name, operand: operand.clone(), is_given: true }),
            (None, Some(default)) => {
                let operand = default_operand(default, parameter.type_);
                arguments.push(Argument { name, operand, is_given: false });
            }
            (None, None) => {}
        }
    }
    arguments.extend(rest.into_iter().map(|argument| Argument {
        name: Cow::Owned(argument.name.clone().unwrap_or_else(|| "?".to_string())),
        operand: argument.operand.clone(),
        is_given: true,
    }));
    arguments
}

fn default_operand(default: &SignatureDefault, type_: &str) -> Operand {
    Operand::Constant(match default {
        SignatureDefault::Integers(list) => {
            return Operand::List(
                list.iter().map(|value| Operand::Constant(Constant::Int(*value))).collect(),
            );
        }
        // `int[2] padding=0` means a list of two.
        SignatureDefault::Int(value) if type_.contains('[') => {
            let length = type_
                .split('[')
                .nth(1)
                .and_then(|rest| rest.split(']').next()?.parse().ok())
                .unwrap_or(1_usize);
            return Operand::List(vec![Operand::Constant(Constant::Int(*value)); length.min(8)]);
        }
        SignatureDefault::None => Constant::None,
        SignatureDefault::Bool(value) => Constant::Bool(*value),
        SignatureDefault::Int(value) => Constant::Int(*value),
        SignatureDefault::Float(value) => Constant::Float(*value),
        SignatureDefault::Str(text) => Constant::Str(text.clone()),
    })
}
