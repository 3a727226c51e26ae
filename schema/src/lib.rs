//! What is read and written: units, cluster, profile, plan, timeline.
//!
//! Only this crate derives `Serialize`. Every file kind has a version and a JSON Schema.

mod catalogue;
mod cluster;
mod plan;
pub mod units;
mod yaml;

pub use catalogue::{DeviceFile, DeviceFileError, UnknownDevice, catalogue, find_device, read_devices};
pub use cluster::{Cluster, Device, DeviceType, Level, Link};
pub use plan::{DeviceMemory, ModelReference, PLAN_VERSION, Plan, PlanStage, Predicted, StageCost, Transfer};
pub use units::{Bytes, BytesPerSecond, Flops, FlopsPerSecond, Seconds};
pub use yaml::{YamlError, from_yaml, to_yaml};
