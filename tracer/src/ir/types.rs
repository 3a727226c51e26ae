//! The grammar of types.

use nom::{
    IResult, Parser,
    branch::alt,
    bytes::complete::{tag, take_while1},
    character::complete::{char, digit1, i64 as integer, multispace0, u64 as unsigned},
    combinator::{not, opt, peek, recognize, value},
    error::context,
    multi::{separated_list0, separated_list1},
    sequence::{delimited, pair, preceded, terminated},
};

use super::{
    fault::Fault,
    tree::{Dim, IrTensorType, IrType},
};

type Parsed<'a, T> = IResult<&'a str, T, Fault<'a>>;

/// Types inside types; torch's own go three or four deep.
const MAX_DEPTH: usize = 64;

/// Element types as the IR spells them.
pub const DTYPES: [&str; 21] = [
    "Float",
    "Double",
    "Half",
    "BFloat16",
    "Long",
    "Int",
    "Short",
    "Char",
    "Byte",
    "Bool",
    "UInt16",
    "UInt32",
    "UInt64",
    "ComplexFloat",
    "ComplexDouble",
    "ComplexHalf",
    "Float8_e4m3fn",
    "Float8_e5m2",
    "QInt8",
    "QUInt8",
    "QInt32",
];

/// `type = single { "[]" | "?" }`
pub fn type_(input: &str) -> Parsed<'_, IrType> {
    nested(input, 0)
}

fn nested(input: &str, depth: usize) -> Parsed<'_, IrType> {
    if depth > MAX_DEPTH {
        return Err(nom::Err::Failure(Fault::new(input, "types that are less deeply nested")));
    }
    let (mut rest, mut found) = single(input, depth)?;
    let mut wrapped = depth;
    loop {
        let (after, suffix) = opt(alt((tag("[]"), tag("?")))).parse(rest)?;
        let Some(suffix) = suffix else {
            return Ok((rest, found));
        };
        wrapped += 1;
        if wrapped > MAX_DEPTH {
            return Err(nom::Err::Failure(Fault::new(rest, "types that are less deeply nested")));
        }
        let element = Box::new(found);
        found = if suffix == "?" { IrType::Optional(element) } else { IrType::List(element) };
        rest = after;
    }
}

/// `single = tuple | dict | tensor | applied | name`
fn single(input: &str, depth: usize) -> Parsed<'_, IrType> {
    context(
        "a type",
        alt((
            |input| tuple(input, depth),
            |input| dict(input, depth),
            |input| tensor(input),
            |input| applied(input, depth),
            |input| named(input),
        )),
    )
    .parse(input)
}

fn comma(input: &str) -> Parsed<'_, ()> {
    value((), pair(char(','), multispace0)).parse(input)
}

/// `tuple = [ "NamedTuple" ] "(" [ element { "," element } ] ")" ;  element = [ NAME ":" ] type`
fn tuple(input: &str, depth: usize) -> Parsed<'_, IrType> {
    let name = |input| recognize(take_while1(|c: char| c.is_alphanumeric() || c == '_')).parse(input);
    let element = move |input| {
        let (input, name) = opt(terminated(name, tag(" : "))).parse(input)?;
        let (input, type_) = nested(input, depth + 1)?;
        Ok((input, (name.map(str::to_owned), type_)))
    };
    let (input, named) = opt(tag("NamedTuple")).parse(input)?;
    let (input, elements) = delimited(char('('), separated_list0(comma, element), char(')')).parse(input)?;
    Ok((input, IrType::Tuple { is_named: named.is_some(), elements }))
}

/// `dict = "Dict" "(" type "," type ")"`
fn dict(input: &str, depth: usize) -> Parsed<'_, IrType> {
    let inner = move |input| nested(input, depth + 1);
    let (input, (key, _, value)) = delimited(tag("Dict("), (inner, comma, inner), char(')')).parse(input)?;
    Ok((input, IrType::Dict(Box::new(key), Box::new(value))))
}

