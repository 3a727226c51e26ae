//! What is read and written: units, cluster, profile, plan, timeline.
//!
//! Only this crate derives `Serialize`. Every file kind has a version and a JSON Schema.

mod cluster;
mod graph;
mod inspect;
mod plan;
pub mod units;
mod yaml;

pub use cluster::{Cluster, Device, DeviceType, Level, Link};
pub use graph::{GRAPH_VERSION, GraphBlock, GraphDocument, GraphEdge, GraphOperator, GraphTensor};
pub use inspect::{INSPECT_VERSION, InspectBlock, InspectReport, InspectTotals, InspectUnknown, NamedTensor};
pub use plan::{DeviceMemory, ModelReference, PLAN_VERSION, Plan, PlanStage, Predicted, StageCost, Transfer};
pub use units::{Bytes, BytesPerSecond, Flops, FlopsPerSecond, Seconds};
pub use yaml::{YamlError, from_yaml, to_yaml};
