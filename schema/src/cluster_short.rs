//! Clusters on one line: `4xh100`, `2x8xh100` (two nodes of eight), `4xa100+4xv100`.
//!
//! Links are then assumed: within a node the port of the catalogue (NVLink) or the host link, between nodes InfiniBand
//! at 200 Gbit/s per device. A cluster file sets others.

use indexmap::IndexMap;

use crate::{
    BytesPerSecond, Cluster, ClusterError, Device, DeviceType, HOST_BANDWIDTH, Level, Seconds,
    cluster_file::DEVICES,
};

/// The assumed bandwidth between nodes: 200 Gbit/s.
const BETWEEN_NODES: BytesPerSecond = BytesPerSecond(25e9);

/// Reads a cluster on one line; `own` types come before the catalogue's.
///
/// # Errors
/// If the text is not of this form, or a device is unknown.
pub fn short_cluster(text: &str, own: &IndexMap<String, DeviceType>) -> Result<Cluster, ClusterError> {
    let error = |fault: String| ClusterError::Short { text: text.to_string(), fault };
    let mut cluster =
        Cluster { types: Default::default(), devices: Vec::new(), levels: Vec::new(), links: Vec::new() };
    let mut n_nodes = 0_u32;
    for part in text.split(['+', ',']).map(str::trim) {
        let (counts, name) = counts(part).map_err(error)?;
        let (nodes, count) = match counts.as_slice() {
            [] => (1, 1),
            [count] => (1, *count),
            [nodes, count] => (*nodes, *count),
            _ => {
                return Err(error(
                    "at most two counts, nodes and devices in each, come before a name".into(),
                ));
            }
        };
        if nodes == 0 || count == 0 {
            return Err(error("a count is zero".into()));
        }
        let total = u64::from(nodes) * u64::from(count);
        if total + cluster.devices.len() as u64 > DEVICES as u64 {
            return Err(ClusterError::TooMany(total));
        }
        let type_ = cluster.resolve(name, own)?;
        for node in n_nodes..n_nodes + nodes {
            for index in 0..count {
                let name = format!("node{node}:{index}");
                cluster.devices.push(Device { name, type_: type_.clone(), place: vec![node] });
            }
        }
        n_nodes += nodes;
    }
    cluster.levels = assumed_levels(&cluster, n_nodes);
    if n_nodes == 1 {
        cluster.devices.iter_mut().for_each(|device| device.place.clear());
    }
    cluster.validate()?;
    Ok(cluster)
}

/// Splits `2x8xh100` into its counts and its name; a name may contain an `x`.
fn counts(part: &str) -> Result<(Vec<u32>, &str), String> {
    let mut counts = Vec::new();
    let mut rest = part;
    loop {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
        let after = rest[digits..].trim_start();
        let times = ["x", "X", "×", "*"].into_iter().find_map(|sign| after.strip_prefix(sign));
        match times {
            Some(after) if digits > 0 => {
                counts.push(rest[..digits].parse().map_err(|_| format!("{} is too large", &rest[..digits]))?);
                rest = after.trim_start();
            }
            _ if rest.is_empty() => return Err("a device's name is missing; write `4xh100`".to_string()),
            _ => return Ok((counts, rest)),
        }
    }
}

fn assumed_levels(cluster: &Cluster, n_nodes: u32) -> Vec<Level> {
    if cluster.devices.len() < 2 {
        return Vec::new();
    }
    let port =
        |device: &DeviceType| device.link_bandwidth.or(device.host_bandwidth).unwrap_or(HOST_BANDWIDTH).0;
    let slowest = cluster.types.values().map(port).fold(f64::INFINITY, f64::min);
    let has_links = cluster.types.values().all(|device| device.link_bandwidth.is_some());
    let inside = Level {
        name: if has_links { "nvlink" } else { "pcie" }.to_string(),
        bandwidth: BytesPerSecond(slowest),
        latency: Seconds(if has_links { 3e-6 } else { 8e-6 }),
    };
    let between = Level { name: "infiniband".to_string(), bandwidth: BETWEEN_NODES, latency: Seconds(1e-5) };
    match n_nodes {
        1 => vec![inside],
        _ => vec![inside, between],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_names_are_read() {
        let check = |text: &str, devices: usize, levels: usize| {
            let cluster = short_cluster(text, &IndexMap::new()).unwrap();
            assert_eq!((cluster.devices.len(), cluster.levels.len()), (devices, levels), "{text}");
        };
        check("h100", 1, 0);
        check("4xh100", 4, 1);
        check("4×h100", 4, 1);
        check("2x8xh100", 16, 2);
        check("2 x rtx4090", 2, 1);
        check("2xa100+2xv100", 4, 2);
    }

    #[test]
    fn wrong_lists_say_what() {
        let check = |text: &str, expected: &str| {
            assert_eq!(short_cluster(text, &IndexMap::new()).unwrap_err().to_string(), expected);
        };
        check("4x", "`4x` is not a list of devices: a device's name is missing; write `4xh100`");
        check("0xh100", "`0xh100` is not a list of devices: a count is zero");
        check("4xbanana", "no device is called `banana`");
        check("", "`` is not a list of devices: a device's name is missing; write `4xh100`");
        check("99999999xh100", "the cluster has 99999999 devices, more than the supported 100000");
    }
}