/// `tensor = ( "Tensor" | DTYPE [ "Tensor" ] ) [ "(" [ part { "," part } ] ")" ] [ "[Undefined]" ]`
fn tensor(input: &str) -> Parsed<'_, IrType> {
    let (rest, word) = word(input)?;
    let (dtype, has_rank) = match word.strip_suffix("Tensor") {
        Some("") => (None, true),
        Some(dtype) if DTYPES.contains(&dtype) => (Some(dtype), false),
        _ if DTYPES.contains(&word) => (Some(word), true),
        _ => return Err(nom::Err::Error(Fault::new(input, "a tensor's type"))),
    };
    let mut tensor = IrTensorType { dtype: dtype.map(str::to_owned), ..IrTensorType::default() };
    let (rest, parts) = opt(delimited(char('('), separated_list0(comma, part), char(')'))).parse(rest)?;
    // `Float()` and `Float(requires_grad=0)` have no dimensions; a plain `Tensor` has an unknown number of them.
    let has_dims = parts.as_ref().is_some_and(|parts| parts.iter().any(|part| matches!(part, Part::Dim(_))));
    if has_dims || (parts.is_some() && dtype.is_some() && has_rank) {
        tensor.dims = Some(Vec::new());
    }
    for part in parts.into_iter().flatten() {
        match part {
            Part::Dim(dim) => tensor.dims.get_or_insert_default().push(dim),
            Part::Strides(strides) => tensor.strides = Some(strides),
            Part::RequiresGrad(requires_grad) => tensor.requires_grad = Some(requires_grad),
            Part::Device(device) => tensor.device = Some(device),
        }
    }
    if dtype.is_some() && has_rank && tensor.dims.is_none() {
        return Err(nom::Err::Failure(Fault::new(rest, "the sizes of a tensor")));
    }
    let (rest, undefined) = opt(tag("[Undefined]")).parse(rest)?;
    tensor.is_undefined = undefined.is_some();
    Ok((rest, IrType::Tensor(tensor)))
}

enum Part {
    Dim(Dim),
    Strides(Vec<i64>),
    RequiresGrad(bool),
    Device(String),
}

/// `part = SIZE | "*" | "SS(" INT ")" | "strides=" "[" INT … "]" | "requires_grad=" ( "0" | "1" ) | "device=" DEVICE`
fn part(input: &str) -> Parsed<'_, Part> {
    let device = recognize(take_while1(|c: char| c.is_alphanumeric() || c == ':' || c == '_'));
    let strides = delimited(char('['), separated_list0(comma, integer), char(']'));
    let symbol = recognize((tag("SS("), opt(char('-')), digit1, char(')')));
    context(
        "a size, strides=, requires_grad= or device=",
        alt((
            unsigned.map(|size| Part::Dim(Dim::Known(size))),
            char('*').map(|_| Part::Dim(Dim::Unknown)),
            symbol.map(|text: &str| Part::Dim(Dim::Symbol(text.to_owned()))),
            preceded(tag("strides="), strides).map(Part::Strides),
            preceded(tag("requires_grad="), alt((value(false, char('0')), value(true, char('1')))))
                .map(Part::RequiresGrad),
            preceded(tag("device="), device).map(|text: &str| Part::Device(text.to_owned())),
        )),
    )
    .parse(input)
}

/// `applied = NAME "[" type { "," type } "]"`
fn applied(input: &str, depth: usize) -> Parsed<'_, IrType> {
    let inner = move |input| nested(input, depth + 1);
    let (input, (name, _, _, arguments, _)) =
        (word, not(peek(tag("[]"))), char('['), separated_list1(comma, inner), char(']')).parse(input)?;
    Ok((input, IrType::Applied(name.to_owned(), arguments)))
}

/// `name = WORD { "." WORD } [ "<" … ">" ]`
fn named(input: &str) -> Parsed<'_, IrType> {
    let bracket = delimited(char('<'), take_while1(|c| c != '>' && c != '\n'), char('>'));
    let (rest, name) = recognize(pair(word, opt(bracket))).parse(input)?;
    Ok((rest, IrType::Named(name.to_owned())))
}

fn word(input: &str) -> Parsed<'_, &str> {
    take_while1(|c: char| c.is_alphanumeric() || c == '_' || c == '.' || c == '-').parse(input)
}
