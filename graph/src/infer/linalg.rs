//! Linear algebra: solvers and factors of batches of matrices, which LAPACK writes column after column.

use tracer::DType;

use super::{
    call::{Call, Known, Result, contiguous_strides, fresh, reject, shape},
    elementwise::broadcast,
};
use crate::fact::{Fact, Shape, TensorFact, show_shape};

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
        _ => reject!("{} is no matrix", show_shape(sizes)),
    }
}

/// A fresh matrix as LAPACK writes it: column after column.
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
