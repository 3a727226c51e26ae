//! Sums over the ideals of a Piper workload: a lower bound in O(1) of any stage between two of them.
//!
//! A stage's sum is that of one ideal less that of an ideal inside it. Sums round, so a little is taken off each answer.

use std::collections::HashMap;

use schema::PiperImplementation;

use partitioner::Ideals;

/// The most numbers that are kept for memory; beyond, there is no bound.
const NUMBERS: usize = 1 << 21;
/// Rounding error of a sum, as a share of the whole.
const ROUNDING: f64 = 1e-12;

/// By degree, then node: implementations.
type Implementations<'a> = [Vec<Vec<&'a PiperImplementation>>];

/// The sums.
pub(crate) struct Sums {
    /// By degree, then ideal: least compute, and nodes without an implementation.
    compute: Vec<Vec<(f64, u32)>>,
    /// By degree and micro-batches in flight, then ideal: least memory.
    memory: HashMap<(usize, u32), Vec<f64>>,
}

impl Sums {
    /// Sums up compute.
    pub(crate) fn new(ideals: &Ideals, implementations: &Implementations<'_>) -> Self {
        let of_degree = |by_node: &Vec<Vec<&PiperImplementation>>| {
            let least: Vec<Option<f64>> = by_node
                .iter()
                .map(|choices| choices.iter().map(|choice| choice.time).reduce(f64::min))
                .collect();
            let of_ideal = |ideal| {
                ideals.nodes(ideal).fold((0.0, 0), |(sum, lacking), node| match least[node] {
                    Some(time) => (sum + time, lacking),
                    None => (sum, lacking + 1),
                })
            };
            (0..ideals.len()).map(of_ideal).collect()
        };
        Self { compute: implementations.iter().map(of_degree).collect(), memory: HashMap::new() }
    }

    /// Tells the least compute of a stage; none where a node has no implementation.
    pub(crate) fn compute(&self, degree: usize, start: usize, end: usize) -> Option<f64> {
        let sums = &self.compute[degree];
        (sums[start].1 == sums[end].1).then(|| sums[end].0 * (1.0 - ROUNDING) - sums[start].0)
    }

    /// Tells the least memory of a stage.
    pub(crate) fn memory(
        &mut self,
        ideals: &Ideals,
        implementations: &Implementations<'_>,
        degree: usize,
        in_flight: u32,
        start: usize,
        end: usize,
    ) -> f64 {
        let is_full = (self.memory.len() + 1) * ideals.len() > NUMBERS;
        let sums = match self.memory.entry((degree, in_flight)) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(_) if is_full => return 0.0,
            std::collections::hash_map::Entry::Vacant(entry) => {
                let y = f64::from(in_flight);
                let least = implementations[degree].iter().map(|choices| {
                    let memory =
                        choices.iter().map(|choice| choice.memory_in_flight * y + choice.memory_fixed);
                    memory.reduce(f64::min).unwrap_or(0.0)
                });
                let least: Vec<f64> = least.collect();
                let of_ideal = |ideal| ideals.nodes(ideal).map(|node| least[node]).sum();
                entry.insert((0..ideals.len()).map(of_ideal).collect())
            }
        };
        sums[end] * (1.0 - ROUNDING) - sums[start]
    }
}
