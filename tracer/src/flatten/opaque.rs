//! Control flow that stays whole: one node that reads names and writes names.

use std::collections::{HashMap, HashSet};

use indexmap::IndexSet;

use super::{Bound, Flattener, Frame, inferred_types::InferredTypes, types};
use crate::{
    code::ast::{Expr, ExprKind, Statement, StatementKind},
    error::TraceError,
    program::{Argument, Constant, Operand, Type},
};

impl<'l, 'a> Flattener<'l, 'a, '_, '_, '_, '_> {
    /// Makes a node for a statement. `head` is what its condition or range was evaluated to.
    pub(super) fn opaque(
        &mut self,
        statement: &'l Statement<'a>,
        word: &str,
        head: Option<Operand>,
        frame: &mut Frame<'a>,
    ) -> Result<(), TraceError> {
        let mut uses = Uses::default();
        uses.statement(statement);
        let mut arguments = Vec::new();
        if let Some(operand) = head {
            self.spend(&operand)?;
            arguments.push(Argument { name: Some(word.to_owned()), operand });
        }
        // Lists that the statement changes become values, and so do empty ones, which have no type of their own.
        let is_empty = |name: &&str| matches!(frame.names.get(*name), Some(Bound::Operand(Operand::List(items))) if items.is_empty());
        let empty: Vec<&'a str> = uses.reads.iter().map(|(name, _)| *name).filter(is_empty).collect();
        for name in uses.writes.iter().copied().chain(empty) {
            self.hold(name, statement.text, frame)?;
        }
        let mut seen = HashSet::new();
        let (changed, mut changes) = (uses.changed(), Vec::new());
        for (name, chain) in &uses.reads {
            let Some(bound) = frame.names.get(name) else { continue };
            match bound.clone() {
                Bound::Operand(operand) | Bound::Named(_, operand) => {
                    if seen.insert(*name) {
                        self.spend(&operand)?;
                        if changed.contains(name) && holds_tensor(&types::of(&operand, &self.values)) {
                            changes.push(arguments.len() as u32);
                        }
                        arguments.push(Argument { name: Some((*name).to_owned()), operand });
                    }
                }
                // A function that it calls.
                Bound::Global(function) if chain.is_empty() => {
                    if seen.insert(*name) {
                        let operand = Operand::Constant(Constant::Str(function));
                        arguments.push(Argument { name: Some((*name).to_owned()), operand });
                    }
                }
                Bound::Global(_) => {}
                Bound::Module(module) => {
                    let mut module = module;
                    let mut tensors = Vec::new();
                    let mut whole = true;
                    for attribute in chain {
                        let held = &self.modules.modules[module.index()];
                        if let Some(child) = held.children.get(*attribute) {
                            module = *child;
                            continue;
                        }
                        if let Some(tensor) =
                            held.parameters.get(*attribute).or_else(|| held.buffers.get(*attribute))
                        {
                            tensors.push(*tensor);
                        }
                        // A method of this module, or one of its plain attributes.
                        whole = held.attributes.get(*attribute).is_none() && tensors.is_empty();
                        break;
                    }
                    if whole && !chain.is_empty() {
                        self.tensors_below(module, &mut tensors, &mut HashSet::new());
                    }
                    for tensor in tensors {
                        if uses.tensors.insert(tensor.0) {
                            let name = Some(self.modules.tensors[tensor.index()].path.clone());
                            arguments.push(Argument { name, operand: Operand::Tensor(tensor) });
                        }
                    }
                    self.spent += arguments.len();
                }
            }
        }
        let span = self.code.span(frame.source, statement.text);
        let node = self.node("prim::Opaque".to_owned(), arguments, span)?;
        self.nodes[node.index()].changes = changes;
        // A name of one branch alone, or of a loop's body, means nothing afterwards.
        let assigned = assigned(std::slice::from_ref(statement));
        let is_left = |name: &&str| frame.names.contains_key(*name) || assigned.contains(*name);
        let left: Vec<&'a str> = uses.writes.iter().copied().filter(is_left).collect();
        let before = |name: &str| match frame.names.get(name)? {
            Bound::Operand(operand) => Some(types::of(operand, &self.values)),
            _ => None,
        };
        let told = InferredTypes::of(statement, before);
        let left: Vec<(&'a str, Type)> = left
            .into_iter()
            .map(|name| (name, before(name).or_else(|| told.get(name)).unwrap_or_else(types::tensor)))
            .collect();
        for (name, type_) in left {
            let value = self.output(node, name, type_, span);
            frame.names.insert(name, Bound::Operand(Operand::Value(value)));
        }
        self.note(format!("`{word}` is kept as one opaque operator"), span, Some(node));
        if uses.returns {
            self.note(
                format!("`{word}` may return early; what follows is shown as if it did not"),
                span,
                Some(node),
            );
        }
        Ok(())
    }
}

/// Names that a statement reads and writes.
#[derive(Default)]
struct Uses<'a> {
    /// Names with the attributes that follow them.
    reads: IndexSet<(&'a str, Vec<&'a str>)>,
    writes: IndexSet<&'a str>,
    /// Names in targets of in-place writes.
    written_to: IndexSet<&'a str>,
    /// The names that a name is computed from: it may alias them.
    made_of: HashMap<&'a str, IndexSet<&'a str>>,
    tensors: HashSet<u32>,
    returns: bool,
}

