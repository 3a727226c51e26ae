//! Text that fits: the width of a label, and how to shorten it.
//!
//! A library cannot ask the reader's font, so widths come from a table of DejaVu Sans, which is wider than
//! the usual system fonts (Segoe UI, Roboto, Helvetica, Arial). What fits by this table fits with any of them.

use std::borrow::Cow;

/// Thickness of the letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// Plain text.
    Regular,
    /// Titles.
    Bold,
}

/// Returns the width of a line of text, in the unit of `size`.
pub fn width(text: &str, size: f64, weight: Weight) -> f64 {
    text.chars().map(|c| f64::from(advance(c, weight))).sum::<f64>() * size / 1000.0
}

/// Shortens a line in the middle until it is no wider than `limit`.
pub fn fit(text: &str, limit: f64, size: f64, weight: Weight) -> Cow<'_, str> {
    // The head of a long name identifies the family and the tail the member, so both are kept.
    if text.len() < 4096 && width(text, size, weight) <= limit {
        return Cow::Borrowed(text);
    }
    let budget = limit * 1000.0 / size - f64::from(advance('…', weight));
    let (mut head, mut tail) = (0, text.len());
    let mut used = 0.0;
    let mut front = text.char_indices();
    let mut is_head_next = true;
    loop {
        let rest = &text[head..tail];
        let next = if is_head_next { front.next().map(|(_, c)| c) } else { rest.chars().next_back() };
        let Some(c) = next.filter(|_| head < tail) else { break };
        used += f64::from(advance(c, weight));
        if used > budget {
            break;
        }
        if is_head_next {
            head += c.len_utf8();
        } else {
            tail -= c.len_utf8();
        }
        is_head_next = !is_head_next;
    }
    Cow::Owned(format!("{}…{}", &text[..head], &text[tail..]))
}

/// Sanitises a text: control characters and direction overrides become visible marks.
///
/// XML forbids most control characters even when escaped, and a right-to-left override in one name would reverse its
/// neighbours.
pub fn clean(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_harmful) {
        return Cow::Borrowed(text);
    }
    let replaced = text.chars().map(|c| match c {
        '\n' | '\r' | '\t' => ' ',
        c if (c as u32) < 0x20 => char::from_u32(0x2400 + c as u32).unwrap_or('\u{fffd}'),
        c if is_harmful(c) => '\u{fffd}',
        c => c,
    });
    Cow::Owned(replaced.collect())
}

fn is_harmful(c: char) -> bool {
    matches!(c,
        '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}'
        | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}'
        | '\u{fffe}' | '\u{ffff}')
}

/// Advance of one character in thousandths of the font size.
fn advance(c: char, weight: Weight) -> u16 {
    let table = match weight {
        Weight::Regular => &REGULAR,
        Weight::Bold => &BOLD,
    };
    match c {
        ' '..='~' => table[c as usize - 32],
        '…' => 1000,
        '×' | '→' | '÷' | '±' => 838,
        '·' => 380,
        '\u{a0}'..='\u{24f}' => 850,
        // Combining marks have no width, but fonts without them draw a box.
        '\u{300}'..='\u{36f}' => 500,
        '\u{370}'..='\u{10ff}' => 950,
        // Wide scripts, symbols and emoji.
        _ => 1250,
    }
}

const REGULAR: [u16; 95] = [
    318, 401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361, 318, 337, 636, 636, 636, 636, 636,
    636, 636, 636, 636, 636, 337, 337, 838, 838, 838, 531, 1000, 684, 686, 698, 770, 632, 575, 775, 752, 295,
    295, 656, 557, 863, 748, 787, 603, 787, 695, 635, 611, 732, 684, 989, 685, 611, 685, 390, 337, 390, 838,
    500, 500, 613, 635, 550, 635, 615, 352, 635, 634, 278, 278, 579, 278, 974, 634, 612, 635, 635, 411, 521,
    392, 634, 592, 818, 592, 592, 525, 636, 337, 636, 838,
];
const BOLD: [u16; 95] = [
    348, 456, 521, 838, 696, 1002, 872, 306, 457, 457, 523, 838, 380, 415, 380, 365, 696, 696, 696, 696, 696,
    696, 696, 696, 696, 696, 400, 400, 838, 838, 838, 580, 1000, 774, 762, 734, 830, 683, 683, 821, 837, 372,
    372, 775, 637, 995, 837, 850, 733, 850, 770, 720, 682, 812, 774, 1103, 771, 724, 725, 457, 365, 457, 838,
    500, 500, 675, 716, 593, 716, 678, 435, 716, 712, 343, 343, 665, 343, 1042, 712, 687, 716, 716, 493, 595,
    478, 712, 652, 924, 645, 652, 582, 712, 365, 712, 838,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_lose_their_middle() {
        let check = |text: &str, limit: f64, expected: &str| {
            let shown = fit(text, limit, 10.0, Weight::Regular);
            assert_eq!(shown, expected);
            assert!(width(&shown, 10.0, Weight::Regular) <= limit.max(10.0));
        };
        check("conv1", 100.0, "conv1");
        check("transformer.encoder.layers.11.attention", 100.0, "transform…ttention");
        check("", 10.0, "");
        check("абв", 20.0, "а…");
        check("wide", 3.0, "…");
        check(&"x".repeat(10_000), 60.0, "xxxx…xxxx");
    }

    #[test]
    fn controls_become_visible() {
        let check = |text: &str, expected: &str| assert_eq!(clean(text), expected);
        check("conv1", "conv1");
        check("a\u{0}b\nc\u{7f}", "a␀b c\u{fffd}");
        check("\u{202e}evil", "\u{fffd}evil");
    }
}
