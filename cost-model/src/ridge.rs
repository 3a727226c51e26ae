//! Ridge regression: squared error plus λ times the squared coefficients; the intercept is free.
//!
//! λ is chosen by cross-validation over normal equations ([`Folds`]); the final fit goes through the QR
//! decomposition of linfa-linear. linfa-linear has no ridge: it is ordinary least squares of the rows
//! `[X − mean; √λ·I]` without intercept, which also cures its trouble with equal columns (it returns coefficients of 10¹²).
//! Where there are more than [`QR_ROWS`] rows for each term the Cholesky factor of the normal equations stands in for
//! those rows: it has the same `XᵀX + λI` in p of them, and linfa's unblocked QR would take 2·n·p² steps.
//!
//! A small profile has fewer rows than a polynomial has terms. There the system of the rows, `XXᵀ + λI`, is the smaller one
//! and has the same solution `Xᵀ (XXᵀ + λI)⁻¹ y` (Saunders, Gammerman and Vovk, ICML 1998): n³/6 steps for p³/6.

use linfa::{Dataset, traits::Fit};
use linfa_linear::LinearRegression;
use ndarray::{Array1, Array2, ArrayView1, ArrayView2, Axis, s};

use crate::dense::Cholesky;

/// Rows for each term up to which the QR decomposition sees the rows themselves.
const QR_ROWS: usize = 2;

/// A linear function.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Linear {
    pub intercept: f64,
    pub coefficients: Vec<f64>,
}

impl Linear {
    pub fn at(&self, x: &[f64]) -> f64 {
        self.intercept + crate::dense::dot(&self.coefficients, x)
    }
}

/// Weighted sums over some rows: all that a ridge fit needs.
#[derive(Clone, Debug)]
struct Sums {
    weight: f64,
    x: Array1<f64>,
    y: f64,
    xx: Array2<f64>,
    xy: Array1<f64>,
}

impl Sums {
    fn of(x: ArrayView2<'_, f64>, y: ArrayView1<'_, f64>, weights: ArrayView1<'_, f64>) -> Self {
        let weighted = &x * &weights.insert_axis(Axis(1));
        Self {
            weight: weights.sum(),
            x: weighted.sum_axis(Axis(0)),
            y: weights.dot(&y),
            xx: weighted.t().dot(&x),
            xy: weighted.t().dot(&y),
        }
    }

    fn minus(&self, other: &Self) -> Self {
        Self {
            weight: self.weight - other.weight,
            x: &self.x - &other.x,
            y: self.y - other.y,
            xx: &self.xx - &other.xx,
            xy: &self.xy - &other.xy,
        }
    }

    fn plus(&self, other: &Self) -> Self {
        Self {
            weight: self.weight + other.weight,
            x: &self.x + &other.x,
            y: self.y + other.y,
            xx: &self.xx + &other.xx,
            xy: &self.xy + &other.xy,
        }
    }

    fn centred(&self) -> Centred {
        let mean = &self.x / self.weight;
        let y_mean = self.y / self.weight;
        let column = mean.view().insert_axis(Axis(1));
        let xx = &self.xx - &(column.dot(&column.t()) * self.weight);
        let xy = &self.xy - &(&mean * (self.weight * y_mean));
        Centred { mean, y_mean, system: System::Terms { xx, xy } }
    }
}

/// Centred rows: their means are subtracted.
#[derive(Clone, Debug)]
struct Centred {
    mean: Array1<f64>,
    y_mean: f64,
    system: System,
}

/// The smaller of two systems that have the same solution.
#[derive(Clone, Debug)]
enum System {
    /// `XᵀX` and `Xᵀy`.
    Terms { xx: Array2<f64>, xy: Array1<f64> },
    /// `X`, `XXᵀ` and `y`, each row times the root of its weight.
    Rows { x: Array2<f64>, xx: Array2<f64>, y: Array1<f64> },
}

