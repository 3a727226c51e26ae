//! Operators after which sizes are unknown: the number of elements that `nonzero` finds depends on values, which no
//! trace holds.

use indexmap::IndexMap;
use operators::{OperatorClass, ShapeRule};
use tracer::{DType, ValueId};

use crate::{
    fact::TensorFact,
    infer::is_sized_by_values,
    model::{ModelGraph, Operator, OperatorId},
};

/// Operators of one name after which sizes are unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostSizes {
    /// Its name.
    pub name: String,
    /// True if the sizes of its result depend on values.
    pub by_values: bool,
    /// The operators of this name, in order.
    pub operators: Vec<OperatorId>,
}

/// Returns the operators whose result has unknown sizes although every tensor that they read has known ones, except
/// operators without a rule. O(operators).
pub fn lost_sizes(graph: &ModelGraph) -> Vec<LostSizes> {
    let mut found: IndexMap<(&str, bool), Vec<OperatorId>> = IndexMap::new();
    for operator in graph.operators.iter().filter(|operator| loses_sizes(graph, operator)) {
        let short = operator.short_name();
        let by_mask = || tensors(graph, &operator.inputs).any(is_mask);
        let by_values = is_sized_by_values(short) || (operator.shape_rule() == ShapeRule::Index && by_mask());
        found.entry((&operator.name, by_values)).or_default().push(operator.id);
    }
    let lost = |((name, by_values), operators): ((&str, bool), _)| LostSizes {
        name: name.to_string(),
        by_values,
        operators,
    };
    found.into_iter().map(lost).collect()
}

fn loses_sizes(graph: &ModelGraph, operator: &Operator) -> bool {
    !matches!(operator.class, OperatorClass::Unknown | OperatorClass::Plumbing)
        && !tensors(graph, &operator.outputs).all(|tensor| tensor.sizes().is_some())
        && tensors(graph, &operator.inputs).all(|tensor| tensor.sizes().is_some())
        && operator.tensors.iter().all(|id| graph.tensor(*id).has_shape)
}

fn tensors<'g>(graph: &'g ModelGraph, values: &'g [ValueId]) -> impl Iterator<Item = &'g TensorFact> {
    values.iter().flat_map(|value| graph.value(*value).fact.tensors())
}

fn is_mask(tensor: &TensorFact) -> bool {
    matches!(tensor.dtype, Some(DType::Bool | DType::UInt8))
}
