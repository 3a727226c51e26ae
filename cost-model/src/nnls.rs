//! Least squares with coefficients that are not negative.
//!
//! linfa has none. This is Lawson and Hanson (Solving Least Squares Problems, 1974, algorithm 23.10) in the form of
//! Bro and de Jong (J. Chemometrics 11, 1997), which needs only `AᵀA` and `Aᵀb`: O(n·p²) once, then O(p³) for each of
//! the few changes of the active set. Columns are scaled to length one, so `AᵀA` is as well conditioned as it can be.

use ndarray::{Array1, Array2, ArrayView1, ArrayView2, Axis};

use crate::dense::{Cholesky, dot};

/// Returns the `x ≥ 0` that minimises `|A x − b|`.
///
/// Columns of zeros get zero. Equal columns get all weight on the first.
pub(crate) fn nnls(a: ArrayView2<'_, f64>, b: ArrayView1<'_, f64>) -> Vec<f64> {
    let p = a.ncols();
    let lengths: Vec<f64> = a.axis_iter(Axis(1)).map(|column| column.dot(&column).sqrt()).collect();
    let inverse: Array1<f64> = lengths
        .iter()
        .map(|length| if *length > 0.0 && length.is_finite() { 1.0 / length } else { 0.0 })
        .collect();
    let scaled: Array2<f64> = &a * &inverse;
    let gram = scaled.t().dot(&scaled);
    let target = scaled.t().dot(&b);
    let x = solve(gram.as_slice().expect("a fresh matrix"), target.as_slice().expect("a fresh vector"), p);
    x.iter().zip(&inverse).map(|(x, scale)| x * scale).collect()
}

fn solve(gram: &[f64], target: &[f64], p: usize) -> Vec<f64> {
    let tolerance = 1e-10 * target.iter().fold(0.0_f64, |most, value| most.max(value.abs()));
    let mut x = vec![0.0; p];
    let mut free: Vec<usize> = Vec::new();
    let mut refused = vec![false; p];
    // Each round adds one coefficient; the objective falls in each, so the bound is never met in practice.
    for _ in 0..20 * p {
        let gradient = |i: usize| target[i] - dot(&gram[i * p..(i + 1) * p], &x);
        let candidates = (0..p).filter(|i| !free.contains(i) && !refused[*i]);
        let best = candidates.map(|i| (i, gradient(i))).fold(None, |best: Option<(usize, f64)>, next| {
            if best.is_none_or(|best| next.1 > best.1) { Some(next) } else { best }
        });
        let Some((entering, _)) = best.filter(|(_, gradient)| *gradient > tolerance) else { break };
        free.push(entering);
        let mut is_first = true;
        loop {
            let Some(solution) = solve_free(gram, target, p, &free) else {
                // The column hangs on those already free: it can add nothing.
                free.pop();
                refused[entering] = true;
                break;
            };
            if is_first && solution[free.len() - 1] <= 0.0 {
                free.pop();
                refused[entering] = true;
                break;
            }
            is_first = false;
            if solution.iter().all(|value| *value > 0.0) {
                for (i, value) in free.iter().zip(solution) {
                    x[*i] = value;
                }
                refused.fill(false);
                break;
            }
            // Go towards the solution until the first coefficient meets zero; it leaves.
            let step = free
                .iter()
                .zip(&solution)
                .filter(|(_, value)| **value <= 0.0)
                .map(|(i, value)| x[*i] / (x[*i] - value))
                .fold(1.0, f64::min);
            for (i, value) in free.iter().zip(&solution) {
                x[*i] += step * (value - x[*i]);
            }
            free.retain(|i| {
                let stays = x[*i] > 1e-14;
                if !stays {
                    x[*i] = 0.0;
                }
                stays
            });
        }
    }
    x
}

/// Solves for the free coefficients alone.
fn solve_free(gram: &[f64], target: &[f64], p: usize, free: &[usize]) -> Option<Vec<f64>> {
    let matrix: Vec<f64> = free.iter().flat_map(|i| free.iter().map(move |j| gram[i * p + j])).collect();
    let factor = Cholesky::of(&matrix, free.len())?;
    Some(factor.solve(&free.iter().map(|i| target[*i]).collect::<Vec<f64>>()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Tries every set of free coefficients.
    fn brute_force(a: &Array2<f64>, b: &Array1<f64>) -> f64 {
        let p = a.ncols();
        let gram = a.t().dot(a);
        let target = a.t().dot(b);
        let mut best = b.dot(b);
        for set in 1_u32..1 << p {
            let free: Vec<usize> = (0..p).filter(|i| set >> i & 1 == 1).collect();
            let solution =
                solve_free(gram.as_slice().expect("fresh"), target.as_slice().expect("fresh"), p, &free);
            if let Some(solution) = solution.filter(|solution| solution.iter().all(|value| *value >= 0.0)) {
                let mut x = Array1::zeros(p);
                free.iter().zip(solution).for_each(|(i, value)| x[*i] = value);
                let rest = a.dot(&x) - b;
                best = best.min(rest.dot(&rest));
            }
        }
        best
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn it_is_as_good_as_every_set(numbers in proptest::collection::vec(-3.0..3.0_f64, 12 * 6)) {
            let a = Array2::from_shape_fn((12, 5), |(i, j)| numbers[i * 6 + j]);
            let b = Array1::from_shape_fn(12, |i| numbers[i * 6 + 5]);
            let x = nnls(a.view(), b.view());
            prop_assert!(x.iter().all(|value| *value >= 0.0));
            let rest = a.dot(&Array1::from(x)) - &b;
            let best = brute_force(&a, &b);
            prop_assert!(rest.dot(&rest) <= best * (1.0 + 1e-8) + 1e-12, "{} {}", rest.dot(&rest), best);
        }
    }

    #[test]
    fn useless_columns_get_zero() {
        let a = Array2::from_shape_vec((3, 4), vec![1., 0., 1., -1., 2., 0., 2., -2., 3., 0., 3., -3.])
            .expect("3 × 4");
        let x = nnls(a.view(), Array1::from(vec![2., 4., 6.]).view());
        assert!((x[0] - 2.0).abs() < 1e-9, "{x:?}");
        assert_eq!(&x[1..], &[0.0, 0.0, 0.0]);
    }
}
