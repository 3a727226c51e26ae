//! Answers of `simulate`, and the timeline for pictures and traces.
//!
//! Times of a timeline are integer nanoseconds from the start of the step: equal plans give equal bytes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Bytes, Seconds};

/// The newest version of the timeline format and of the JSON answers of `simulate`.
pub const TIMELINE_VERSION: u32 = 1;

/// The spans of each stream of each device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Timeline {
    /// Always `timeline`.
    pub kind: String,
    /// Format version, [`TIMELINE_VERSION`] at most.
    pub version: u32,
    /// The title.
    pub name: String,
    /// Unit of the times for people: `ns`, or `units` if costs have none.
    pub unit: String,
    /// Device names; a track's device is a position here.
    pub devices: Vec<String>,
    /// Streams of the devices, by device.
    pub tracks: Vec<Track>,
    /// Values sent from one span to another.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flows: Vec<Flow>,
    /// Memory in use over time, by device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<MemoryCurve>,
    /// End of the step.
    pub end: u64,
}

/// One stream of one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Track {
    /// The device.
    pub device: u32,
    /// `compute`, `network`, `collective`, `copy-out`, `copy-in`.
    pub stream: String,
    /// Its spans, in order of time.
    pub spans: Vec<TimelineSpan>,
}

/// The kind of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SpanKind {
    /// Forward pass.
    Forward,
    /// Gradient of the inputs.
    InputGradient,
    /// Gradient of the parameters.
    WeightGradient,
    /// Whole backward pass.
    Backward,
    /// A forward and a backward pass as one.
    Pair,
    /// Values sent to another device.
    Transfer,
    /// A collective operation of several devices.
    Collective,
    /// A copy between device and host memory.
    Copy,
    /// The optimizer's step.
    Optimizer,
}

/// One operation on a stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TimelineSpan {
    /// Short name: `3F0`.
    pub name: String,
    /// Its kind.
    pub kind: SpanKind,
    /// The stage, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<u32>,
    /// The micro-batch, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_batch: Option<u32>,
    /// Start.
    pub start: u64,
    /// End.
    pub end: u64,
}

/// A transferred value: from the end of one span to the start of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// Track and position of the span that makes it.
    pub from: (u32, u32),
    /// Track and position of the span that uses it.
    pub to: (u32, u32),
}

/// Memory in use on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryCurve {
    /// The device.
    pub device: u32,
    /// The device's memory, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Bytes>,
    /// Time and bytes in use from then on.
    pub points: Vec<(u64, u64)>,
}

/// Answer of `simulate --csv`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SimulatedOrder {
    /// Version of this answer.
    pub schema_version: u32,
    /// From the first operation's start to the last one's end, in units of the costs.
    pub makespan: u64,
    /// Longest time from a rank's first operation to its last.
    pub longest_span: u64,
    /// Computing time of each rank.
    pub busy: Vec<u64>,
    /// Peak number of activations on each rank.
    pub peak_activations: Vec<u32>,
    /// The same if activations were freed with the input gradient.
    pub peak_until_input_gradient: Vec<u32>,
    /// Share of rank time that is idle.
    pub bubble: f64,
    /// Pipeline ranks.
    pub ranks: usize,
    /// Stages over all copies of the model.
    pub stages: usize,
    /// Operations of all ranks.
    pub operations: usize,
    /// Weight versions of each stage, and the staleness of its gradients, if there is no flush.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<StageVersions>,
    /// Warnings of the linter.
    pub warnings: Vec<String>,
}

/// Answer of `simulate --csv --lint`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LintedOrder {
    /// Version of this answer.
    pub schema_version: u32,
    /// Whether the order is valid and complete.
    pub ok: bool,
    /// Problems, errors first.
    pub findings: Vec<LintFinding>,
    /// Peak number of activations on each rank, if the order is valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_activations: Option<Vec<u32>>,
}

/// One problem of an order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LintFinding {
    /// `error` or `warning`.
    pub severity: String,
    /// The rank, if it has one.
    pub rank: Option<usize>,
    /// The position in the rank's program, from 0, without idle slots.
    pub position: Option<usize>,
    /// The problem and its reason.
    pub message: String,
}

