//! From measurements of one kind to a [`Curve`].
//!
//! 1. Anchor: non-negative least squares of the relative error, so that small and large operators count alike. The
//!    launch either adds to the work or hides it, as when the host is slower than the kernel; the better form is kept.
//!    Kinds that were only measured in caches get the memory's bandwidth from the data sheet, see [`memory`].
//! 2. Correction: ridge regression of `ln(time / anchor)` on a polynomial of bounded terms. Degree and λ are those
//!    with the least held-out error in five folds; iterated reweighting (Holland and Welsch, 1977) brings the squared
//!    error of logarithms to the absolute relative one, and takes the force from outliers.
//! 3. The extrapolation is chosen by the largest rows, see `fit/extrapolation.rs`.
//! 4. Gate, clip and band come from the same rows: leverage, residuals, held-out residuals. Beyond the rows the band widens by
//!    the errors of the same trial.
//!
//! O(n·p²) for p ≤ 350 terms. What linfa gives is used for the final ridge fit, see [`crate::ridge`]; it has no
//! non-negative least squares, no polynomial features, no weights and no cross-validated λ, so these stand here.

mod extrapolation;
mod memory;

use ndarray::{Array1, Array2, ArrayView2};

use crate::{
    curve::{Band, Correction, Curve, Gate, Usual, Warm, anchor_time, expand, gate_terms},
    dense::{Cholesky, dot},
    estimate::Estimate,
    evaluate::quantile,
    nnls::nnls,
    ridge::{Folds, Linear, fit_qr, ridge},
    terms::{self, Terms},
    work::{Machine, Work},
};

/// Fewer rows than this make no curve.
pub const MIN_ROWS: usize = 15;
/// Rows beyond which the curve no longer changes; more are thinned out evenly.
const MAX_ROWS: usize = 8_000;
/// With fewer rows only the best tile is fitted, and not each.
const TILE_ROWS: usize = 100;
const FOLDS: usize = 5;
/// Rounds of reweighting, each of which must lower the held-out error.
const ROUNDS: usize = 4;
/// Degree two is kept if the held-out error rises by no more than this factor: a few folds cannot tell less, and it gains from
/// further rows.
const WORTH: f64 = 1.02;
/// Factor on terms of degree two: the same λ then restrains them four times as strongly as those of degree one, which are few.
const BENT: f64 = 0.5;
/// Parts of the rows by length, each with a median residual.
const KNOTS: usize = 3;
/// Powers of ten that are tried as λ, before those between.
const EXPONENTS: [f64; 7] = [-2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0];
/// Rounds that tell hidden launches from work.
const HIDING_ROUNDS: usize = 6;

/// A measured operator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// The work of the operator.
    pub work: Work,
    /// The measured time.
    ///
    /// Invariant: finite and positive.
    pub seconds: f64,
}

/// Why there is no curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{rows} rows are too few, a curve needs at least {MIN_ROWS}")]
pub struct TooFewRows {
    /// The number of rows.
    pub rows: usize,
}

/// The cross-validation of a curve: each row predicted from rows of other folds.
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
    // Step 1: the anchor.
    let mut rows: Vec<Vec<f64>> = samples.iter().map(|sample| anchor_terms(&sample.work, machine)).collect();
    if samples.len() < TILE_ROWS && has_sums(samples) && !machine.is_processor() {
        rows.iter_mut().for_each(|row| row[terms::TILES_APART].fill(0.0));
    }
    let choice = extrapolation::choice(samples, &rows, machine);
    let base = Base::of(samples, &rows, machine, choice);
    let anchors = base.times(samples, &rows, machine);

    // Step 2: the correction.
    let (misses, mut correction, standardised) = base.corrected(samples, &rows, machine);
    correction.usual = usual(&anchors, &misses, KNOTS);
    correction.clip = clip(&misses);
    let by_length: Vec<f64> = anchors.iter().map(|anchor| correction.usual.at(anchor.ln())).collect();
    let chosen = fit_correction(&mut correction, &standardised, &misses, &by_length);
    // Step 3: what lies beyond.
    let beyond = extrapolation::beyond(samples, &rows, machine, chosen.as_ref(), choice);
    let extent = beyond.as_ref().map(|beyond| beyond.extent).unwrap_or_default();
    let reach = reach(&anchors);
    if chosen.is_some() {
        let (reach, threshold) = (reach + extent.reach, extent.threshold);
        correction.gate = gate(samples).map(|gate| Gate { reach, h99: gate.h99 * threshold, ..gate });
        correction.usual = usual(&anchors, &misses, extent.parts);
    }

    // Step 4: the band.
    let unseen = unseen(samples, &rows, machine, chosen.as_ref(), (choice, extent.parts));
    let misses = beyond.map(|beyond| beyond.misses).unwrap_or_default();
    let band = extrapolation::widened(band(&unseen, |_| true), reach, &misses, base.is_assumed);
    let validation = validate(samples, &unseen);
    let Base { coefficients, hidden, floor, least, .. } = base;
    let curve = Curve {
        machine: *machine,
        anchor: coefficients,
        least,
        hidden,
        floor,
        correction,
        band,
        warm: Warm::default(),
        flushed: None,
    };
    Ok((curve, validation))
}

