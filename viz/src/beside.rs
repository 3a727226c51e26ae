//! Two pictures in one: beside each other, or one above the other.
//!
//! Each stays a separate document within the whole, so that both are drawn exactly as they would be alone.

use std::fmt::Write;

use crate::{
    palette,
    svg::{Escaped, Number},
    text::{Weight, fit},
};

/// The arrangement of the pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// The second to the right of the first.
    Right,
    /// The second below the first.
    Below,
}

const MARGIN: f64 = 16.0;
const HEAD: f64 = 34.0;
const SIZE: f64 = 15.0;

/// Combines pictures, each under its title, into one. A text that is not a picture of this crate takes no space.
pub fn beside(pictures: &[(String, String)], arrangement: Arrangement) -> String {
    let sizes: Vec<(f64, f64)> =
        pictures.iter().map(|(_, svg)| (extent(svg, "width"), extent(svg, "height"))).collect();
    let mut places = Vec::new();
    let (mut x, mut y, mut width, mut height) = (0.0, 0.0, 0.0f64, 0.0f64);
    for size in &sizes {
        places.push((x, y));
        width = width.max(x + size.0);
        height = height.max(y + HEAD + size.1);
        match arrangement {
            Arrangement::Right => x = width + MARGIN,
            Arrangement::Below => y = height + MARGIN,
        }
    }
    let titles: Vec<&str> = pictures.iter().map(|(title, _)| title.as_str()).collect();
    let mut out = String::new();
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" viewBox=\"0 0 {w} {h}\" role=\"img\" aria-label=\"{label}\">",
        w = Number(width.ceil()),
        h = Number(height.ceil()),
        label = Escaped(&titles.join(" beside ")),
    );
    out.push_str(&palette::style_sheet(|_, _| ()));
    out.push_str("<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n");
    for (((title, svg), (x, y)), (wide, _)) in pictures.iter().zip(places).zip(sizes) {
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" font-size=\"{SIZE}\" font-weight=\"600\">{}</text>",
            Number(x + MARGIN),
            Number(y + 24.0),
            Escaped(&fit(title, wide - 2.0 * MARGIN, SIZE, Weight::Bold))
        );
        if let Some(inner) = svg.strip_prefix("<svg ") {
            let _ = write!(out, "<svg x=\"{}\" y=\"{}\" {inner}", Number(x), Number(y + HEAD));
        }
    }
    out.push_str("</svg>\n");
    out
}

/// Reads a size from the first element of a picture.
fn extent(svg: &str, name: &str) -> f64 {
    let head = svg.split('>').next().unwrap_or_default();
    let value = head.split_once(&format!(" {name}=\"")).and_then(|(_, rest)| rest.split('"').next());
    value.and_then(|value| value.parse().ok()).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(width: u32, height: u32) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1 1\" width=\"{width}\" height=\"{height}\"></svg>\n"
        )
    }

    #[test]
    fn pictures_lie_beside_or_below_each_other() {
        let two = [("a".to_string(), picture(300, 40)), ("<b>".to_string(), picture(200, 60))];
        let check = |arrangement, size: (f64, f64), second: &str| {
            let svg = beside(&two, arrangement);
            let document = roxmltree::Document::parse(&svg).unwrap();
            assert_eq!((extent(&svg, "width"), extent(&svg, "height")), size);
            let inner: Vec<_> = document.descendants().filter(|node| node.has_tag_name("svg")).collect();
            assert_eq!(inner.len(), 3);
            assert_eq!(
                format!("{},{}", inner[2].attribute("x").unwrap(), inner[2].attribute("y").unwrap()),
                second
            );
        };
        check(Arrangement::Right, (516.0, 94.0), "316,34");
        check(Arrangement::Below, (300.0, 184.0), "0,124");
    }
}
