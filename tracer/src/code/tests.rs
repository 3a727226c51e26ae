//! Print, then parse: random trees come back as they were.

use proptest::prelude::*;

use super::{
    ast::{CallArgument, Definition, Expr, ExprKind, Parameter, Statement, StatementKind},
    expression::expression,
    parse_body, parse_file,
};
use crate::Source;

const NAMES: [&str; 6] = ["x", "_0", "self", "torch", "input_1", "größe"];

fn expr(kind: ExprKind<'static>) -> Expr<'static> {
    Expr { kind, text: "" }
}

fn boxed(expr: Expr<'static>) -> Box<Expr<'static>> {
    Box::new(expr)
}

fn name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&NAMES[..])
}

fn finite() -> impl Strategy<Value = f64> {
    any::<f64>().prop_filter("a literal", |number| number.is_finite())
}

fn atoms() -> impl Strategy<Value = Expr<'static>> {
    prop_oneof![
        name().prop_map(ExprKind::Name),
        Just(ExprKind::None),
        any::<bool>().prop_map(ExprKind::Bool),
        any::<i64>().prop_map(ExprKind::Int),
        finite().prop_map(ExprKind::Float),
        (finite(), finite()).prop_map(|(real, imaginary)| ExprKind::Complex(real, imaginary)),
        "\\PC{0,4}|[\n\t\"'\\\\\\x01é]{0,3}".prop_map(ExprKind::Str),
    ]
    .prop_map(expr)
}

fn expressions() -> impl Strategy<Value = Expr<'static>> {
    atoms().prop_recursive(4, 24, 3, |inner| {
        let list = || prop::collection::vec(inner.clone(), 0..4);
        let argument =
            (prop::option::of(name()), inner.clone()).prop_map(|(name, value)| CallArgument { name, value });
        let bound = || prop::option::of(inner.clone().prop_map(boxed));
        prop_oneof![
            list().prop_map(ExprKind::Tuple),
            list().prop_map(ExprKind::List),
            prop::collection::vec((inner.clone(), inner.clone()), 0..3).prop_map(ExprKind::Dict),
            // A sign before digits is part of the number.
            inner
                .clone()
                .prop_filter("no number", |e| !is_number(e))
                .prop_map(|e| ExprKind::Negative(boxed(e))),
            (inner.clone(), name()).prop_map(|(base, name)| ExprKind::Attribute(boxed(base), name)),
            (inner.clone(), prop::collection::vec(argument, 0..3))
                .prop_map(|(base, arguments)| ExprKind::Call(boxed(base), arguments)),
            (inner.clone(), prop::collection::vec(inner.clone(), 1..3))
                .prop_map(|(base, indices)| ExprKind::Index(boxed(base), indices)),
            (inner.clone(), bound(), bound()).prop_map(|(base, from, to)| ExprKind::Slice(
                boxed(base),
                from,
                to
            )),
        ]
        .prop_map(expr)
    })
}

fn is_number(expr: &Expr<'_>) -> bool {
    matches!(expr.kind, ExprKind::Int(_) | ExprKind::Float(_))
}

fn statements() -> impl Strategy<Value = Statement<'static>> {
    let target = || {
        prop_oneof![
            name().prop_map(ExprKind::Name),
            (name(), name())
                .prop_map(|(base, name)| ExprKind::Attribute(boxed(expr(ExprKind::Name(base))), name)),
        ]
        .prop_map(expr)
    };
    let assign = (
        prop::collection::vec(target(), 1..3),
        any::<bool>(),
        prop::option::of(expressions()),
        expressions(),
    )
        .prop_map(|(targets, unpack, type_, value)| {
            let type_ = type_.filter(|_| targets.len() == 1 && !unpack);
            StatementKind::Assign { targets, unpack, type_, value }
        });
    let plain = prop_oneof![
        4 => assign,
        1 => (target(), expressions()).prop_map(|(target, type_)| StatementKind::Declare { target, type_ }),
        2 => expressions().prop_map(StatementKind::Expression),
        2 => expressions().prop_map(StatementKind::Return),
        1 => Just(StatementKind::Pass),
    ]
    .prop_map(statement);
    plain.prop_recursive(3, 12, 3, |inner| {
        let block = || prop::collection::vec(inner.clone(), 1..4);
        let otherwise = prop::collection::vec(inner.clone(), 0..3);
        prop_oneof![
            (expressions(), block(), otherwise).prop_map(|(condition, then, otherwise)| StatementKind::If {
                condition,
                then,
                otherwise
            }),
            (expressions(), block()).prop_map(|(condition, block)| StatementKind::While { condition, block }),
            (name(), expressions(), block()).prop_map(|(target, iterable, block)| StatementKind::For {
                target,
                iterable,
                block
            }),
            (expressions(), prop::option::of(name()), block())
                .prop_map(|(context, target, block)| StatementKind::With { context, target, block }),
            definitions(block()).prop_map(StatementKind::Function),
        ]
        .prop_map(statement)
    })
}

