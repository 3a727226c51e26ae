//! The grammar of the code dialect, one function a rule.
//!
//! Rules are plain nom parsers over `&str`; `depth` counts open brackets and blocks so that a hostile file
//! meets an error and not the end of the stack. Function bodies are skipped by indentation and parsed when
//! a call reaches them: a model's unused methods cost a scan for line ends.

use std::cell::OnceCell;

use indexmap::IndexMap;
use nom::{
    Offset, Parser,
    combinator::opt,
    multi::separated_list0,
    sequence::{delimited, preceded, terminated},
};

use super::{
    ast::{
        CallArgument, Class, Definition, Expr, ExprKind, File, Function, Parameter, Statement, StatementKind,
    },
    lexer::{
        Fault, Parsed, any_space, fail, keyword, miss, must, name, need, newline, number, spaces, string,
        symbol,
    },
};

/// Open brackets, postfix operators and blocks around one another. Torch breaks lines long before.
pub(crate) const MAX_DEPTH: usize = 64;
const TOO_DEEP: &str = "at most 64 nested brackets or blocks";

/// `file = { class | def } ;`
pub(crate) fn file(input: &str) -> Parsed<'_, File<'_>> {
    let mut file = File::default();
    let mut rest = if input.is_empty() { input } else { blank_lines(input)? };
    while !rest.is_empty() {
        if keyword("class")(rest).is_ok() {
            let (next, class) = class(rest)?;
            file.classes.insert(class.name, class);
            rest = next;
        } else if keyword("def")(rest).is_ok() {
            let (next, function) = unparsed(rest, rest, 0)?;
            file.functions.insert(function.name, function);
            rest = next;
        } else if keyword("import")(rest).is_ok() || keyword("from")(rest).is_ok() {
            let line = rest.find('\n').unwrap_or(rest.len());
            rest = newline(&rest[line..])?.0;
        } else {
            return fail(rest, "`class` or `def`");
        }
    }
    Ok((rest, file))
}

fn blank_lines(input: &str) -> Result<&str, nom::Err<Fault<'_>>> {
    let (after, _) = spaces(input)?;
    Ok(match newline(after) {
        Ok((rest, ())) => rest,
        Err(_) => input,
    })
}

/// `class = "class" NAME [ "(" NAME ")" ] ":" NL INDENT { member } DEDENT ;`
fn class(input: &str) -> Parsed<'_, Class<'_>> {
    let (rest, _) = (keyword("class"), spaces).parse(input)?;
    let (rest, class_name) = must("a class name", name)(rest)?;
    let (rest, base) = opt(delimited(symbol("("), name, need(")"))).parse(rest)?;
    let (rest, _) = (spaces, need(":")).parse(rest)?;
    let (mut rest, ()) = must("the end of the line", newline)(rest)?;
    let mut class = Class {
        name: class_name,
        base,
        parameters: Vec::new(),
        buffers: Vec::new(),
        attributes: Vec::new(),
        methods: IndexMap::new(),
    };
    let (_, indent) = spaces(rest)?;
    if indent.is_empty() {
        return Ok((rest, class));
    }
    while let Some(inner) = rest.strip_prefix(indent) {
        rest = member(rest, inner, indent.len(), &mut class)?.0;
    }
    Ok((rest, class))
}

/// ```text
/// member = "__parameters__" "=" list NL | "__buffers__" "=" list NL | NAME ":" type [ "=" expr ] NL
///        | "__annotations__" "[" STRING "]" "=" type NL | NAME "=" expr NL | "pass" NL | def ;
/// ```
fn member<'a>(line: &'a str, input: &'a str, indent: usize, class: &mut Class<'a>) -> Parsed<'a, ()> {
    if let Ok((after, _)) = (keyword("def"), spaces, name).parse(input)
        && after.starts_with('(')
    {
        let (rest, function) = unparsed(line, input, indent)?;
        class.methods.insert(function.name, function);
        return Ok((rest, ()));
    }
    if let Some(rest) = input.strip_prefix("__annotations__[\"") {
        return annotation(rest, class);
    }
    let (rest, attribute) = must("a member of the class", name)(input)?;
    let (rest, _) = spaces(rest)?;
    if let Some(after) = rest.strip_prefix(':') {
        let (rest, type_) = preceded(spaces, |input| expression(input, 0)).parse(after)?;
        let (rest, _) =
            opt(preceded((spaces, symbol("="), spaces), |input| expressions(input, 0))).parse(rest)?;
        class.attributes.push((attribute.to_owned(), type_));
        return must("the end of the line", newline)(rest);
    }
    if let Some(after) = rest.strip_prefix('=') {
        let (rest, value) = preceded(spaces, |input| expressions(input, 0)).parse(after)?;
        match attribute {
            "__parameters__" => class.parameters = strings(value),
            "__buffers__" => class.buffers = strings(value),
            _ => {}
        }
        return must("the end of the line", newline)(rest);
    }
    if attribute == "pass" {
        return must("the end of the line", newline)(rest);
    }
    fail(rest, "`:` or `=`")
}

