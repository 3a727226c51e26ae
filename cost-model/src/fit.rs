//! From measurements of one kind to a [`Curve`].
//!
//! 1. Anchor: non-negative least squares of the relative error, so that small and large operators count alike. The
//!    launch either adds to the work or hides it, as when the host is slower than the kernel; the better form is kept.
//! 2. Correction: ridge regression of `ln(time / anchor)` on a polynomial of bounded terms. Degree and λ are those
//!    with the least held-out error in five folds; iterated reweighting (Holland and Welsch, 1977) brings the squared
//!    error of logarithms to the absolute relative one, and takes the force from outliers.
//! 3. Gate, clip and band come from the same rows: leverage, residuals, held-out residuals.
//!
//! O(n·p²) for p ≤ 350 terms. What linfa gives is used for the final ridge fit, see [`crate::ridge`]; it has no
//! non-negative least squares, no polynomial features, no weights and no cross-validated λ, so these stand here.

use ndarray::{Array1, Array2, ArrayView2};

use crate::{
    curve::{Band, Correction, Curve, Estimate, GATE_ROWS, Gate, anchor_time, expand},
    dense::{Cholesky, dot},
    evaluate::quantile,
    nnls::nnls,
    ridge::{Folds, Linear, fit_qr},
    terms::{self, Terms},
    work::{Machine, Work},
};

/// Fewer rows than this make no curve.
pub const MIN_ROWS: usize = 20;
/// Rows beyond which the curve no longer changes; more are thinned out evenly.
const MAX_ROWS: usize = 8_000;
const FOLDS: usize = 5;
/// Rounds of reweighting, each of which must lower the held-out error.
const ROUNDS: usize = 4;
/// Rounds of telling launches from work.
const HIDING_ROUNDS: usize = 6;

/// A measured operator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// What it does.
    pub work: Work,
    /// How long that took.
    ///
    /// Invariant: finite and positive.
    pub seconds: f64,
}

/// Why there is no curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{rows} rows are too few, a curve needs at least {MIN_ROWS}")]
pub struct TooFewRows {
    /// How many there were.
    pub rows: usize,
}

/// What cross-validation says of a curve: each row predicted from rows of other folds.
#[derive(Clone, Debug, PartialEq)]
pub struct Validation {
    /// The rows that were used.
    pub samples: Vec<Sample>,
    /// Their held-out estimates.
    pub estimates: Vec<Estimate>,
    /// Rows that miss their estimate by more than six times the usual; they had little weight.
    pub outliers: usize,
}

/// Fits a curve. Rows are dealt to folds in the order given: shuffle them first.
///
/// # Errors
/// When there are fewer than [`MIN_ROWS`].
pub fn fit(samples: &[Sample], machine: &Machine) -> Result<(Curve, Validation), TooFewRows> {
    if samples.len() < MIN_ROWS {
        return Err(TooFewRows { rows: samples.len() });
    }
    let thinned: Vec<Sample>;
    let samples = if samples.len() > MAX_ROWS {
        let every = samples.len().div_ceil(MAX_ROWS);
        thinned = samples.iter().step_by(every).copied().collect();
        &thinned
    } else {
        samples
    };
    let sorted = sort(samples.iter().map(|sample| sample.seconds));
    let (floor, least) = (quantile(&sorted, 0.01), 0.5 * sorted[0]);

    // Step 1: the anchor.
    let rows: Vec<Vec<f64>> = samples
        .iter()
        .map(|sample| {
            let mut terms = Terms::default();
            terms::anchor(&sample.work, machine, &mut terms);
            terms.values
        })
        .collect();
    let (coefficients, hidden) = fit_anchor(&rows, samples, machine, floor, least);
    let anchors: Vec<f64> = samples
        .iter()
        .zip(&rows)
        .map(|(sample, terms)| anchor_time(&coefficients, terms, least, hidden, &sample.work, machine))
        .collect();
    let misses: Array1<f64> =
        samples.iter().zip(&anchors).map(|(sample, anchor)| (sample.seconds / anchor).ln()).collect();

    // Step 2: the correction.
    let bounded: Vec<Vec<f64>> = samples
        .iter()
        .zip(&rows)
        .map(|(sample, row)| {
            let mut terms = Terms::default();
            terms::bounded(&sample.work, machine, floor, dot(&coefficients, row), &mut terms);
            terms.values
        })
        .collect();
    let mut correction = standard(&bounded);
    let sorted_misses = sort(misses.iter().copied());
    correction.mean = quantile(&sorted_misses, 0.5);
    correction.clip = (quantile(&sorted_misses, 0.005), quantile(&sorted_misses, 0.995));
    let held_out = fit_correction(&mut correction, &bounded, &misses);

    // Step 3: the band.
    let corrected: Vec<f64> =
        held_out.iter().map(|own| own.clamp(correction.clip.0, correction.clip.1)).collect();
    let band = band(&anchors, &misses, &corrected, correction.mean);
    let validation = validate(samples, &anchors, &corrected, &band);
    let curve = Curve { machine: *machine, anchor: coefficients, least, hidden, floor, correction, band };
    Ok((curve, validation))
}

