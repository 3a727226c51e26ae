//! Saved activations by operator, after PyTorch's `derivatives.yaml`.
//!
//! A storage counts once, at the first operator that saves it: views, in-place results and tensors that two operators
//! save share it. Parameters and buffers are not counted, and nothing is saved without a gradient. A product that must
//! first copy its operand into order saves the copy.

use operators::{Keeps, OperatorClass};
use tracer::DType;

use super::{
    keep::{Keep, Saved, copy_bytes},
    lookup::Lookup,
    times,
};
use crate::{
    fact::{Fact, Shape, TensorFact},
    infer::{Call, attention_by_parts, is_dropout_idle, like},
    model::Operator,
    own,
};

/// What an operator saves for its backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Saves {
    Nothing,
    /// Operands, before it computes.
    Operands,
    /// Results, or it is not known what.
    Results,
}

/// Returns the bytes that this operator saves and no earlier one does, whether these are all, and what it saves.
pub(super) fn count(
    saved: &mut Saved,
    lookup: &Lookup<'_>,
    operator: &Operator,
    call: &Call<'_>,
) -> (u64, bool, Saves) {
    if operator.class == OperatorClass::Plumbing || operator.class == OperatorClass::Create {
        return (0, true, Saves::Nothing);
    }
    let outputs: Vec<&Fact> = operator.outputs.iter().map(|value| &lookup.graph.value(*value).fact).collect();
    let flows = outputs.iter().flat_map(|fact| fact.tensors()).any(|tensor| tensor.requires_grad);
    if !flows || !call.tensors().iter().any(|tensor| tensor.requires_grad) {
        return (0, true, Saves::Nothing);
    }
    if operator.class == OperatorClass::Unknown {
        return (0, false, Saves::Results);
    }
    let mut keep = Keep::new(saved, lookup.graph, operator.id);
    rule(&mut keep, lookup, operator, call, &outputs);
    let saves = match call.row().map_or(Keeps::Unknown, |row| row.keeps) {
        Keeps::Linear | Keeps::Matmul | Keeps::Factors | Keeps::AddedFactors | Keeps::Convolution => {
            Saves::Operands
        }
        _ if keep.is_any || !keep.is_all => Saves::Results,
        _ => Saves::Nothing,
    };
    (keep.bytes, keep.is_all, saves)
}

/// Returns the bytes that the backward pass of an operator makes beside the gradients of its operands: those of the
/// logarithms between softmax and loss.
pub(super) fn scratch(call: &Call<'_>) -> u64 {
    match (call.row().map(|row| row.keeps), call.at(0).tensor()) {
        (Some(Keeps::CrossEntropy), Some(scores)) if scores.requires_grad => scores.bytes().unwrap_or(0),
        _ => 0,
    }
}

fn rule(keep: &mut Keep<'_>, lookup: &Lookup<'_>, operator: &Operator, call: &Call<'_>, outputs: &[&Fact]) {
    let keeps = call.row().map_or(Keeps::Unknown, |row| row.keeps);
    if !keep_by_rule(keep, keeps, lookup, operator, call, outputs) && operator.class == OperatorClass::Other {
        // Differentiable, but without a rule for these operands: most operators save their inputs.
        all(keep, call);
    }
}

fn all(keep: &mut Keep<'_>, call: &Call<'_>) {
    call.tensors().into_iter().for_each(|tensor| keep.tensor(tensor));
}

