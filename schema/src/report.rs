//! The data inside a report page: what its script draws.
//!
//! Columns instead of records: a key stands once, equal texts are one entry of a table, and twenty thousand boxes stay
//! small. Everything here is for the page's own script; programs read the plan, which is embedded beside it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Bytes, Seconds};

/// Newest version of [`ReportData`].
pub const REPORT_VERSION: u32 = 1;

/// What the script of a report draws.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReportData {
    /// Version of this form.
    pub schema_version: u32,
    /// The model as nested boxes.
    pub graph: ReportGraph,
    /// Stages, when there is a plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<ReportStage>,
    /// Timelines, the measured one before the simulated one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timelines: Vec<ReportTimeline>,
    /// The same plan under other circumstances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub what_if: Option<ReportWhatIf>,
}

/// Boxes by number, parents before their children; 0 is the whole model. Texts are positions in `strings`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReportGraph {
    /// Every text once; the first is empty.
    pub strings: Vec<String>,
    /// The box around each; its own number for the first.
    pub parent: Vec<u32>,
    /// First line.
    pub title: Vec<u32>,
    /// Second line.
    pub subtitle: Vec<u32>,
    /// Unique name; 0 where it is the parent's, a dot and the title.
    pub path: Vec<u32>,
    /// What it does, a position in `families`.
    pub family: Vec<u8>,
    /// Words for the families.
    pub families: Vec<String>,
    /// Stage, or -1 for none or several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stage: Vec<i32>,
    /// Forward operations.
    pub flops: Vec<u64>,
    /// Bytes that autograd keeps.
    pub memory: Vec<u64>,
    /// Trained elements, each counted where it is read first.
    pub parameters: Vec<u64>,
    /// Predicted nanoseconds, forward and backward.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub time: Vec<u64>,
    /// Names and values by turns.
    pub attributes: Vec<Vec<u32>>,
    /// Boxes that open only where they are asked for: norms, masks, positions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub closed: Vec<u32>,
    /// First box and length of each run of equal siblings.
    pub runs: Vec<(u32, u32)>,
    /// Tensors: source, label, readers.
    pub wires: Vec<Vec<u32>>,
}

/// One stage, as far as the script needs it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReportStage {
    /// Its devices.
    pub devices: Vec<String>,
    /// Number of its blocks.
    pub blocks: usize,
}

/// What each stream of each device does when, in columns.
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
    /// Devices that were left out because there are too many.
    pub left_out: usize,
}

/// One stream of one device. Spans stand in order of time.
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
    /// Time from the end of the span before; less than 0 where they overlap.
    pub gaps: Vec<i64>,
    /// Length.
    pub lengths: Vec<u64>,
    /// Position and name where it is not stage, kind, micro-batch.
    pub names: Vec<(u32, String)>,
}

/// Memory of one device over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReportMemory {
    /// The device.
    pub device: u32,
    /// What the device has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Time since the point before, and bytes in use from then on.
    pub points: Vec<(u64, u64)>,
}

/// The same stages under other schedules, numbers of micro-batches and link speeds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReportWhatIf {
    /// Numbers of micro-batches, ascending. A micro-batch keeps its size.
    pub micro_batches: Vec<u32>,
    /// Schedules by name.
    pub schedules: Vec<String>,
    /// What each does, in one line.
    pub summaries: Vec<String>,
    /// Whether `split` plans stages for each, or the plan has it: others are shown and not recommended.
    #[serde(default)]
    pub is_planned: Vec<bool>,
    /// Factors on the bandwidth of every link, ascending.
    pub links: Vec<f64>,
    /// Names of the uses of memory, in the order of [`WhatIfDevice::parts`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uses: Vec<String>,
    /// Positions of the plan itself: link, schedule, micro-batches.
    pub planned: (usize, usize, usize),
    /// Answers: for each link each schedule each number of micro-batches.
    pub cells: Vec<WhatIfCell>,
}

/// One answer of the simulator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WhatIfCell {
    /// One step; absent when it cannot run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Seconds>,
    /// Share of device time that is idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bubble: Option<f64>,
    /// The fullest device's peak as a share of what it has; above 1 it does not fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<f64>,
    /// Why it cannot run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// One device in an answer. A page has them in the order of its table, apart from its other data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WhatIfDevice {
    /// Most memory in use.
    pub peak: Bytes,
    /// What the peak consists of.
    pub parts: Vec<Bytes>,
    /// Time of its forward and backward passes.
    pub busy: Seconds,
    /// Time with nothing to do.
    pub idle: Seconds,
}

impl ReportWhatIf {
    /// Returns the answer for a link, a schedule and a number of micro-batches, by position.
    pub fn cell(&self, link: usize, schedule: usize, micro_batches: usize) -> Option<&WhatIfCell> {
        let row = link * self.schedules.len() + schedule;
        self.cells.get(row * self.micro_batches.len() + micro_batches)
    }
}
