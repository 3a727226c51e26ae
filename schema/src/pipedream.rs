//! PipeDream's `graph.txt`: a profile of layers with the edges between them.
//!
//! A node is one line, `ID -- DESCRIPTION -- forward_compute_time=F, backward_compute_time=B, activation_size=A,
//! parameter_size=P[ -- stage_id=K]`, an edge is a tab and `SOURCE -- TARGET`. Times are milliseconds per minibatch,
//! sizes are bytes; `A` is the node's output and may be a list `[a; b]`. Descriptions contain commas.

use std::{collections::HashMap, ops::Range};

use crate::{
    Bytes, Seconds, dag,
    profile_graph_error::{ProfileGraphError, ProfileGraphFault, ProfileGraphPlace, excerpt},
};

/// A profile as written in `graph.txt`.
#[derive(Clone, Debug, PartialEq)]
pub struct PipedreamProfile {
    /// Nodes in the order of the file.
    pub nodes: Vec<PipedreamNode>,
    /// Edges between positions in `nodes`, in the order of the file.
    ///
    /// Invariant: no cycles, no duplicates, one component.
    pub edges: Vec<(usize, usize)>,
}

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub struct PipedreamNode {
    /// Name: `node12`.
    pub id: String,
    /// The layer as printed by Python: `Conv2d(3, 64, kernel_size=(3, 3))`.
    pub description: String,
    /// Forward pass of one minibatch.
    pub forward: Seconds,
    /// Backward pass of one minibatch.
    pub backward: Seconds,
    /// Bytes of the output for one minibatch.
    pub activations: Bytes,
    /// Bytes of the parameters.
    pub parameters: Bytes,
    /// Stage in a partitioned profile.
    pub stage: Option<u32>,
}

/// The most nodes and edges that are read.
const LIMIT: usize = 1_000_000;

const NODE: &str = "`ID -- DESCRIPTION -- forward_compute_time=…, backward_compute_time=…, activation_size=…, \
                    parameter_size=…`";

impl PipedreamProfile {
    /// Reads a profile.
    ///
    /// # Errors
    /// If a line is not of this form, a number is negative or not finite, an id is given twice, an edge names an
    /// unknown node, or the graph has a cycle or several components.
    pub fn from_text(text: &str) -> Result<Self, ProfileGraphError> {
        let mut nodes = Vec::new();
        let mut places = Vec::new();
        let mut by_id = HashMap::new();
        let mut edge_lines = Vec::new();
        let mut start = 0;
        for (number, raw) in text.split_inclusive('\n').enumerate() {
            let span = start..start + raw.trim_end().len();
            start += raw.len();
            let line = Line { text: raw.trim_end(), number: number + 1, span };
            if line.text.trim().is_empty() {
                continue;
            }
            if line.text.starts_with([' ', '\t']) {
                // An edge may precede its nodes: Python's reader does not allow it, but users write it.
                edge_lines.push(line);
                continue;
            }
            let node = line.node()?;
            if by_id.insert(node.id.clone(), nodes.len()).is_some() {
                return Err(line.error(ProfileGraphFault::Duplicate(node.id)));
            }
            nodes.push(node);
            places.push(line.place());
            if nodes.len() > LIMIT || edge_lines.len() > 4 * LIMIT {
                return Err(line.error(ProfileGraphFault::TooMany { what: "nodes", limit: LIMIT }));
            }
        }
        if nodes.is_empty() {
            return Err(ProfileGraphError {
                fault: ProfileGraphFault::Empty,
                place: ProfileGraphPlace::File,
            });
        }
        let mut edges = Vec::with_capacity(edge_lines.len());
        let mut edge_places = HashMap::new();
        for line in &edge_lines {
            let edge = line.edge(&by_id)?;
            // A layer that takes one value twice has two equal edges.
            if edge_places.insert(edge, line).is_none() {
                edges.push(edge);
            }
        }
        if let Err(cycle) = dag::topological_order(nodes.len(), &edges) {
            let names = cycle.iter().map(|&node| nodes[node].id.clone()).collect();
            let place = match cycle.as_slice() {
                [from, to, ..] => edge_places.get(&(*from, *to)).map(|line| line.place()),
                _ => None,
            };
            let place = place.unwrap_or(ProfileGraphPlace::File);
            return Err(ProfileGraphError { fault: ProfileGraphFault::Cycle(names), place });
        }
        if let Some((first, other)) = dag::disconnected(nodes.len(), &edges) {
            let fault = ProfileGraphFault::Disconnected(nodes[first].id.clone(), nodes[other].id.clone());
            return Err(ProfileGraphError { fault, place: places[other].clone() });
        }
        Ok(Self { nodes, edges })
    }

