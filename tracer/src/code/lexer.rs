//! Words of the code dialect: names, numbers, strings, line ends.

use nom::{
    IResult, Parser,
    branch::alt,
    bytes::complete::{tag, take_while, take_while1},
    character::complete::{char, digit1, one_of, satisfy},
    combinator::{opt, recognize},
    error::{ErrorKind, ParseError},
};

use super::ast::ExprKind;

/// The expectation of a rule that failed, and its position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Fault<'a> {
    pub(crate) at: &'a str,
    pub(crate) expected: &'static str,
}

impl<'a> ParseError<&'a str> for Fault<'a> {
    fn from_error_kind(at: &'a str, _: ErrorKind) -> Self {
        Fault { at, expected: "something else" }
    }

    fn append(_: &'a str, _: ErrorKind, other: Self) -> Self {
        other
    }

    /// Of two alternatives the one that came further tells more.
    fn or(self, other: Self) -> Self {
        if self.at.len() < other.at.len() { self } else { other }
    }
}

pub(crate) type Parsed<'a, T> = IResult<&'a str, T, Fault<'a>>;

/// A rule was recognised and must go on as expected.
pub(crate) fn fail<'a, T>(at: &'a str, expected: &'static str) -> Parsed<'a, T> {
    Err(nom::Err::Failure(Fault { at, expected }))
}

/// A rule does not apply here.
pub(crate) fn miss<'a, T>(at: &'a str, expected: &'static str) -> Parsed<'a, T> {
    Err(nom::Err::Error(Fault { at, expected }))
}

/// Turns a miss into a failure that says what was expected.
pub(crate) fn must<'a, T>(
    expected: &'static str,
    mut rule: impl FnMut(&'a str) -> Parsed<'a, T>,
) -> impl FnMut(&'a str) -> Parsed<'a, T> {
    move |input| match rule(input) {
        Err(nom::Err::Error(fault)) => {
            let expected = if fault.at.len() < input.len() { fault.expected } else { expected };
            fail(fault.at, expected)
        }
        other => other,
    }
}

/// Takes exactly this text or fails for good.
pub(crate) fn need<'a>(text: &'static str) -> impl FnMut(&'a str) -> Parsed<'a, &'a str> {
    move |input: &'a str| match input.strip_prefix(text) {
        Some(rest) => Ok((rest, &input[..text.len()])),
        None => fail(input, text),
    }
}

fn name_start(letter: char) -> bool {
    letter == '_' || letter.is_alphabetic()
}

fn name_rest(letter: char) -> bool {
    letter == '_' || letter.is_alphanumeric()
}

/// `NAME = LETTER { LETTER | DIGIT } ;`
pub(crate) fn name(input: &str) -> Parsed<'_, &str> {
    match recognize((satisfy(name_start), take_while(name_rest))).parse(input) {
        Err(nom::Err::Error(Fault { at, .. })) => miss(at, "a name"),
        other => other,
    }
}

/// A keyword: the name itself, not the beginning of a longer one.
pub(crate) fn keyword<'a>(word: &'static str) -> impl FnMut(&'a str) -> Parsed<'a, &'a str> {
    move |input: &'a str| match input.strip_prefix(word) {
        Some(rest) if !rest.starts_with(name_rest) => Ok((rest, &input[..word.len()])),
        _ => miss(input, word),
    }
}

/// Spaces on the line.
pub(crate) fn spaces(input: &str) -> Parsed<'_, &str> {
    take_while(|letter| letter == ' ' || letter == '\t')(input)
}

/// Spaces and line ends: inside brackets lines do not count.
pub(crate) fn any_space(input: &str) -> Parsed<'_, &str> {
    take_while(|letter: char| letter.is_ascii_whitespace())(input)
}

/// `NL = { SPACE } ( LINE_END | end of file ) { blank or comment line } ;` Stops before the next line's spaces.
pub(crate) fn newline(input: &str) -> Parsed<'_, ()> {
    let (rest, _) = spaces(input)?;
    let mut rest = match line_end(rest) {
        Some(rest) => rest,
        None => return miss(rest, "the end of the line"),
    };
    while !rest.is_empty() {
        let (after, _) = spaces(rest)?;
        match line_end(after) {
            Some(next) => rest = next,
            None => break,
        }
    }
    Ok((rest, ()))
}

/// Skips a comment and the line's end, if the line ends here.
fn line_end(input: &str) -> Option<&str> {
    let after = match input.strip_prefix('#') {
        Some(comment) => &comment[comment.find('\n').unwrap_or(comment.len())..],
        None => input,
    };
    let after = after.strip_prefix('\r').unwrap_or(after);
    if after.is_empty() { Some(after) } else { after.strip_prefix('\n') }
}

