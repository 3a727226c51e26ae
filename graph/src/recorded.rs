//! Types recorded with the trace, merged with the inferred ones.

use tracer::{Program, RecordedInput, RecordedNode, TensorType};

use crate::{
    OperatorId,
    fact::{Fact, Shape, TensorFact},
    infer::{contiguous_strides, laid_out},
    model::Disagreement,
};

/// Compares an inferred type with the recorded one.
pub fn compare(operator: OperatorId, inferred: &TensorFact, recorded: &TensorType) -> Option<Disagreement> {
    let dtypes = matches!((inferred.dtype, recorded.dtype), (Some(a), Some(b)) if a != b);
    let sizes = match (&inferred.shape, &recorded.shape) {
        (Some(a), Some(b)) => a.len() != b.len() || a.iter().zip(b).any(|(a, b)| a.is_some_and(|a| a != *b)),
        _ => false,
    };
    (dtypes || sizes).then(|| Disagreement {
        operator,
        inferred: inferred.to_string(),
        recorded: shown(recorded),
    })
}

/// Returns the recorded results of an operator as text; `None` unless all of them are tensors of known sizes.
pub fn sized(recorded: &[Option<TensorType>]) -> Option<String> {
    let known = |type_: &Option<TensorType>| type_.as_ref().filter(|type_| type_.shape.is_some()).map(shown);
    let all: Option<Vec<String>> = recorded.iter().map(known).collect();
    all.filter(|all| !all.is_empty()).map(|all| all.join(", "))
}

fn shown(recorded: &TensorType) -> String {
    let shape: Option<Shape> = recorded.shape.as_ref().map(|s| s.iter().map(|d| Some(*d)).collect());
    TensorFact { dtype: recorded.dtype, shape, ..TensorFact::default() }.to_string()
}

/// Takes over the recorded type.
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

/// Gives an input's images the memory format of the recorded ones, for any size.
pub fn in_layout(fact: Fact, recorded: &TensorType) -> Fact {
    let Fact::Tensor(mut tensor) = fact else { return fact };
    let mut was = TensorFact::default();
    adopt(&mut was, recorded);
    let rank = was.shape.as_ref().map(|shape| shape.len());
    if was.is_channels_last()
        && let Some(shape) = tensor.shape.as_ref().filter(|shape| Some(shape.len()) == rank)
    {
        tensor.strides = laid_out(shape, true);
    }
    Fact::Tensor(tensor)
}

/// Returns the recorded types of each node's outputs; empty if the record is of another program.
pub fn align<'p>(
    program: &'p Program,
    recorded: &'p [RecordedNode],
) -> Vec<Option<&'p [Option<TensorType>]>> {
    let is_same = recorded.len() == program.nodes.len()
        && recorded.iter().zip(&program.nodes).all(|(recorded, node)| recorded.operator == node.operator);
    if is_same { recorded.iter().map(|node| Some(node.outputs.as_slice())).collect() } else { Vec::new() }
}

/// Returns the recorded type of an input, by name or else by position.
pub fn recorded_input<'a>(inputs: &'a [RecordedInput], at: usize, name: &str) -> Option<&'a TensorType> {
    let by_name = inputs.iter().find(|input| !input.name.is_empty() && input.name == plain(name));
    by_name.or_else(|| inputs.get(at)).map(|input| &input.type_).filter(|type_| type_.shape.is_some())
}

/// Returns a name without the number that SSA adds: `x.1` becomes `x`.
pub fn plain(name: &str) -> &str {
    match name.rsplit_once('.') {
        Some((plain, digits)) if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            plain
        }
        _ => name,
    }
}
