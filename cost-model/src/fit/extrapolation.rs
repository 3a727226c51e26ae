//! Extrapolation: how a curve continues beyond its rows.
//!
//! Random folds do not test that. Here a curve is fitted to the smaller seven tenths of its rows and tried on the larger three,
//! as forecasts are tried on later data (Tashman, Int. J. of Forecasting 16, 2000). This chooses how much the anchor favours long
//! operators, whether the correction has a term for very long sums, where trust in the polynomial ends, and into how many parts
//! of length the median residual is divided. A choice is kept only if it is clearly better on the larger rows and no worse on
//! held-out rows within the range. It then applies to all rows.
//!
//! Trust in the polynomial reaches far unless the larger rows speak against it: its terms are bounded, and its correction is
//! clipped to the rows' residuals. With too few rows to choose by, it ends where the rows do.

use ndarray::{Array1, ArrayView2};

use super::{
    Base, Choice, Chosen, FOLDS, KNOTS, Sample, clip, ends, expanded, gate, has_sums, matrix, misses, reach,
    sort, straightened, usual,
};
use crate::{
    curve::{Band, Usual, expand, mixed},
    evaluate::quantile,
    predict::SCALED_BAND,
    ridge::{Folds, Linear},
    terms,
    work::Machine,
};

/// With fewer rows the larger ones are too few to choose by.
const MIN_ROWS: usize = 100;
/// With fewer rows the error beyond them cannot be estimated.
const MIN_BAND_ROWS: usize = 40;
/// More of the larger rows do not change the choice.
const MAX_LARGE: usize = 400;
/// A choice has to lower the error of larger rows to this share.
const WORTH: f64 = 0.97;
/// It may raise that of held-out ones within the range to this share.
const PRICE: f64 = 1.01;
/// Powers of its time by which the square of an operator's relative error may count in the anchor; the first is usual.
const FAVOURS: [f64; 4] = [0.0, 0.25, 0.5, 1.0];
/// What the term of very long sums may raise the error of larger rows to.
const LONG_PRICE: f64 = 1.02;
/// λ at which choices are compared: the best choice hardly depends on it.
const USUAL_LAMBDA: f64 = 1.0;
/// Factors on the leverage from which trust falls; the first is usual. However good it is on the larger rows, trust ends.
const THRESHOLDS: [f64; 5] = [4.0, 0.3, 0.6, 1.0, 2.0];
/// What is added to the logarithm of the time from which trust falls; the first is usual, some fifty times the longest.
const REACHES: [f64; 5] = [4.0, -1.0, 0.0, 1.0, 2.0];
/// Parts by length, each with a median residual.
const PARTS: [usize; 4] = [KNOTS, 1, 6, 10];

/// The end of trust in the polynomial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Extent {
    pub threshold: f64,
    pub reach: f64,
    pub parts: usize,
}

impl Default for Extent {
    /// Where there are too few rows to choose by.
    fn default() -> Self {
        Self { threshold: 1.0, reach: 0.0, parts: PARTS[0] }
    }
}

/// The errors of the larger rows.
pub(super) struct Beyond {
    pub extent: Extent,
    /// For each, the logarithm of its predicted time beyond the smaller ones, and its residual as a logarithm.
    pub misses: Vec<(f64, f64)>,
}

/// Rows with their anchor's terms, in two parts.
struct Chain {
    /// Which rows the smaller ones are.
    small: Vec<usize>,
    train: (Vec<Sample>, Vec<Vec<f64>>),
    test: (Vec<Sample>, Vec<Vec<f64>>),
}

impl Chain {
    fn of(samples: &[Sample], rows: &[Vec<f64>], machine: &Machine) -> Option<Self> {
        if samples.len() < MIN_BAND_ROWS {
            return None;
        }
        let mut small: Vec<usize> = (0..samples.len()).collect();
        let size = |i: &usize| samples[*i].work.magnitude(machine);
        small.sort_by(|a, b| size(a).total_cmp(&size(b)));
        let large = small.split_off(samples.len() * 7 / 10);
        small.sort_unstable();
        let large: Vec<usize> = large.iter().step_by(large.len().div_ceil(MAX_LARGE)).copied().collect();
        let part = |chosen: &[usize]| {
            let samples = chosen.iter().map(|i| samples[*i]).collect();
            (samples, chosen.iter().map(|i| rows[*i].clone()).collect())
        };
        Some(Self { train: part(&small), test: part(&large), small })
    }
}

