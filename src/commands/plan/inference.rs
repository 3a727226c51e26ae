//! The forward pass alone: memory of operators, keys and values that generation keeps, and the answer about them.

use graph::{ModelGraph, OperatorId};
use partitioner::{ForwardOnly, Problem, Solution, cache_growth};
use schema::{Bytes, Inference, InferenceAnswer, KvCacheAnswer, MemoryPart};

use crate::failure::Failure;

/// Costs of a model's forward pass.
#[derive(Clone)]
pub(super) struct Forward {
    inference: Inference,
    /// Per operator.
    pub(super) operators: ForwardOnly,
    /// Attentions that keep keys and values.
    attentions: u64,
    /// Bytes that they keep per position, over all sequences of a micro-batch.
    bytes_per_position: u64,
}

impl Forward {
    /// Finds the attentions whose keys and values are to be kept.
    ///
    /// # Errors
    /// If there are none.
    pub(super) fn of(graph: &ModelGraph, inference: Inference) -> Result<Self, Failure> {
        let mut operators =
            ForwardOnly { alive: graph::forward_memory(graph), caches: vec![0; graph.operators.len()] };
        let (mut attentions, mut bytes_per_position) = (0, 0_u64);
        if let Some(tokens) = inference.kv_cache {
            for cache in graph::attention_caches(graph) {
                attentions += 1;
                bytes_per_position = bytes_per_position.saturating_add(cache.bytes_per_position);
                let kept = &mut operators.caches[cache.operator.index()];
                *kept = kept.saturating_add(cache.bytes_per_position.saturating_mul(tokens));
            }
            if attentions == 0 {
                return Err(Failure::input("--kv-cache: the model has no attention that was recognised")
                    .with_hint("attention is torch's scaled_dot_product_attention, or two products with a softmax between"));
            }
        }
        Ok(Self { inference, operators, attentions, bytes_per_position })
    }

    /// Returns the answer about a plan; `samples` are those of a micro-batch.
    pub(super) fn answer(
        &self,
        problem: &Problem,
        solution: &Solution,
        samples: Option<u64>,
    ) -> InferenceAnswer {
        let kv_cache = self.inference.kv_cache.map(|tokens| {
            let growth = cache_growth(problem, solution);
            KvCacheAnswer {
                tokens,
                attentions: self.attentions,
                bytes_per_token: Bytes(self.bytes_per_position / samples.unwrap_or(1).max(1)),
                sequences: samples.map(|samples| samples * u64::from(solution.micro_batches)),
                // Sums are rounded down: every token counted fits.
                most_tokens: growth
                    .map(|growth| ((tokens as f64 * growth * (1.0 - 1e-12)) as u64).max(tokens)),
            }
        });
        InferenceAnswer { objective: self.inference.objective, kv_cache }
    }
}

/// Returns the seconds along the longest path of operators.
pub(super) fn longest_path(graph: &ModelGraph, seconds: impl Fn(usize) -> f64) -> f64 {
    let mut ends = vec![0.0_f64; graph.operators.len()];
    let mut longest = 0.0_f64;
    for operator in &graph.operators {
        let producers = operator.inputs.iter().filter_map(|input| graph.value(*input).producer);
        let start = producers.map(|OperatorId(before)| ends[before as usize]).fold(0.0, f64::max);
        let end = start + seconds(operator.id.index());
        ends[operator.id.index()] = end;
        longest = longest.max(end);
    }
    longest
}

/// Renames the parts of each device's memory for a forward pass.
pub(super) fn renamed(mut memory: Vec<Vec<MemoryPart>>) -> Vec<Vec<MemoryPart>> {
    for part in memory.iter_mut().flatten() {
        match part.name.as_str() {
            "activations" => part.name = "keys and values".into(),
            "workspace" => part.name = "results alive".into(),
            _ => {}
        }
    }
    memory
}
