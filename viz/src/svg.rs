//! Small pieces of SVG: escaped text, short numbers, rounded lines.

use std::fmt::{self, Write};

use crate::text;

/// Fonts of common systems; none is downloaded.
pub const FONT_STACK: &str =
    "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Noto Sans', Arial, sans-serif";

/// Longest text kept in a tool tip, in characters.
const LONGEST_TITLE: usize = 2000;

/// A text escaped for XML, both for an element's content and for an attribute in either kind of quotes.
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in text::clean(self.0).chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// A coordinate: one decimal at most, so that files are small and reproducible.
pub struct Number(pub f64);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = (self.0 * 10.0).round();
        // A picture never reaches the range where this cast saturates; NaN becomes 0.
        let tenths = tenths as i64;
        let sign = if tenths < 0 { "-" } else { "" };
        let (whole, tenth) = (tenths.unsigned_abs() / 10, tenths.unsigned_abs() % 10);
        match tenth {
            0 => write!(f, "{sign}{whole}"),
            tenth => write!(f, "{sign}{whole}.{tenth}"),
        }
    }
}

/// A point of a picture, in pixels.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[allow(missing_docs)]
pub struct Point {
    pub x: f64,
    pub y: f64,
}

impl Point {
    /// Makes a point.
    pub fn new(x: f64, y: f64) -> Self {
        Self { x, y }
    }
}

/// Appends a line through `points`, its corners rounded, to the data of a `<path>`.
pub fn rounded_line(data: &mut String, points: &[Point], radius: f64) {
    let Some(first) = points.first() else { return };
    let _ = write!(data, "M{} {}", Number(first.x), Number(first.y));
    for window in points.windows(3) {
        let [before, corner, after] = [window[0], window[1], window[2]];
        let (into, out) = (length(before, corner), length(corner, after));
        // Two corners share the line between them.
        let radius = radius.min(into / 2.0).min(out / 2.0);
        if radius < 0.5 {
            let _ = write!(data, "L{} {}", Number(corner.x), Number(corner.y));
            continue;
        }
        let (start, end) = (towards(corner, before, radius / into), towards(corner, after, radius / out));
        let _ = write!(
            data,
            "L{} {}Q{} {} {} {}",
            Number(start.x),
            Number(start.y),
            Number(corner.x),
            Number(corner.y),
            Number(end.x),
            Number(end.y)
        );
    }
    if let [.., last] = points
        && points.len() > 1
    {
        let _ = write!(data, "L{} {}", Number(last.x), Number(last.y));
    }
}

/// Appends a `<title>`, which viewers show as a tool tip.
pub fn title(out: &mut String, text: &str) {
    match text.char_indices().nth(LONGEST_TITLE) {
        None => {
            let _ = write!(out, "<title>{}</title>", Escaped(text));
        }
        Some((end, _)) => {
            let _ = write!(out, "<title>{}…</title>", Escaped(&text[..end]));
        }
    }
}

fn length(a: Point, b: Point) -> f64 {
    (a.x - b.x).hypot(a.y - b.y)
}

fn towards(from: Point, to: Point, share: f64) -> Point {
    Point::new(from.x + (to.x - from.x) * share, from.y + (to.y - from.y) * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text() {
        let check = |text: &str, expected: &str| assert_eq!(Escaped(text).to_string(), expected);
        check("<script>alert('1')</script>", "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;");
        check("a&\"b", "a&amp;&quot;b");
        check("]]>\u{1}", "]]&gt;␁");
    }

    #[test]
    fn numbers_are_short() {
        let check = |value: f64, expected: &str| assert_eq!(Number(value).to_string(), expected);
        check(1.0, "1");
        check(-0.04, "0");
        check(-2.25, "-2.3");
        check(10.55, "10.6");
        check(f64::NAN, "0");
    }

    #[test]
    fn corners_are_rounded() {
        let mut data = String::new();
        let points = [Point::new(0.0, 0.0), Point::new(0.0, 20.0), Point::new(30.0, 20.0)];
        rounded_line(&mut data, &points, 6.0);
        assert_eq!(data, "M0 0L0 14Q0 20 6 20L30 20");
    }
}
