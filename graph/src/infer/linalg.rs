//! Linear algebra: solvers and factors of batches of matrices, which LAPACK writes column by column.

use operators::ShapeRule;
use tracer::DType;

use super::{
    call::{Call, Known, Result, Stop, contiguous_strides, fresh, fresh_fact, reject, shape},
    elementwise::{broadcast, complex_of, real_of},
    matmul::{agree, product},
    rules::rules,
};
use crate::fact::{Dim, Fact, Shape, TensorFact, show_shape};

rules! {
    square: Square,
    square_with_code: SquareWithInfo,
    power: MatrixPower,
    solved: SolveTriangular,
    system: Solve,
    solved_from_factors: SolveFromFactors | FactorsFirst | OldTriangularSolve,
    least_squares: LeastSquares,
    pseudo_inverse: PseudoInverse,
    determinant: Determinant | SignAndDeterminant,
    measured: MatrixRank | Condition,
    eigen: Eigen | EigenValues | HermitianEigen | HermitianEigenValues,
    singular: Svd | SingularValues | OldSvd,
    orthogonal: Qr,
    reflections: Geqrf,
    reflected: Householder,
    factored: Factors | SquareFactors,
    triangles: LuTriangles,
    chain: Chain,
    tensor_inverse: TensorInverse,
}

/// `linalg_solve_triangular`: the right side's sizes; batches broadcast.
pub fn solved(call: &Call<'_>) -> Result {
    let (a, b) = (call.at(0).tensor().known()?, call.at(1).tensor().known()?);
    let (x, y) = (shape(a)?, shape(b)?);
    let (Some(outer), Some(rows)) = (x.len().checked_sub(2), y.len().checked_sub(2)) else {
        reject!("no matrices: {} and {}", show_shape(x), show_shape(y));
    };
    let batches = [Shape::from_slice(&x[..outer]), Shape::from_slice(&y[..rows])];
    let mut sizes = broadcast(&[&batches[0], &batches[1]])?;
    sizes.extend_from_slice(&y[rows..]);
    Ok(by_columns(b.dtype, sizes))
}

/// `linalg_inv`, `linalg_cholesky`: the matrix's sizes.
pub fn square(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let sizes = shape(input)?;
    match sizes.as_slice() {
        [.., Some(rows), Some(columns)] if rows != columns => reject!("{} is not square", show_shape(sizes)),
        [.., _, _] => Ok(by_columns(input.dtype, sizes.clone())),
        _ => reject!("{} is not a matrix", show_shape(sizes)),
    }
}

/// A fresh matrix in LAPACK's order: column by column.
fn by_columns(dtype: Option<DType>, sizes: Shape) -> Fact {
    let (rows, columns) = (sizes.len() - 2, sizes.len() - 1);
    let mut turned = sizes.clone();
    turned.swap(rows, columns);
    let mut strides = contiguous_strides(&turned);
    if let Some(strides) = &mut strides {
        strides.swap(rows, columns);
    }
    Fact::Tensor(TensorFact { strides, ..fresh(dtype, sizes) })
}

/// The last two sizes of a matrix and the sizes before them.
struct Matrix {
    batch: Shape,
    rows: Dim,
    columns: Dim,
}

impl Matrix {
    fn of(tensor: &TensorFact) -> Result<Self> {
        let sizes = shape(tensor)?;
        match sizes.as_slice() {
            [batch @ .., rows, columns] => {
                Ok(Self { batch: Shape::from_slice(batch), rows: *rows, columns: *columns })
            }
            _ => reject!("{} is not a matrix", show_shape(sizes)),
        }
    }

    fn square(tensor: &TensorFact) -> Result<Self> {
        let matrix = Self::of(tensor)?;
        agree(matrix.rows, matrix.columns, || {
            format!("{} is not square", show_shape(tensor.shape.as_deref().unwrap_or(&[])))
        })?;
        Ok(matrix)
    }

    /// The number of pivots, singular values or reflections.
    fn least(&self) -> Dim {
        self.rows.zip(self.columns).map(|(rows, columns)| rows.min(columns))
    }

    /// Sizes of the same batch with other last dimensions.
    fn with(&self, last: &[Dim]) -> Shape {
        self.batch.iter().chain(last).copied().collect()
    }
}

fn in_order(dtype: Option<DType>, sizes: Shape) -> Fact {
    Fact::Tensor(fresh(dtype, sizes))
}

