//! Expressions without calls: names, attributes, literals, subscripts.

use super::{Bound, Flattener, Frame, operators, types};
use crate::{
    archive::Attribute,
    code::ast::{Expr, ExprKind},
    error::TraceError,
    program::{Argument, Constant, ModuleId, Operand, Type},
};

/// Properties of a tensor, in the language of archives.
const PROPERTIES: &[&str] = &[
    "shape",
    "dtype",
    "layout",
    "device",
    "is_cuda",
    "requires_grad",
    "data",
    "ndim",
    "T",
    "grad",
    "name",
    "value",
    "itemsize",
];

impl<'l, 'a> Flattener<'l, 'a, '_, '_, '_, '_> {
    /// Evaluates an expression; operators in it become nodes.
    pub(super) fn eval(&mut self, expr: &'l Expr<'a>, frame: &mut Frame<'a>) -> Result<Bound, TraceError> {
        let constant = |constant| Ok(Bound::Operand(Operand::Constant(constant)));
        match &expr.kind {
            ExprKind::None => constant(Constant::None),
            ExprKind::Bool(value) => constant(Constant::Bool(*value)),
            ExprKind::Int(value) => constant(Constant::Int(*value)),
            ExprKind::Float(value) => constant(Constant::Float(*value)),
            ExprKind::Complex(real, imaginary) => constant(Constant::Complex(*real, *imaginary)),
            ExprKind::Str(text) => constant(Constant::Str(text.clone())),
            ExprKind::Name(name) => self.name(name, expr, frame),
            ExprKind::Negative(inner) => self.negative(inner, expr, frame),
            ExprKind::Tuple(items) => Ok(Bound::Operand(Operand::Tuple(self.all(items, frame)?))),
            ExprKind::List(items) => Ok(Bound::Operand(Operand::List(self.all(items, frame)?))),
            ExprKind::Dict(pairs) => {
                let mut read = Vec::with_capacity(pairs.len());
                for (key, value) in pairs {
                    let key = self.one(key, frame)?;
                    read.push((key, self.one(value, frame)?));
                }
                Ok(Bound::Operand(Operand::Dict(read)))
            }
            ExprKind::Attribute(base, name) => self.attribute(base, name, expr, frame),
            ExprKind::Call(..) => self.call(expr, &[], frame),
            ExprKind::Index(base, indices) => self.subscript(base, indices, &[], expr, frame),
            ExprKind::Slice(base, first, last) => {
                let mut arguments = vec![self.one(base, frame)?];
                for bound in [first, last] {
                    arguments.push(match bound {
                        Some(bound) => self.one(bound, frame)?,
                        None => Operand::default(),
                    });
                }
                self.simple_node("aten::slice", arguments, &[], expr, frame)
            }
        }
    }

    /// As [`Self::eval`], but a node's value takes the target's name.
    pub(super) fn eval_named(
        &mut self,
        expr: &'l Expr<'a>,
        target: &Expr<'a>,
        frame: &mut Frame<'a>,
    ) -> Result<Bound, TraceError> {
        match &expr.kind {
            ExprKind::Index(base, indices) => self.subscript(base, indices, &[target], expr, frame),
            _ => self.eval(expr, frame),
        }
    }

    /// Evaluates to an operand.
    pub(super) fn one(&mut self, expr: &'l Expr<'a>, frame: &mut Frame<'a>) -> Result<Operand, TraceError> {
        self.enter((frame.source, expr.text))?;
        let bound = self.eval(expr, frame)?;
        self.leave();
        self.operand(bound, (frame.source, expr.text))
    }