/// A row that is predicted with several choices.
struct Row {
    /// The corrections by either polynomial.
    linear: f64,
    quadratic: f64,
    /// In units of the threshold.
    leverage: f64,
    log_anchor: f64,
    miss: f64,
}

/// Chooses how much the anchor favours long operators, and whether the correction knows of very long sums.
pub(super) fn choice(samples: &[Sample], rows: &[Vec<f64>], machine: &Machine) -> Choice {
    let usual = Choice { favour: FAVOURS[0], is_long: false };
    let Some(chain) = Chain::of(samples, rows, machine).filter(|_| samples.len() >= MIN_ROWS) else {
        return usual;
    };
    let choice = Choice { favour: favour(samples, rows, machine, &chain), ..usual };
    Choice { is_long: is_long(samples, rows, machine, &chain, choice), ..choice }
}

fn favour(samples: &[Sample], rows: &[Vec<f64>], machine: &Machine, chain: &Chain) -> f64 {
    let Chain { train, test, .. } = chain;
    let base = |samples, rows, favour| Base::of(samples, rows, machine, Choice { favour, is_long: false });
    let near = |favour: f64| near(&base(samples, rows, favour), samples, rows, machine);
    let far = |favour: f64| -> f64 {
        let base = base(&train.0, &train.1, favour);
        let anchors = base.times(&train.0, &train.1, machine);
        let usual = usual(&anchors, &misses(&train.0, &anchors), KNOTS);
        let times = base.times(&test.0, &test.1, machine);
        times.iter().zip(&misses(&test.0, &times)).map(|(t, miss)| wrong(usual.at(t.ln()) - miss)).sum()
    };
    better(FAVOURS, far, near)
}

/// Some libraries slow down as sums grow long, whatever the tiles; others only take other tiles. The term is kept if held-out
/// rows clearly gain, and the larger ones do not lose much.
fn is_long(samples: &[Sample], rows: &[Vec<f64>], machine: &Machine, chain: &Chain, choice: Choice) -> bool {
    let far = |base: &Base| -> Option<f64> {
        let Chain { train, test, .. } = chain;
        let (missed, correction, z) = base.corrected(&train.0, &train.1, machine);
        let (plain, _) = linear(matrix(&z).view(), &missed, &Array1::ones(missed.len()), USUAL_LAMBDA)?;
        let clip = clip(&missed);
        let bounded = base.bounded(&test.0, &test.1, machine);
        let own = bounded.iter().map(|row| plain.at(&correction.standardise(row)).clamp(clip.0, clip.1));
        let truth = misses(&test.0, &base.times(&test.0, &test.1, machine));
        Some(own.zip(&truth).map(|(own, miss)| wrong(own - miss)).sum())
    };
    // Error without the term relative to that with it.
    let raised = |mut base: Base, error: &dyn Fn(&Base) -> Option<f64>| -> Option<f64> {
        let without = error(&base)?;
        base.is_long = true;
        Some(error(&base)? / without)
    };
    has_sums(samples)
        && raised(Base::of(samples, rows, machine, choice), &|base| near(base, samples, rows, machine))
            .is_some_and(|times| times < WORTH)
        && raised(Base::of(&chain.train.0, &chain.train.1, machine, choice), &far)
            .is_some_and(|times| times < LONG_PRICE)
}

/// Tells how wrong held-out rows are with a polynomial of degree one: it mends much of what an anchor misses, but only near
/// its rows.
fn near(base: &Base, samples: &[Sample], rows: &[Vec<f64>], machine: &Machine) -> Option<f64> {
    let (missed, _, z) = base.corrected(samples, rows, machine);
    let (_, own) = linear(matrix(&z).view(), &missed, &Array1::ones(missed.len()), USUAL_LAMBDA)?;
    Some(own.iter().zip(&missed).map(|(own, miss)| wrong(own - miss)).sum())
}

