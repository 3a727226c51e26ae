//! The grammar of graphs, blocks and nodes.
//!
//! Nodes are lines: a line that is neither the end of its graph or block nor a node is an error right there.

use nom::{
    IResult, Parser,
    bytes::complete::{tag, take_while1},
    character::complete::{char, digit1, multispace0, space0},
    combinator::{cut, opt, recognize},
    error::context,
    multi::{separated_list0, separated_list1},
    sequence::{delimited, preceded},
};

use super::{
    fault::Fault,
    literals,
    tree::{Binding, Block, Graph, Node, Use},
    types,
};
use crate::Span;

type Parsed<'a, T> = IResult<&'a str, T, Fault<'a>>;

/// Blocks inside blocks; hand-written code stays below ten.
const MAX_DEPTH: usize = 48;

/// The position of a text in the whole, for spans.
#[derive(Clone, Copy)]
pub struct Whole {
    length: usize,
}

impl Whole {
    /// Remembers the length of the whole text.
    ///
    /// Invariant: it is below 4 GiB, so that positions fit a span.
    pub fn new(text: &str) -> Self {
        Self { length: text.len() }
    }

    /// Returns the position of a rest of the text.
    pub fn position(self, rest: &str) -> usize {
        self.length - rest.len()
    }

    fn span(self, from: &str, to: &str) -> Span {
        Span { source: 0, start: self.position(from) as u32, end: self.position(to) as u32 }
    }
}

/// `file = graph { space } END`
pub fn file(input: &str, whole: Whole) -> Parsed<'_, Graph> {
    let (rest, mut graph) = preceded(multispace0, |input| graph(input, whole)).parse(input)?;
    let (mut rest, _) = multispace0(rest)?;
    while rest.starts_with("with ") {
        let name = take_while1(|c: char| !c.is_whitespace());
        let header = (tag("with "), name, tag(" = "));
        let (after, (_, name, _)) = cut(context("`with NAME = graph`", header)).parse(rest)?;
        let (after, subgraph) = cut(|input| self::graph(input, whole)).parse(after)?;
        graph.subgraphs.push((name.to_owned(), subgraph));
        rest = multispace0(after)?.0;
    }
    if rest.is_empty() {
        Ok((rest, graph))
    } else {
        Err(nom::Err::Failure(Fault::new(rest, "the end of the text")))
    }
}

/// `graph = "graph" "(" bindings ")" ":" NL { node } "return" "(" uses ")"`
fn graph(input: &str, whole: Whole) -> Parsed<'_, Graph> {
    let (rest, _) = context("`graph(`", tag("graph(")).parse(input)?;
    let (rest, inputs) = cut(|input| bindings(input, whole)).parse(rest)?;
    let (rest, _) = cut(context("`):`", (multispace0, tag("):")))).parse(rest)?;
    let (rest, nodes) = nodes(rest, whole, "return (", 0)?;
    let (rest, outputs) = cut(|input| uses(input, whole)).parse(rest)?;
    Ok((rest, Graph { inputs, nodes, outputs, subgraphs: Vec::new() }))
}

/// `{ node }`, then the word that ends them; the parenthesis after it stays.
fn nodes<'a>(mut rest: &'a str, whole: Whole, end: &'static str, depth: usize) -> Parsed<'a, Vec<Node>> {
    if depth > MAX_DEPTH {
        return Err(nom::Err::Failure(Fault::new(rest, "blocks that are less deeply nested")));
    }
    let mut nodes = Vec::new();
    loop {
        rest = multispace0(rest)?.0;
        if rest.starts_with(end) {
            return Ok((&rest[end.len() - 1..], nodes));
        }
        if !rest.starts_with(['%', '=']) {
            let expected = if end.starts_with('r') { "a node or `return (`" } else { "a node or `-> (`" };
            return Err(nom::Err::Failure(Fault::new(rest, expected)));
        }
        let (after, node) = node(rest, whole, depth)?;
        nodes.push(node);
        rest = after;
    }
}

/// `node = [ bindings ] "=" KIND [ "[" attributes "]" ] "(" uses ")" [ "," "scope:" TEXT ] [ "#" TEXT ] NL { block }`
fn node(input: &str, whole: Whole, depth: usize) -> Parsed<'_, Node> {
    let (rest, outputs) = cut(|input| bindings(input, whole)).parse(input)?;
    let (rest, _) = cut(context("`=` and an operator", (space0, char('='), space0))).parse(rest)?;
    let kind = take_while1(|c: char| !c.is_whitespace() && c != '[' && c != '(');
    let (rest, kind) = cut(context("an operator", kind)).parse(rest)?;
    let attributes =
        delimited(char('['), separated_list1((char(','), space0), cut(literals::attribute)), cut(char(']')));
    let (rest, attributes) = opt(attributes).parse(rest)?;
    let (rest, scalars) = if kind.starts_with('^') { scalars(rest)? } else { (rest, None) };
    let (rest, inputs) = cut(|input| uses(input, whole)).parse(rest)?;
    let end = rest.find('\n').unwrap_or(rest.len());
    let (scope, place) = tail(rest, end)?;
    let (line_end, mut rest) = (&rest[end..], &rest[end..]);
    let mut blocks = Vec::new();
    loop {
        let (after, is_block) = opt(preceded(multispace0, recognize((tag("block"), digit1)))).parse(rest)?;
        if is_block.is_none() {
            break;
        }
        let (after, block) = block(after, whole, depth)?;
        blocks.push(block);
        rest = after;
    }
    let node = Node {
        outputs,
        kind: kind.to_owned(),
        attributes: attributes.unwrap_or_default(),
        scalars,
        inputs,
        scope: scope.map(str::to_owned),
        place: place.map(str::to_owned),
        blocks,
        span: whole.span(input, line_end),
    };
    Ok((rest, node))
}