/// Fits the anchor with a launch that adds, and with one that hides what is shorter; returns the better.
fn fit_anchor(
    rows: &[Vec<f64>],
    samples: &[Sample],
    machine: &Machine,
    floor: f64,
    least: f64,
) -> (Vec<f64>, f64) {
    let all: Vec<usize> = (0..samples.len()).collect();
    let wrong = |coefficients: &[f64], hidden: f64| -> f64 {
        let time = |i: usize| anchor_time(coefficients, &rows[i], least, hidden, &samples[i].work, machine);
        all.iter().map(|i| (time(*i) / samples[*i].seconds - 1.0).abs()).sum()
    };
    let mut best = (relative_nnls(rows, samples, &all), 0.0);
    let mut least_wrong = wrong(&best.0, 0.0);
    let mut hidden = floor;
    let mut above: Vec<usize> = all.iter().copied().filter(|i| samples[*i].seconds > 1.2 * floor).collect();
    for _ in 0..HIDING_ROUNDS {
        if above.len() < 30 || above.len() + 10 > all.len() {
            break;
        }
        let coefficients = relative_nnls(rows, samples, &above);
        let kernel: Vec<f64> = rows.iter().map(|row| dot(&coefficients, row)).collect();
        let below = sort(all.iter().filter(|i| kernel[**i] < hidden).map(|i| samples[*i].seconds));
        if below.len() < 5 {
            break;
        }
        hidden = quantile(&below, 0.5);
        let own = wrong(&coefficients, hidden);
        if own < 0.98 * least_wrong {
            least_wrong = own;
            best = (coefficients, hidden);
        }
        above = all
            .iter()
            .copied()
            .filter(|i| samples[*i].seconds > 1.1 * hidden || kernel[*i] > hidden)
            .collect();
    }
    best
}

fn relative_nnls(rows: &[Vec<f64>], samples: &[Sample], chosen: &[usize]) -> Vec<f64> {
    let shape = (chosen.len(), rows[0].len());
    let relative = Array2::from_shape_fn(shape, |(i, j)| rows[chosen[i]][j] / samples[chosen[i]].seconds);
    nnls(relative.view(), Array1::ones(chosen.len()).view())
}

/// Fits both degrees and keeps the second if held-out rows ask for it; returns the held-out corrections.
fn fit_correction(correction: &mut Correction, bounded: &[Vec<f64>], misses: &Array1<f64>) -> Vec<f64> {
    let degree_one: Vec<Vec<f64>> = bounded.iter().map(|row| correction.standardise(row)).collect();
    let degree_two: Vec<Vec<f64>> = degree_one
        .iter()
        .map(|z| {
            let mut whole = Vec::new();
            expand(z, &mut whole);
            whole
        })
        .collect();
    let mut held_out = vec![correction.mean; misses.len()];
    let mut least = error(misses, &held_out);
    let x = matrix(&degree_one);
    if let Some(fitted) = robust(x.view(), misses) {
        correction.gate = gate(x.view(), &fitted);
        let own = error(misses, &fitted.held_out);
        correction.linear = fitted.linear;
        if own < least {
            (least, held_out) = (own, fitted.held_out);
        }
    }
    let x = matrix(&degree_two);
    if let Some(fitted) = robust(x.view(), misses) {
        // The gate of degree two is the sharper one, even where the polynomial of degree one is the better.
        correction.gate = gate(x.view(), &fitted).or(correction.gate.take());
        if error(misses, &fitted.held_out) < least {
            correction.quadratic = fitted.linear;
            held_out = fitted.held_out;
        }
    }
    held_out
}

