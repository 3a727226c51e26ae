//! Saved activations of losses, bags of embeddings, distances and a few others; measured with torch's saved-tensor hooks.

use operators::Keeps;

use super::{keep::Keep, times};
use crate::{
    fact::{Shape, TensorFact},
    infer::Call,
};

/// Saves the activations of such an operator; false if its operands are not as expected.
pub(super) fn keep_unusual(
    keep: &mut Keep<'_>,
    keeps: Keeps,
    call: &Call<'_>,
    result: Option<&TensorFact>,
) -> bool {
    if let (Keeps::Polygamma, Ok(tensor)) = (keeps, call.tensor("self")) {
        keep.tensor(tensor);
        return true;
    }
    let Ok(first) = call.first() else { return false };
    let second = call.at(1).tensor();
    let one = first.dtype.map(tracer::DType::bytes);
    match (keeps, second) {
        (Keeps::CosineSimilarity, Some(other)) => cosine(keep, first, other, result),
        (Keeps::PairwiseDistance, Some(other)) => {
            keep.fresh(spread(first, other));
            result.into_iter().for_each(|distances| keep.tensor(distances));
        }
        (Keeps::AllAndResult, _) => {
            call.tensors().into_iter().for_each(|tensor| keep.tensor(tensor));
            // The original values are needed, too.
            if call.is_in_place {
                keep.fresh(first.bytes());
            }
            result.into_iter().for_each(|distances| keep.tensor(distances));
        }
        // The sorted elements with their positions, and for each result two ranks and the fraction between them.
        (Keeps::Quantile, _) => {
            let results = result.and_then(TensorFact::elements);
            let sorted = first.elements().zip(one).map(|(n, one)| n.saturating_mul(8 + one));
            keep.fresh(sorted);
            keep.fresh(results.zip(one).map(|(n, one)| n.saturating_mul(16 + one)));
        }
        (Keeps::FakeQuantize, _) => {
            keep.fresh(first.elements());
        }
        (Keeps::MaxUnpool, Some(indices)) => keep.tensor(indices),
        (Keeps::Ndtr, _) => keep.fresh(first.bytes()),
        (Keeps::LogSigmoid, _) => {
            keep.tensor(first);
            // A CPU also saves the exponentials.
            keep.fresh(first.bytes());
        }
        // Its slopes are random, also in evaluation, where they are the mean.
        (Keeps::RRelu, _) => {
            keep.fresh(first.bytes());
            match (call.is_in_place, result) {
                (true, Some(result)) => keep.tensor(result),
                _ => keep.tensor(first),
            }
        }
        (Keeps::Trapezoid, Some(places)) => trapezoid(keep, call, first, places),
        (Keeps::Covariance | Keeps::Correlation, _) => covariance(keep, keeps, call, first, result),
        (Keeps::EmbeddingBag, Some(indices)) => return bag(keep, call, indices, result),
        _ => return losses(keep, keeps, call, first, second),
    }
    true
}

/// Saves the predictions and targets that losses need.
fn losses(
    keep: &mut Keep<'_>,
    keeps: Keeps,
    call: &Call<'_>,
    first: &TensorFact,
    target: Option<&TensorFact>,
) -> bool {
    let one = first.dtype.map(tracer::DType::bytes);
    match (keeps, target) {
        (Keeps::NllLoss, Some(target)) => {
            keep.tensor(first);
            keep.tensor(target);
            // The sum of the targets' weights.
            keep.fresh(one);
        }
        (Keeps::KlDiv, Some(target)) => {
            keep.tensor(target);
            if target.requires_grad {
                keep.tensor(first);
            }
        }
        (Keeps::MarginLoss, Some(target)) => {
            keep.tensor(first);
            keep.tensor(target);
        }
        // The difference, and its part beyond the margin.
        (Keeps::MarginRankingLoss, Some(_)) => {
            [first, first].into_iter().for_each(|tensor| keep.fresh(tensor.bytes()));
        }
        (Keeps::TripletMarginLoss, Some(_)) => {
            let rows = rows(first).zip(one).map(|(rows, one)| rows.saturating_mul(one));
            [first.bytes(), first.bytes(), rows, rows, rows].into_iter().for_each(|bytes| keep.fresh(bytes));
        }
        (Keeps::PoissonNllLoss, Some(target)) => {
            keep.tensor(target);
            match call.flag("log_input") {
                Some(false) => keep.tensor(first),
                _ => keep.fresh(first.bytes()),
            }
        }
        (Keeps::CtcLoss, Some(targets)) => {
            keep.tensor(first);
            keep.tensor(targets);
            keep.fresh(connections(first, targets));
        }
        _ => return false,
    }
    true
}

