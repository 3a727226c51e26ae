//! Time of collective operations: an α-β model with NCCL's constants, or a table of measurements.
//!
//! `n` ranks, `G` bytes, latency `α`, bandwidth `β` (bytes a second a port). Ring all-reduce
//! `2(n−1)α + 2(n−1)/n·G/β`; reduce-scatter and all-gather are half of it. Tree `2⌈log₂ n⌉α + 2G/β`, pipelined.
//! Hierarchical: scatter inside the node, all-reduce between nodes, gather inside. Parameter server `2nG/(Sβ)`.
//! The model is 7–20 % off on average on NVLink systems; a measured [`Table`], read between its points in logarithms,
//! about 3 % at the median.

use crate::machine::{Link, transfer_time};

/// What is exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Everybody gets the sum.
    AllReduce,
    /// Everybody gets its part of the sum.
    ReduceScatter,
    /// Everybody gets all parts.
    AllGather,
    /// Everybody sends a part to everybody.
    AllToAll,
    /// Everybody gets one rank's values.
    Broadcast,
}

/// How it is exchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// The faster of ring, tree and, across nodes, hierarchical: what NCCL's tuner does.
    #[default]
    Fastest,
    /// Neighbours in a ring.
    Ring,
    /// A binary tree, pipelined.
    Tree,
    /// Rings inside nodes and rings between them.
    Hierarchical,
    /// So many servers sum and send back.
    ParameterServer {
        /// Servers.
        servers: u32,
    },
}

/// Who takes part: nodes, ranks on each, and the links between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// Nodes.
    pub nodes: u32,
    /// Ranks in each node.
    pub per_node: u32,
    /// Link inside a node.
    pub inner: Link,
    /// Link between nodes, of one rank.
    pub outer: Link,
}

impl Group {
    /// Returns a group of ranks that are all joined alike.
    pub fn flat(n_ranks: u32, link: Link) -> Self {
        Self { nodes: 1, per_node: n_ranks, inner: link, outer: link }
    }

    /// Returns the number of ranks.
    pub fn n_ranks(&self) -> u32 {
        self.nodes * self.per_node
    }

    fn slowest(&self) -> Link {
        if self.nodes == 1 {
            return self.inner;
        }
        Link {
            latency: self.inner.latency.max(self.outer.latency),
            bandwidth: self.inner.bandwidth.min(self.outer.bandwidth),
        }
    }
}

/// Returns the nanoseconds of a collective.
pub fn time(collective: Collective, algorithm: Algorithm, bytes: u64, group: &Group) -> u64 {
    parts(collective, algorithm, bytes, group).total()
}

/// Time of a collective that runs alone: latency, then transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Nanoseconds of its hops.
    pub latency: u64,
    /// Nanoseconds in which bytes move.
    pub transfer: u64,
}

impl Parts {
    /// Returns both together.
    pub fn total(self) -> u64 {
        self.latency.saturating_add(self.transfer)
    }

    fn then(self, next: Self) -> Self {
        Self {
            latency: self.latency.saturating_add(next.latency),
            transfer: self.transfer.saturating_add(next.transfer),
        }
    }
}

/// Returns the nanoseconds of a collective, latency and transfer apart.
pub fn parts(collective: Collective, algorithm: Algorithm, bytes: u64, group: &Group) -> Parts {
    let n = u64::from(group.n_ranks());
    if n <= 1 || bytes == 0 {
        return Parts::default();
    }
    match algorithm {
        Algorithm::Ring => ring(collective, bytes, n, group.slowest()),
        Algorithm::Tree => tree(collective, bytes, n, group.slowest()),
        Algorithm::Hierarchical => hierarchical(collective, bytes, group),
        Algorithm::ParameterServer { servers } => parameter_server(bytes, n, servers, group.slowest()),
        Algorithm::Fastest => {
            let ring = ring(collective, bytes, n, group.slowest());
            let tree = tree(collective, bytes, n, group.slowest());
            let across = group.nodes > 1 && group.per_node > 1;
            let hierarchical = across.then(|| hierarchical(collective, bytes, group));
            [Some(ring), Some(tree), hierarchical]
                .into_iter()
                .flatten()
                .min_by_key(|parts| parts.total())
                .unwrap_or(ring)
        }
    }
}

