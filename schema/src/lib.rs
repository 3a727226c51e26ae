//! What is read and written: units, cluster, profile, plan, timeline.
//!
//! Only this crate derives `Serialize`. Every file kind has a version and a JSON Schema.

mod cluster;
mod manifest;
mod plan;
pub mod units;
mod yaml;

pub use cluster::{Cluster, Device, DeviceType, Level, Link};
pub use manifest::{
    Boundary, Files, Input, MANIFEST_VERSION, Manifest, OutputTree, StageFiles, TiedHolder, TiedParameter,
};
pub use plan::{DeviceMemory, ModelReference, PLAN_VERSION, Plan, PlanStage, Predicted, StageCost, Transfer};
pub use units::{Bytes, BytesPerSecond, Flops, FlopsPerSecond, Seconds};
pub use yaml::{YamlError, from_yaml, to_yaml};
