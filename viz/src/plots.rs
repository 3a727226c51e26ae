//! Plots of a fit: predicted against measured, errors by kind, learning curve, a sweep.
//!
//! The plots take plain values. Everything is drawn by plotters into one SVG; without its font features the width of
//! text is estimated, so labels keep a distance from each other.

use plotters::{
    coord::Shift,
    prelude::{
        BindKeyPoints, ChartBuilder, Circle, DrawingArea, IntoDrawingArea, IntoLogRange, LineSeries,
        PathElement, SVGBackend, SeriesLabelPosition, Text,
    },
    style::{Color, IntoFont, RGBColor, ShapeStyle, WHITE},
};

use super::swept::{Swept, draw_swept};

/// Everything that is drawn of a fit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FitPlots {
    /// Above the plots.
    pub title: String,
    /// Held-out points by kind.
    pub series: Vec<Series>,
    /// Held-out error in percent over fitted rows, by kind.
    pub learning: Vec<Line>,
    /// A convolution over its channels, if there are any.
    pub swept: Option<Swept>,
}

/// Points of one kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Name of the kind.
    pub name: String,
    /// The family: kinds of one family share a colour if there are more kinds than colours.
    pub family: String,
    /// Its points.
    pub points: Vec<Point>,
}

/// A measured time and its prediction, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// The measured time.
    pub measured: f64,
    /// The predicted time.
    pub predicted: f64,
    /// Lower end of the band.
    pub p10: f64,
    /// Upper end of the band.
    pub p90: f64,
}

/// A line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// Name in the legend.
    pub name: String,
    /// As for [`Series`].
    pub family: String,
    /// Its points.
    pub points: Vec<(f64, f64)>,
}

/// A plot that could not be drawn.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot draw the plot: {0}")]
pub struct PlotError(pub(crate) String);

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Okabe and Ito's colours, which colour-blind readers can distinguish.
pub(crate) const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
];
pub(crate) const INK: RGBColor = RGBColor(40, 40, 40);
pub(crate) const GRID: RGBColor = RGBColor(228, 228, 228);
pub(crate) const FONT: &str = "sans-serif";

/// Width of the picture, and the least height.
const WIDTH: u32 = 1280;
const HEIGHT: u32 = 1180;
/// Height of a kind among the errors.
const ROW: u32 = 20;
/// Errors beyond this, in percent, are drawn at the edge.
const MOST_ERROR: f64 = 100.0;

/// Draws a fit as one SVG of four plots.
///
/// # Errors
/// When plotters fails.
pub fn fit_plots(plots: &FitPlots) -> Result<String, PlotError> {
    let mut svg = String::new();
    {
        let height = HEIGHT.max(110 + ROW * plots.series.len() as u32);
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        let drawn = draw(&area, plots);
        drawn.map_err(|error| PlotError(error.to_string()))?;
        area.present().map_err(|error| PlotError(error.to_string()))?;
    }
    Ok(svg)
}

pub(crate) type Drawn = Result<(), Box<dyn std::error::Error>>;

fn draw(area: &Area<'_>, plots: &FitPlots) -> Drawn {
    area.fill(&WHITE)?;
    let area = area.margin(8, 8, 8, 8);
    let area = area.titled(&plots.title, (FONT, 22).into_font().color(&INK))?;
    let (left, right) = area.split_horizontally(WIDTH / 2);
    let whole = right.dim_in_pixel().1;
    let rows = 90 + ROW * 2 * plots.series.len().min(20) as u32;
    let rows = rows.max(90 + ROW * plots.series.len() as u32).min(whole);
    // Few kinds leave room below their errors; plots without points are left out.
    let has_room = 2 * rows <= whole;
    let has_learning = plots.learning.iter().any(|line| !line.points.is_empty());
    let is_beside = has_room && has_learning;
    let n_left = 1 + usize::from(has_learning) + usize::from(plots.swept.is_some() && !is_beside);
    let parts = left.split_evenly((n_left, 1));
    draw_scatter(&parts[0], &plots.series)?;
    if has_learning {
        draw_learning(&parts[1], &plots.learning)?;
    }
    let Some(swept) = &plots.swept else { return draw_errors(&right, &plots.series) };
    if is_beside {
        let (upper, lower) = right.split_vertically(whole / 2);
        draw_errors(&upper, &plots.series)?;
        return draw_swept(&lower, swept);
    }
    draw_errors(&right, &plots.series)?;
    draw_swept(&parts[n_left - 1], swept)
}