/// Applies the rule in the table of operators; false if it does not apply to these operands.
fn keep_by_rule(
    keep: &mut Keep<'_>,
    keeps: Keeps,
    lookup: &Lookup<'_>,
    operator: &Operator,
    call: &Call<'_>,
    outputs: &[&Fact],
) -> bool {
    let result = lookup.result(operator);
    match keeps {
        Keeps::Nothing => {}
        Keeps::Unknown => return false,
        Keeps::Own => return own::keep(keep, call, result),
        Keeps::Result
        | Keeps::Operand
        | Keeps::OperandOrResult
        | Keeps::AdaptiveMean
        | Keeps::OperandAndResult
        | Keeps::OtherOperands
        | Keeps::AllButFirst
        | Keeps::AllOperands
        | Keeps::OperandAndIndices
        | Keeps::Indices
        | Keeps::Extreme => return operands(keep, keeps, call, result, outputs),
        Keeps::Product
        | Keeps::Quotient
        | Keeps::SolveTriangular
        | Keeps::Complex
        | Keeps::CopySign
        | Keeps::Ldexp
        | Keeps::Power
        | Keeps::FloatPower => return of_two(keep, keeps, call, result),
        Keeps::Linear | Keeps::Matmul | Keeps::Factors | Keeps::AddedFactors | Keeps::GroupedFactors => {
            return products(keep, keeps, call);
        }
        Keeps::Places | Keeps::PlacesOfSource | Keeps::PlacesAndSource | Keeps::AddedSource => {
            written(keep, keeps, call);
        }
        Keeps::Selection
        | Keeps::MaskedScatter
        | Keeps::Embedding
        | Keeps::CrossEntropy
        | Keeps::DropoutMask
        | Keeps::ChannelMask
        | Keeps::WeightNorm
        | Keeps::Pad
        | Keeps::RealTransform
        | Keeps::MaxPool => return parts(keep, keeps, call, result, outputs),
        Keeps::BatchNorm
        | Keeps::InstanceNorm
        | Keeps::LayerNorm
        | Keeps::RmsNorm
        | Keeps::FusedRmsNorm
        | Keeps::GroupNorm => return norms(keep, keeps, call),
        Keeps::Einsum => super::einsum::keep_einsum(keep, call),
        Keeps::Convolution => {
            let input = call.tensor("input").or_else(|_| call.first());
            if let (Ok(input), Ok(weight)) = (input, call.tensor("weight")) {
                // Both, whichever needs a gradient: one backward function makes all gradients.
                keep.tensor(input);
                keep.tensor(weight);
            }
        }
        Keeps::Attention if attention_by_parts(call) => keep.is_all &= attention(keep, call).is_some(),
        Keeps::Attention => fused_attention(keep, call, result),
        Keeps::Recurrent => super::recurrent::keep_recurrent(keep, lookup, operator, call),
        Keeps::LogSigmoid
        | Keeps::RRelu
        | Keeps::FakeQuantize
        | Keeps::Polygamma
        | Keeps::Ndtr
        | Keeps::Quantile
        | Keeps::Covariance
        | Keeps::Correlation
        | Keeps::Trapezoid
        | Keeps::CosineSimilarity
        | Keeps::PairwiseDistance
        | Keeps::AllAndResult
        | Keeps::NllLoss
        | Keeps::KlDiv
        | Keeps::MarginLoss
        | Keeps::MarginRankingLoss
        | Keeps::PoissonNllLoss
        | Keeps::TripletMarginLoss
        | Keeps::CtcLoss
        | Keeps::EmbeddingBag
        | Keeps::MaxUnpool => return super::unusual::keep_unusual(keep, keeps, call, result),
        Keeps::Results
        | Keeps::AllAndFirstResult
        | Keeps::Chain
        | Keeps::MatrixPower
        | Keeps::MatrixNorm
        | Keeps::Condition
        | Keeps::Determinant
        | Keeps::LogDeterminant
        | Keeps::Solve
        | Keeps::LuSolve
        | Keeps::LeastSquares
        | Keeps::LuFactors
        | Keeps::EigenValues
        | Keeps::HermitianEigenValues
        | Keeps::SingularValues => {
            return super::linalg::keep_linear_algebra(keep, keeps, call, result, outputs);
        }
    }
    true
}