/// Chooses where trust in the polynomial ends, and tells how well the larger rows are then predicted.
pub(super) fn beyond(
    samples: &[Sample],
    rows: &[Vec<f64>],
    machine: &Machine,
    chosen: Option<&Chosen>,
    choice: Choice,
) -> Option<Beyond> {
    let Chain { small, train, test } = Chain::of(samples, rows, machine)?;
    let base = Base::of(&train.0, &train.1, machine, choice);
    let anchors = base.times(&train.0, &train.1, machine);
    let (missed, correction, z) = base.corrected(&train.0, &train.1, machine);
    let weights = |of: &Array1<f64>| -> Array1<f64> { small.iter().map(|i| of[*i]).collect() };
    let polynomials = match chosen {
        None => None,
        Some(chosen) => {
            let (lambda, own) = &chosen.linear;
            let plain = linear(matrix(&z).view(), &missed, &weights(own), *lambda)?;
            let bent = if chosen.is_quadratic {
                let x = matrix(&expanded(&z));
                let (bent, own) = linear(x.view(), &missed, &weights(&chosen.weights), chosen.lambda)?;
                Some((straightened(bent, correction.means.len()), own))
            } else {
                None
            };
            Some((plain, bent))
        }
    };
    let gate = gate(&train.0)?;
    let reach = reach(&anchors);
    let clip = clip(&missed);
    let usuals = PARTS.map(|parts| (parts, usual(&anchors, &missed, parts)));
    let leverage = |sample: &Sample| gate.leverage(&terms::sizes(&sample.work)) / gate.h99;
    let row = |sample: &Sample, anchor: f64, (linear, quadratic): (f64, f64)| Row {
        linear,
        quadratic,
        leverage: leverage(sample),
        log_anchor: anchor.ln(),
        miss: (sample.seconds / anchor).ln(),
    };
    let times = base.times(&test.0, &test.1, machine);
    let mut whole = Vec::new();
    let far = base.bounded(&test.0, &test.1, machine);
    let far: Vec<Row> = far
        .iter()
        .zip(test.0.iter().zip(&times))
        .map(|(bounded, (sample, time))| {
            let corrections = match &polynomials {
                // Without a polynomial only the median residual remains.
                None => [usuals[0].1.at(time.ln()); 2].into(),
                Some(((plain, _), bent)) => {
                    let z = correction.standardise(bounded);
                    expand(&z, &mut whole);
                    let linear = plain.at(&z);
                    (linear, bent.as_ref().map_or(linear, |(quadratic, _)| quadratic.at(&whole)))
                }
            };
            row(sample, *time, corrections)
        })
        .collect();
    let own = |row: &Row, (extent, usual): (Extent, &Usual)| -> f64 {
        let beyond = row.log_anchor - (reach + extent.reach);
        let leverage = row.leverage / extent.threshold;
        let (own, _) = mixed(row.quadratic, row.linear, usual.at(row.log_anchor), leverage, beyond);
        own.clamp(clip.0, clip.1)
    };
    let errors = |rows: &[Row], end: (Extent, &Usual)| -> f64 {
        rows.iter().map(|row| wrong(own(row, end) - row.miss)).sum()
    };
    let mut end = (Extent::default(), &usuals[0].1);
    if let Some(((_, plain), bent)) = polynomials.as_ref().filter(|_| samples.len() >= MIN_ROWS) {
        let bent = bent.as_ref().map_or(plain, |(_, bent)| bent);
        let near = train.0.iter().zip(&anchors).zip(plain.iter().copied().zip(bent.iter().copied()));
        let near: Vec<Row> = near.map(|((sample, anchor), both)| row(sample, *anchor, both)).collect();
        let all = usuals.iter().flat_map(|(parts, usual)| {
            let extents =
                THRESHOLDS.into_iter().flat_map(|threshold| REACHES.map(|reach| (threshold, reach)));
            extents.map(move |(threshold, reach)| (Extent { threshold, reach, parts: *parts }, usual))
        });
        end = better(all, |end| errors(&far, end), |end| Some(errors(&near, end)));
    }
    let misses = far.iter().map(|row| {
        let own = own(row, end);
        (row.log_anchor + own - reach, row.miss - own)
    });
    Some(Beyond { misses: misses.collect(), extent: end.0 })
}

