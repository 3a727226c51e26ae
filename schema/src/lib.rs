//! What is read and written: units, cluster, profile, plan, timeline.
//!
//! Only this crate derives `Serialize`. Every file kind has a version and a JSON Schema.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod cluster;
mod dag;
mod dnn_partitioning;
mod pipedream;
mod piper;
mod plan;
mod profile_error;
pub mod units;
mod yaml;

pub use cluster::{Cluster, Device, DeviceType, Level, Link};
pub use dnn_partitioning::{DnnEdge, DnnNode, DnnWorkload};
pub use pipedream::{PipedreamNode, PipedreamProfile};
pub use piper::{PiperEdge, PiperImplementation, PiperNode, PiperWorkload};
pub use plan::{DeviceMemory, ModelReference, PLAN_VERSION, Plan, PlanStage, Predicted, StageCost, Transfer};
pub use profile_error::{ProfileError, ProfileFault, ProfilePlace};
pub use units::{Bytes, BytesPerSecond, Flops, FlopsPerSecond, Seconds};
pub use yaml::{YamlError, from_yaml, to_yaml};
