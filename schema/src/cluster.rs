//! `cluster.yaml`: devices, where they sit, and what joins them.
//!
//! Levels run from the inside out: level 0 joins the devices of one node, level 1 joins nodes, and so on.
//! Two devices talk over the innermost level that holds both.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Bytes, BytesPerSecond, FlopsPerSecond, Seconds};

/// A cluster as written in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Device types by name: from the catalogue, or with numbers of the user's own.
    pub types: IndexMap<String, DeviceType>,
    /// The devices; a device's id is its position here.
    pub devices: Vec<Device>,
    /// Links by level, innermost first. One device needs none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub levels: Vec<Level>,
    /// Links between named nodes that differ from their level's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Link>,
}

/// What a device can do.
///
/// Only the first three matter to every step; the rest refine a prediction and are facts of the catalogue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceType {
    /// Memory that a process can use.
    pub memory: Bytes,
    /// Memory bandwidth.
    pub memory_bandwidth: BytesPerSecond,
    /// Peak rates by data type: `float32`, `tf32`, `bfloat16`, `float16`, `float8`.
    pub peak: IndexMap<String, FlopsPerSecond>,
    /// Host link, each way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_bandwidth: Option<BytesPerSecond>,
    /// Speed relative to the device that costs were measured on; 1 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed: Option<f64>,
    /// Other names it is known by, as in `torch.cuda.get_device_name`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// `sm90`, `gfx942`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// Streaming multiprocessors, compute units or cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multiprocessors: Option<u32>,
    /// Last cache that all of them share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub l2: Option<Bytes>,
    /// The whole port to the other devices of a node (NVLink, Infinity Fabric), each way; none when they
    /// only meet over the host link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_bandwidth: Option<BytesPerSecond>,
    /// The shortest time any operator takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<Seconds>,
    /// Where a figure comes from, by field.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub sources: IndexMap<String, String>,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Name in messages: `node0:3`.
    pub name: String,
    /// A key of [`Cluster::types`].
    #[serde(rename = "type")]
    pub type_: String,
    /// Group at each level, innermost first: `[3]` is in node 3; `[3, 0]` in node 3 of rack 0.
    pub place: Vec<u32>,
}

/// What joins the members of one level.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// `nvlink`, `pcie`, `infiniband`, …; shown in messages.
    pub name: String,
    /// Bandwidth of one device's port, each way.
    pub bandwidth: BytesPerSecond,
    /// Time before the first byte arrives.
    pub latency: Seconds,
}

/// A link between two named devices that differs from its level's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Device name.
    pub from: String,
    /// Device name.
    pub to: String,
    /// Bandwidth, each way.
    pub bandwidth: BytesPerSecond,
    /// Time before the first byte arrives.
    pub latency: Seconds,
}

impl Cluster {
    /// Returns the level that two devices talk over: the innermost that holds both.
    pub fn level_between(&self, one: &Device, other: &Device) -> usize {
        let n_levels = self.levels.len();
        let outermost = n_levels.saturating_sub(1);
        (0..outermost)
            .find(|&level| {
                let above = |device: &Device| device.place.get(level..).unwrap_or_default().to_vec();
                above(one) == above(other)
            })
            .unwrap_or(outermost)
    }

    /// Returns what two devices talk over: a link of their own, or their level's.
    pub fn link_between(&self, one: &Device, other: &Device) -> Option<(BytesPerSecond, Seconds)> {
        let own = self.links.iter().find(|link| {
            let ends = (link.from.as_str(), link.to.as_str());
            ends == (one.name.as_str(), other.name.as_str())
                || ends == (other.name.as_str(), one.name.as_str())
        });
        let level = self.levels.get(self.level_between(one, other));
        own.map(|link| (link.bandwidth, link.latency)).or(level.map(|level| (level.bandwidth, level.latency)))
    }
}
