//! The grammar of a file: classes, their members, and functions, one parser a rule.
//!
//! Function bodies are skipped by indentation and parsed when a call reaches them: a model's unused methods cost a scan
//! for line ends.

use std::cell::OnceCell;

use indexmap::IndexMap;
use nom::{
    Parser,
    combinator::opt,
    sequence::{delimited, preceded},
};

use super::{
    ast::{Class, Expr, ExprKind, File, Function},
    expression::{expression, expressions},
    lexer::{Fault, Parsed, fail, keyword, must, name, need, newline, spaces, symbol},
};

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

/// An attribute whose name is not an identifier. Torch does not escape the name, so it ends at the *last* `"] = `.
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
