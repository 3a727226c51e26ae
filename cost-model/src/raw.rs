//! The original project's model: a polynomial of degree two of the raw dimensions, least squares on the time itself.
//!
//! It is here to be compared with. Its R² looks fine and its predictions of small operators are negative.

use ndarray::{Array1, Array2};
use schema::WorkSize;

use crate::{
    curve::expand,
    estimate::Estimate,
    evaluate::quantile,
    fit::{MIN_ROWS, Sample, TooFewRows},
    ridge::{Linear, fit_qr},
    work::{Work, volume},
};

/// A polynomial of raw dimensions.
#[derive(Clone, Debug, PartialEq)]
pub struct RawPolynomial {
    means: Vec<f64>,
    scales: Vec<f64>,
    polynomial: Linear,
    /// Quantiles of the residuals, in seconds.
    band: (f64, f64),
}

impl RawPolynomial {
    /// Fits by ordinary least squares; a ridge of 10⁻⁹ stands in where columns are equal.
    ///
    /// # Errors
    /// When there are fewer than [`MIN_ROWS`] rows.
    pub fn fit(samples: &[Sample]) -> Result<Self, TooFewRows> {
        let n = samples.len();
        if n < MIN_ROWS {
            return Err(TooFewRows { rows: n });
        }
        let rows: Vec<Vec<f64>> = samples.iter().map(|sample| dimensions(&sample.work.size)).collect();
        let p = rows[0].len();
        let means: Vec<f64> = (0..p).map(|j| rows.iter().map(|row| row[j]).sum::<f64>() / n as f64).collect();
        let scales: Vec<f64> = (0..p)
            .map(|j| (rows.iter().map(|row| (row[j] - means[j]).powi(2)).sum::<f64>() / n as f64).sqrt())
            .map(|deviation| if deviation > 0.0 { deviation } else { 1.0 })
            .collect();
        let mut own = Self { means, scales, polynomial: Linear::default(), band: (0.0, 0.0) };
        let terms: Vec<Vec<f64>> = samples.iter().map(|sample| own.terms(&sample.work)).collect();
        let x = Array2::from_shape_fn((n, terms[0].len()), |(i, j)| terms[i][j]);
        let y: Array1<f64> = samples.iter().map(|sample| sample.seconds).collect();
        let ones = Array1::ones(n);
        own.polynomial = fit_qr(x.view(), y.view(), ones.view(), 1e-9).ok_or(TooFewRows { rows: n })?;
        let mut rests: Vec<f64> = samples
            .iter()
            .zip(&terms)
            .map(|(sample, terms)| sample.seconds - own.polynomial.at(terms))
            .collect();
        rests.sort_by(f64::total_cmp);
        own.band = (quantile(&rests, 0.1), quantile(&rests, 0.9));
        Ok(own)
    }

    /// Predicts the time of an operator, which may come out negative.
    pub fn predict(&self, work: &Work) -> Estimate {
        let seconds = self.polynomial.at(&self.terms(work));
        Estimate { seconds, p10: seconds + self.band.0, p90: seconds + self.band.1, trust: 1.0 }
    }

    /// Standardising changes no prediction of least squares, only its numerical error.
    fn terms(&self, work: &Work) -> Vec<f64> {
        let z: Vec<f64> = dimensions(&work.size)
            .iter()
            .enumerate()
            .map(|(j, value)| (value - self.means[j]) / self.scales[j])
            .collect();
        let mut terms = Vec::new();
        expand(&z, &mut terms);
        terms
    }
}

fn dimensions(size: &WorkSize) -> Vec<f64> {
    match *size {
        WorkSize::Product { batch, m, n, k } => vec![batch, m, n, k],
        WorkSize::Convolution { batch, in_channels, out_channels, input, kernel, stride, .. } => {
            vec![
                batch,
                in_channels,
                out_channels,
                volume(input).sqrt(),
                volume(kernel).sqrt(),
                volume(stride).sqrt(),
            ]
        }
        WorkSize::Attention { batch, heads, seq, kv_seq, head_dim, .. } => {
            vec![batch, heads, seq, kv_seq, head_dim]
        }
        WorkSize::Rows { rows, cols, .. } => vec![rows, cols],
        WorkSize::Channels { batch, channels, pixels } => vec![batch, channels, pixels],
        WorkSize::Table { rows, cols, vocabulary } => vec![rows, cols, vocabulary],
    }
}