fn statement(kind: StatementKind<'static>) -> Statement<'static> {
    Statement { kind, text: "" }
}

fn definitions(
    block: impl Strategy<Value = Vec<Statement<'static>>>,
) -> impl Strategy<Value = Definition<'static>> {
    let parameter = (name(), prop::option::of(expressions()), prop::option::of(expressions()))
        .prop_map(|(name, type_, default)| Parameter { name, type_, default });
    (name(), prop::collection::vec(parameter, 0..3), prop::option::of(expressions()), block)
        .prop_map(|(name, parameters, returns, block)| Definition { name, parameters, returns, block })
}

/// Torch indents what goes on in the next line deeper than any block here is.
const CONTINUED: &str = ",\n                        ";

/// Prints as torch does, but for where lines break.
struct Printer {
    text: String,
    indent: usize,
}

impl Printer {
    fn line(&mut self, text: &str) {
        self.text += &" ".repeat(self.indent);
        self.text += text;
        self.text.push('\n');
    }

    fn block(&mut self, head: &str, block: &[Statement<'_>]) {
        self.line(&format!("{head}:"));
        self.indent += 2;
        block.iter().for_each(|statement| self.statement(statement));
        self.indent -= 2;
    }

    fn definition(&mut self, definition: &Definition<'_>) {
        let parameter = |parameter: &Parameter<'_>| {
            let type_ = parameter.type_.as_ref().map_or(String::new(), |type_| format!(": {}", show(type_)));
            let default =
                parameter.default.as_ref().map_or(String::new(), |value| format!("={}", show(value)));
            format!("{}{type_}{default}", parameter.name)
        };
        let parameters: Vec<String> = definition.parameters.iter().map(parameter).collect();
        let returns =
            definition.returns.as_ref().map_or(String::new(), |type_| format!(" -> {}", show(type_)));
        let head = format!("def {}({}){returns}", definition.name, parameters.join(CONTINUED));
        self.block(&head, &definition.block);
    }

    fn statement(&mut self, statement: &Statement<'_>) {
        match &statement.kind {
            StatementKind::Assign { targets, unpack, type_, value } => {
                let targets: Vec<String> = targets.iter().map(show).collect();
                let comma = if *unpack { ", " } else { "" };
                let type_ = type_.as_ref().map_or(String::new(), |type_| format!(" : {}", show(type_)));
                self.line(&format!("{}{comma}{type_} = {}", targets.join(", "), show(value)));
            }
            StatementKind::Declare { target, type_ } => {
                self.line(&format!("{} : {}", show(target), show(type_)));
            }
            StatementKind::Expression(value) => self.line(&show(value)),
            StatementKind::Return(value) => self.line(&format!("return {}", show(value))),
            StatementKind::Pass => self.line("pass"),
            StatementKind::If { condition, then, otherwise } => {
                self.block(&format!("if {}", show(condition)), then);
                if !otherwise.is_empty() {
                    self.block("else", otherwise);
                }
            }
            StatementKind::While { condition, block } => {
                self.block(&format!("while {}", show(condition)), block);
            }
            StatementKind::For { target, iterable, block } => {
                self.block(&format!("for {target} in {}", show(iterable)), block);
            }
            StatementKind::With { context, target, block } => {
                let target = target.map_or(String::new(), |target| format!(" as {target}"));
                self.block(&format!("with {}{target}", show(context)), block);
            }
            StatementKind::Function(definition) => self.definition(definition),
        }
    }
}

fn show(expr: &Expr<'_>) -> String {
    let list = |items: &[Expr<'_>]| items.iter().map(show).collect::<Vec<_>>().join(", ");
    let bound = |expr: &Option<Box<Expr<'_>>>| expr.as_deref().map_or(String::new(), show);
    match &expr.kind {
        ExprKind::Name(name) => (*name).to_owned(),
        ExprKind::None => "None".to_owned(),
        ExprKind::Bool(true) => "True".to_owned(),
        ExprKind::Bool(false) => "False".to_owned(),
        ExprKind::Int(value) => value.to_string(),
        ExprKind::Float(value) => format!("{value:?}"),
        ExprKind::Complex(real, imaginary) => format!("({real:?}{imaginary:+?}j)"),
        ExprKind::Str(text) => quote(text),
        ExprKind::Tuple(items) if items.len() == 1 => format!("({},)", list(items)),
        ExprKind::Tuple(items) => format!("({})", list(items)),
        ExprKind::List(items) => format!("[{}]", list(items)),
        ExprKind::Dict(pairs) => {
            let pair = |(key, value): &(Expr<'_>, Expr<'_>)| format!("{}: {}", show(key), show(value));
            format!("{{{}}}", pairs.iter().map(pair).collect::<Vec<_>>().join(", "))
        }
        ExprKind::Negative(inner) => format!("-{}", enclosed(inner, false)),
        ExprKind::Attribute(base, name) => format!("{}.{name}", enclosed(base, true)),
        ExprKind::Call(base, arguments) => {
            let argument = |argument: &CallArgument<'_>| match argument.name {
                Some(name) => format!("{name}={}", show(&argument.value)),
                None => show(&argument.value),
            };
            let arguments: Vec<String> = arguments.iter().map(argument).collect();
            format!("{}({})", enclosed(base, true), arguments.join(CONTINUED))
        }
        ExprKind::Index(base, indices) => format!("{}[{}]", enclosed(base, true), list(indices)),
        ExprKind::Slice(base, from, to) => {
            format!("{}[{}:{}]", enclosed(base, true), bound(from), bound(to))
        }
    }
}

