//! Results that are dear to compute and small to keep: what a block may keep where the rest of it is computed again.
//!
//! These are results of fused attention, and of products with weights and convolutions with at least [`DEAR`] operations for
//! each of their bytes, whatever the number of samples. Whatever lies between them (norms, activations, sums, copies, scores of attention that is written out) takes
//! little time for the memory that it holds. Left out is what may differ when the rest runs again: results that another operator
//! overwrites, and attention that draws random numbers. Linear in operands.

use std::ops::Range;

use operators::OperatorClass;

use super::{lookup::Lookup, operator_cost::OperatorCost, saved::statistics_of_attention};
use crate::{
    fact::{Fact, StorageId, TensorFact},
    flow::written,
    infer::{Call, attention_by_parts},
    model::{Operator, OperatorId, Origin, Storage},
};

/// Operations for each byte of a result below which it is made again: about what an element-wise operator takes.
const DEAR: u64 = 16;

/// What a dear result takes if it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dear {
    /// Bytes.
    bytes: u64,
    /// The part of them that the operator's own backward pass needs.
    own: u64,
    /// The first operator whose backward pass needs the rest, too.
    keeper: Option<OperatorId>,
}

/// Bytes of the dear results of a run of operators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DearBytes {
    /// All of them.
    pub all: u64,
    /// Those that the run saves for its backward pass anyway.
    pub saved: u64,
}

/// Finds the dear results of a model, by operator.
pub(super) fn results(
    lookup: &Lookup<'_>,
    costs: &[OperatorCost],
    keepers: &[Option<OperatorId>],
) -> Vec<Option<Dear>> {
    let graph = lookup.graph;
    let mut is_overwritten = vec![false; graph.storages.len()];
    for storage in graph.operators.iter().filter_map(|operator| written(graph, operator)) {
        is_overwritten[storage.index()] = true;
    }
    let is_weights = weights(lookup);
    let of = |operator: &Operator| {
        if !can_be(operator) {
            return None;
        }
        let result = lookup.result(operator)?;
        let storage = result.storage?;
        let bytes = graph.storage(storage).bytes?;
        let is_attention = operator.class == OperatorClass::Attention;
        let is_much = costs[operator.id.index()].forward_flops >= bytes.saturating_mul(DEAR);
        let is_dear = result.requires_grad
            && graph.storage(storage).origin == Origin::Made(operator.id)
            && !is_overwritten[storage.index()]
            && (is_attention || is_much)
            && is_repeatable(&is_weights, operator, &lookup.call(operator));
        let own = if is_attention { statistics_of_attention(result)? } else { 0 };
        let dear = Dear { bytes: bytes.saturating_add(own), own, keeper: keepers[storage.index()] };
        is_dear.then_some(dear)
    };
    graph.operators.iter().map(of).collect()
}

/// Adds up the dear results of a run of operators.
pub(super) fn sum(dear: &[Option<Dear>], run: &Range<u32>) -> DearBytes {
    let own = dear[run.start as usize..run.end as usize].iter().flatten();
    own.fold(DearBytes::default(), |sum, result| {
        let is_saved = result.keeper.is_some_and(|keeper| run.contains(&(keeper.index() as u32)));
        let saved = if is_saved { result.bytes } else { result.own };
        DearBytes { all: sum.all.saturating_add(result.bytes), saved: sum.saved.saturating_add(saved) }
    })
}

/// Tells whether an operator is of a family whose results may be dear.
fn can_be(operator: &Operator) -> bool {
    use OperatorClass::{Attention, Convolution, Matmul};
    matches!(operator.class, Matmul | Convolution | Attention)
}

/// Tells for each storage whether it holds weights: as stored, or made of nothing else, as autocast's copies in another type.
fn weights(lookup: &Lookup<'_>) -> Vec<bool> {
    let graph = lookup.graph;
    let is_stored = |storage: &Storage| matches!(storage.origin, Origin::Stored(_));
    let mut is_weights: Vec<bool> = graph.storages.iter().map(is_stored).collect();
    for operator in &graph.operators {
        let Some(made) = lookup.result(operator).and_then(|result| result.storage) else { continue };
        if graph.storage(made).origin != Origin::Made(operator.id) {
            continue;
        }
        let call = lookup.call(operator);
        let operands = call.tensors();
        let is_weight =
            |tensor: &&TensorFact| tensor.storage.is_some_and(|storage| is_weights[storage.index()]);
        is_weights[made.index()] = !operands.is_empty() && operands.iter().all(is_weight);
    }
    is_weights
}

/// Tells whether an operator computes the same each time, and with weights.
fn is_repeatable(is_weights: &[bool], operator: &Operator, call: &Call<'_>) -> bool {
    let is_weight = |storage: StorageId| is_weights[storage.index()];
    match operator.class {
        OperatorClass::Matmul => call.tensors().iter().filter_map(|tensor| tensor.storage).any(is_weight),
        OperatorClass::Convolution => true,
        OperatorClass::Attention => {
            let has_no_dropout = match call.get("dropout_p") {
                Some(Fact::Float(rate)) => *rate == Some(0.0),
                Some(Fact::Int(rate)) => *rate == Some(0),
                _ => false,
            };
            operator.name.ends_with("::scaled_dot_product_attention")
                && has_no_dropout
                && !attention_by_parts(call)
        }
        _ => false,
    }
}
