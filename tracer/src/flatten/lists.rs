//! Lists that the code changes in place: `torch.append(l, x)`.
//!
//! While the items of a list are known, its name stands for them and a change leaves no node behind. Before an operator or a
//! statement that stays whole changes the list, it becomes a node's value.

use super::{Bound, Flattener, Frame, opaque::mutated_name, types};
use crate::{
    code::ast::{CallArgument, Expr, ExprKind},
    error::TraceError,
    program::{Argument, Operand},
};

impl<'l, 'a> Flattener<'l, 'a, '_, '_, '_, '_> {
    /// Carries out a change of a list whose items are known, and returns the list's name.
    pub(super) fn change(
        &mut self,
        expr: &'l Expr<'a>,
        frame: &mut Frame<'a>,
    ) -> Result<Option<&'a str>, TraceError> {
        let (Some(name), ExprKind::Call(callee, arguments)) = (mutated_name(expr), &expr.kind) else {
            return Ok(None);
        };
        let ExprKind::Attribute(_, method) = &callee.kind else { return Ok(None) };
        if !is_list(name, frame) {
            return Ok(None);
        }
        let more = match (*method, &arguments[1..]) {
            ("append", [CallArgument { value, .. }]) => vec![self.one(value, frame)?],
            ("extend", [CallArgument { value: Expr { kind: ExprKind::Name(other), .. }, .. }]) => {
                match frame.names.get(other) {
                    Some(Bound::Operand(Operand::List(items))) => items.clone(),
                    _ => return Ok(None),
                }
            }
            _ => return Ok(None),
        };
        for item in &more {
            self.spend(item)?;
        }
        if let Some(Bound::Operand(Operand::List(items))) = frame.names.get_mut(name) {
            items.extend(more);
        }
        Ok(Some(name))
    }

    /// Makes a node's value of a list or dictionary that a name stands for.
    pub(super) fn hold(
        &mut self,
        name: &'a str,
        text: &str,
        frame: &mut Frame<'a>,
    ) -> Result<(), TraceError> {
        let (operator, operand) = match frame.names.get(name) {
            Some(Bound::Operand(operand @ Operand::List(_))) => ("prim::ListConstruct", operand.clone()),
            Some(Bound::Operand(operand @ Operand::Dict(_))) => ("prim::DictConstruct", operand.clone()),
            _ => return Ok(()),
        };
        self.spend(&operand)?;
        let type_ = match frame.declared.get(name) {
            Some(type_) => type_.clone(),
            None => types::of(&operand, &self.values),
        };
        let span = self.code.span(frame.source, text);
        let node = self.node(operator.to_owned(), vec![Argument { name: None, operand }], span)?;
        let value = self.output(node, name, type_, span);
        frame.names.insert(name, Bound::Operand(Operand::Value(value)));
        Ok(())
    }

    /// Remembers what the code says of a list that is bound to a name.
    pub(super) fn declare(
        &self,
        target: &Expr<'a>,
        value: &'l Expr<'a>,
        type_: Option<&'l Expr<'a>>,
        frame: &mut Frame<'a>,
    ) {
        if let (ExprKind::Name(name), Some(type_)) = (&target.kind, type_.or(annotated(value))) {
            frame.declared.insert(name, types::read(type_));
        }
    }
}

fn is_list(name: &str, frame: &Frame<'_>) -> bool {
    matches!(frame.names.get(name), Some(Bound::Operand(Operand::List(_))))
}

/// Returns the type in `annotate(T, x)`.
fn annotated<'e, 'a>(expr: &'e Expr<'a>) -> Option<&'e Expr<'a>> {
    match &expr.kind {
        ExprKind::Call(callee, arguments) if callee.kind == ExprKind::Name("annotate") => {
            arguments.first().map(|argument| &argument.value)
        }
        _ => None,
    }
}