/// Saves whole operands and results.
fn operands(
    keep: &mut Keep<'_>,
    keeps: Keeps,
    call: &Call<'_>,
    result: Option<&TensorFact>,
    outputs: &[&Fact],
) -> bool {
    match (keeps, call.at(0).tensor(), call.at(1).tensor()) {
        (Keeps::Result, ..) => keep.all(result),
        (Keeps::OperandOrResult, ..) if call.is_in_place => keep.all(result),
        (Keeps::AdaptiveMean, ..)
            if call.ints("output_size").is_some_and(|sizes| sizes.iter().all(|size| *size == Some(1))) =>
        {
            // A single average over everything is a mean, which saves nothing.
        }
        (Keeps::Operand | Keeps::OperandOrResult | Keeps::AdaptiveMean, ..) => match call.at(0).tensor() {
            // The operand is overwritten, so a copy of it is saved.
            Some(tensor) if call.is_in_place => keep.fresh(tensor.bytes()),
            Some(tensor) => keep.tensor(tensor),
            None => {}
        },
        (Keeps::OperandAndResult, ..) => {
            keep.all(call.at(0).tensor());
            keep.all(result);
        }
        (Keeps::OtherOperands, ..) => {
            let others = call.facts().skip(1).flat_map(Fact::tensors);
            others.filter(|tensor| !tensor.requires_grad).for_each(|tensor| keep.tensor(tensor));
        }
        (Keeps::AllButFirst, ..) => {
            call.facts().skip(1).flat_map(Fact::tensors).for_each(|tensor| keep.tensor(tensor));
        }
        (Keeps::AllOperands, ..) => all(keep, call),
        (Keeps::OperandAndIndices, ..) => {
            keep.all(call.at(0).tensor());
            keep_indices(keep, outputs);
        }
        (Keeps::Indices, ..) => keep_indices(keep, outputs),
        (Keeps::Extreme, ..) if outputs.len() > 1 => keep_indices(keep, outputs),
        (Keeps::Extreme, Some(a), Some(b)) => {
            keep.tensor(a);
            keep.tensor(b);
        }
        (Keeps::Extreme, Some(a), None) => {
            keep.tensor(a);
            keep.all(result);
        }
        _ => return false,
    }
    true
}

/// Saves where an operator writes and what it writes there.
fn written(keep: &mut Keep<'_>, keeps: Keeps, call: &Call<'_>) {
    let source =
        call.tensor("source").or_else(|_| call.tensor("src")).ok().filter(|source| source.requires_grad);
    let has_places = source.is_some() || matches!(keeps, Keeps::Places | Keeps::PlacesAndSource);
    if has_places {
        let places = ["index", "indices", "mask"].into_iter().filter_map(|name| call.get(name));
        places.flat_map(Fact::tensors).for_each(|places| keep.tensor(places));
    }
    if matches!(keeps, Keeps::PlacesAndSource | Keeps::AddedSource) {
        keep.all(source);
    }
}

fn keep_indices(keep: &mut Keep<'_>, outputs: &[&Fact]) {
    keep.all(outputs.iter().skip(1).flat_map(|fact| fact.tensors()));
}

/// Saves the operands that an elementwise function of two needs.
fn of_two(keep: &mut Keep<'_>, keeps: Keeps, call: &Call<'_>, result: Option<&TensorFact>) -> bool {
    match (keeps, call.at(0).tensor(), call.at(1).tensor()) {
        (Keeps::Product, Some(a), Some(b)) => {
            if b.requires_grad && !call.is_in_place {
                keep.tensor(a);
            } else if b.requires_grad {
                keep.fresh(a.bytes());
            }
            if a.requires_grad {
                keep.tensor(b);
            }
        }
        (Keeps::Quotient, Some(a), Some(b)) => {
            keep.tensor(b);
            if b.requires_grad && call.is_in_place {
                // The quotient overwrites the dividend: a copy of it is saved.
                keep.fresh(a.bytes());
            } else if b.requires_grad {
                keep.tensor(a);
            }
        }
        (Keeps::SolveTriangular, Some(a), _) => {
            keep.tensor(a);
            keep.all(result);
        }
        (Keeps::Complex, Some(a), Some(b)) => {
            [a, b].into_iter().filter(|part| part.requires_grad).for_each(|part| keep.tensor(part));
        }
        (Keeps::CopySign, Some(a), _) => {
            if a.requires_grad {
                keep.tensor(a);
            }
            keep.all(result);
        }
        (Keeps::Ldexp, Some(a), Some(b)) => {
            if a.requires_grad {
                keep.tensor(b);
            }
            keep.all(result);
        }
        (Keeps::Power | Keeps::FloatPower, Some(a), None) => keep.tensor(a),
        (Keeps::Power, a, Some(b)) => {
            keep.all(a);
            keep.tensor(b);
            keep.all(result);
        }
        _ => return false,
    }
    true
}