/// An attribute whose name is no identifier. Torch does not escape the name, so it ends at the *last* `"] = `.
fn annotation<'a>(input: &'a str, class: &mut Class<'a>) -> Parsed<'a, ()> {
    let line = &input[..input.find('\n').unwrap_or(input.len())];
    let Some(end) = line.rfind("\"] = ") else { return fail(input, "`\"] = ` and a type") };
    let (rest, type_) = expression(&input[end + 5..], 0)?;
    class.attributes.push((line[..end].to_owned(), type_));
    must("the end of the line", newline)(rest)
}

/// Names of `__parameters__`. Torch does not escape here either; what is odd is told by `requires_grad`.
fn strings(list: Expr<'_>) -> Vec<String> {
    let ExprKind::List(items) = list.kind else { return Vec::new() };
    items
        .into_iter()
        .filter_map(|item| if let ExprKind::Str(text) = item.kind { Some(text) } else { None })
        .collect()
}

/// Skips a function's body: all following lines that are indented deeper, or blank.
fn unparsed<'a>(line: &'a str, input: &'a str, indent: usize) -> Parsed<'a, Function<'a>> {
    let (after, function_name) =
        preceded((keyword("def"), spaces), must("a function name", name)).parse(input)?;
    let mut rest = after;
    loop {
        let Some(end) = rest.find('\n') else {
            rest = &rest[rest.len()..];
            break;
        };
        rest = &rest[end + 1..];
        let spaces = rest.bytes().take_while(|byte| *byte == b' ').count();
        let blank = matches!(rest.as_bytes().get(spaces), Some(b'\n' | b'\r'));
        if spaces <= indent && !blank {
            break;
        }
    }
    let text = &line[..line.len() - rest.len()];
    Ok((rest, Function { name: function_name, text, body: OnceCell::new() }))
}

/// `def = "def" NAME "(" param { "," param } ")" [ "->" type ] ":" block ;`
pub(crate) fn definition(input: &str, depth: usize) -> Parsed<'_, Definition<'_>> {
    let (input, indent) = spaces(input)?;
    definition_at(input, indent.len(), depth)
}

fn definition_at(input: &str, indent: usize, depth: usize) -> Parsed<'_, Definition<'_>> {
    let (rest, _) = (keyword("def"), spaces).parse(input)?;
    let (rest, function_name) = must("a function name", name)(rest)?;
    let (rest, _) = need("(")(rest)?;
    let comma = (any_space, symbol(","), any_space);
    let (rest, parameters) =
        preceded(any_space, separated_list0(comma, |input| parameter(input, depth))).parse(rest)?;
    let (rest, _) = (any_space, opt(symbol(",")), any_space, need(")")).parse(rest)?;
    let arrow = (spaces, symbol("->"), spaces);
    let (rest, returns) = opt(preceded(arrow, |input| expression(input, depth + 1))).parse(rest)?;
    let (rest, _) = (spaces, need(":")).parse(rest)?;
    let (rest, block) = block(rest, indent, depth + 1)?;
    Ok((rest, Definition { name: function_name, parameters, returns, block }))
}

/// `param = NAME [ ":" type ] [ "=" expr ] ;`
fn parameter(input: &str, depth: usize) -> Parsed<'_, Parameter<'_>> {
    let (rest, parameter_name) = name(input)?;
    let (rest, type_) =
        opt(preceded((any_space, symbol(":"), any_space), |input| expression(input, depth + 1)))
            .parse(rest)?;
    let (rest, default) =
        opt(preceded((any_space, symbol("="), any_space), |input| expression(input, depth + 1)))
            .parse(rest)?;
    Ok((rest, Parameter { name: parameter_name, type_, default }))
}