fn nothing(dtype: Option<DType>) -> Fact {
    in_order(dtype, Shape::from_slice(&[Some(0)]))
}

fn real(dtype: Option<DType>) -> Option<DType> {
    dtype.map(real_of)
}

/// Exit codes and pivots.
const WHOLE: Option<DType> = Some(DType::Int32);

/// `linalg_det`, `logdet`, `linalg_slogdet`: one number per matrix, two with a separate sign.
pub fn determinant(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let matrix = Matrix::square(input)?;
    let number = |dtype| in_order(dtype, matrix.batch.clone());
    let mut all = vec![number(input.dtype)];
    if call.shape_rule() == ShapeRule::SignAndDeterminant {
        all.push(number(real(input.dtype)));
    } else if call.n_outputs < 2 {
        return Ok(number(input.dtype));
    }
    all.extend([
        by_columns(input.dtype, shape(input)?.clone()),
        in_order(WHOLE, matrix.with(&[matrix.rows])),
    ]);
    all.truncate(call.n_outputs);
    Ok(Fact::List(all))
}

/// `linalg_cholesky_ex`, `linalg_inv_ex`: the matrix's sizes, and an exit code.
pub fn square_with_code(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let matrix = Matrix::square(input)?;
    Ok(Fact::List(vec![square(call)?, in_order(WHOLE, matrix.batch)]))
}

/// `linalg_matrix_power`: products, or those of the inverse.
pub fn power(call: &Call<'_>) -> Result {
    let input = call.first()?;
    match call.int("n") {
        Some(n) if n < 0 => square(call),
        _ => Matrix::square(input).and_then(|_| fresh_fact(input.dtype, shape(input)?.clone())),
    }
}

/// `linalg_eig`, `linalg_eigh`, `linalg_eigvals`, `linalg_eigvalsh`: those of a symmetric matrix are real.
pub fn eigen(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let matrix = Matrix::square(input)?;
    let (of_values, of_vectors) = match call.shape_rule() {
        ShapeRule::HermitianEigen | ShapeRule::HermitianEigenValues => (real(input.dtype), input.dtype),
        _ => (input.dtype.map(complex_of), input.dtype.map(complex_of)),
    };
    let values = in_order(of_values, matrix.with(&[matrix.rows]));
    if matches!(call.shape_rule(), ShapeRule::EigenValues | ShapeRule::HermitianEigenValues) {
        Ok(values)
    } else {
        Ok(Fact::List(vec![values, by_columns(of_vectors, shape(input)?.clone())]))
    }
}

/// `linalg_svd`, `svd`, `linalg_svdvals`: `U [m, m]`, `S [k]`, `Vh [n, n]` or, when thin, `U [m, k]`, `S [k]`, `Vh [k, n]`.
pub fn singular(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let matrix = Matrix::of(input)?;
    let least = matrix.least();
    let values = in_order(real(input.dtype), matrix.with(&[least]));
    if call.shape_rule() == ShapeRule::SingularValues {
        return Ok(values);
    }
    let is_old = call.shape_rule() == ShapeRule::OldSvd;
    let has_vectors = call.flag("compute_uv") != Some(false);
    let is_full = if is_old {
        !has_vectors || call.flag("some").known().map(|some| !some)?
    } else {
        call.flag("full_matrices").known()?
    };
    if !is_old && !has_vectors {
        return Ok(Fact::List(vec![nothing(input.dtype), values, nothing(input.dtype)]));
    }
    let (left, right) = if is_full { (matrix.rows, matrix.columns) } else { (least, least) };
    let u = by_columns(input.dtype, matrix.with(&[matrix.rows, left]));
    // The old form returns V, the new one its transpose.
    let v = if is_old {
        in_order(input.dtype, matrix.with(&[matrix.columns, right]))
    } else {
        by_columns(input.dtype, matrix.with(&[right, matrix.columns]))
    };
    Ok(Fact::List(vec![u, values, v]))
}

/// `linalg_qr`, `qr`: `Q [m, k]`, `R [k, n]`; complete `Q [m, m]`, `R [m, n]`.
pub fn orthogonal(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let matrix = Matrix::of(input)?;
    let mode = match (call.get("mode"), call.flag("some")) {
        (Some(Fact::Str(mode)), _) => mode.as_str(),
        (_, Some(true)) => "reduced",
        (_, Some(false)) => "complete",
        _ => return Err(Stop::Unknown),
    };
    let inner = if mode == "complete" { matrix.rows } else { matrix.least() };
    let q = match mode {
        "r" => nothing(input.dtype),
        _ => by_columns(input.dtype, matrix.with(&[matrix.rows, inner])),
    };
    Ok(Fact::List(vec![q, by_columns(input.dtype, matrix.with(&[inner, matrix.columns]))]))
}

