//! Files and answers: units, cluster, profile, plan, timeline.
//!
//! ```
//! let cluster = schema::short_cluster("4xt4", &indexmap::IndexMap::new())?;
//! assert_eq!(cluster.devices.len(), 4);
//! let text = schema::write_cluster(&cluster);
//! assert_eq!(schema::read_cluster(&text, &indexmap::IndexMap::new())?, cluster);
//! # Ok::<(), schema::ClusterError>(())
//! ```
//!
//! Only this crate derives `Serialize`. Every file kind has a version and a JSON Schema.

#![cfg_attr(not(test), warn(clippy::too_many_lines, clippy::excessive_nesting))]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod answers;
mod catalogue;
mod cluster;
mod cluster_file;
mod cluster_short;
mod compare_answer;
mod cost_model;
mod dag;
mod data_type;
mod devices_answer;
mod dnn_partitioning;
mod executed;
mod execution;
mod fit_answer;
mod graph;
mod inspect;
mod json_schemas;
#[allow(missing_docs)] // Each is named as the kind.
pub mod kinds;
mod manifest;
mod nccl_tests;
mod operator_paths;
mod pipedream;
mod piper;
mod plan;
mod plan_answer;
mod plan_file;
mod profile;
mod profile_csv;
mod profile_graph_error;
mod profile_map;
mod report;
mod serde_words;
mod timeline;
pub mod units;
mod yaml;

pub use answers::{
    ANSWER_VERSION, ByHand, ComparedPlan, DiffAnswer, DiffDevice, DiffSide, DifferentBlock, EmitAnswer,
    EmittedStage, KeptOtherwise, MicroBatchSizeTried, MicroBatchesTried, ModelDiffAnswer, ModelDiffSide,
    MovedBlock, ProfileAnswer, ProfiledBlock, ProfiledTimes, SplitAnswer, TiedPlace, TraceAnswer,
};
pub use catalogue::{
    DeviceFile, DeviceFileError, UnknownDevice, catalogue, find_device, plain_names, read_devices,
};
pub use cluster::{Cluster, Device, DeviceType, HOST_BANDWIDTH, Level, Link, level_of};
pub use cluster_file::{CLUSTER_VERSION, ClusterError, read_cluster, write_cluster};
pub use cluster_short::short_cluster;
pub use compare_answer::{CompareAnswer, StrategyLeftOut, StrategyRow};
pub use cost_model::{
    COST_MODEL_VERSION, CostModelFile, CostModelFileError, CurveAccuracy, CurveFile, FlushedFile, GateFile,
    Numbers, Polynomial, Provenance, TermRange,
};
pub use data_type::data_type;
pub use devices_answer::{DeviceAnswer, DevicesAnswer};
pub use dnn_partitioning::{DnnEdge, DnnNode, DnnWorkload};
pub use executed::{
    EXECUTED_VERSION, Executed, ExecutedStage, FirstDifference, TensorDifference, UncheckedForm, Verified,
    VerifiedExchange, VerifiedForm, VerifiedShards,
};
pub use execution::{
    ACCUMULATION_ACCESSES, BUCKET, CollectiveKind, Execution, LayerCost, OffloadMode, ShardingLevel,
    SyncOrder, TensorParallel,
};
pub use fit_answer::{FitAnswer, FitGroup, FittedCollective, FittedLinks};
pub use graph::{GRAPH_VERSION, GraphBlock, GraphDocument, GraphEdge, GraphOperator, GraphTensor};
pub use inspect::{
    INSPECT_VERSION, InspectBlock, InspectMemory, InspectReport, InspectTime, InspectTotals, InspectUnknown,
    LargestSize, MemoryRelief, NamedTensor,
};
pub use json_schemas::{NamedSchema, json_schemas};
pub use manifest::{
    Boundary, Exchanged, FileDigest, Files, Input, MANIFEST_VERSION, Manifest, OutputTree, StageFiles,
    TiedHolder, TiedParameter,
};
pub use nccl_tests::{NcclTest, NcclTestError, is_nccl_test, read_nccl_tests};
pub use operator_paths::{OperatorPaths, operator_path, short_name};
pub use pipedream::{PipedreamNode, PipedreamProfile};
pub use piper::{PiperEdge, PiperImplementation, PiperNode, PiperWorkload};
pub use plan::{
    Assumed, Band, Constraints, Cut, DeviceMemory, Inference, InferenceObjective, LayerSharing,
    MicroBatchSize, ModelReference, PLAN_VERSION, PinTo, PinnedCalls, Plan, PlanStage, PlanTie, PlannedLoss,
    PlannedOptimizer, PlannedRounding, Predicted, RecomputePolicy, RecomputeUnit, RecomputedCalls,
    SequenceParallel, StageCost, TimesFrom, Transfer,
};
pub use plan_answer::{
    InferenceAnswer, InsideAnswer, KvCacheAnswer, LossAnswer, OperatorLayout, OperatorSplit, PlanAnswer,
    Proved, RunnerUp, SharedAnswer, SharedTried, StageAnswer, WhatIf,
};
pub use plan_file::{PlanFileError, read_plan};
pub use profile::{
    COLUMNS, CallOverhead, Hardware, MOST_DRIVEN_OUT, Pace, Phase, Profile, ProfileRow, WorkSize,
};
pub use profile_csv::{ProfileCsvError, ProfileFault, read_own_profile, read_profile};
pub use profile_graph_error::{ProfileGraphError, ProfileGraphFault, ProfileGraphPlace};
pub use profile_map::{
    ColumnSource, Condition, Invalid, ProfileMap, ProfileMapError, Rule, Scalar, Source, TimeColumn, TimeUnit,
};
pub use report::{
    REPORT_VERSION, ReportData, ReportGraph, ReportMemory, ReportStage, ReportTimeline, ReportTrack,
    ReportWhatIf, WhatIfCell, WhatIfDevice,
};
pub use serde_words::in_file_words;
pub use timeline::{
    CriticalStep, Flow, LintFinding, LintedOrder, MemoryCurve, MemoryPart, OutOfMemory, Saving,
    SimulatedDevice, SimulatedOrder, SimulatedPlan, SpanKind, StageVersions, StepSplit, TIMELINE_VERSION,
    TimeParts, Timeline, TimelineSpan, Track,
};
pub use units::{Bytes, BytesPerSecond, Flops, FlopsPerSecond, Seconds};
pub use yaml::{YamlError, from_yaml, to_yaml};
