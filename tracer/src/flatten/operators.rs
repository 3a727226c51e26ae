//! Which operator a call in the code stands for.

use crate::code::ast::{Expr, ExprKind};

/// The callee of a call.
pub(super) enum Callee<'e, 'a> {
    /// `torch.relu`, `ops.torchvision.nms`: an operator by its qualified name.
    Operator(String),
    /// `torch.device`.
    Device,
    /// `int`, `annotate`, `getattr`, …
    Builtin(&'a str),
    /// `__torch__.a.b.f`: a free function or a class.
    Global(String),
    /// `(x).forward`: a method of an expression's result.
    Method(&'e Expr<'a>, &'a str),
    /// A name that the function has bound, or anything else.
    Bound,
}

/// Reads the left side of a call. `shadowed` tells which names the function has bound itself.
pub(super) fn callee<'e, 'a>(expr: &'e Expr<'a>, shadowed: impl Fn(&str) -> bool) -> Callee<'e, 'a> {
    match &expr.kind {
        ExprKind::Name(name) if !shadowed(name) => Callee::Builtin(name),
        ExprKind::Attribute(base, method) => match root(expr) {
            // Brackets around a name end the path: `(torch).forward(x)` calls a module that is named so.
            Some("torch") if !shadowed("torch") => match (&base.kind, *method) {
                (ExprKind::Name(_), "device") => Callee::Device,
                (ExprKind::Name(_), method) => Callee::Operator(format!("aten::{method}")),
                _ => Callee::Operator(format!("aten::{}", path(expr, 1, "."))),
            },
            Some("ops") if !shadowed("ops") => match path(expr, 1, "::") {
                path if path.contains("::") => Callee::Operator(path),
                _ => Callee::Method(base, method),
            },
            Some("__torch__") if !shadowed("__torch__") => Callee::Global(path(expr, 0, ".")),
            _ => Callee::Method(base, method),
        },
        _ => Callee::Bound,
    }
}

/// Returns the qualified name when the expression is `__torch__.a.b`.
pub(super) fn global(expr: &Expr<'_>) -> Option<String> {
    (root(expr)? == "__torch__").then(|| path(expr, 0, "."))
}

/// Returns the name that a path begins with, when the expression is nothing but a path.
fn root<'a>(expr: &Expr<'a>) -> Option<&'a str> {
    match &expr.kind {
        ExprKind::Attribute(base, _) => root(base),
        ExprKind::Name(name) if expr.text == *name => Some(name),
        _ => None,
    }
}

fn path(expr: &Expr<'_>, skip: usize, separator: &str) -> String {
    let mut parts = Vec::new();
    let mut at = expr;
    while let ExprKind::Attribute(base, name) = &at.kind {
        parts.push(*name);
        at = base;
    }
    if let ExprKind::Name(name) = at.kind {
        parts.push(name);
    }
    parts.reverse();
    parts[skip.min(parts.len())..].join(separator)
}

/// Names the operator behind a conversion.
pub(super) fn conversion(builtin: &str) -> Option<&'static str> {
    operators::built_in(builtin)
}
