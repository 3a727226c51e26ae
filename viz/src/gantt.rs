//! A timeline as an SVG Gantt chart: a row a stream, a bar an operation, memory below.
//!
//! Kinds are distinguished by pattern as well as by colour, so that a black-and-white print is as readable. Bars that
//! are too thin to see are merged with their neighbours: the size of the picture is bounded, that of the timeline is
//! not.

use std::{collections::BTreeMap, fmt::Write as _};

use schema::{Bytes, MemoryCurve, Seconds, SpanKind, Timeline, TimelineSpan, Track};

use crate::palette::{FAINT, FRAMES, MUTED, Shade, TEXT, shade, style_sheet};

const WIDTH: f64 = 1240.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 86.0;
const LETTER: f64 = 6.6;
const COMPUTE_HEIGHT: f64 = 24.0;
const LANE_HEIGHT: f64 = 9.0;
const MEMORY_HEIGHT: f64 = 34.0;
const GAP: f64 = 5.0;
const DEVICE_GAP: f64 = 9.0;
/// Most lanes that a stream's simultaneous operations are stacked in.
const MAX_LANES: usize = 4;
/// Thinner bars are merged.
const THINNEST: f64 = 0.6;
/// More arrows than this would hide the bars.
const MAX_ARROWS: usize = 150;
/// More points of a memory curve than there are pixels show nothing.
const MAX_POINTS: usize = 2000;
/// A limit beyond this multiple of the peak is written as text, not drawn.
const NEAR: u64 = 4;

/// Every kind with its name, colour and the pattern over it.
const KINDS: [(SpanKind, &str, &str, Pattern); 9] = [
    (SpanKind::Forward, "forward", "#8ecae6", Pattern::Plain),
    (SpanKind::Backward, "backward", "#f4a259", Pattern::Crossed),
    (SpanKind::Pair, "forward and backward", "#c9cf8a", Pattern::Grid),
    (SpanKind::InputGradient, "input gradient", "#f6c177", Pattern::Rising),
    (SpanKind::WeightGradient, "weight gradient", "#9ad1a3", Pattern::Dots),
    (SpanKind::Transfer, "transfer", "#c9ced6", Pattern::Level),
    (SpanKind::Collective, "collective", "#d8a7ca", Pattern::Upright),
    (SpanKind::Copy, "copy", "#a9b8e8", Pattern::Falling),
    (SpanKind::Optimizer, "optimizer", "#656d78", Pattern::Plain),
];

#[derive(Clone, Copy)]
enum Pattern {
    Plain,
    Rising,
    Falling,
    Crossed,
    Dots,
    Level,
    Upright,
    Grid,
}

impl Pattern {
    /// The strokes of an 8 × 8 tile.
    fn strokes(self) -> &'static str {
        match self {
            Pattern::Plain => "",
            Pattern::Rising => "<path d=\"M-1,9 L9,-1 M-1,1 L1,-1 M7,9 L9,7\"/>",
            Pattern::Falling => "<path d=\"M-1,-1 L9,9 M-1,7 L1,9 M7,-1 L9,1\"/>",
            Pattern::Crossed => "<path d=\"M-1,9 L9,-1 M-1,-1 L9,9\"/>",
            Pattern::Dots => {
                "<circle cx=\"2\" cy=\"2\" r=\"1\" fill=\"#23272e\" stroke=\"none\"/>\
                 <circle cx=\"6\" cy=\"6\" r=\"1\" fill=\"#23272e\" stroke=\"none\"/>"
            }
            Pattern::Level => "<path d=\"M0,2 H8 M0,6 H8\"/>",
            Pattern::Upright => "<path d=\"M2,0 V8 M6,0 V8\"/>",
            Pattern::Grid => "<path d=\"M4,0 V8 M0,4 H8\"/>",
        }
    }
}

/// The position of a row.
struct Row {
    y: f64,
    height: f64,
    lanes: usize,
}