/// `block = "block" NUMBER "(" bindings ")" ":" NL { node } "->" "(" uses ")"`; the first word is read
fn block(input: &str, whole: Whole, depth: usize) -> Parsed<'_, Block> {
    let (rest, _) = cut(context("`(`", char('('))).parse(input)?;
    let (rest, inputs) = cut(|input| bindings(input, whole)).parse(rest)?;
    let (rest, _) = cut(context("`):`", tag("):"))).parse(rest)?;
    let (rest, nodes) = nodes(rest, whole, "-> (", depth + 1)?;
    let (rest, outputs) = cut(|input| uses(input, whole)).parse(rest)?;
    Ok((rest, Block { inputs, nodes, outputs }))
}

/// `(…)` of a Python operator, when another `(…)` follows.
fn scalars(input: &str) -> Parsed<'_, Option<String>> {
    let mut open = 0usize;
    let end = input.char_indices().find_map(|(at, c)| {
        match c {
            '(' => open += 1,
            ')' => open = open.saturating_sub(1),
            _ => {}
        }
        (open == 0).then_some(at)
    });
    match end {
        Some(end) if input.starts_with('(') && input[end + 1..].starts_with('(') => {
            Ok((&input[end + 1..], Some(input[1..end].to_owned())))
        }
        _ => Ok((input, None)),
    }
}

/// `[ ", scope: " TEXT ] [ " # " TEXT ]`, the rest of a node's line.
///
/// Both texts may hold anything; the second is told by the line and column at its end.
fn tail(rest: &str, end: usize) -> Result<(Option<&str>, Option<&str>), nom::Err<Fault<'_>>> {
    let line = rest[..end].trim_end_matches('\r');
    let is_place = |text: &str| {
        let mut parts = text.rsplitn(3, ':');
        let is_number = |part: Option<&str>| part.is_some_and(|part| part.parse::<u64>().is_ok());
        is_number(parts.next()) && is_number(parts.next()) && parts.next().is_some()
    };
    let (before, place) = line
        .match_indices(" # ")
        .find(|(at, _)| is_place(&line[at + 3..]))
        .map_or((line, None), |(at, _)| (&line[..at], Some(&line[at + 3..])));
    match before.strip_prefix(", scope: ") {
        Some(scope) => Ok((Some(scope), place)),
        None if before.is_empty() => Ok((None, place)),
        None => Err(nom::Err::Failure(Fault::new(
            rest,
            "`, scope:`, ` # file:line:column` or the end of the line",
        ))),
    }
}

/// `bindings = [ binding { "," binding } ]`
fn bindings(input: &str, whole: Whole) -> Parsed<'_, Vec<Binding>> {
    let mut bindings = Vec::new();
    let mut rest = input;
    if !rest.starts_with('%') {
        return Ok((rest, bindings));
    }
    loop {
        let (after, binding) = binding(rest, whole)?;
        bindings.push(binding);
        let (after, comma) = opt((char(','), multispace0)).parse(after)?;
        rest = after;
        if comma.is_none() {
            return Ok((rest, bindings));
        }
    }
}

/// `binding = "%" NAME " : " type`
fn binding(input: &str, whole: Whole) -> Parsed<'_, Binding> {
    let (rest, name) = name(input)?;
    let span = whole.span(input, rest);
    let (rest, _) = context("`:` and a type", (space0, char(':'), space0)).parse(rest)?;
    let (rest, type_) = types::type_(rest)?;
    Ok((rest, Binding { name: name.to_owned(), type_, span }))
}

/// `uses = "(" [ use { "," use } ] ")" ;  use = "%" NAME`
fn uses(input: &str, whole: Whole) -> Parsed<'_, Vec<Use>> {
    let one = |input| {
        let (rest, name) = name(input)?;
        Ok((rest, Use { name: name.to_owned(), span: whole.span(input, rest) }))
    };
    let (rest, _) = context("`(`", char('(')).parse(input)?;
    let (rest, uses) = separated_list0((char(','), space0), one).parse(rest)?;
    let expected = if uses.is_empty() { "a value or `)`" } else { "`,` or `)`" };
    let (rest, _) = context(expected, char(')')).parse(rest)?;
    Ok((rest, uses))
}

/// `NAME`: anything up to white space, a comma or a parenthesis; torch takes attribute names as they come
fn name(input: &str) -> Parsed<'_, &str> {
    let letters = take_while1(|c: char| !c.is_whitespace() && !matches!(c, ',' | '(' | ')' | '%'));
    context("a value such as %x", preceded(char('%'), letters)).parse(input)
}
