//! The grammar of expressions, one parser a rule.
//!
//! `depth` counts open brackets and blocks so that a hostile file meets an error and not the end of the stack.

use nom::{Offset, Parser, combinator::opt};

use super::{
    ast::{CallArgument, Expr, ExprKind},
    lexer::{Fault, Parsed, any_space, fail, miss, must, name, need, number, spaces, string, symbol},
};

/// Open brackets, postfix operators and blocks around one another, and names of modules, of which `NAMES` count as one. Torch
/// breaks lines long before.
pub(crate) const MAX_DEPTH: usize = 64;
/// Names of modules inside one another that count as one bracket.
const NAMES: usize = 4;
pub(crate) const TOO_DEEP: &str = "at most 64 nested brackets or blocks";

/// `exprs = expr { "," expr } [ "," ] ;` More than one is a tuple.
pub(crate) fn expressions(input: &str, depth: usize) -> Parsed<'_, Expr<'_>> {
    let (mut rest, first) = expression(input, depth)?;
    let mut items = vec![first];
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
                return Ok((after, Expr { kind: ExprKind::Tuple(items), text }));
            }
            Err(fault) => return Err(fault),
        }
    }
    if items.len() == 1 {
        return Ok((rest, items.remove(0)));
    }
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
    // Counted in names.
    let mut height = depth * NAMES;
    loop {
        let inside = height / NAMES + 1;
        let (next, kind, more) = match rest.as_bytes().first() {
            Some(b'.') => {
                let (next, attribute) = must("a name", name)(&rest[1..])?;
                (next, ExprKind::Attribute(Box::new(expr), attribute), 1)
            }
            Some(b'(') => {
                let (next, arguments) = arguments(&rest[1..], inside)?;
                (next, ExprKind::Call(Box::new(expr), arguments), NAMES)
            }
            Some(b'[') => {
                let (next, kind) = subscript(&rest[1..], expr, inside)?;
                (next, kind, NAMES)
            }
            _ => return Ok((rest, expr)),
        };
        height += more;
        if height / NAMES > MAX_DEPTH {
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
    let (rest, first) = if input.starts_with(':') {
        (input, None)
    } else {
        let (rest, first) = must("an index", |input| expression(input, depth))(input)?;
        (rest, Some(first))
    };
    let (after, _) = any_space(rest)?;
    if let Some(after) = after.strip_prefix(':') {
        let (after, _) = any_space(after)?;
        let (rest, last) = if after.starts_with(']') {
            (after, None)
        } else {
            let (rest, last) = must("an index", |input| expression(input, depth))(after)?;
            (rest, Some(last))
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
