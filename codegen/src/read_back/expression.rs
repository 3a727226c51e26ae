//! Expressions of an emitted Python stage: only the part of Python's grammar in which they are written.
//!
//! ```text
//! expression = [ "-" ] primary [ SIGN primary ]
//! primary    = atom { "." NAME | "[" subscripts "]" | "(" arguments ")" }
//! atom       = NAME | NUMBER | STRING | "(" items ")" | "[" items "]" | "{" pairs "}"
//! ```
//!
//! A name is not a keyword. Strings are on one line with Python's escapes. Every accepted text means the same in
//! Python.

use crate::names::is_keyword;

/// The deepest nesting of brackets. Python's own parser accepts 200.
const MAX_DEPTH: usize = 150;

/// Binary operators; those of two characters come first.
const SIGNS: &[&str] = &["==", "!=", "<=", ">=", "//", "<", ">", "+", "-", "*", "/", "%", "&", "|", "^"];

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expr<'t> {
    Name(&'t str),
    /// A number, as it is written.
    Number(&'t str),
    /// A text, between its quotes.
    Text(&'t str),
    /// `x.y`.
    Attribute(Box<Expr<'t>>, &'t str),
    /// `x[y]`, `x[:, 2:]`: the text between the brackets.
    Index(Box<Expr<'t>>, Vec<Expr<'t>>),
    /// `f(x, y=z)`.
    Call(Box<Expr<'t>>, Vec<Expr<'t>>),
    /// A list, a tuple, a dictionary, or one expression in brackets.
    Group(Vec<Expr<'t>>),
    /// `-x`.
    Minus(Box<Expr<'t>>),
    /// `x + y`.
    Sign(&'t str, Box<[Expr<'t>; 2]>),
}

impl<'t> Expr<'t> {
    /// Returns the names of `a.b.c`, if the expression consists of them.
    pub fn path(&self) -> Option<Vec<&'t str>> {
        match self {
            Expr::Name(name) => Some(vec![name]),
            Expr::Attribute(base, name) => {
                let mut path = base.path()?;
                path.push(name);
                Some(path)
            }
            _ => None,
        }
    }
}

/// Parses a text that is one expression.
pub(super) fn expression(text: &str) -> Option<Expr<'_>> {
    let mut reader = Reader { rest: text };
    let expr = reader.expression(0)?;
    reader.rest.is_empty().then_some(expr)
}

/// Parses `"key": value,`: a line of a table.
pub(super) fn pair(text: &str) -> Option<(Expr<'_>, Expr<'_>)> {
    let mut reader = Reader { rest: text };
    let key = reader.expression(0)?;
    reader.take(":")?;
    let value = reader.expression(0)?;
    (reader.rest == ",").then_some((key, value))
}

/// Tells whether a text is a valid Python name.
pub(super) fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !is_keyword(text)
}

struct Reader<'t> {
    rest: &'t str,
}

impl<'t> Reader<'t> {
    /// Consumes exactly this text, and the spaces after it.
    fn take(&mut self, text: &str) -> Option<()> {
        self.rest = self.rest.strip_prefix(text)?.trim_start_matches(' ');
        Some(())
    }

