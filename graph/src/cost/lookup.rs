//! Looks up an operator's operands in the finished graph, and the bytes that it moves.

use operators::OperatorClass;
use tracer::{Operand, Role, TensorId};

use super::operator_cost::OperatorCost;
use crate::{
    fact::{Fact, TensorFact},
    infer::{Call, Scope},
    model::{ModelGraph, Operator, Origin},
};

/// Facts by id, in the form that rules need.
pub(super) struct Lookup<'g> {
    pub graph: &'g ModelGraph,
    values: Vec<Fact>,
    tensors: Vec<Fact>,
}

impl<'g> Lookup<'g> {
    pub fn new(graph: &'g ModelGraph) -> Self {
        let values = graph.values.iter().map(|value| value.fact.clone()).collect();
        let tensors = graph.tensors.iter().map(|tensor| Fact::Tensor(tensor.fact())).collect();
        Self { graph, values, tensors }
    }

    pub fn call<'a>(&'a self, operator: &'a Operator) -> Call<'a> {
        let scope = Scope { values: &self.values, tensors: &self.tensors };
        Call::new(&operator.name, &operator.arguments, operator.outputs.len(), &scope)
    }

    /// Returns the first result as a tensor.
    pub fn result(&self, operator: &Operator) -> Option<&TensorFact> {
        match &self.values[operator.outputs.first()?.index()] {
            Fact::Tensor(tensor) => Some(tensor),
            Fact::List(items) => items.first()?.tensor(),
            _ => None,
        }
    }
}

/// Tells whether an operand is a trained parameter or a view of one.
pub(super) fn parameter_of(graph: &ModelGraph, tensor: &TensorFact) -> Option<TensorId> {
    match graph.storage(tensor.storage?).origin {
        Origin::Stored(id) if graph.tensor(id).role == Role::Parameter => Some(id),
        _ => None,
    }
}

/// Adds the bytes read and written. `seen` marks the parameters that earlier operators have counted.
pub(super) fn add_bytes(graph: &ModelGraph, operator: &Operator, seen: &mut [bool], cost: &mut OperatorCost) {
    for tensor in &operator.tensors {
        let tensor = graph.tensor(*tensor);
        let is_new = !std::mem::replace(&mut seen[tensor.storage.index()], true);
        if is_new && tensor.role == Role::Parameter {
            cost.parameter_bytes += tensor.bytes;
        }
    }
    if operator.class == OperatorClass::Plumbing {
        return;
    }
    let outputs = || operator.outputs.iter().flat_map(|value| graph.value(*value).fact.tensors());
    let is_made_here = |tensor: &&TensorFact| {
        tensor.storage.is_some_and(|storage| graph.storage(storage).origin == Origin::Made(operator.id))
    };
    let bytes = |tensor: &TensorFact| tensor.bytes().unwrap_or(0);
    cost.output_bytes = outputs().filter(is_made_here).map(bytes).fold(0, u64::saturating_add);
    let is_view = cost.output_bytes == 0 && !operator.is_writing;
    if is_view {
        return;
    }
    // A table look-up reads the rows of its result, not the table.
    let is_lookup = operator.class == OperatorClass::Embedding;
    let table = match operator.argument("weight") {
        Some(Operand::Value(value)) if is_lookup => Some(value),
        _ => None,
    };
    let inputs = operator.inputs.iter().filter(|value| Some(*value) != table);
    let inputs = inputs.flat_map(|value| graph.value(*value).fact.tensors()).map(bytes);
    let stored = operator.tensors.iter().filter(|_| !is_lookup).map(|tensor| graph.tensor(*tensor).bytes);
    cost.read_bytes = inputs.chain(stored).fold(0, u64::saturating_add);
    if is_lookup {
        cost.read_bytes = cost.read_bytes.saturating_add(cost.output_bytes);
    }
    cost.written_bytes =
        if operator.is_writing { outputs().map(bytes).max().unwrap_or(0) } else { cost.output_bytes };
}