/// Draws a timeline.
pub fn svg(timeline: &Timeline) -> String {
    drawn(timeline, label_width(timeline), timeline.end)
}

/// Draws timelines on a common time axis, a picture for each.
pub fn on_one_axis(timelines: &[&Timeline]) -> Vec<String> {
    let left = timelines.iter().map(|timeline| label_width(timeline)).fold(0.0, f64::max);
    let until = timelines.iter().map(|timeline| timeline.end).max().unwrap_or(0);
    timelines.iter().map(|timeline| drawn(timeline, left, until)).collect()
}

/// Draws a timeline from `left` on, on an axis that ends at `until`.
fn drawn(timeline: &Timeline, left: f64, until: u64) -> String {
    let memory: BTreeMap<u32, &MemoryCurve> =
        timeline.memory.iter().map(|curve| (curve.device, curve)).collect();
    let scale = (WIDTH - left - RIGHT) / until.max(1) as f64;
    let lanes: Vec<Vec<usize>> = timeline.tracks.iter().map(lanes).collect();
    let mut rows = Vec::new();
    let mut curves = Vec::new();
    let mut y = TOP;
    for device in 0..timeline.devices.len() as u32 {
        let start = y;
        for (track, lanes) in timeline.tracks.iter().zip(&lanes).filter(|(track, _)| track.device == device) {
            let n = lanes.iter().copied().max().unwrap_or(0) + 1;
            let height = if is_compute(track) { COMPUTE_HEIGHT } else { (LANE_HEIGHT * n as f64).max(14.0) };
            rows.push(Row { y, height, lanes: n });
            y += height + GAP;
        }
        if let Some(curve) = memory.get(&device) {
            curves.push((y, *curve));
            y += MEMORY_HEIGHT + GAP;
        }
        if y > start {
            y += DEVICE_GAP;
        }
    }
    let bottom = y;
    // Rows were created device by device: sort them into the order of the tracks.
    let mut order: Vec<usize> = (0..timeline.tracks.len()).collect();
    order.sort_by_key(|track| timeline.tracks[*track].device);
    let mut row_of: Vec<usize> = vec![0; order.len()];
    for (row, track) in order.into_iter().enumerate() {
        row_of[track] = row;
    }
    let mut canvas = Canvas { text: String::new(), left, scale };
    canvas.head(timeline, bottom + 30.0);
    canvas.axis(timeline, until, bottom);
    for (idx, track) in timeline.tracks.iter().enumerate() {
        canvas.track(timeline, track, &lanes[idx], &rows[row_of[idx]]);
    }
    let most = timeline.memory.iter().map(peak).max().unwrap_or(0);
    for (y, curve) in curves {
        canvas.memory(curve, most, y, timeline.end);
    }
    canvas.arrows(timeline, |track| {
        let row = &rows[row_of[track]];
        row.y + row.height / 2.0
    });
    canvas.text.push_str("</svg>\n");
    canvas.text
}

fn is_compute(track: &Track) -> bool {
    track.stream == "compute"
}

fn label_width(timeline: &Timeline) -> f64 {
    let longest = timeline.devices.iter().map(|name| name.chars().count().min(24)).max().unwrap_or(0);
    (longest.max(10) as f64 + 2.0) * LETTER + 16.0
}

/// Returns the lane of each span: the first that is free, so that simultaneous ones do not cover each other.
fn lanes(track: &Track) -> Vec<usize> {
    let mut free = [0; MAX_LANES];
    track
        .spans
        .iter()
        .map(|span| {
            let lane = free.iter().position(|end| *end <= span.start).unwrap_or(MAX_LANES - 1);
            free[lane] = free[lane].max(span.end);
            lane
        })
        .collect()
}

