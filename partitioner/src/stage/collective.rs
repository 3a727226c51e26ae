//! The times of an all-reduce, the fastest of ring, tree and, across nodes, hierarchical, and of its halves, as in the simulator.
//!
//! The formulas of `simulator::collective` in seconds instead of whole nanoseconds, because a solver compares sums of them:
//! `2(n-1)α + 2(n-1)/n·G/β` for a ring; `2⌈log₂ n⌉α + 2G/β` for a tree; reduce-scatter inside nodes, all-reduce between, all-gather
//! inside. A reduce-scatter or an all-gather, whose parts differ by rank, has no tree. O(1) for a group.

use std::collections::BTreeMap;

use crate::{Machine, MachineLevel};

/// The devices of a collective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Group {
    nodes: usize,
    per_node: usize,
    inner: MachineLevel,
    outer: MachineLevel,
}

impl Group {
    /// Returns the group of some devices; `None` for fewer than two, or if no level joins them.
    pub(crate) fn of(machine: &Machine, devices: &[usize]) -> Option<Self> {
        if devices.len() < 2 {
            return None;
        }
        // The order of the ring: nodes of a rack next to each other.
        let mut devices = devices.to_vec();
        let place = |device: &usize| machine.devices[*device].place.iter().rev();
        devices.sort_by(|a, b| place(a).cmp(place(b)));
        let mut by_node: BTreeMap<&[u32], Vec<usize>> = BTreeMap::new();
        for &device in &devices {
            by_node.entry(&machine.devices[device].place).or_default().push(device);
        }
        let per_node = by_node.values().map(Vec::len).max().unwrap_or(1);
        let is_even = by_node.values().all(|members| members.len() == per_node);
        let outer = machine.slowest(&devices)?;
        if by_node.len() == 1 || !is_even {
            return Some(Self { nodes: 1, per_node: devices.len(), inner: outer, outer });
        }
        let inner = by_node.values().filter_map(|members| machine.slowest(members)).reduce(slower);
        Some(Self { nodes: by_node.len(), per_node, inner: inner.unwrap_or(outer), outer })
    }

    /// Returns groups of which one is no slower than any of so many devices, wherever they stand: over the fastest links, in as
    /// few nodes as hold them, or in nodes of as many each.
    pub(crate) fn fastest(machine: &Machine, count: usize) -> Vec<Self> {
        let faster = |a: MachineLevel, b: MachineLevel| MachineLevel {
            bandwidth: if a.bandwidth.0 > b.bandwidth.0 { a.bandwidth } else { b.bandwidth },
            latency: if a.latency.0 < b.latency.0 { a.latency } else { b.latency },
        };
        let fastest = |levels: &[MachineLevel]| {
            let links = machine.links.iter().map(|(.., level)| *level);
            levels.iter().copied().chain(links).reduce(faster)
        };
        let (Some(inner), true) = (fastest(&machine.levels), count > 1) else { return Vec::new() };
        let mut nodes: BTreeMap<&[u32], usize> = BTreeMap::new();
        machine.devices.iter().for_each(|device| *nodes.entry(&device.place).or_default() += 1);
        let largest = nodes.into_values().max().unwrap_or(1);
        let alone = Self { nodes: 1, per_node: count, inner, outer: inner };
        if count <= largest {
            return vec![alone];
        }
        let outer = fastest(machine.levels.get(1..).unwrap_or_default()).unwrap_or(inner);
        let even = (count.div_ceil(largest)..=count).filter(|nodes| count.is_multiple_of(*nodes));
        let even = even.map(|nodes| Self { nodes, per_node: count / nodes, inner, outer });
        std::iter::once(Self { inner: outer, outer, ..alone }).chain(even).collect()
    }

