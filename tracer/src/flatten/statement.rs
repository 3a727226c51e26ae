//! Statements: they bind names and otherwise leave the work to expressions.

use super::{
    Bound, Flattener, Frame,
    operators::{Callee, callee as callee_of},
    types,
};
use crate::{
    code::ast::{Expr, ExprKind, Statement, StatementKind},
    constant_folding::{RAISE, known, taken},
    error::TraceError,
    program::{Argument, Constant, Operand, Type},
};

/// The way a block ends.
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
                let value = known(&decided, &self.values, &self.nodes);
                match taken(value, then, otherwise, |block| raises(block)) {
                    Some(block) => {
                        let begun = self.begin();
                        self.enter((frame.source, condition.text))?;
                        let flow = self.block(block, frame)?;
                        self.leave();
                        self.settle(begun);
                        return Ok(flow);
                    }
                    None => self.opaque(statement, "if", Some(decided), frame)?,
                }
            }
            StatementKind::While { condition, .. } => {
                let condition = self.condition(condition, frame)?;
                self.opaque(statement, "while", Some(condition), frame)?;
            }
            StatementKind::For { target, iterable, block } => {
                let place = (frame.source, iterable.text);
                let (iterable, is_range) = self.iterable(iterable, frame)?;
                if is_range && let Some(steps) = self.steps(iterable.as_ref(), block) {
                    return self.write_out(target, steps, block, place, frame);
                }
                self.opaque(statement, "for", iterable, frame)?;
            }
            StatementKind::With { .. } => self.opaque(statement, "with", None, frame)?,
            StatementKind::Function(definition) => {
                frame.functions.insert(definition.name, self.functions.len());
                self.functions.push(definition);
            }
        }
        Ok(Flow::Next)
    }

    fn condition(&mut self, condition: &'l Expr<'a>, frame: &mut Frame<'a>) -> Result<Operand, TraceError> {
        let bound = self.eval(condition, frame)?;
        self.operand(bound, (frame.source, condition.text))
    }

    /// `range(n)` has no value of its own: the loop reads `n`. Also tells whether it is a range.
    fn iterable(
        &mut self,
        iterable: &'l Expr<'a>,
        frame: &mut Frame<'a>,
    ) -> Result<(Option<Operand>, bool), TraceError> {
        if let ExprKind::Call(callee, arguments) = &iterable.kind
            && callee.kind == ExprKind::Name("range")
        {
            let mut operands = Vec::new();
            for argument in arguments {
                operands.push(self.condition(&argument.value, frame)?);
            }
            let operand = match operands.len() {
                1 => operands.pop(),
                _ => Some(Operand::Tuple(operands)),
            };
            return Ok((operand, true));
        }
        match self.eval(iterable, frame)? {
            Bound::Module(_) => Ok((None, false)),
            bound => Ok((Some(self.operand(bound, (frame.source, iterable.text))?), false)),
        }
    }

    /// Returns the numbers that a loop counts through, where they are known and few.
    fn steps(&mut self, bounds: Option<&Operand>, block: &[Statement<'a>]) -> Option<Vec<i64>> {
        let bounds = match bounds? {
            Operand::Tuple(bounds) => bounds.as_slice(),
            bound => std::slice::from_ref(bound),
        };
        let int = |bound: &Operand| match known(bound, &self.values, &self.nodes) {
            Some(Constant::Int(value)) => Some(value),
            _ => None,
        };
        let bounds = bounds.iter().map(int).collect::<Option<Vec<i64>>>()?;
        self.written_out.steps(&bounds, count(block))
    }

    /// Walks a loop's statements once for every step.
    fn write_out(
        &mut self,
        target: &'a str,
        steps: Vec<i64>,
        block: &'l [Statement<'a>],
        place: (usize, &str),
        frame: &mut Frame<'a>,
    ) -> Result<Flow, TraceError> {
        let begun = self.begin();
        self.enter(place)?;
        let mut flow = Flow::Next;
        for step in steps {
            frame.names.insert(target, Bound::Operand(Operand::Constant(Constant::Int(step))));
            flow = self.block(block, frame)?;
            if let Flow::Return(_) = flow {
                break;
            }
        }
        self.leave();
        self.settle(begun);
        Ok(flow)
    }

    /// Begins a statement that is decided while reading.
    pub(super) fn begin(&self) -> (usize, u32) {
        (self.settled.len(), self.nodes.len() as u32)
    }

    /// Notes that the nodes since `begin` stand for one statement; statements inside it no longer count.
    pub(super) fn settle(&mut self, (n_before, first): (usize, u32)) {
        self.settled.truncate(n_before);
        self.settled.push(first..self.nodes.len() as u32);
    }

    /// An expression whose value is not used. `torch.append(l, x)` changes `l`: the name moves on to the result.
    fn discard(&mut self, expr: &'l Expr<'a>, frame: &mut Frame<'a>) -> Result<(), TraceError> {
        if let Some(name) = super::opaque::mutated_name(expr)
            && frame.names.contains_key(name)
        {
            if self.change(expr, frame)?.is_some() {
                return Ok(());
            }
            self.hold(name, expr.text, frame)?;
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
            if let Some(name) = self.change(value, frame)? {
                let bound = self.name(name, value, frame)?;
                return self.bind(target, bound, frame);
            }
            if let Some(name) = super::opaque::mutated_name(value) {
                self.hold(name, value.text, frame)?;
            }
            self.declare(target, value, type_, frame);
            let bound = match (&value.kind, &target.kind) {
                (ExprKind::Call(..), _) => self.call(value, &[target], frame)?,
                _ => self.eval_named(value, target, frame)?,
            };
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
                self.declare(target, item, None, frame);
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
                let span = self.code.span(frame.source, target.text);
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
        let span = self.code.span(frame.source, value.text);
        self.spend(&operand)?;
        let node = self.node(operator.to_owned(), vec![Argument { name: None, operand }], span)?;
        let mut parts = Vec::with_capacity(targets.len());
        for (target, type_) in targets.iter().zip(types) {
            let span = self.code.span(frame.source, target.text);
            parts.push(Operand::Value(self.output(
                node,
                super::expression::target_name(target),
                type_,
                span,
            )));
        }
        Ok(parts)
    }
}

/// Tells whether a block ends the model with an exception, whatever else it does.
fn raises(block: &[Statement<'_>]) -> bool {
    block.iter().any(|statement| match &statement.kind {
        StatementKind::Expression(Expr { kind: ExprKind::Call(callee, _), .. }) => {
            matches!(callee_of(callee, |_| false), Callee::Operator(operator) if operator == RAISE)
        }
        _ => false,
    })
}

/// Counts the statements of a block, those inside others too.
fn count(block: &[Statement<'_>]) -> usize {
    let inner = |statement: &Statement<'_>| match &statement.kind {
        StatementKind::If { then, otherwise, .. } => count(then) + count(otherwise),
        StatementKind::While { block, .. }
        | StatementKind::For { block, .. }
        | StatementKind::With { block, .. } => count(block),
        _ => 0,
    };
    block.iter().map(|statement| 1 + inner(statement)).sum()
}