impl<'a> Uses<'a> {
    fn block(&mut self, block: &[Statement<'a>]) {
        for statement in block {
            self.statement(statement);
        }
    }

    fn statement(&mut self, statement: &Statement<'a>) {
        match &statement.kind {
            StatementKind::Assign { targets, value, .. } => {
                self.writes.extend(mutated_name(value));
                self.expr(value);
                for target in targets {
                    match &target.kind {
                        ExprKind::Name(name) => {
                            self.writes.insert(name);
                            self.made_of.entry(name).or_default().extend(names(value));
                        }
                        _ => self.expr(target),
                    }
                }
            }
            StatementKind::Expression(expr) => {
                if let Some(name) = mutated_name(expr) {
                    self.writes.insert(name);
                }
                self.expr(expr);
            }
            StatementKind::Return(expr) => {
                self.returns = true;
                self.expr(expr);
            }
            StatementKind::If { condition, then, otherwise } => {
                self.expr(condition);
                self.block(then);
                self.block(otherwise);
            }
            StatementKind::While { condition, block } => {
                self.expr(condition);
                self.block(block);
            }
            StatementKind::For { iterable, block, .. } => {
                self.expr(iterable);
                self.block(block);
            }
            StatementKind::With { context, block, .. } => {
                self.expr(context);
                self.block(block);
            }
            StatementKind::Function(definition) => self.block(&definition.block),
            StatementKind::Pass | StatementKind::Declare { .. } => {}
        }
    }

    /// Returns the names whose memory may be written to. O(names × what they are made of).
    fn changed(&self) -> IndexSet<&'a str> {
        let mut changed = self.written_to.clone();
        let mut at = 0;
        while let Some(name) = changed.get_index(at).copied() {
            changed.extend(self.made_of.get(name).into_iter().flatten());
            at += 1;
        }
        changed
    }

    fn expr(&mut self, expr: &Expr<'a>) {
        let mut chain = Vec::new();
        let mut at = expr;
        loop {
            match &at.kind {
                ExprKind::Attribute(base, name) => {
                    chain.push(*name);
                    at = base;
                }
                // `getattr(self, "0")` is one more link.
                ExprKind::Call(callee, arguments)
                    if callee.kind == ExprKind::Name("getattr") && arguments.len() == 2 =>
                {
                    if !matches!(arguments[1].value.kind, ExprKind::Str(_)) {
                        break;
                    }
                    chain.clear();
                    at = &arguments[0].value;
                }
                _ => break,
            }
        }
        if let ExprKind::Name(name) = at.kind {
            chain.reverse();
            self.reads.insert((name, chain));
            return;
        }
        match &at.kind {
            ExprKind::Tuple(items) | ExprKind::List(items) => items.iter().for_each(|item| self.expr(item)),
            ExprKind::Dict(pairs) => pairs.iter().for_each(|(key, value)| {
                self.expr(key);
                self.expr(value);
            }),
            ExprKind::Negative(inner) => self.expr(inner),
            ExprKind::Attribute(base, _) => self.expr(base),
            ExprKind::Call(callee, arguments) => {
                self.expr(callee);
                arguments.iter().for_each(|argument| self.expr(&argument.value));
                let is_in_place =
                    matches!(callee.kind, ExprKind::Attribute(_, method) if operators::is_in_place(method));
                for (at, argument) in arguments.iter().enumerate() {
                    if (is_in_place && at == 0) || argument.name == Some("out") {
                        self.written_to.extend(names(&argument.value));
                    }
                }
            }
            ExprKind::Index(base, indices) => {
                self.expr(base);
                indices.iter().for_each(|index| self.expr(index));
            }
            ExprKind::Slice(base, first, last) => {
                self.expr(base);
                first.iter().chain(last).for_each(|bound| self.expr(bound));
            }
            _ => {}
        }
    }
}

/// Returns the names in an expression.
fn names<'a>(expr: &Expr<'a>) -> IndexSet<&'a str> {
    let mut uses = Uses::default();
    uses.expr(expr);
    uses.reads.into_iter().map(|(name, _)| name).collect()
}

/// Returns the names that hold something after a block, whichever way it went.
fn assigned<'a>(block: &[Statement<'a>]) -> HashSet<&'a str> {
    let mut found = HashSet::new();
    for statement in block {
        match &statement.kind {
            StatementKind::Assign { targets, .. } => {
                found.extend(targets.iter().filter_map(|target| match target.kind {
                    ExprKind::Name(name) => Some(name),
                    _ => None,
                }));
            }
            StatementKind::If { then, otherwise, .. } => {
                let other = assigned(otherwise);
                found.extend(assigned(then).into_iter().filter(|name| other.contains(name)));
            }
            StatementKind::With { block, .. } => found.extend(assigned(block)),
            _ => {}
        }
    }
    found
}

fn holds_tensor(type_: &Type) -> bool {
    match type_ {
        Type::Tensor(_) => true,
        Type::Optional(inner) | Type::List(inner) | Type::Dict(_, inner) => holds_tensor(inner),
        Type::Tuple(items) => items.iter().any(holds_tensor),
        _ => false,
    }
}

/// Returns the name that `torch.append(name, …)` and its like change in place.
pub(super) fn mutated_name<'a>(expr: &Expr<'a>) -> Option<&'a str> {
    let ExprKind::Call(callee, arguments) = &expr.kind else { return None };
    let ExprKind::Attribute(base, method) = &callee.kind else { return None };
    let changes = operators::changes_container(method);
    match (&base.kind, arguments.first().map(|argument| &argument.value.kind)) {
        (ExprKind::Name("torch"), Some(ExprKind::Name(name))) if changes => Some(name),
        _ => None,
    }
}