/// Times in readable units.
fn time(seconds: f64) -> String {
    schema::Seconds(seconds).to_string()
}

/// Colours, and the names that they have in a legend: one for each kind, or one for each family of them.
struct Key {
    /// Colour by position.
    colours: Vec<RGBColor>,
    /// The name of a position in the legend, if it has one.
    entries: Vec<Option<String>>,
}

impl Key {
    fn of<'a>(names: impl Iterator<Item = (&'a String, &'a String)>) -> Self {
        let names: Vec<(&String, &String)> = names.collect();
        let are_many = names.len() > COLOURS.len();
        let mut known: Vec<&String> = Vec::new();
        let (mut colours, mut entries) = (Vec::new(), Vec::new());
        for (name, family) in names {
            let shown = if are_many { family } else { name };
            let place = known.iter().position(|own| *own == shown && are_many);
            entries.push(place.is_none().then(|| shown.clone()));
            let place = place.unwrap_or(known.len());
            if place == known.len() {
                known.push(shown);
            }
            colours.push(COLOURS[place % COLOURS.len()]);
        }
        Self { colours, entries }
    }
}

fn is_drawable(value: f64) -> bool {
    value.is_finite() && value > 0.0
}

fn draw_scatter(area: &Area<'_>, series: &[Series]) -> Drawn {
    let times = || {
        series
            .iter()
            .flat_map(|one| &one.points)
            .flat_map(|point| [point.measured, point.predicted])
            .filter(|t| is_drawable(*t))
    };
    let least = times().fold(f64::INFINITY, f64::min);
    let most = times().fold(0.0, f64::max);
    if !(least.is_finite() && most > 0.0) {
        return draw_note(area, "Predicted and measured", "no points");
    }
    let (low, high) = (least / 1.5, most * 1.5);
    let mut chart = ChartBuilder::on(area)
        .caption("Predicted and measured time, with p10–p90", (FONT, 16).into_font().color(&INK))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d((low..high).log_scale(), (low..high).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(GRID)
        .axis_style(INK)
        .x_labels(8)
        .y_labels(8)
        .x_label_formatter(&|seconds| time(*seconds))
        .y_label_formatter(&|seconds| time(*seconds))
        .x_desc("measured")
        .y_desc("predicted")
        .label_style((FONT, 12).into_font().color(&INK))
        .draw()?;
    let key = Key::of(series.iter().map(|one| (&one.name, &one.family)));
    for ((one, colour), entry) in series.iter().zip(key.colours).zip(key.entries) {
        let inside = |value: f64| value.clamp(low, high);
        chart.draw_series(one.points.iter().filter(|point| is_drawable(point.p10)).map(|point| {
            let x = inside(point.measured);
            PathElement::new([(x, inside(point.p10)), (x, inside(point.p90))], colour.mix(0.18))
        }))?;
        let points = one.points.iter().filter(|point| is_drawable(point.predicted)).map(|point| {
            Circle::new((inside(point.measured), inside(point.predicted)), 2, colour.mix(0.6).filled())
        });
        let drawn = chart.draw_series(points)?;
        if let Some(entry) = entry {
            drawn.label(entry).legend(move |(x, y)| Circle::new((x + 8, y), 4, colour.filled()));
        }
    }
    chart.draw_series(LineSeries::new([(low, low), (high, high)], ShapeStyle::from(INK).stroke_width(1)))?;
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(GRID)
        .label_font((FONT, 12).into_font().color(&INK))
        .draw()?;
    Ok(())
}

/// A line from p10 to p90 of the relative errors of each kind, a bar from p25 to p75, a point at the median.
fn draw_errors(area: &Area<'_>, series: &[Series]) -> Drawn {
    let title = "Error by kind: p10 to p90, quartiles, median";
    if series.is_empty() {
        return draw_note(area, title, "no points");
    }
    let quantiles: Vec<[f64; 5]> = series
        .iter()
        .map(|one| {
            let mut errors: Vec<f64> =
                one.points.iter().map(|point| 100.0 * (point.predicted / point.measured - 1.0)).collect();
            errors.retain(|error| error.is_finite());
            errors.sort_by(f64::total_cmp);
            [0.1, 0.25, 0.5, 0.75, 0.9].map(|share| match errors.len() {
                0 => 0.0,
                n => errors[((n - 1) as f64 * share).round() as usize],
            })
        })
        .collect();
    let widest = quantiles.iter().flatten().fold(10.0_f64, |most, error| most.max(error.abs()));
    let most = (1.1 * widest).min(MOST_ERROR);
    let x_name = if 1.1 * widest > MOST_ERROR {
        "predicted ÷ measured − 1; values beyond are drawn at the edge"
    } else {
        "predicted ÷ measured − 1"
    };
    let longest = series.iter().map(|one| one.name.chars().count()).max().unwrap_or(0) as u32;
    // Each kind has two units of height; the first is at the top.
    let rows: Vec<i32> = (0..series.len() as i32).map(|row| 2 * row).collect();
    let (bottom, top) = (-1, 2 * series.len() as i32 - 1);
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 16).into_font().color(&INK))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size((16 + 7 * longest).min(WIDTH / 4))
        .build_cartesian_2d(-most..most, (bottom..top).with_key_points(rows.clone()))?;
    let name = |row: &i32| {
        let one = series.iter().rev().nth(*row as usize / 2);
        one.map_or_else(String::new, |one| one.name.clone())
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .light_line_style(WHITE)
        .bold_line_style(GRID)
        .axis_style(INK)
        .x_labels(7)
        .y_labels(series.len())
        .y_label_formatter(&name)
        .x_label_formatter(&|error| if *error == 0.0 { "0 %".to_string() } else { format!("{error:+.0} %") })
        .x_desc(x_name)
        .label_style((FONT, 12).into_font().color(&INK))
        .draw()?;
    chart.draw_series([PathElement::new([(0.0, bottom), (0.0, top)], INK.stroke_width(1))])?;
    let key = Key::of(series.iter().map(|one| (&one.name, &one.family)));
    for ((row, places), colour) in rows.iter().rev().zip(&quantiles).zip(key.colours) {
        let [p10, p25, p50, p75, p90] = places.map(|error| error.clamp(-most, most));
        let line = |from: f64, to: f64, style| PathElement::new([(from, *row), (to, *row)], style);
        chart.draw_series([line(p10, p90, colour.stroke_width(2))])?;
        chart.draw_series([line(p25, p75, colour.mix(0.6).stroke_width(9))])?;
        chart.draw_series([Circle::new((p50, *row), 3, INK.filled())])?;
    }
    Ok(())
}