    fn all(&mut self, items: &'l [Expr<'a>], frame: &mut Frame<'a>) -> Result<Vec<Operand>, TraceError> {
        let list = items.iter().map(|item| self.one(item, frame)).collect::<Result<Vec<_>, _>>()?;
        for item in &list {
            self.spend(item)?;
        }
        Ok(list)
    }

    pub(super) fn name(
        &mut self,
        name: &str,
        expr: &Expr<'a>,
        frame: &Frame<'a>,
    ) -> Result<Bound, TraceError> {
        if let Some(bound) = frame.names.get(name) {
            if let Bound::Operand(operand @ (Operand::List(_) | Operand::Tuple(_) | Operand::Dict(_))) = bound
            {
                self.spend(operand)?;
            }
            return Ok(bound.clone());
        }
        let constant = match name {
            "inf" => Constant::Float(f64::INFINITY),
            "nan" => Constant::Float(f64::NAN),
            _ => return Err(self.wrong((frame.source, expr.text), format!("name `{name}` is not defined"))),
        };
        Ok(Bound::Operand(Operand::Constant(constant)))
    }

    fn negative(
        &mut self,
        inner: &'l Expr<'a>,
        expr: &'l Expr<'a>,
        frame: &mut Frame<'a>,
    ) -> Result<Bound, TraceError> {
        let operand = match self.one(inner, frame)? {
            Operand::Constant(Constant::Int(value)) => Constant::Int(value.wrapping_neg()),
            Operand::Constant(Constant::Float(value)) => Constant::Float(-value),
            operand => return self.simple_node("aten::neg", vec![operand], &[], expr, frame),
        };
        Ok(Bound::Operand(Operand::Constant(operand)))
    }

    fn attribute(
        &mut self,
        base: &'l Expr<'a>,
        name: &str,
        expr: &'l Expr<'a>,
        frame: &mut Frame<'a>,
    ) -> Result<Bound, TraceError> {
        if base.kind == ExprKind::Name("CONSTANTS") && !frame.names.contains_key("CONSTANTS") {
            return match self.modules.constant(name, self.records)? {
                Some(attribute) => self.bound(attribute, expr, frame),
                None => Err(self.wrong((frame.source, expr.text), format!("there is no constant `{name}`"))),
            };
        }
        if let ExprKind::Name("torch") = base.kind
            && let Some(value) = match name {
                "inf" => Some(f64::INFINITY),
                "nan" => Some(f64::NAN),
                "pi" => Some(std::f64::consts::PI),
                _ => None,
            }
        {
            return Ok(Bound::Operand(Operand::Constant(Constant::Float(value))));
        }
        if let Some(path) = operators::global(expr) {
            return Ok(Bound::Global(path));
        }
        self.enter((frame.source, expr.text))?;
        let base = self.eval(base, frame)?;
        self.leave();
        match base {
            Bound::Global(class) => Ok(Bound::Global(format!("{class}.{name}"))),
            Bound::Module(module) => self.module_attribute(module, name, expr, frame),
            Bound::Named(class, Operand::Tuple(items)) => {
                let index = types::fields(self.code, &class).iter().position(|field| field == name);
                match index.and_then(|index| items.into_iter().nth(index)) {
                    Some(item) => Ok(Bound::Operand(item)),
                    None => {
                        Err(self.wrong((frame.source, expr.text), format!("`{class}` has no field `{name}`")))
                    }
                }
            }
            Bound::Operand(operand) | Bound::Named(_, operand) => {
                // A property of a tensor, or a field of an object that was not followed.
                let is_property = PROPERTIES.contains(&name);
                let operator = if is_property { format!("prim::{name}") } else { "prim::GetAttr".to_owned() };
                let mut arguments = vec![operand];
                if operator == "prim::GetAttr" {
                    arguments.push(Operand::Constant(Constant::Str(name.to_owned())));
                }
                self.simple_node(&operator, arguments, &[], expr, frame)
            }
        }
    }

    pub(super) fn module_attribute(
        &mut self,
        module: ModuleId,
        name: &str,
        expr: &'l Expr<'a>,
        frame: &mut Frame<'a>,
    ) -> Result<Bound, TraceError> {
        match self.modules.attribute(module, name, self.records)? {
            Some(attribute) => self.bound(attribute, expr, frame),
            None => {
                let path = &self.modules.modules[module.index()].path;
                let owner =
                    if path.is_empty() { "the root module".to_owned() } else { format!("module `{path}`") };
                Err(self.wrong((frame.source, expr.text), format!("{owner} has no attribute `{name}`")))
            }
        }
    }

    fn bound(
        &mut self,
        attribute: Attribute,
        expr: &'l Expr<'a>,
        frame: &mut Frame<'a>,
    ) -> Result<Bound, TraceError> {
        match attribute {
            Attribute::Module(module) => Ok(Bound::Module(module)),
            Attribute::Operand(operand) => {
                self.spend(&operand)?;
                Ok(Bound::Operand(operand))
            }
            Attribute::Object(class) => {
                let span = self.code.span(frame.source, expr.text);
                let name = Operand::Constant(Constant::Str(expr.text.to_owned()));
                let node = self.node(
                    "prim::GetAttr".to_owned(),
                    vec![Argument { name: None, operand: name }],
                    span,
                )?;
                self.note(format!("an object of class `{class}` is not followed"), span, Some(node));
                let value = self.output(node, "object", Type::Class(class), span);
                Ok(Bound::Operand(Operand::Value(value)))
            }
        }
    }

    /// `a[b]`: of a tuple it is known which part, of the rest an operator finds out.
    fn subscript(
        &mut self,
        base: &'l Expr<'a>,
        indices: &'l [Expr<'a>],
        targets: &[&Expr<'a>],
        expr: &'l Expr<'a>,
        frame: &mut Frame<'a>,
    ) -> Result<Bound, TraceError> {
        self.enter((frame.source, expr.text))?;
        let bound = self.eval(base, frame)?;
        self.leave();
        let mut arguments = vec![self.operand(bound, (frame.source, base.text))?];
        for index in indices {
            arguments.push(self.one(index, frame)?);
        }
        if let (Operand::Tuple(items), [_, Operand::Constant(Constant::Int(index))]) =
            (&arguments[0], &arguments[..])
        {
            let from_end = items.len() as i64 + index;
            let position = usize::try_from(if *index < 0 { from_end } else { *index });
            return match position.ok().and_then(|position| items.get(position)) {
                Some(item) => Ok(Bound::Operand(item.clone())),
                None => {
                    let reason = format!("index {index} of a tuple of {}", items.len());
                    Err(self.wrong((frame.source, expr.text), reason))
                }
            };
        }
        let operator = match types::of(&arguments[0], &self.values) {
            Type::Tuple(_) => "prim::TupleIndex",
            _ => "aten::__getitem__",
        };
        self.simple_node(operator, arguments, targets, expr, frame)
    }

    /// Makes a node of one result.
    pub(super) fn simple_node(
        &mut self,
        operator: &str,
        arguments: Vec<Operand>,
        targets: &[&Expr<'a>],
        expr: &Expr<'a>,
        frame: &Frame<'a>,
    ) -> Result<Bound, TraceError> {
        let arguments = arguments.into_iter().map(|operand| Argument { name: None, operand }).collect();
        self.operator_node(operator.to_owned(), arguments, targets, expr, frame)
    }
}

/// Returns the name of an assignment's target.
pub(super) fn target_name<'a>(target: &Expr<'a>) -> &'a str {
    match &target.kind {
        ExprKind::Name(name) => name,
        ExprKind::Attribute(_, name) => name,
        _ => "value",
    }
}
