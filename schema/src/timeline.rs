//! What `simulate` answers, and the timeline that pictures and traces are made of.
//!
//! Times of a timeline are integer nanoseconds from the start of the step: the same plan gives the same bytes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Bytes, Seconds};

/// The newest version of the timeline format and of the JSON answers of `simulate`.
pub const TIMELINE_VERSION: u32 = 1;

/// What each stream of each device does when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Timeline {
    /// Always `timeline`.
    pub kind: String,
    /// Format version, [`TIMELINE_VERSION`] at most.
    pub version: u32,
    /// What was simulated or measured, for titles.
    pub name: String,
    /// Unit of the times for people: `ns`, or `units` where costs had none.
    pub unit: String,
    /// Device names; a track's device is a position here.
    pub devices: Vec<String>,
    /// Streams of the devices, by device.
    pub tracks: Vec<Track>,
    /// Values that go from one span to another.
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
    /// What it does, in order of time.
    pub spans: Vec<TimelineSpan>,
}

/// What a span of time is spent on.
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
    /// What it is.
    pub kind: SpanKind,
    /// The stage, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<u32>,
    /// The micro-batch, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_batch: Option<u32>,
    /// Start.
    pub start: u64,
    /// End.
    pub end: u64,
}

/// A value on its way: from the end of one span to the start of another.
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
    /// What the device has, when known.
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
    /// Time each rank computes.
    pub busy: Vec<u64>,
    /// Most activations each rank holds at once.
    pub peak_activations: Vec<u32>,
    /// The same if activations were freed with the input gradient.
    pub peak_until_input_gradient: Vec<u32>,
    /// Share of rank time that is idle.
    pub bubble: f64,
    /// Pipeline ranks.
    pub ranks: usize,
    /// Stages, all copies of the model counted.
    pub stages: usize,
    /// Operations of all ranks.
    pub operations: usize,
    /// Versions of its weights that each stage keeps, and updates that its gradients miss, where steps follow each other
    /// without a flush.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<StageVersions>,
    /// What the linter warns of.
    pub warnings: Vec<String>,
}

/// Answer of `simulate --csv --lint`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LintedOrder {
    /// Version of this answer.
    pub schema_version: u32,
    /// Whether the order runs and is complete.
    pub ok: bool,
    /// Problems, errors first.
    pub findings: Vec<LintFinding>,
    /// Most activations each rank holds at once, when the order runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_activations: Option<Vec<u32>>,
}

/// One problem of an order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LintFinding {
    /// `error` or `warning`.
    pub severity: String,
    /// The rank, where it has one.
    pub rank: Option<usize>,
    /// The position in the rank's program, from 0, idle slots not counted.
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
    /// Micro-batches of the step.
    pub micro_batches: u32,
    /// One training step: all micro-batches, gradient sync, optimizer.
    pub step_seconds: Seconds,
    /// Longest time from a device's first operation to its last.
    pub longest_span_seconds: Seconds,
    /// What each further step adds when steps follow each other.
    pub period_seconds: Seconds,
    /// The same for each micro-batch.
    pub micro_batch_seconds: Seconds,
    /// Share of device time that no forward or backward pass fills.
    pub bubble: f64,
    /// By device, in the order of the cluster.
    pub devices: Vec<SimulatedDevice>,
    /// By stage, where steps follow each other without a flush.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<StageVersions>,
    /// How the step divides; the parts sum to it.
    pub split: StepSplit,
    /// The chain of operations that the step waits for, in order of time.
    pub critical_path: Vec<CriticalStep>,
    /// What 10 % more speed of a device or bandwidth of a link would save, largest first.
    pub savings: Vec<Saving>,
    /// Devices that run out of memory.
    pub out_of_memory: Vec<OutOfMemory>,
    /// What the model leaves out or assumes for this plan.
    pub notes: Vec<String>,
}

/// A stage of a pipeline without a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StageVersions {
    /// Most versions of its weights that a device keeps at once, the newest included.
    pub kept: u32,
    /// Most updates between the weights that a gradient is computed with and those that it changes.
    pub staleness: u32,
}

/// One device of a simulated plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SimulatedDevice {
    /// Device name.
    pub name: String,
    /// Time of its forward and backward passes.
    pub busy_seconds: Seconds,
    /// What the step's time goes to on this device.
    pub time_parts: TimeParts,
    /// Most memory in use.
    pub peak_memory_bytes: Bytes,
    /// What the device has.
    pub memory_limit_bytes: Bytes,
    /// When the peak is reached first.
    pub peak_at_seconds: Seconds,
    /// What the peak consists of, largest first.
    pub parts: Vec<MemoryPart>,
    /// Most micro-batches whose activations it holds at once.
    pub peak_activations: u32,
}

/// What a device's step time goes to; the parts sum to the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimeParts {
    /// Forward passes.
    pub forward: Seconds,
    /// Backward passes, whole or in parts.
    pub backward: Seconds,
    /// Forward passes run again for the backward.
    pub recompute: Seconds,
    /// Collectives that computation waits in.
    pub collective: Seconds,
    /// Copies and sends that computation waits in.
    pub copy: Seconds,
    /// Host overhead of launching operations.
    pub host: Seconds,
    /// Optimizer step.
    pub optimizer: Seconds,
    /// Nothing to do.
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

/// How a step divides; the parts sum to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepSplit {
    /// Average computing time of a device.
    pub compute: Seconds,
    /// The busiest device's time above the average.
    pub imbalance: Seconds,
    /// Waiting that the order makes even with free communication.
    pub bubble: Seconds,
    /// What latency adds.
    pub latency: Seconds,
    /// What limited bandwidth adds.
    pub bandwidth: Seconds,
    /// What host overhead adds.
    pub host: Seconds,
    /// What the optimizer's step adds.
    pub optimizer: Seconds,
}

/// One operation of the critical path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CriticalStep {
    /// Device, or devices of a link: `gpu0 → gpu1`.
    pub place: String,
    /// Operation: `3F0`.
    pub name: String,
    /// What it is.
    pub kind: SpanKind,
    /// Start.
    pub start_seconds: Seconds,
    /// Time it takes of the step.
    pub seconds: Seconds,
}

/// What a faster part would save.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Saving {
    /// `device gpu0`, `link gpu0 → gpu1` or `all devices`.
    pub what: String,
    /// Seconds of the step.
    pub seconds: Seconds,
}

impl Saving {
    /// All devices at once: where they wait for each other, one alone saves nothing.
    pub const ALL_DEVICES: &str = "all devices";
}

/// A device that runs out of memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OutOfMemory {
    /// Device name.
    pub device: String,
    /// When it first needs more than it has.
    pub at_seconds: Seconds,
    /// What it needs at its peak.
    pub needed: Bytes,
    /// What it has.
    pub limit: Bytes,
    /// The three largest causes at that moment.
    pub causes: Vec<MemoryPart>,
}
