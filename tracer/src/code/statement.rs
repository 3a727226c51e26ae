//! The grammar of functions and statements, one parser a rule. Blocks are told by their indentation.

use nom::{
    Parser,
    combinator::opt,
    multi::separated_list0,
    sequence::{preceded, terminated},
};

use super::{
    ast::{Definition, Expr, ExprKind, Parameter, Statement, StatementKind},
    expression::{MAX_DEPTH, TOO_DEEP, expression, expressions},
    lexer::{Parsed, any_space, fail, keyword, must, name, need, newline, spaces, symbol},
};

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
