//! The lines around a fault, cut out of a text that may be huge and may contain anything.

use std::ops::Range;

use miette::{MietteError, MietteSpanContents, SourceCode, SourceSpan, SpanContents};

use crate::visible::visible;

/// Lines shown before and after the first line of the fault.
const CONTEXT: usize = 1;
/// The most lines of the fault itself.
const MOST_LINES: usize = 6;
/// The most characters shown before and after the fault on its line, and on the lines around it.
const BEFORE: usize = 80;
const AFTER: usize = 160;

/// A piece of a text, with its place in the whole.
#[derive(Debug)]
pub struct Excerpt {
    name: String,
    text: String,
    span: Range<usize>,
    first_line: usize,
    /// Bytes cut off at the left of the fault's line.
    cut: usize,
}

impl Excerpt {
    /// Cuts an excerpt around a range of bytes, which may lie outside the text.
    pub fn new(name: &str, whole: &str, span: Range<usize>) -> Self {
        let start = floor(whole, span.start.min(span.end));
        let end = floor(whole, span.end).max(start);
        let line_start = whole[..start].rfind('\n').map_or(0, |at| at + 1);
        let mut top = line_start;
        for _ in 0..CONTEXT {
            top = whole[..top.saturating_sub(1)].rfind('\n').map_or(0, |at| at + 1);
        }
        let first_line = whole[..top].matches('\n').count();
        let mut text = String::new();
        for line in whole[top..line_start].lines() {
            text.push_str(&visible(head(line, BEFORE + AFTER)));
            text.push('\n');
        }
        // The fault's own line keeps the characters next to the fault.
        let left = whole[line_start..start].char_indices().rev().nth(BEFORE - 1);
        let cut = left.map_or(0, |(at, _)| at);
        text.push_str(&visible(&whole[line_start + cut..start]));
        let mut inside = 0;
        for (index, line) in whole[start..end].split('\n').enumerate().take(MOST_LINES) {
            if index > 0 {
                text.push('\n');
            }
            inside = if index == 0 { text.len() } else { inside };
            text.push_str(&visible(head(line, AFTER)));
        }
        let span = inside..text.len();
        let rest = &whole[end..];
        for (index, line) in rest.split('\n').enumerate().take(1 + CONTEXT) {
            if index > 0 {
                text.push('\n');
            }
            text.push_str(&visible(head(line, AFTER)));
        }
        Self { name: head(&visible(name), AFTER).to_string(), text, span, first_line, cut }
    }

    /// Returns the fault's bytes in the excerpt.
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }
}

impl SourceCode for Excerpt {
    fn read_span<'a>(
        &'a self,
        span: &SourceSpan,
        before: usize,
        after: usize,
    ) -> Result<Box<dyn SpanContents<'a> + 'a>, MietteError> {
        let found = self.text.read_span(span, before, after)?;
        // Without lines before it, the excerpt begins at the fault, whose column is that of the whole text.
        let column = found.column() + if before == 0 { self.cut } else { 0 };
        Ok(Box::new(MietteSpanContents::new_named(
            self.name.clone(),
            found.data(),
            *found.span(),
            found.line() + self.first_line,
            column,
            found.line_count(),
        )))
    }
}

/// Returns the nearest character boundary at or before a byte.
fn floor(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

fn head(line: &str, longest: usize) -> &str {
    line.char_indices().nth(longest).map_or(line, |(at, _)| &line[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(whole: &str, span: Range<usize>, text: &str, shown: &str, first_line: usize) {
        let excerpt = Excerpt::new("name", whole, span);
        assert_eq!(excerpt.text, text);
        assert_eq!(&excerpt.text[excerpt.span()], shown);
        assert_eq!(excerpt.first_line, first_line);
    }

    #[test]
    fn a_line_before_and_a_line_after() {
        check("a\nb\nc\nd\ne", 4..5, "b\nc\nd", "c", 1);
        check("abc", 1..2, "abc", "b", 0);
        check("", 0..0, "", "", 0);
        check("a\n", 2..9, "a\n", "", 0);
    }

    #[test]
    fn spans_of_strangers_are_taken_as_they_come() {
        check("äö", 1..3, "äö", "ä", 0);
        check("a\x1b[2J", 1..2, "a␛[2J", "␛", 0);
    }

    #[test]
    fn one_endless_line_is_cut_on_both_sides() {
        let excerpt = Excerpt::new("name", &"x".repeat(1_000_000), 500_000..500_001);
        assert_eq!((excerpt.text.len(), excerpt.cut), (BEFORE + 1 + AFTER, 500_000 - BEFORE));
    }
}
