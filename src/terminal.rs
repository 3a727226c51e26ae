//! The width of standard output, if it is a terminal, and text that fits it.
//!
//! A pipe has no width: its text is never shortened.

use std::{borrow::Cow, io::IsTerminal};

/// Terminals narrower than this are treated as this wide.
const NARROWEST: usize = 30;
/// The maximum width of text, however wide the terminal.
const WIDEST_TEXT: usize = 100;

/// Marks a line to emphasise on a terminal; [`crate::output::Output::text`] removes the mark.
pub const EMPHASIS: char = '\u{1}';

/// Returns the columns of the terminal that standard output is; `None` for a pipe or a file.
pub fn width() -> Option<usize> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    let asked = std::env::var("COLUMNS").ok().and_then(|columns| columns.trim().parse().ok());
    asked.or_else(|| columns(std::io::stdout())).filter(|width| *width > 0).map(|width| width.max(NARROWEST))
}

/// Returns the columns of the terminal that standard error is; `None` for a pipe or a file.
pub fn error_width() -> Option<usize> {
    if !std::io::stderr().is_terminal() {
        return None;
    }
    columns(std::io::stderr()).filter(|width| *width > 0).map(|width| width.max(NARROWEST))
}

#[cfg(unix)]
fn columns(terminal: impl std::os::fd::AsFd) -> Option<usize> {
    rustix::termios::tcgetwinsize(terminal).ok().map(|size| usize::from(size.ws_col))
}

/// Elsewhere only the environment variable tells it.
#[cfg(not(unix))]
fn columns<T>(_terminal: T) -> Option<usize> {
    None
}

/// Joins consecutive lines without indentation: they are wrapped again when printed.
pub fn paragraphs(text: &str) -> String {
    let mut joined = String::new();
    let mut is_open = false;
    for line in text.lines() {
        let is_plain = !line.is_empty() && !line.starts_with(' ');
        if !joined.is_empty() {
            joined.push(if is_open && is_plain { ' ' } else { '\n' });
        }
        joined.push_str(line);
        is_open = is_plain;
    }
    joined
}

/// Returns the width of paragraphs.
pub fn text_width() -> usize {
    width().map_or(WIDEST_TEXT, |width| width.min(WIDEST_TEXT))
}

/// Breaks a line between words if it is too wide; the continuation is indented a little more.
pub fn broken(line: &str, width: usize) -> Cow<'_, str> {
    if line.chars().count() <= width {
        return Cow::Borrowed(line);
    }
    let own = line.chars().take_while(|c| *c == ' ').count();
    let indent = " ".repeat((own + 2).min(width / 2));
    let mut text = " ".repeat(own.min(width / 2));
    let mut column = text.len();
    let mut is_first = true;
    for word in line[own..].split(' ') {
        let wide = word.chars().count();
        let space = usize::from(!is_first);
        if !is_first && column + space + wide > width {
            text.truncate(text.trim_end().len());
            text.push('\n');
            text.push_str(&indent);
            column = indent.len() + wide;
            // Alignment spaces at a line's end are dropped.
            if wide == 0 {
                continue;
            }
        } else {
            text.push_str(&" "[..space]);
            column += space + wide;
        }
        text.push_str(word);
        is_first = false;
    }
    Cow::Owned(text)
}

/// Shortens a name in its middle, by whole words if two of them fit.
///
/// Words are parts of a path, and parts of those if one part is too wide: `model.layers.0.mlp` becomes `model…mlp`,
/// never `model.layers.0.m`.
pub fn shortened(name: &str, width: usize) -> String {
    let wide = |text: &str| text.chars().count();
    if wide(name) <= width {
        return name.to_string();
    }
    // A range of names keeps both its ends.
    if let Some((first, last)) = name.split_once(" … ") {
        let half = width.saturating_sub(3) / 2;
        if half >= 5 {
            let last = shortened(last, width - 3 - wide(first).min(half).min(width - 8));
            let first = shortened(first, width - 3 - wide(&last));
            return format!("{first} … {last}");
        }
    }
    for separators in [&['.', '/', ' '][..], &['.', '/', ' ', '_', '-', ':']] {
        let ends: Vec<usize> = name.match_indices(separators).map(|(at, _)| at).collect();
        // As much of the end as fits with the first word, or alone.
        let head = ends.first().map_or("", |at| &name[..*at]);
        for head in [head, ""] {
            let mut tails = ends.iter().map(|at| &name[at + 1..]);
            let fits = |tail: &&str| !tail.trim().is_empty() && wide(head) + 1 + wide(tail) <= width;
            if let Some(tail) = tails.find(fits) {
                return format!("{head}…{tail}");
            }
        }
    }
    let skipped = wide(name) + 1 - width.max(1);
    format!("…{}", name.chars().skip(skipped).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shortened_by_whole_words() {
        let check = |name: &str, width, expected: &str| {
            assert_eq!(shortened(name, width), expected, "{name} {width}");
        };
        check("model.layers.0.mlp", 18, "model.layers.0.mlp");
        check("model.layers.0.mlp.gate_proj", 18, "model…gate_proj");
        check("model.layers.0.mlp.gate_proj", 22, "model…0.mlp.gate_proj");
        check("transformer.layers.0.scaled_dot_product", 20, "…scaled_dot_product");
        check("model.layers.0.scaled_dot_product", 14, "model…product");
        check("model.layers.0.mlp.gate_proj", 12, "…gate_proj");
        check("abcdefghijklmnop", 8, "…jklmnop");
        check("model.embed_tokens … lm_head", 26, "…embed_tokens … lm_head");
        check("ünïcödé.wörds.hère", 13, "ünïcödé…hère");
    }

    #[test]
    fn lines_of_a_paragraph_are_one() {
        let text = "Examples:\n  a b\n  c\n\nOne\ntwo\nthree.\n\nFour:\n  five";
        assert_eq!(paragraphs(text), "Examples:\n  a b\n  c\n\nOne two three.\n\nFour:\n  five");
    }

    #[test]
    fn lines_break_between_words() {
        assert_eq!(broken("  one two three", 10), "  one two\n    three");
        assert_eq!(broken("one two", 10), "one two");
        assert_eq!(broken("label       words that go on", 18), "label       words\n  that go on");
    }
}
