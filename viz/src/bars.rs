//! Bars of throughput with bars of memory beside them, a row for each alternative.
//!
//! plotters has a single set of colours; a style sheet in front of its output overrides each of them on dark pages.

use std::fmt::Write as _;

use plotters::{
    prelude::{BindKeyPoints, ChartBuilder, IntoDrawingArea, PathElement, Rectangle, SVGBackend, Text},
    style::{
        IntoFont, RGBColor, ShapeStyle,
        text_anchor::{HPos, Pos, VPos},
    },
};
use schema::Bytes;

use crate::{
    palette::{FAINT, MUTED, PAGE, STAGES, Shade, TEXT, shade},
    plots::{Area, Drawn, FONT, PlotError},
};

/// A chart of throughput and memory, a row for each alternative.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BarsPlot {
    /// Above the chart.
    pub title: String,
    /// Below the title: explains the colours and the star.
    pub caption: String,
    /// The unit of the bars: `samples/s`.
    pub unit: String,
    /// From top to bottom.
    pub bars: Vec<Bar>,
}

/// A row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bar {
    /// Its name.
    pub name: String,
    /// Value of its first bar.
    pub value: f64,
    /// The value as text.
    pub shown: String,
    /// Value of its second bar.
    pub memory: Bytes,
    /// The limit.
    pub limit: Bytes,
    /// Whether it is the chosen one.
    pub is_marked: bool,
    /// Whether it is drawn faintly.
    pub is_dim: bool,
}

const WIDTH: u32 = 1100;
/// Height of a row, and of all beside rows.
const ROW: u32 = 26;
const REST: u32 = 146;
/// Most letters of a name, and the width of a letter.
const LONGEST: usize = 40;
const LETTER: f64 = 7.0;
/// Half the height of a bar, in hundredths of a row.
const HALF: i32 = 33;

const CHOSEN: Shade = STAGES[1];
const RUNS: Shade = STAGES[0];
const DIM: Shade = shade("#9cc3dc", "#35597a");
const ROOM: Shade = shade("#e7ebef", "#232b35");
// Text is drawn over it.
const MEMORY: Shade = shade("#7cc9ae", "#1f6b54");
/// Every colour of the chart.
const ALL: [Shade; 9] = [PAGE, TEXT, MUTED, FAINT, CHOSEN, RUNS, DIM, ROOM, MEMORY];

/// Draws the bars.
///
/// # Errors
/// When plotters fails.
pub fn bars_plot(plot: &BarsPlot) -> Result<String, PlotError> {
    let height = REST + ROW * plot.bars.len().max(1) as u32;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        draw(&area, plot).map_err(|error| PlotError(error.to_string()))?;
        area.present().map_err(|error| PlotError(error.to_string()))?;
    }
    Ok(with_dark(&svg))
}

/// Adds the colours of dark pages.
fn with_dark(svg: &str) -> String {
    let mut css = String::from("<style>\n@media (prefers-color-scheme:dark){\n");
    for Shade { light, dark } in ALL {
        // plotters writes capitals.
        let light = light.to_ascii_uppercase();
        let _ = writeln!(css, "[fill=\"{light}\"]{{fill:{dark}}}\n[stroke=\"{light}\"]{{stroke:{dark}}}");
    }
    css.push_str("}\n</style>\n");
    match svg.split_once(">\n") {
        Some((head, rest)) => format!("{head}>\n{css}{rest}"),
        None => svg.to_string(),
    }
}

fn colour(shade: Shade) -> RGBColor {
    let part = |at: usize| u8::from_str_radix(&shade.light[at..at + 2], 16).unwrap_or_default();
    RGBColor(part(1), part(3), part(5))
}

fn draw(area: &Area<'_>, plot: &BarsPlot) -> Drawn {
    area.fill(&colour(PAGE))?;
    let ink = colour(TEXT);
    let area = area.margin(10, 10, 14, 14);
    let area = area.titled(&plot.title, (FONT, 20).into_font().color(&ink))?;
    let area = area.titled(&plot.caption, (FONT, 13).into_font().color(&colour(MUTED)))?;
    let names = plot.bars.iter().map(|bar| bar.name.chars().count().min(LONGEST)).max().unwrap_or(0);
    let names = (names as f64 * LETTER) as u32 + 16;
    let right = 330;
    let (left, right) = area.split_horizontally(WIDTH - 28 - right);
    let largest = plot.bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
    let value = |bar: &Bar| {
        let shade = match (bar.is_marked, bar.is_dim) {
            (true, _) => CHOSEN,
            (false, true) => DIM,
            (false, false) => RUNS,
        };
        (bar.value, None, shade, bar.shown.clone())
    };
    draw_bars(&left, plot, names, (largest, &plot.unit), &value)?;
    let gibibytes = |bytes: Bytes| bytes.0 as f64 / f64::from(1 << 30);
    let largest = plot.bars.iter().map(|bar| gibibytes(bar.memory.max(bar.limit))).fold(0.0, f64::max);
    let memory = |bar: &Bar| {
        (
            gibibytes(bar.memory),
            Some(gibibytes(bar.limit)),
            MEMORY,
            format!("{} of {}", bar.memory, bar.limit),
        )
    };
    draw_bars(&right, plot, 0, (largest, "memory of the fullest device, GiB"), &memory)
}