/// `geqrf`: reflections below the diagonal, and one number for each.
pub fn reflections(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let matrix = Matrix::of(input)?;
    let numbers = in_order(input.dtype, matrix.with(&[matrix.least()]));
    Ok(Fact::List(vec![by_columns(input.dtype, shape(input)?.clone()), numbers]))
}

/// `linalg_householder_product`, `orgqr` and `ormqr`: the sizes of the multiplied matrix.
pub fn reflected(call: &Call<'_>) -> Result {
    let input = call.get("input3").or(call.get("input")).or(call.get("self"));
    let input = input.and_then(Fact::tensor).known()?;
    Matrix::of(input)?;
    Ok(by_columns(input.dtype, shape(input)?.clone()))
}

/// `linalg_lu_factor`, `linalg_ldl_factor` and their forms with an exit code: factors in one matrix, with pivots.
pub fn factored(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let matrix = match call.shape_rule() {
        ShapeRule::SquareFactors => Matrix::square(input)?,
        _ => Matrix::of(input)?,
    };
    let mut all = vec![
        by_columns(input.dtype, shape(input)?.clone()),
        in_order(WHOLE, matrix.with(&[matrix.least()])),
        in_order(WHOLE, matrix.batch),
    ];
    all.truncate(call.n_outputs);
    Ok(Fact::List(all))
}

/// `linalg_lu`, `lu_unpack`: `P [m, m]`, `L [m, k]`, `U [k, n]`; results that are not requested are empty.
pub fn triangles(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let matrix = Matrix::of(input)?;
    let least = matrix.least();
    let is_wanted = |name: &str| call.flag(name) != Some(false);
    let part = |is_wanted: bool, rows: Dim, columns: Dim| {
        if is_wanted { in_order(input.dtype, matrix.with(&[rows, columns])) } else { nothing(input.dtype) }
    };
    let has_order = is_wanted("pivot") && is_wanted("unpack_pivots");
    let has_data = is_wanted("unpack_data");
    Ok(Fact::List(vec![
        part(has_order, matrix.rows, matrix.rows),
        part(has_data, matrix.rows, least),
        part(has_data, least, matrix.columns),
    ]))
}

/// Tells whether the right side of a system has one vector per matrix: either plainly so, or its sizes are the
/// matrices' without the last.
fn is_vector(matrices: &Shape, right: &Shape) -> bool {
    right.len() == 1 || matrices.split_last().is_some_and(|(_, rest)| rest == right.as_slice())
}

/// The broadcast sizes of two batches.
fn together(a: &Matrix, b: &Matrix) -> Result<Shape> {
    broadcast(&[&a.batch, &b.batch])
}

/// `linalg_solve`, `linalg_solve_ex`: the right side's sizes, with broadcast batches; a vector stays one.
pub fn system(call: &Call<'_>) -> Result {
    let (a, b) = (call.at(0).tensor().known()?, call.at(1).tensor().known()?);
    let matrix = Matrix::square(a)?;
    let (x, y) = (shape(a)?, shape(b)?);
    let shown = || format!("no system of equations: {} with {}", show_shape(x), show_shape(y));
    let solution = if is_vector(x, y) {
        let (last, rest) = y.split_last().known()?;
        agree(matrix.columns, *last, shown)?;
        let mut sizes = broadcast(&[&matrix.batch, &Shape::from_slice(rest)])?;
        sizes.push(*last);
        match sizes.len() {
            1 => in_order(b.dtype, sizes),
            // The last two dimensions are written as a matrix, whatever they mean.
            _ => by_columns(b.dtype, sizes),
        }
    } else {
        let right = Matrix::of(b)?;
        let is_left = call.flag("left") != Some(false);
        agree(matrix.columns, if is_left { right.rows } else { right.columns }, shown)?;
        let mut sizes = together(&matrix, &right)?;
        sizes.extend([right.rows, right.columns]);
        if is_left { by_columns(b.dtype, sizes) } else { in_order(b.dtype, sizes) }
    };
    if call.n_outputs < 2 {
        return Ok(solution);
    }
    let code = in_order(WHOLE, matrix.batch.clone());
    // The underlying form also returns the factors.
    Ok(Fact::List(match call.n_outputs {
        2 => vec![solution, code],
        _ => {
            vec![solution, by_columns(a.dtype, x.clone()), in_order(WHOLE, matrix.with(&[matrix.rows])), code]
        }
    }))
}

