//! Colours that colour-blind readers can distinguish, in a light and a dark set.
//!
//! Colour is never the only cue: a family is also the operator's name, an amount also a bar and a number, a stage also
//! an outline and a label. CSS variables are avoided because some SVG programs do not support them; the light colours
//! are the plain rules and a media query overrides them.

use std::fmt::Write;

use crate::svg::FONT_STACK;

/// A colour for light and dark pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Shade {
    pub light: &'static str,
    pub dark: &'static str,
}

/// A colour used in pictures.
pub const fn shade(light: &'static str, dark: &'static str) -> Shade {
    Shade { light, dark }
}

/// The page.
pub const PAGE: Shade = shade("#ffffff", "#0d1117");
/// Text.
pub const TEXT: Shade = shade("#1f2328", "#e6edf3");
/// Less important text.
pub const MUTED: Shade = shade("#59636e", "#9aa4af");
/// Lines between boxes.
pub const WIRE: Shade = shade("#6e7781", "#8b949e");
/// Thin lines: frames, grids.
pub const FAINT: Shade = shade("#d0d7de", "#3a424c");
/// Backgrounds of nested frames, from the outermost inwards; deeper ones repeat them.
pub const FRAMES: [Shade; 3] =
    [shade("#f6f8fa", "#151b23"), shade("#eceff3", "#1f2630"), shade("#fbfcfd", "#10161d")];

/// Stages and devices: the palette of Okabe and Ito, without its yellow and black, which are hard to see on a page.
pub const STAGES: [Shade; 7] = [
    shade("#0072b2", "#56a8e0"),
    shade("#d55e00", "#f08a3c"),
    shade("#009e73", "#2fc99a"),
    shade("#cc79a7", "#e39cc4"),
    shade("#8a6d00", "#d9b62a"),
    shade("#56b4e9", "#8fd0f7"),
    shade("#7a4fbf", "#b193ea"),
];

/// Increasing amounts of time: lighter is less on a light page, darker is less on a dark one. Text is readable on all
/// of them.
pub const COST: [Shade; 6] = [
    shade("#fff9e0", "#2a2417"),
    shade("#fff0b3", "#3c2f19"),
    shade("#fee391", "#513f1b"),
    shade("#fec44f", "#674c1a"),
    shade("#fe9929", "#7d5716"),
    shade("#ec7014", "#915d0c"),
];

/// Increasing amounts of memory.
pub const MEMORY: [Shade; 6] = [
    shade("#f2f9ee", "#18242a"),
    shade("#d5eed8", "#1a333c"),
    shade("#b3e0c8", "#1c434f"),
    shade("#8bcfcf", "#1c5364"),
    shade("#5db5d5", "#1b637a"),
    shade("#3c97c8", "#14718e"),
];

/// Fill and outline of a family of operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct FamilyShade {
    pub fill: Shade,
    pub line: Shade,
}

const fn family(fill: Shade, line: Shade) -> FamilyShade {
    FamilyShade { fill, line }
}

/// In the order of [`crate::Family::ALL`].
pub const FAMILIES: [FamilyShade; 9] = [
    family(shade("#ffffff", "#1c232c"), shade("#8c959f", "#768390")),
    family(shade("#dcebfb", "#14304f"), shade("#2f74c0", "#5b9be6")),
    family(shade("#e9e2f8", "#2d2450"), shade("#7a58c4", "#a88df0")),
    family(shade("#f9e1ee", "#47203a"), shade("#b34488", "#e083bb")),
    family(shade("#daf0ec", "#123a36"), shade("#23877b", "#4cb8aa")),
    family(shade("#fcf3d2", "#3a3113"), shade("#a37f12", "#cfab42")),
    family(shade("#fde8d8", "#45290f"), shade("#c06a24", "#e39856")),
    family(shade("#e4f2d8", "#22381a"), shade("#54852a", "#8cbf5c")),
    family(shade("#f0f2f4", "#232a33"), shade("#8c959f", "#6b7683")),
];

/// Returns the rules that every picture begins with: page, text and fonts, for light and dark pages.
///
/// `more` adds a picture's own rules; it is called once for each set with a function that picks from a [`Shade`].
pub fn style_sheet(more: impl Fn(&mut String, &dyn Fn(Shade) -> &'static str)) -> String {
    let rules = |pick: &dyn Fn(Shade) -> &'static str| {
        let mut css = String::new();
        let _ = writeln!(css, ".page{{fill:{}}}", pick(PAGE));
        let _ = writeln!(css, "text{{fill:{}}}", pick(TEXT));
        let _ = writeln!(css, "text.muted,tspan.muted{{fill:{}}}", pick(MUTED));
        more(&mut css, pick);
        css
    };
    format!(
        "<style>\ntext{{font-family:{FONT_STACK};unicode-bidi:isolate}}\n{}@media (prefers-color-scheme:dark){{\n{}}}\n</style>\n",
        rules(&|shade| shade.light),
        rules(&|shade| shade.dark)
    )
}

#[cfg(test)]
mod tests {
    use super::{COST, MEMORY, Shade, TEXT};

    /// Relative luminance of WCAG 2.
    fn luminance(colour: &str) -> f64 {
        let part = |at: usize| {
            let value = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
            if value <= 0.03928 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
    }

    #[test]
    fn text_can_be_read_on_every_amount() {
        let contrast = |a: &str, b: &str| {
            let (a, b) = (luminance(a) + 0.05, luminance(b) + 0.05);
            a.max(b) / a.min(b)
        };
        for Shade { light, dark } in COST.iter().chain(&MEMORY) {
            assert!(contrast(light, TEXT.light) >= 4.5, "{light}");
            assert!(contrast(dark, TEXT.dark) >= 4.5, "{dark}");
        }
    }
}
