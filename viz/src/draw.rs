//! A scene as SVG.

use std::fmt::Write;

use crate::{
    cards::{BAR, Card, LABEL, LineKind, PILE, full_title, stage_badge},
    diagram::{BoxId, Diagram, Family},
    layout::{Rect, Scene},
    palette::{self, Shade},
    svg::{self, Escaped, Number, Point, rounded_line},
    text::{Weight, fit, width},
};

/// What colours show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Color {
    /// Nothing.
    None,
    /// The family of a box.
    #[default]
    Family,
    /// Time: the diagram's amounts, in warm colours.
    Cost,
    /// Memory: the diagram's amounts, in cool colours.
    Memory,
    /// The plan's stage.
    Stage,
}

/// The text above a picture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caption {
    /// Large.
    pub title: String,
    /// Smaller.
    pub subtitle: String,
}

const MARGIN: f64 = 20.0;
const TITLE: f64 = 18.0;
const SUBTITLE: f64 = 12.0;
const CORNER: f64 = 6.0;
const ARROW: f64 = 5.5;
const LEGEND_LINE: f64 = 20.0;

/// Writes a scene of a diagram as an SVG document.
pub fn draw(diagram: &Diagram, scene: &Scene, caption: &Caption, color: Color) -> String {
    let legend = legend(diagram, color);
    let least = width(&caption.title, TITLE, Weight::Bold)
        .max(width(&caption.subtitle, SUBTITLE, Weight::Regular))
        .clamp(260.0, 900.0);
    let content = scene.width.max(least).max(legend.iter().map(|e| e.width()).fold(0.0, f64::max));
    let legend_rows = flow(&legend, content);
    let head = MARGIN + 26.0 + if caption.subtitle.is_empty() { 0.0 } else { 18.0 };
    let n_rows = legend_rows.iter().map(|(row, _)| row + 1).max().unwrap_or(0);
    let foot = if n_rows == 0 { MARGIN } else { 10.0 + n_rows as f64 * LEGEND_LINE + MARGIN };
    let (page_width, page_height) = (content + 2.0 * MARGIN, head + scene.height + foot);

    let mut out = String::new();
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" viewBox=\"0 0 {w} {h}\" role=\"img\" aria-label=\"{label}\">",
        w = Number(page_width.ceil()),
        h = Number(page_height.ceil()),
        label = Escaped(&fit(&caption.title, 600.0, SUBTITLE, Weight::Regular)),
    );
    out.push_str(&palette::style_sheet(rules));
    out.push_str("<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n");
    let text = fit(&caption.title, content, TITLE, Weight::Bold).into_owned();
    let _ = writeln!(
        out,
        "<text class=\"h\" x=\"{}\" y=\"{}\">{}</text>",
        Number(MARGIN),
        Number(MARGIN + 16.0),
        Escaped(&text)
    );
    if !caption.subtitle.is_empty() {
        let text = fit(&caption.subtitle, content, SUBTITLE, Weight::Regular).into_owned();
        let _ = writeln!(
            out,
            "<text class=\"muted\" font-size=\"{SUBTITLE}\" x=\"{}\" y=\"{}\">{}</text>",
            Number(MARGIN),
            Number(MARGIN + 35.0),
            Escaped(&text)
        );
    }
    let left = MARGIN + (content - scene.width) / 2.0;
    let _ = writeln!(out, "<g transform=\"translate({} {})\">", Number(left), Number(head));
    let painter = Painter { diagram, scene, color, largest: largest(diagram) };
    painter.frames(&mut out);
    painter.wires(&mut out);
    painter.leaves(&mut out);
    painter.labels(&mut out);
    out.push_str("</g>\n");
    for (entry, (row, x)) in legend.iter().zip(legend_rows) {
        let y = head + scene.height + 10.0 + (row as f64 + 0.5) * LEGEND_LINE;
        entry.draw(&mut out, MARGIN + x, y);
    }
    out.push_str("</svg>\n");
    out
}