/// Value, largest value, colour and text of a bar.
type Drawing = (f64, Option<f64>, Shade, String);

fn draw_bars(
    area: &Area<'_>,
    plot: &BarsPlot,
    names: u32,
    (largest, unit): (f64, &str),
    of: &dyn Fn(&Bar) -> Drawing,
) -> Drawn {
    let (ink, muted) = (colour(TEXT), colour(MUTED));
    let most = if largest > 0.0 && largest.is_finite() { largest } else { 1.0 };
    // The text of a bar is to the right of the longest bar; that of memory is in the remaining space.
    let room = if names > 0 { 1.16 } else { 1.02 };
    let n = plot.bars.len() as i32;
    let middle = |row: usize| 100 * (n - 1 - row as i32);
    let rows: Vec<i32> = (0..plot.bars.len()).rev().map(middle).collect();
    let mut chart = ChartBuilder::on(area)
        .margin_right(6)
        .x_label_area_size(44)
        .y_label_area_size(names)
        .build_cartesian_2d(0.0..most * room, (-60..100 * n - 40).with_key_points(rows))?;
    let name = |at: &i32| {
        let bar = plot.bars.iter().rev().nth((*at / 100) as usize);
        bar.map_or_else(String::new, |bar| shortened(&bar.name, bar.is_marked))
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .light_line_style(colour(PAGE))
        .bold_line_style(colour(FAINT))
        .axis_style(colour(FAINT))
        .x_labels(6)
        .y_labels(plot.bars.len())
        .y_label_formatter(&name)
        .x_label_formatter(&|value| short(*value, most))
        .x_desc(unit)
        .label_style((FONT, 13).into_font().color(&ink))
        .draw()?;
    for (row, bar) in plot.bars.iter().enumerate() {
        let (value, limit, shade, words) = of(bar);
        let value = if value.is_finite() { value } else { 0.0 };
        let at = middle(row);
        let block = |to: f64, shade: Shade| {
            Rectangle::new([(0.0, at - HALF), (to, at + HALF)], ShapeStyle::from(colour(shade)).filled())
        };
        if let Some(limit) = limit {
            chart.draw_series([block(limit, ROOM)])?;
        }
        chart.draw_series([block(value, shade)])?;
        if let Some(limit) = limit {
            let end = [(limit, at - HALF), (limit, at + HALF)];
            chart.draw_series([PathElement::new(end, ShapeStyle::from(muted).stroke_width(2))])?;
        }
        let anchored = |ends: HPos| {
            let font = (FONT, 12).into_font().color(&ink);
            font.pos(Pos::new(ends, VPos::Center))
        };
        let (x, style) = match limit {
            None => (value + 0.008 * most, anchored(HPos::Left)),
            Some(limit) => (limit - 0.015 * most, anchored(HPos::Right)),
        };
        chart.draw_series([Text::new(words, (x, at), style)])?;
    }
    Ok(())
}

/// A name that fits, with a star if it is the chosen one.
fn shortened(name: &str, is_marked: bool) -> String {
    let star = if is_marked { "★ " } else { "" };
    match name.char_indices().nth(LONGEST) {
        None => format!("{star}{name}"),
        Some((end, _)) => format!("{star}{}…", &name[..end]),
    }
}

/// A number on an axis that ends at `most`.
fn short(value: f64, most: f64) -> String {
    match most {
        most if most >= 5e6 => format!("{:.0} M", value / 1e6),
        most if most >= 5e3 => format!("{:.0} k", value / 1e3),
        most if most >= 10.0 => format!("{value:.0}"),
        most if most >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(name: &str, value: f64) -> Bar {
        Bar {
            name: name.into(),
            value,
            shown: format!("{value}"),
            memory: Bytes(3 << 30),
            limit: Bytes(4 << 30),
            ..Bar::default()
        }
    }

    #[test]
    fn every_row_has_its_name_and_words() {
        let bars =
            vec![bar("first <&>", 12.5), Bar { is_marked: true, ..bar("second", 7.0) }, bar("third", 0.0)];
        let plot = BarsPlot { title: "a & b".into(), unit: "samples/s".into(), bars, ..BarsPlot::default() };
        let svg = bars_plot(&plot).expect("drawn");
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for words in ["★ second", "third", "12.5", "3.00 GiB of 4.00 GiB", "samples/s", "first &lt;&amp;&gt;"]
        {
            assert!(svg.contains(words), "`{words}` is not in:\n{svg}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn every_colour_has_another_on_dark_pages() {
        let plot = BarsPlot { bars: vec![bar("one", 1.0)], ..BarsPlot::default() };
        let svg = bars_plot(&plot).expect("drawn");
        let (style, drawn) = svg.split_once("</style>").expect("a style sheet");
        let used = drawn.split(['"', '\n']).filter(|word| word.starts_with('#') && word.len() == 7);
        for colour in used {
            assert!(style.contains(&format!("[fill=\"{colour}\"]")), "{colour} stays as it is");
        }
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        for bars in
            [vec![], vec![bar("none", 0.0)], vec![Bar { shown: "none".into(), ..bar("no number", f64::NAN) }]]
        {
            let svg = bars_plot(&BarsPlot { bars, ..BarsPlot::default() }).expect("drawn");
            assert!(!svg.contains("NaN"), "{svg}");
        }
    }
}
