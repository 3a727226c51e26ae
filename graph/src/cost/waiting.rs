//! What gradients of weights are made of: where they are made later than those of the inputs, it waits for them.
//!
//! Stages put off products with weights (`linear`, `addmm`, convolutions): their operand and the gradient of their result stay.
//! Other gradients of parameters are made with those of the inputs.

use std::collections::HashSet;

use operators::Keeps;

use super::lookup::{Lookup, parameter_of};
use crate::{
    fact::{StorageId, TensorFact},
    infer::Call,
    model::{Operator, Origin},
};

/// The operand and the result of a product with weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waits {
    operand: Option<StorageId>,
    operand_bytes: u64,
    result_bytes: u64,
}

/// Returns what the gradient of an operator's weights is made of; `None` if it has none that can wait.
pub(super) fn of(lookup: &Lookup<'_>, operator: &Operator, call: &Call<'_>) -> Option<Waits> {
    let (operand, weight) = match call.row()?.keeps {
        Keeps::Linear | Keeps::Convolution => (call.first().ok(), call.tensor("weight").ok()),
        Keeps::AddedFactors => (call.tensor("mat1").ok(), call.tensor("mat2").ok()),
        _ => return None,
    };
    let graph = lookup.graph;
    let is_trained =
        |weight: &TensorFact| parameter_of(graph, weight).is_some_and(|id| graph.tensor(id).requires_grad);
    weight.filter(|weight| is_trained(weight))?;
    let made = operand.and_then(|operand| operand.storage);
    let made = made.filter(|storage| !matches!(graph.storage(*storage).origin, Origin::Stored(_)));
    Some(Waits {
        operand: made,
        operand_bytes: made.and_then(|storage| graph.storage(storage).bytes).unwrap_or(0),
        result_bytes: lookup.result(operator).and_then(TensorFact::bytes).unwrap_or(0),
    })
}

/// Adds up what some operators wait with: operands that several have count once.
pub(super) fn sum(waits: &[Option<Waits>]) -> u64 {
    let mut seen = HashSet::new();
    waits.iter().flatten().fold(0, |sum: u64, own| {
        let is_new = own.operand.is_some_and(|operand| seen.insert(operand));
        let operand = if is_new { own.operand_bytes } else { 0 };
        sum.saturating_add(operand).saturating_add(own.result_bytes)
    })
}
