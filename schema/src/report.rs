//! The data inside a report page, which its script draws.
//!
//! Columns instead of records: a key is stored once, equal texts are one entry of a table, and twenty thousand boxes
//! stay small. All of this is only for the page's own script; programs can read the embedded plan.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Bytes, Seconds};

/// Newest version of [`ReportData`].
pub const REPORT_VERSION: u32 = 1;

/// The data that the script of a report draws.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReportData {
    /// Version of this form.
    pub schema_version: u32,
    /// The model as nested boxes.
    pub graph: ReportGraph,
    /// Stages, if there is a plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<ReportStage>,
    /// Timelines, the measured one before the simulated one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timelines: Vec<ReportTimeline>,
    /// The same plan under other schedules, micro-batches and links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub what_if: Option<ReportWhatIf>,
}

/// Boxes by number, parents before their children; 0 is the whole model. Texts are positions in `strings`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReportGraph {
    /// Every text once; the first is empty.
    pub strings: Vec<String>,
    /// The parent of each box; its own number for the first.
    pub parent: Vec<u32>,
    /// First line.
    pub title: Vec<u32>,
    /// Second line.
    pub subtitle: Vec<u32>,
    /// Unique name; 0 if it is the parent's, a dot and the title.
    pub path: Vec<u32>,
    /// The kind of operation, a position in `families`.
    pub family: Vec<u8>,
    /// Names of the families.
    pub families: Vec<String>,
    /// Stage, or -1 for none or several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stage: Vec<i32>,
    /// Forward operations.
    pub flops: Vec<u64>,
    /// Bytes that autograd saves.
    pub memory: Vec<u64>,
    /// Trained elements, each counted where it is first read.
    pub parameters: Vec<u64>,
    /// Predicted nanoseconds, forward and backward.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub time: Vec<u64>,
    /// Alternating names and values.
    pub attributes: Vec<Vec<u32>>,
    /// Boxes that open only on demand: norms, masks, positions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub closed: Vec<u32>,
    /// First box and length of each run of equal siblings.
    pub runs: Vec<(u32, u32)>,
    /// Tensors: source, label, readers.
    pub wires: Vec<Vec<u32>>,
}

/// The parts of a stage that the script needs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReportStage {
    /// Its devices.
    pub devices: Vec<String>,
    /// Number of its blocks.
    pub blocks: usize,
}

/// The spans of each stream of each device, in columns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReportTimeline {
    /// `simulated` or `measured`.
    pub title: String,
    /// `ns`, or `units`.
    pub unit: String,
    /// End of the step.
    pub end: u64,
    /// Device names.
    pub devices: Vec<String>,
    /// Streams.
    pub tracks: Vec<ReportTrack>,
    /// Memory by device.
    pub memory: Vec<ReportMemory>,
    /// Devices omitted because there are too many.
    pub left_out: usize,
}

/// One stream of one device. Spans are in order of time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReportTrack {
    /// The device.
    pub device: u32,
    /// `compute`, `network`, …
    pub stream: String,
    /// First letter of the kind: `F`, `I`, `W`, `B`, `T`, `C`, `M` for a copy, `O`.
    pub kinds: String,
    /// Stage, or -1.
    pub stages: Vec<i32>,
    /// Micro-batch, or -1.
    pub micro_batches: Vec<i32>,
    /// Time from the end of the previous span; negative if they overlap.
    pub gaps: Vec<i64>,
    /// Length.
    pub lengths: Vec<u64>,
    /// Positions and names of spans that are not named by stage, kind and micro-batch.
    pub names: Vec<(u32, String)>,
}

/// Memory of one device over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReportMemory {
    /// The device.
    pub device: u32,
    /// The device's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Time since the previous point, and bytes in use from then on.
    pub points: Vec<(u64, u64)>,
}

/// The same stages under other schedules, numbers of micro-batches and link speeds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReportWhatIf {
    /// Numbers of micro-batches, ascending. A micro-batch keeps its size.
    pub micro_batches: Vec<u32>,
    /// Schedules by name.
    pub schedules: Vec<String>,
    /// A summary of each in one line.
    pub summaries: Vec<String>,
    /// Whether stages can be planned for each, or the plan has it: others are shown but not recommended.
    #[serde(default)]
    pub is_planned: Vec<bool>,
    /// Factors on the bandwidth of every link, ascending.
    pub links: Vec<f64>,
    /// Names of the uses of memory, in the order of [`WhatIfDevice::parts`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uses: Vec<String>,
    /// Indices of the plan itself: link, schedule, micro-batches.
    pub planned: (usize, usize, usize),
    /// Results by link, schedule and number of micro-batches, in that order of nesting.
    pub cells: Vec<WhatIfCell>,
}

/// One result of the simulator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WhatIfCell {
    /// One step; absent if it cannot run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Seconds>,
    /// Share of device time that is idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bubble: Option<f64>,
    /// The fullest device's peak as a share of its memory; above 1 it does not fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<f64>,
    /// Why it cannot run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// One device in a result. A page stores them in the order of its table, apart from its other data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WhatIfDevice {
    /// Peak memory.
    pub peak: Bytes,
    /// The parts of the peak.
    pub parts: Vec<Bytes>,
    /// Time of its forward and backward passes.
    pub busy: Seconds,
    /// Idle time.
    pub idle: Seconds,
}

impl ReportWhatIf {
    /// Returns the result for a link, a schedule and a number of micro-batches, by index.
    pub fn cell(&self, link: usize, schedule: usize, micro_batches: usize) -> Option<&WhatIfCell> {
        let row = link * self.schedules.len() + schedule;
        self.cells.get(row * self.micro_batches.len() + micro_batches)
    }
}
