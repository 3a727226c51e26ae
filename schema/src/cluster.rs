//! `cluster.yaml`: devices, their places, and the links between them.
//!
//! Levels are ordered from the inside out: level 0 joins the devices of one node, level 1 joins nodes, and so on. Two
//! devices communicate over the innermost level that contains both.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Bytes, BytesPerSecond, FlopsPerSecond, Seconds};

/// The assumed bandwidth of a host link without a figure: PCI Express 3.0, 16 lanes.
pub const HOST_BANDWIDTH: BytesPerSecond = BytesPerSecond(12e9);

/// A cluster as written in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Device types by name: from the catalogue, or with the user's own figures.
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

/// The figures of a device type.
///
/// Only the first three affect every step; the rest refine a prediction and are facts of the catalogue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceType {
    /// Memory that a process can use.
    pub memory: Bytes,
    /// The part of it that tensors cannot use: kernels, buffers of collectives, fragmentation. Zero when absent.
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
    /// Other names, such as those of `torch.cuda.get_device_name`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// `sm90`, `gfx942`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// Streaming multiprocessors, compute units or cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multiprocessors: Option<u32>,
    /// The last cache shared by all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub l2: Option<Bytes>,
    /// The next larger cache, for a CPU whose last cache is so large and slow that `l2` is the core's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_cache: Option<Bytes>,
    /// Total bandwidth of the port to the other devices of a node (NVLink, Infinity Fabric), each way; absent if they
    /// only communicate over the host link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_bandwidth: Option<BytesPerSecond>,
    /// The shortest time any operator takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<Seconds>,
    /// Time in which the host calls an operator of an accelerator, Python included; 29 µs when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_call: Option<Seconds>,
    /// Host time of a training script per pass of a stage, in addition to the stage's own work; zero when absent.
    /// `train.py --host-trace` measures it for the folders of `emit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_overhead: Option<Seconds>,
    /// Host time that a backward pass split into two halves takes beyond a whole one and the second pass; zero when
    /// absent. `train.py --host-trace` measures it under a schedule with halves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split_overhead: Option<Seconds>,
    /// Time of large products relative to the peak rate's, whatever the data type; 1 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product_slowdown: Option<f64>,
    /// Time of plain copies relative to the memory bandwidth's; 1.25 when absent, 1.67 for CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_slowdown: Option<f64>,
    /// Time of fused attention in PyTorch, relative to the newest kernels for the chip; 1 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention_slowdown: Option<f64>,
    /// Time of products of 16 and 8 bits in a run of minutes, relative to short bursts: the power limit lowers the
    /// clock; 1 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sustained_slowdown: Option<f64>,
    /// The source of each figure, by field.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub sources: IndexMap<String, String>,
}

impl Cluster {
    /// Returns the largest host overhead per pass of the device types.
    pub fn host_overhead(&self) -> Seconds {
        self.largest(|type_| type_.host_overhead)
    }

    /// Returns the largest host overhead per split backward pass of the device types.
    pub fn split_overhead(&self) -> Seconds {
        self.largest(|type_| type_.split_overhead)
    }

    fn largest(&self, time: impl Fn(&DeviceType) -> Option<Seconds>) -> Seconds {
        let types = self.devices.iter().filter_map(|device| self.types.get(&device.type_));
        Seconds(types.filter_map(time).map(|time| time.0).fold(0.0, f64::max))
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

/// The link between the members of one level.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// `nvlink`, `pcie`, `infiniband`, …; shown in messages.
    pub name: String,
    /// Bandwidth of one device's port, each way.
    pub bandwidth: BytesPerSecond,
    /// Time until the first byte arrives.
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
    /// Time until the first byte arrives.
    pub latency: Seconds,
}

/// Returns the level over which two devices communicate: the innermost that contains both places.
///
/// A shorter place has only the levels above it in common with a longer one.
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
