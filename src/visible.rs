//! Untrusted text on a terminal: characters that could move its cursor or reverse text become visible marks.
//!
//! Names in a trace may contain anything. Files of this program escape them by their own rules; this is only for
//! display.

use std::borrow::Cow;

/// Makes control characters and direction overrides visible; line feeds and tabs stay.
pub fn visible(text: &str) -> Cow<'_, str> {
    if text.chars().any(is_harmful) {
        Cow::Owned(text.chars().map(mark).collect())
    } else {
        Cow::Borrowed(text)
    }
}

/// Shortens a line in its middle.
pub fn shortened(line: &str, longest: usize) -> Cow<'_, str> {
    let length = line.chars().count();
    if length <= longest {
        return Cow::Borrowed(line);
    }
    let (head, tail) = (longest * 2 / 3, longest / 3);
    let cut = |n: usize| line.char_indices().nth(n).map_or(line.len(), |(at, _)| at);
    Cow::Owned(format!("{} … {}", &line[..cut(head)], &line[cut(length - tail)..]))
}

/// The longest name in a table. Tables shorten names further for the terminal; longer ones are unreadable.
const LONGEST_NAME: usize = 90;

/// Makes a name fit a table cell: one line, not too long.
pub fn cell(name: &str) -> Cow<'_, str> {
    let breaks = |c: char| matches!(c, '\n' | '\t' | '\r' | '\u{2028}' | '\u{2029}');
    if !name.contains(breaks) {
        return shortened(name, LONGEST_NAME);
    }
    let line: String = name
        .chars()
        .map(|c| match c {
            '\u{2028}' | '\u{2029}' => '\u{2424}',
            c if breaks(c) => char::from_u32(0x2400 + c as u32).unwrap_or('\u{fffd}'),
            c => c,
        })
        .collect();
    Cow::Owned(shortened(&line, LONGEST_NAME).into_owned())
}

fn mark(c: char) -> char {
    match c {
        c if !is_harmful(c) => c,
        // Unicode has a picture for each ASCII control character.
        '\0'..='\x1f' => char::from_u32(0x2400 + c as u32).unwrap_or('\u{fffd}'),
        '\x7f' => '\u{2421}',
        _ => '\u{fffd}',
    }
}

fn is_harmful(c: char) -> bool {
    let is_kept = matches!(c, '\n' | '\t');
    let turns = matches!(c,
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}' | '\u{feff}');
    !is_kept && (c.is_control() || turns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_are_not_spoken_to() {
        let check = |text: &str, expected: &str| assert_eq!(visible(text), expected);
        check("layer1.0\n\tconv", "layer1.0\n\tconv");
        check("\x1b]0;title\x07", "␛]0;title␇");
        check("a\rb\x7f\u{9b}2J", "a␍b␡\u{fffd}2J");
        check("x\u{202e}y", "x\u{fffd}y");
    }

    #[test]
    fn long_lines_lose_their_middle() {
        assert_eq!(shortened("0123456789", 10), "0123456789");
        assert_eq!(shortened("0123456789ä", 9), "012345 … 89ä");
    }
}
