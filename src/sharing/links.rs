//! The devices of a cluster as groups, and the seconds of exchanges over what joins them.

use std::collections::BTreeMap;

use graph::layout::Collective;
use schema::{Cluster, Device};
use simulator::{
    Link,
    collective::{self, Algorithm},
};

use crate::failure::Failure;

/// Returns the devices that the fastest links join, by place.
fn by_place(cluster: &Cluster) -> Vec<Vec<&Device>> {
    let mut found: indexmap::IndexMap<&[u32], Vec<&Device>> = Default::default();
    for device in &cluster.devices {
        found.entry(&device.place).or_default().push(device);
    }
    found.into_values().collect()
}

/// Returns the fewest devices that the fastest links of a cluster join.
pub fn smallest_node(cluster: &Cluster) -> u32 {
    smallest(&by_place(cluster)).0 as u32
}

/// Returns the number of devices of the smallest of some nodes, and whether all have as many.
fn smallest(nodes: &[Vec<&Device>]) -> (usize, bool) {
    let least = nodes.iter().map(Vec::len).min().unwrap_or(1).max(1);
    (least, nodes.iter().all(|node| node.len() == least))
}

/// Returns what joins so many devices of a cluster, each the given number of places behind the one before.
pub fn links(cluster: &Cluster, degree: u32, stride: u32) -> collective::Group {
    let link = |level: usize| {
        let level = cluster.levels.get(level).or(cluster.levels.last());
        Link {
            latency: level.map_or(0, |level| (level.latency.0 * 1e9).round() as u64),
            bandwidth: level.map_or(f64::INFINITY, |level| level.bandwidth.0),
        }
    };
    let nodes = by_place(cluster);
    let per_node = (nodes.first().map_or(1, |node| node.len() as u32) / stride.max(1)).max(1);
    if degree <= per_node {
        return collective::Group::flat(degree, link(0));
    }
    let mut all = nodes.into_iter().flatten().map(|device| device.place.as_slice());
    let first = all.next().unwrap_or_default();
    let last = all.nth(((degree as usize - 1) * stride as usize).saturating_sub(1)).unwrap_or_default();
    let outer = link(schema::level_of(first, last, cluster.levels.len()));
    // Where nodes have unequal numbers of them, all go over the links between nodes.
    let per_node = if degree.is_multiple_of(per_node) { per_node } else { 1 };
    collective::Group { nodes: degree / per_node, per_node, inner: link(0), outer }
}

pub(super) fn exchange_seconds(what: Collective, bytes: u64, links: &collective::Group) -> f64 {
    if let Collective::Neighbours(moved, size) = what {
        // Messages of all neighbours run concurrently, each with its latency.
        let link = if links.nodes == 1 { links.inner } else { links.outer };
        let moving = rows(bytes, moved.most, size) as f64 / link.bandwidth;
        return (moved.messages * link.latency) as f64 * 1e-9 + moving;
    }
    let (kind, bytes) = in_simulator(what, bytes, u64::from(links.n_ranks()));
    collective::time(kind, Algorithm::Fastest, bytes, links) as f64 * 1e-9
}

/// Returns an exchange as a collective of the simulator, and its bytes.
pub(super) fn in_simulator(what: Collective, whole: u64, degree: u64) -> (collective::Collective, u64) {
    match what {
        Collective::AllReduce => (collective::Collective::AllReduce, whole),
        Collective::AllGather => (collective::Collective::AllGather, whole),
        Collective::ReduceScatter => (collective::Collective::ReduceScatter, whole),
        Collective::Neighbours(moved, size) => {
            (collective::Collective::AllToAll, rows(whole, moved.most, size))
        }
        // Each device sends all of its part except its own share.
        Collective::AllToAll => (collective::Collective::AllToAll, whole / degree),
    }
}

/// Returns the bytes of some of the rows.
pub(super) fn rows(bytes: u64, some: u64, of: u64) -> u64 {
    (u128::from(bytes) * u128::from(some) / u128::from(of.max(1))) as u64
}

