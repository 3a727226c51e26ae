//! The text of a box: lines with their positions, and the space they need.

use crate::{
    diagram::{BoxId, Diagram},
    text::{Weight, fit, width},
};

/// Sizes of letters.
pub(crate) const TITLE: f64 = 12.0;
pub(crate) const SMALL: f64 = 10.0;
pub(crate) const LABEL: f64 = 9.5;
/// Longest line; longer ones are shortened in the middle.
const LONGEST_LINE: f64 = 270.0;
const PADDING: f64 = 11.0;
const NARROWEST: f64 = 58.0;
/// Offset of the sheets behind a box that represents several.
pub(crate) const PILE: f64 = 6.0;
/// Height of the bar that shows an amount.
pub(crate) const BAR: f64 = 4.0;

/// The texts of a leaf box or the head of a frame.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Card {
    pub lines: Vec<Line>,
    /// Distance of the amount's bar from the top; `None` without an amount.
    pub bar: Option<f64>,
    pub width: f64,
    pub height: f64,
}

/// One line of text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Line {
    pub text: String,
    pub kind: LineKind,
    /// Baseline from the top of the box.
    pub y: f64,
    pub width: f64,
}

/// The style of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineKind {
    Title,
    Muted,
    Amount,
    Tag,
}

/// Returns the badge that marks a box's stage.
pub(crate) fn stage_badge(stage: u32) -> String {
    format!("S{stage}")
}

/// Returns the title with the number of siblings that the box represents.
pub(crate) fn full_title(diagram: &Diagram, id: BoxId) -> String {
    let item = diagram.get(id);
    match item.repeat {
        0 | 1 => item.title.clone(),
        repeat => format!("{} ×{repeat}", item.title),
    }
}

/// Lays out the texts of a leaf box.
pub(crate) fn leaf(diagram: &Diagram, id: BoxId) -> Card {
    let item = diagram.get(id);
    let mut card = Card { height: 6.0, ..Card::default() };
    // The title is centred and the badge is at its right: the space is kept free on both sides.
    let badge = if item.stage.is_some() && diagram.has_stages { 22.0 } else { 0.0 };
    card.push(&full_title(diagram, id), LineKind::Title, 15.0);
    card.width += 2.0 * badge;
    if !item.subtitle.is_empty() {
        card.push(&item.subtitle, LineKind::Muted, 13.0);
    }
    for detail in &item.details {
        card.push(detail, LineKind::Muted, 13.0);
    }
    for tag in shown_tags(&item.tags) {
        card.height += 2.0;
        card.push(&tag, LineKind::Tag, 14.0);
    }
    if let Some(amount) = &item.amount
        && diagram.amounts.is_some()
    {
        card.push(&amount.text, LineKind::Amount, 14.0);
        card.bar = Some(card.height + 1.0);
        card.height += BAR + 2.0;
    }
    card.height = (card.height + 6.0).ceil();
    card.width = (card.width + 2.0 * PADDING).max(NARROWEST).ceil();
    // Even, so that the centre is on a whole pixel and chains of boxes align.
    card.width += card.width % 2.0;
    if item.repeat > 1 {
        card.width += PILE;
        card.height += PILE;
    }
    card
}

/// Returns the tags to show: the first few, and the number of others.
fn shown_tags(tags: &[String]) -> Vec<String> {
    const MOST: usize = 3;
    let shown = if tags.len() > MOST { MOST - 1 } else { tags.len() };
    let mut lines: Vec<String> = tags[..shown].iter().map(|tag| format!("← {tag}")).collect();
    if tags.len() > shown {
        lines.push(format!("← {} more", tags.len() - shown));
    }
    lines
}

/// Lays out the head of a frame.
pub(crate) fn head(diagram: &Diagram, id: BoxId) -> Card {
    let item = diagram.get(id);
    let mut card = Card { height: 4.0, ..Card::default() };
    card.push(&full_title(diagram, id), LineKind::Title, 15.0);
    if item.stage.is_some() && diagram.has_stages {
        card.width += 26.0;
    }
    let mut second = item.subtitle.clone();
    if let Some(amount) = item.amount.as_ref().filter(|_| diagram.amounts.is_some()) {
        let gap = if second.is_empty() { "" } else { " · " };
        second = format!("{second}{gap}{}", amount.text);
    }
    if !second.is_empty() {
        card.push(&second, LineKind::Muted, 12.0);
    }
    card.height = (card.height + 3.0).ceil();
    card.width = card.width.ceil();
    card
}

impl Card {
    fn push(&mut self, text: &str, kind: LineKind, height: f64) {
        let (size, weight) = kind.font();
        let text = crate::text::clean(text);
        let text = fit(&text, LONGEST_LINE, size, weight).into_owned();
        let width = width(&text, size, weight);
        self.lines.push(Line { text, kind, y: self.height + height - 3.5, width });
        self.height += height;
        let room = if kind == LineKind::Tag { width + 12.0 } else { width };
        self.width = self.width.max(room);
    }
}

impl LineKind {
    /// Returns the size and thickness of a line's letters.
    pub(crate) fn font(self) -> (f64, Weight) {
        match self {
            LineKind::Title => (TITLE, Weight::Bold),
            LineKind::Muted | LineKind::Amount | LineKind::Tag => (SMALL, Weight::Regular),
        }
    }
}

/// Longest label of a line, in pixels.
const LONGEST_LABEL: f64 = 150.0;

/// Returns the label of the tensors that a leaf box makes, fitted, and its width.
pub(crate) fn wire_label(labels: &[&str]) -> (String, f64) {
    // Each text once, in order, with its number: `2 × 8x64, 8x1`.
    let mut counted: Vec<(&str, usize)> = Vec::new();
    for label in labels.iter().filter(|label| !label.is_empty()) {
        match counted.iter_mut().find(|(text, _)| text == label) {
            Some((_, count)) => *count += 1,
            None => counted.push((label, 1)),
        }
    }
    let parts: Vec<String> = counted
        .iter()
        .map(|(text, count)| if *count > 1 { format!("{count} × {text}") } else { (*text).to_string() })
        .collect();
    let joined = parts.join(", ");
    let joined = crate::text::clean(&joined);
    let label = fit(&joined, LONGEST_LABEL, LABEL, Weight::Regular).into_owned();
    let width = width(&label, LABEL, Weight::Regular);
    (label, width)
}
