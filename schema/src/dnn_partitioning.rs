//! The JSON of the dnn-partitioning workloads: accelerators and CPUs, nodes with latencies, edges with costs.
//!
//! An edge's cost belongs to its source: it is the same on all its out-edges and is paid once per device. Flags are
//! booleans in some files and 0 and 1 in others.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Deserializer};

use crate::{
    dag,
    profile_graph_error::{ProfileGraphError, ProfileGraphFault, ProfileGraphPlace, excerpt},
};

/// A workload.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct DnnWorkload {
    /// Memory of one accelerator.
    #[serde(rename = "maxSizePerFPGA")]
    pub accelerator_memory: f64,
    /// Accelerators.
    #[serde(rename = "maxFPGAs")]
    pub n_accelerators: u32,
    /// CPUs.
    #[serde(rename = "maxCPUs")]
    pub n_cpus: u32,
    /// Operators or layers.
    pub nodes: Vec<DnnNode>,
    /// Dependencies. Invariant: they name existing nodes and have no cycles.
    pub edges: Vec<DnnEdge>,
}

/// One operator or layer, or its backward pass.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct DnnNode {
    /// Number that edges use.
    pub id: i64,
    /// Name for people.
    #[serde(default)]
    pub name: String,
    /// Whether an accelerator can run it.
    #[serde(rename = "supportedOnFpga", deserialize_with = "flag")]
    pub runs_on_accelerator: bool,
    /// Time on a CPU.
    #[serde(rename = "cpuLatency")]
    pub cpu: f64,
    /// Time on an accelerator.
    #[serde(rename = "fpgaLatency")]
    pub accelerator: f64,
    /// Whether it is part of the backward pass.
    #[serde(rename = "isBackwardNode", deserialize_with = "flag")]
    pub is_backward: bool,
    /// Nodes of one class must be on one device.
    #[serde(rename = "colorClass", default)]
    pub class: Option<i64>,
    /// Memory on an accelerator.
    #[serde(default)]
    pub size: f64,
}

/// A dependency.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct DnnEdge {
    /// The node that makes the value.
    #[serde(rename = "sourceId")]
    pub source: i64,
    /// The node that consumes it.
    #[serde(rename = "destId")]
    pub target: i64,
    /// Time to move the value, the same on all edges of one source.
    pub cost: f64,
}

fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Flag {
        Word(bool),
        Number(f64),
    }
    Ok(match Flag::deserialize(deserializer)? {
        Flag::Word(value) => value,
        Flag::Number(value) => value != 0.0,
    })
}

/// The most nodes that are read.
const LIMIT: usize = 200_000;

