//! Types that travel with the trace, and how they meet the inferred ones.

use tracer::{Program, RecordedInput, RecordedNode, TensorType, Type};

use crate::{
    OperatorId,
    fact::{Shape, TensorFact},
    infer::contiguous_strides,
    model::Disagreement,
};

/// Compares an inferred type with the recorded one.
pub fn compare(operator: OperatorId, inferred: &TensorFact, recorded: &TensorType) -> Option<Disagreement> {
    let dtypes = matches!((inferred.dtype, recorded.dtype), (Some(a), Some(b)) if a != b);
    let sizes = match (&inferred.shape, &recorded.shape) {
        (Some(a), Some(b)) => a.len() != b.len() || a.iter().zip(b).any(|(a, b)| a.is_some_and(|a| a != *b)),
        _ => false,
    };
    (dtypes || sizes).then(|| {
        let shape: Option<Shape> = recorded.shape.as_ref().map(|s| s.iter().map(|d| Some(*d)).collect());
        let recorded = TensorFact { dtype: recorded.dtype, shape, ..TensorFact::default() };
        Disagreement { operator, inferred: inferred.to_string(), recorded: recorded.to_string() }
    })
}

/// Takes over what is recorded.
pub fn adopt(tensor: &mut TensorFact, recorded: &TensorType) {
    let was = tensor.shape.clone();
    tensor.dtype = recorded.dtype.or(tensor.dtype);
    if let Some(shape) = &recorded.shape {
        tensor.shape = Some(shape.iter().map(|size| Some(*size)).collect());
    }
    match &recorded.strides {
        Some(strides) if Some(strides.len()) == tensor.shape.as_ref().map(|s| s.len()) => {
            tensor.strides = Some(strides.iter().copied().collect());
        }
        _ if was != tensor.shape => {
            tensor.strides = tensor.shape.as_ref().and_then(|s| contiguous_strides(s));
        }
        _ => {}
    }
}

/// Lines recorded types up with the program's nodes: both list tensor-making operators in execution order.
pub fn align<'p>(program: &'p Program, recorded: &'p [RecordedNode]) -> Vec<Option<&'p [Option<TensorType>]>> {
    let mut result = vec![None; program.nodes.len()];
    let mut next = 0;
    for (index, node) in program.nodes.iter().enumerate() {
        // The recording may hold operators that saving dropped; look a little ahead.
        let window = &recorded[next.min(recorded.len())..recorded.len().min(next + 64)];
        let makes_tensor =
            node.outputs.iter().any(|value| matches!(program.values[value.index()].type_, Type::Tensor(_)));
        if !makes_tensor {
            continue;
        }
        if let Some(skip) = window.iter().position(|other| other.operator == node.operator) {
            result[index] = Some(window[skip].outputs.as_slice());
            next += skip + 1;
        }
    }
    result
}


/// Returns the recorded type of an input, by name or else by place.
pub fn recorded_input<'a>(inputs: &'a [RecordedInput], at: usize, name: &str) -> Option<&'a TensorType> {
    let by_name = inputs.iter().find(|input| !input.name.is_empty() && input.name == plain(name));
    by_name.or_else(|| inputs.get(at)).map(|input| &input.type_).filter(|type_| type_.shape.is_some())
}

/// Name without the number that SSA adds: `x.1` is `x`.
pub fn plain(name: &str) -> &str {
    match name.rsplit_once('.') {
        Some((plain, digits)) if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => plain,
        _ => name,
    }
}