    /// Consumes this many bytes of the text.
    fn bytes(&mut self, count: usize) -> &'t str {
        let (taken, rest) = self.rest.split_at(count);
        self.rest = rest;
        taken
    }

    fn expression(&mut self, depth: usize) -> Option<Expr<'t>> {
        if depth > MAX_DEPTH {
            return None;
        }
        if self.take("-").is_some() {
            return Some(Expr::Minus(Box::new(self.primary(depth)?)));
        }
        let first = self.primary(depth)?;
        let after = self.rest.trim_start_matches(' ');
        // A slice or a keyword continues with another symbol.
        let Some(sign) = SIGNS.iter().find(|sign| after.starts_with(**sign)) else { return Some(first) };
        self.rest = after;
        self.take(sign)?;
        Some(Expr::Sign(sign, Box::new([first, self.primary(depth)?])))
    }

    fn primary(&mut self, depth: usize) -> Option<Expr<'t>> {
        let mut expr = self.atom(depth)?;
        loop {
            if self.take(".").is_some() {
                expr = Expr::Attribute(Box::new(expr), self.name()?);
            } else if self.take("[").is_some() {
                let items = self.items("]", depth, Reader::subscript)?;
                if items.is_empty() {
                    return None;
                }
                expr = Expr::Index(Box::new(expr), items.concat());
            } else if self.take("(").is_some() {
                expr = Expr::Call(Box::new(expr), self.arguments(depth)?);
            } else {
                return Some(expr);
            }
        }
    }

    fn atom(&mut self, depth: usize) -> Option<Expr<'t>> {
        let first = self.rest.bytes().next()?;
        match first {
            b'(' => {
                self.take("(")?;
                Some(Expr::Group(self.items(")", depth, |reader, depth| reader.expression(depth))?))
            }
            b'[' => {
                self.take("[")?;
                Some(Expr::Group(self.items("]", depth, |reader, depth| reader.expression(depth))?))
            }
            b'{' => {
                self.take("{")?;
                Some(Expr::Group(self.items("}", depth, Reader::key_and_value)?.concat()))
            }
            b'"' => self.text(),
            b'0'..=b'9' => self.number(),
            _ => self.name().or_else(|| self.literal()).map(Expr::Name),
        }
    }

    /// Parses items separated by commas up to the closing bracket.
    fn items<T>(
        &mut self,
        end: &str,
        depth: usize,
        mut item: impl FnMut(&mut Self, usize) -> Option<T>,
    ) -> Option<Vec<T>> {
        let mut items = Vec::new();
        // The space after a closing bracket separates an operator.
        while !self.rest.starts_with(end) {
            items.push(item(self, depth + 1)?);
            if !self.rest.starts_with(end) {
                self.take(",")?;
            }
        }
        self.bytes(end.len());
        Some(items)
    }

    fn key_and_value(&mut self, depth: usize) -> Option<[Expr<'t>; 2]> {
        let key = self.expression(depth)?;
        self.take(":")?;
        Some([key, self.expression(depth)?])
    }

    /// Parses `x`, `:`, `x:`, `:y`, `x:y`.
    fn subscript(&mut self, depth: usize) -> Option<Vec<Expr<'t>>> {
        let mut bounds = Vec::new();
        let is_end = |reader: &Self| reader.rest.starts_with([',', ']']);
        if !self.rest.starts_with(':') {
            bounds.push(self.expression(depth)?);
        }
        if !is_end(self) {
            self.take(":")?;
            if !is_end(self) {
                bounds.push(self.expression(depth)?);
            }
        }
        Some(bounds)
    }

    /// Parses arguments: positional ones first, and no name twice.
    fn arguments(&mut self, depth: usize) -> Option<Vec<Expr<'t>>> {
        let mut names: Vec<&'t str> = Vec::new();
        self.items(")", depth, |reader, depth| {
            let before = reader.rest;
            let name =
                reader.name().filter(|_| reader.rest.starts_with('=') && !reader.rest.starts_with("=="));
            match name {
                Some(name) if names.contains(&name) => return None,
                Some(name) => {
                    names.push(name);
                    reader.take("=")?;
                }
                None if !names.is_empty() => return None,
                None => reader.rest = before,
            }
            reader.expression(depth)
        })
    }

    fn name(&mut self) -> Option<&'t str> {
        let end = self.rest.bytes().take_while(|b| b.is_ascii_alphanumeric() || *b == b'_').count();
        is_name(&self.rest[..end]).then(|| self.bytes(end))
    }

    /// Consumes `None`, `True` and `False`, which are keywords and values.
    fn literal(&mut self) -> Option<&'t str> {
        let end = self.rest.bytes().take_while(u8::is_ascii_alphabetic).count();
        matches!(&self.rest[..end], "None" | "True" | "False").then(|| self.bytes(end))
    }

    /// Parses digits with a point, digits after it and an exponent, as Python and Rust both print them.
    fn number(&mut self) -> Option<Expr<'t>> {
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let mut end = digits(self.rest);
        let is_whole = end;
        if self.rest[end..].starts_with('.') {
            end += 1 + digits(&self.rest[end + 1..]);
        }
        if self.rest[end..].starts_with('e') {
            let sign = usize::from(self.rest[end + 1..].starts_with(['+', '-']));
            let exponent = digits(&self.rest[end + 1 + sign..]);
            if exponent == 0 {
                return None;
            }
            end += 1 + sign + exponent;
        }
        // Python refuses integers that begin with 0, and names that begin with digits.
        let is_padded = is_whole == end && end > 1 && self.rest.starts_with('0');
        let is_glued = self.rest[end..].starts_with(|c: char| c.is_alphanumeric() || c == '_');
        (!is_padded && !is_glued).then(|| Expr::Number(self.bytes(end)))
    }

    /// Parses a string on one line; escapes are those that `python_quoted` writes.
    fn text(&mut self) -> Option<Expr<'t>> {
        let mut is_escaped = false;
        for (at, c) in self.rest.char_indices().skip(1) {
            match c {
                _ if c.is_control() => return None,
                'u' if is_escaped && !is_hexadecimal(&self.rest[at + 1..]) => return None,
                '"' | '\\' | 'n' | 'r' | 't' | 'u' | '0' | '1' if is_escaped => is_escaped = false,
                _ if is_escaped => return None,
                '\\' => is_escaped = true,
                '"' => {
                    // Two more quotes would begin a multi-line string.
                    let is_long = self.rest[at + 1..].starts_with('"');
                    let text = self.bytes(at + 1);
                    return (!is_long).then(|| Expr::Text(&text[1..at]));
                }
                _ => {}
            }
        }
        None
    }
}