impl DnnWorkload {
    /// Reads a workload.
    ///
    /// # Errors
    /// If the JSON is not of this form, a number is negative, a node is given twice, an edge names an unknown node, the
    /// edges have a cycle, or one source has two costs.
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
        text.trim_start().starts_with('{') && text.contains("\"maxFPGAs\"")
    }

    fn validate(&self) -> Result<(), ProfileGraphError> {
        let at = |place: String, fault| ProfileGraphError { fault, place: ProfileGraphPlace::Field(place) };
        if self.nodes.is_empty() {
            return Err(ProfileGraphError {
                fault: ProfileGraphFault::Empty,
                place: ProfileGraphPlace::Field("nodes".into()),
            });
        }
        if self.nodes.len() > LIMIT || self.edges.len() > 4 * LIMIT {
            let fault = ProfileGraphFault::TooMany { what: "nodes", limit: LIMIT };
            return Err(ProfileGraphError { fault, place: ProfileGraphPlace::Field("nodes".into()) });
        }
        if self.accelerator_memory.is_nan() || self.accelerator_memory <= 0.0 {
            let value = self.accelerator_memory.to_string();
            let fault = ProfileGraphFault::BadLimit { field: "maxSizePerFPGA", value };
            return Err(at("maxSizePerFPGA".into(), fault));
        }
        if self.n_accelerators.saturating_add(self.n_cpus) == 0
            || self.n_accelerators.max(self.n_cpus) > 100_000
        {
            let value = self.n_accelerators.to_string();
            return Err(at("maxFPGAs".into(), ProfileGraphFault::BadLimit { field: "maxFPGAs", value }));
        }
        let mut by_id = HashMap::new();
        for (position, node) in self.nodes.iter().enumerate() {
            let place = |field: &str| format!("nodes[{position}].{field}");
            if by_id.insert(node.id, position).is_some() {
                return Err(at(place("id"), ProfileGraphFault::Duplicate(node.id.to_string())));
            }
            for (field, value) in
                [("cpuLatency", node.cpu), ("fpgaLatency", node.accelerator), ("size", node.size)]
            {
                if !(0.0..1e30).contains(&value) {
                    let node = format!("node `{}`", excerpt(&node.name));
                    let fault = ProfileGraphFault::BadNumber { field, node, value: value.to_string() };
                    return Err(at(place(field), fault));
                }
            }
        }
        let mut edges = BTreeSet::new();
        let mut costs: HashMap<i64, f64> = HashMap::new();
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
            if !(0.0..1e30).contains(&edge.cost) {
                let node = format!("edge {position}");
                let fault =
                    ProfileGraphFault::BadNumber { field: "cost", node, value: edge.cost.to_string() };
                return Err(at(place("cost"), fault));
            }
            if (costs.entry(edge.source).or_insert(edge.cost).to_owned() - edge.cost).abs() > 1e-6 {
                let rule = format!("node `{}` has out-edges of two costs; the format has one", edge.source);
                return Err(at(place("cost"), ProfileGraphFault::Rule(rule)));
            }
            if self.nodes[ends[0]].is_backward && !self.nodes[ends[1]].is_backward {
                let rule = format!(
                    "an edge leads back from backward node `{}` to forward node `{}`",
                    edge.source, edge.target
                );
                return Err(at(place("destId"), ProfileGraphFault::Rule(rule)));
            }
            edges.insert((ends[0], ends[1]));
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

    fn workload(second: &str, edges: &str) -> Result<DnnWorkload, ProfileGraphError> {
        DnnWorkload::from_text(&format!(
            r#"{{"maxSizePerFPGA": 8.0, "maxFPGAs": 2, "maxCPUs": 0, "nodes": [
            {{"id": 1, "supportedOnFpga": 1, "cpuLatency": 1, "fpgaLatency": 1.0, "isBackwardNode": false, "size": 1}},
            {second}], "edges": [{edges}]}}"#
        ))
    }

    const SECOND: &str =
        r#"{"id": 2, "supportedOnFpga": true, "cpuLatency": 1, "fpgaLatency": 2.0, "isBackwardNode": 0}"#;

    #[test]
    fn flags_may_be_numbers_or_words() {
        let read = workload(SECOND, r#"{"sourceId": 1, "destId": 2, "cost": 0.5}"#).unwrap();
        assert!(read.nodes.iter().all(|node| node.runs_on_accelerator && !node.is_backward));
    }

    #[test]
    fn wrong_workloads_say_what_and_where() {
        let check = |second: &str, edges: &str, expected: &str| {
            assert_eq!(workload(second, edges).unwrap_err().to_string(), expected);
        };
        check(&SECOND.replace("\"id\": 2", "\"id\": 1"), "", "nodes[1].id: node `1` is given twice");
        check(
            &SECOND.replace("2.0", "-2.0"),
            "",
            "nodes[1].fpgaLatency: `fpgaLatency` of node `` is -2; it must be a number that is not negative",
        );
        check(
            SECOND,
            r#"{"sourceId": 1, "destId": 3, "cost": 0.5}"#,
            "edges[0].destId: edge names node `3`, which is not in the profile",
        );
        check(
            SECOND,
            r#"{"sourceId": 1, "destId": 2, "cost": 1}, {"sourceId": 2, "destId": 1, "cost": 1}"#,
            "edges: the graph has a cycle: 1 → 2 → 1",
        );
    }
}