/// A sign binds closer than what follows an operand, so both need brackets around the other.
fn enclosed(expr: &Expr<'_>, is_base: bool) -> String {
    let is_postfix = matches!(
        expr.kind,
        ExprKind::Attribute(..) | ExprKind::Call(..) | ExprKind::Index(..) | ExprKind::Slice(..)
    );
    let needs_brackets =
        if is_base { is_number(expr) || matches!(expr.kind, ExprKind::Negative(_)) } else { is_postfix };
    if needs_brackets { format!("({})", show(expr)) } else { show(expr) }
}

/// Quotes as torch does, whose octal digits come from signed bytes.
fn quote(text: &str) -> String {
    let mut quoted = "\"".to_owned();
    for byte in text.bytes() {
        match byte {
            b'\n' => quoted += "\\n",
            b'\t' => quoted += "\\t",
            b'"' | b'\\' => quoted.extend(['\\', char::from(byte)]),
            b' '..=b'~' => quoted.push(char::from(byte)),
            _ => {
                let signed = i32::from(byte as i8);
                let digits = [signed / 64, signed % 64 / 8, signed % 8];
                quoted.push('\\');
                quoted.extend(digits.map(|digit| char::from((i32::from(b'0') + digit) as u8)));
            }
        }
    }
    quoted + "\""
}

fn source(text: String) -> Source {
    Source { name: "test.py".to_owned(), text }
}

#[test]
fn signs_bind_closest() {
    let text = "def f(x):\n  return -x.y\n".to_owned();
    let source = source(text);
    let file = parse_file(&source).expect("a file");
    let body = parse_body(&source, &file.functions["f"]).expect("a body");
    let name = expr(ExprKind::Name("x"));
    let negative = expr(ExprKind::Negative(boxed(name)));
    let expected = statement(StatementKind::Return(expr(ExprKind::Attribute(boxed(negative), "y"))));
    assert_eq!(body.block, [expected]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn printed_functions_read_back(
        made in definitions(prop::collection::vec(statements(), 1..6)),
        is_method in any::<bool>(),
    ) {
        let mut printer = Printer { text: String::new(), indent: 0 };
        if is_method {
            printer.text += "class M(Module):\n  __parameters__ = [\"w\", ]\n  w : Tensor\n";
            printer.indent = 2;
        }
        printer.definition(&made);
        let source = source(printer.text);
        let file = parse_file(&source).map_err(|error| TestCaseError::fail(format!("{error}\n{}", source.text)))?;
        let function = if is_method {
                prop_assert_eq!(&file.classes["M"].parameters, &["w"]);
                &file.classes["M"].methods[made.name]
            } else { &file.functions[made.name] };
        let body = parse_body(&source, function);
        let body = body.map_err(|error| TestCaseError::fail(format!("{error}\n{}", source.text)))?;
        prop_assert_eq!(body, &made, "{}", source.text);
    }
}

/// Modules lie deeper inside one another than brackets ever do; a chain without an end is an error all the same.
#[test]
fn names_of_modules_may_be_long() {
    let parse = |names: usize, brackets: usize| {
        let (open, close) = ("(".repeat(brackets), ")".repeat(brackets));
        let text = format!("{open}self{}{close}.forward(x, )", ".module".repeat(names));
        let (rest, _) = expression(&text, 0).map_err(|error| error.to_string())?;
        assert_eq!(rest, "");
        Ok::<(), String>(())
    };
    assert_eq!(parse(101, 0), Ok(()));
    assert_eq!(parse(101, 30), Ok(()));
    for (names, brackets) in [(300, 0), (100_000, 0), (101, 60), (1, 70)] {
        let said = parse(names, brackets).expect_err("too deep");
        assert!(said.contains("at most 64 nested brackets"), "{said}");
    }
}