/// Widens a band beyond the longest rows to the residuals of the larger rows in the trial: from the reach on, and in full at
/// their median distance from it. If memory is assumed, to the band of a scaled curve.
pub(super) fn widened(mut band: Band, reach: f64, misses: &[(f64, f64)], is_assumed: bool) -> Band {
    let (Some(last), false) = (band.knots.last().copied(), misses.is_empty()) else { return band };
    let distance = quantile(&sort(misses.iter().map(|miss| miss.0)), 0.5).max(0.1);
    let (mut low, mut high) = ends(&sort(misses.iter().map(|miss| miss.1)));
    if is_assumed {
        (low, high) = (low.min(SCALED_BAND.0.ln()), high.max(SCALED_BAND.1.ln()));
    }
    let reach = reach.max(last.0);
    band.knots.push((reach, last.1, last.2));
    let (low, high) = (low.min(last.1), high.max(last.2));
    band.knots.push((reach + distance, low, high));
    band.knots.push((reach + 2.0 * distance, 2.0 * low.min(0.0), 2.0 * high.max(0.0)));
    band
}

/// Fits rows, and predicts each of them from other folds.
fn linear(
    x: ArrayView2<'_, f64>,
    y: &Array1<f64>,
    weights: &Array1<f64>,
    lambda: f64,
) -> Option<(Linear, Vec<f64>)> {
    let folds = Folds::of(x, y.view(), weights.view(), FOLDS);
    Some((folds.fit(lambda)?, folds.held_out(x, lambda)?))
}

/// Returns the relative error of a time, given the error of its logarithm.
fn wrong(logarithm: f64) -> f64 {
    (logarithm.clamp(-5.0, 5.0).exp() - 1.0).abs()
}

/// Returns the choice with the least error on larger rows, or the first one if that is not clearly better or costs too much near
/// the rows. The latter is slow to compute, so only for choices that are better.
fn better<T: Copy>(
    choices: impl IntoIterator<Item = T>,
    far: impl Fn(T) -> f64,
    near: impl Fn(T) -> Option<f64>,
) -> T {
    let mut all: Vec<(T, f64)> = choices.into_iter().map(|choice| (choice, far(choice))).collect();
    let (first, usual) = all[0];
    all.retain(|(_, far)| *far < WORTH * usual);
    all.sort_by(|a, b| a.1.total_cmp(&b.1));
    if all.is_empty() {
        return first;
    }
    let Some(most) = near(first).map(|near| PRICE * near) else { return first };
    all.into_iter()
        .find(|(choice, _)| near(*choice).is_some_and(|near| near <= most))
        .map_or(first, |best| best.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_has_to_be_clearly_better() {
        let check = |errors: [(f64, f64); 3], expected: usize| {
            let of = better([0, 1, 2], |choice| errors[choice].1, |choice| Some(errors[choice].0));
            assert_eq!(of, expected, "{errors:?}");
        };
        check([(1.0, 1.0), (1.0, 0.99), (1.0, 0.98)], 0);
        check([(1.0, 1.0), (1.0, 0.9), (1.0, 0.8)], 2);
        check([(1.0, 1.0), (1.0, 0.8), (1.0, 0.9)], 1);
        check([(1.0, f64::INFINITY), (1.0, 1.0), (1.0, 2.0)], 1);
        // The gain on larger rows costs too much near the rows.
        check([(1.0, 1.0), (1.1, 0.5), (1.0, 0.9)], 2);
    }

    #[test]
    fn a_band_widens_beyond_its_rows() {
        let band = Band { knots: vec![(-9.0, -0.1, 0.1)], outside: (-0.1, 0.1) };
        let misses: Vec<(f64, f64)> = (0..=100).map(|i| (0.5, 0.01 * f64::from(i) - 0.2)).collect();
        let wide = widened(band.clone(), -8.0, &misses, false);
        let check = |at: f64, low: f64, high: f64| {
            let found = wide.at(at, 1.0);
            assert!((found.0 - low).abs() < 0.02 && (found.1 - high).abs() < 0.02, "{at}: {found:?}");
        };
        check(-9.0, -0.1, 0.1);
        check(-8.0, -0.1, 0.1);
        check(-7.5, -0.11, 0.71);
        check(-7.0, -0.22, 1.42);
        check(0.0, -0.22, 1.42);
        // Good luck with the larger rows does not make it narrower.
        let lucky = widened(band.clone(), -8.0, &[(0.5, 0.0); 20], false);
        assert_eq!(lucky.at(-7.5, 1.0), (-0.1, 0.1));
        assert_eq!(widened(band.clone(), -8.0, &[], true), band);
    }
}