impl Centred {
    fn of(x: ArrayView2<'_, f64>, y: ArrayView1<'_, f64>, weights: ArrayView1<'_, f64>) -> Self {
        if x.nrows() >= x.ncols() {
            return Sums::of(x, y, weights).centred();
        }
        let weight = weights.sum();
        let (mean, y_mean) = (weights.dot(&x) / weight, weights.dot(&y) / weight);
        let (x, y) = by_root(x, y, weights, (&mean, y_mean));
        Self { mean, y_mean, system: System::Rows { xx: x.dot(&x.t()), x, y } }
    }

    fn solve(&self, lambda: f64) -> Option<Linear> {
        let factor = self.factor(lambda)?;
        let coefficients = match &self.system {
            System::Terms { xy, .. } => factor.solve(xy.as_slice()?),
            System::Rows { x, y, .. } => Array1::from(factor.solve(y.as_slice()?)).dot(x).to_vec(),
        };
        Some(self.linear(coefficients))
    }

    /// Adds the intercept.
    fn linear(&self, coefficients: Vec<f64>) -> Linear {
        let intercept =
            self.y_mean - self.mean.iter().zip(&coefficients).map(|(mean, b)| mean * b).sum::<f64>();
        Linear { intercept, coefficients }
    }

    /// Returns the `L` of `L Lᵀ = XᵀX + λI`, or of `XXᵀ + λI`.
    fn factor(&self, lambda: f64) -> Option<Cholesky> {
        let (System::Terms { xx, .. } | System::Rows { xx, .. }) = &self.system;
        let mut xx = xx.clone();
        xx.diag_mut().mapv_inplace(|value| value + lambda);
        Cholesky::of(xx.as_slice()?, xx.nrows())
    }
}

/// Rows without their means, each times the root of its weight.
fn by_root(
    x: ArrayView2<'_, f64>,
    y: ArrayView1<'_, f64>,
    weights: ArrayView1<'_, f64>,
    (mean, y_mean): (&Array1<f64>, f64),
) -> (Array2<f64>, Array1<f64>) {
    let roots = weights.mapv(f64::sqrt);
    ((&x - mean) * roots.view().insert_axis(Axis(1)), (&y - y_mean) * &roots)
}

/// Rows dealt out to folds, for honest errors.
#[derive(Clone, Debug)]
pub(crate) struct Folds {
    all: Centred,
    /// Of each fold's complement.
    others: Vec<Centred>,
}

impl Folds {
    /// Row `i` belongs to fold `i mod n`; the caller shuffles.
    pub fn of(
        x: ArrayView2<'_, f64>,
        y: ArrayView1<'_, f64>,
        weights: ArrayView1<'_, f64>,
        n: usize,
    ) -> Self {
        if x.nrows() - x.nrows() / n < x.ncols() {
            let others = |fold: usize| {
                let rows: Vec<usize> = (0..x.nrows()).filter(|i| i % n != fold).collect();
                let (y, weights) = (y.select(Axis(0), &rows), weights.select(Axis(0), &rows));
                Centred::of(x.select(Axis(0), &rows).view(), y.view(), weights.view())
            };
            return Self { all: Centred::of(x, y, weights), others: (0..n).map(others).collect() };
        }
        let every = n as isize;
        let parts: Vec<Sums> = (0..every)
            .map(|fold| {
                Sums::of(
                    x.slice(s![fold..;every, ..]),
                    y.slice(s![fold..;every]),
                    weights.slice(s![fold..;every]),
                )
            })
            .collect();
        let all = parts.iter().skip(1).fold(parts[0].clone(), |sum, part| sum.plus(part));
        let others = parts.iter().map(|part| all.minus(part).centred()).collect();
        Self { all: all.centred(), others }
    }

    /// Fits each fold's complement; `None` where the system is singular.
    pub fn fits(&self, lambda: f64) -> Option<Vec<Linear>> {
        self.others.iter().map(|others| others.solve(lambda)).collect()
    }