/// `block = NL INDENT { stmt } DEDENT ;`
fn block(input: &str, outer: usize, depth: usize) -> Parsed<'_, Vec<Statement<'_>>> {
    if depth > MAX_DEPTH {
        return fail(input, TOO_DEEP);
    }
    let (mut rest, ()) = must("the end of the line", newline)(input)?;
    let (first, lead) = spaces(rest)?;
    let indent = lead.len();
    if indent <= outer || first.is_empty() {
        return fail(first, "an indented block");
    }
    let mut statements = Vec::new();
    loop {
        let (line, lead) = spaces(rest)?;
        if line.is_empty() || lead.len() < indent {
            return Ok((rest, statements));
        }
        if lead.len() > indent {
            return fail(line, "the indentation of the line above");
        }
        let (next, statement) = statement(line, indent, depth)?;
        statements.push(statement);
        rest = next;
    }
}

/// ```text
/// stmt = target { "," target } [ "," ] "=" exprs NL | NAME ":" type [ "=" exprs ] NL | expr NL
///      | "return" exprs NL | "pass" NL | "if" expr ":" block [ "else" ":" block ] | "while" expr ":" block
///      | "for" NAME "in" expr ":" block | "with" expr [ "as" NAME ] ":" block | def ;
/// ```
fn statement<'a>(input: &'a str, indent: usize, depth: usize) -> Parsed<'a, Statement<'a>> {
    let made = |rest: &'a str, kind| {
        let text = &input[..input.len() - rest.len()];
        Ok((rest, Statement { kind, text: text.trim_end() }))
    };
    let first = name(input).map_or("", |(_, first)| first);
    let after = &input[first.len()..];
    match first {
        "return" => {
            let (rest, _) = spaces(after)?;
            let (rest, value) = match newline(rest) {
                Ok(_) => (rest, Expr { kind: ExprKind::None, text: &rest[..0] }),
                Err(_) => expressions(rest, depth + 1)?,
            };
            let (rest, ()) = must("the end of the line", newline)(rest)?;
            made(rest, StatementKind::Return(value))
        }
        "pass" => {
            let (rest, ()) = must("the end of the line", newline)(after)?;
            made(rest, StatementKind::Pass)
        }
        "if" => {
            let (rest, condition) = head(after, depth)?;
            let (rest, then) = block(rest, indent, depth + 1)?;
            let (rest, otherwise) = otherwise(rest, indent, depth)?;
            made(rest, StatementKind::If { condition, then, otherwise })
        }
        "while" => {
            let (rest, condition) = head(after, depth)?;
            let (rest, block) = block(rest, indent, depth + 1)?;
            made(rest, StatementKind::While { condition, block })
        }
        "for" => {
            let (rest, target) = preceded(spaces, must("a name", name)).parse(after)?;
            let (rest, _) = (spaces, must("`in`", keyword("in"))).parse(rest)?;
            let (rest, iterable) = head(rest, depth)?;
            let (rest, block) = block(rest, indent, depth + 1)?;
            made(rest, StatementKind::For { target, iterable, block })
        }
        "with" => {
            let (rest, context) = preceded(spaces, |input| expression(input, depth + 1)).parse(after)?;
            let (rest, target) = opt(preceded((spaces, keyword("as"), spaces), name)).parse(rest)?;
            let (rest, _) = (spaces, need(":")).parse(rest)?;
            let (rest, block) = block(rest, indent, depth + 1)?;
            made(rest, StatementKind::With { context, target, block })
        }
        "def" => {
            let (rest, definition) = definition_at(input, indent, depth)?;
            made(rest, StatementKind::Function(definition))
        }
        _ => {
            let (rest, kind) = simple(input, depth)?;
            let (rest, ()) = must("the end of the line", newline)(rest)?;
            made(rest, kind)
        }
    }
}

/// The expression before a block's colon.
fn head(input: &str, depth: usize) -> Parsed<'_, Expr<'_>> {
    terminated(preceded(spaces, |input| expression(input, depth + 1)), (spaces, need(":"))).parse(input)
}