/// Hyperparameters, chosen by the larger rows.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Choice {
    /// The weight of long operators in the anchor.
    favour: f64,
    /// Whether the correction has a term for the length of very long sums.
    is_long: bool,
}

/// The anchor and its floor, fitted before the correction.
struct Base {
    coefficients: Vec<f64>,
    hidden: f64,
    floor: f64,
    least: f64,
    /// Whether rows beyond the cache had to be assumed.
    is_assumed: bool,
    /// Whether the correction knows how long very long sums are.
    is_long: bool,
}

impl Base {
    fn of(samples: &[Sample], rows: &[Vec<f64>], machine: &Machine, choice: Choice) -> Self {
        let Choice { favour, is_long } = choice;
        let sorted = sort(samples.iter().map(|sample| sample.seconds));
        let (floor, least) = (quantile(&sorted, 0.01), 0.5 * sorted[0]);
        let (mut coefficients, mut hidden) = fit_anchor(rows, samples, machine, floor, least, favour);
        let far = memory::far(samples, machine);
        let is_assumed = memory::is_impossible(&coefficients, &far);
        if is_assumed {
            let (samples, rows) = ([samples, &far.0].concat(), [rows, &far.1].concat());
            (coefficients, hidden) = fit_anchor(&rows, &samples, machine, floor, least, favour);
        }
        Self { coefficients, hidden, floor, least, is_assumed, is_long }
    }

    fn times(&self, samples: &[Sample], rows: &[Vec<f64>], machine: &Machine) -> Vec<f64> {
        let time = |(sample, terms): (&Sample, &Vec<f64>)| {
            anchor_time(&self.coefficients, terms, self.least, self.hidden, &sample.work, machine)
        };
        samples.iter().zip(rows).map(time).collect()
    }

    fn bounded(&self, samples: &[Sample], rows: &[Vec<f64>], machine: &Machine) -> Vec<Vec<f64>> {
        let terms = |(sample, row): (&Sample, &Vec<f64>)| {
            let mut terms = Terms::default();
            terms::bounded(&sample.work, machine, self.floor, dot(&self.coefficients, row), &mut terms);
            terms.values
        };
        samples.iter().zip(rows).map(terms).collect()
    }

    /// Returns the residuals of the anchor, and the standardised terms of the correction.
    fn corrected(
        &self,
        samples: &[Sample],
        rows: &[Vec<f64>],
        machine: &Machine,
    ) -> (Array1<f64>, Correction, Vec<Vec<f64>>) {
        let missed = misses(samples, &self.times(samples, rows, machine));
        let bounded = self.bounded(samples, rows, machine);
        let mut correction = standard(&bounded);
        // A term without range is not used.
        if !self.is_long && has_sums(samples) {
            correction.ranges[terms::LONG] = (0.0, 0.0);
        }
        let z = bounded.iter().map(|row| correction.standardise(row)).collect();
        (missed, correction, z)
    }
}

/// Returns whether operators of a kind are products, whose sums have a length.
fn has_sums(samples: &[Sample]) -> bool {
    samples.first().is_some_and(|sample| sample.work.matrix().is_none())
}

fn anchor_terms(work: &Work, machine: &Machine) -> Vec<f64> {
    let mut terms = Terms::default();
    terms::anchor(work, machine, &mut terms);
    terms.values
}

fn misses(samples: &[Sample], anchors: &[f64]) -> Array1<f64> {
    samples.iter().zip(anchors).map(|(sample, anchor)| (sample.seconds / anchor).ln()).collect()
}