/// The rules of everything beside the bars, for light and dark pages; the bars and their labels are the same on both.
fn rules(css: &mut String, pick: &dyn Fn(Shade) -> &'static str) {
    let (grid, band, ink, muted) = (pick(FAINT), pick(FRAMES[0]), pick(TEXT), pick(MUTED));
    let (memory, over) = (pick(shade("#b8c4d0", "#3f4b5a")), pick(shade("#b3261e", "#ff8a80")));
    let _ = writeln!(css, ".grid{{stroke:{grid}}}\n.band{{fill:{band}}}\n.end{{stroke:{ink}}}");
    let _ = writeln!(css, ".flow{{stroke:{ink};stroke-opacity:.3;stroke-width:.8;fill:none}}");
    let _ = writeln!(css, ".memory{{fill:{memory};stroke:{muted};stroke-width:.8}}");
    let _ =
        writeln!(css, "path.muted{{stroke:{muted}}}\npath.over{{stroke:{over}}}\ntext.over{{fill:{over}}}");
    let _ = writeln!(css, "text.on{{fill:#23272e}}\ntext.on-dark{{fill:#fff}}");
}

struct Canvas {
    text: String,
    left: f64,
    scale: f64,
}

impl Canvas {
    fn x(&self, time: u64) -> f64 {
        self.left + time as f64 * self.scale
    }

    fn push(&mut self, arguments: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.text.write_fmt(arguments);
    }