/// Answer of `simulate PLAN`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SimulatedPlan {
    /// Version of this answer.
    pub schema_version: u32,
    /// The schedule.
    pub schedule: String,
    /// Micro-batches per step.
    pub micro_batches: u32,
    /// One training step: all micro-batches, gradient sums, optimizer.
    pub step_seconds: Seconds,
    /// Longest time from a device's first operation to its last.
    pub longest_span_seconds: Seconds,
    /// The period of consecutive steps.
    pub period_seconds: Seconds,
    /// The period per micro-batch.
    pub micro_batch_seconds: Seconds,
    /// Share of device time without a forward or backward pass.
    pub bubble: f64,
    /// By device, in the order of the cluster.
    pub devices: Vec<SimulatedDevice>,
    /// By stage, if there is no flush.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<StageVersions>,
    /// The parts of the step, which sum to it.
    pub split: StepSplit,
    /// The critical path of the step, in order of time.
    pub critical_path: Vec<CriticalStep>,
    /// Savings by 10 % more speed of a device or bandwidth of a link, largest first.
    pub savings: Vec<Saving>,
    /// Devices that run out of memory.
    pub out_of_memory: Vec<OutOfMemory>,
    /// Omissions and assumptions of the model for this plan.
    pub notes: Vec<String>,
}

/// A stage of a pipeline without a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StageVersions {
    /// Most weight versions on a device at once, including the newest.
    pub kept: u32,
    /// Most updates between the weights that a gradient is computed with and those that it updates.
    pub staleness: u32,
}

/// One device of a simulated plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SimulatedDevice {
    /// Device name.
    pub name: String,
    /// Time of its forward and backward passes.
    pub busy_seconds: Seconds,
    /// The parts of the step's time on this device.
    pub time_parts: TimeParts,
    /// Peak memory.
    pub peak_memory_bytes: Bytes,
    /// The device's memory.
    pub memory_limit_bytes: Bytes,
    /// The first time of the peak.
    pub peak_at_seconds: Seconds,
    /// The parts of the peak, largest first.
    pub parts: Vec<MemoryPart>,
    /// Peak number of micro-batches whose activations it holds.
    pub peak_activations: u32,
}

/// The parts of a device's step time, which sum to the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimeParts {
    /// Forward passes.
    pub forward: Seconds,
    /// Backward passes, whole or in parts.
    pub backward: Seconds,
    /// Recomputed forward passes.
    pub recompute: Seconds,
    /// Collectives that computation waits for.
    pub collective: Seconds,
    /// Copies and sends that computation waits for.
    pub copy: Seconds,
    /// Host overhead of launching operations.
    pub host: Seconds,
    /// Optimizer step.
    pub optimizer: Seconds,
    /// Idle time.
    pub idle: Seconds,
}

/// One part of a device's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryPart {
    /// `parameters`, `gradients`, `optimizer`, `weight versions`, `activations`, `workspace`, `buffers`.
    pub name: String,
    /// Bytes at the moment of the peak.
    pub bytes: Bytes,
}

/// The parts of a step, which sum to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepSplit {
    /// Average computing time of a device.
    pub compute: Seconds,
    /// The busiest device's time above the average.
    pub imbalance: Seconds,
    /// Waiting that the order causes even with free communication.
    pub bubble: Seconds,
    /// The effect of latency.
    pub latency: Seconds,
    /// The effect of limited bandwidth.
    pub bandwidth: Seconds,
    /// The effect of host overhead.
    pub host: Seconds,
    /// The effect of the optimizer's step.
    pub optimizer: Seconds,
}

/// One operation of the critical path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CriticalStep {
    /// Device, or devices of a link: `gpu0 → gpu1`.
    pub place: String,
    /// Operation: `3F0`.
    pub name: String,
    /// Its kind.
    pub kind: SpanKind,
    /// Start.
    pub start_seconds: Seconds,
    /// Its share of the step's time.
    pub seconds: Seconds,
}

/// The saving by a faster part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Saving {
    /// `device gpu0`, `link gpu0 → gpu1` or `all devices`.
    pub what: String,
    /// Seconds of the step.
    pub seconds: Seconds,
}

impl Saving {
    /// All devices at once: if they wait for each other, speeding up one saves nothing.
    pub const ALL_DEVICES: &str = "all devices";
}

/// A device that runs out of memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OutOfMemory {
    /// Device name.
    pub device: String,
    /// The first time at which it needs more than it has.
    pub at_seconds: Seconds,
    /// Its peak.
    pub needed: Bytes,
    /// Its memory.
    pub limit: Bytes,
    /// The three largest causes at that moment.
    pub causes: Vec<MemoryPart>,
}
