//! Small dense systems: Cholesky, and the normal equations that it solves.
//!
//! linfa has neither a Cholesky factor nor weights; cross-validation solves hundreds of these systems, and by normal
//! equations each costs p³/6 instead of the n·p² of a QR. Conditioning is the caller's matter: all systems here are
//! ridge systems or of scaled columns.

/// The lower factor of a symmetric positive definite matrix, by rows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cholesky {
    n: usize,
    /// Row `i` begins at `i (i + 1) / 2`.
    rows: Vec<f64>,
}

impl Cholesky {
    /// Factors a matrix given by rows in full; nothing when it is not positive definite. O(n³/6).
    pub fn of(matrix: &[f64], n: usize) -> Option<Self> {
        let mut rows = vec![0.0; n * (n + 1) / 2];
        for i in 0..n {
            let (above, row) = rows.split_at_mut(i * (i + 1) / 2);
            for j in 0..=i {
                let (this, other) = (&row[..j], if j == i { None } else { Some(j * (j + 1) / 2) });
                match other {
                    Some(start) => {
                        let sum = matrix[i * n + j] - dot(this, &above[start..start + j]);
                        row[j] = sum / above[start + j];
                    }
                    None => {
                        let sum = matrix[i * n + i] - dot(this, this);
                        // Rounding leaves a tiny positive rest where the true pivot is zero.
                        if !(sum.is_finite() && sum > 1e-13 * matrix[i * n + i].abs()) {
                            return None;
                        }
                        row[i] = sum.sqrt();
                    }
                }
            }
        }
        Some(Self { n, rows })
    }

    /// Returns an element of the lower triangle.
    pub fn at(&self, i: usize, j: usize) -> f64 {
        self.row(i)[j]
    }

    fn row(&self, i: usize) -> &[f64] {
        &self.rows[i * (i + 1) / 2..(i + 1) * (i + 2) / 2]
    }

    /// Solves `L y = b`.
    pub fn forward(&self, b: &[f64]) -> Vec<f64> {
        let mut y = b.to_vec();
        for i in 0..self.n {
            let row = self.row(i);
            y[i] = (y[i] - dot(&row[..i], &y[..i])) / row[i];
        }
        y
    }

    /// Solves `L Lᵀ x = b`.
    pub fn solve(&self, b: &[f64]) -> Vec<f64> {
        self.backward(self.forward(b))
    }

    /// Solves `Lᵀ x = y`.
    pub fn backward(&self, y: Vec<f64>) -> Vec<f64> {
        let mut x = y;
        for i in (0..self.n).rev() {
            let row = self.row(i);
            x[i] /= row[i];
            let value = x[i];
            for (other, factor) in x[..i].iter_mut().zip(row) {
                *other -= factor * value;
            }
        }
        x
    }
}

/// Returns the inner product; sixteen sums keep the processor's lanes full and the result the same everywhere.
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    const LANES: usize = 16;
    let mut sums = [0.0; LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f64 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in a_chunks.zip(b_chunks) {
        for lane in 0..LANES {
            sums[lane] += x[lane] * y[lane];
        }
    }
    let mut half = LANES;
    while half > 1 {
        half /= 2;
        for lane in 0..half {
            sums[lane] += sums[lane + half];
        }
    }
    sums[0] + rest
}
