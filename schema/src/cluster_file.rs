//! Reads `cluster.yaml`: a header, then devices one by one or in groups, then the links between them.
//!
//! A group saves typing: `{type: h100, count: 8, nodes: 2}` is sixteen devices in two nodes. A type that the file does
//! not describe comes from the catalogue.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Cluster, Device, DeviceType, Level, Link, UnknownDevice, YamlError,
    catalogue::{FIGURES, catalogue, find_among},
    from_yaml, to_yaml,
};

/// The newest version of the cluster format.
pub const CLUSTER_VERSION: u32 = 1;

/// The most devices that a cluster can have.
pub(crate) const DEVICES: usize = 100_000;

/// The first fields of every version.
#[derive(Deserialize)]
struct Header {
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    version: Option<u32>,
}

/// A cluster in the form that users write.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClusterFile {
    /// Always `cluster`.
    kind: String,
    /// Format version, [`CLUSTER_VERSION`] at most.
    version: u32,
    /// Device types by name; those not given here come from the catalogue.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    types: IndexMap<String, DeviceType>,
    /// Devices, one by one or in groups.
    devices: Vec<Entry>,
    /// Links by level, innermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    levels: Vec<Level>,
    /// Links between named devices that differ from their level's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    links: Vec<Link>,
}

/// A device, or several equal ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
enum Entry {
    One(Device),
    Group(Group),
}

/// Equal devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Group {
    /// Name of the type.
    #[serde(rename = "type")]
    type_: String,
    /// Devices in each node.
    count: u32,
    /// Nodes; one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nodes: Option<u32>,
}

