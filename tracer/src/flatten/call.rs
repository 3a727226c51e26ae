//! Calls: operators leave a node, modules and functions are walked.

use std::collections::HashMap;

use super::{
    Bound, Flattener, Frame, MAX_CALL_DEPTH, MAX_CALLS,
    expression::target_name,
    operators::{Callee, callee, conversion},
    statement::Flow,
    types,
};
use crate::{
    code::ast::{CallArgument, Expr, ExprKind, Function},
    constant_folding::{is_mark, settled},
    error::TraceError,
    program::{Argument, Call, CallId, Constant, ModuleId, Operand, Type},
};

/// An argument before it is bound to a parameter.
type Passed<'a> = (Option<&'a str>, Bound);

impl<'l, 'a> Flattener<'l, 'a, '_, '_, '_, '_> {
    /// Evaluates a call; the nodes' values take the targets' names. Several targets give a tuple.
    pub(super) fn call(
        &mut self,
        expr: &'l Expr<'a>,
        targets: &[&Expr<'a>],
        frame: &mut Frame<'a>,
    ) -> Result<Bound, TraceError> {
        self.call_giving(expr, targets, true, frame)
    }

    /// Evaluates a call that stands alone: its operator has no outputs.
    pub(super) fn call_for_nothing(
        &mut self,
        expr: &'l Expr<'a>,
        frame: &mut Frame<'a>,
    ) -> Result<(), TraceError> {
        self.call_giving(expr, &[], false, frame).map(|_| ())
    }

    fn call_giving(
        &mut self,
        expr: &'l Expr<'a>,
        targets: &[&Expr<'a>],
        gives: bool,
        frame: &mut Frame<'a>,
    ) -> Result<Bound, TraceError> {
        let ExprKind::Call(function, arguments) = &expr.kind else { return self.eval(expr, frame) };
        let place = (frame.source, expr.text);
        match callee(function, |name| frame.names.contains_key(name)) {
            Callee::Operator(operator) => {
                let arguments = self.arguments(arguments, frame)?;
                if is_mark(&operator) {
                    Ok(Bound::Operand(Operand::default()))
                } else if let ("aten::wait", [awaited]) = (operator.as_str(), arguments.as_slice())
                    && !self.is_future(&awaited.operand)
                {
                    Ok(Bound::Operand(awaited.operand.clone()))
                } else if gives {
                    self.operator_node(operator, arguments, targets, expr, frame)
                } else {
                    let span = self.code.span(frame.source, expr.text);
                    self.node(operator, arguments, span)?;
                    Ok(Bound::Operand(Operand::default()))
                }
            }
            Callee::Device => match arguments.as_slice() {
                [CallArgument { value: Expr { kind: ExprKind::Str(name), .. }, .. }] => {
                    Ok(Bound::Operand(Operand::Constant(Constant::Device(name.clone()))))
                }
                _ => {
                    let arguments = self.arguments(arguments, frame)?;
                    self.operator_node("aten::device".to_owned(), arguments, targets, expr, frame)
                }
            },
            Callee::Builtin(name) => self.builtin(name, arguments, targets, expr, frame),
            Callee::Global(name) => self.global(&name, arguments, targets, expr, frame),
            Callee::Method(base, method) => {
                self.enter(place)?;
                let base = self.eval(base, frame)?;
                self.leave();
                match base {
                    Bound::Module(module) => {
                        let passed = self.passed(arguments, frame)?;
                        self.method(module, method, passed, place)
                    }
                    Bound::Global(class) => {
                        self.global(&format!("{class}.{method}"), arguments, targets, expr, frame)
                    }
                    bound => {
                        let first = self.operand(bound, place)?;
                        let mut list = vec![Argument { name: None, operand: first }];
                        list.extend(self.arguments(arguments, frame)?);
                        self.unfollowed(method, list, targets, expr, frame)
                    }
                }
            }
            Callee::Bound => {
                self.enter(place)?;
                let bound = self.eval(function, frame)?;
                self.leave();
                match bound {
                    Bound::Global(name) => self.global(&name, arguments, targets, expr, frame),
                    _ => {
                        let arguments = self.arguments(arguments, frame)?;
                        self.unfollowed(function.text, arguments, targets, expr, frame)
                    }
                }
            }
        }
    }

    fn builtin(
        &mut self,
        name: &'a str,
        arguments: &'l [CallArgument<'a>],
        targets: &[&Expr<'a>],
        expr: &'l Expr<'a>,
        frame: &mut Frame<'a>,
    ) -> Result<Bound, TraceError> {
        let place = (frame.source, expr.text);
        if let ("fork", [CallArgument { value: Expr { kind: ExprKind::Name(function), .. }, .. }]) =
            (name, arguments)
            && let Some(function) = frame.functions.get(function)
        {
            return self.forked(*function, frame, place);
        }
        match (name, arguments) {
            ("annotate", [type_, value]) => self.annotate(&type_.value, &value.value, targets, expr, frame),
            ("unchecked_cast", [_, value]) => {
                self.enter(place)?;
                let bound = self.eval(&value.value, frame);
                self.leave();
                bound
            }
            ("getattr", [base, CallArgument { value: Expr { kind: ExprKind::Str(attribute), .. }, .. }]) => {
                self.enter(place)?;
                let base = self.eval(&base.value, frame)?;
                self.leave();
                match base {
                    Bound::Module(module) => self.module_attribute(module, attribute, expr, frame),
                    bound => {
                        let operand = self.operand(bound, place)?;
                        let name = Operand::Constant(Constant::Str(attribute.clone()));
                        self.simple_node("prim::GetAttr", vec![operand, name], targets, expr, frame)
                    }
                }
            }
            ("float", [CallArgument { value: Expr { kind: ExprKind::Str(text), .. }, .. }]) => {
                match text.parse::<f64>() {
                    Ok(value) => Ok(Bound::Operand(Operand::Constant(Constant::Float(value)))),
                    Err(_) => Err(self.wrong(place, format!("`{text}` is not a number"))),
                }
            }
            ("isinstance", [value, type_]) => {
                let operand = self.one(&value.value, frame)?;
                let type_ = Operand::Constant(Constant::Str(type_.value.text.to_owned()));
                self.simple_node("prim::isinstance", vec![operand, type_], targets, expr, frame)
            }
            ("uninitialized", [type_]) => {
                let type_ = Operand::Constant(Constant::Str(type_.value.text.to_owned()));
                self.simple_node("prim::Uninitialized", vec![type_], targets, expr, frame)
            }
            _ => {
                let arguments = self.arguments(arguments, frame)?;
                match conversion(name) {
                    Some(operator) => {
                        self.operator_node(operator.to_owned(), arguments, targets, expr, frame)
                    }
                    None => self.unfollowed(name, arguments, targets, expr, frame),
                }
            }
        }
    }

    /// `annotate(T, x)` only tells a type, except where it makes a number of a tensor.
    fn annotate(
        &mut self,
        type_: &'l Expr<'a>,
        value: &'l Expr<'a>,
        targets: &[&Expr<'a>],
        expr: &'l Expr<'a>,
        frame: &mut Frame<'a>,
    ) -> Result<Bound, TraceError> {
        if let ExprKind::Call(callee, arguments) = &value.kind
            && arguments.is_empty()
            && let ExprKind::Attribute(base, "tolist") = &callee.kind
        {
            let operand = self.one(base, frame)?;
            let bound = self.simple_node("prim::tolist", vec![operand], targets, expr, frame)?;
            if let Bound::Operand(Operand::Value(value)) = &bound {
                self.values[value.index()].type_ = types::read(type_);
            }
            return Ok(bound);
        }
        self.enter((frame.source, expr.text))?;
        let implicit = match &type_.kind {
            ExprKind::Name(type_) => operators::implicit_conversion(type_),
            _ => None,
        };
        let bound = match (&value.kind, implicit) {
            (ExprKind::Call(..), None) => self.call(value, targets, frame)?,
            _ => self.eval(value, frame)?,
        };
        self.leave();
        match (bound, implicit) {
            (Bound::Operand(operand), Some(operator))
                if matches!(types::of(&operand, &self.values), Type::Tensor(_)) =>
            {
                self.simple_node(operator, vec![operand], targets, expr, frame)
            }
            (bound, _) => Ok(bound),
        }
    }

    /// A free function is walked in place; a class makes a tuple or an object.
    fn global(
        &mut self,
        name: &str,
        arguments: &'l [CallArgument<'a>],
        targets: &[&Expr<'a>],
        expr: &'l Expr<'a>,
        frame: &mut Frame<'a>,
    ) -> Result<Bound, TraceError> {
        if let Some((source, function)) = self.code.function(name)? {
            let passed = self.passed(arguments, frame)?;
            return self.function(None, source, function, passed, (frame.source, expr.text));
        }
        if let Some((_, class)) = self.code.class(name)?
            && class.base == Some("NamedTuple")
        {
            let mut items = Vec::new();
            for argument in arguments {
                items.push(self.one(&argument.value, frame)?);
            }
            let operand = Operand::Tuple(items);
            self.spend(&operand)?;
            return Ok(Bound::Named(name.to_owned(), operand));
        }
        let mut list = Vec::new();
        for argument in arguments {
            let operand = self.one(&argument.value, frame)?;
            list.push(Argument { name: argument.name.map(str::to_owned), operand });
        }
        self.unfollowed(name, list, targets, expr, frame)
    }

    /// A call that leads nowhere we can see stays one opaque node.
    fn unfollowed(
        &mut self,
        what: &str,
        arguments: Vec<Argument>,
        targets: &[&Expr<'a>],
        expr: &'l Expr<'a>,
        frame: &mut Frame<'a>,
    ) -> Result<Bound, TraceError> {
        let first = self.nodes.len() as u32;
        let bound = self.operator_node("prim::Opaque".to_owned(), arguments, targets, expr, frame)?;
        let span = self.code.span(frame.source, expr.text);
        self.note(
            format!("the call of `{what}` is kept as one opaque operator"),
            span,
            Some(crate::NodeId(first)),
        );
        Ok(bound)
    }

    /// Makes the node of an operator: one output for each target, one if there is none.
    pub(super) fn operator_node(
        &mut self,
        operator: String,
        arguments: Vec<Argument>,
        targets: &[&Expr<'a>],
        expr: &Expr<'a>,
        frame: &Frame<'a>,
    ) -> Result<Bound, TraceError> {
        if targets.len() < 2
            && let Some(constant) = settled(&operator, &arguments, &self.values, &self.nodes)
        {
            return Ok(Bound::Operand(Operand::Constant(constant)));
        }
        let mut known = Vec::with_capacity(arguments.len());
        for argument in &arguments {
            self.spend(&argument.operand)?;
            known.push(types::of(&argument.operand, &self.values));
        }
        let item = match (operator.as_str(), arguments.get(1).map(|index| &index.operand)) {
            ("prim::TupleIndex", Some(Operand::Constant(Constant::Int(index)))) => {
                types::item(&known[0], *index)
            }
            _ => None,
        };
        let type_ = item.unwrap_or_else(|| types::result(&operator, &known));
        let span = self.code.span(frame.source, expr.text);
        let short = operator.rsplit("::").next().unwrap_or("value").trim_matches('_').to_owned();
        let node = self.node(operator, arguments, span)?;
        match targets {
            [] => Ok(Bound::Operand(Operand::Value(self.output(node, &short, type_, span)))),
            [target] => {
                let span = self.code.span(frame.source, target.text);
                Ok(Bound::Operand(Operand::Value(self.output(node, target_name(target), type_, span))))
            }
            targets => {
                let mut parts = Vec::with_capacity(targets.len());
                for target in targets {
                    let span = self.code.span(frame.source, target.text);
                    let value = self.output(node, target_name(target), types::tensor(), span);
                    parts.push(Operand::Value(value));
                }
                Ok(Bound::Operand(Operand::Tuple(parts)))
            }
        }
    }

    fn arguments(
        &mut self,
        arguments: &'l [CallArgument<'a>],
        frame: &mut Frame<'a>,
    ) -> Result<Vec<Argument>, TraceError> {
        let mut list = Vec::with_capacity(arguments.len());
        for argument in arguments {
            let operand = self.one(&argument.value, frame)?;
            list.push(Argument { name: argument.name.map(str::to_owned), operand });
        }
        Ok(list)
    }

    fn passed(
        &mut self,
        arguments: &'l [CallArgument<'a>],
        frame: &mut Frame<'a>,
    ) -> Result<Vec<Passed<'a>>, TraceError> {
        let mut list = Vec::with_capacity(arguments.len());
        for argument in arguments {
            self.enter((frame.source, argument.value.text))?;
            list.push((argument.name, self.eval(&argument.value, frame)?));
            self.leave();
        }
        Ok(list)
    }

    /// Calls a module's method: a new entry in the tree of calls.
    pub(super) fn method(
        &mut self,
        module: ModuleId,
        method: &str,
        passed: Vec<Passed<'_>>,
        place: (usize, &str),
    ) -> Result<Bound, TraceError> {
        let class = self.modules.classes[module.index()].clone();
        let found =
            self.code.class(&class)?.and_then(|(source, class)| Some((source, class.methods.get(method)?)));
        let Some((source, function)) = found else {
            return Err(self.wrong(place, format!("class `{class}` has no method `{method}`")));
        };
        // A module that calls another method of its own stays in the same call.
        if self.calls.get(self.current.index()).is_some_and(|current| current.module == module) {
            return self.function(Some(module), source, function, passed, place);
        }
        if self.calls.len() >= MAX_CALLS {
            return Err(TraceError::Limit { what: "module calls", limit: MAX_CALLS });
        }
        let id = CallId(self.calls.len() as u32);
        let ordinal = self.ordinals.entry(module).or_insert(0);
        *ordinal += 1;
        let mut arguments = Vec::with_capacity(passed.len());
        for (_, bound) in &passed {
            if let Bound::Operand(operand) | Bound::Named(_, operand) = bound {
                arguments.push(operand.clone());
            }
        }
        let start = self.nodes.len() as u32;
        let parent = if self.calls.is_empty() { None } else { Some(self.current) };
        self.calls.push(Call {
            module,
            method: method.to_owned(),
            parent,
            ordinal: *ordinal,
            nodes: start..start,
            arguments: Vec::new(),
            output: Operand::default(),
        });
        for argument in &arguments {
            self.spend(argument)?;
        }
        self.calls[id.index()].arguments = arguments;
        let outer = std::mem::replace(&mut self.current, id);
        let bound = self.function(Some(module), source, function, passed, place)?;
        self.current = outer;
        self.calls[id.index()].nodes.end = self.nodes.len() as u32;
        if let Bound::Operand(operand) | Bound::Named(_, operand) = &bound {
            self.spend(operand)?;
            self.calls[id.index()].output = operand.clone();
        }
        Ok(bound)
    }

    /// Walks a forked function inline: running it beside the rest gives the same result.
    fn forked(
        &mut self,
        function: usize,
        frame: &Frame<'a>,
        place: (usize, &str),
    ) -> Result<Bound, TraceError> {
        let definition = self.functions[function];
        let key = (None, definition.name.as_ptr());
        self.activate(key, definition.name, place)?;
        let begun = self.begin();
        let mut inner = Frame {
            names: frame.names.clone(),
            source: frame.source,
            functions: frame.functions.clone(),
            declared: frame.declared.clone(),
        };
        let flow = self.block(&definition.block, &mut inner)?;
        self.settle(begun);
        self.leave();
        self.active.remove(&key);
        Ok(match flow {
            Flow::Return(bound) => bound,
            Flow::Next => Bound::Operand(Operand::default()),
        })
    }

    /// Tells whether an operand is the future of a `fork` that was not followed.
    fn is_future(&self, operand: &Operand) -> bool {
        let Operand::Value(value) = operand else { return false };
        let producer = self.values[value.index()].producer;
        producer.is_some_and(|node| self.nodes[node.index()].operator == "prim::fork")
    }

    /// Begins to walk a function, one level deeper.
    fn activate(
        &mut self,
        key: (Option<ModuleId>, *const u8),
        name: &str,
        place: (usize, &str),
    ) -> Result<(), TraceError> {
        if !self.active.insert(key) {
            return Err(self.wrong(place, format!("`{name}` calls itself")));
        }
        if self.active.len() > MAX_CALL_DEPTH {
            return Err(self.too_deep(place, "calls", MAX_CALL_DEPTH));
        }
        self.enter(place)
    }

    /// Walks a function's body with its parameters bound.
    fn function(
        &mut self,
        this: Option<ModuleId>,
        source: usize,
        function: &'l Function<'a>,
        passed: Vec<Passed<'_>>,
        place: (usize, &str),
    ) -> Result<Bound, TraceError> {
        let key = (this, function.text.as_ptr());
        self.activate(key, function.name, place)?;
        let definition = self.definition(source, function)?;
        let mut frame =
            Frame { names: HashMap::new(), source, functions: HashMap::new(), declared: HashMap::new() };
        let mut open = definition.parameters.iter();
        if let Some(this) = this {
            match open.next() {
                Some(parameter) => frame.names.insert(parameter.name, Bound::Module(this)),
                None => return Err(self.wrong(place, format!("`{}` has no `self`", function.name))),
            };
        }
        let mut positional = Vec::new();
        let mut named: HashMap<&str, Bound> = HashMap::new();
        for (name, bound) in passed {
            match name {
                Some(name) => drop(named.insert(name, bound)),
                None => positional.push(bound),
            }
        }
        let given = positional.len() + named.len();
        let wanted = open.len();
        let mut positional = positional.into_iter();
        for parameter in open {
            let bound = match positional.next().or_else(|| named.remove(parameter.name)) {
                Some(bound) => bound,
                None => match &parameter.default {
                    Some(default) => self.eval(default, &mut frame)?,
                    None => {
                        let reason =
                            format!("`{}` takes {wanted} arguments, {given} are given", function.name);
                        return Err(self.wrong(place, reason));
                    }
                },
            };
            frame.names.insert(parameter.name, bound);
        }
        if positional.next().is_some() || !named.is_empty() {
            let reason = format!("`{}` takes {wanted} arguments, {given} are given", function.name);
            return Err(self.wrong(place, reason));
        }
        let bound = match self.block(&definition.block, &mut frame)? {
            Flow::Return(bound) => bound,
            Flow::Next => Bound::Operand(Operand::default()),
        };
        self.leave();
        self.active.remove(&key);
        Ok(bound)
    }
}