/// The rules of this picture in one set of colours.
fn rules(css: &mut String, pick: &dyn Fn(Shade) -> &'static str) {
    let _ = writeln!(css, ".h{{font-size:{TITLE}px;font-weight:600}}");
    let _ = writeln!(
        css,
        ".t{{font-size:12px;font-weight:600}}.m{{font-size:10px;fill:{}}}",
        pick(palette::MUTED)
    );
    let _ = writeln!(css, ".n{{font-size:10px}}.g{{font-size:10px;font-weight:600}}");
    let _ = writeln!(css, ".l{{font-size:{LABEL}px;fill:{}}}", pick(palette::MUTED));
    let _ = writeln!(css, ".w{{fill:none;stroke:{};stroke-width:1.3}}", pick(palette::WIRE));
    let _ = writeln!(css, ".a{{fill:{}}}", pick(palette::WIRE));
    let _ = writeln!(css, ".io{{fill:{};stroke:{}}}", pick(palette::PAGE), pick(palette::TEXT));
    let _ = writeln!(css, ".tag{{fill:{};stroke:{}}}", pick(palette::PAGE), pick(palette::FAINT));
    let _ = writeln!(css, ".b0{{fill:{}}}.b1{{fill:{}}}", pick(palette::FAINT), pick(palette::TEXT));
    for (i, fill) in palette::FRAMES.iter().enumerate() {
        let _ = writeln!(css, ".f{i}{{fill:{};stroke:{}}}", pick(*fill), pick(palette::FAINT));
    }
    for (i, family) in palette::FAMILIES.iter().enumerate() {
        let _ = writeln!(css, ".k{i}{{fill:{};stroke:{}}}", pick(family.fill), pick(family.line));
    }
    let line = pick(palette::FAMILIES[0].line);
    for (i, (cost, memory)) in palette::COST.iter().zip(palette::MEMORY).enumerate() {
        let _ = writeln!(
            css,
            ".c{i}{{fill:{};stroke:{line}}}.m{i}{{fill:{};stroke:{line}}}",
            pick(*cost),
            pick(memory)
        );
    }
    for (i, stage) in palette::STAGES.iter().enumerate() {
        let _ = writeln!(css, ".s{i}{{stroke:{0};stroke-width:2.2}}.z{i}{{fill:{0}}}", pick(*stage));
    }
}

/// Returns the largest amount of a leaf.
fn largest(diagram: &Diagram) -> f64 {
    diagram
        .ids()
        .filter(|id| diagram.is_leaf(*id))
        .filter_map(|id| diagram.get(id).amount.as_ref())
        .map(|amount| amount.value)
        .filter(|value| value.is_finite())
        .fold(0.0, f64::max)
}

struct Painter<'a> {
    diagram: &'a Diagram,
    scene: &'a Scene,
    color: Color,
    largest: f64,
}

