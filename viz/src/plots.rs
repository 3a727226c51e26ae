//! Plots of a fit: predicted against measured, errors by kind, learning curve, a sweep.
//!
//! The plots take plain values. Everything is drawn by plotters into one SVG; without its font features text is measured
//! by estimate, which is why labels keep away from each other.

use plotters::{
    coord::Shift,
    prelude::{
        ChartBuilder, Circle, DrawingArea, IntoDrawingArea, IntoLogRange, LineSeries, PathElement, Rectangle,
        SVGBackend, SeriesLabelPosition, Text,
    },
    style::{Color, IntoFont, RGBColor, ShapeStyle, WHITE},
};

/// Everything that is drawn of a fit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FitPlots {
    /// Stands on top.
    pub title: String,
    /// Held-out points by kind.
    pub series: Vec<Series>,
    /// Held-out error in percent over fitted rows, by kind.
    pub learning: Vec<Line>,
    /// Seconds over channels, by kernel.
    pub sweep: Vec<Line>,
}

/// Points of one kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Name of the kind.
    pub name: String,
    /// Its points.
    pub points: Vec<Point>,
}

/// A measured time and its prediction, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// What was measured.
    pub measured: f64,
    /// What was predicted.
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
    /// Its points.
    pub points: Vec<(f64, f64)>,
}

/// A plot that could not be drawn.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot draw the plot: {0}")]
pub struct PlotError(String);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Okabe and Ito's colours, which colour-blind readers can tell apart.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
];
const INK: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(228, 228, 228);
const FONT: &str = "sans-serif";

/// Draws a fit as one SVG of four plots.
///
/// # Errors
/// When plotters refuses.
pub fn fit_plots(plots: &FitPlots) -> Result<String, PlotError> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (1240, 980)).into_drawing_area();
        let drawn = draw(&area, plots);
        drawn.map_err(|error| PlotError(error.to_string()))?;
        area.present().map_err(|error| PlotError(error.to_string()))?;
    }
    Ok(svg)
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

fn draw(area: &Area<'_>, plots: &FitPlots) -> Drawn {
    area.fill(&WHITE)?;
    let area = area.margin(8, 8, 8, 8);
    let area = area.titled(&plots.title, (FONT, 22).into_font().color(&INK))?;
    let parts = area.split_evenly((2, 2));
    draw_scatter(&parts[0], &plots.series)?;
    draw_errors(&parts[1], &plots.series)?;
    let milliseconds: Vec<Line> = plots
        .sweep
        .iter()
        .map(|line| Line {
            name: line.name.clone(),
            points: line.points.iter().map(|(x, y)| (*x, y * 1e3)).collect(),
        })
        .collect();
    draw_lines(
        &parts[2],
        "Error over fitted rows",
        ("fitted rows", "held-out MAPE, %"),
        &plots.learning,
        true,
    )?;
    if milliseconds.is_empty() {
        draw_note(&parts[3], "Convolution sweep", "no convolutions in this profile")
    } else {
        let title = "Convolution: 16 pictures of 28 × 28, as many channels in as out";
        draw_lines(&parts[3], title, ("channels", "predicted time, ms"), &milliseconds, false)
    }
}

/// Times as people say them.
fn time(seconds: f64) -> String {
    schema::Seconds(seconds).to_string()
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
    for (index, one) in series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let inside = |value: f64| value.clamp(low, high);
        chart.draw_series(one.points.iter().filter(|point| is_drawable(point.p10)).map(|point| {
            let x = inside(point.measured);
            PathElement::new([(x, inside(point.p10)), (x, inside(point.p90))], colour.mix(0.18))
        }))?;
        chart
            .draw_series(one.points.iter().filter(|point| is_drawable(point.predicted)).map(|point| {
                Circle::new((inside(point.measured), inside(point.predicted)), 2, colour.mix(0.6).filled())
            }))?
            .label(&one.name)
            .legend(move |(x, y)| Circle::new((x + 8, y), 4, colour.filled()));
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

/// A bar from p10 to p90 of the relative errors of each kind, a box from p25 to p75, a line at the median.
fn draw_errors(area: &Area<'_>, series: &[Series]) -> Drawn {
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
    let most = quantiles.iter().flatten().fold(10.0_f64, |most, error| most.max(error.abs())).min(1e4) * 1.1;
    let count = series.len().max(1) as f64;
    let mut chart = ChartBuilder::on(area)
        .caption("Error by kind: p10, quartiles, median, p90", (FONT, 16).into_font().color(&INK))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(20)
        .build_cartesian_2d(-most..most, 0.0..count)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .light_line_style(WHITE)
        .bold_line_style(GRID)
        .axis_style(INK)
        .y_labels(0)
        .x_label_formatter(&|error| format!("{error:+.0} %"))
        .x_desc("predicted ÷ measured − 1")
        .label_style((FONT, 12).into_font().color(&INK))
        .draw()?;
    for (index, (one, [p10, p25, p50, p75, p90])) in series.iter().zip(&quantiles).enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let middle = count - index as f64 - 0.5;
        let thickness = 0.2;
        let clamp = |error: &f64| error.clamp(-most, most);
        chart.draw_series([PathElement::new(
            [(clamp(p10), middle), (clamp(p90), middle)],
            colour.stroke_width(2),
        )])?;
        chart.draw_series([Rectangle::new(
            [(clamp(p25), middle - thickness), (clamp(p75), middle + thickness)],
            colour.mix(0.5).filled(),
        )])?;
        chart.draw_series([PathElement::new(
            [(clamp(p50), middle - thickness), (clamp(p50), middle + thickness)],
            INK.stroke_width(2),
        )])?;
        let style = (FONT, 13).into_font().color(&INK);
        chart.draw_series([Text::new(one.name.clone(), (-most * 0.98, middle + 0.45), style)])?;
    }
    chart.draw_series([PathElement::new([(0.0, 0.0), (0.0, count)], INK.stroke_width(1))])?;
    Ok(())
}