fn otherwise(input: &str, indent: usize, depth: usize) -> Parsed<'_, Vec<Statement<'_>>> {
    let (line, lead) = spaces(input)?;
    if lead.len() != indent {
        return Ok((input, Vec::new()));
    }
    match keyword("else")(line) {
        Ok((rest, _)) => {
            let (rest, _) = (spaces, need(":")).parse(rest)?;
            block(rest, indent, depth + 1)
        }
        Err(_) => Ok((input, Vec::new())),
    }
}

/// Assignment, declaration or expression.
fn simple(input: &str, depth: usize) -> Parsed<'_, StatementKind<'_>> {
    let (mut rest, first) = expression(input, depth + 1)?;
    let mut targets = vec![first];
    let mut unpack = false;
    loop {
        let (after, _) = spaces(rest)?;
        let Some(after) = after.strip_prefix(',') else {
            rest = after;
            break;
        };
        let (after, _) = spaces(after)?;
        if after.starts_with('=') {
            unpack = true;
            rest = after;
            break;
        }
        let (after, target) = expression(after, depth + 1)?;
        targets.push(target);
        rest = after;
    }
    if let Some(after) = rest.strip_prefix('=') {
        let (rest, value) = preceded(spaces, |input| expressions(input, depth + 1)).parse(after)?;
        return Ok((rest, StatementKind::Assign { targets, unpack, type_: None, value }));
    }
    if targets.len() > 1 {
        return fail(rest, "`=`");
    }
    if let Some(after) = rest.strip_prefix(':') {
        let (rest, type_) = preceded(spaces, |input| expression(input, depth + 1)).parse(after)?;
        let assigned = preceded((spaces, symbol("="), spaces), |input| expressions(input, depth + 1));
        let (rest, value) = opt(assigned).parse(rest)?;
        let kind = match value {
            Some(value) => StatementKind::Assign { targets, unpack, type_: Some(type_), value },
            None => StatementKind::Declare { target: targets.swap_remove(0), type_ },
        };
        return Ok((rest, kind));
    }
    Ok((rest, StatementKind::Expression(targets.swap_remove(0))))
}

/// `exprs = expr { "," expr } [ "," ] ;` More than one is a tuple.
fn expressions(input: &str, depth: usize) -> Parsed<'_, Expr<'_>> {
    let (mut rest, first) = expression(input, depth)?;
    let mut items = Vec::new();
    loop {
        let (after, _) = spaces(rest)?;
        let Some(after) = after.strip_prefix(',') else { break };
        let (after, _) = spaces(after)?;
        match expression(after, depth) {
            Ok((next, item)) => {
                items.push(item);
                rest = next;
            }
            Err(nom::Err::Error(_)) => {
                let text = &input[..input.offset(after)];
                items.insert(0, first);
                return Ok((after, Expr { kind: ExprKind::Tuple(items), text }));
            }
            Err(fault) => return Err(fault),
        }
    }
    if items.is_empty() {
        return Ok((rest, first));
    }
    items.insert(0, first);
    let text = &input[..input.offset(rest)];
    Ok((rest, Expr { kind: ExprKind::Tuple(items), text }))
}

/// ```text
/// expr = atom { "." NAME | "(" [ arg { "," arg } [ "," ] ] ")" | "[" expr { "," expr } "]"
///             | "[" [ expr ] ":" [ expr ] "]" } ;
/// ```
pub(crate) fn expression(input: &str, depth: usize) -> Parsed<'_, Expr<'_>> {
    if depth > MAX_DEPTH {
        return fail(input, TOO_DEEP);
    }
    let (mut rest, mut expr) = atom(input, depth)?;
    let mut height = depth;
    loop {
        let (next, kind) = match rest.as_bytes().first() {
            Some(b'.') => {
                let (next, attribute) = must("a name", name)(&rest[1..])?;
                (next, ExprKind::Attribute(Box::new(expr), attribute))
            }
            Some(b'(') => {
                let (next, arguments) = arguments(&rest[1..], height + 1)?;
                (next, ExprKind::Call(Box::new(expr), arguments))
            }
            Some(b'[') => subscript(&rest[1..], expr, height + 1)?,
            _ => return Ok((rest, expr)),
        };
        height += 1;
        if height > MAX_DEPTH {
            return fail(rest, TOO_DEEP);
        }
        expr = Expr { kind, text: &input[..input.offset(next)] };
        rest = next;
    }
}