/// `NUMBER = DIGITS [ "." [ DIGITS ] ] [ ( "e" | "E" ) [ SIGN ] DIGITS ] [ "j" ] ;`
///
/// `negative` is a sign that stood before: `-9223372036854775808` is one number.
pub(crate) fn number(input: &str, negative: bool) -> Parsed<'_, ExprKind<'_>> {
    let exponent = (one_of("eE"), opt(one_of("+-")), digit1);
    let (rest, text) = recognize((
        alt((recognize((digit1, opt((char('.'), opt(digit1))))), recognize((char('.'), digit1)))),
        opt(exponent),
    ))
    .parse(input)?;
    let sign = if negative { -1.0 } else { 1.0 };
    if let Some(rest) = rest.strip_prefix('j') {
        return match text.parse::<f64>() {
            Ok(value) => Ok((rest, ExprKind::Complex(0.0, sign * value))),
            Err(_) => fail(input, "a number"),
        };
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        let value = text.parse::<i128>().ok().map(|value| if negative { -value } else { value });
        return match value.and_then(|value| i64::try_from(value).ok()) {
            Some(value) => Ok((rest, ExprKind::Int(value))),
            None => fail(input, "an integer of 64 bits"),
        };
    }
    match text.parse::<f64>() {
        Ok(value) => Ok((rest, ExprKind::Float(sign * value))),
        Err(_) => fail(input, "a number"),
    }
}

/// `STRING = '"' { CHARACTER | ESCAPE } '"' | "'" … "'" ;`
///
/// Torch writes bytes beyond ASCII as `\ooo` computed with a *signed* byte, so that digits below `0` appear:
/// `é` is `\0)+\/.)`. The same arithmetic backwards gives the bytes.
pub(crate) fn string(input: &str) -> Parsed<'_, String> {
    let (mut rest, quote) = one_of("\"'").parse(input)?;
    let mut bytes = Vec::new();
    loop {
        let (after, plain) = take_while(|letter| letter != quote && letter != '\\' && letter != '\n')(rest)?;
        bytes.extend_from_slice(plain.as_bytes());
        if let Some(end) = after.strip_prefix(quote) {
            let text = String::from_utf8(bytes)
                .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into());
            return Ok((end, text));
        }
        if !after.starts_with('\\') {
            return fail(after, "the end of the string");
        }
        let (next, byte) = escape(after)?;
        bytes.push(byte);
        rest = next;
    }
}

fn escape(input: &str) -> Parsed<'_, u8> {
    let digits = input.as_bytes().get(1..).unwrap_or(&[]);
    let plain = match digits.first() {
        Some(b'n') => Some(b'\n'),
        Some(b't') => Some(b'\t'),
        Some(b'r') => Some(b'\r'),
        Some(b'a') => Some(7),
        Some(b'b') => Some(8),
        Some(b'f') => Some(12),
        Some(b'v') => Some(11),
        Some(byte @ (b'\\' | b'"' | b'\'')) => Some(*byte),
        _ => None,
    };
    if let Some(byte) = plain {
        return Ok((&input[2..], byte));
    }
    if let Some(hex) = input.strip_prefix("\\x").and_then(|hex| hex.get(..2)) {
        return match u8::from_str_radix(hex, 16) {
            Ok(byte) => Ok((&input[4..], byte)),
            Err(_) => fail(input, "two hexadecimal digits"),
        };
    }
    match digits {
        [a, b, c, ..] if [a, b, c].iter().all(|digit| (b'('..=b'7').contains(digit)) => {
            let digit = |byte: &u8| i32::from(*byte) - i32::from(b'0');
            let value = digit(a) * 64 + digit(b) * 8 + digit(c);
            match u8::try_from(if value < 0 { value + 256 } else { value }) {
                Ok(byte) => Ok((&input[4..], byte)),
                Err(_) => fail(input, "a byte in octal"),
            }
        }
        _ => fail(input, "an escape sequence"),
    }
}

/// A run of digits and letters, to quote the found text in messages.
pub(crate) fn word(input: &str) -> &str {
    let run: Parsed<'_, &str> = take_while1(name_rest)(input);
    match run {
        Ok((_, word)) => word,
        Err(_) => &input[..input.chars().next().map_or(0, char::len_utf8)],
    }
}

/// Takes `text` if it stands here.
pub(crate) fn symbol<'a>(text: &'static str) -> impl FnMut(&'a str) -> Parsed<'a, &'a str> {
    move |input: &'a str| tag(text)(input)
}