/// Saves distances between positions, and sums of neighbours, each for the other's gradient.
fn trapezoid(keep: &mut Keep<'_>, call: &Call<'_>, first: &TensorFact, places: &TensorFact) {
    let between = |of: &TensorFact| {
        let rank = of.shape.as_ref()?.len();
        let dim = if rank == 1 { 0 } else { call.dim("dim", rank).ok()? };
        let size = of.sizes()?.get(dim).copied().filter(|size| *size > 0)?;
        Some(of.bytes()? / size * (size - 1))
    };
    if first.requires_grad {
        keep.fresh(between(places));
    }
    if places.requires_grad {
        keep.fresh(between(first));
    }
}

/// Saves the centred rows; with weights also the weighted ones, and the sum of weights.
fn covariance(
    keep: &mut Keep<'_>,
    keeps: Keeps,
    call: &Call<'_>,
    first: &TensorFact,
    result: Option<&TensorFact>,
) {
    let one = first.dtype.map(tracer::DType::bytes);
    keep.fresh(first.bytes());
    let weights = ["fweights", "aweights"].map(|name| call.tensor(name).ok());
    match weights.iter().flatten().next() {
        Some(weights) => {
            keep.tensor(weights);
            keep.fresh(first.bytes());
            keep.fresh(weights.dtype.map(|dtype| 2 * dtype.bytes()));
        }
        None => keep.fresh(Some(16)),
    }
    if keeps == Keeps::Correlation {
        let variables = result.and_then(|result| result.shape.as_ref()?.first().copied());
        keep.fresh(match variables {
            // The products, and their quotients by the rows' deviations, one after the other.
            Some(rows) => rows
                .zip(one)
                .map(|(rows, one)| times([3, rows, rows, one]).saturating_add(times([rows, one]))),
            None => one,
        });
    }
}

/// Saves indices and offsets, and the composition of each bag.
fn bag(keep: &mut Keep<'_>, call: &Call<'_>, indices: &TensorFact, result: Option<&TensorFact>) -> bool {
    let Ok(offsets) = call.tensor("offsets") else { return false };
    keep.tensor(indices);
    keep.tensor(offsets);
    let mode = call.int("mode");
    // The bag of each index, with one more at the end; a sum needs none.
    if mode != Some(0) {
        keep.fresh(indices.elements().map(|n| n.saturating_add(1).saturating_mul(8)));
    }
    keep.fresh(offsets.elements().map(|n| n.saturating_mul(8)));
    let largest = if mode == Some(2) { result.and_then(TensorFact::elements) } else { result.and_then(rows) };
    keep.fresh(largest.map(|n| n.saturating_mul(8)));
    true
}

/// Bytes of the copy that a transform with padding makes first; `None` if it makes none.
pub(super) fn padded(call: &Call<'_>, input: &TensorFact) -> Option<Option<u64>> {
    let mut sizes = input.sizes()?;
    let asked = call.ints("s").or_else(|| call.ints("n"))?;
    let dims = if call.has("dim") {
        call.dims("dim", sizes.len()).ok()?
    } else {
        (sizes.len().saturating_sub(asked.len())..sizes.len()).collect()
    };
    let mut is_longer = false;
    for (dim, length) in dims.into_iter().zip(asked) {
        let (own, length) = (sizes.get_mut(dim)?, u64::try_from(length?).ok()?);
        is_longer |= length > *own;
        *own = length;
    }
    is_longer.then(|| input.dtype.map(|dtype| times(sizes).saturating_mul(dtype.bytes())))
}

/// Elements of all dimensions but the last.
fn rows(tensor: &TensorFact) -> Option<u64> {
    let sizes = tensor.sizes()?;
    Some(times(sizes[..sizes.len().saturating_sub(1)].iter().copied()))
}

/// Bytes of two tensors' common size.
fn spread(a: &TensorFact, b: &TensorFact) -> Option<u64> {
    let [x, y] = [a, b].map(|tensor| tensor.shape.as_ref());
    let sizes: Shape = crate::infer::broadcast(&[x?, y?]).ok()?;
    let elements = sizes.into_iter().collect::<Option<Vec<u64>>>()?;
    Some(times(elements).saturating_mul(a.dtype?.bytes()))
}

/// Each side's rows, their lengths before and after clamping from zero, and the other side's rows at length one.
fn cosine(keep: &mut Keep<'_>, a: &TensorFact, b: &TensorFact, result: Option<&TensorFact>) {
    let lengths = result.and_then(TensorFact::bytes);
    for side in [a, b].into_iter().filter(|side| side.requires_grad) {
        keep.tensor(side);
        [lengths, lengths, spread(a, b)].into_iter().for_each(|bytes| keep.fresh(bytes));
    }
}

/// Bytes of the table of path probabilities through a sequence, and of two numbers per sequence.
fn connections(log_probabilities: &TensorFact, targets: &TensorFact) -> Option<u64> {
    let (steps, targets) = (log_probabilities.sizes()?, targets.sizes()?);
    let ([steps, batch, _], [_, longest]) = (steps.as_slice(), targets.as_slice()) else { return None };
    let ways = longest.checked_mul(2)?.checked_add(1)?;
    Some(times([*batch, *steps, ways, 4]).saturating_add(times([*batch, 8])))
}