fn draw_lines(
    area: &Area<'_>,
    title: &str,
    (x_name, y_name): (&str, &str),
    lines: &[Line],
    is_log: bool,
) -> Drawn {
    let points =
        || lines.iter().flat_map(|line| &line.points).filter(|(x, y)| is_drawable(*x) && is_drawable(*y));
    let most = points().fold((0.0_f64, 0.0_f64), |most, point| (most.0.max(point.0), most.1.max(point.1)));
    let least = points().fold(f64::INFINITY, |least, point| least.min(point.0));
    if most.0 <= 0.0 {
        return draw_note(area, title, "too few rows");
    }
    let mut builder = ChartBuilder::on(area);
    builder
        .caption(title, (FONT, 16).into_font().color(&INK))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(70);
    /// The two kinds of axis are two types of chart.
    macro_rules! finish {
        ($x:expr) => {{
            let mut chart = builder.build_cartesian_2d($x, 0.0..most.1 * 1.1)?;
            chart
                .configure_mesh()
                .light_line_style(WHITE)
                .bold_line_style(GRID)
                .axis_style(INK)
                .x_labels(8)
                .x_label_formatter(&|x| format!("{x:.0}"))
                .y_label_formatter(&|y| if most.1 < 10.0 { format!("{y:.1}") } else { format!("{y:.0}") })
                .x_desc(x_name)
                .y_desc(y_name)
                .label_style((FONT, 12).into_font().color(&INK))
                .draw()?;
            for (index, line) in lines.iter().enumerate() {
                let colour = COLOURS[index % COLOURS.len()];
                chart
                    .draw_series(LineSeries::new(line.points.clone(), colour.stroke_width(2)))?
                    .label(&line.name)
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
                chart.draw_series(
                    line.points
                        .iter()
                        .filter(|_| is_log)
                        .map(|point| Circle::new(*point, 3, colour.filled())),
                )?;
            }
            chart
                .configure_series_labels()
                .position(if is_log {
                    SeriesLabelPosition::UpperRight
                } else {
                    SeriesLabelPosition::UpperLeft
                })
                .background_style(WHITE.mix(0.85))
                .border_style(GRID)
                .label_font((FONT, 12).into_font().color(&INK))
                .draw()?;
        }};
    }
    if is_log {
        finish!((least / 1.1..most.0 * 1.1).log_scale());
    } else {
        finish!(0.0..most.0 * 1.02);
    }
    Ok(())
}

fn draw_note(area: &Area<'_>, title: &str, note: &str) -> Drawn {
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

    #[test]
    fn every_state_can_be_drawn() {
        let point = Point { measured: 1e-3, predicted: 1.1e-3, p10: 0.9e-3, p90: 1.3e-3 };
        let bad = Point { measured: 1e-3, predicted: -1.0, p10: -2.0, p90: f64::NAN };
        let line = Line { name: "linear <&>".to_string(), points: vec![(50.0, 9.0), (100.0, 7.5)] };
        let series = |points| vec![Series { name: "linear".to_string(), points }];
        for (points, lines) in
            [(vec![point, bad], vec![line]), (vec![], vec![]), (vec![bad], vec![Line::default()])]
        {
            let plots = FitPlots {
                title: "A100".to_string(),
                series: series(points),
                learning: lines.clone(),
                sweep: lines,
            };
            let svg = fit_plots(&plots).expect("drawn");
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
            assert!(!svg.contains("NaN") && !svg.contains("<&>"));
        }
    }
}