    fn head(&mut self, timeline: &Timeline, height: f64) {
        self.push(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" \
             height=\"{height:.0}\" font-size=\"11\">\n<title>{0}</title>\n{1}<defs>\n",
            escape(&timeline.name),
            style_sheet(rules)
        ));
        for (kind, _, colour, pattern) in KINDS {
            self.push(format_args!(
                "<pattern id=\"{0}\" width=\"8\" height=\"8\" patternUnits=\"userSpaceOnUse\">\
                 <rect width=\"8\" height=\"8\" fill=\"{colour}\"/>\
                 <g stroke=\"#23272e\" stroke-opacity=\"0.55\" stroke-width=\"0.9\" fill=\"none\">{1}</g></pattern>\n",
                id(kind),
                pattern.strokes()
            ));
        }
        self.push(format_args!("</defs>\n<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n"));
        self.push(format_args!(
            "<text x=\"12\" y=\"24\" font-size=\"15\" font-weight=\"bold\">{}</text>\n",
            escape(&timeline.name)
        ));
        let used = |kind: SpanKind| {
            timeline.tracks.iter().flat_map(|track| &track.spans).any(|span| span.kind == kind)
        };
        let mut x = 12.0;
        for (kind, name, ..) in KINDS.into_iter().filter(|(kind, ..)| used(*kind)) {
            self.push(format_args!(
                "<rect x=\"{x:.1}\" y=\"36\" width=\"26\" height=\"14\" fill=\"url(#{0})\" stroke=\"#23272e\" \
                 stroke-width=\"0.6\"/><text x=\"{1:.1}\" y=\"47\">{name}</text>\n",
                id(kind),
                x + 31.0
            ));
            x += 31.0 + name.len() as f64 * LETTER + 16.0;
        }
    }

    fn axis(&mut self, timeline: &Timeline, until: u64, bottom: f64) {
        let step = tick_step(until);
        let mut time = 0;
        while time <= until {
            let x = self.x(time);
            let name = time_name(time, &timeline.unit);
            self.push(format_args!(
                "<path d=\"M{x:.1},{0:.1} V{bottom:.1}\" class=\"grid\"/>\
                 <text x=\"{x:.1}\" y=\"{1:.1}\" text-anchor=\"middle\" class=\"muted\">{name}</text>\n",
                TOP - 6.0,
                TOP - 12.0
            ));
            let Some(next) = time.checked_add(step) else { break };
            time = next;
        }
        let end = self.x(timeline.end);
        self.push(format_args!(
            "<path d=\"M{end:.1},{0:.1} V{bottom:.1}\" class=\"end\" stroke-dasharray=\"3 3\"/>\
             <text x=\"{end:.1}\" y=\"{1:.1}\" text-anchor=\"end\" font-weight=\"bold\">end {2}</text>\n",
            TOP - 6.0,
            bottom + 14.0,
            time_name(timeline.end, &timeline.unit)
        ));
    }

    fn track(&mut self, timeline: &Timeline, track: &Track, lanes: &[usize], row: &Row) {
        let left = self.left;
        let middle = row.y + row.height / 2.0 + 4.0;
        let device = timeline.devices.get(track.device as usize).map_or("", String::as_str);
        let (name, weight) =
            if is_compute(track) { (device, "bold") } else { (track.stream.as_str(), "normal") };
        let name: String = name.chars().take(26).collect();
        self.push(format_args!(
            "<text x=\"{0:.1}\" y=\"{middle:.1}\" text-anchor=\"end\" font-weight=\"{weight}\">{1}</text>\n\
             <rect x=\"{2:.1}\" y=\"{3:.1}\" width=\"{4:.1}\" height=\"{5:.1}\" class=\"band\"/>\n",
            left - 8.0,
            escape(&name),
            left,
            row.y,
            WIDTH - RIGHT - left,
            row.height
        ));
        let height = row.height / row.lanes as f64;
        // Open bar of each lane: thin neighbours of one kind become one bar.
        let mut open: [Option<(f64, f64, SpanKind)>; MAX_LANES] = [None; MAX_LANES];
        let mut names = Vec::new();
        let mut bars = Vec::new();
        for (span, lane) in track.spans.iter().zip(lanes) {
            let (from, to) = (self.x(span.start), self.x(span.end));
            let y = row.y + height * *lane as f64;
            match &mut open[*lane] {
                Some((start, end, kind))
                    if *kind == span.kind
                        && from - *end < THINNEST
                        && (to - from < THINNEST * 4.0)
                        && *end - *start < 40.0 =>
                {
                    *end = to;
                }
                slot => {
                    if let Some(bar) = slot.replace((from, to, span.kind)) {
                        bars.push((bar, y));
                    }
                }
            }
            names.extend(label(span, to - from, height).map(|name| (name, (from + to) / 2.0, y, span.kind)));
        }
        for (lane, bar) in open.into_iter().enumerate() {
            bars.extend(bar.map(|bar| (bar, row.y + height * lane as f64)));
        }
        for ((from, to, kind), y) in bars {
            self.push(format_args!(
                "<rect x=\"{from:.2}\" y=\"{y:.1}\" width=\"{0:.2}\" height=\"{height:.1}\" fill=\"url(#{1})\" \
                 stroke=\"#23272e\" stroke-width=\"0.5\"/>\n",
                (to - from).max(THINNEST),
                id(kind)
            ));
        }
        for (name, x, y, kind) in names {
            let width = name.chars().count() as f64 * LETTER + 2.0;
            let (paper, ink) =
                if kind == SpanKind::Optimizer { ("#656d78", "on-dark") } else { ("#ffffff", "on") };
            self.push(format_args!(
                "<rect x=\"{0:.1}\" y=\"{1:.1}\" width=\"{width:.1}\" height=\"13\" rx=\"2\" fill=\"{paper}\" \
                 fill-opacity=\"0.82\"/><text x=\"{x:.1}\" y=\"{2:.1}\" text-anchor=\"middle\" class=\"{ink}\">{3}</text>\n",
                x - width / 2.0,
                y + height / 2.0 - 6.5,
                y + height / 2.0 + 4.0,
                escape(&name)
            ));
        }
    }

    /// Draws a device's memory on the scale of the fullest device, whose peak is `most`: the limit is a line if it is
    /// near.
    fn memory(&mut self, curve: &MemoryCurve, most: u64, y: f64, end: u64) {
        let peak = peak(curve);
        let near = |limit: &Bytes| limit.0 / NEAR <= most;
        let top = curve.limit.filter(near).map_or(most, |limit| limit.0.max(most)).max(1);
        let height = |bytes: u64| y + MEMORY_HEIGHT - MEMORY_HEIGHT * bytes as f64 / top as f64;
        let base = y + MEMORY_HEIGHT;
        let mut path = format!("M{:.1},{base:.1}", self.left);
        // Where there are more changes than pixels, the largest value of each stretch is drawn.
        let stretch = curve.points.len().div_ceil(MAX_POINTS).max(1);
        let mut last = base;
        for points in curve.points.chunks(stretch) {
            let bytes = points.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
            let x = self.x(points[0].0);
            let _ = write!(path, " L{x:.1},{last:.1} L{x:.1},{0:.1}", height(bytes));
            last = height(bytes);
        }
        let (left, right) = (self.left, self.x(end));
        let _ = write!(path, " L{right:.1},{last:.1} L{right:.1},{base:.1} Z");
        self.push(format_args!(
            "<path d=\"{path}\" class=\"memory\"/>\n\
             <text x=\"{0:.1}\" y=\"{1:.1}\" text-anchor=\"end\" class=\"muted\">memory</text>\n\
             <text x=\"{0:.1}\" y=\"{2:.1}\" text-anchor=\"end\" class=\"muted\" font-size=\"9.5\">{3}</text>\n",
            left - 8.0,
            y + 13.0,
            y + 26.0,
            Bytes(peak)
        ));
        if let Some(limit) = curve.limit.filter(|limit| !near(limit)) {
            let share = 100.0 * peak as f64 / limit.0 as f64;
            let share = if share < 1.0 { "less than 1".to_string() } else { format!("{share:.0}") };
            self.push(format_args!(
                "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"9.5\">{share} % of the limit, {limit}</text>\n",
                left + 4.0,
                base - 4.0
            ));
        } else if let Some(limit) = curve.limit {
            let is_over = peak > limit.0;
            let (class, words) = if is_over { ("over", "over the limit of") } else { ("muted", "limit") };
            self.push(format_args!(
                "<path d=\"M{0:.1},{1:.1} H{right:.1}\" class=\"{class}\" stroke-dasharray=\"5 3\"/>\
                 <text x=\"{2:.1}\" y=\"{3:.1}\" class=\"{class}\" font-size=\"9.5\">{words} {limit}</text>\n",
                left,
                height(limit.0),
                left + 4.0,
                (height(limit.0) + 10.0).min(base - 2.0)
            ));
        }
    }

    fn arrows(&mut self, timeline: &Timeline, middle: impl Fn(usize) -> f64) {
        if timeline.flows.len() > MAX_ARROWS {
            return;
        }
        let span = |(track, position): (u32, u32)| -> Option<&TimelineSpan> {
            timeline.tracks.get(track as usize)?.spans.get(position as usize)
        };
        for flow in &timeline.flows {
            let (Some(from), Some(to)) = (span(flow.from), span(flow.to)) else { continue };
            let (x1, y1) = (self.x(from.end), middle(flow.from.0 as usize));
            let (x2, y2) = (self.x(to.start), middle(flow.to.0 as usize));
            self.push(format_args!("<path d=\"M{x1:.1},{y1:.1} L{x2:.1},{y2:.1}\" class=\"flow\"/>\n"));
        }
    }
}

