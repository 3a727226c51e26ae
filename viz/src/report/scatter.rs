//! Predicted against measured: a point for each kind of work of each stage, on two logarithmic axes.

use std::{collections::BTreeMap, fmt::Write as _};

use schema::{Seconds, SpanKind, Timeline};

use super::{
    figures::{percent, stage_class},
    timeline::letter,
};
use crate::svg::{Number, Point};

/// One kind of work of one stage: seconds, predicted, and least, mean and most measured.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pair {
    stage: u32,
    kind: SpanKind,
    predicted: f64,
    measured: f64,
    least: f64,
    most: f64,
}

/// Appends the section; nothing if no operation is in both timelines.
pub(super) fn section(out: &mut String, predicted: &Timeline, measured: &Timeline) {
    let pairs = pairs(predicted, measured);
    if pairs.is_empty() {
        return;
    }
    let mut errors: Vec<f64> =
        pairs.iter().map(|pair| (pair.predicted / pair.measured - 1.0).abs()).collect();
    errors.sort_by(f64::total_cmp);
    let within = errors.iter().filter(|error| **error <= BAND).count();
    out.push_str("<section id=\"accuracy\"><h2>Predicted against measured</h2>\n");
    let _ = writeln!(
        out,
        "<p class=\"note\">Step: {} predicted, {} measured. Operations: median error {}, largest {}, {within} of {} within ±{:.0} %. A point is one kind of work of one stage, the line its spread over micro-batches.</p>",
        Seconds(predicted.end as f64 / 1e9),
        Seconds(measured.end as f64 / 1e9),
        percent(errors[errors.len() / 2]),
        percent(errors[errors.len() - 1]),
        pairs.len(),
        100.0 * BAND,
    );
    plot(out, &pairs);
    out.push_str("<p class=\"legend\"><span>● forward</span><span>■ backward or input gradient</span><span>▲ weight gradient</span><span>colour: stage</span><span>shaded: ±20 %</span></p></section>\n");
}

const BAND: f64 = 0.2;
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 70.0;
const BOTTOM: f64 = 40.0;
const EDGE: f64 = 12.0;

fn plot(out: &mut String, pairs: &[Pair]) {
    let values = || pairs.iter().flat_map(|pair| [pair.predicted, pair.least, pair.most]);
    let low = values().fold(f64::INFINITY, f64::min) / 1.25;
    let high = values().fold(0.0, f64::max) * 1.25;
    let share = |value: f64| (value / low).ln() / (high / low).ln();
    let x = |value: f64| LEFT + share(value) * (WIDTH - LEFT - EDGE);
    let y = |value: f64| HEIGHT - BOTTOM - share(value) * (HEIGHT - BOTTOM - EDGE);
    let place = |predicted: f64, measured: f64| Point::new(x(predicted), y(measured));
    let _ = write!(
        out,
        "<svg class=\"scatter\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"predicted against measured time\"><clipPath id=\"plot\"><rect x=\"{LEFT}\" y=\"{EDGE}\" width=\"{}\" height=\"{}\"/></clipPath>",
        WIDTH - LEFT - EDGE,
        HEIGHT - BOTTOM - EDGE
    );
    for value in ticks(low, high) {
        let (at, up) = (Number(x(value)), Number(y(value)));
        let _ = write!(
            out,
            "<path class=\"grid\" d=\"M{at} {EDGE}V{}M{LEFT} {up}H{}\"/><text x=\"{at}\" y=\"{}\" text-anchor=\"middle\">{}</text><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            HEIGHT - BOTTOM,
            WIDTH - EDGE,
            HEIGHT - BOTTOM + 15.0,
            Seconds(value),
            LEFT - 6.0,
            Number(y(value) + 4.0),
            Seconds(value),
        );
    }
    let band = [
        place(low, low * (1.0 - BAND)),
        place(high, high * (1.0 - BAND)),
        place(high, high * (1.0 + BAND)),
        place(low, low * (1.0 + BAND)),
    ];
    let corners: Vec<String> = band.iter().map(|p| format!("{} {}", Number(p.x), Number(p.y))).collect();
    let _ = write!(out, "<g clip-path=\"url(#plot)\"><path class=\"band\" d=\"M{}Z\"/>", corners.join("L"));
    let (from, to) = (place(low, low), place(high, high));
    let _ = write!(
        out,
        "<path class=\"same\" d=\"M{} {}L{} {}\"/>",
        Number(from.x),
        Number(from.y),
        Number(to.x),
        Number(to.y)
    );
    for pair in pairs {
        let at = place(pair.predicted, pair.measured);
        let (px, py) = (Number(at.x), Number(at.y));
        let shape = match pair.kind {
            SpanKind::Forward => format!("<circle cx=\"{px}\" cy=\"{py}\" r=\"5\"/>"),
            SpanKind::WeightGradient => format!("<path d=\"M{px} {py}m0 -6l5.5 10h-11z\"/>"),
            _ => format!("<path d=\"M{px} {py}m-4.5 -4.5h9v9h-9z\"/>"),
        };
        let _ = write!(
            out,
            "<g class=\"{}\"><title>stage {}, {}: {} predicted, {} measured ({} to {})</title><path class=\"spread\" d=\"M{px} {}V{}\"/>{shape}</g>",
            stage_class(pair.stage as usize),
            pair.stage,
            letter(pair.kind),
            Seconds(pair.predicted),
            Seconds(pair.measured),
            Seconds(pair.least),
            Seconds(pair.most),
            Number(y(pair.least)),
            Number(y(pair.most)),
        );
    }
    let middle = (LEFT + WIDTH - EDGE) / 2.0;
    let _ = writeln!(
        out,
        "</g><text class=\"axis\" x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">predicted</text><text class=\"axis\" x=\"{LEFT}\" y=\"{}\">↑ measured</text></svg>",
        HEIGHT - 6.0,
        EDGE - 2.0 + 12.0,
    );
}

