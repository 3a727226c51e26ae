//! Piper's JSON: nodes with a choice of implementations per tensor-parallel degree, and edges in bytes.
//!
//! An implementation (the authors' TMPC) has a time, a parameter size and memory `A·y + B` for `y` micro-batches in
//! flight. Its `syncTimeFw` and `syncTimeBw` are bytes too, by neighbouring node.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Deserialize;

use crate::{
    dag,
    profile_graph_error::{ProfileGraphError, ProfileGraphFault, ProfileGraphPlace, excerpt},
};

/// A workload.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct PiperWorkload {
    /// Devices.
    #[serde(rename = "maxDevices")]
    pub n_devices: u32,
    /// Memory of one device.
    #[serde(rename = "maxMemoryPerDevice")]
    pub memory: f64,
    /// Bytes per second between any two devices.
    pub bandwidth: f64,
    /// Micro-batches per batch.
    #[serde(rename = "mbsInBatch")]
    pub micro_batches: u32,
    /// Layers.
    pub nodes: Vec<PiperNode>,
    /// Dependencies. Invariant: no cycles, no duplicates.
    pub edges: Vec<PiperEdge>,
}

/// One layer.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct PiperNode {
    /// Number that edges use.
    pub id: i64,
    /// Name for people.
    #[serde(default)]
    pub name: String,
    /// Implementations by tensor-parallel degree.
    #[serde(rename = "TMPCs")]
    pub implementations: BTreeMap<u32, Vec<PiperImplementation>>,
}

/// One way to run a layer.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct PiperImplementation {
    /// `vanilla` or `activation recomp`.
    pub id: String,
    /// Time per micro-batch.
    #[serde(rename = "timePerSample")]
    pub time: f64,
    /// Bytes that data parallelism synchronises.
    #[serde(rename = "parameterSize")]
    pub parameters: f64,
    /// Bytes of memory per micro-batch in flight.
    #[serde(rename = "memoryUsageA")]
    pub memory_in_flight: f64,
    /// Fixed bytes of memory.
    #[serde(rename = "memoryUsageB")]
    pub memory_fixed: f64,
    /// Additional bytes on an edge from this node if it is cut.
    #[serde(rename = "syncTimeFw", default)]
    pub sync_forward: BTreeMap<i64, f64>,
    /// Additional bytes on an edge to this node if it is cut.
    #[serde(rename = "syncTimeBw", default)]
    pub sync_backward: BTreeMap<i64, f64>,
}

/// A dependency.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct PiperEdge {
    /// The node that makes the value.
    #[serde(rename = "sourceId")]
    pub source: i64,
    /// The node that consumes it.
    #[serde(rename = "destId")]
    pub target: i64,
    /// Bytes.
    #[serde(rename = "communicationCost")]
    pub bytes: f64,
}

/// The most nodes that are read.
const LIMIT: usize = 100_000;

impl PiperWorkload {
    /// Reads a workload.
    ///
    /// # Errors
    /// If the JSON is not of this form, a number is negative, a node or edge is given twice, an edge names an unknown
    /// node, or the edges have a cycle.
    pub fn from_text(text: &str) -> Result<Self, ProfileGraphError> {
        let workload: Self = serde_json::from_str(text).map_err(|error| ProfileGraphError {
            fault: ProfileGraphFault::Json(error.to_string()),
            place: ProfileGraphPlace::File,
        })?;
        workload.validate()?;
        Ok(workload)
    }

    /// Tells whether a text looks like such a workload.
    pub fn looks_like(text: &str) -> bool {
        text.trim_start().starts_with('{') && text.contains("\"TMPCs\"")
    }