/// A cluster with a device per group, and the names of each group's members.
type Grouped = (Cluster, BTreeMap<String, Vec<String>>);

/// Returns a cluster with a device per group of neighbours of one type, and the names of each group's members. What fills no group
/// is in none: of five devices that the fastest links join, groups of four leave one out.
///
/// # Errors
/// If there are not as many neighbours of one type, or groups are larger than a node and not whole nodes.
pub fn grouped(cluster: &Cluster, degree: u32, option: &str) -> Result<Grouped, Failure> {
    let size = degree.max(1) as usize;
    let nodes = by_place(cluster);
    let (smallest, is_even) = smallest(&nodes);
    let n_devices = cluster.devices.len();
    // A group over several nodes has all of each.
    let is_wide = size > smallest && is_even && size.is_multiple_of(smallest) && size <= n_devices;
    if !is_wide && size > smallest {
        let fewest = nodes.iter().find(|node| !node.len().is_multiple_of(size)).map_or(smallest, Vec::len);
        let failure = Failure::input(format!(
            "{option} {degree} does not divide the {fewest} devices that the fastest links join"
        ));
        let sizes: Vec<String> = sizes(cluster).iter().map(u32::to_string).collect();
        return Err(if sizes.is_empty() {
            failure
        } else {
            failure.with_hint(format!("{} would", sizes.join(", ")))
        });
    }
    let mut sets: Vec<Vec<&Device>> = Vec::new();
    if is_wide {
        sets.push(nodes.concat());
    } else {
        for node in &nodes {
            let mut by_type: indexmap::IndexMap<&str, Vec<&Device>> = Default::default();
            for device in node {
                by_type.entry(device.type_.as_str()).or_default().push(device);
            }
            sets.extend(by_type.into_values());
        }
    }
    let mut members: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for group in sets.iter().flat_map(|devices| devices.chunks_exact(size)) {
        if let Some(other) = group.iter().find(|device| device.type_ != group[0].type_) {
            return Err(of_two_types(group[0], other));
        }
        members.insert(group[0].name.clone(), group.iter().map(|device| device.name.clone()).collect());
    }
    if members.is_empty() {
        let mixed = nodes.iter().find_map(|node| {
            let other = node.iter().find(|one| one.type_ != node[0].type_)?;
            Some(of_two_types(node[0], other))
        });
        return Err(mixed.unwrap_or_else(|| Failure::input(format!("{option} {degree} needs devices"))));
    }
    // In the order of the cluster, which stages follow.
    let leaders = cluster.devices.iter().filter(|device| members.contains_key(&device.name));
    Ok((Cluster { devices: leaders.cloned().collect(), ..cluster.clone() }, members))
}

/// Returns the error of a group whose devices differ.
fn of_two_types(first: &Device, other: &Device) -> Failure {
    Failure::input(format!(
        "{} and {} would share layers but have different types, {} and {}",
        first.name, other.name, first.type_, other.type_
    ))
}

/// Returns the sizes of groups for which a search is worth its time, up to the largest: powers of two, and those that leave no device
/// out, or of a node's odd number of devices one.
pub fn sizes_to_try(cluster: &Cluster, most: u32) -> Vec<u32> {
    let node = smallest_node(cluster);
    let all = sizes(cluster);
    let is_near = |size: u32| all.contains(&size) || (size < node && (node - node % 2).is_multiple_of(size));
    (2..=most).filter(|&size| size.is_power_of_two() || is_near(size)).collect()
}

/// Returns the sizes of groups that leave no device out.
fn sizes(cluster: &Cluster) -> Vec<u32> {
    let nodes = by_place(cluster);
    let n_devices = cluster.devices.len();
    let (smallest, is_even) = smallest(&nodes);
    let within = (2..=smallest).filter(|size| nodes.iter().all(|node| node.len().is_multiple_of(*size)));
    let across = (smallest + 1..=n_devices)
        .filter(|size| is_even && size.is_multiple_of(smallest) && n_devices.is_multiple_of(*size));
    within.chain(across).map(|size| size as u32).collect()
}
