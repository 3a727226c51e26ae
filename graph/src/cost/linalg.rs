//! What linear algebra costs: factors that are kept beside the result, and products behind other names; measured with
//! torch's own hooks and counter.

use super::{
    OperatorCost,
    chain::{keep_chain, keep_power},
    flops::{add_backward, of_two},
    look::Look,
    saved::Keep,
    times,
};
use crate::{
    fact::{Fact, TensorFact},
    infer::Call,
    model::Operator,
};

/// Keeps what such an operator keeps; false when it is none of them.
pub(super) fn keep_linear_algebra(
    keep: &mut Keep<'_>,
    call: &Call<'_>,
    result: Option<&TensorFact>,
    outputs: &[&Fact],
) -> bool {
    let Some(first) = call.tensors().first().copied() else { return false };
    let keep_outputs = |keep: &mut Keep<'_>, n: usize| {
        outputs.iter().take(n).flat_map(|fact| fact.tensors()).for_each(|tensor| keep.tensor(tensor));
    };
    match call.name {
        // The factors, with a pivot for each row.
        "linalg_det" | "det" | "logdet" | "linalg_slogdet" | "slogdet" => {
            keep.tensor(first);
            keep_factors(keep, first);
            match call.name {
                // The sign, and where it is negative.
                "logdet" => {
                    let one = first.dtype.map(tracer::DType::bytes);
                    let numbers = result.and_then(TensorFact::elements);
                    keep.fresh(numbers.zip(one).map(|(n, one)| times([n, one + 1])));
                }
                _ => keep_outputs(keep, 1),
            }
        }
        "linalg_solve" | "linalg_solve_ex" | "linalg_tensorsolve" => {
            keep.tensor(first);
            match call.name {
                "linalg_tensorsolve" => {
                    keep.fresh(first.bytes());
                    keep.fresh(result.and_then(TensorFact::elements).map(|rows| rows.saturating_mul(4)));
                }
                _ => keep_factors(keep, first),
            }
            keep_outputs(keep, 1);
        }
        "cholesky_solve"
        | "lu_solve"
        | "triangular_solve"
        | "linalg_householder_product"
        | "orgqr"
        | "ormqr" => {
            call.tensors().into_iter().for_each(|tensor| keep.tensor(tensor));
            keep_outputs(keep, 1);
        }
        "linalg_lu_solve" => {
            call.tensors().into_iter().take(2).for_each(|tensor| keep.tensor(tensor));
            keep_outputs(keep, 1);
        }
        "linalg_lstsq" => {
            call.tensors().into_iter().for_each(|tensor| keep.tensor(tensor));
            keep_outputs(keep, 1);
            // The solution is written over a copy of the right sides, which are longer where there are too many.
            keep.fresh(result.and_then(|solution| beyond(first, solution)));
        }
        "linalg_eig" | "linalg_eigh" | "linalg_svd" | "svd" | "linalg_qr" | "qr" | "linalg_lu" => {
            keep_outputs(keep, outputs.len());
        }
        "linalg_lu_factor" | "linalg_lu_factor_ex" => keep_outputs(keep, 2),
        "lu_unpack" => {}
        // The vectors are computed as well.
        "linalg_eigvals" => {
            keep_outputs(keep, 1);
            let bytes = result.and_then(|values| values.dtype).map(tracer::DType::bytes);
            keep.fresh(first.elements().zip(bytes).map(|(n, bytes)| n.saturating_mul(bytes)));
        }
        "linalg_eigvalsh" => {
            keep_outputs(keep, 1);
            keep.fresh(first.bytes());
        }
        "linalg_svdvals" => {
            keep_outputs(keep, 1);
            keep.fresh(singular_vectors(first, OWN));
        }
        "linalg_matrix_norm" => keep_norm(keep, call, first, result),
        "linalg_cond" => match call.get("p") {
            None | Some(Fact::None) => {
                let all = singular_vectors(first, OWN).zip(singular_values(first, OWN));
                keep.fresh(all.map(|(vectors, values)| vectors.saturating_add(values)));
            }
            _ => keep.is_all = false,
        },
        "linalg_matrix_power" | "matrix_power" => keep.is_all &= keep_power(keep, call, result).is_some(),
        "linalg_multi_dot" | "chain_matmul" => keep.is_all &= keep_chain(keep, call).is_some(),
        "linalg_vander" => {
            keep.tensor(first);
            let power = first.bytes().zip(first.elements().filter(|n| *n > 0)).map(|(bytes, n)| bytes / n);
            let columns = result.and_then(|result| result.shape.as_ref()?.last().copied().flatten());
            let all = first.elements().zip(columns).zip(power);
            keep.fresh(all.map(|((n, columns), power)| times([n, columns.saturating_sub(1), power])));
        }
        _ => return false,
    }
    true
}

