//! Costs of linear algebra: factors saved in addition to the result, and hidden products; measured with torch's own
//! hooks and counter.

use operators::{Flops, Keeps};

use super::{
    OperatorCost,
    chain::{keep_chain, keep_power},
    keep::Keep,
    lookup::Lookup,
    product::{add_backward, of_two},
    times,
};
use crate::{
    fact::{Fact, TensorFact},
    infer::Call,
    model::Operator,
};

/// Saves the activations of such an operator; false if its operands are not as expected.
pub(super) fn keep_linear_algebra(
    keep: &mut Keep<'_>,
    keeps: Keeps,
    call: &Call<'_>,
    result: Option<&TensorFact>,
    outputs: &[&Fact],
) -> bool {
    let Some(first) = call.tensors().first().copied() else { return false };
    let keep_outputs = |keep: &mut Keep<'_>, n: usize| {
        outputs.iter().take(n).flat_map(|fact| fact.tensors()).for_each(|tensor| keep.tensor(tensor));
    };
    match keeps {
        // The factors, with a pivot per row.
        Keeps::Determinant => {
            keep.tensor(first);
            keep_factors(keep, first);
            keep_outputs(keep, 1);
        }
        Keeps::LogDeterminant => {
            keep.tensor(first);
            keep_factors(keep, first);
            // The sign, and where it is negative.
            let one = first.dtype.map(tracer::DType::bytes);
            let numbers = result.and_then(TensorFact::elements);
            keep.fresh(numbers.zip(one).map(|(n, one)| times([n, one + 1])));
        }
        Keeps::Solve => {
            keep.tensor(first);
            keep_factors(keep, first);
            keep_outputs(keep, 1);
        }
        Keeps::AllAndFirstResult => {
            call.tensors().into_iter().for_each(|tensor| keep.tensor(tensor));
            keep_outputs(keep, 1);
        }
        Keeps::LuSolve => {
            call.tensors().into_iter().take(2).for_each(|tensor| keep.tensor(tensor));
            keep_outputs(keep, 1);
        }
        Keeps::LeastSquares => {
            call.tensors().into_iter().for_each(|tensor| keep.tensor(tensor));
            keep_outputs(keep, 1);
            // The solution is written over a copy of the right sides, which are longer in overdetermined systems.
            keep.fresh(result.and_then(|solution| beyond(first, solution)));
        }
        Keeps::Results => keep_outputs(keep, outputs.len()),
        Keeps::LuFactors => keep_outputs(keep, 2),
        // The vectors are computed as well.
        Keeps::EigenValues => {
            keep_outputs(keep, 1);
            let bytes = result.and_then(|values| values.dtype).map(tracer::DType::bytes);
            keep.fresh(first.elements().zip(bytes).map(|(n, bytes)| n.saturating_mul(bytes)));
        }
        Keeps::HermitianEigenValues => {
            keep_outputs(keep, 1);
            keep.fresh(first.bytes());
        }
        Keeps::SingularValues => {
            keep_outputs(keep, 1);
            keep.fresh(singular_vectors(first, OWN));
        }
        Keeps::MatrixNorm => keep_norm(keep, call, first, result),
        Keeps::Condition => match call.get("p") {
            None | Some(Fact::None) => {
                let all = singular_vectors(first, OWN).zip(singular_values(first, OWN));
                keep.fresh(all.map(|(vectors, values)| vectors.saturating_add(values)));
            }
            _ => keep.is_all = false,
        },
        Keeps::MatrixPower => keep.is_all &= keep_power(keep, call, result).is_some(),
        Keeps::Chain => keep.is_all &= keep_chain(keep, call).is_some(),
        _ => return false,
    }
    true
}

/// Saves both factors of matrices in one, and the order of rows as 32-bit numbers.
fn keep_factors(keep: &mut Keep<'_>, matrices: &TensorFact) {
    keep.fresh(matrices.bytes());
    let columns = matrices.shape.as_ref().and_then(|shape| shape.last().copied().flatten());
    let rows = matrices.elements().zip(columns.filter(|n| *n > 0)).map(|(n, columns)| n / columns);
    keep.fresh(rows.map(|rows| rows.saturating_mul(4)));
}

/// Tells whether a matrix norm needs singular values.
fn is_of_singular_values(call: &Call<'_>) -> bool {
    match call.get("ord") {
        Some(Fact::Str(order)) => order == "nuc",
        _ => call.float("ord").is_some_and(|order| order.abs() == 2.0),
    }
}

/// Returns the two dimensions of the matrices of a norm.
fn matrix_dims(call: &Call<'_>, rank: usize) -> Option<[usize; 2]> {
    call.dims("dim", rank).ok()?.try_into().ok()
}

fn keep_norm(keep: &mut Keep<'_>, call: &Call<'_>, first: &TensorFact, result: Option<&TensorFact>) {
    let rank = first.shape.as_ref().map_or(0, |shape| shape.len());
    let Some([a, b]) = matrix_dims(call, rank) else {
        keep.is_all = false;
        return;
    };
    let order = match call.get("ord") {
        Some(Fact::Str(order)) => order.as_str(),
        _ => "",
    };
    if is_of_singular_values(call) {
        // With their vectors.
        let back = [a, b].map(|dim| rank.saturating_sub(dim + 1));
        keep.fresh(singular_vectors(first, back));
        keep.fresh(singular_values(first, back));
    } else if order == "fro" {
        keep.tensor(first);
    } else {
        // Sums over rows or columns, of which the largest is taken.
        keep.tensor(first);
        let summed = if call.float("ord").map(f64::abs) == Some(1.0) { a } else { b };
        let size = first.shape.as_ref().and_then(|shape| shape.get(summed).copied().flatten());
        keep.fresh(first.bytes().zip(size.filter(|n| *n > 0)).map(|(bytes, n)| bytes / n));
    }
    if order != "nuc" {
        result.into_iter().for_each(|norms| keep.tensor(norms));
    }
}