/// Why a cluster is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ClusterError {
    /// Not YAML, or not of this shape.
    #[error(transparent)]
    Yaml(#[from] YamlError),
    /// Another kind of file.
    #[error("this is a `{0}` file, not a `cluster` file")]
    Kind(String),
    /// Written for a later release.
    #[error("cluster file version {0} is not supported, the newest supported is {CLUSTER_VERSION}")]
    Version(u32),
    /// A type without a description.
    #[error(transparent)]
    UnknownType(#[from] UnknownDevice),
    /// No devices.
    #[error("the cluster has no devices")]
    NoDevices,
    /// More devices than supported.
    #[error("the cluster has {0} devices, more than the supported {DEVICES}")]
    TooMany(u64),
    /// Two devices of one name.
    #[error("device `{0}` is given twice")]
    Duplicate(String),
    /// A device without a name for messages.
    #[error("device {0} has an empty name")]
    Nameless(usize),
    /// A link of a device with itself.
    #[error("a link joins device `{0}` with itself")]
    LinkToItself(String),
    /// Two links between the same devices.
    #[error("the link between `{0}` and `{1}` is given twice")]
    DuplicateLink(String, String),
    /// A link to an unknown device.
    #[error("a link names device `{0}`, which is not in the cluster")]
    UnknownDevice(String),
    /// Several devices without a link.
    #[error("the cluster has {0} devices but no level that joins them")]
    NoLevels(usize),
    /// A place deeper than the levels.
    #[error("device `{device}` has {given} numbers as its place, {levels} levels allow at most {levels}")]
    Place {
        /// Its name.
        device: String,
        /// Numbers given.
        given: usize,
        /// Levels of the cluster.
        levels: usize,
    },
    /// A figure out of range.
    #[error("{what}: {field} is {value}; it must be a {rule} number")]
    Figure {
        /// Device type, level or link.
        what: String,
        /// Name of the field.
        field: &'static str,
        /// The number as written.
        value: f64,
        /// `positive` or `not negative`.
        rule: &'static str,
    },
    /// A figure so large or small that times would overflow.
    #[error("{what}: {field} is {value:e}; figures are between 1e-30 and 1e30")]
    Beyond {
        /// Device type, level or link.
        what: String,
        /// Name of the field.
        field: &'static str,
        /// The number as written.
        value: f64,
    },
    /// A short form that cannot be parsed.
    #[error("`{text}` is not a list of devices: {fault}")]
    Short {
        /// The text.
        text: String,
        /// The fault.
        fault: String,
    },
}

/// Reads a cluster; types of the file come first, then `own` ones, then the catalogue's.
///
/// # Errors
/// If the text is no such file, a device is unknown, or a figure is out of range.
pub fn read_cluster(text: &str, own: &IndexMap<String, DeviceType>) -> Result<Cluster, ClusterError> {
    let no_header = || {
        ClusterError::Yaml(YamlError {
            message: "a cluster file begins with `kind: cluster` and `version: 1`".to_string(),
            place: Some((1, 1)),
        })
    };
    let header: Header = from_yaml(text).map_err(|error| {
        if error.message.starts_with("the file holds") { no_header() } else { error.into() }
    })?;
    match (header.kind.as_deref(), header.version) {
        (Some("cluster"), Some(version)) if !(1..=CLUSTER_VERSION).contains(&version) => {
            return Err(ClusterError::Version(version));
        }
        (Some("cluster"), _) => {}
        (Some(kind), _) => return Err(ClusterError::Kind(kind.to_string())),
        (None, _) => return Err(no_header()),
    }
    let file: ClusterFile = from_yaml(text).map_err(in_words)?;
    let mut cluster =
        Cluster { types: file.types, devices: Vec::new(), levels: file.levels, links: file.links };
    let mut n_nodes = 0_u64;
    for entry in file.devices {
        match entry {
            Entry::One(device) => {
                let name = cluster.resolve(&device.type_, own)?;
                let place = u64::from(device.place.first().copied().unwrap_or(0));
                n_nodes = n_nodes.max(place.saturating_add(1));
                cluster.devices.push(Device { type_: name, ..device });
            }
            Entry::Group(group) => {
                let name = cluster.resolve(&group.type_, own)?;
                let nodes = u64::from(group.nodes.unwrap_or(1));
                let count = nodes.saturating_mul(u64::from(group.count));
                if count + cluster.devices.len() as u64 > DEVICES as u64 {
                    return Err(ClusterError::TooMany(count));
                }
                let has_nodes = cluster.levels.len() > 1;
                for node in n_nodes..n_nodes + nodes {
                    for index in 0..group.count {
                        cluster.devices.push(Device {
                            name: format!("node{node}:{index}"),
                            type_: name.clone(),
                            place: if has_nodes { vec![node as u32] } else { vec![] },
                        });
                    }
                }
                n_nodes += nodes;
            }
        }
    }
    cluster.validate()?;
    Ok(cluster)
}

/// Describes the two forms of an entry of `devices`, if an entry has neither.
fn in_words(error: YamlError) -> YamlError {
    match error.message.split_once("data did not match any variant of untagged enum Entry") {
        Some((field, place)) => YamlError {
            message: format!(
                "{field}a device is `{{name: …, type: …, place: […]}}`, several are `{{type: …, count: …}}`, \
                 optionally with `nodes`{place}"
            ),
            ..error
        },
        None => error,
    }
}

/// Writes a cluster, every device by itself.
pub fn write_cluster(cluster: &Cluster) -> String {
    to_yaml(&ClusterFile {
        kind: "cluster".to_string(),
        version: CLUSTER_VERSION,
        types: cluster.types.clone(),
        devices: cluster.devices.iter().cloned().map(Entry::One).collect(),
        levels: cluster.levels.clone(),
        links: cluster.links.clone(),
    })
}

impl Cluster {
    /// Adds a type under the name that `own` types or the catalogue have for it.
    pub(crate) fn resolve(
        &mut self,
        name: &str,
        own: &IndexMap<String, DeviceType>,
    ) -> Result<String, ClusterError> {
        if self.types.contains_key(name) {
            return Ok(name.to_string());
        }
        let (found, device) = find_among(name, &[&self.types, own, catalogue()])?;
        let (found, device) = (found.to_string(), device.clone());
        self.types.entry(found.clone()).or_insert(device);
        Ok(found)
    }

    /// Checks constraints that the types of the fields do not express.
    ///
    /// # Errors
    /// If there are no devices, names are repeated or unknown, or a figure is out of range.
    pub fn validate(&self) -> Result<(), ClusterError> {
        if self.devices.is_empty() {
            return Err(ClusterError::NoDevices);
        }
        if self.devices.len() > DEVICES {
            return Err(ClusterError::TooMany(self.devices.len() as u64));
        }
        let positive = |what: String, field, value: f64| {
            if !(value.is_finite() && value > 0.0) {
                Err(ClusterError::Figure { what, field, value, rule: "positive" })
            } else if FIGURES.contains(&value) {
                Ok(())
            } else {
                Err(ClusterError::Beyond { what, field, value })
            }
        };
        let not_negative = |what: String, field, value: f64| {
            if !(value.is_finite() && value >= 0.0) {
                Err(ClusterError::Figure { what, field, value, rule: "not negative" })
            } else if value <= *FIGURES.end() {
                Ok(())
            } else {
                Err(ClusterError::Beyond { what, field, value })
            }
        };
        for (name, device) in &self.types {
            positive(format!("type `{name}`"), "memory", device.memory.0 as f64)?;
            positive(format!("type `{name}`"), "memory_bandwidth", device.memory_bandwidth.0)?;
            for rate in device.peak.values() {
                positive(format!("type `{name}`"), "peak", rate.0)?;
            }
            for (field, figure) in [
                ("speed", device.speed),
                ("host_bandwidth", device.host_bandwidth.map(|rate| rate.0)),
                ("link_bandwidth", device.link_bandwidth.map(|rate| rate.0)),
                ("product_slowdown", device.product_slowdown),
                ("copy_slowdown", device.copy_slowdown),
                ("attention_slowdown", device.attention_slowdown),
                ("sustained_slowdown", device.sustained_slowdown),
                ("multiprocessors", device.multiprocessors.map(f64::from)),
            ] {
                positive(format!("type `{name}`"), field, figure.unwrap_or(1.0))?;
            }
            for (field, time) in [
                ("launch", device.launch),
                ("host_call", device.host_call),
                ("host_overhead", device.host_overhead),
                ("split_overhead", device.split_overhead),
            ] {
                not_negative(format!("type `{name}`"), field, time.unwrap_or_default().0)?;
            }
        }
        let mut names = std::collections::BTreeSet::new();
        for (index, device) in self.devices.iter().enumerate() {
            if device.name.trim().is_empty() {
                return Err(ClusterError::Nameless(index));
            }
            if !names.insert(device.name.as_str()) {
                return Err(ClusterError::Duplicate(device.name.clone()));
            }
            if !self.types.contains_key(&device.type_) {
                return Err(UnknownDevice { name: device.type_.clone(), similar: Vec::new() }.into());
            }
            if device.place.len() > self.levels.len() {
                let (given, levels) = (device.place.len(), self.levels.len());
                return Err(ClusterError::Place { device: device.name.clone(), given, levels });
            }
        }
        if self.devices.len() > 1 && self.levels.is_empty() {
            return Err(ClusterError::NoLevels(self.devices.len()));
        }
        for level in &self.levels {
            positive(format!("level `{}`", level.name), "bandwidth", level.bandwidth.0)?;
            not_negative(format!("level `{}`", level.name), "latency", level.latency.0)?;
        }
        let mut joined = std::collections::BTreeSet::new();
        for link in &self.links {
            let ends = (link.from.as_str().min(&link.to), link.from.as_str().max(&link.to));
            if link.from == link.to {
                return Err(ClusterError::LinkToItself(link.from.clone()));
            }
            if !joined.insert(ends) {
                return Err(ClusterError::DuplicateLink(ends.0.to_string(), ends.1.to_string()));
            }
            for end in [&link.from, &link.to] {
                if !names.contains(end.as_str()) {
                    return Err(ClusterError::UnknownDevice(end.clone()));
                }
            }
            let what = format!("link `{}` to `{}`", link.from, link.to);
            positive(what.clone(), "bandwidth", link.bandwidth.0)?;
            not_negative(what, "latency", link.latency.0)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "kind: cluster\nversion: 1\n";
    const LEVELS: &str = "levels:\n- {name: nvlink, bandwidth: 4.5e11, latency: 2.0e-6}\n\
                          - {name: infiniband, bandwidth: 2.5e10, latency: 5.0e-6}\n";

    #[test]
    fn groups_and_single_devices_are_read() {
        let text = format!(
            "{HEAD}devices:\n- {{type: h100, count: 2, nodes: 2}}\n- {{name: odd, type: t4, place: [2]}}\n{LEVELS}"
        );
        let cluster = read_cluster(&text, &IndexMap::new()).unwrap();
        let names: Vec<_> = cluster.devices.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["node0:0", "node0:1", "node1:0", "node1:1", "odd"]);
        let level = |one: usize, other: usize| {
            crate::level_of(&cluster.devices[one].place, &cluster.devices[other].place, cluster.levels.len())
        };
        assert_eq!([level(0, 1), level(1, 2)], [0, 1]);
        assert_eq!(read_cluster(&write_cluster(&cluster), &IndexMap::new()), Ok(cluster));
    }

    #[test]
    fn wrong_clusters_say_what() {
        let check = |body: &str, expected: &str| {
            let text = if body.starts_with("kind") { body.to_string() } else { format!("{HEAD}{body}") };
            assert_eq!(read_cluster(&text, &IndexMap::new()).unwrap_err().to_string(), expected);
        };
        check("kind: plan\nversion: 1\n", "this is a `plan` file, not a `cluster` file");
        check(
            "kind: cluster\nversion: 0\n",
            "cluster file version 0 is not supported, the newest supported is 1",
        );
        check(
            "kind: cluster\nversion: 9\n",
            "cluster file version 9 is not supported, the newest supported is 1",
        );
        check("devices: []\n", "the cluster has no devices");
        check("devices: [{type: h100, count: 0}]\n", "the cluster has no devices");
        check("devices: [{type: banana, count: 1}]\n", "no device is called `banana`");
        check("devices: [{type: t4, count: 2}]\n", "the cluster has 2 devices but no level that joins them");
        check(
            "devices: [{type: t4, count: 2}]\nlevels: [{name: pcie, bandwidth: 0, latency: 0}]\n",
            "level `pcie`: bandwidth is 0; it must be a positive number",
        );
        let twice = "{from: \"node0:0\", to: \"node0:1\", bandwidth: 1, latency: 0}";
        let back = "{from: \"node0:1\", to: \"node0:0\", bandwidth: 2, latency: 0}";
        check(
            &format!("devices: [{{type: t4, count: 2}}]\n{LEVELS}links: [{twice}, {back}]\n"),
            "the link between `node0:0` and `node0:1` is given twice",
        );
        check(
            &format!(
                "devices: [{{type: t4, count: 2}}]\n{LEVELS}links: [{}]\n",
                twice.replace("node0:1", "node0:0")
            ),
            "a link joins device `node0:0` with itself",
        );
        check("devices: [{name: \"\", type: t4, place: []}]\n", "device 0 has an empty name");
        check(
            "devices: [{type: t4, count: 2}]\nlevels: [{name: pcie, bandwidth: 1.0e+300, latency: 0}]\n",
            "level `pcie`: bandwidth is 1e300; figures are between 1e-30 and 1e30",
        );
        check(
            "devices: [{type: t4, count: 2}]\nlevels: [{name: pcie, bandwidth: 1.0e+9, latency: 1.0e+40}]\n",
            "level `pcie`: latency is 1e40; figures are between 1e-30 and 1e30",
        );
        let typed = |figure: &str| {
            let own = format!("memory: 1000, memory_bandwidth: 1.0e+9, peak: {{float32: 1.0e+9}}, {figure}");
            format!("types: {{own: {{{own}}}}}\ndevices: [{{type: own, count: 1}}]\n")
        };
        for field in ["product_slowdown", "copy_slowdown", "attention_slowdown", "sustained_slowdown"] {
            let expected = format!("type `own`: {field} is -1; it must be a positive number");
            check(&typed(&format!("{field}: -1")), &expected);
        }
        for field in ["launch", "host_call", "host_overhead", "split_overhead"] {
            let expected = format!("type `own`: {field} is NaN; it must be a not negative number");
            check(&typed(&format!("{field}: .nan")), &expected);
        }
        check(&typed("link_bandwidth: 0"), "type `own`: link_bandwidth is 0; it must be a positive number");
        check(&typed("multiprocessors: 0"), "type `own`: multiprocessors is 0; it must be a positive number");
        check(
            &format!(
                "devices: [{{type: t4, count: 2}}]\n{LEVELS}links: [{{from: a, to: b, bandwidth: 1, latency: 0}}]\n"
            ),
            "a link names device `a`, which is not in the cluster",
        );
    }
}
