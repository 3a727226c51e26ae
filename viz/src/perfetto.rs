//! Timelines as a trace in Chrome's JSON, for <https://ui.perfetto.dev>: a process per device, a thread per stream.
//!
//! Flows go from the operation that computes a value to the one that uses it; memory is a counter. Several timelines
//! (predicted and executed) become processes side by side.

use std::collections::BTreeSet;

use schema::{Timeline, TimelineSpan, Track};
use serde_json::{Value, json};

/// Offset between the process numbers of two timelines.
const PROCESSES: u32 = 10_000;
/// Most lanes of a track.
const LANES: usize = 64;

/// Writes timelines as one trace.
pub fn trace(timelines: &[&Timeline]) -> String {
    let mut events = Vec::new();
    let mut flow_id = 0_u64;
    for (nth, timeline) in timelines.iter().enumerate() {
        let process = |device: u32| nth as u32 * PROCESSES + device;
        for (device, name) in timeline.devices.iter().enumerate() {
            let name = if timelines.len() > 1 { format!("{}: {name}", timeline.name) } else { name.clone() };
            let pid = process(device as u32);
            events.push(json!({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}));
            events.push(
                json!({"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}),
            );
        }
        let lanes: Vec<Vec<usize>> = timeline.tracks.iter().map(lanes).collect();
        let mut named = BTreeSet::new();
        for (thread, track) in timeline.tracks.iter().enumerate() {
            let pid = process(track.device);
            events.push(json!({
                "ph": "M", "name": "thread_name", "pid": pid, "tid": thread_id(thread, 0), "args": {"name": track.stream},
            }));
            for (span, &lane) in track.spans.iter().zip(&lanes[thread]) {
                if lane > 0 && named.insert((thread, lane)) {
                    events.push(json!({
                        "ph": "M", "name": "thread_name", "pid": pid, "tid": thread_id(thread, lane),
                        "args": {"name": format!("{} ({})", track.stream, lane + 1)},
                    }));
                }
                let mut args = serde_json::Map::new();
                args.extend(span.stage.map(|stage| ("stage".to_string(), Value::from(stage))));
                args.extend(span.micro_batch.map(|mb| ("micro_batch".to_string(), Value::from(mb))));
                events.push(json!({
                    "ph": "X",
                    "name": span.name,
                    "cat": serde_json::to_value(span.kind).unwrap_or(Value::Null),
                    "pid": pid,
                    "tid": thread_id(thread, lane),
                    "ts": time(span.start, &timeline.unit),
                    "dur": time(span.end.saturating_sub(span.start), &timeline.unit),
                    "args": args,
                }));
            }
        }
        for flow in &timeline.flows {
            let end = |(track, position): (u32, u32)| {
                let (track, position) = (track as usize, position as usize);
                let track_of = timeline.tracks.get(track)?;
                let tid = thread_id(track, *lanes[track].get(position)?);
                Some((process(track_of.device), tid, track_of.spans.get(position)?))
            };
            let (Some((from_pid, from_tid, from)), Some((to_pid, to_tid, to))) =
                (end(flow.from), end(flow.to))
            else {
                continue;
            };
            flow_id += 1;
            // Flows bind to the slice that is open at their time: the sender's last moment, the user's first.
            let sent = time(from.end, &timeline.unit)
                .min(time(to.start, &timeline.unit))
                .max(time(from.start, &timeline.unit));
            events.push(json!({
                "ph": "s", "name": "value", "cat": "flow", "id": flow_id, "pid": from_pid, "tid": from_tid, "ts": sent,
            }));
            events.push(json!({
                "ph": "f", "bp": "e", "name": "value", "cat": "flow", "id": flow_id, "pid": to_pid, "tid": to_tid,
                "ts": time(to.start, &timeline.unit),
            }));
        }
        for curve in &timeline.memory {
            for (at, bytes) in &curve.points {
                events.push(json!({
                    "ph": "C", "name": "memory", "pid": process(curve.device), "ts": time(*at, &timeline.unit),
                    "args": {"bytes": bytes},
                }));
            }
        }
    }
    json!({"displayTimeUnit": "ms", "traceEvents": events}).to_string()
}

/// A thread for each lane of a track: slices of one thread may not overlap, while latencies of messages do.
fn thread_id(track: usize, lane: usize) -> usize {
    track * LANES + lane
}

/// Returns the lane of each span: the first that is free when it starts.
fn lanes(track: &Track) -> Vec<usize> {
    let mut free: Vec<u64> = Vec::new();
    let lane = |span: &TimelineSpan| {
        let lane = free.iter().position(|end| *end <= span.start).unwrap_or(free.len()).min(LANES - 1);
        free.resize(free.len().max(lane + 1), 0);
        free[lane] = free[lane].max(span.end);
        lane
    };
    track.spans.iter().map(lane).collect()
}

/// Microseconds, as the format requires; a unit of an order without seconds counts as one.
fn time(time: u64, unit: &str) -> f64 {
    if unit == "ns" { time as f64 / 1000.0 } else { time as f64 }
}

#[cfg(test)]
mod tests {
    use schema::{Bytes, Flow, MemoryCurve, SpanKind};

    use super::*;

    #[test]
    fn slices_flows_and_counters() {
        let span = |kind, start, end| TimelineSpan {
            name: "0F0".to_string(),
            kind,
            stage: Some(0),
            micro_batch: None,
            start,
            end,
        };
        let timeline = Timeline {
            kind: "timeline".to_string(),
            version: 1,
            name: "test".to_string(),
            unit: "ns".to_string(),
            devices: vec!["gpu0".to_string(), "gpu1".to_string()],
            tracks: vec![
                Track {
                    device: 0,
                    stream: "compute".to_string(),
                    spans: vec![span(SpanKind::Forward, 0, 1500)],
                },
                Track {
                    device: 1,
                    stream: "compute".to_string(),
                    spans: vec![span(SpanKind::Forward, 2000, 2500)],
                },
            ],
            flows: vec![Flow { from: (0, 0), to: (1, 0) }, Flow { from: (9, 0), to: (1, 0) }],
            memory: vec![MemoryCurve { device: 0, limit: Some(Bytes(1)), points: vec![(0, 7)] }],
            end: 2500,
        };
        let trace: Value = serde_json::from_str(&trace(&[&timeline, &timeline])).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let of = |kind: &str| events.iter().filter(|event| event["ph"] == kind).collect::<Vec<_>>();
        assert_eq!(of("X").len(), 4);
        assert_eq!(of("X")[0]["dur"], 1.5);
        assert_eq!(of("X")[0]["cat"], "forward");
        assert_eq!((of("s").len(), of("f").len(), of("C").len()), (2, 2, 2));
        assert_eq!(of("M")[0]["args"]["name"], "test: gpu0");
        assert_eq!(of("f")[1]["pid"], 10_001);
    }

    #[test]
    fn slices_of_a_thread_do_not_overlap() {
        let span = |start, end| TimelineSpan {
            name: "0F0".to_string(),
            kind: SpanKind::Transfer,
            stage: None,
            micro_batch: None,
            start,
            end,
        };
        let spans = vec![span(0, 30), span(10, 40), span(20, 50), span(30, 60), span(45, 70)];
        let track = Track { device: 0, stream: "network".to_string(), spans };
        assert_eq!(lanes(&track), [0, 1, 2, 0, 1]);
    }
}