/// Saves the factors of products.
fn products(keep: &mut Keep<'_>, keeps: Keeps, call: &Call<'_>) -> bool {
    match (keeps, call.at(0).tensor(), call.at(1).tensor()) {
        (Keeps::Linear, Some(input), Some(weight)) => {
            if weight.requires_grad {
                keep.rows(input);
            }
            if input.requires_grad {
                keep.tensor(weight);
            }
        }
        (Keeps::Matmul, Some(a), Some(b)) => matmul(keep, a, b),
        (Keeps::Factors, Some(a), Some(b)) => keep.factors(a, b),
        (Keeps::AddedFactors, ..) => {
            if let (Some(a), Some(b)) = (call.at(1).tensor(), call.at(2).tensor()) {
                keep.factors(a, b);
            }
        }
        (Keeps::GroupedFactors, Some(a), Some(b)) => {
            keep.factors(a, b);
            keep.named(call, "offs");
        }
        _ => return false,
    }
    true
}

/// Saves masks, indices, and copies of parts.
fn parts(
    keep: &mut Keep<'_>,
    keeps: Keeps,
    call: &Call<'_>,
    result: Option<&TensorFact>,
    outputs: &[&Fact],
) -> bool {
    match (keeps, call.at(0).tensor(), call.at(1).tensor()) {
        (Keeps::Selection, Some(condition), _) => keep.tensor(condition),
        (Keeps::MaskedScatter, _, Some(mask)) => keep.tensor(mask),
        (Keeps::Embedding, ..) => keep.named(call, "indices"),
        (Keeps::CrossEntropy, Some(a), _) => {
            keep.fresh(a.bytes());
            keep.named(call, "target");
            // The sum of the targets' weights.
            keep.fresh(a.dtype.map(DType::bytes));
        }
        (Keeps::DropoutMask, Some(a), _) if !is_dropout_idle(call) => {
            // A mask of one byte per element, as on a GPU; a CPU saves it in the input's dtype.
            keep.fresh(a.elements());
        }
        (Keeps::ChannelMask, Some(a), _) if !is_dropout_idle(call) => {
            // One factor per channel, in the input's dtype.
            let factors =
                a.shape.as_ref().and_then(|shape| (*shape.first()?)?.checked_mul((*shape.get(1)?)?));
            keep.fresh(factors.zip(a.dtype).map(|(n, dtype)| n.saturating_mul(dtype.bytes())));
        }
        (Keeps::WeightNorm, Some(directions), Some(lengths)) => {
            keep.tensor(directions);
            keep.tensor(lengths);
            // The norms.
            keep.fresh(lengths.bytes());
            let dim = call.int("dim").unwrap_or(0);
            let is_last = directions.shape.as_ref().is_some_and(|sizes| dim == sizes.len() as i64 - 1);
            if dim != 0 && !is_last {
                // No kernel does it at once: what scales the directions is kept, and the copy of them that norms are of.
                keep.fresh(lengths.bytes());
                if dim != -1 {
                    keep.fresh(directions.bytes());
                }
            }
        }
        // For transforms from real to complex numbers torch saves the input.
        (Keeps::RealTransform, Some(input), _) if input.dtype.is_some_and(|dtype| !dtype.is_complex()) => {
            match super::unusual::padded(call, input) {
                Some(bytes) => keep.fresh(bytes),
                None => keep.tensor(input),
            }
        }
        // Linear: the backward pass needs only sizes.
        (Keeps::RealTransform, ..) => {}
        (Keeps::Pad, Some(input), _) => {
            // Numbers, and slices of the operand itself, are copied around it.
            let is_copied =
                |mode: &Fact| matches!(mode, Fact::Str(mode) if mode == "constant" || mode == "circular");
            if !call.get("mode").is_some_and(is_copied) {
                keep.tensor(input);
            }
        }
        (Keeps::MaxPool, Some(input), _) => {
            keep.tensor(input);
            match outputs.get(1).and_then(|fact| fact.tensor()) {
                Some(indices) => keep.tensor(indices),
                None => keep
                    .fresh(result.and_then(TensorFact::elements).map(|elements| elements.saturating_mul(8))),
            }
        }
        _ => return false,
    }
    true
}