/// Returns 1, 2 and 5 times the powers of ten in a range, fewer if there are many.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let decades = || (low.log10().floor() as i32..=high.log10().ceil() as i32).map(|e| 10f64.powi(e));
    let within = |value: &f64| (low..=high).contains(value);
    let fine: Vec<f64> = decades().flat_map(|ten| [ten, 2.0 * ten, 5.0 * ten]).filter(within).collect();
    if fine.len() <= 9 { fine } else { decades().filter(within).collect() }
}

fn pairs(predicted: &Timeline, measured: &Timeline) -> Vec<Pair> {
    let (predicted, measured) = (times(predicted), times(measured));
    let pair = |(key, times): (&(u32, SpanKind), &Vec<f64>)| {
        let found = measured.get(key)?;
        let mean = |times: &[f64]| times.iter().sum::<f64>() / times.len() as f64;
        Some(Pair {
            stage: key.0,
            kind: key.1,
            predicted: mean(times),
            measured: mean(found),
            least: found.iter().copied().fold(f64::INFINITY, f64::min),
            most: found.iter().copied().fold(0.0, f64::max),
        })
    };
    predicted.iter().filter_map(pair).collect()
}

/// Returns the times of all passes by stage and kind; those that take no time cannot be drawn on logarithmic axes.
fn times(timeline: &Timeline) -> BTreeMap<(u32, SpanKind), Vec<f64>> {
    use SpanKind::{Backward, Forward, InputGradient, WeightGradient};
    let mut times: BTreeMap<(u32, SpanKind), Vec<f64>> = BTreeMap::new();
    for span in timeline.tracks.iter().flat_map(|track| &track.spans) {
        let is_pass = matches!(span.kind, Forward | Backward | InputGradient | WeightGradient);
        if let Some(stage) = span.stage.filter(|_| is_pass && span.end > span.start) {
            times.entry((stage, span.kind)).or_default().push((span.end - span.start) as f64 / 1e9);
        }
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks(0.9e-3, 6e-3), [1e-3, 2e-3, 5e-3]);
        assert!(ticks(1e-9, 1e3).len() <= 13);
    }
}