struct Fitted {
    linear: Linear,
    held_out: Vec<f64>,
    folds: Folds,
    lambda: f64,
}

/// Ridge with the λ of least held-out error, reweighted towards the absolute relative error while that helps.
fn robust(x: ArrayView2<'_, f64>, y: &Array1<f64>) -> Option<Fitted> {
    let mut weights = Array1::ones(x.nrows());
    let mut folds = Folds::of(x, y.view(), weights.view(), FOLDS);
    let exponents: Vec<f64> = (0..=12).map(|step| -2.0 + 0.5 * f64::from(step)).collect();
    let mut best = search(x, y, &folds, &exponents)?;
    let mut kept = (weights.clone(), folds.clone());
    for _ in 0..ROUNDS {
        let fit = folds.fit(best.lambda)?;
        let residuals: Vec<f64> =
            x.outer_iter().zip(y).map(|(row, y)| y - fit.at(row.as_slice().unwrap_or_default())).collect();
        let delta = (0.3 * quantile(&sort(residuals.iter().map(|rest| rest.abs())), 0.5)).max(1e-6);
        // 1/|r| turns squares into absolute values; e⁻ʳ turns differences of logarithms into relative ones.
        let raw: Array1<f64> = residuals
            .iter()
            .map(|rest| (-rest).clamp(-1.0, 1.0).exp() * delta / rest.abs().max(delta))
            .collect();
        weights = &raw / raw.mean()?;
        folds = Folds::of(x, y.view(), weights.view(), FOLDS);
        let near = best.lambda.log10();
        let found = search(x, y, &folds, &[near - 0.25, near, near + 0.25])?;
        if found.error > best.error {
            break;
        }
        best = found;
        kept = (weights.clone(), folds.clone());
    }
    let (weights, folds) = kept;
    let linear = fit_qr(x, y.view(), weights.view(), best.lambda)?;
    Some(Fitted { linear, held_out: best.held_out, folds, lambda: best.lambda })
}

struct Found {
    error: f64,
    lambda: f64,
    held_out: Vec<f64>,
}

fn search(x: ArrayView2<'_, f64>, y: &Array1<f64>, folds: &Folds, exponents: &[f64]) -> Option<Found> {
    let mut best: Option<Found> = None;
    for exponent in exponents {
        let lambda = 10_f64.powf(*exponent);
        let Some(held_out) = folds.held_out(x, lambda) else { continue };
        let error = error(y, &held_out);
        if best.as_ref().is_none_or(|best| error < best.error) {
            best = Some(Found { error, lambda, held_out });
        }
    }
    best
}

/// Mean absolute relative error of times whose logarithms are predicted.
fn error(y: &Array1<f64>, predicted: &[f64]) -> f64 {
    let misses = y.iter().zip(predicted).map(|(y, own)| ((own - y).clamp(-5.0, 5.0).exp() - 1.0).abs());
    misses.sum::<f64>() / y.len() as f64
}

fn gate(x: ArrayView2<'_, f64>, fitted: &Fitted) -> Option<Gate> {
    let (system, mean) = fitted.folds.system(fitted.lambda);
    let factor = Cholesky::of(&system, mean.len())?;
    let mut signs = Signs(1);
    let rows = (0..GATE_ROWS).map(|_| {
        // Rows of signs are as good a projection as normal ones (Achlioptas, 2003).
        let row = factor.backward((0..mean.len()).map(|_| signs.next()).collect());
        let row: Vec<f64> = row.into_iter().map(|value| short(value / (GATE_ROWS as f64).sqrt())).collect();
        let centre = dot(&row, &mean);
        (row, centre)
    });
    let mut gate = Gate { rows: rows.collect(), h99: 1.0 };
    // The quantile of a leverage needs no more than a few thousand rows.
    let every = x.nrows().div_ceil(4_000);
    let leverages =
        sort(x.outer_iter().step_by(every).map(|row| gate.leverage(row.as_slice().unwrap_or_default())));
    gate.h99 = quantile(&leverages, 0.99).max(1e-12);
    Some(gate)
}