/// Saves the normalised tensor, and its statistics.
fn norms(keep: &mut Keep<'_>, keeps: Keeps, call: &Call<'_>) -> bool {
    match (keeps, call.at(0).tensor(), call.at(1).tensor()) {
        (Keeps::BatchNorm, Some(input), _) => {
            keep.tensor(input);
            // Usually stored, and then not counted; but they may be computed.
            ["weight", "running_mean", "running_var"].into_iter().for_each(|name| keep.named(call, name));
            let is_training = call.flag("training") == Some(true) || !call.has("running_mean");
            if is_training {
                let channels = input.shape.as_ref().and_then(|shape| *shape.get(1)?);
                keep.fresh(channels.map(|channels| channels.saturating_mul(8)));
            }
        }
        (Keeps::InstanceNorm, Some(input), _) => {
            keep.tensor(input);
            let groups =
                input.shape.as_ref().and_then(|shape| (*shape.first()?)?.checked_mul((*shape.get(1)?)?));
            // Batch norm over the channels of every image: weight and running statistics are repeated for each.
            let weight = if call.has("weight") { 4 } else { 0 };
            let running = if call.has("running_mean") { 8 } else { 0 };
            let fresh = if call.flag("use_input_stats") == Some(false) { 0 } else { 8 };
            keep.fresh(groups.map(|groups| groups.saturating_mul(weight + running + fresh)));
        }
        (Keeps::LayerNorm | Keeps::RmsNorm | Keeps::FusedRmsNorm, Some(input), _) => {
            keep.tensor(input);
            keep.named(call, "weight");
            let inner = call.ints("normalized_shape").map_or(1, |sizes| sizes.len());
            let rows =
                input.sizes().map(|sizes| times(sizes[..sizes.len().saturating_sub(inner)].iter().copied()));
            let statistics = if keeps == Keeps::LayerNorm { 8 } else { 4 };
            keep.fresh(rows.map(|rows| rows.saturating_mul(statistics)));
            // Composed on a CPU: the factor of the weight.
            if keeps == Keeps::RmsNorm && call.tensor("weight").is_ok_and(|weight| weight.requires_grad) {
                keep.fresh(input.bytes());
            }
        }
        (Keeps::GroupNorm, Some(input), _) => {
            match input.is_contiguous() {
                Some(false) if !input.is_channels_last() => keep.fresh(input.bytes()),
                _ => keep.tensor(input),
            }
            keep.named(call, "weight");
            let batch = input.shape.as_ref().and_then(|shape| *shape.first()?);
            let groups = call.int("num_groups").and_then(|groups| u64::try_from(groups).ok());
            keep.fresh(
                batch.zip(groups).map(|(batch, groups)| batch.saturating_mul(groups).saturating_mul(8)),
            );
        }
        _ => return false,
    }
    true
}

