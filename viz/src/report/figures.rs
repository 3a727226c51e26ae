//! Numbers as text, for the cards and tables of a report.

use std::fmt::Write as _;

use crate::{palette::STAGES, svg::Escaped};

/// Writes a share with one decimal: `12.3 %`.
pub(super) fn percent(share: f64) -> String {
    if share.is_finite() { format!("{:.1} %", 100.0 * share) } else { "–".to_string() }
}

/// Writes `1 stage`, `2 stages`.
pub(super) fn plural(number: usize, word: &str) -> String {
    if number == 1 { format!("1 {word}") } else { format!("{number} {word}s") }
}

/// Lists some names, the rest as a number.
pub(super) fn few(names: &[String], most: usize) -> String {
    match names.len() {
        n if n <= most => names.join(", "),
        n => format!("{} … {} ({n})", names[0], names[n - 1]),
    }
}

/// Returns the class that gives a stage its colour.
pub(super) fn stage_class(stage: usize) -> String {
    format!("s{}", stage % STAGES.len())
}

/// Appends a card: a heading, a number, and what it means.
pub(super) fn card(out: &mut String, class: &str, heading: &str, value: &str, note: &str) {
    let _ = write!(
        out,
        "<div class=\"card {class}\"><dt>{}</dt><dd><b>{}</b><span>{}</span></dd></div>",
        Escaped(heading),
        Escaped(value),
        Escaped(note)
    );
}