/// `[ arg { "," arg } [ "," ] ] ")"`, `arg = [ NAME "=" ] expr ;`
fn arguments(input: &str, depth: usize) -> Parsed<'_, Vec<CallArgument<'_>>> {
    let mut list = Vec::new();
    let (mut rest, _) = any_space(input)?;
    loop {
        if let Some(rest) = rest.strip_prefix(')') {
            return Ok((rest, list));
        }
        let keyword = name(rest).ok().and_then(|(after, name)| {
            let value = after.strip_prefix('=').filter(|after| !after.starts_with('='));
            value.map(|value| (value, name))
        });
        let (next, argument) = match keyword {
            Some((value, name)) => {
                let (next, value) = must("an expression", |input| expression(input, depth))(value)?;
                (next, CallArgument { name: Some(name), value })
            }
            None => {
                let (next, value) = must("an argument or `)`", |input| expression(input, depth))(rest)?;
                (next, CallArgument { name: None, value })
            }
        };
        list.push(argument);
        rest = separator(next, ')')?;
    }
}

/// A comma, or nothing when the bracket closes next.
fn separator(input: &str, close: char) -> Result<&str, nom::Err<Fault<'_>>> {
    let (after, _) = any_space(input)?;
    if let Some(after) = after.strip_prefix(',') {
        return Ok(any_space(after)?.0);
    }
    if after.starts_with(close) {
        return Ok(after);
    }
    let expected = match close {
        ')' => "`,` or `)`",
        ']' => "`,` or `]`",
        _ => "`,` or `}`",
    };
    Err(nom::Err::Failure(Fault { at: after, expected }))
}

fn subscript<'a>(input: &'a str, base: Expr<'a>, depth: usize) -> Parsed<'a, ExprKind<'a>> {
    let boxed = |expr: Option<Expr<'a>>| expr.map(Box::new);
    let (rest, first) = match input.starts_with(':') {
        true => (input, None),
        false => {
            let (rest, first) = must("an index", |input| expression(input, depth))(input)?;
            (rest, Some(first))
        }
    };
    let (after, _) = any_space(rest)?;
    if let Some(after) = after.strip_prefix(':') {
        let (after, _) = any_space(after)?;
        let (rest, last) = match after.starts_with(']') {
            true => (after, None),
            false => {
                let (rest, last) = must("an index", |input| expression(input, depth))(after)?;
                (rest, Some(last))
            }
        };
        let (rest, _) = (any_space, need("]")).parse(rest)?;
        return Ok((rest, ExprKind::Slice(Box::new(base), boxed(first), boxed(last))));
    }
    let mut indices: Vec<Expr<'a>> = first.into_iter().collect();
    let mut rest = separator(rest, ']')?;
    loop {
        if let Some(rest) = rest.strip_prefix(']') {
            return Ok((rest, ExprKind::Index(Box::new(base), indices)));
        }
        let (next, index) = must("an index", |input| expression(input, depth))(rest)?;
        indices.push(index);
        rest = separator(next, ']')?;
    }
}

/// ```text
/// atom = NUMBER | "-" atom | STRING | "True" | "False" | "None" | NAME
///      | "(" [ exprs ] ")" | "(" NUMBER SIGN NUMBER "j" ")" | "[" … "]" | "{" expr ":" expr , … "}" ;
/// ```
fn atom<'a>(input: &'a str, depth: usize) -> Parsed<'a, Expr<'a>> {
    if depth > MAX_DEPTH {
        return fail(input, TOO_DEEP);
    }
    let made = |rest: &'a str, kind| Ok((rest, Expr { kind, text: &input[..input.len() - rest.len()] }));
    let Some(first) = input.as_bytes().first() else { return miss(input, "an expression") };
    match first {
        b'0'..=b'9' | b'.' => match number(input, false) {
            Ok((rest, kind)) => made(rest, kind),
            Err(nom::Err::Error(_)) => miss(input, "an expression"),
            Err(fault) => Err(fault),
        },
        b'-' => {
            let after = &input[1..];
            if after.starts_with(|letter: char| letter.is_ascii_digit() || letter == '.') {
                let (rest, kind) = must("a number", |input| number(input, true))(after)?;
                return made(rest, kind);
            }
            let (rest, inner) = must("an expression", |input| atom(input, depth + 1))(after)?;
            made(rest, ExprKind::Negative(Box::new(inner)))
        }
        b'"' | b'\'' => {
            let (rest, text) = string(input)?;
            made(rest, ExprKind::Str(text))
        }
        b'(' => parenthesis(input, depth),
        b'[' => {
            let (rest, items) = list(&input[1..], depth + 1)?;
            made(rest, ExprKind::List(items))
        }
        b'{' => {
            let (rest, pairs) = pairs(&input[1..], depth + 1)?;
            made(rest, ExprKind::Dict(pairs))
        }
        _ => match name(input) {
            Ok((rest, "True")) => made(rest, ExprKind::Bool(true)),
            Ok((rest, "False")) => made(rest, ExprKind::Bool(false)),
            Ok((rest, "None")) => made(rest, ExprKind::None),
            Ok((rest, name)) => made(rest, ExprKind::Name(name)),
            Err(_) => miss(input, "an expression"),
        },
    }
}