/// Saved activations of fused attention: its inputs, its result, and the logarithm of each row's sum.
fn fused_attention(keep: &mut Keep<'_>, call: &Call<'_>, result: Option<&TensorFact>) {
    for name in ["query", "key", "value"] {
        keep.named(call, name);
    }
    match (call.tensor("attn_mask"), call.tensor("query").ok().and_then(|query| query.dtype)) {
        // A mask of booleans is first converted to numbers.
        (Ok(mask), Some(dtype)) if mask.dtype == Some(DType::Bool) => {
            keep.fresh(mask.elements().map(|elements| elements.saturating_mul(dtype.bytes())));
        }
        (Ok(mask), _) => keep.tensor(mask),
        _ => {}
    }
    if let Some(result) = result {
        keep.tensor(result);
        keep.fresh(statistics_of_attention(result));
    }
}

/// Returns the bytes that fused attention keeps of each query: the logarithm of its sum of weights.
pub(super) fn statistics_of_attention(result: &TensorFact) -> Option<u64> {
    let width = result.shape.as_ref().and_then(|shape| *shape.last()?).filter(|width| *width > 0);
    result.elements().zip(width).map(|(elements, width)| (elements / width).saturating_mul(4))
}

/// Saved activations of composed attention: scaled query and key, the weights after the softmax, and the value, each
/// expanded to all heads.
fn attention(keep: &mut Keep<'_>, call: &Call<'_>) -> Option<()> {
    let (query, key, value) =
        (call.tensor("query").ok()?, call.tensor("key").ok()?, call.tensor("value").ok()?);
    let (q, k, v) = (query.sizes()?, key.sizes()?, value.sizes()?);
    let outer = |sizes: &[u64]| -> Shape {
        sizes[..sizes.len().saturating_sub(2)].iter().map(|size| Some(*size)).collect()
    };
    let ([.., rows, _], [.., columns, width]) = (q.as_slice(), k.as_slice()) else { return None };
    let all = |batch: &[u64], inner: [u64; 2]| [batch, &inner].concat();
    let Ok(batch) = crate::infer::broadcast(&[&outer(&q), &outer(&k), &outer(&v)]) else {
        // Keys and values of several queries are first repeated for each of them.
        let batch = &q[..q.len() - 2];
        keep.fresh(query.bytes());
        keep.fresh(copy_bytes(key, &all(batch, [*columns, *width])));
        keep.fresh(copy_bytes(query, &all(batch, [*rows, *columns])));
        keep.fresh(copy_bytes(value, &all(batch, [*columns, *v.last()?])));
        return Some(());
    };
    let batch: Vec<u64> = batch.iter().map(|size| size.unwrap_or(1)).collect();
    for scaled in [query, key] {
        keep.fresh_matrix(&like(scaled, scaled.dtype), &batch);
    }
    keep.fresh(copy_bytes(query, &all(&batch, [*rows, *columns])));
    keep.matrix(value, &batch);
    Some(())
}

/// Saved activations of `at::matmul`: folded to a plain product if one side has at most two dimensions, else batched.
fn matmul(keep: &mut Keep<'_>, a: &TensorFact, b: &TensorFact) {
    let (Some(x), Some(y)) = (a.sizes(), b.sizes()) else { return keep.factors(a, b) };
    if x.len() <= 2 && y.len() <= 2 {
        return keep.factors(a, b);
    }
    if y.len() <= 2 && x.len() >= 3 {
        if b.requires_grad {
            keep.rows(a);
        }
        if a.requires_grad {
            keep.tensor(b);
        }
        return;
    }
    let batch = |sizes: &[u64]| -> Shape {
        sizes[..sizes.len().saturating_sub(2)].iter().map(|size| Some(*size)).collect()
    };
    let Ok(batch) = crate::infer::broadcast(&[&batch(&x), &batch(&y)]) else { return keep.factors(a, b) };
    let batch: Vec<u64> = batch.iter().map(|size| size.unwrap_or(1)).collect();
    if b.requires_grad {
        keep.matrix(a, &batch);
    }
    if a.requires_grad {
        keep.matrix(b, &batch);
    }
}