impl Painter<'_> {
    fn frames(&self, out: &mut String) {
        let depths = self.diagram.depths();
        for id in self.diagram.ids().skip(1).filter(|id| !self.diagram.is_leaf(*id)) {
            let item = self.diagram.get(id);
            let rect = self.front(id);
            let class = format!("f{}", (depths[id.index()] - 1) as usize % palette::FRAMES.len());
            out.push_str("<g>");
            svg::title(out, &self.tool_tip(id));
            if item.repeat > 1 {
                self.pile(out, rect, &class, 8.0);
            }
            rectangle(out, rect, &self.staged(&class, item.stage), 8.0);
            let card = &self.scene.cards[id.index()];
            let head = self.scene.heads[id.index()];
            self.texts(out, card, head, None);
            if let Some(stage) = item.stage.filter(|_| self.diagram.has_stages) {
                let title = card.lines.first().map_or(0.0, |line| line.width);
                self.badge(out, stage, Point::new(head.x + title + 4.0, head.y + 5.0));
            }
            out.push_str("</g>\n");
        }
    }

    fn wires(&self, out: &mut String) {
        for (wire, route) in self.diagram.wires().iter().zip(&self.scene.routes) {
            let mut data = String::new();
            for line in &route.lines {
                rounded_line(&mut data, line, 7.0);
            }
            if data.is_empty() {
                continue;
            }
            out.push_str("<g>");
            let source = &self.diagram.get(wire.source).path;
            svg::title(out, format!("{source}  {}", wire.label).trim());
            let _ = write!(out, "<path class=\"w\" d=\"{data}\"/>");
            let mut tips = String::new();
            for tip in &route.tips {
                self.tip(&mut tips, *tip, route);
            }
            if !tips.is_empty() {
                let _ = write!(out, "<path class=\"a\" d=\"{tips}\"/>");
            }
            out.push_str("</g>\n");
        }
    }

    /// A triangle in the direction of its line.
    fn tip(&self, data: &mut String, tip: Point, route: &crate::layout::Route) {
        let is_here = |p: &Point| (p.x - tip.x).abs() < 0.01 && (p.y - tip.y).abs() < 0.01;
        let before = route.lines.iter().find(|line| line.last().is_some_and(is_here));
        let is_across = before.is_some_and(|line| {
            let [.., a, b] = line.as_slice() else { return false };
            (b.x - a.x).abs() > (b.y - a.y).abs()
        });
        let (x, y) = (tip.x, tip.y);
        let corners = if is_across {
            [(x, y), (x - ARROW, y - 3.2), (x - ARROW, y + 3.2)]
        } else {
            [(x, y), (x - 3.2, y - ARROW), (x + 3.2, y - ARROW)]
        };
        for (i, (x, y)) in corners.into_iter().enumerate() {
            let _ = write!(data, "{}{} {}", if i == 0 { "M" } else { "L" }, Number(x), Number(y));
        }
        data.push('Z');
    }

    fn leaves(&self, out: &mut String) {
        for id in self.diagram.ids().skip(1).filter(|id| self.diagram.is_leaf(*id)) {
            let item = self.diagram.get(id);
            let rect = self.front(id);
            let class = self.leaf_class(id);
            let corner = if item.family.is_terminal() { rect.height / 2.0 } else { CORNER };
            out.push_str("<g>");
            svg::title(out, &self.tool_tip(id));
            if item.repeat > 1 {
                self.pile(out, rect, &class, corner);
            }
            rectangle(out, rect, &self.staged(&class, item.stage), corner);
            let card = &self.scene.cards[id.index()];
            self.texts(out, card, Point::new(rect.x, rect.y), Some(rect.width));
            if let (Some(bar), Some(amount)) = (card.bar, &item.amount) {
                let full = rect.width - 20.0;
                let share =
                    if self.largest > 0.0 { (amount.value / self.largest).clamp(0.0, 1.0) } else { 0.0 };
                let room = Rect { x: rect.x + 10.0, y: rect.y + bar, width: full, height: BAR };
                rectangle(out, room, "b0", BAR / 2.0);
                if share > 0.0 {
                    rectangle(out, Rect { width: (full * share).max(BAR), ..room }, "b1", BAR / 2.0);
                }
            }
            if let Some(stage) = item.stage.filter(|_| self.diagram.has_stages) {
                self.badge(out, stage, Point::new(rect.x + rect.width - 26.0, rect.y + 5.0));
            }
            out.push_str("</g>\n");
        }
    }

    fn labels(&self, out: &mut String) {
        for label in &self.scene.labels {
            let _ = writeln!(
                out,
                "<text class=\"l\" x=\"{}\" y=\"{}\">{}</text>",
                Number(label.rect.x),
                Number(label.rect.y + label.rect.height - 2.5),
                Escaped(&label.text)
            );
        }
    }

    /// Returns a box's rectangle without the sheets behind it.
    fn front(&self, id: BoxId) -> Rect {
        let rect = self.scene.rects[id.index()];
        match self.diagram.get(id).repeat {
            0 | 1 => rect,
            _ => Rect { width: rect.width - PILE, height: rect.height - PILE, ..rect },
        }
    }

    /// Sheets behind a box that represents several.
    fn pile(&self, out: &mut String, rect: Rect, class: &str, corner: f64) {
        for shift in [PILE, PILE / 2.0] {
            rectangle(out, Rect { x: rect.x + shift, y: rect.y + shift, ..rect }, class, corner);
        }
    }

    fn texts(&self, out: &mut String, card: &Card, corner: Point, centred_in: Option<f64>) {
        for line in &card.lines {
            let class = match line.kind {
                LineKind::Title => "t",
                // Grey on the stronger colours of an amount would be hard to read.
                LineKind::Muted
                    if centred_in.is_some() && matches!(self.color, Color::Cost | Color::Memory) =>
                {
                    "n"
                }
                LineKind::Muted => "m",
                LineKind::Amount | LineKind::Tag => "n",
            };
            let (x, anchor) = match centred_in {
                Some(width) => {
                    let badge = if line.kind == LineKind::Title { card.width - width } else { 0.0 };
                    (corner.x + width / 2.0 + badge, " text-anchor=\"middle\"")
                }
                None => (corner.x, ""),
            };
            if line.kind == LineKind::Tag {
                let rect = Rect {
                    x: x - line.width / 2.0 - 6.0,
                    y: corner.y + line.y - 10.0,
                    width: line.width + 12.0,
                    height: 13.0,
                };
                rectangle(out, rect, "tag", 6.5);
            }
            let _ = write!(
                out,
                "<text class=\"{class}\" x=\"{}\" y=\"{}\"{anchor}>{}</text>",
                Number(x),
                Number(corner.y + line.y),
                Escaped(&line.text)
            );
        }
    }

    fn badge(&self, out: &mut String, stage: u32, at: Point) {
        let color = stage as usize % palette::STAGES.len();
        let text = stage_badge(stage);
        let _ = write!(
            out,
            "<text class=\"g z{color}\" x=\"{}\" y=\"{}\">{}</text>",
            Number(at.x),
            Number(at.y + 9.5),
            Escaped(&text)
        );
    }

    fn staged(&self, class: &str, stage: Option<u32>) -> String {
        match stage.filter(|_| self.diagram.has_stages) {
            Some(stage) => {
                let color = stage as usize % palette::STAGES.len();
                // The eighth stage has the first one's colour; its dashes tell them apart, as do the labels.
                let round = stage as usize / palette::STAGES.len();
                let dashes = if round > 0 {
                    format!("\" stroke-dasharray=\"{} 3", 3 + 4 * round.min(9))
                } else {
                    String::new()
                };
                format!("{class} s{color}{dashes}")
            }
            None => class.to_string(),
        }
    }

    fn leaf_class(&self, id: BoxId) -> String {
        let item = self.diagram.get(id);
        let step = |amount: f64| {
            let share = if self.largest > 0.0 { amount / self.largest } else { 0.0 };
            ((share * 6.0) as usize).min(5)
        };
        match (self.color, &item.amount) {
            _ if item.family.is_terminal() => "io".to_string(),
            (Color::Family, _) => family_class(item.family),
            (Color::Cost, Some(amount)) => format!("c{}", step(amount.value)),
            (Color::Memory, Some(amount)) => format!("m{}", step(amount.value)),
            _ => "k0".to_string(),
        }
    }

    fn tool_tip(&self, id: BoxId) -> String {
        let item = self.diagram.get(id);
        let mut text = if item.path.is_empty() { full_title(self.diagram, id) } else { item.path.clone() };
        for part in [&item.subtitle].into_iter().chain(&item.details) {
            if !part.is_empty() {
                text.push_str(" · ");
                text.push_str(part);
            }
        }
        if !item.tags.is_empty() {
            text.push_str(&format!(" · reads {}", item.tags.join(", ")));
        }
        for (name, value) in &item.attributes {
            text.push_str(&format!(" · {name}: {value}"));
        }
        text
    }
}

