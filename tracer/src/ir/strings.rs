//! Quoted text as torch's IR prints it.
//!
//! What is not printable becomes `\` and three characters, meant as octal digits. The printer computes them from
//! a signed char, so a byte above 127 gives characters *below* `0`: `é` (C3 A9) is printed as `\0)+\/.)`.

use std::fmt::{self, Write};

use nom::{IResult, Parser, bytes::complete::take_while1, character::complete::char};

use super::fault::Fault;

/// Letters after a backslash and what they mean.
const ESCAPES: [(char, u8); 10] = [
    ('\\', b'\\'),
    ('\'', b'\''),
    ('"', b'"'),
    ('a', 7),
    ('b', 8),
    ('f', 12),
    ('n', b'\n'),
    ('r', b'\r'),
    ('t', b'\t'),
    ('v', 11),
];

/// `string = '"' { plain | "\" escape | "\" digit digit digit } '"'`
pub fn string(input: &str) -> IResult<&str, String, Fault<'_>> {
    let (mut rest, _) = char('"').parse(input)?;
    let mut bytes = Vec::new();
    loop {
        if let Ok((after, _)) = char::<_, Fault<'_>>('"').parse(rest) {
            let text = String::from_utf8(bytes)
                .map_err(|_| nom::Err::Failure(Fault::new(input, "a string of UTF-8")))?;
            return Ok((after, text));
        }
        if let Some(escaped) = rest.strip_prefix('\\') {
            let (after, byte) = escape(escaped).ok_or(nom::Err::Failure(Fault::new(rest, "an escape")))?;
            bytes.push(byte);
            rest = after;
            continue;
        }
        let plain = take_while1::<_, _, Fault<'_>>(|c| c != '"' && c != '\\' && c != '\n');
        let Ok((after, plain)) = { plain }.parse(rest) else {
            return Err(nom::Err::Failure(Fault::new(rest, "the closing quote of a string")));
        };
        bytes.extend(plain.bytes());
        rest = after;
    }
}

fn escape(rest: &str) -> Option<(&str, u8)> {
    let first = rest.chars().next()?;
    if let Some((_, byte)) = ESCAPES.iter().find(|(letter, _)| *letter == first) {
        return Some((&rest[1..], *byte));
    }
    let digits = rest.get(..3)?.bytes().map(|byte| i32::from(byte) - i32::from(b'0'));
    let value = digits.clone().fold(0, |value, digit| 8 * value + digit);
    let is_octal = digits.clone().all(|digit| (-7..=7).contains(&digit));
    let is_byte = is_octal && (-128..=255).contains(&value);
    is_byte.then_some((&rest[3..], value as u8))
}

/// Writes the text in quotes.
pub fn write(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_char('"')?;
    for byte in text.bytes() {
        if let Some((letter, _)) = ESCAPES.iter().find(|(_, escaped)| *escaped == byte) {
            f.write_char('\\')?;
            f.write_char(*letter)?;
        } else if (b' '..127).contains(&byte) {
            f.write_char(char::from(byte))?;
        } else {
            // C's division rounds towards zero, and so does ours.
            let signed = i32::from(byte as i8);
            f.write_char('\\')?;
            for digit in [signed / 8 / 8, signed / 8 % 8, signed % 8] {
                f.write_char(char::from((digit + i32::from(b'0')) as u8))?;
            }
        }
    }
    f.write_char('"')
}