fn peak(curve: &MemoryCurve) -> u64 {
    curve.points.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0)
}

/// The name of a span, or its micro-batch, or nothing, depending on the space.
fn label(span: &TimelineSpan, width: f64, height: f64) -> Option<String> {
    if height < 13.0 {
        return None;
    }
    let micro_batch = span.micro_batch.map(|micro_batch| micro_batch.to_string());
    let fits = |name: &String| name.chars().count() as f64 * LETTER + 3.0 <= width;
    [Some(span.name.clone()), micro_batch].into_iter().flatten().find(fits)
}

/// A round step that gives about ten ticks.
fn tick_step(end: u64) -> u64 {
    let wanted = (end / 10).max(1);
    let power = 10_u64.pow(wanted.ilog10());
    [1, 2, 5, 10].into_iter().map(|factor| factor * power).find(|step| *step >= wanted).unwrap_or(wanted)
}

fn time_name(time: u64, unit: &str) -> String {
    if unit == "ns" { Seconds(time as f64 / 1e9).to_string() } else { time.to_string() }
}

fn id(kind: SpanKind) -> &'static str {
    match kind {
        SpanKind::Forward => "forward",
        SpanKind::InputGradient => "input-gradient",
        SpanKind::WeightGradient => "weight-gradient",
        SpanKind::Backward => "backward",
        SpanKind::Pair => "pair",
        SpanKind::Transfer => "transfer",
        SpanKind::Collective => "collective",
        SpanKind::Copy => "copy",
        SpanKind::Optimizer => "optimizer",
    }
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // Not allowed in XML, even escaped.
            control if control.is_control() => escaped.push('\u{fffd}'),
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(n: u64) -> Timeline {
        let span = |start: u64| TimelineSpan {
            name: format!("0F{start}"),
            kind: if start.is_multiple_of(2) { SpanKind::Forward } else { SpanKind::Backward },
            stage: Some(0),
            micro_batch: Some(start as u32),
            start: start * 10,
            end: start * 10 + 10,
        };
        Timeline {
            kind: "timeline".to_string(),
            version: 1,
            name: "a < b & \"c\"".to_string(),
            unit: "ns".to_string(),
            devices: vec!["gpu0".to_string()],
            tracks: vec![Track {
                device: 0,
                stream: "compute".to_string(),
                spans: (0..n).map(span).collect(),
            }],
            flows: Vec::new(),
            memory: vec![MemoryCurve {
                device: 0,
                limit: Some(Bytes(100)),
                points: vec![(0, 10), (20, 120)],
            }],
            end: n * 10,
        }
    }

    #[test]
    fn a_bar_for_each_operation() {
        let drawn = svg(&timeline(4));
        assert_eq!(drawn.matches("url(#forward)").count(), 2 + 1);
        assert_eq!(drawn.matches("url(#backward)").count(), 2 + 1);
        assert!(drawn.contains("a &lt; b &amp; &quot;c&quot;"));
        assert!(drawn.contains("over the limit of 100 B"));
        assert_eq!(drawn, svg(&timeline(4)));
    }

    #[test]
    fn memory_is_drawn_to_its_peak_where_the_limit_is_far() {
        let mut roomy = timeline(4);
        roomy.memory[0].limit = Some(Bytes(100_000));
        let drawn = svg(&roomy);
        assert!(drawn.contains("less than 1 % of the limit, 97.7 KiB"), "{drawn}");
        // A limit that is near is a line, and leaves the curve less space.
        roomy.memory[0].limit = Some(Bytes(200));
        let near = svg(&roomy);
        assert!(near.contains(">limit 200 B<"), "{near}");
        let curve =
            |drawn: &str| drawn.lines().find(|line| line.contains("class=\"memory\"")).map(String::from);
        assert_ne!(curve(&near), curve(&drawn));
    }

    #[test]
    fn many_bars_keep_the_picture_small() {
        let mut long = timeline(200_000);
        long.tracks[0].spans.iter_mut().for_each(|span| span.kind = SpanKind::Forward);
        assert!(svg(&long).len() < 100_000);
    }

    #[test]
    fn empty_timelines_are_drawn() {
        let mut empty = timeline(0);
        empty.devices.clear();
        empty.tracks.clear();
        empty.memory.clear();
        assert!(svg(&empty).ends_with("</svg>\n"));
        assert_eq!(tick_step(0), 1);
        assert_eq!(tick_step(u64::MAX), 2_000_000_000_000_000_000);
    }
}