/// A tuple, a complex number, or an expression in brackets.
fn parenthesis<'a>(input: &'a str, depth: usize) -> Parsed<'a, Expr<'a>> {
    let made = |rest: &'a str, kind| Ok((rest, Expr { kind, text: &input[..input.len() - rest.len()] }));
    if let Ok((rest, kind)) = complex(input) {
        return made(rest, kind);
    }
    let mut items = Vec::new();
    let (mut rest, _) = any_space(&input[1..])?;
    let mut comma = false;
    loop {
        if let Some(rest) = rest.strip_prefix(')') {
            return match (items.len(), comma) {
                (1, false) => {
                    let inner: Expr<'_> = items.swap_remove(0);
                    made(rest, inner.kind)
                }
                _ => made(rest, ExprKind::Tuple(items)),
            };
        }
        let (next, item) = must("an expression or `)`", |input| expression(input, depth + 1))(rest)?;
        items.push(item);
        rest = separator(next, ')')?;
        comma = !rest.starts_with(')') || next[..next.len() - rest.len()].contains(',');
    }
}

/// `"(" NUMBER SIGN NUMBER "j" ")"`.
fn complex(input: &str) -> Parsed<'_, ExprKind<'_>> {
    let (rest, _) = symbol("(")(input)?;
    let (rest, negative) = opt(symbol("-")).parse(rest)?;
    let (rest, real) = number(rest, negative.is_some())?;
    let real = match real {
        ExprKind::Int(value) => value as f64,
        ExprKind::Float(value) => value,
        _ => return miss(input, "a complex number"),
    };
    let (rest, _) = spaces(rest)?;
    let minus = match rest.as_bytes().first() {
        Some(b'+') => false,
        Some(b'-') => true,
        _ => return miss(rest, "a sign"),
    };
    let (rest, _) = spaces(&rest[1..])?;
    match number(rest, minus)? {
        (rest, ExprKind::Complex(_, imaginary)) => {
            let (rest, _) = symbol(")")(rest)?;
            Ok((rest, ExprKind::Complex(real, imaginary)))
        }
        _ => miss(rest, "an imaginary part"),
    }
}

fn list(input: &str, depth: usize) -> Parsed<'_, Vec<Expr<'_>>> {
    let mut items = Vec::new();
    let (mut rest, _) = any_space(input)?;
    loop {
        if let Some(rest) = rest.strip_prefix(']') {
            return Ok((rest, items));
        }
        let (next, item) = must("an expression or `]`", |input| expression(input, depth))(rest)?;
        items.push(item);
        rest = separator(next, ']')?;
    }
}

fn pairs(input: &str, depth: usize) -> Parsed<'_, Vec<(Expr<'_>, Expr<'_>)>> {
    let mut pairs = Vec::new();
    let (mut rest, _) = any_space(input)?;
    loop {
        if let Some(rest) = rest.strip_prefix('}') {
            return Ok((rest, pairs));
        }
        let (next, key) = must("a key or `}`", |input| expression(input, depth))(rest)?;
        let (next, _) = (any_space, need(":"), any_space).parse(next)?;
        let (next, value) = must("an expression", |input| expression(input, depth))(next)?;
        pairs.push((key, value));
        rest = separator(next, '}')?;
    }
}