/// Finds means, deviations and ranges of the bounded terms.
fn standard(bounded: &[Vec<f64>]) -> Correction {
    let n = bounded.len() as f64;
    let p = bounded[0].len();
    let means: Vec<f64> = (0..p).map(|j| bounded.iter().map(|row| row[j]).sum::<f64>() / n).collect();
    let deviation =
        |j: usize| (bounded.iter().map(|row| (row[j] - means[j]).powi(2)).sum::<f64>() / n).sqrt();
    let scales: Vec<f64> = (0..p).map(|j| Some(deviation(j)).filter(|d| *d > 1e-9).unwrap_or(1.0)).collect();
    let range = |j: usize| {
        let z = bounded.iter().map(|row| (row[j] - means[j]) / scales[j]);
        z.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), z| (low.min(z), high.max(z)))
    };
    let ranges = (0..p).map(range).collect();
    Correction { means, scales, ranges, ..Correction::default() }
}

fn band(anchors: &[f64], misses: &Array1<f64>, corrected: &[f64], mean: f64) -> Band {
    let mut points: Vec<(f64, f64)> = anchors
        .iter()
        .zip(misses)
        .zip(corrected)
        .map(|((anchor, miss), correction)| (anchor.ln() + correction, miss - correction))
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    // Held-out rows helped to choose λ and the degree, the more so the fewer they are: their misses are a little small.
    let widened = 1.0 + 30.0 / points.len() as f64;
    let n_knots = (points.len() / 100).clamp(1, 5);
    let knots = (0..n_knots)
        .map(|i| {
            let part = &points[i * points.len() / n_knots..(i + 1) * points.len() / n_knots];
            let rests = sort(part.iter().map(|point| point.1));
            (part[part.len() / 2].0, widened * quantile(&rests, 0.1), widened * quantile(&rests, 0.9))
        })
        .collect();
    let rests = sort(misses.iter().map(|miss| miss - mean));
    Band { knots, outside: (widened * quantile(&rests, 0.1), widened * quantile(&rests, 0.9)) }
}

fn validate(samples: &[Sample], anchors: &[f64], corrected: &[f64], band: &Band) -> Validation {
    let estimates: Vec<Estimate> = anchors
        .iter()
        .zip(corrected)
        .map(|(anchor, correction)| {
            let seconds = anchor * correction.exp();
            let (low, high) = band.at(seconds.ln(), 1.0);
            Estimate { seconds, p10: seconds * low.exp(), p90: seconds * high.exp(), trust: 1.0 }
        })
        .collect();
    let rests: Vec<f64> = samples
        .iter()
        .zip(&estimates)
        .map(|(sample, own)| (sample.seconds / own.seconds).ln().abs())
        .collect();
    let usual = quantile(&sort(rests.iter().copied()), 0.5).max(1e-3);
    let outliers = rests.iter().filter(|rest| **rest > 6.0 * usual).count();
    Validation { samples: samples.to_vec(), estimates, outliers }
}

/// Plus and minus one at random, the same in every run (xorshift).
struct Signs(u64);

impl Signs {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        if self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63 == 0 { 1.0 } else { -1.0 }
    }
}

/// Rounds to five digits: a gate needs no more, and files stay small.
fn short(value: f64) -> f64 {
    format!("{value:.4e}").parse().unwrap_or(value)
}

fn matrix(rows: &[Vec<f64>]) -> Array2<f64> {
    Array2::from_shape_fn((rows.len(), rows[0].len()), |(i, j)| rows[i][j])
}

fn sort(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}