/// Keeps both factors of matrices in one, and the order of rows as 32-bit numbers.
fn keep_factors(keep: &mut Keep<'_>, matrices: &TensorFact) {
    keep.fresh(matrices.bytes());
    let columns = matrices.shape.as_ref().and_then(|shape| shape.last().copied().flatten());
    let rows = matrices.elements().zip(columns.filter(|n| *n > 0)).map(|(n, columns)| n / columns);
    keep.fresh(rows.map(|rows| rows.saturating_mul(4)));
}

/// Tells whether a norm of matrices is one of their singular values.
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
        // Sums over rows or over columns, of which the largest is taken.
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

/// The sizes of two dimensions that are counted from the end, and how many such matrices there are.
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

/// Bytes of the rows that a right side has beyond its solution.
fn beyond(matrices: &TensorFact, solution: &TensorFact) -> Option<u64> {
    let [rows, columns, _] = matrix(matrices, OWN)?;
    let per_row = solution.bytes()?.checked_div(columns)?;
    Some(per_row.saturating_mul(rows.saturating_sub(columns)))
}

/// Counted backward only, where the gradient of their matrix is made of products.
pub(super) const SOLVERS: &str = " linalg_solve_triangular linalg_inv inverse linalg_cholesky cholesky linalg_inv_ex \
    linalg_cholesky_ex linalg_solve linalg_solve_ex triangular_solve cholesky_solve lu_solve linalg_lu_solve \
    cholesky_inverse linalg_eigh linalg_eig linalg_eigvalsh linalg_svdvals \
    linalg_svd svd linalg_pinv pinverse linalg_cond linalg_matrix_norm linalg_tensorsolve linalg_tensorinv ";

/// Products with the result, and of square matrices.
pub(super) fn solver(look: &Look<'_>, operator: &Operator, call: &Call<'_>) -> Option<OperatorCost> {
    let (at, with_result, square) = match call.name {
        "triangular_solve" => (1, 1, 0),
        "cholesky_solve" | "lu_solve" => (1, 1, 1),
        "linalg_lu_solve" => (0, 1, 1),
        "cholesky_inverse" => (0, 0, 3),
        "linalg_eigvalsh" => (0, 0, 1),
        "linalg_eig" | "linalg_eigh" if is_used(look, operator, 1) => (0, 0, 3),
        "linalg_eigh" => (0, 0, 1),
        "linalg_eig" => (0, 0, 0),
        name if name.contains("inv") => (0, 2, 0),
        _ => (0, 1, 0),
    };
    let (matrices, result) = (call.at(at).tensor()?, look.result(operator)?.sizes()?);
    let sizes = matrices.sizes()?;
    let flops = match call.name {
        "linalg_svdvals" | "linalg_cond" | "linalg_matrix_norm" | "linalg_svd" | "svd" | "linalg_pinv"
        | "pinverse" => {
            let back = match call.name {
                "linalg_matrix_norm" => {
                    matrix_dims(call, sizes.len())?.map(|dim| sizes.len().saturating_sub(dim + 1))
                }
                _ => OWN,
            };
            let [rows, columns, count] = matrix(matrices, back)?;
            times([2, count, of_one(look, operator, call, [rows, columns])])
        }
        // One matrix of all the dimensions.
        "linalg_tensorsolve" => times([2, times(sizes)]),
        "linalg_tensorinv" => {
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
    add_backward(look, &mut cost, matrices, flops);
    Some(cost)
}

/// The multiplications for one matrix when gradients flow back through its singular values and vectors, or through its
/// pseudo-inverse.
fn of_one(look: &Look<'_>, operator: &Operator, call: &Call<'_>, [rows, columns]: [u64; 2]) -> u64 {
    let (least, most) = (rows.min(columns), rows.max(columns));
    let has_vectors = is_used(look, operator, 0) || is_used(look, operator, 2);
    match call.name {
        "linalg_pinv" | "pinverse" if rows <= columns => times([8, rows, rows, columns]),
        "linalg_pinv" | "pinverse" => times([4, rows, columns, rows.saturating_add(columns)]),
        // Both sides' vectors and the way back, more for the vectors that are not there.
        "linalg_svd" | "svd" if has_vectors && least == most => times([4, least, least, least]),
        "linalg_svd" | "svd" if has_vectors => times([least, least, times([5, most]).saturating_add(least)]),
        "linalg_matrix_norm" if !is_of_singular_values(call) => 0,
        "linalg_cond" if call.has("p") => 0,
        _ => times([rows, columns, least]),
    }
}

fn is_used(look: &Look<'_>, operator: &Operator, output: usize) -> bool {
    operator.outputs.get(output).is_some_and(|value| {
        !look.graph.value(*value).consumers.is_empty() || look.graph.outputs.contains(value)
    })
}

/// `cov`, `corrcoef`: every row with every row.
pub(super) fn covariance(look: &Look<'_>, call: &Call<'_>) -> Option<OperatorCost> {
    let input = call.first().ok()?;
    let sizes = input.sizes()?;
    let (rows, columns) = match sizes.as_slice() {
        [] => (1, 1),
        [columns] => (1, *columns),
        [rows, columns, ..] => (*rows, *columns),
    };
    Some(of_two(look, input, input, times([2, rows, rows, columns])))
}