/// Returns the bytes that leave a group's members, all members together: the minimum over algorithms, except that with a
/// parameter server every member sends and receives everything.
pub fn sent(collective: Collective, algorithm: Algorithm, bytes: u64, n: u64) -> u64 {
    let times = match (collective, algorithm) {
        _ if n <= 1 => 0,
        (Collective::AllReduce, Algorithm::ParameterServer { .. }) => 2 * n,
        (Collective::AllReduce, _) => 2 * (n - 1),
        _ => n - 1,
    };
    bytes.saturating_mul(times)
}

/// A share of bytes, rounded up so that small messages keep a cost.
fn share(bytes: u64, parts: u64, of: u64) -> u64 {
    (u128::from(bytes) * u128::from(parts)).div_ceil(u128::from(of)).min(u128::from(u64::MAX)) as u64
}

fn ring(collective: Collective, bytes: u64, n: u64, link: Link) -> Parts {
    let (hops, moved) = match collective {
        Collective::AllReduce => (2 * (n - 1), share(bytes, 2 * (n - 1), n)),
        Collective::ReduceScatter | Collective::AllGather | Collective::AllToAll => {
            (n - 1, share(bytes, n - 1, n))
        }
        Collective::Broadcast => (n - 1, bytes),
    };
    hops_then(hops, moved, link)
}

fn hops_then(hops: u64, bytes: u64, link: Link) -> Parts {
    Parts { latency: hops.saturating_mul(link.latency), transfer: transfer_time(bytes, link.bandwidth) }
}

fn tree(collective: Collective, bytes: u64, n: u64, link: Link) -> Parts {
    let depth = u64::from(n.next_power_of_two().trailing_zeros());
    match collective {
        Collective::AllReduce => hops_then(2 * depth, bytes.saturating_mul(2), link),
        Collective::Broadcast => hops_then(depth, bytes, link),
        // A tree is no faster for collectives whose parts differ by rank.
        _ => ring(collective, bytes, n, link),
    }
}

fn hierarchical(collective: Collective, bytes: u64, group: &Group) -> Parts {
    let (g, nodes) = (u64::from(group.per_node), u64::from(group.nodes));
    if nodes == 1 {
        return ring(collective, bytes, g, group.inner);
    }
    if g == 1 {
        return ring(collective, bytes, nodes, group.outer);
    }
    let part = bytes.div_ceil(g);
    let inside = |collective| ring(collective, bytes, g, group.inner);
    let between = |collective| ring(collective, part, nodes, group.outer);
    match collective {
        Collective::AllReduce => inside(Collective::ReduceScatter)
            .then(between(Collective::AllReduce))
            .then(inside(Collective::AllGather)),
        // Of all that a rank has, the parts of other nodes' ranks leave the node.
        Collective::AllToAll => inside(collective).then(ring(collective, bytes, nodes, group.outer)),
        other => inside(other).then(between(other)),
    }
}

/// Returns the time of a push to servers, or of a pull from them: one direction of their links.
pub fn to_servers(bytes: u64, servers: u32, group: &Group) -> Parts {
    let n = u64::from(group.n_ranks());
    if n <= 1 || bytes == 0 {
        return Parts::default();
    }
    hops_then(1, share(bytes, n, u64::from(servers.max(1))), group.slowest())
}

fn parameter_server(bytes: u64, n: u64, servers: u32, link: Link) -> Parts {
    hops_then(2, share(bytes, 2 * n, u64::from(servers.max(1))), link)
}

