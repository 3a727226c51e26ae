//! The plot of a convolution over its channels: a panel for each kernel with the measurements, a polynomial of the raw
//! dimensions, and our curve. Negative values of the polynomial are marked.

use plotters::{
    prelude::{ChartBuilder, Circle, DashedLineSeries, LineSeries, PathElement, SeriesLabelPosition},
    style::{Color, IntoFont, RGBColor, WHITE},
};

use super::plots::{Area, COLOURS, Drawn, FONT, GRID, INK, draw_note};

/// Times over channels.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Swept {
    /// The convolved images.
    pub what: String,
    /// One panel per kernel.
    pub kernels: Vec<SweptPanel>,
}

/// Channels and seconds of one kernel.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SweptPanel {
    /// Above the panel.
    pub name: String,
    /// Points.
    pub measured: Vec<(f64, f64)>,
    /// The dashed line.
    pub raw: Vec<(f64, f64)>,
    /// The solid line.
    pub curve: Vec<(f64, f64)>,
}

/// Negative values.
const WRONG: RGBColor = RGBColor(200, 0, 30);

pub(crate) fn draw_swept(area: &Area<'_>, swept: &Swept) -> Drawn {
    let title = format!("Convolution of {}", swept.what);
    if swept.kernels.is_empty() {
        return draw_note(area, &title, "no kernels of 3, 5 or 7");
    }
    let area = area.titled(&title, (FONT, 16).into_font().color(&INK))?;
    for (index, (panel, own)) in
        swept.kernels.iter().zip(area.split_evenly((1, swept.kernels.len()))).enumerate()
    {
        draw_panel(&own, panel, index == 0)?;
    }
    Ok(())
}

fn draw_panel(area: &Area<'_>, panel: &SweptPanel, is_first: bool) -> Drawn {
    let in_ms = |points: &[(f64, f64)]| -> Vec<(f64, f64)> {
        let finite = points.iter().filter(|(x, y)| x.is_finite() && y.is_finite());
        finite.map(|(x, y)| (*x, y * 1e3)).collect()
    };
    let [measured, raw, curve] = [&panel.measured, &panel.raw, &panel.curve].map(|points| in_ms(points));
    let all = || measured.iter().chain(&raw).chain(&curve);
    let most = all().map(|point| point.0).fold(1.0, f64::max);
    let (low, high) =
        all().fold((0.0_f64, 1e-6_f64), |(low, high), point| (low.min(point.1), high.max(point.1)));
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.name, (FONT, 13).into_font().color(&INK))
        .margin(6)
        .x_label_area_size(36)
        .y_label_area_size(48)
        .build_cartesian_2d(0.0..1.03 * most, 1.1 * low..1.15 * high)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(GRID)
        .axis_style(INK)
        .x_labels(5)
        .y_labels(6)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| if high < 10.0 { format!("{y:.1}") } else { format!("{y:.0}") })
        .x_desc("channels")
        .y_desc(if is_first { "ms" } else { "" })
        .label_style((FONT, 11).into_font().color(&INK))
        .draw()?;
    if low < 0.0 {
        chart.draw_series([PathElement::new([(0.0, 0.0), (1.03 * most, 0.0)], INK.stroke_width(1))])?;
    }
    let [ours, old, truth] = [COLOURS[0], COLOURS[1], INK];
    chart
        .draw_series(LineSeries::new(curve, ours.stroke_width(2)))?
        .label("our curve")
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], ours.stroke_width(2)));
    let below: Vec<(f64, f64)> = raw.iter().copied().filter(|point| point.1 < 0.0).collect();
    chart
        .draw_series(DashedLineSeries::new(raw, 6, 4, old.stroke_width(2)))?
        .label("raw polynomial")
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], old.stroke_width(2)));
    if !below.is_empty() {
        chart
            .draw_series(below.into_iter().map(|at| Circle::new(at, 2, WRONG.filled())))?
            .label("where that is negative")
            .legend(move |(x, y)| Circle::new((x + 8, y), 3, WRONG.filled()));
    }
    if !measured.is_empty() {
        chart
            .draw_series(measured.into_iter().map(|at| Circle::new(at, 3, truth.stroke_width(1))))?
            .label("measured")
            .legend(move |(x, y)| Circle::new((x + 8, y), 3, truth.stroke_width(1)));
    }
    if is_first {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.85))
            .border_style(GRID)
            .label_font((FONT, 11).into_font().color(&INK))
            .draw()?;
    }
    Ok(())
}