    fn validate(&self) -> Result<(), ProfileGraphError> {
        let at = |place: String, fault| ProfileGraphError { fault, place: ProfileGraphPlace::Field(place) };
        let limit = |field: &'static str, value: f64| {
            at(field.into(), ProfileGraphFault::BadLimit { field, value: value.to_string() })
        };
        if self.nodes.is_empty() {
            return Err(at("nodes".into(), ProfileGraphFault::Empty));
        }
        if self.nodes.len() > LIMIT || self.edges.len() > 4 * LIMIT {
            return Err(at("nodes".into(), ProfileGraphFault::TooMany { what: "nodes", limit: LIMIT }));
        }
        if self.n_devices == 0 || self.n_devices > 1_000_000 {
            return Err(limit("maxDevices", f64::from(self.n_devices)));
        }
        if self.micro_batches == 0 || self.micro_batches > 100_000_000 {
            return Err(limit("mbsInBatch", f64::from(self.micro_batches)));
        }
        if self.memory.is_nan() || self.memory <= 0.0 {
            return Err(limit("maxMemoryPerDevice", self.memory));
        }
        if self.bandwidth.is_nan() || self.bandwidth <= 0.0 {
            return Err(limit("bandwidth", self.bandwidth));
        }
        let mut by_id = HashMap::new();
        for (position, node) in self.nodes.iter().enumerate() {
            if by_id.insert(node.id, position).is_some() {
                return Err(at(
                    format!("nodes[{position}].id"),
                    ProfileGraphFault::Duplicate(node.id.to_string()),
                ));
            }
            for (degree, implementations) in &node.implementations {
                for (which, implementation) in implementations.iter().enumerate() {
                    let syncs =
                        implementation.sync_forward.values().chain(implementation.sync_backward.values());
                    let numbers = [
                        ("timePerSample", implementation.time),
                        ("parameterSize", implementation.parameters),
                        ("memoryUsageA", implementation.memory_in_flight),
                        ("memoryUsageB", implementation.memory_fixed),
                    ];
                    let numbers = numbers.into_iter().chain(syncs.map(|&value| ("syncTime", value)));
                    for (field, value) in numbers {
                        if !(0.0..1e30).contains(&value) {
                            let node = format!("node `{}`", excerpt(&node.name));
                            return Err(at(
                                format!("nodes[{position}].TMPCs.{degree}[{which}].{field}"),
                                ProfileGraphFault::BadNumber { field, node, value: value.to_string() },
                            ));
                        }
                    }
                }
            }
        }
        let mut edges = BTreeSet::new();
        for (position, edge) in self.edges.iter().enumerate() {
            let place = |field: &str| format!("edges[{position}].{field}");
            let mut ends = [0; 2];
            for (end, (field, id)) in
                ends.iter_mut().zip([("sourceId", edge.source), ("destId", edge.target)])
            {
                *end = *by_id
                    .get(&id)
                    .ok_or_else(|| at(place(field), ProfileGraphFault::UnknownNode(id.to_string())))?;
            }
            if !(0.0..1e30).contains(&edge.bytes) {
                let fault = ProfileGraphFault::BadNumber {
                    field: "communicationCost",
                    node: format!("edge {position}"),
                    value: edge.bytes.to_string(),
                };
                return Err(at(place("communicationCost"), fault));
            }
            if !edges.insert((ends[0], ends[1])) {
                let fault =
                    ProfileGraphFault::DuplicateEdge(edge.source.to_string(), edge.target.to_string());
                return Err(at(format!("edges[{position}]"), fault));
            }
        }
        let edges: Vec<_> = edges.into_iter().collect();
        if let Err(cycle) = dag::topological_order(self.nodes.len(), &edges) {
            let names = cycle.iter().map(|&node| self.nodes[node].id.to_string()).collect();
            return Err(at("edges".into(), ProfileGraphFault::Cycle(names)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> String {
        let node = |id: u32| {
            format!(
                r#"{{"id": {id}, "TMPCs": {{"1": [{{"id": "vanilla", "timePerSample": 1.0, "parameterSize": 2,
                "memoryUsageA": 3, "memoryUsageB": 4, "syncTimeFw": {{}}, "syncTimeBw": {{}}}}]}}}}"#
            )
        };
        format!(
            r#"{{"maxDevices": 2, "maxMemoryPerDevice": 10, "bandwidth": 1e9, "mbsInBatch": 4, "nodes": [{}, {}],
            "edges": [{{"sourceId": 1, "destId": 2, "communicationCost": 5}}]}}"#,
            node(1),
            node(2)
        )
    }

    #[test]
    fn reads_degrees_as_numbers() {
        let workload = PiperWorkload::from_text(&text()).unwrap();
        assert_eq!(workload.nodes[1].implementations[&1][0].memory_fixed, 4.0);
    }

    #[test]
    fn wrong_workloads_say_what_and_where() {
        let check = |from: &str, to: &str, expected: &str| {
            let error = PiperWorkload::from_text(&text().replace(from, to)).unwrap_err();
            assert_eq!(error.to_string(), expected);
        };
        check("1e9", "0", "bandwidth: `bandwidth` is 0, which leaves nothing to plan with");
        check("\"id\": 2", "\"id\": 1", "nodes[1].id: node `1` is given twice");
        check(
            "\"memoryUsageA\": 3",
            "\"memoryUsageA\": -3",
            "nodes[0].TMPCs.1[0].memoryUsageA: `memoryUsageA` of node `` is -3; it must be a number that is not negative",
        );
        check(
            "\"destId\": 2",
            "\"destId\": 7",
            "edges[0].destId: edge names node `7`, which is not in the profile",
        );
    }
}
