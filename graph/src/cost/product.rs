//! The cost of a product of two factors: its gradients are products of the same size.

use super::{lookup::Lookup, lookup::parameter_of, operator_cost::OperatorCost};
use crate::fact::TensorFact;

/// Adds the gradient of one factor of a product to the part it belongs to.
pub(super) fn add_backward(lookup: &Lookup<'_>, cost: &mut OperatorCost, factor: &TensorFact, flops: u64) {
    if !factor.requires_grad {
        return;
    }
    let part = match parameter_of(lookup.graph, factor) {
        Some(_) => &mut cost.backward_flops_weight,
        None => &mut cost.backward_flops_input,
    };
    *part = part.saturating_add(flops);
}

/// Counts a product of the given operations, and the gradients of its factors.
pub(super) fn of_two(lookup: &Lookup<'_>, a: &TensorFact, b: &TensorFact, flops: u64) -> OperatorCost {
    let mut cost = OperatorCost { forward_flops: flops, ..OperatorCost::default() };
    add_backward(lookup, &mut cost, a, flops);
    add_backward(lookup, &mut cost, b, flops);
    cost
}
