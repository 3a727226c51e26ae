//! PNG and PDF of a picture, by `rsvg-convert`, which every distribution has.
//!
//! A renderer inside the command (resvg 0.49 with text) was measured and left out: 3.4 MB in a binary of 20 MB and 61
//! more crates for PNG, and svg2pdf with an older resvg for PDF, in every build and every audit; and text has glyphs
//! only if fonts are installed, as with rsvg-convert. Users without rsvg-convert can print the .svg in a browser.

use std::{process::Command, time::Duration};

use super::program::{Missing, run};
use crate::failure::Failure;

const LONGEST: Duration = Duration::from_secs(60);
/// Pixels of a PNG per unit of the SVG, unless it becomes too large.
const ZOOM: f64 = 2.0;
/// Longest side of a PNG; cairo draws no more than 32,767.
const MOST_PIXELS: f64 = 30_000.0;

/// Converts an SVG; `ending` is `png` or `pdf`.
pub fn convert(svg: &str, ending: &str) -> Result<Vec<u8>, Failure> {
    let mut command = Command::new("rsvg-convert");
    command.args(["--unlimited", "--format", ending]);
    if ending == "png" {
        command.args(["--zoom", &zoom(svg).to_string()]);
    }
    run(&mut command, "rsvg-convert", svg, LONGEST).map_err(|missing| match missing {
        Missing::NotFound => Failure::input(format!("writing a .{ending} needs rsvg-convert, which is not on the PATH"))
            .with_hint("install it (apt install librsvg2-bin, brew install librsvg), or write an .svg, which browsers show and print"),
        Missing::Failed(why) => {
            Failure::input(why).with_hint("write an .svg, which browsers show and print")
        }
    })
}

/// Returns the scale from the SVG to the PNG.
fn zoom(svg: &str) -> f64 {
    let size = |name: &str| -> Option<f64> {
        let (_, rest) = svg.split_once(&format!(" {name}=\""))?;
        rest.split_once('"')?.0.parse().ok()
    };
    let longest = size("width").unwrap_or(0.0).max(size("height").unwrap_or(0.0)).max(1.0);
    ZOOM.min(MOST_PIXELS / longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_pictures_are_not_enlarged_beyond_what_can_be_drawn() {
        assert_eq!(zoom("<svg width=\"300\" height=\"400\">"), 2.0);
        assert_eq!(zoom("<svg width=\"300\" height=\"60000\">"), 0.5);
    }
}
