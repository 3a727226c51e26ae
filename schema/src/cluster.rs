//! `cluster.yaml`: devices, where they sit, and what joins them.
//!
//! Levels run from the inside out: level 0 joins the devices of one node, level 1 joins nodes, and so on.
//! Two devices talk over the innermost level that holds both.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Bytes, BytesPerSecond, FlopsPerSecond, Seconds};

/// What is assumed of a host link without a figure: PCI Express 3.0, 16 lanes.
pub const HOST_BANDWIDTH: BytesPerSecond = BytesPerSecond(12e9);

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
    /// What of it no tensor gets: kernels, buffers of collectives, what the allocator cannot fill. Nothing when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve: Option<Bytes>,
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
    /// Cache behind `l2`, of a processor whose last one is so large and slow that `l2` is the core's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_cache: Option<Bytes>,
    /// The whole port to the other devices of a node (NVLink, Infinity Fabric), each way; none when they
    /// only meet over the host link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_bandwidth: Option<BytesPerSecond>,
    /// The shortest time any operator takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<Seconds>,
    /// What the host takes to call an operator of an accelerator, Python included; 29 µs when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_call: Option<Seconds>,
    /// What a training script takes of the host for each pass of a stage, beside the stage's own work; nothing when absent.
    /// `train.py --host-trace` measures that of the folders that `emit` writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_overhead: Option<Seconds>,
    /// Time of large products relative to what the peak rate promises, whatever the data type; 1 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product_slowdown: Option<f64>,
    /// Time of plain copies relative to what the memory bandwidth promises; 1.25 when absent, 1.67 for processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_slowdown: Option<f64>,
    /// Time of fused attention as PyTorch runs it, relative to the newest kernels for the chip; 1 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention_slowdown: Option<f64>,
    /// Time of products of 16 and 8 bits in a run of minutes, relative to bursts: the clock that the power allows; 1 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sustained_slowdown: Option<f64>,
    /// Where a figure comes from, by field.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub sources: IndexMap<String, String>,
}

impl Cluster {
    /// Returns the most that a device's type says of what a training script takes of the host for each pass.
    pub fn host_overhead(&self) -> Seconds {
        let types = self.devices.iter().filter_map(|device| self.types.get(&device.type_));
        Seconds(types.filter_map(|type_| type_.host_overhead).map(|time| time.0).fold(0.0, f64::max))
    }
}

impl DeviceType {
    /// Returns the memory that tensors may fill.
    pub fn usable(&self) -> Bytes {
        Bytes(self.memory.0.saturating_sub(self.reserve.unwrap_or_default().0))
    }
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

/// Returns the level that two devices talk over, by their places: the innermost that holds both.
///
/// A place that is shorter than another shares with it only the levels above both.
pub fn level_of(one: &[u32], other: &[u32], n_levels: usize) -> usize {
    let outermost = n_levels.saturating_sub(1);
    let is_shared =
        |level: usize| one.get(level..).unwrap_or_default() == other.get(level..).unwrap_or_default();
    (0..outermost).find(|level| is_shared(*level)).unwrap_or(outermost)
}

#[cfg(test)]
mod tests {
    use super::level_of;

    #[test]
    fn the_innermost_level_that_holds_both_joins() {
        let check = |one: &[u32], other: &[u32], expected: [usize; 4]| {
            let found = [0, 1, 2, 3].map(|n_levels| level_of(one, other, n_levels));
            assert_eq!(found, expected, "{one:?} {other:?}");
            assert_eq!(found, [0, 1, 2, 3].map(|n_levels| level_of(other, one, n_levels)));
        };
        check(&[], &[], [0, 0, 0, 0]);
        check(&[0, 0], &[0, 0], [0, 0, 0, 0]);
        check(&[0, 0], &[1, 0], [0, 0, 1, 1]);
        check(&[0, 0], &[0, 1], [0, 0, 1, 2]);
        check(&[1], &[2], [0, 0, 1, 1]);
        // Node 0 of no rack is not node 0 of rack 0.
        check(&[0], &[0, 0], [0, 0, 1, 2]);
    }
}
