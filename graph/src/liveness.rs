//! Liveness: the tensors that cross each cut of the execution order because an operator after the cut reads them.
//!
//! ```text
//! position   0   1   2   3   4          cut 2 stands between operator 1 and operator 2
//! conv1      ■───────────────┐          conv1's result lives over cuts 1, 2, 3, 4: a skip
//! conv2          ■───┐       │
//! relu               ■───┐   │
//! add                    ■◄──┘
//! ```
//!
//! Linear in values for all cuts.

use tracer::ValueId;

use crate::{OperatorId, fact::Fact, model::ModelGraph};

/// A tensor and the cuts that it crosses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// The value.
    pub value: ValueId,
    /// The first cut that it crosses.
    pub from: u32,
    /// The last cut that it crosses.
    pub to: u32,
    /// Bytes of its elements; 0 if a size is unknown.
    pub bytes: u64,
    /// True for an input of the model, which a later stage can also receive directly.
    pub is_input: bool,
    /// True for the model's outputs: they live to the end.
    pub is_output: bool,
}

/// Lifetimes of every tensor value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Liveness {
    /// By first cut, then by value.
    pub lifetimes: Vec<Lifetime>,
    /// Bytes of operators' results that cross each cut; `n + 1` cuts for `n` operators. Model inputs are not counted.
    pub bytes: Vec<u64>,
    /// Number of operators' results that cross each cut.
    pub counts: Vec<u32>,
}

/// Computes the tensors that cross each cut.
pub fn liveness(graph: &ModelGraph) -> Liveness {
    let n = graph.operators.len();
    let mut is_output = vec![false; graph.values.len()];
    graph.outputs.iter().for_each(|value| is_output[value.index()] = true);
    let mut lifetimes = Vec::new();
    for value in graph.values.iter().filter(|value| !value.fact.tensors().is_empty()) {
        let from = value.producer.map_or(0, |producer| producer.0 + 1);
        let last = value.consumers.last().map(|consumer| consumer.0);
        let to = if is_output[value.id.index()] { Some(n as u32) } else { last };
        if let Some(to) = to.filter(|to| *to >= from) {
            lifetimes.push(Lifetime {
                value: value.id,
                from,
                to,
                bytes: bytes(&value.fact),
                is_input: value.producer.is_none(),
                is_output: is_output[value.id.index()],
            });
        }
    }
    lifetimes.sort_by_key(|lifetime| (lifetime.from, lifetime.value));
    let (mut bytes, mut counts) = (vec![0_i128; n + 2], vec![0_i64; n + 2]);
    for lifetime in lifetimes.iter().filter(|lifetime| !lifetime.is_input) {
        bytes[lifetime.from as usize] += i128::from(lifetime.bytes);
        bytes[lifetime.to as usize + 1] -= i128::from(lifetime.bytes);
        counts[lifetime.from as usize] += 1;
        counts[lifetime.to as usize + 1] -= 1;
    }
    for cut in 1..n + 2 {
        bytes[cut] += bytes[cut - 1];
        counts[cut] += counts[cut - 1];
    }
    Liveness {
        lifetimes,
        bytes: bytes[..=n].iter().map(|bytes| u64::try_from(*bytes).unwrap_or(u64::MAX)).collect(),
        counts: counts[..=n].iter().map(|count| u32::try_from(*count).unwrap_or(u32::MAX)).collect(),
    }
}

impl Liveness {
    /// Returns the tensors that cross one cut, in order of creation. Cut `c` is before operator `c`.
    pub fn crossing(&self, cut: u32) -> impl Iterator<Item = &Lifetime> {
        let created = self.lifetimes.partition_point(|lifetime| lifetime.from <= cut);
        self.lifetimes[..created].iter().filter(move |lifetime| cut <= lifetime.to)
    }

    /// Returns the cut before an operator.
    pub fn cut_before(&self, operator: OperatorId) -> u32 {
        operator.0
    }
}

fn bytes(fact: &Fact) -> u64 {
    fact.tensors().iter().map(|tensor| tensor.bytes().unwrap_or(0)).fold(0, u64::saturating_add)
}