fn family_class(family: Family) -> String {
    format!("k{}", Family::ALL.iter().position(|f| *f == family).unwrap_or(0))
}

fn rectangle(out: &mut String, rect: Rect, class: &str, corner: f64) {
    let _ = write!(
        out,
        "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"{}\"/>",
        Number(rect.x),
        Number(rect.y),
        Number(rect.width),
        Number(rect.height),
        Number(corner)
    );
}

/// One symbol of the legend and its text.
struct Entry {
    /// Classes of the swatches.
    swatches: Vec<String>,
    text: String,
}

impl Entry {
    fn width(&self) -> f64 {
        self.swatches.len() as f64 * 16.0 + 6.0 + width(&self.text, 10.0, Weight::Regular) + 18.0
    }

    fn draw(&self, out: &mut String, x: f64, middle: f64) {
        for (i, class) in self.swatches.iter().enumerate() {
            let rect = Rect { x: x + i as f64 * 16.0, y: middle - 6.0, width: 14.0, height: 12.0 };
            rectangle(out, rect, class, 3.0);
        }
        let _ = writeln!(
            out,
            "<text class=\"m\" x=\"{}\" y=\"{}\">{}</text>",
            Number(x + self.swatches.len() as f64 * 16.0 + 4.0),
            Number(middle + 3.5),
            Escaped(&self.text)
        );
    }
}