    /// Returns the seconds of an all-reduce.
    pub(crate) fn all_reduce(&self, bytes: f64) -> f64 {
        let n_ranks = self.nodes * self.per_node;
        if bytes == 0.0 || n_ranks < 2 {
            return 0.0;
        }
        let slowest = if self.nodes == 1 { self.inner } else { slower(self.inner, self.outer) };
        let flat = ring(bytes, n_ranks, slowest).min(tree(bytes, n_ranks, slowest));
        if self.nodes == 1 || self.per_node == 1 {
            return flat;
        }
        let inside = ring(bytes, self.per_node, self.inner);
        flat.min(inside + ring(bytes / self.per_node as f64, self.nodes, self.outer))
    }

    /// Returns the seconds of a reduce-scatter, or of an all-gather.
    pub(crate) fn half(&self, bytes: f64) -> f64 {
        let n_ranks = self.nodes * self.per_node;
        if bytes == 0.0 || n_ranks < 2 {
            return 0.0;
        }
        let slowest = if self.nodes == 1 { self.inner } else { slower(self.inner, self.outer) };
        let flat = ring(bytes, n_ranks, slowest);
        if self.nodes == 1 || self.per_node == 1 {
            return flat / 2.0;
        }
        let inside = ring(bytes, self.per_node, self.inner);
        flat.min(inside + ring(bytes / self.per_node as f64, self.nodes, self.outer)) / 2.0
    }
}

fn slower(a: MachineLevel, b: MachineLevel) -> MachineLevel {
    let bandwidth = if a.bandwidth.0 < b.bandwidth.0 { a.bandwidth } else { b.bandwidth };
    let latency = if a.latency.0 > b.latency.0 { a.latency } else { b.latency };
    MachineLevel { bandwidth, latency }
}

/// Seconds of a ring all-reduce.
pub(crate) fn ring(bytes: f64, n_ranks: usize, level: MachineLevel) -> f64 {
    let n = n_ranks as f64;
    2.0 * (n - 1.0) * level.latency.0 + 2.0 * (n - 1.0) / n * bytes / level.bandwidth.0
}

/// Seconds of a pipelined tree.
pub(crate) fn tree(bytes: f64, n_ranks: usize, level: MachineLevel) -> f64 {
    2.0 * depth(n_ranks) * level.latency.0 + 2.0 * bytes / level.bandwidth.0
}

/// Levels of a binary tree.
pub(crate) fn depth(n_ranks: usize) -> f64 {
    f64::from(n_ranks.next_power_of_two().trailing_zeros())
}

#[cfg(test)]
mod tests {
    use schema::{BytesPerSecond, Seconds};
    use simulator::{
        Link,
        collective::{Algorithm, Collective, time},
    };

    use super::*;

    #[test]
    fn seconds_are_the_simulators() {
        let level = |bandwidth, latency| MachineLevel {
            bandwidth: BytesPerSecond(bandwidth),
            latency: Seconds(latency),
        };
        let link = |level: MachineLevel| Link {
            latency: (level.latency.0 * 1e9) as u64,
            bandwidth: level.bandwidth.0,
        };
        let (inner, outer) = (level(4.5e11, 3e-6), level(2.5e10, 1e-5));
        for (nodes, per_node) in [(1, 2), (1, 8), (2, 4), (4, 1), (3, 8)] {
            for bytes in [1_000, 1_000_000, 500_000_000] {
                let ours = Group { nodes, per_node, inner, outer };
                let (ours, half) = (ours.all_reduce(bytes as f64), ours.half(bytes as f64));
                let (nodes, per_node) = (nodes as u32, per_node as u32);
                let group =
                    simulator::collective::Group { nodes, per_node, inner: link(inner), outer: link(outer) };
                let theirs = |what| time(what, Algorithm::Fastest, bytes, &group) as f64 * 1e-9;
                for (what, ours) in [
                    (Collective::AllReduce, ours),
                    (Collective::ReduceScatter, half),
                    (Collective::AllGather, half),
                ] {
                    let theirs = theirs(what);
                    let told = format!("{what:?} {nodes}x{per_node} {bytes}: {ours} is not {theirs}");
                    assert!((ours - theirs).abs() < 1e-8, "{told}");
                }
            }
        }
    }
}