/// The dimensions of a matrix, counted from the end.
const OWN: [usize; 2] = [1, 0];

/// The sizes of two dimensions counted from the end, and the number of such matrices.
fn matrix(of: &TensorFact, back: [usize; 2]) -> Option<[u64; 3]> {
    let sizes = of.sizes()?;
    let [rows, columns] =
        back.map(|back| sizes.len().checked_sub(back + 1).and_then(|at| sizes.get(at).copied()));
    let (rows, columns) = (rows?, columns?);
    let count = of.elements()?.checked_div(rows.checked_mul(columns)?)?;
    Some([rows, columns, count])
}

/// Bytes of the vectors on both sides.
fn singular_vectors(of: &TensorFact, back: [usize; 2]) -> Option<u64> {
    let [rows, columns, count] = matrix(of, back)?;
    Some(times([count, rows.min(columns), rows.saturating_add(columns), of.dtype?.bytes()]))
}

fn singular_values(of: &TensorFact, back: [usize; 2]) -> Option<u64> {
    let [rows, columns, count] = matrix(of, back)?;
    Some(times([count, rows.min(columns), of.dtype?.bytes()]))
}

/// Bytes of the rows of a right side beyond its solution.
fn beyond(matrices: &TensorFact, solution: &TensorFact) -> Option<u64> {
    let [rows, columns, _] = matrix(matrices, OWN)?;
    let per_row = solution.bytes()?.checked_div(columns)?;
    Some(per_row.saturating_mul(rows.saturating_sub(columns)))
}

/// Products with the result, and of square matrices: costs of gradients; the forward pass is not counted.
pub(super) fn solver(
    lookup: &Lookup<'_>,
    operator: &Operator,
    call: &Call<'_>,
    solver: Flops,
) -> Option<OperatorCost> {
    let (at, with_result, square) = match solver {
        Flops::TriangularSolve => (1, 1, 0),
        Flops::SolveFromFactors => (1, 1, 1),
        Flops::LuSolve => (0, 1, 1),
        Flops::CholeskyInverse => (0, 0, 3),
        Flops::EigenValues => (0, 0, 1),
        Flops::Eigen | Flops::HermitianEigen if is_used(lookup, operator, 1) => (0, 0, 3),
        Flops::HermitianEigen => (0, 0, 1),
        Flops::Eigen => (0, 0, 0),
        Flops::Inverse => (0, 2, 0),
        _ => (0, 1, 0),
    };
    let (matrices, result) = (call.at(at).tensor()?, lookup.result(operator)?.sizes()?);
    let sizes = matrices.sizes()?;
    let of_all = |back: [usize; 2]| {
        let [rows, columns, count] = matrix(matrices, back)?;
        Some(times([2, count, of_one(lookup, operator, call, solver, [rows, columns])]))
    };
    let flops = match solver {
        Flops::SingularValues | Flops::Condition | Flops::Svd | Flops::PseudoInverse => of_all(OWN)?,
        Flops::MatrixNorm => {
            of_all(matrix_dims(call, sizes.len())?.map(|dim| sizes.len().saturating_sub(dim + 1)))?
        }
        Flops::TensorInverse => {
            let side = times(sizes.iter().take(usize::try_from(call.int("ind")?).ok()?).copied());
            times([4, side, times(sizes)])
        }
        _ => {
            let side = *sizes.last()?;
            let (with_result, square) =
                (times([2, with_result, side, times(result)]), times([2, square, side, times(sizes)]));
            with_result.saturating_add(square)
        }
    };
    let mut cost = OperatorCost::default();
    add_backward(lookup, &mut cost, matrices, flops);
    Some(cost)
}

/// Multiplications per matrix for gradients through its singular values and vectors, or through its pseudo-inverse.
fn of_one(
    lookup: &Lookup<'_>,
    operator: &Operator,
    call: &Call<'_>,
    solver: Flops,
    [rows, columns]: [u64; 2],
) -> u64 {
    let (least, most) = (rows.min(columns), rows.max(columns));
    let has_vectors = is_used(lookup, operator, 0) || is_used(lookup, operator, 2);
    match solver {
        Flops::PseudoInverse if rows <= columns => times([8, rows, rows, columns]),
        Flops::PseudoInverse => times([4, rows, columns, rows.saturating_add(columns)]),
        // Both sides' vectors and the backward pass, with more for missing vectors.
        Flops::Svd if has_vectors && least == most => times([4, least, least, least]),
        Flops::Svd if has_vectors => times([least, least, times([5, most]).saturating_add(least)]),
        Flops::MatrixNorm if !is_of_singular_values(call) => 0,
        Flops::Condition if call.has("p") => 0,
        _ => times([rows, columns, least]),
    }
}

fn is_used(lookup: &Lookup<'_>, operator: &Operator, output: usize) -> bool {
    operator.outputs.get(output).is_some_and(|value| {
        !lookup.graph.value(*value).consumers.is_empty() || lookup.graph.outputs.contains(value)
    })
}

/// `cov`, `corrcoef`: every row with every row.
pub(super) fn covariance(lookup: &Lookup<'_>, call: &Call<'_>) -> Option<OperatorCost> {
    let input = call.first().ok()?;
    let sizes = input.sizes()?;
    let (rows, columns) = match sizes.as_slice() {
        [] => (1, 1),
        [columns] => (1, *columns),
        [rows, columns, ..] => (*rows, *columns),
    };
    Some(of_two(lookup, input, input, times([2, rows, rows, columns])))
}
