//! What is read and written: units, cluster, profile, plan, timeline.
//!
//! Only this crate derives `Serialize`. Every file kind has a version and a JSON Schema.

mod catalogue;
mod cluster;
mod plan;
mod profile;
mod profile_csv;
mod profile_map;
pub mod units;
mod yaml;

pub use catalogue::{DeviceFile, DeviceFileError, UnknownDevice, catalogue, find_device, read_devices};
pub use cluster::{Cluster, Device, DeviceType, Level, Link};
pub use plan::{DeviceMemory, ModelReference, PLAN_VERSION, Plan, PlanStage, Predicted, StageCost, Transfer};
pub use profile::{COLUMNS, Phase, Profile, ProfileRow, WorkSize};
pub use profile_csv::{ProfileCsvError, ProfileFault, read_own_profile, read_profile};
pub use profile_map::{
    ColumnSource, Condition, Invalid, ProfileMap, ProfileMapError, Rule, Scalar, Source, TimeColumn, TimeUnit,
};
pub use units::{Bytes, BytesPerSecond, Flops, FlopsPerSecond, Seconds};
pub use yaml::{YamlError, from_yaml, to_yaml};