    /// Predicts each row from the rows of the other folds.
    pub fn held_out(&self, x: ArrayView2<'_, f64>, lambda: f64) -> Option<Vec<f64>> {
        let fits = self.fits(lambda)?;
        Some(
            x.outer_iter()
                .enumerate()
                .map(|(i, row)| fits[i % fits.len()].at(row.as_slice().unwrap_or_default()))
                .collect(),
        )
    }

    /// Fits all rows by normal equations.
    pub fn fit(&self, lambda: f64) -> Option<Linear> {
        self.all.solve(lambda)
    }
}

/// Fits all rows by normal equations; `None` when they are singular.
pub(crate) fn ridge(
    x: ArrayView2<'_, f64>,
    y: ArrayView1<'_, f64>,
    weights: ArrayView1<'_, f64>,
    lambda: f64,
) -> Option<Linear> {
    Centred::of(x, y, weights).solve(lambda)
}

/// Fits all rows through linfa's QR; `None` when even that is singular.
pub(crate) fn fit_qr(
    x: ArrayView2<'_, f64>,
    y: ArrayView1<'_, f64>,
    weights: ArrayView1<'_, f64>,
    lambda: f64,
) -> Option<Linear> {
    let (n, p) = x.dim();
    let centred = Centred::of(x, y, weights);
    let root = lambda.sqrt();
    let (rows, targets) = match &centred.system {
        // α = argmin |[Xᵀ; √λ·I] α − [0; y/√λ]|², whose normal equations are those of the rows; then β = Xᵀα.
        System::Rows { x, y, .. } => below(&x.t(), root, (Array1::zeros(p), y / root)),
        // L Lᵀ = XᵀX + λI, and the targets that give the same Xᵀy; none where the ridge is too small for equal columns.
        System::Terms { xy, .. } => match (n > QR_ROWS * p).then(|| centred.factor(lambda)).flatten() {
            Some(factor) => {
                let rows = Array2::from_shape_fn((p, p), |(i, j)| if i <= j { factor.at(j, i) } else { 0.0 });
                (rows, Array1::from(factor.forward(xy.as_slice()?)))
            }
            None => {
                let (x, y) = by_root(x, y, weights, (&centred.mean, centred.y_mean));
                below(&x.view(), root, (y, Array1::zeros(p)))
            }
        },
    };
    let fitted = LinearRegression::new().with_intercept(false).fit(&Dataset::new(rows, targets)).ok()?;
    let coefficients = match &centred.system {
        System::Rows { x, .. } => fitted.params().dot(x).to_vec(),
        System::Terms { .. } => fitted.params().to_vec(),
    };
    let linear = centred.linear(coefficients);
    (linear.intercept.is_finite() && linear.coefficients.iter().all(|value| value.is_finite()))
        .then_some(linear)
}