    /// Tells whether a text looks like `graph.txt`.
    pub fn looks_like(text: &str) -> bool {
        text.lines().find(|line| !line.trim().is_empty()).is_some_and(|line| {
            line.split(" -- ").nth(2).is_some_and(|fields| fields.starts_with("forward_compute_time="))
        })
    }

    /// Writes the profile in the same form.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for node in &self.nodes {
            text.push_str(&format!(
                "{} -- {} -- forward_compute_time={:.3}, backward_compute_time={:.3}, activation_size={:.1}, parameter_size={:.3}",
                node.id,
                node.description,
                node.forward.0 * 1e3,
                node.backward.0 * 1e3,
                node.activations.0 as f64,
                node.parameters.0 as f64
            ));
            if let Some(stage) = node.stage {
                text.push_str(&format!(" -- stage_id={stage}"));
            }
            text.push('\n');
        }
        for &(from, to) in &self.edges {
            text.push_str(&format!("\t{} -- {}\n", self.nodes[from].id, self.nodes[to].id));
        }
        text
    }
}

/// One line and its position.
struct Line<'a> {
    text: &'a str,
    number: usize,
    span: Range<usize>,
}

impl Line<'_> {
    fn place(&self) -> ProfileGraphPlace {
        ProfileGraphPlace::Line(self.number, self.span.clone())
    }

    fn error(&self, fault: ProfileGraphFault) -> ProfileGraphError {
        ProfileGraphError { fault, place: self.place() }
    }

    fn syntax(&self, expected: &'static str) -> ProfileGraphError {
        self.error(ProfileGraphFault::Syntax { expected, found: excerpt(self.text.trim()) })
    }

    fn node(&self) -> Result<PipedreamNode, ProfileGraphError> {
        let parts: Vec<&str> = self.text.split(" -- ").collect();
        let (id, description, fields, stage) = match parts.as_slice() {
            [id, description, fields] => (*id, *description, *fields, None),
            [id, description, fields, stage] => (*id, *description, *fields, Some(*stage)),
            _ => return Err(self.syntax(NODE)),
        };
        let fields: Vec<&str> = fields.split(", ").collect();
        let [forward, backward, activations, parameters] = fields.as_slice() else {
            return Err(self.syntax(NODE));
        };
        let milliseconds = |text, field| Ok(Seconds(self.number_in(text, field, id)? / 1e3));
        // Sizes are written as floats, `4.0 * elements`.
        let bytes = |text, field| Ok(Bytes(self.number_in(text, field, id)?.round() as u64));
        let stage = match stage.map(|text| text.trim().strip_prefix("stage_id=").map(str::parse)) {
            None => None,
            Some(Some(Ok(stage))) => Some(stage),
            Some(_) => return Err(self.syntax("`stage_id=NUMBER` as the fourth part")),
        };
        Ok(PipedreamNode {
            id: id.trim().to_string(),
            description: description.to_string(),
            forward: milliseconds(forward, "forward_compute_time")?,
            backward: milliseconds(backward, "backward_compute_time")?,
            activations: bytes(activations, "activation_size")?,
            parameters: bytes(parameters, "parameter_size")?,
            stage,
        })
    }

    /// Reads `field=NUMBER` or `field=[NUMBER; NUMBER]`, which is summed.
    fn number_in(&self, text: &str, field: &'static str, id: &str) -> Result<f64, ProfileGraphError> {
        let Some(value) = text.trim().strip_prefix(field).and_then(|rest| rest.strip_prefix('=')) else {
            return Err(self.syntax(NODE));
        };
        let list = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(value);
        let mut sum = 0.0;
        for part in list.split(';').map(str::trim) {
            match part.parse::<f64>() {
                // A layer without tensors has an empty list.
                _ if part.is_empty() && list.is_empty() && value.starts_with('[') => {}
                Ok(number) if number.is_finite() && number >= 0.0 => sum += number,
                _ => {
                    return Err(self.error(ProfileGraphFault::BadNumber {
                        field,
                        node: format!("node `{}`", excerpt(id.trim())),
                        value: excerpt(part),
                    }));
                }
            }
        }
        // Sums of a million such numbers stay finite and within 64 bits.
        if sum < 1e15 {
            return Ok(sum);
        }
        let node = format!("node `{}`", excerpt(id.trim()));
        Err(self.error(ProfileGraphFault::BadNumber { field, node, value: excerpt(value) }))
    }

    fn edge(&self, by_id: &HashMap<String, usize>) -> Result<(usize, usize), ProfileGraphError> {
        let Some((from, to)) = self.text.trim().split_once(" -- ") else {
            return Err(self.syntax("an edge, `SOURCE -- TARGET`"));
        };
        let find = |id: &str| match by_id.get(id.trim()) {
            Some(&node) => Ok(node),
            None => Err(self.error(ProfileGraphFault::UnknownNode(excerpt(id.trim())))),
        };
        Ok((find(from)?, find(to)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: &str, activations: &str) -> String {
        format!(
            "{id} -- Conv2d(3, 64, kernel_size=(3, 3)) -- forward_compute_time=1.500, \
             backward_compute_time=3.000, activation_size={activations}, parameter_size=12.000\n"
        )
    }

    #[test]
    fn reads_what_it_writes() {
        let text = format!("{}{}\tn1 -- n2\n", node("n1", "[4.0; 8.0]"), node("n2", "16.0"));
        let profile = PipedreamProfile::from_text(&text).unwrap();
        assert_eq!(profile.nodes[0].activations, Bytes(12));
        assert_eq!(profile.nodes[0].description, "Conv2d(3, 64, kernel_size=(3, 3))");
        assert_eq!(profile.edges, [(0, 1)]);
        assert_eq!(PipedreamProfile::from_text(&profile.to_text()), Ok(profile));
        assert!(PipedreamProfile::looks_like(&text));
    }

    #[test]
    fn wrong_profiles_say_what_and_where() {
        let check = |text: String, expected: &str| {
            assert_eq!(PipedreamProfile::from_text(&text).unwrap_err().to_string(), expected);
        };
        let two = format!("{}{}", node("a", "1.0"), node("b", "1.0"));
        check(String::new(), "profile: no nodes");
        check(format!("{two}{}", node("a", "1")), "line 3: node `a` is given twice");
        check(format!("{two}\ta -- c\n"), "line 3: edge names node `c`, which is not in the profile");
        check(format!("{two}\ta -- b\n\tb -- a\n"), "line 3: the graph has a cycle: a → b → a");
        check(two, "line 2: the graph is not connected: no path of edges joins `a` and `b`");
        check(
            node("a", "nan"),
            "line 1: `activation_size` of node `a` is nan; it must be a number that is not negative",
        );
        check(
            node("a", "-4.0"),
            "line 1: `activation_size` of node `a` is -4.0; it must be a number that is not negative",
        );
        check(
            node("a", "1e300"),
            "line 1: `activation_size` of node `a` is 1e300; that is too large to be measured",
        );
    }
}
