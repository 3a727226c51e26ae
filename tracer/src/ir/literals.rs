//! The grammar of attribute values.

use nom::{
    IResult, Parser,
    branch::alt,
    bytes::complete::{tag, take_while, take_while1},
    character::complete::{char, multispace0, one_of},
    combinator::{opt, peek, recognize, value},
    error::context,
    multi::{separated_list0, separated_list1},
    sequence::{delimited, preceded, terminated},
};

use super::{fault::Fault, strings, tree::Literal};

type Parsed<'a, T> = IResult<&'a str, T, Fault<'a>>;

const MAX_DEPTH: usize = 64;

/// `attribute = NAME "=" literal`
pub fn attribute(input: &str) -> Parsed<'_, (String, Literal)> {
    let name = take_while1(|c: char| c.is_alphanumeric() || c == '_' || c == '.');
    let (input, name) = context("an attribute's name", terminated(name, char('='))).parse(input)?;
    let (input, literal) = literal(input, 0)?;
    Ok((input, (name.to_owned(), literal)))
}

/// `literal = ( string | number | list | tuple | dict | boxed | omitted | annotated | word ) | elements`
///
/// A small tensor's elements begin like a number or like nothing at all, so whatever is not followed by the end
/// of a literal is tried as elements.
fn literal(input: &str, depth: usize) -> Parsed<'_, Literal> {
    if depth > MAX_DEPTH {
        return Err(nom::Err::Failure(Fault::new(input, "values that are less deeply nested")));
    }
    let plain = alt((
        strings::string.map(Literal::Str),
        |input| list(input, depth),
        |input| tuple(input, depth),
        |input| dict(input, depth),
        boxed,
        omitted,
        |input| annotated(input, depth),
        number,
        word,
    ));
    let end = preceded(multispace0, one_of(",])}:"));
    context("a value", alt((terminated(plain, peek(end)), elements))).parse(input)
}

fn comma(input: &str) -> Parsed<'_, ()> {
    value((), (multispace0, char(','), multispace0)).parse(input)
}

/// `list = "[" [ literal { "," literal } ] "]"`
fn list(input: &str, depth: usize) -> Parsed<'_, Literal> {
    let inner = move |input| literal(input, depth + 1);
    delimited(char('['), separated_list0(comma, inner), char(']')).map(Literal::List).parse(input)
}

/// `tuple = "(" [ literal { "," literal } [ "," ] ] ")"`
fn tuple(input: &str, depth: usize) -> Parsed<'_, Literal> {
    let inner = move |input| literal(input, depth + 1);
    let items = terminated(separated_list0(comma, inner), opt(comma));
    delimited(char('('), items, char(')')).map(Literal::Tuple).parse(input)
}

/// `dict = "{" literal ":" literal { "," literal ":" literal } "}" | "{" "}"`
fn dict(input: &str, depth: usize) -> Parsed<'_, Literal> {
    let inner = move |input| literal(input, depth + 1);
    let pair = (terminated(inner, (char(':'), multispace0)), inner);
    let pairs = delimited(char('{'), separated_list1(comma, pair), char('}'));
    alt((value(Vec::new(), tag("{}")), pairs)).map(Literal::Dict).parse(input)
}

/// `boxed = "{" text "}"`: a tensor of one element
fn boxed(input: &str) -> Parsed<'_, Literal> {
    let text = take_while1(|c| !matches!(c, '{' | '}' | '"' | '\n'));
    delimited(char('{'), text, char('}')).map(|text: &str| Literal::Boxed(text.to_owned())).parse(input)
}

/// `omitted = "<" text ">"`
fn omitted(input: &str) -> Parsed<'_, Literal> {
    let text = take_while1(|c| c != '>' && c != '\n');
    delimited(char('<'), text, char('>')).map(|text: &str| Literal::Omitted(text.to_owned())).parse(input)
}

/// `annotated = "annotate" "(" python-type "," literal ")"`
fn annotated(input: &str, depth: usize) -> Parsed<'_, Literal> {
    let (rest, _) = tag("annotate(").parse(input)?;
    let mut open = 0usize;
    let end = rest.char_indices().find_map(|(at, c)| match c {
        '[' | '(' => {
            open += 1;
            None
        }
        ']' | ')' => {
            open = open.saturating_sub(1);
            None
        }
        ',' if open == 0 => Some(at),
        _ => None,
    });
    let Some(end) = end else {
        return Err(nom::Err::Error(Fault::new(rest, "a type and a value")));
    };
    let (type_, after) = rest.split_at(end);
    let (after, _) = comma(after)?;
    let (after, found) = literal(after, depth + 1)?;
    let (after, _) = char(')').parse(after)?;
    Ok((after, Literal::Annotated(type_.to_owned(), Box::new(found))))
}

/// `number = [ "-" ] ( DIGIT … | "inf" | "nan" ) …`: also `3.+4.j`, `1e-05`
fn number(input: &str) -> Parsed<'_, Literal> {
    let first = alt((one_of("0123456789.").map(|_| ()), tag("inf").map(|_| ()), tag("nan").map(|_| ())));
    let rest = take_while(|c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '+' | '-'));
    recognize((opt(char('-')), peek(first), rest))
        .map(|text: &str| Literal::Number(text.to_owned()))
        .parse(input)
}

/// `word = NAME { "." NAME }`
fn word(input: &str) -> Parsed<'_, Literal> {
    let letter = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.');
    take_while1(letter).map(|text: &str| Literal::Word(text.to_owned())).parse(input)
}

/// `elements = text "[ " NAME "{" SIZES "} ]"`: torch's picture of a small tensor, its line ends made spaces
fn elements(input: &str) -> Parsed<'_, Literal> {
    let expected = nom::Err::Error(Fault::new(input, "a value"));
    let Some(mut end) = input.find("} ]") else {
        return Err(expected);
    };
    end += "} ]".len();
    let text = &input[..end];
    // Anything between would belong to another node; a picture has at most ten elements.
    let is_picture = text.contains("Type{") && !text.contains('%') && text.len() < 1000;
    if is_picture { Ok((&input[end..], Literal::Elements(text.to_owned()))) } else { Err(expected) }
}