/// The zero of the axis of fitted rows; each step doubles them.
const FEWEST_ROWS: f64 = 50.0;

fn draw_learning(area: &Area<'_>, lines: &[Line]) -> Drawn {
    let title = "Error over fitted rows";
    let at = |line: &Line| {
        let drawable = line.points.iter().filter(|(x, y)| is_drawable(*x) && is_drawable(*y));
        drawable.map(|(x, y)| ((x / FEWEST_ROWS).log2(), *y)).collect::<Vec<_>>()
    };
    let mut heights: Vec<f64> = lines.iter().flat_map(at).map(|point| point.1).collect();
    if heights.is_empty() {
        return draw_note(area, title, "too few rows");
    }
    // A few far outliers would press all others to the bottom; they leave the picture at the top.
    heights.sort_by(f64::total_cmp);
    let top = 1.1 * heights[heights.len() - 1].min(2.0 * heights[(heights.len() - 1) * 9 / 10]);
    let places = || lines.iter().flat_map(at).map(|point| point.0);
    let (least, most) = (places().fold(f64::INFINITY, f64::min), places().fold(f64::NEG_INFINITY, f64::max));
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 16).into_font().color(&INK))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(least - 0.2..most + 0.2, 0.0..top)?;
    let x_label = |x: &f64| {
        let is_doubling = (x - x.round()).abs() < 1e-6;
        if is_doubling { format!("{:.0}", FEWEST_ROWS * x.round().exp2()) } else { String::new() }
    };
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(GRID)
        .axis_style(INK)
        .x_labels(8)
        .x_label_formatter(&x_label)
        .y_label_formatter(&|y| if top < 10.0 { format!("{y:.1}") } else { format!("{y:.0}") })
        .x_desc("fitted rows")
        .y_desc("held-out MAPE, %")
        .label_style((FONT, 12).into_font().color(&INK))
        .draw()?;
    let key = Key::of(lines.iter().map(|line| (&line.name, &line.family)));
    for ((line, colour), entry) in lines.iter().zip(key.colours).zip(key.entries) {
        let points = || at(line).into_iter().map(|(x, y)| (x, y.min(top)));
        let drawn = chart.draw_series(LineSeries::new(points(), colour.stroke_width(2)))?;
        if let Some(entry) = entry {
            drawn
                .label(entry)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
        }
        chart.draw_series(points().map(|at| Circle::new(at, 3, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(GRID)
        .label_font((FONT, 12).into_font().color(&INK))
        .draw()?;
    Ok(())
}

pub(crate) fn draw_note(area: &Area<'_>, title: &str, note: &str) -> Drawn {
    area.draw(&Text::new(title.to_string(), (20, 12), (FONT, 16).into_font().color(&INK)))?;
    area.draw(&Text::new(
        note.to_string(),
        (20, 44),
        (FONT, 13).into_font().color(&RGBColor(110, 110, 110)),
    ))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::swept::SweptPanel;

    #[test]
    fn every_state_can_be_drawn() {
        let point = Point { measured: 1e-3, predicted: 1.1e-3, p10: 0.9e-3, p90: 1.3e-3 };
        let bad = Point { measured: 1e-3, predicted: -1.0, p10: -2.0, p90: f64::NAN };
        let points = vec![(50.0, 9.0), (100.0, 7.5)];
        let line = Line { name: "linear <&>".to_string(), points, ..Line::default() };
        let series = |points| vec![Series { name: "linear".to_string(), points, ..Series::default() }];
        for (points, lines) in
            [(vec![point, bad], vec![line]), (vec![], vec![]), (vec![bad], vec![Line::default()])]
        {
            let plots = FitPlots {
                title: "A100".to_string(),
                series: series(points),
                swept: lines.first().map(|line| {
                    let points = line.points.clone();
                    let below = points.iter().map(|(x, y)| (*x, -y)).collect();
                    let panel = SweptPanel {
                        name: "3 × 3".into(),
                        measured: points.clone(),
                        raw: below,
                        curve: points,
                    };
                    Swept { what: "images".into(), kernels: vec![panel; 3] }
                }),
                learning: lines,
            };
            let svg = fit_plots(&plots).expect("drawn");
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
            assert!(!svg.contains("NaN") && !svg.contains("<&>"));
            assert_eq!(
                svg.contains("where that is negative"),
                plots.learning.iter().any(|one| !one.points.is_empty())
            );
        }
    }

    #[test]
    fn many_kinds_share_the_colours_of_their_families() {
        let named = |n: usize| {
            (0..n).map(|i| (format!("kind {i}"), if i % 3 == 0 { "forward" } else { "back" }.to_string()))
        };
        let key = |n: usize| {
            let names: Vec<(String, String)> = named(n).collect();
            Key::of(names.iter().map(|(name, family)| (name, family)))
        };
        let few = key(3);
        assert_eq!(few.colours, COLOURS[..3]);
        assert_eq!(few.entries.iter().flatten().count(), 3);
        let many = key(60);
        assert_eq!(many.entries.iter().flatten().collect::<Vec<_>>(), ["forward", "back"]);
        assert_eq!((many.colours[0], many.colours[3], many.colours[4]), (COLOURS[0], COLOURS[0], COLOURS[1]));

        let point = Point { measured: 1e-3, predicted: 5e-3, p10: 0.9e-3, p90: 6e-3 };
        let series: Vec<Series> =
            named(60).map(|(name, family)| Series { name, family, points: vec![point] }).collect();
        let svg = fit_plots(&FitPlots { series, ..FitPlots::default() }).expect("drawn");
        assert!((0..60).all(|i| svg.contains(&format!("kind {i}\n")) || svg.contains(&format!("kind {i}<"))));
        assert!(svg.contains("are drawn at the edge"));
    }

    #[test]
    fn the_only_kind_stands_in_the_middle_of_its_plot() {
        let point = |predicted| Point { measured: 1e-3, predicted, p10: 0.9e-3, p90: 2e-3 };
        let series = Series {
            name: "linear".into(),
            family: "linear".into(),
            points: vec![point(1.1e-3), point(1.3e-3), point(1.5e-3)],
        };
        let svg = fit_plots(&FitPlots { series: vec![series], ..FitPlots::default() }).expect("drawn");
        let value = |line: &str, name: &str| -> f64 {
            let (_, rest) = line.split_once(&format!(" {name}=\"")).expect("an attribute");
            rest.split('"').next().and_then(|number| number.parse().ok()).expect("a number")
        };
        // A vertical line at no error runs through the whole plot; the median lies on its middle.
        let lines: Vec<&str> = svg.lines().collect();
        let last = |tag: &str| *lines.iter().rev().find(|line| line.starts_with(tag)).expect("a mark");
        let name = lines.iter().rposition(|line| *line == "linear").expect("the kind's name");
        let (median, name) = (value(last("<circle"), "cy"), value(lines[name - 1], "y"));
        assert!((median - name).abs() < 10.0, "the name stands at {name}, its errors at {median}");
    }
}