/// `cholesky_solve`, `lu_solve`, `linalg_lu_solve`, `linalg_ldl_solve`, `triangular_solve`: from factors, the right
/// side's sizes with broadcast batches.
pub fn solved_from_factors(call: &Call<'_>) -> Result {
    let (factors, right) = match call.shape_rule() {
        ShapeRule::FactorsFirst => (call.at(0), call.at(2)),
        _ => (call.at(1), call.at(0)),
    };
    let (factors, right) = (factors.tensor().known()?, right.tensor().known()?);
    let (a, b) = (Matrix::square(factors)?, Matrix::of(right)?);
    let batch = together(&a, &b)?;
    let spread = |of: &Matrix| -> Shape { batch.iter().copied().chain([of.rows, of.columns]).collect() };
    let solution = by_columns(right.dtype, spread(&b));
    match call.shape_rule() {
        ShapeRule::OldTriangularSolve => {
            Ok(Fact::List(vec![solution, by_columns(factors.dtype, spread(&a))]))
        }
        _ => Ok(solution),
    }
}

/// `linalg_lstsq`: one solution per right side. The further results are present or empty, depending on the driver and
/// the ranks.
pub fn least_squares(call: &Call<'_>) -> Result {
    let (a, b) = (call.at(0).tensor().known()?, call.at(1).tensor().known()?);
    let matrix = Matrix::of(a)?;
    let (x, y) = (shape(a)?, shape(b)?);
    let mut sizes = if is_vector(x, y) {
        let (_, rest) = y.split_last().known()?;
        broadcast(&[&matrix.batch, &Shape::from_slice(rest)])?
    } else {
        together(&matrix, &Matrix::of(b)?)?
    };
    sizes.push(matrix.columns);
    if !is_vector(x, y) {
        sizes.extend(y.last().copied());
    }
    let solution = Fact::Tensor(TensorFact { strides: None, ..fresh(b.dtype, sizes) });
    let beside = |dtype| Fact::Tensor(TensorFact { dtype, ..TensorFact::default() });
    let of_numbers = real(a.dtype);
    Ok(Fact::List(vec![solution, beside(of_numbers), beside(Some(DType::Int64)), beside(of_numbers)]))
}

/// `linalg_pinv`, `pinverse`: the transpose's sizes.
pub fn pseudo_inverse(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let matrix = Matrix::of(input)?;
    fresh_fact(input.dtype, matrix.with(&[matrix.columns, matrix.rows]))
}

/// `linalg_matrix_rank`, `linalg_cond`: one number per matrix.
pub fn measured(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let is_condition = call.shape_rule() == ShapeRule::Condition;
    let dtype = if is_condition { real(input.dtype) } else { Some(DType::Int64) };
    fresh_fact(dtype, Matrix::of(input)?.batch)
}

/// `linalg_multi_dot`, `chain_matmul`: a product of all; only the first and the last may be vectors.
pub fn chain(call: &Call<'_>) -> Result {
    let all = call.tensors();
    let (first, rest) = all.split_first().known()?;
    let mut sizes = shape(first)?.clone();
    for next in rest {
        if sizes.is_empty() {
            reject!("a vector in the middle of a product of matrices");
        }
        sizes = product(&sizes, shape(next)?)?;
    }
    fresh_fact(first.dtype, sizes)
}

/// `linalg_tensorinv`: the last sizes before the first.
pub fn tensor_inverse(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let sizes = shape(input)?;
    let at = call.int("ind").and_then(|at| usize::try_from(at).ok()).known()?;
    let (Some(first), Some(last)) = (sizes.get(..at), sizes.get(at..)) else {
        reject!("{} has no {at} dimensions", show_shape(sizes));
    };
    Ok(without_strides(input.dtype, last.iter().chain(first).copied().collect()))
}

fn without_strides(dtype: Option<DType>, sizes: Shape) -> Fact {
    Fact::Tensor(TensorFact { strides: None, ..fresh(dtype, sizes) })
}
