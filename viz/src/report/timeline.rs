//! Timelines as columns for the page's script, thinned to the resolution of a screen.

use schema::{MemoryCurve, ReportMemory, ReportTimeline, ReportTrack, SpanKind, Timeline, Track};

use crate::text::clean;

/// Devices beyond this number are left out: their rows would be too thin to read.
const MOST_DEVICES: usize = 64;
/// Spans beyond this are left out, whole devices at a time.
const MOST_SPANS: usize = 120_000;
/// Points of a memory curve beyond this are thinned; peaks stay.
const MOST_POINTS: usize = 4000;
/// The same for a step of the what-if grid, of which there are many.
const MOST_POINTS_OF_A_STEP: usize = 60;

/// Returns the columns of a step of the what-if grid: the devices' computation and memory.
pub(super) fn step_columns(timeline: &Timeline) -> ReportTimeline {
    let mut columns = with_points("simulated", timeline, MOST_POINTS_OF_A_STEP);
    columns.tracks.retain(|track| track.stream == "compute");
    columns
}

/// Returns the columns of a timeline.
pub(super) fn columns(title: &str, timeline: &Timeline) -> ReportTimeline {
    with_points(title, timeline, MOST_POINTS)
}

fn with_points(title: &str, timeline: &Timeline, most_points: usize) -> ReportTimeline {
    let n_devices = timeline.devices.len();
    let mut shown = 0;
    let mut spans = 0;
    while shown < n_devices.min(MOST_DEVICES) {
        let tracks = timeline.tracks.iter().filter(|track| track.device as usize == shown);
        spans += tracks.map(|track| track.spans.len()).sum::<usize>();
        if spans > MOST_SPANS && shown > 0 {
            break;
        }
        shown += 1;
    }
    let is_shown = |device: u32| (device as usize) < shown;
    ReportTimeline {
        title: title.to_string(),
        unit: timeline.unit.clone(),
        end: timeline.end,
        devices: timeline.devices[..shown].iter().map(|name| clean(name).into_owned()).collect(),
        tracks: timeline.tracks.iter().filter(|track| is_shown(track.device)).map(track).collect(),
        memory: timeline
            .memory
            .iter()
            .filter(|curve| is_shown(curve.device))
            .map(|curve| memory(curve, most_points))
            .collect(),
        left_out: n_devices - shown,
    }
}

fn track(track: &Track) -> ReportTrack {
    let mut columns =
        ReportTrack { device: track.device, stream: track.stream.clone(), ..ReportTrack::default() };
    let mut before = 0u64;
    for (position, span) in track.spans.iter().enumerate() {
        let number = |value: Option<u32>| value.map_or(-1, |value| value.min(i32::MAX as u32) as i32);
        let (stage, micro_batch) = (number(span.stage), number(span.micro_batch));
        let letter = letter(span.kind);
        if span.name != format!("{stage}{letter}{micro_batch}") {
            columns.names.push((position as u32, clean(&span.name).into_owned()));
        }
        columns.kinds.push(letter);
        columns.stages.push(stage);
        columns.micro_batches.push(micro_batch);
        columns.gaps.push(span.start.cast_signed().wrapping_sub(before.cast_signed()));
        columns.lengths.push(span.end.saturating_sub(span.start));
        before = span.end.max(span.start);
    }
    columns
}

/// Returns the letter of a kind: the letter of order files, if it has one.
pub(super) fn letter(kind: SpanKind) -> char {
    match kind {
        SpanKind::Forward => 'F',
        SpanKind::InputGradient => 'I',
        SpanKind::WeightGradient => 'W',
        // Its name says that it covers both passes.
        SpanKind::Backward | SpanKind::Pair => 'B',
        SpanKind::Transfer => 'T',
        SpanKind::Collective => 'C',
        SpanKind::Copy => 'M',
        SpanKind::Optimizer => 'O',
    }
}

fn memory(curve: &MemoryCurve, most_points: usize) -> ReportMemory {
    // When neighbours are merged, the largest is kept: readers look for peaks.
    let step = curve.points.len().div_ceil(most_points).max(1);
    let mut points = Vec::with_capacity(curve.points.len().div_ceil(step));
    let mut before = 0;
    for few in curve.points.chunks(step) {
        let at = few[0].0;
        let most = few.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        points.push((at.saturating_sub(before), most));
        before = at.max(before);
    }
    ReportMemory { device: curve.device, limit: curve.limit.map(|limit| limit.0), points }
}

#[cfg(test)]
mod tests {
    use schema::{TIMELINE_VERSION, TimelineSpan};

    use super::*;

    fn timeline(n_devices: usize, n_spans: u64) -> Timeline {
        let span = |at: u64| TimelineSpan {
            name: format!("0F{at}"),
            kind: SpanKind::Forward,
            stage: Some(0),
            micro_batch: Some(at as u32),
            start: 10 * at,
            end: 10 * at + 7,
        };
        let track =
            |device| Track { device, stream: "compute".to_string(), spans: (0..n_spans).map(span).collect() };
        let curve = |device| MemoryCurve {
            device,
            limit: None,
            points: (0..9001).map(|at| (at, if at == 5003 { 99 } else { 1 })).collect(),
        };
        Timeline {
            kind: "timeline".to_string(),
            version: TIMELINE_VERSION,
            name: String::new(),
            unit: "ns".to_string(),
            devices: (0..n_devices).map(|device| format!("gpu{device}")).collect(),
            tracks: (0..n_devices as u32).map(track).collect(),
            flows: Vec::new(),
            memory: (0..n_devices as u32).map(curve).collect(),
            end: 10 * n_spans,
        }
    }

    #[test]
    fn spans_become_gaps_and_lengths() {
        let columns = columns("simulated", &timeline(1, 3));
        let track = &columns.tracks[0];
        assert_eq!((track.kinds.as_str(), track.names.len()), ("FFF", 0));
        assert_eq!((track.gaps.as_slice(), track.lengths.as_slice()), (&[0, 3, 3][..], &[7, 7, 7][..]));
    }

    #[test]
    fn what_no_screen_shows_is_left_out_and_peaks_stay() {
        let many = columns("simulated", &timeline(100, 1));
        assert_eq!((many.devices.len(), many.tracks.len(), many.left_out), (64, 64, 36));
        let long = columns("simulated", &timeline(3, 50_000));
        assert_eq!((long.devices.len(), long.left_out), (2, 1));
        let points = &many.memory[0].points;
        assert!(points.len() <= MOST_POINTS);
        assert_eq!(points.iter().map(|(_, bytes)| *bytes).max(), Some(99));
    }
}