fn legend(diagram: &Diagram, color: Color) -> Vec<Entry> {
    let mut entries = Vec::new();
    let leaves = || diagram.ids().skip(1).filter(|id| diagram.is_leaf(*id));
    match color {
        Color::Family => {
            for family in Family::ALL {
                if leaves().any(|id| diagram.get(id).family == family) {
                    let swatches = vec![family_class(family)];
                    entries.push(Entry { swatches, text: family.label().to_string() });
                }
            }
        }
        Color::Cost | Color::Memory => {
            let letter = if color == Color::Cost { 'c' } else { 'm' };
            let most = leaves()
                .filter_map(|id| diagram.get(id).amount.as_ref())
                .max_by(|a, b| a.value.total_cmp(&b.value));
            if let (Some(most), Some(what)) = (most, &diagram.amounts) {
                let swatches = (0..6).map(|i| format!("{letter}{i}")).collect();
                entries.push(Entry { swatches, text: format!("{what}, from 0 to {}", most.text) });
            }
        }
        Color::Stage => {
            let mut stages: Vec<u32> = leaves().filter_map(|id| diagram.get(id).stage).collect();
            stages.sort_unstable();
            stages.dedup();
            for stage in stages {
                let swatches = vec![format!("k0 s{}", stage as usize % palette::STAGES.len())];
                entries.push(Entry { swatches, text: format!("{} stage {stage}", stage_badge(stage)) });
            }
        }
        Color::None => {}
    }
    if diagram.boxes().iter().any(|item| item.repeat > 1) {
        entries.push(Entry { swatches: vec![], text: "×N  N equal boxes in a row, drawn once".to_string() });
    }
    if diagram.boxes().iter().any(|item| !item.tags.is_empty()) {
        entries.push(Entry { swatches: vec![], text: "← name  a tensor that many boxes read".to_string() });
    }
    entries
}

/// Arranges the entries in rows; returns each one's row and position.
fn flow(entries: &[Entry], width: f64) -> Vec<(usize, f64)> {
    let (mut row, mut x) = (0, 0.0);
    entries
        .iter()
        .map(|entry| {
            if x > 0.0 && x + entry.width() > width {
                (row, x) = (row + 1, 0.0);
            }
            let place = (row, x);
            x += entry.width();
            place
        })
        .collect()
}