/// Measured times of one collective on one system with one number of ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Bytes and nanoseconds, by bytes, both above zero.
    ///
    /// Invariant: ascending in bytes, checked by [`Table::new`].
    points: Vec<(f64, f64)>,
}

impl Table {
    /// Returns a table of (bytes, nanoseconds); points without time or size are left out, equal sizes averaged.
    pub fn new(measured: &[(f64, f64)]) -> Option<Self> {
        let is_usable = |(bytes, time): &&(f64, f64)| {
            *bytes > 0.0 && *time > 0.0 && bytes.is_finite() && time.is_finite()
        };
        let mut sorted: Vec<(f64, f64)> = measured.iter().filter(is_usable).copied().collect();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut points: Vec<(f64, f64)> = Vec::new();
        for same in sorted.chunk_by(|a, b| a.0 == b.0) {
            points.push((same[0].0, same.iter().map(|(_, time)| time).sum::<f64>() / same.len() as f64));
        }
        (!points.is_empty()).then_some(Self { points })
    }

    /// Returns the nanoseconds for a size: a straight line between neighbours in logarithms.
    ///
    /// Below the smallest size the time is the smallest's (latency), above the largest the rate is the largest's.
    pub fn time(&self, bytes: f64) -> f64 {
        let after = self.points.partition_point(|(size, _)| *size < bytes);
        match (after.checked_sub(1).map(|before| self.points[before]), self.points.get(after)) {
            (None, Some(first)) => first.1,
            (Some(last), None) => last.1 * bytes / last.0,
            (Some(before), Some(next)) => {
                let along = (bytes / before.0).ln() / (next.0 / before.0).ln();
                before.1 * (next.1 / before.1).powf(along)
            }
            (None, None) => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: Link = Link { latency: 10, bandwidth: 1e9 };

    #[test]
    fn formulas() {
        let check = |collective, algorithm, expected: u64| {
            assert_eq!(
                time(collective, algorithm, 8_000, &Group::flat(4, LINK)),
                expected,
                "{collective:?} {algorithm:?}"
            );
        };
        check(Collective::AllReduce, Algorithm::Ring, 6 * 10 + 12_000);
        check(Collective::ReduceScatter, Algorithm::Ring, 3 * 10 + 6_000);
        check(Collective::AllGather, Algorithm::Ring, 3 * 10 + 6_000);
        check(Collective::AllToAll, Algorithm::Ring, 3 * 10 + 6_000);
        check(Collective::AllReduce, Algorithm::Tree, 4 * 10 + 16_000);
        check(Collective::AllReduce, Algorithm::ParameterServer { servers: 2 }, 20 + 32_000);
        check(Collective::AllReduce, Algorithm::Fastest, 12_060);
        assert_eq!(time(Collective::AllReduce, Algorithm::Ring, 8_000, &Group::flat(1, LINK)), 0);
    }

    #[test]
    fn hierarchy_sends_a_share_between_nodes() {
        let outer = Link { latency: 100, bandwidth: 1e8 };
        let group = Group { nodes: 2, per_node: 4, inner: LINK, outer };
        // Scatter and gather 6000 bytes inside; 2000 bytes ring of two between.
        let expected = (30 + 6_000) * 2 + 2 * 100 + 20_000;
        assert_eq!(time(Collective::AllReduce, Algorithm::Hierarchical, 8_000, &group), expected);
        assert_eq!(time(Collective::AllReduce, Algorithm::Fastest, 8_000, &group), expected);
    }

    #[test]
    fn tables_are_read_between_their_points() {
        let table = Table::new(&[(100.0, 10.0), (10_000.0, 1000.0), (10.0, 10.0), (0.0, 3.0)]).unwrap();
        let check =
            |bytes: f64, expected: f64| assert!((table.time(bytes) - expected).abs() < 1e-6, "{bytes}");
        check(1.0, 10.0);
        check(50.0, 10.0);
        check(1_000.0, 100.0);
        check(20_000.0, 2_000.0);
        assert_eq!(Table::new(&[]), None);
    }
}
