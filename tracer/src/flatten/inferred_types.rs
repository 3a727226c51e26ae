//! Type inference for names that a statement kept as text assigns.
//!
//! Archives declare no types of local names: torch's reader infers them, and so does this, from constants, conversions and
//! the operators whose result is known. Callers take a name of unknown type for a tensor.

use std::collections::HashMap;

use super::{
    operators::{Callee, callee, conversion},
    types,
};
use crate::{
    code::ast::{Expr, ExprKind, Statement, StatementKind},
    program::Type,
};

/// The types of a function's names.
pub(super) struct InferredTypes<'a, F> {
    /// Types of names from before.
    before: F,
    /// Of those that are assigned; nothing where that is unknown or differs.
    assigned: HashMap<&'a str, Option<Type>>,
}

impl<'a, F: Fn(&str) -> Option<Type>> InferredTypes<'a, F> {
    pub fn of(statement: &Statement<'a>, before: F) -> Self {
        let mut types = Self { before, assigned: HashMap::new() };
        types.statement(statement);
        types
    }

    pub fn get(&self, name: &str) -> Option<Type> {
        self.assigned.get(name).cloned().unwrap_or_else(|| (self.before)(name))
    }

    fn block(&mut self, block: &[Statement<'a>]) {
        block.iter().for_each(|statement| self.statement(statement));
    }

    fn statement(&mut self, statement: &Statement<'a>) {
        match &statement.kind {
            StatementKind::Assign { targets, value, .. } => {
                let type_ = self.expression(value);
                match (targets.as_slice(), type_) {
                    ([target], type_) => self.assign(target, type_),
                    (targets, Some(Type::Tuple(items))) if items.len() == targets.len() => {
                        targets.iter().zip(items).for_each(|(target, item)| self.assign(target, Some(item)));
                    }
                    (targets, Some(Type::List(item))) => {
                        targets.iter().for_each(|target| self.assign(target, Some((*item).clone())));
                    }
                    (targets, _) => targets.iter().for_each(|target| self.assign(target, None)),
                }
            }
            StatementKind::If { then, otherwise, .. } => {
                self.block(then);
                self.block(otherwise);
            }
            StatementKind::For { target, iterable, block } => {
                let item = match self.expression(iterable) {
                    Some(Type::List(item)) => Some(*item),
                    // The length of a range.
                    Some(Type::Int) => Some(Type::Int),
                    _ => None,
                };
                self.assigned.insert(target, item);
                self.block(block);
            }
            StatementKind::While { block, .. } | StatementKind::With { block, .. } => self.block(block),
            StatementKind::Expression(_)
            | StatementKind::Return(_)
            | StatementKind::Function(_)
            | StatementKind::Pass
            | StatementKind::Declare { .. } => {}
        }
    }

    /// A name has one type; where branches give it different ones, as `None` and a tensor, it is unknown.
    fn assign(&mut self, target: &Expr<'a>, type_: Option<Type>) {
        if let ExprKind::Name(name) = target.kind {
            let known = self.assigned.entry(name).or_insert_with(|| type_.clone());
            if *known != type_ {
                *known = None;
            }
        }
    }

    fn expression(&self, expr: &Expr<'a>) -> Option<Type> {
        Some(match &expr.kind {
            ExprKind::Name(name) => self.get(name)?,
            ExprKind::None => Type::None,
            ExprKind::Bool(_) => Type::Bool,
            ExprKind::Int(_) => Type::Int,
            ExprKind::Float(_) => Type::Float,
            ExprKind::Complex(..) => Type::Number,
            ExprKind::Str(_) => Type::Str,
            ExprKind::Negative(inner) => self.expression(inner)?,
            ExprKind::Tuple(items) => {
                Type::Tuple(items.iter().map(|item| self.expression(item)).collect::<Option<_>>()?)
            }
            ExprKind::List(items) => Type::List(Box::new(self.expression(items.first()?)?)),
            ExprKind::Index(base, indices) => match (self.expression(base)?, indices.as_slice()) {
                (Type::List(item), _) => *item,
                (Type::Dict(_, value), _) => *value,
                (tuple, [Expr { kind: ExprKind::Int(index), .. }]) => types::item(&tuple, *index)?,
                _ => return None,
            },
            ExprKind::Call(function, arguments) => {
                let of_arguments = || -> Option<Vec<Type>> {
                    arguments.iter().map(|argument| self.expression(&argument.value)).collect()
                };
                match callee(function, |name| self.get(name).is_some()) {
                    Callee::Operator(operator) => types::result(&operator, &of_arguments()?),
                    Callee::Builtin("annotate" | "unchecked_cast" | "uninitialized") => {
                        types::read(&arguments.first()?.value)
                    }
                    Callee::Builtin("float") => Type::Float,
                    Callee::Builtin(name) => types::result(conversion(name)?, &of_arguments()?),
                    _ => return None,
                }
            }
            ExprKind::Dict(_) | ExprKind::Attribute(..) | ExprKind::Slice(..) => return None,
        })
    }
}