/// Tells whether four hexadecimal digits follow, as `\u` requires.
fn is_hexadecimal(text: &str) -> bool {
    text.len() >= 4 && text.bytes().take(4).all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_stage_holds_is_read() {
        for text in [
            "x",
            "-x",
            "a + b",
            "(1.0) - x",
            "x[:, 2:5]",
            "x[:, :size]",
            "x[..., 0]",
            "self.up[0][\"b-0\"].weight",
            "torch.ops.aten.pow.int_float(2, a)",
            "f(x, [1, -1], dtype=torch.float32)",
            "{\"a\": x, \"b\": [y]}",
            "[]",
            "(x,)",
            "()",
            "list(x.size())",
            "a >= (0.5)",
            "1e-05",
            "1e16",
            "0",
            "0.5",
            "None",
            "torch.nan",
            "f(x, -torch.inf, True)",
            "\"a\\\"\\u202e\\001é\"",
            "x.size(-1)",
            "complex(0.0, -1.0)",
        ] {
            // An ellipsis is not part of the grammar.
            assert_eq!(expression(text).is_some(), !text.contains("..."), "{text}");
        }
    }

    #[test]
    fn what_python_refuses_or_a_stage_does_not_hold_is_refused() {
        for text in [
            "",
            "f(x, class=2)",
            "f(x, a=1, a=2)",
            "f(a=1, x)",
            "x.class",
            "lambda: x",
            "x if y else z",
            "f(x",
            "f(x))",
            "[x}",
            "x[",
            "x[]",
            "1_000",
            "01",
            "1x",
            "1e",
            "\"a",
            "\"a\nb\"",
            "\"\"\"a\"\"\"",
            "'a'",
            "\"\\N{DASH}\"",
            "x = y",
            "x; y",
            "f(*x)",
            "f(**x)",
            "x := y",
            "f\"a\"",
            "a + b + c",
            "not x",
            "x\ny",
            "é",
            "x # y",
            "await x",
            "import os",
            "f(None=1)",
        ] {
            assert_eq!(expression(text), None, "{text}");
        }
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(expression(&nested(100)).is_some());
        assert_eq!(expression(&nested(100_000)), None);
    }
}