/// Puts `root · I` below a matrix, and one part of the targets below the other.
fn below(
    above: &ArrayView2<'_, f64>,
    root: f64,
    targets: (Array1<f64>, Array1<f64>),
) -> (Array2<f64>, Array1<f64>) {
    let (n, p) = above.dim();
    let mut rows = Array2::zeros((n + p, p));
    rows.slice_mut(s![..n, ..]).assign(above);
    rows.slice_mut(s![n.., ..]).diag_mut().fill(root);
    (rows, targets.0.into_iter().chain(targets.1).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(n: usize) -> (Array2<f64>, Array1<f64>, Array1<f64>) {
        let x = Array2::from_shape_fn((n, 4), |(i, j)| ((i * 7 + j * 13 + i * j) % 11) as f64 / 3.0);
        let y = x.outer_iter().map(|row| 1.0 + 2.0 * row[0] - row[1] + 0.5 * row[3]).collect();
        (x, y, Array1::from_shape_fn(n, |i| 0.5 + (i % 3) as f64))
    }

    fn check_close(a: &Linear, b: &Linear, tolerance: f64) {
        assert!((a.intercept - b.intercept).abs() < tolerance, "{a:?} {b:?}");
        a.coefficients
            .iter()
            .zip(&b.coefficients)
            .for_each(|(a, b)| assert!((a - b).abs() < tolerance, "{a} {b}"));
    }

    #[test]
    fn qr_is_the_closed_form() {
        for n in [3, 4 * QR_ROWS, 400] {
            let (x, y, weights) = data(n);
            for lambda in [1e-6, 0.1, 10.0] {
                let closed = Folds::of(x.view(), y.view(), weights.view(), 5).fit(lambda).expect("regular");
                let qr = fit_qr(x.view(), y.view(), weights.view(), lambda).expect("regular");
                check_close(&closed, &qr, 1e-8);
            }
        }
    }

    #[test]
    fn the_system_of_the_rows_has_the_solution_of_that_of_the_terms() {
        let (x, y, weights) = data(4);
        let wide = ndarray::concatenate(Axis(1), &[x.view(), x.mapv(f64::sqrt).view()]).expect("equal rows");
        for lambda in [1e-4, 0.1, 10.0] {
            let by_rows = Centred::of(wide.view(), y.view(), weights.view());
            assert!(matches!(by_rows.system, System::Rows { .. }));
            let by_terms = Sums::of(wide.view(), y.view(), weights.view()).centred();
            let (by_rows, by_terms) = (by_rows.solve(lambda), by_terms.solve(lambda));
            let by_terms = by_terms.expect("regular");
            check_close(&by_rows.expect("regular"), &by_terms, 1e-8);
            check_close(
                &fit_qr(wide.view(), y.view(), weights.view(), lambda).expect("regular"),
                &by_terms,
                1e-8,
            );
        }
        // Folds deal the rows the same way in either form.
        let (x, y, weights) = data(12);
        let wide =
            ndarray::concatenate(Axis(1), &[x.view(), x.mapv(f64::sqrt).view(), x.mapv(f64::ln_1p).view()]);
        let wide = wide.expect("equal rows");
        let folds = Folds::of(wide.view(), y.view(), weights.view(), 5);
        for (fold, fitted) in folds.fits(0.1).expect("regular").iter().enumerate() {
            let others: Vec<usize> = (0..12).filter(|i| i % 5 != fold).collect();
            let (y, weights) = (y.select(Axis(0), &others), weights.select(Axis(0), &others));
            let by_terms = Sums::of(wide.select(Axis(0), &others).view(), y.view(), weights.view()).centred();
            check_close(fitted, &by_terms.solve(0.1).expect("regular"), 1e-8);
        }
    }

    #[test]
    fn equal_columns_are_no_trouble() {
        let (x, y, weights) = data(60);
        let twice = ndarray::concatenate(Axis(1), &[x.view(), x.view()]).expect("equal rows");
        let fit = |lambda| fit_qr(twice.view(), y.view(), weights.view(), lambda).expect("regular");
        let usual = fit(1e-3);
        assert!((usual.coefficients[0] - 1.0).abs() < 1e-2, "{usual:?}");
        assert!((usual.coefficients[0] - usual.coefficients[4]).abs() < 1e-9, "{usual:?}");
        // Too small a ridge for normal equations, but not for the rows themselves.
        let small = fit(1e-13);
        let both = small.coefficients[0] + small.coefficients[4];
        assert!((both - 2.0).abs() < 1e-3, "{small:?}");
    }

    #[test]
    fn a_fold_does_not_see_itself() {
        let (x, y, weights) = data(50);
        let folds = Folds::of(x.view(), y.view(), weights.view(), 5);
        let mut changed = y;
        changed[0] = 1e6;
        let other = Folds::of(x.view(), changed.view(), weights.view(), 5);
        let (a, b) = (folds.held_out(x.view(), 0.1), other.held_out(x.view(), 0.1));
        assert!((a.expect("regular")[0] - b.expect("regular")[0]).abs() < 1e-6);
    }
}