/// Fits the anchor with a launch that adds, and with one that hides what is shorter; returns the better.
fn fit_anchor(
    rows: &[Vec<f64>],
    samples: &[Sample],
    machine: &Machine,
    floor: f64,
    least: f64,
    favour: f64,
) -> (Vec<f64>, f64) {
    let all: Vec<usize> = (0..samples.len()).collect();
    let wrong = |coefficients: &[f64], hidden: f64| -> f64 {
        let time = |i: usize| anchor_time(coefficients, &rows[i], least, hidden, &samples[i].work, machine);
        all.iter().map(|i| (time(*i) / samples[*i].seconds - 1.0).abs()).sum()
    };
    let mut best = (relative_nnls(rows, samples, &all, favour), 0.0);
    let mut least_wrong = wrong(&best.0, 0.0);
    let mut hidden = floor;
    let mut above: Vec<usize> = all.iter().copied().filter(|i| samples[*i].seconds > 1.2 * floor).collect();
    for _ in 0..HIDING_ROUNDS {
        if above.len() < 30 || above.len() + 10 > all.len() {
            break;
        }
        let coefficients = relative_nnls(rows, samples, &above, favour);
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

/// Fits times by their relative error; its square counts as much as the time to the power of `favour`.
fn relative_nnls(rows: &[Vec<f64>], samples: &[Sample], chosen: &[usize], favour: f64) -> Vec<f64> {
    let weights: Array1<f64> = chosen.iter().map(|i| samples[*i].seconds.powf(0.5 * favour)).collect();
    let relative = Array2::from_shape_fn((chosen.len(), rows[0].len()), |(i, j)| {
        weights[i] * rows[chosen[i]][j] / samples[chosen[i]].seconds
    });
    nnls(relative.view(), weights.view())
}

/// The polynomial with the least held-out error.
struct Chosen {
    is_quadratic: bool,
    lambda: f64,
    weights: Array1<f64>,
    /// λ and weights of degree one.
    linear: (f64, Array1<f64>),
}

/// Returns the median residual of anchors by length.
fn usual(anchors: &[f64], misses: &Array1<f64>, most: usize) -> Usual {
    let mut points: Vec<(f64, f64)> =
        anchors.iter().zip(misses).map(|(anchor, miss)| (anchor.ln(), *miss)).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let knots = parts(&points, 40, most).map(|part| {
        let misses = sort(part.iter().map(|point| point.1));
        (part[part.len() / 2].0, quantile(&misses, 0.5))
    });
    Usual(knots.collect())
}

/// Returns the limits of the correction.
fn clip(misses: &Array1<f64>) -> (f64, f64) {
    let sorted = sort(misses.iter().copied());
    (quantile(&sorted, 0.005), quantile(&sorted, 0.995))
}

/// Returns the logarithm of the time that one of a hundred anchors exceeds.
fn reach(anchors: &[f64]) -> f64 {
    quantile(&sort(anchors.iter().map(|anchor| anchor.ln())), 0.99)
}

/// Cuts points into parts of about equal size, at most `most`.
fn parts(points: &[(f64, f64)], every: usize, most: usize) -> impl Iterator<Item = &[(f64, f64)]> {
    let n = (points.len() / every).clamp(1, most);
    (0..n).map(move |i| &points[i * points.len() / n..(i + 1) * points.len() / n])
}

/// Fits both degrees and keeps those that lower the held-out error; `None` if `usual` is as good.
fn fit_correction(
    correction: &mut Correction,
    standardised: &[Vec<f64>],
    misses: &Array1<f64>,
    usual: &[f64],
) -> Option<Chosen> {
    let least = error(misses, usual);
    let linear = robust(matrix(standardised).view(), misses).filter(|fitted| fitted.error < least)?;
    correction.linear = linear.linear;
    let mut chosen = Chosen {
        is_quadratic: false,
        lambda: linear.lambda,
        weights: linear.weights.clone(),
        linear: (linear.lambda, linear.weights),
    };
    let x = matrix(&expanded(standardised));
    if let Some(fitted) = robust(x.view(), misses).filter(|fitted| fitted.error < WORTH * linear.error) {
        correction.quadratic = straightened(fitted.linear, correction.means.len());
        chosen = Chosen {
            is_quadratic: true,
            lambda: fitted.lambda,
            weights: fitted.weights,
            linear: chosen.linear,
        };
    }
    Some(chosen)
}

/// Returns terms of both degrees as they are fitted.
fn expanded(rows: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let expanded = |z: &Vec<f64>| {
        let mut whole = Vec::new();
        expand(z, &mut whole);
        whole[z.len()..].iter_mut().for_each(|term| *term *= BENT);
        whole
    };
    rows.iter().map(expanded).collect()
}

/// Makes a polynomial of fitted terms, `p` of them of degree one, one of the terms themselves.
fn straightened(mut fitted: Linear, p: usize) -> Linear {
    fitted.coefficients[p..].iter_mut().for_each(|coefficient| *coefficient *= BENT);
    fitted
}

/// A row predicted by a model that did not see it.
struct Unseen {
    /// Fold of the row.
    fold: usize,
    /// Prediction.
    seconds: f64,
    /// Residual, as a logarithm.
    miss: f64,
    /// Residual of the anchor with the median correction alone.
    anchor_miss: f64,
}

/// Fits anchor and correction to all folds but one, in turn, and predicts that one: degree, λ and weights are those of
/// all rows, all else is fitted anew. For the band no row may have been seen.
fn unseen(
    samples: &[Sample],
    rows: &[Vec<f64>],
    machine: &Machine,
    chosen: Option<&Chosen>,
    (choice, parts): (Choice, usize),
) -> Vec<Unseen> {
    let mut all: Vec<Option<Unseen>> = samples.iter().map(|_| None).collect();
    for fold in 0..FOLDS {
        let part = |wanted: bool| (0..samples.len()).filter(move |i| (i % FOLDS == fold) == wanted);
        let train: Vec<Sample> = part(false).map(|i| samples[i]).collect();
        let train_rows: Vec<Vec<f64>> = part(false).map(|i| rows[i].clone()).collect();
        let base = Base::of(&train, &train_rows, machine, choice);
        let anchors = base.times(&train, &train_rows, machine);
        let (misses, correction, z) = base.corrected(&train, &train_rows, machine);
        let usual = usual(&anchors, &misses, parts);
        let clip = clip(&misses);
        let terms = |z: Vec<Vec<f64>>, is_quadratic: bool| if is_quadratic { expanded(&z) } else { z };
        let fitted = chosen.and_then(|chosen| {
            let x = matrix(&terms(z, chosen.is_quadratic));
            let weights: Array1<f64> = part(false).map(|i| chosen.weights[i]).collect();
            Some((ridge(x.view(), misses.view(), weights.view(), chosen.lambda)?, chosen.is_quadratic))
        });
        let test: Vec<Sample> = part(true).map(|i| samples[i]).collect();
        let test_rows: Vec<Vec<f64>> = part(true).map(|i| rows[i].clone()).collect();
        let anchors = base.times(&test, &test_rows, machine);
        let bounded = base.bounded(&test, &test_rows, machine);
        let corrections: Vec<f64> = match &fitted {
            None => anchors.iter().map(|anchor| usual.at(anchor.ln())).collect(),
            Some((linear, is_quadratic)) => {
                let z = bounded.iter().map(|row| correction.standardise(row)).collect();
                terms(z, *is_quadratic).iter().map(|x| linear.at(x)).collect()
            }
        };
        for (((i, sample), anchor), correction) in part(true).zip(&test).zip(&anchors).zip(corrections) {
            let seconds = anchor * correction.clamp(clip.0, clip.1).exp();
            let miss = |own: f64| (sample.seconds / own).ln();
            let anchor_miss = miss(anchor * usual.at(anchor.ln()).exp());
            all[i] = Some(Unseen { fold, seconds, miss: miss(seconds), anchor_miss });
        }
    }
    all.into_iter().flatten().collect()
}

struct Fitted {
    linear: Linear,
    /// Held-out error.
    error: f64,
    lambda: f64,
    weights: Array1<f64>,
}

/// Ridge with the λ of least held-out error, reweighted towards the absolute relative error while that helps.
fn robust(x: ArrayView2<'_, f64>, y: &Array1<f64>) -> Option<Fitted> {
    let mut weights = Array1::ones(x.nrows());
    let mut folds = Folds::of(x, y.view(), weights.view(), FOLDS);
    let mut best = search(x, y, &folds, &EXPONENTS)?;
    let near = best.lambda.log10();
    best = search(x, y, &folds, &[near - 0.5, near + 0.5])
        .filter(|found| found.error < best.error)
        .unwrap_or(best);
    let mut kept = weights.clone();
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
        kept.clone_from(&weights);
    }
    let linear = fit_qr(x, y.view(), kept.view(), best.lambda)?;
    Some(Fitted { linear, error: best.error, lambda: best.lambda, weights: kept })
}

struct Found {
    error: f64,
    lambda: f64,
}

fn search(x: ArrayView2<'_, f64>, y: &Array1<f64>, folds: &Folds, exponents: &[f64]) -> Option<Found> {
    let mut best: Option<Found> = None;
    for exponent in exponents {
        let lambda = 10_f64.powf(*exponent);
        let Some(held_out) = folds.held_out(x, lambda) else { continue };
        let error = error(y, &held_out);
        if best.as_ref().is_none_or(|best| error < best.error) {
            best = Some(Found { error, lambda });
        }
    }
    best
}

/// Mean absolute relative error of times whose logarithms are predicted.
fn error(y: &Array1<f64>, predicted: &[f64]) -> f64 {
    let misses = y.iter().zip(predicted).map(|(y, own)| ((own - y).clamp(-5.0, 5.0).exp() - 1.0).abs());
    misses.sum::<f64>() / y.len() as f64
}

/// Closes the correction for shapes far from those of the samples.
fn gate(samples: &[Sample]) -> Option<Gate> {
    /// Ridge of the leverage, relative to the rows: directions in which shapes do not vary count little.
    const LAMBDA: f64 = 1e-3;
    let n = samples.len() as f64;
    let logs: Vec<Vec<f64>> = samples.iter().map(|sample| terms::sizes(&sample.work)).collect();
    let standard = standard(&logs);
    let sizes: Vec<(f64, f64)> = standard.means.into_iter().zip(standard.scales).collect();
    let x: Vec<Vec<f64>> = logs.iter().map(|logs| gate_terms(logs, &sizes)).collect();
    let x = matrix(&x);
    let mean = x.mean_axis(ndarray::Axis(0))?;
    let centred = &x - &mean;
    let mut system = centred.t().dot(&centred);
    system.diag_mut().mapv_inplace(|value| value + LAMBDA * n);
    let p = mean.len();
    let factor = Cholesky::of(system.as_slice()?, p)?;
    let columns: Vec<Vec<f64>> = (0..p)
        .map(|j| factor.forward(&(0..p).map(|i| f64::from(u8::from(i == j))).collect::<Vec<_>>()))
        .collect();
    let rows = (0..p).map(|i| {
        let row: Vec<f64> = columns[..=i].iter().map(|column| column[i]).collect();
        let centre = row.iter().zip(&mean).map(|(a, b)| a * b).sum();
        (row, centre)
    });
    let mut gate = Gate { sizes, rows: rows.collect(), h99: 1.0, reach: 0.0 };
    // The quantile of a leverage needs no more than a few thousand rows.
    let every = logs.len().div_ceil(4_000);
    gate.h99 = quantile(&sort(logs.iter().step_by(every).map(|logs| gate.leverage(logs))), 0.99).max(1e-12);
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

/// Returns the quantiles of the residuals of some folds, by predicted time.
fn band(unseen: &[Unseen], folds: impl Fn(usize) -> bool) -> Band {
    let mut points: Vec<(f64, f64)> =
        unseen.iter().filter(|row| folds(row.fold)).map(|row| (row.seconds.ln(), row.miss)).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let knots = parts(&points, 100, 5)
        .map(|part| {
            let (low, high) = ends(&sort(part.iter().map(|point| point.1)));
            (part[part.len() / 2].0, low, high)
        })
        .collect();
    let outside = unseen.iter().filter(|row| folds(row.fold)).map(|row| row.anchor_miss);
    Band { knots, outside: ends(&sort(outside)) }
}

/// Returns the 10 % and 90 % quantiles of sorted misses.
fn ends(misses: &[f64]) -> (f64, f64) {
    // A further row falls between the rows seen: quantiles lie further out, the more so the fewer they are (Vovk).
    let high = (0.9 * (1.0 + 1.0 / misses.len() as f64)).min(1.0);
    (quantile(misses, 1.0 - high), quantile(misses, high))
}

/// Gives each row the band of the other folds.
fn validate(samples: &[Sample], unseen: &[Unseen]) -> Validation {
    let bands: Vec<Band> = (0..FOLDS).map(|fold| band(unseen, |other| other != fold)).collect();
    let estimates = unseen.iter().map(|Unseen { fold, seconds, .. }| {
        let (low, high) = bands[*fold].at(seconds.ln(), 1.0);
        Estimate { seconds: *seconds, p10: seconds * low.exp(), p90: seconds * high.exp(), trust: 1.0 }
    });
    let estimates = estimates.collect();
    let rests: Vec<f64> = unseen.iter().map(|row| row.miss.abs()).collect();
    let usual = quantile(&sort(rests.iter().copied()), 0.5).max(1e-3);
    let outliers = rests.iter().filter(|rest| **rest > 6.0 * usual).count();
    Validation { samples: samples.to_vec(), estimates, outliers }
}

fn matrix(rows: &[Vec<f64>]) -> Array2<f64> {
    Array2::from_shape_fn((rows.len(), rows[0].len()), |(i, j)| rows[i][j])
}

fn sort(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}
