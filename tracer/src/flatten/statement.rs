//! Statements: they bind names and otherwise leave the work to expressions.

use super::{Bound, Flattener, Frame, types};
use crate::{
    code::ast::{Expr, ExprKind, Statement, StatementKind},
    error::TraceError,
    program::{Argument, Constant, Operand, Type},
};

/// How a block ended.
pub(super) enum Flow {
    Next,
    Return(Bound),
}

impl<'l, 'a> Flattener<'l, 'a, '_, '_, '_, '_> {
    pub(super) fn block(
        &mut self,
        block: &'l [Statement<'a>],
        frame: &mut Frame<'a>,
    ) -> Result<Flow, TraceError> {
        for statement in block {
            if let Flow::Return(bound) = self.statement(statement, frame)? {
                return Ok(Flow::Return(bound));
            }
        }
        Ok(Flow::Next)
    }

    fn statement(&mut self, statement: &'l Statement<'a>, frame: &mut Frame<'a>) -> Result<Flow, TraceError> {
        match &statement.kind {
            StatementKind::Pass | StatementKind::Declare { .. } => {}
            StatementKind::Expression(expr) => self.discard(expr, frame)?,
            StatementKind::Return(expr) => return Ok(Flow::Return(self.eval(expr, frame)?)),
            StatementKind::Assign { targets, unpack, value, type_ } => {
                self.assign(targets, *unpack, value, type_.as_ref(), frame)?;
            }
            StatementKind::If { condition, then, otherwise } => {
                let decided = self.condition(condition, frame)?;
                match decided {
                    Operand::Constant(Constant::Bool(value)) if self.fold => {
                        self.enter((frame.source, condition.text))?;
                        let flow = self.block(if value { then } else { otherwise }, frame)?;
                        self.leave();
                        return Ok(flow);
                    }
                    decided => self.opaque(statement, "if", Some(decided), frame)?,
                }
            }
            StatementKind::While { condition, .. } => {
                let condition = self.condition(condition, frame)?;
                self.opaque(statement, "while", Some(condition), frame)?;
            }
            StatementKind::For { iterable, .. } => {
                let iterable = self.iterable(iterable, frame)?;
                self.opaque(statement, "for", iterable, frame)?;
            }
            StatementKind::With { .. } => self.opaque(statement, "with", None, frame)?,
            StatementKind::Function(_) => self.opaque(statement, "def", None, frame)?,
        }
        Ok(Flow::Next)
    }

    fn condition(&mut self, condition: &'l Expr<'a>, frame: &mut Frame<'a>) -> Result<Operand, TraceError> {
        let bound = self.eval(condition, frame)?;
        self.operand(bound, (frame.source, condition.text))
    }

    /// `range(n)` has no value of its own: the loop reads `n`.
    fn iterable(
        &mut self,
        iterable: &'l Expr<'a>,
        frame: &mut Frame<'a>,
    ) -> Result<Option<Operand>, TraceError> {
        if let ExprKind::Call(callee, arguments) = &iterable.kind
            && callee.kind == ExprKind::Name("range")
        {
            let mut operands = Vec::new();
            for argument in arguments {
                operands.push(self.condition(&argument.value, frame)?);
            }
            return Ok(match operands.len() {
                1 => operands.pop(),
                _ => Some(Operand::Tuple(operands)),
            });
        }
        match self.eval(iterable, frame)? {
            Bound::Module(_) => Ok(None),
            bound => self.operand(bound, (frame.source, iterable.text)).map(Some),
        }
    }

    /// An expression whose value nobody takes. `torch.append(l, x)` changes `l`: the name moves on to the result.
    fn discard(&mut self, expr: &'l Expr<'a>, frame: &mut Frame<'a>) -> Result<(), TraceError> {
        if let Some(name) = super::opaque::mutated_name(expr)
            && frame.names.contains_key(name)
        {
            let target = Expr { kind: ExprKind::Name(name), text: name };
            let bound = self.call(expr, &[&target], frame)?;
            frame.names.insert(name, bound);
            return Ok(());
        }
        match &expr.kind {
            ExprKind::Call(..) => self.call_for_nothing(expr, frame),
            _ => self.eval(expr, frame).map(|_| ()),
        }
    }

    fn assign(
        &mut self,
        targets: &'l [Expr<'a>],
        unpack: bool,
        value: &'l Expr<'a>,
        type_: Option<&'l Expr<'a>>,
        frame: &mut Frame<'a>,
    ) -> Result<(), TraceError> {
        if let ([target], false) = (targets, unpack) {
            let bound = match (&value.kind, &target.kind) {
                (ExprKind::Call(..), _) => self.call(value, &[target], frame)?,
                _ => self.eval_named(value, target, frame)?,
            };
            let bound = self.materialise(target, bound, value, frame)?;
            // `append` gives the list itself: both names go on with it.
            if let ExprKind::Call(callee, _) = &value.kind
                && callee.text == "torch.append"
                && let Some(name) = super::opaque::mutated_name(value)
                && frame.names.contains_key(name)
            {
                frame.names.insert(name, bound.clone());
            }
            if let (Some(type_), Bound::Operand(Operand::Value(value))) = (type_, &bound) {
                let declared = types::read(type_);
                let known = &mut self.values[value.index()].type_;
                if *known == types::tensor() {
                    *known = declared;
                }
            }
            return self.bind(target, bound, frame);
        }
        // `a, b = x, y` evaluates both before it binds either.
        if let (ExprKind::Tuple(items), false) = (&value.kind, unpack)
            && items.len() == targets.len()
        {
            let bound = items.iter().map(|item| self.eval(item, frame)).collect::<Result<Vec<_>, _>>()?;
            for ((target, bound), item) in targets.iter().zip(bound).zip(items) {
                let bound = self.materialise(target, bound, item, frame)?;
                self.bind(target, bound, frame)?;
            }
            return Ok(());
        }
        let bound = match &value.kind {
            ExprKind::Call(..) if !unpack => {
                let wanted: Vec<&Expr<'a>> = targets.iter().collect();
                self.call(value, &wanted, frame)?
            }
            _ => self.eval(value, frame)?,
        };
        let parts = self.unpack(bound, targets, value, frame)?;
        for (target, part) in targets.iter().zip(parts) {
            self.bind(target, Bound::Operand(part), frame)?;
        }
        Ok(())
    }

    fn bind(&mut self, target: &'l Expr<'a>, bound: Bound, frame: &mut Frame<'a>) -> Result<(), TraceError> {
        match &target.kind {
            ExprKind::Name(name) => {
                frame.names.insert(name, bound);
                Ok(())
            }
            // `self.x = v`: a scripted module changes its own attribute.
            _ => {
                let span = self.library.span(frame.source, target.text);
                let operand = self.operand(bound, (frame.source, target.text))?;
                let argument = Argument { name: Some(target.text.to_owned()), operand };
                let node = self.node("prim::SetAttr".to_owned(), vec![argument], span)?;
                self.note(format!("attribute `{}` is assigned", target.text), span, Some(node));
                Ok(())
            }
        }
    }

    /// Takes a tuple apart without a node, a list's value with one.
    fn unpack(
        &mut self,
        bound: Bound,
        targets: &'l [Expr<'a>],
        value: &'l Expr<'a>,
        frame: &mut Frame<'a>,
    ) -> Result<Vec<Operand>, TraceError> {
        let place = (frame.source, value.text);
        let operand = self.operand(bound, place)?;
        if let Operand::Tuple(items) = operand {
            if items.len() != targets.len() {
                let reason = format!("a tuple of {} is unpacked into {} names", items.len(), targets.len());
                return Err(self.wrong(place, reason));
            }
            return Ok(items);
        }
        let type_ = types::of(&operand, &self.values);
        let (operator, types) = match type_ {
            Type::Tuple(types) if types.len() == targets.len() => ("prim::TupleUnpack", types),
            Type::Class(_) => ("prim::TupleUnpack", vec![types::tensor(); targets.len()]),
            Type::List(element) => ("prim::ListUnpack", vec![*element; targets.len()]),
            _ => ("prim::ListUnpack", vec![types::tensor(); targets.len()]),
        };
        let span = self.library.span(frame.source, value.text);
        self.spend(&operand)?;
        let node = self.node(operator.to_owned(), vec![Argument { name: None, operand }], span)?;
        let mut parts = Vec::with_capacity(targets.len());
        for (target, type_) in targets.iter().zip(types) {
            let span = self.library.span(frame.source, target.text);
            parts.push(Operand::Value(self.output(
                node,
                super::expression::target_name(target),
                type_,
                span,
            )));
        }
        Ok(parts)
    }

    /// A list that is changed later cannot stand inline: it becomes a node's value.
    fn materialise(
        &mut self,
        target: &Expr<'a>,
        bound: Bound,
        value: &'l Expr<'a>,
        frame: &mut Frame<'a>,
    ) -> Result<Bound, TraceError> {
        let ExprKind::Name(name) = target.kind else { return Ok(bound) };
        if !frame.mutated.contains(name) {
            return Ok(bound);
        }
        let operator = match &bound {
            Bound::Operand(Operand::List(_)) => "prim::ListConstruct",
            Bound::Operand(Operand::Dict(_)) => "prim::DictConstruct",
            _ => return Ok(bound),
        };
        let operand = self.operand(bound, (frame.source, value.text))?;
        let type_ = match super::expression::annotated(value) {
            Some(type_) => types::read(type_),
            None => types::of(&operand, &self.values),
        };
        let span = self.library.span(frame.source, value.text);
        let node = self.node(operator.to_owned(), vec![Argument { name: None, operand }], span)?;
        let target_span = self.library.span(frame.source, target.text);
        let value = self.output(node, name, type_, target_span);
        Ok(Bound::Operand(Operand::Value(value)))
    }
}
